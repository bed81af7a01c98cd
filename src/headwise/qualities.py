"""What models are compared by: BLEU, perplexity, accuracy, similarity, word error rate.

A task names one (`task.quality`); evaluation, pruning, studies, the report and the command line read it here.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

NO_BREAK = "\u202f"


@dataclass(frozen=True)
class QualityMeasure:
    """The number that says what models of a task are worth.

    measure: its name in tables. change: the name of a difference to the first of several models, where these are
    evaluated together. name: in figures and sentences.
    unit: of a change, behind its number. loss: what a model may lose, in words. higher_is_better: which way is up.
    compared: the measure that choices compare, the quality itself or its change. scale: what its own numbers are, for
    an axis. over: what a text has many of. least: below it, a model is too poor for its differences to mean anything.
    """

    measure: str
    name: str
    change: str
    unit: str
    loss: str
    higher_is_better: bool
    compared: str
    scale: str = ""
    over: str = "sentences"
    least: float | None = None

    def is_too_low(self, value: float) -> bool:
        """Whether a model of this quality is too poor for its differences to other models to mean anything."""
        return self.least is not None and value < self.least

    @property
    def axis(self) -> str:
        """Its name at an axis."""
        return f"{self.name} ({self.scale})" if self.scale else self.name

    @property
    def better(self) -> int:
        """The sign of a change for the better."""
        return 1 if self.higher_is_better else -1

    @property
    def relative(self) -> bool:
        """Whether a change is in % of the quality itself."""
        return self.unit.endswith("%")

    @property
    def in_unit(self) -> str:
        """What the title of a column of changes ends with."""
        return f", in {self.unit.strip(NO_BREAK)}" if self.unit else ""

    def comparable_value(self, rows: Sequence[Sequence[Any]]) -> float:
        """What choices compare, the higher the better.

        rows: (measure, value, …) of one model. The whole model has no change: 0.
        """
        values = {row[0]: float(row[1]) for row in rows}
        return self.better * values.get(self.compared, 0.0)

    def moved(self, base: float, change: float) -> float:
        """The quality that is a change away from `base`."""
        return base * (1 + change / 100) if self.relative else base + change

    def change_of(self, before: float, after: float) -> float:
        """The change from one quality to another; no number where a perplexity starts at 0."""
        if not self.relative:
            return after - before
        return 100 * (after / before - 1) if before else math.nan


BLEU = QualityMeasure(
    measure="bleu",
    name="BLEU",
    change="bleu_difference",
    unit="",
    loss="BLEU",
    higher_is_better=True,
    compared="bleu",
    least=10,
)
# BLEU against the whole model's own translations, where a text has no other: how far a smaller model says the same
AGREEMENT = replace(
    BLEU,
    measure="agreement",
    name="agreement",
    change="agreement_difference",
    loss="points of agreement",
    compared="agreement",
)
PERPLEXITY = QualityMeasure(
    measure="perplexity",
    name="perplexity",
    change="perplexity_change",
    unit=f"{NO_BREAK}%",
    loss="% of perplexity",
    higher_is_better=False,
    compared="perplexity_change",
)
ACCURACY = QualityMeasure(
    measure="accuracy",
    name="accuracy",
    change="accuracy_change",
    unit=f"{NO_BREAK}points",
    loss="points of accuracy",
    higher_is_better=True,
    compared="accuracy_change",
)
SIMILARITY = QualityMeasure(
    measure="similarity",
    name="similarity",
    change="similarity_change",
    unit=f"{NO_BREAK}points",
    loss="points of similarity",
    higher_is_better=True,
    compared="similarity",
)
WORD_ERROR_RATE = QualityMeasure(
    measure="wer",
    name="word error rate",
    change="wer_change",
    unit=f"{NO_BREAK}points",
    loss="points of word error rate",
    higher_is_better=False,
    compared="wer",
    scale="%",
    over="recordings",
)
QUALITIES = (BLEU, AGREEMENT, PERPLEXITY, ACCURACY, SIMILARITY, WORD_ERROR_RATE)

# what `max_drop` counts
LOSSES = (
    f"{BLEU.loss}, {PERPLEXITY.loss}, {ACCURACY.loss}, {SIMILARITY.loss}, or {WORD_ERROR_RATE.loss}"
)
