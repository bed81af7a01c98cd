"""What models are compared by (BLEU, perplexity, accuracy, similarity, word error rate), and numbers of it.

A task names one (`task.quality`); `answers.py` measures models by it. Pruning, studies, the report and the command line
read it here.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np

Values = TypeVar("Values", float, np.ndarray)

NO_BREAK = "\u202f"
BETTER, WORSE, NOT_DISTINGUISHABLE = FINDINGS = ("better", "worse", "not distinguishable")
NUMBER_COLUMNS = ("value", "low", "high", "p", "units")
BLEU_STATISTICS = 10  # of a sentence; those of chrF stand behind them


@dataclass(frozen=True)
class Number:
    """A number with its 95 % interval; without a value where it was not measured.

    p: two-sided, of a change. units: how many independent pieces of text (sentences, recordings) the interval is made
    of; their effective number where they differ in length.
    """

    value: float | None = None
    low: float | None = None
    high: float | None = None
    p: float | None = None
    units: float | None = None

    @property
    def has_interval(self) -> bool:
        """Whether it says how sure it is."""
        return self.low is not None and self.high is not None

    def finding(self, quality: QualityMeasure) -> str:
        """What a change of quality says: one of FINDINGS; empty without an interval. A change is distinguishable where
        the interval leaves out 0 and p is below 0.05."""
        if self.low is None or self.high is None:
            return ""
        # Where few units differ, p is that of an exact test, which the interval does not know.
        if self.low <= 0 <= self.high or (self.p is not None and self.p >= 0.05):
            return NOT_DISTINGUISHABLE
        return BETTER if (self.low > 0) == quality.higher_is_better else WORSE


@dataclass(frozen=True)
class QualityMeasure:
    """The number that models of a task are compared by.

    name: in tables. title: in figures and sentences. loss: what a model may lose, in words. value: from statistics that
    were summed over a text, … S, to values …; None for a rank correlation, which is no function of sums. columns: the
    first of its own among the statistics of a unit, and the one behind them. whole: the value of a text whose every unit
    is as good as can be, or as bad, 0 being the other; None where there is no such value. higher_is_better: whether a
    higher value is better. relative: whether a change is in % of the value. unit: of a change, behind its number. scale:
    the unit of its own numbers, for an axis. is_share: whether it is the share of units that are right, in %. over: what
    the units of a text are called. each: what its loss is a mean over. least: below it, a model is too poor for its
    differences to mean anything.
    """

    name: str
    title: str
    loss: str
    value: Callable[[np.ndarray], np.ndarray] | None
    columns: tuple[int, int | None] = (0, None)
    whole: float | None = None
    higher_is_better: bool = True
    relative: bool = False
    unit: str = ""
    scale: str = ""
    is_share: bool = False
    over: str = "sentences"
    each: str = "token"
    least: float | None = None

    def is_too_low(self, value: float) -> bool:
        """Whether a model of this quality is too poor for its differences to other models to mean anything."""
        return self.least is not None and value < self.least

    @property
    def axis(self) -> str:
        """Its title at an axis."""
        return f"{self.title} ({self.scale})" if self.scale else self.title

    @property
    def better(self) -> int:
        """The sign of a change for the better."""
        return 1 if self.higher_is_better else -1

    @property
    def in_unit(self) -> str:
        """What the title of a column of changes ends with."""
        return f", in {self.unit.strip(NO_BREAK)}" if self.unit else ""

    def moved(self, base: float, change: float) -> float:
        """The quality that is a change away from `base`."""
        return base * (1 + change / 100) if self.relative else base + change

    def change(self, before: Values, after: Values) -> Values:
        """The changes from some values to others; infinite or no number where a perplexity starts at 0."""
        changes: Values = after - before
        if self.relative:
            with np.errstate(divide="ignore", invalid="ignore"):
                changes = 100 * (np.divide(after, before) - 1)
        return changes


def bleu(sums: np.ndarray) -> np.ndarray:
    from sacrebleu.metrics.bleu import BLEU as Metric  # not for --help: it takes its time

    return by_sacrebleu(Metric(), sums)


def chrf(sums: np.ndarray) -> np.ndarray:
    from sacrebleu.metrics.chrf import CHRF as Metric

    return by_sacrebleu(Metric(), sums)


def by_sacrebleu(metric: Any, sums: np.ndarray) -> np.ndarray:
    """sacreBLEU's scores of its own statistics, … S in, … out."""
    # sacreBLEU has no public way from statistics to a score; a resample needs one without counting n-grams again.
    rows = sums.reshape(-1, sums.shape[-1])
    scores = [metric._compute_score_from_stats(row).score for row in rows.tolist()]
    values: np.ndarray = np.array(scores).reshape(sums.shape[:-1])
    return values


