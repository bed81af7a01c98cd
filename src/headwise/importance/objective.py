"""The loss of a model on a batch, which all scores are about.

A batch has the inputs of the model's forward (`input_ids` B S, `attention_mask` B S, for encoder-decoders also
`decoder_input_ids` B T), `labels` (B T: the token that the logits at each position predict, or IGNORED) and perhaps
`rows` (the row of each sentence in the text). Labels are at the positions of their logits, not shifted.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from headwise.attention.discover import output_of
from headwise.errors import HeadwiseError

IGNORED = -100


def on_device(model: nn.Module, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The batch on the model's device. Raises HeadwiseError for a sentence with a label and no source token."""
    device = next(model.parameters()).device
    tensors = {name: tensor.to(device) for name, tensor in batch.items()}
    if "labels" in tensors:
        asked = (tensors["labels"] != IGNORED).any(1)
        blank = asked & ~tensors["attention_mask"].bool().any(1)
        if bool(blank.any()):
            raise HeadwiseError(
                f"Sentence {int(blank.nonzero()[0, 0])} of a batch has no token: leave blank lines out of the text."
            )
    return tensors


def inputs_of(batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """What the model's forward gets of a batch."""
    return {name: tensor for name, tensor in batch.items() if name not in ("rows", "labels")}


def predict(model: nn.Module, batch: Mapping[str, Tensor]) -> Tensor:
    """The logits B T V of one forward. Raises HeadwiseError for a model without logits."""
    inputs = inputs_of(batch)
    logits: Tensor | None = getattr(output_of(model, inputs), "logits", None)
    if logits is None:
        raise HeadwiseError(
            f"{type(model).__name__} predicts no words, so its heads cannot be scored by what it predicts: "
            "load it with its language-model head."
        )
    return logits


def sentence_losses(logits: Tensor, labels: Tensor) -> Tensor:
    """Negative log likelihood of each sentence's labels, summed over its tokens: nats, B. Labels B T, logits B T V."""
    wide = torch.promote_types(logits.dtype, torch.float32)
    asked = (labels != IGNORED).nonzero(as_tuple=True)
    lost = nn.functional.cross_entropy(logits[asked].to(wide), labels[asked], reduction="none")
    return lost.new_zeros(len(labels)).index_add(0, asked[0], lost)


def asked_tokens(labels: Tensor) -> Tensor:
    """The number of predicted tokens of each sentence: B."""
    return (labels != IGNORED).sum(1)
