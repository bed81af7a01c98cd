"""The loss of a model on a batch, which all scores are about: the negative log likelihood of labels or, of prompts in
pairs, a logit difference.

A batch has the inputs of the model's forward (`input_ids` B S, `attention_mask` B S, for encoder-decoders also
`decoder_input_ids` B T; images and sound have other inputs, and `places` B S, where the encoder has a position),
`labels` (B T: the token or class that the logits at each position predict, or IGNORED; B 1: the class of a text) and
perhaps `rows` (the row of each sentence in the text) and `counted` (B S: of windows of long documents, the tokens that
no window before has; all others are read, but counted there; of recordings, the frames before the silence at their
end) and `behind_prompt` (B S: of a user's own batches for a decoder, the tokens from the first that has a label on).
Labels are at the positions of their logits, not shifted. Prompts in pairs (`tasks/prompt_pairs.py`) have `wrong_labels`
B T, what labels are compared with, and `corrupted_ids` B S.

Training has a loss of its own, which `training/loss.py` compares with this one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from headwise.core.errors import HeadwiseError
from headwise.models.attention.backward import passing_gradients
from headwise.models.attention.discover import logits_in, output_of
from headwise.models.attention.offload import device_of
from headwise.models.attention.output import Projection, few_logits, projection
from headwise.models.token_rows import IGNORED

CHUNK = 1 << 26  # logits that are copied together

# whether the logits of a model are those of its output layer alone
PROJECTED: WeakKeyDictionary[nn.Module, bool] = WeakKeyDictionary()

# which the model does not get
OURS = ("rows", "labels", "wrong_labels", "corrupted_ids", "places", "counted", "behind_prompt")

Places = tuple[Tensor, Tensor]  # of predicted tokens: their sentences and positions


@contextmanager
def differentiable(model: nn.Module) -> Iterator[None]:
    """A block in which gradients can be computed, also inside `torch.inference_mode()`. Raises HeadwiseError for a
    model whose weights were made there, and where a layer passes no gradient on (`passing_gradients`)."""
    if any(parameter.is_inference() for parameter in model.parameters()):
        raise HeadwiseError(
            f"This {type(model).__name__} was made inside torch.inference_mode(), so no gradients pass through it: "
            "load it outside."
        )
    with torch.inference_mode(False), passing_gradients(model):
        yield


def on_device(model: nn.Module, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The batch on the model's device. Raises HeadwiseError for a sentence with a label and no source token."""
    if "labels" in batch:  # where the batch is, so that nothing waits for the model's device
        blank = (batch["labels"] != IGNORED).any(1) & ~source_places(batch).any(1)
        if bool(blank.any()):
            raise HeadwiseError(
                f"Sentence {int(blank.nonzero()[0, 0])} of a batch has no token: leave blank lines out of the text."
            )
    device = device_of(model)
    tensors = {}
    for name, tensor in batch.items():
        # A backward pass cannot keep a tensor that was made in inference mode.
        if tensor.is_inference():
            tensor = tensor.clone()
        tensors[name] = tensor.to(device)
    return tensors


