"""A text as the batches that a model is scored on: all of it, or every other sentence."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from accelerate import PartialState

from headwise.attention import classifies, start_token
from headwise.data.text import LabelledText, ParallelText, Text
from headwise.errors import HeadwiseError
from headwise.importance.objective import IGNORED, predicts
from headwise.model import Model
from headwise.progress import Report, silent
from headwise.tasks.own_batches import OwnBatches
from headwise.training.batches import Data, Encoded, batches
from headwise.training.labelled import Labelled
from headwise.training.language import Lines, Packed

AnyText = ParallelText | Text | LabelledText
Brought = Sequence[
    Mapping[str, torch.Tensor]
]  # batches of the model's own keyword tensors, with labels
EVERY = 10  # sentence that is held out where no dev text is given


class Batches:
    """The batches of a text for a model, as often as wanted; of several processes, each gets every n-th batch.

    progress: gets the share of the sentences that went by; a measure that reads the text twice starts twice.
    hide: whether a masked model gets its text with hidden tokens, to predict them.
    """

    hide = True

    def __init__(self, model: Model, text: AnyText | Brought, progress: Report = silent) -> None:
        self.model, self.progress = model, progress
        self.data: Encoded | Lines | Labelled | OwnBatches
        self.text: AnyText | OwnBatches
        if not isinstance(text, ParallelText | Text | LabelledText):
            self.text = self.data = OwnBatches(model, text)
            return
        self.text = text
        refuse_other_text(model, text)
        if isinstance(text, ParallelText):
            self.data = Encoded(text, model.tokenizer, max_tokens(model))
        elif isinstance(text, LabelledText):
            self.data = Labelled(text, model.tokenizer, model.hf, max_tokens(model))
        else:
            self.data = Lines(text, model.tokenizer, max_tokens(model), is_causal(model))

    @property
    def dropped(self) -> int:
        return self.data.dropped

    def __iter__(self) -> Iterator[dict[str, Any]]:
        state, done = PartialState(), 0
        for number, batch in enumerate(self.whole()):
            if number % state.num_processes == state.process_index:
                yield batch
            done += int((batch["rows"] >= 0).sum())
            self.progress(done / len(self.data), f"{done} of {len(self.data)} sentences")

    def intact(self) -> Batches:
        """The same without hidden tokens, for measures that need no prediction."""
        shown = copy.copy(self)
        shown.hide = False
        return shown

    def whole(self) -> Iterator[dict[str, Any]]:
        """All batches, in every process."""
        if isinstance(self.data, Lines | OwnBatches):
            return self.data.batches(hide=self.hide)
        if isinstance(self.data, Labelled):
            return self.data.batches()
        return batches(self.data, self.model.tokenizer, start_token(self.model.hf))


class Fold:
    """Every other sentence, counted as tallies count them: the even ones (0) or the odd ones (1)."""

    def __init__(self, batches: Batches, which: int) -> None:
        self.batches, self.which = batches, which

    def intact(self) -> Fold:
        """The same sentences without hidden tokens."""
        return Fold(self.batches.intact(), self.which)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        state = PartialState()
        return islice(self.whole(), state.process_index, None, state.num_processes)

    def whole(self) -> Iterator[dict[str, Any]]:
        """All batches, in every process."""
        start = 0
        for batch in self.batches.whole():
            size = len(batch["labels"])
            mine = (torch.arange(start, start + size) % 2 == self.which) & (
                batch["labels"] != IGNORED
            ).any(1)
            start += size
            if bool(mine.any()):
                yield {name: tensor[mine] for name, tensor in batch.items()}


def refuse_other_text(model: Model, text: AnyText) -> None:
    """Raise HeadwiseError for text of another sort than the model needs, and a model without a tokenizer."""
    with_tokenizer(model)
    wanted: type[AnyText]
    if classifies(model.hf):
        wanted, needed = LabelledText, "labelled text (--labelled, hw.LabelledText)"
    elif model.hf.config.is_encoder_decoder:
        wanted, needed = ParallelText, "parallel text (source and target)"
    else:
        wanted, needed = Text, "one-sided text (--text)"
    if not isinstance(text, wanted):
        raise HeadwiseError(f"{model.name} is a {type(model.hf).__name__}, which needs {needed}.")


def is_causal(model: Model) -> bool:
    """Whether a model predicts the next token; others predict masked ones."""
    return "decoder-self" in model.heads.kinds


def training_data(
    model: Model,
    text: AnyText,
    batch_tokens: int,
    cache: Path | None = None,
    limit: int | None = None,
) -> Data:
    """A text as a model trains on it: pairs of at most `limit` tokens a side, labelled texts of at most so many, or
    one-sided text packed into rows.

    Raises HeadwiseError for a model that predicts neither words nor classes, and for a text of another sort than it
    needs.
    """
    refuse_other_text(model, text)
    if not predicts(model.hf):
        raise HeadwiseError(
            f"{model.name} is a {type(model.hf).__name__}, which predicts no words, so there is no loss to train it "
            "by: remove heads with method 'greedy', or train gates in a loop of your own (hw.GatedLoop)."
        )
    limit = limit or max_tokens(model)
    if isinstance(text, ParallelText):
        return Encoded(text, translator(model).tokenizer, limit, cache)
    if isinstance(text, LabelledText):
        return Labelled(text, model.tokenizer, model.hf, min(limit, batch_tokens), cache)
    return Packed(text, model.tokenizer, min(limit, batch_tokens), is_causal(model), cache)


def with_tokenizer(model: Model) -> Model:
    """The model itself; raises HeadwiseError without a tokenizer."""
    if model.tokenizer is None:
        raise HeadwiseError(f"{model.name} has no tokenizer beside its weights: save one there.")
    return model


def translator(model: Model) -> Model:
    """The model itself; raises HeadwiseError when it does not translate."""
    kind = type(model.hf).__name__
    if not model.hf.config.is_encoder_decoder or not model.hf.can_generate():
        raise HeadwiseError(
            f"{model.name} is a {kind}, but a translation model (encoder and decoder) is needed here."
        )
    return with_tokenizer(model)


def max_tokens(model: Model) -> int:
    """The longest sentence, in tokens, that a model gets."""
    config: Any = model.hf.config
    generation: Any = getattr(model.hf, "generation_config", None)
    limit = (
        int(getattr(generation, "max_length", None) or 512) if config.is_encoder_decoder else 512
    )
    return min(limit, getattr(config, "max_position_embeddings", 512))


def held_out(text: AnyText) -> tuple[AnyText, AnyText]:
    """All but every tenth of a text, and every tenth."""
    if len(text) < EVERY:
        raise HeadwiseError(
            f"Every tenth sentence is held out, but there are only {len(text)}: give dev text as well."
        )
    places = range(len(text))
    return text.take([i for i in places if (i + 1) % EVERY]), text.take(places[EVERY - 1 :: EVERY])
