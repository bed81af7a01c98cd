"""What a model answered on a text, and what these answers are worth: translations, losses or similarities of sentences,
word errors of recordings.

All sorts have one interface, `Answers`, so that pruning and studies need not know which they have. All but translations
are measured under several masks at once (`measure`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from headwise.decoding.bleu import CorpusScore, corpus_scores, paired_difference
from headwise.evaluation.losses import Difference, Losses, QualityRows
from headwise.evaluation.similarities import Similarities
from headwise.evaluation.word_errors import WordErrors
from headwise.heads import HeadMask
from headwise.model import Model
from headwise.qualities import SIMILARITY, WORD_ERROR_RATE
from headwise.tasks.batches import Batches

Measured = Losses | Similarities | WordErrors


def measure(
    text: Batches,
    masks: Sequence[HeadMask],
    cut: Callable[[HeadMask], Model] | None = None,
    whole: Measured | None = None,
) -> Measured:
    """What the models of some masks are worth on a text, the whole model's column first: losses, similarities of sentences
    or word errors, by the quality of the task.

    cut: makes the smaller model of a mask, where that is not the masked one. whole: what was measured of the whole model
    on this text; word errors are taken from there.
    """
    if text.task.quality == SIMILARITY:
        return Similarities.measure(text, masks, cut)
    if text.task.quality == WORD_ERROR_RATE:
        assert whole is None or isinstance(whole, WordErrors)
        return WordErrors.measure(text, masks, cut, whole)
    return Losses.measure(text, masks, cut)


def save_measured(measured: Measured, file: Path) -> None:
    """Write what was measured to an .npz file: their fields by name, without those that are None."""
    arrays: dict[str, np.ndarray] = {}
    for name, value in vars(measured).items():
        if value is not None:
            arrays[name] = np.asarray(value)
    file.parent.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(file, **arrays)  # type: ignore[arg-type]


def read_measured(file: Path) -> Measured:
    """What `save_measured` wrote."""
    with np.load(file) as arrays:
        fields: dict[str, Any] = {**arrays}
    fields["made"] = str(fields["made"])
    if "cosines" in fields:
        return Similarities(**fields)
    return WordErrors(**fields) if "errors" in fields else Losses(**fields)


class Answers(Protocol):
    """What one model answered on one text. sentences: how many it has. independent_units: how many sentences (or recordings)
    of one length say as much: what stands behind every interval."""

    @property
    def sentences(self) -> int: ...

    @property
    def independent_units(self) -> float: ...

    def rows(self, seed: int) -> QualityRows:
        """Quality with 95 % intervals: (measure, value, low, high)."""

    def signatures(self) -> dict[str, str]:
        """How scores were computed, by the name of a column."""

    def difference(self, other: Any, seed: int) -> Difference:
        """The difference to another model's answers on the same text, paired over sentences."""


@dataclass(frozen=True)
class Translations:
    """The translations of a text, and its references."""

    lines: Sequence[str]
    references: Sequence[str]

    @property
    def sentences(self) -> int:
        return len(self.lines)

    @cached_property
    def scores(self) -> tuple[CorpusScore, CorpusScore]:
        """BLEU and chrF."""
        return corpus_scores(self.lines, self.references)

    @property
    def independent_units(self) -> float:
        return self.scores[0].units

    def rows(self, seed: int) -> QualityRows:
        return [(score.name, score.value, score.low, score.high) for score in self.scores]

    def signatures(self) -> dict[str, str]:
        return {f"{score.name}_signature": score.signature for score in self.scores}

    def difference(self, other: Translations, seed: int) -> Difference:
        change = paired_difference(self.lines, other.lines, self.references)
        return change.value, change.low, change.high, change.p


@dataclass(frozen=True)
class AnswersOfOne:
    """One model's column among those that were measured together; column 0 is the whole model."""

    measured: Measured
    column: int

    @property
    def sentences(self) -> int:
        return self.measured.sentences

    @property
    def independent_units(self) -> float:
        return self.measured.independent_units

    def rows(self, seed: int) -> QualityRows:
        return self.measured.rows(self.column, seed)

    def signatures(self) -> dict[str, str]:
        return {f"{self.measured.quality.measure}_signature": self.measured.made}

    def difference(self, other: AnswersOfOne, seed: int) -> Difference:
        sort: Any = self.measured  # both are of one sort: of one task
        change: Difference = sort.change(self.column, other.measured, other.column, seed)
        return change