def inputs_of(batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """What the model's forward gets of a batch."""
    return {name: tensor for name, tensor in batch.items() if name not in OURS}


def source_places(batch: Mapping[str, Tensor]) -> Tensor:
    """Where a token of the source is and no padding: booleans B S."""
    return (batch["places"] if "places" in batch else batch["attention_mask"]).bool()


def token_masks(batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """By side, where a token is and no padding: B S and B T. A decoder's tokens end with the last predicted one."""
    source = source_places(batch)
    if "decoder_input_ids" not in batch:
        return {"source": source, "target": source}
    asked = batch["labels"] != IGNORED
    # From the end: a position counts while a predicted one is there or follows.
    return {"source": source, "target": asked.flip(1).cumsum(1).flip(1) > 0}


def query_masks(batch: Mapping[str, Tensor], prompts: bool = False) -> dict[str, Tensor]:
    """By side, the tokens that count as queries, B S and B T: all that are there, in windows of a long document once;
    of a decoder those that predict, so that a prompt does not count. prompts: whether it counts where it stands in one
    stack with the answer."""
    there = token_masks(batch)
    if "counted" in batch:
        there = {**there, "source": there["source"] & batch["counted"]}
    if "behind_prompt" in batch and not prompts:
        there = {**there, "source": there["source"] & batch["behind_prompt"]}
    if "decoder_input_ids" in batch:
        return {**there, "target": batch["labels"] != IGNORED}
    return {**there, "target": there["source"]}


def predict(model: nn.Module, batch: Mapping[str, Tensor]) -> Tensor:
    """The logits B T V of one forward; those of classes are B 1 V. Raises HeadwiseError for a model without."""
    logits = logits_in(output_of(model, inputs_of(batch)))
    if logits is None:
        raise HeadwiseError(
            f"{type(model).__name__} predicts no words, so its heads cannot be scored by what it predicts: "
            "load it with its language-model head, or score them by confidence, entropy or dormancy."
        )
    return logits[:, None] if logits.dim() == 2 else logits


def asked_places(labels: Tensor) -> Places:
    """Where tokens are predicted. The processor waits for a GPU here, so once for a batch is enough."""
    sentences, positions = (labels != IGNORED).nonzero(as_tuple=True)
    return sentences, positions


def losses_of(
    model: nn.Module, batch: Mapping[str, Tensor], places: Places | None = None
) -> Tensor:
    """`sentence_losses` of one forward, B. Where words are predicted, never with all logits in memory.

    Only positions with a label are projected, a block of the vocabulary at a time; gradients are those of the states, not
    of the output layer's weights.

    A model that does more with its logits than headwise knows computes them all: of its first batch a few of its own
    logits are compared with ours.
    """
    project, states = before_output(model, batch)
    return losses_at(project, states, batch, places)


def losses_at(
    project: Projection | None,
    states: Tensor,
    batch: Mapping[str, Tensor],
    places: Places | None = None,
) -> Tensor:
    """`losses_of` from what is there before the output layer (`before_output`): B."""
    labels = batch["labels"]
    wrong_labels = batch.get("wrong_labels")
    if project is None:
        return sentence_losses(states, labels, places, wrong_labels)
    sentences, positions = asked_places(labels) if places is None else places
    # N M: only positions that predict something.
    asked = states[sentences, positions]
    gold = labels[sentences, positions]
    if wrong_labels is not None:
        wrong = wrong_labels[sentences, positions]
        # Less is better, as of a loss: minus the logit difference.
        lost = project.logits_of(asked, wrong) - project.logits_of(asked, gold)
    else:
        lost = project.losses(asked, gold)
    return lost.new_zeros(len(labels)).index_add(0, sentences, lost)


def losses_and_words(
    model: nn.Module, batch: Mapping[str, Tensor], places: Places
) -> tuple[Tensor, Tensor]:
    """The loss of each sentence, B, and the word that is held most likely at each of N places, N, of one forward."""
    project, states = before_output(model, batch)
    asked = states[places]
    if project is None:
        return losses_at(project, states, batch, places), asked.argmax(-1)
    labels = batch["labels"]
    lost, words = project.losses_and_best(asked, labels[places])
    if "wrong_labels" in batch:
        return losses_at(project, states, batch, places), words
    return lost.new_zeros(len(labels)).index_add(0, places[0], lost), words


def before_output(
    model: nn.Module, batch: Mapping[str, Tensor]
) -> tuple[Projection | None, Tensor]:
    """The output layer of a model, and the states before it, B T M, of one forward; where the model does more with its
    logits than headwise knows, None and its logits, B T V."""
    # The choice of the way is the model's alone: two ways differ by rounding, and a batch is compared with larger ones
    # in which heads are off.
    if not vocabulary_of(model):
        return None, predict(model, batch)
    with few_logits(model) as seen:
        own = predict(model, batch)
    # An output layer that runs twice in a forward serves more than the logits; one that never runs, less.
    if len(seen) != 1:
        return None, predict(model, batch)
    states = seen[0]
    project = projection(model, states.device)
    if project is None:
        return None, predict(model, batch)
    # Once for a model: a comparison makes the processor wait for a GPU.
    if model not in PROJECTED:
        # `own` has the few positions that `few_logits` left.
        PROJECTED[model] = same_logits(project(states[:1, : own.shape[1]]), own)
    if not PROJECTED[model]:
        return None, predict(model, batch)
    return project, states


def vocabulary_of(model: nn.Module) -> int:
    """How many words a model predicts from one output layer; 0 for another sort of model."""
    words: int = getattr(model.get_output_embeddings(), "out_features", 0)  # type: ignore[operator]
    return words


def same_logits(ours: Tensor, theirs: Tensor) -> bool:
    """Whether two tensors of logits are equal but for rounding."""
    if ours.shape != theirs.shape:
        return False
    near = torch.finfo(theirs.dtype).eps ** 0.5
    return bool(torch.allclose(ours, theirs, rtol=near, atol=near, equal_nan=True))


def sentence_losses(
    logits: Tensor,
    labels: Tensor,
    places: Places | None = None,
    wrong_labels: Tensor | None = None,
) -> Tensor:
    """The `token_losses` of each sentence, summed: nats, B. Labels and wrong labels B T, logits B T V.

    places: `asked_places(labels)`, where they are known. Without gradients the logits are copied CHUNK at a time.
    """
    sentences, positions = asked_places(labels) if places is None else places
    # With gradients the copies of all chunks stay for the backward pass: chunks save nothing.
    size = max(1, len(sentences) if logits.requires_grad else CHUNK // logits.shape[-1])
    parts = []
    for chunk in zip(sentences.split(size), positions.split(size), strict=True):
        wrong = None if wrong_labels is None else wrong_labels[chunk]
        parts.append(token_losses(logits[chunk], labels[chunk], wrong))
    lost = torch.cat(parts)
    return lost.new_zeros(len(labels)).index_add(0, sentences, lost)


def token_losses(logits: Tensor, gold: Tensor, wrong: Tensor | None = None) -> Tensor:
    """The negative log likelihood of N gold words, or, with wrong words, how far the logit of each wrong word is above
    that of the gold one (so that a better model has less of either). Logits N V; nats, N."""
    # In half precision the sum over a vocabulary loses too many digits; float64 stays.
    wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
    if wrong is None:
        return nn.functional.cross_entropy(wide, gold, reduction="none")
    return (wide.gather(1, wrong[:, None]) - wide.gather(1, gold[:, None]))[:, 0]


def asked_tokens(labels: Tensor) -> Tensor:
    """The number of predicted tokens of each sentence: B."""
    return (labels != IGNORED).sum(1)