def mean(sums: np.ndarray) -> np.ndarray:
    """The sum of losses, or of errors, over the number of tokens, texts or words."""
    ratio: np.ndarray = sums[..., 0] / sums[..., 1]
    return ratio


def percentage(sums: np.ndarray) -> np.ndarray:
    return 100 * mean(sums)


def perplexity(sums: np.ndarray) -> np.ndarray:
    values: np.ndarray = np.exp(mean(sums))
    return values


def share_found(sums: np.ndarray) -> np.ndarray:
    """The classes that are found stand behind the number of those that are asked for, in %."""
    shares: np.ndarray = 100 * sums[..., 1] / sums[..., 0]
    return shares


BLEU = QualityMeasure(
    "bleu", "BLEU", "BLEU", bleu, columns=(0, BLEU_STATISTICS), whole=100, least=10
)
CHRF = QualityMeasure("chrf", "chrF", "chrF", chrf, columns=(BLEU_STATISTICS, None), whole=100)
# BLEU against the whole model's own translations, where a text has no other: how far a smaller model says the same
AGREEMENT = replace(BLEU, name="agreement", title="agreement", loss="points of agreement")
LOSS = QualityMeasure("loss", "loss", "nats", mean, columns=(0, 2), higher_is_better=False)
PERPLEXITY = QualityMeasure(
    name="perplexity",
    title="perplexity",
    loss="% of perplexity",
    value=perplexity,
    columns=(0, 2),
    higher_is_better=False,
    relative=True,
    unit=f"{NO_BREAK}%",
)
ACCURACY = QualityMeasure(
    name="accuracy",
    title="accuracy",
    loss="points of accuracy",
    value=share_found,
    columns=(1, 3),
    whole=100,
    unit=f"{NO_BREAK}points",
    is_share=True,
    over="texts",
    each="label",
)
SIMILARITY = QualityMeasure(
    name="similarity",
    title="similarity",
    loss="points of similarity",
    value=None,
    unit=f"{NO_BREAK}points",
)
# beside similarity: ranks of all pairs hardly change where the nearest do
NEIGHBOURS = QualityMeasure(
    name="neighbours",
    title="nearest neighbours kept",
    loss="points of nearest neighbours",
    value=None,
    unit=f"{NO_BREAK}points",
    scale="%",
    is_share=True,
)
WORD_ERROR_RATE = QualityMeasure(
    name="wer",
    title="word error rate",
    loss="points of word error rate",
    value=percentage,
    whole=100,
    higher_is_better=False,
    unit=f"{NO_BREAK}points",
    scale="%",
    over="recordings",
)
QUALITIES = (BLEU, AGREEMENT, PERPLEXITY, ACCURACY, SIMILARITY, WORD_ERROR_RATE)  # of tasks

# what `max_drop` counts
LOSSES = (
    f"{BLEU.loss}, {PERPLEXITY.loss}, {ACCURACY.loss}, {SIMILARITY.loss}, or {WORD_ERROR_RATE.loss}"
)


def said_itself(number: Number, quality: QualityMeasure) -> Number:
    """The agreement of a model with translations that it wrote itself has no interval: it is no sample of anything."""
    if quality != AGREEMENT or number.value is None or not math.isclose(number.value, 100):
        return number
    return Number(100.0, units=number.units)
