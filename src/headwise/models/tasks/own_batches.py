"""Batches that the user brings: the keyword tensors of the model's own forward with `labels`, as its Trainer gets them.

So models of images and sound are scored by the loss that they were trained for, and classifiers of text.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from headwise.core.errors import HeadwiseError, shown_value
from headwise.models.attention.capture import capture
from headwise.models.attention.configuration import start_token
from headwise.models.attention.discover import (
    Discovery,
    evaluating,
    output_of,
    reads_its_source_twice,
)
from headwise.models.attention.kernel import AttentionCall
from headwise.models.tasks.objective import (
    asked_tokens,
    inputs_of,
    on_device,
    predict,
    sentence_losses,
)
from headwise.models.token_rows import IGNORED
from headwise.models.training.token_batches import decoder_inputs

NEAR_LOSS = 1e-2  # share of the model's own loss; half precision differs by more than rounding


class OwnBatches:
    """Batches as the measures read them: labels at the positions of their logits, one a sentence for classifiers.

    A model of text needs `input_ids`; for other inputs all positions of the encoder count. Raises HeadwiseError for
    what is no such batch, and where the cross-entropy of the labels is not the model's own loss.
    """

    noun = "examples"
    left_out: ClassVar[Mapping[str, int]] = {}

    def __init__(
        self, hf: Any, discovery: Discovery, name: str, batches: Sequence[Mapping[str, Tensor]]
    ) -> None:
        self.hf = hf
        self.discovery = discovery
        self.positions = dict[tuple[int, ...], int]()
        if isinstance(batches, Iterator) or not isinstance(batches, Sequence) or not batches:
            raise HeadwiseError(
                f"{shown_value(batches)} was given in place of text: give a file or a list of sentences or rows, or a "
                "list of batches, which are read several times, each with the tensors of the model's own forward."
            )
        for batch in batches:
            if not any(isinstance(value, Tensor) for value in batch.values()):
                raise HeadwiseError(
                    f"{shown_value(batch)} holds no tensors, so it is no batch of {name}; as a row of text it lacks the "
                    "columns that are read. Pairs are rows of source and target, or (source, target)."
                )
            labels = batch.get("labels")
            if not isinstance(labels, Tensor) or labels.is_floating_point() or labels.dim() > 2:
                raise HeadwiseError(
                    "A batch has no labels of whole numbers, one an example or one a token: give the tensors of the "
                    "model's own forward by name, with 'labels', as its Trainer gets them."
                )
        self.given = batches
        self.refuse_other_loss(name)

    def __len__(self) -> int:
        return sum(len(batch["labels"]) for batch in self.given)

    @property
    def fingerprint(self) -> str:
        """SHA-256 of all tensors and their names."""
        digest = hashlib.sha256()
        for batch in self.given:
            for name, tensor in sorted(batch.items()):
                digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}".encode())
                digest.update(
                    # As bytes, because NumPy has no bfloat16.
                    tensor.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes()
                )
        return digest.hexdigest()

    def batches(self, hide: bool = True) -> Iterator[dict[str, Any]]:
        start = 0
        for batch in self.given:
            rows = torch.arange(start, start + len(batch["labels"]))
            start += len(rows)
            yield {**self.aligned(batch), "rows": rows}

    def aligned(self, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """A batch with labels where their logits are, and with the places of its tokens."""
        tensors, labels, hf = dict(batch), batch["labels"], self.hf
        ids = tensors.get("input_ids")
        if hf.config.is_encoder_decoder and not reads_its_source_twice(hf):
            if "decoder_input_ids" not in tensors:
                tensors["decoder_input_ids"] = decoder_inputs(
                    labels, start_token(hf), getattr(hf.config, "pad_token_id", None) or 0
                )
        elif (
            ids is not None
            and labels.shape == ids.shape
            and "decoder-self" in self.discovery.heads.kinds
            and hf.get_output_embeddings() is not None
        ):
            # A causal model of transformers shifts its labels by itself.
            ahead = torch.full_like(labels, IGNORED)
            ahead[:, :-1] = labels[:, 1:]
            tensors["labels"] = ahead
            # A prompt without labels counts as no query.
            tensors["behind_prompt"] = (ahead != IGNORED).cumsum(1) > 0
        elif labels.dim() == 1:
            tensors["labels"] = labels[:, None]
        if ids is None:
            tensors["places"] = torch.ones(len(labels), self.length(tensors), dtype=torch.bool)
        elif "attention_mask" not in tensors:
            tensors["attention_mask"] = torch.ones_like(ids)
        return tensors

    def length(self, tensors: Mapping[str, Tensor]) -> int:
        """How many positions the encoder makes of an input that is not text."""
        shape = tuple(tensors[self.hf.main_input_name].shape[1:])
        if shape not in self.positions:
            hf, seen = self.hf, list[AttentionCall]()
            one = {name: tensor[:1].to(hf.device) for name, tensor in inputs_of(tensors).items()}
            with (
                evaluating(hf),
                torch.no_grad(),
                capture(hf, self.discovery, hook=seen.append),
            ):
                output_of(hf, one)
            self.positions[shape] = seen[0].output.shape[1]
        return self.positions[shape]

    def refuse_other_loss(self, name: str) -> None:
        """Raise HeadwiseError unless the cross-entropy of the labels is what the model itself calls its loss."""
        hf, batch = self.hf, self.given[0]
        with evaluating(hf), torch.no_grad():
            tensors = on_device(hf, self.aligned(batch))
            wanted = getattr(
                output_of(hf, {name: tensor.to(hf.device) for name, tensor in batch.items()}),
                "loss",
                None,
            )
            labels = tensors["labels"]
            got = sentence_losses(predict(hf, tensors), labels).sum() / asked_tokens(labels).sum()
        # In this form a loss of NaN is refused, too.
        if wanted is None or not bool((got - wanted).abs() <= NEAR_LOSS * wanted.abs()):
            said = "has none" if wanted is None else f"is {float(wanted):.4g}"
            raise HeadwiseError(
                f"The cross-entropy of these labels is {float(got):.4g}, but the loss of {name}, a "
                f"{type(hf).__name__}, {said}: headwise scores heads by cross-entropy only."
            )
