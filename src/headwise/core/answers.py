"""How good models are on a text: statistics of each of its units, and all that follows from their sums.

A unit is a sentence, a recording, or a row of a table. Intervals, paired changes and p are made in one way for every
quality: units are drawn with replacement, and the value is computed from the sums of every draw.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Self

import numpy as np

from headwise.core.errors import HeadwiseError
from headwise.core.qualities import (
    CHRF,
    LOSS,
    NEIGHBOURS,
    QUALITIES,
    SIMILARITY,
    Number,
    QualityMeasure,
)
from headwise.core.statistics import (
    ENOUGH_SENTENCES,
    FEWEST_UNITS,
    centred_interval,
    draws,
    effective_units,
    interval,
    paired_bootstrap_p,
    proportion_interval,
    rank_correlations,
)

MOST_EXACT_UNITS = 10  # up to this number of differing units the test of a change is exact


def too_short(split: str, number: int, over: str) -> str:
    """A sentence for a text on which models can hardly be compared; empty where it is long enough. over: what its units
    are called."""
    if number >= ENOUGH_SENTENCES:
        return ""
    units = over.removesuffix("s") if number == 1 else over
    return (
        f"The {split} text has {number} {units}: too few to tell. Give at least {ENOUGH_SENTENCES}."
    )


def refuse_too_short(split: str, number: int, over: str) -> str:
    """`too_short`; raises HeadwiseError for a text of fewer than FEWEST_UNITS, which gives no interval."""
    line = too_short(split, number, over)
    if number < FEWEST_UNITS:
        raise HeadwiseError(f"{line} Fewer than {FEWEST_UNITS} have no interval.")
    return line


@dataclass(frozen=True, eq=False)
class Answers:
    """What some models answered on one text; of masks of a model, the whole model is the first.

    made: the qualities that the statistics give, and how each was measured; models are compared by the first. stats:
    units x models x S; a quality is computed from their sums over the units. weights: the size of each unit, in tokens
    or words, or 1.
    """

    made: Mapping[QualityMeasure, str]
    stats: np.ndarray
    weights: np.ndarray

    @property
    def quality(self) -> QualityMeasure:
        """What the numbers are of."""
        return next(iter(self.made))

    def by(self, quality: QualityMeasure) -> Self:
        """The same, for the numbers of another quality."""
        return replace(self, made={quality: self.made[quality]})

    @property
    def units(self) -> float:
        """The effective number of units, of which every interval is made."""
        return float(effective_units(self.weights))

    def of(self, model: int) -> Self:
        """The answers of one model."""
        return replace(self, stats=self.stats[:, [model]])

    def beside(self, *others: Answers) -> Self:
        """These models and others behind them. Raises HeadwiseError for answers on another text."""
        for other in others:
            if self.quality != other.quality or not self.is_same_text(other):
                raise HeadwiseError(
                    f"Two models were measured on different texts, so their {self.quality.title} cannot be compared: "
                    "measure both on one text."
                )
        return replace(
            self, stats=np.concatenate([self.stats, *(other.stats for other in others)], 1)
        )

    def is_same_text(self, other: Answers) -> bool:
        return np.array_equal(self.weights, other.weights)

    def resampled(self, table: np.ndarray, model: int) -> np.ndarray:
        """The values of a model. table: how often each unit is drawn, resamples x units; returns resamples."""
        assert self.quality.value is not None
        return self.quality.value(table @ self.stats[:, model])

    def value(self, model: int = 0) -> float:
        """The quality of a model on the text."""
        return float(self.resampled(np.ones((1, len(self.weights))), model)[0])

    def drawn(self, model: int = 0, seed: int = 0) -> np.ndarray:
        """The quality of a model in every resample of the units (RESAMPLES)."""
        tables = draws(len(self.weights), seed)
        return np.concatenate([self.resampled(table, model) for table in tables])

    def bounds(self, value: float, drawn: np.ndarray) -> tuple[float, float]:
        """The 95 % interval of a value, or of a change, from its resamples."""
        low, high = interval(drawn, self.units)
        return float(low), float(high)

    def number(self, model: int = 0, seed: int = 0) -> Number:
        """The quality of a model with its 95 % interval: by the bootstrap, and exact for a share of the units. With
        few units there is no interval."""
        value = self.value(model)
        count = len(self.weights)
        # A bootstrap of a share of 0 or 1 has no spread, so its interval would be empty.
        if self.quality.is_share and (self.weights == 1).all():
            ends = proportion_interval(value / 100 * count, count)
            low, high = (float(100 * end) for end in ends)
            return Number(value, low, high, units=self.units)
        if self.units < FEWEST_UNITS:
            return Number(value, units=self.units)
        return Number(value, *self.bounds(value, self.drawn(model, seed)), units=self.units)

    def change(self, model: int, to: int = 0, seed: int = 0) -> Number:
        """The change from one model (`to`) to another, its 95 % interval, and its p; with a single unit only the value.

        The bootstrap is paired: both models are evaluated on the same resamples. With fewer than FEWEST_UNITS units there
        is no interval. p is two-sided. Where at most MOST_EXACT_UNITS differ, it is no less than that of an exact test:
        every way of swapping those between the two.
        Equal answers have p = 1.
        """
        value = self.difference(model, to)
        if len(self.weights) < 2:
            return Number(value)
        differ = np.flatnonzero((self.stats[:, model] != self.stats[:, to]).any(1))
        if not len(differ):
            return Number(0.0, 0.0, 0.0, 1.0, self.units)
        drawn = self.quality.change(self.drawn(to, seed), self.drawn(model, seed))
        p = float(paired_bootstrap_p(drawn, self.units))
        # Where few units differ, many resamples are alike, and the bootstrap finds too much.
        if len(differ) <= MOST_EXACT_UNITS:
            p = max(p, self.exact_p(model, to, differ))
        if self.units < FEWEST_UNITS:
            return Number(value, p=p, units=self.units)
        return Number(value, *self.bounds(value, drawn), p, self.units)

    def difference(self, model: int, to: int = 0) -> float:
        """The value of `change` alone."""
        return float(self.quality.change(self.value(to), self.value(model)))

    def exact_p(self, model: int, to: int, differ: np.ndarray) -> float:
        """The share of all ways to swap the units that differ in which the two are at least as far apart."""
        value = self.quality.value
        assert value is not None
        swaps = np.array(list(product((0, 1), repeat=len(differ))))  # the first swaps none
        moved = swaps @ (self.stats[differ, to] - self.stats[differ, model])
        ours = value(self.stats[:, model].sum(0) + moved)
        theirs = value(self.stats[:, to].sum(0) - moved)
        # 25 % more and 20 % less are the same change in both directions: their logarithms are equal.
        apart = np.abs(np.log(ours / theirs) if self.quality.relative else ours - theirs)
        return float((apart >= apart[0] - 1e-12).mean())

    def save(self, file: Path) -> None:
        """Write them to an .npz file."""
        arrays = {name: value for name, value in vars(self).items() if name != "made"}
        names = [quality.name for quality in self.made]
        file.parent.mkdir(parents=True, exist_ok=True)
        np.savez_compressed(file, qualities=names, made=[*self.made.values()], **arrays)


@dataclass(frozen=True, eq=False)
class Similarities(Answers):
    """How models rank pairs of sentences by similarity: Spearman's rank correlation with other numbers, in points.

    It is no function of sums. stats: pairs x models x 1, cosines. weights: 1 for each unit. members: pairs x 2, the two
    sentences of a pair, which are the units; or pairs x 1, rows of a table. reference: the right ranking of the pairs:
    the scores of a table, or the first model's cosines. nearest: sentences x (1 + models), of a text: which other
    sentence is nearest to each, in the first model and in every model; no rows of a table.
    """

    members: np.ndarray
    reference: np.ndarray
    nearest: np.ndarray

    def of(self, model: int) -> Self:
        return replace(super().of(model), nearest=self.nearest[:, [0, 1 + model]])

    def beside(self, *others: Answers) -> Self:
        parts = [other.nearest[:, 1:] for other in others if isinstance(other, Similarities)]
        return replace(super().beside(*others), nearest=np.hstack([self.nearest, *parts]))

    def is_same_text(self, other: Answers) -> bool:
        return isinstance(other, Similarities) and np.array_equal(self.members, other.members)

    def is_reference(self, model: int) -> bool:
        """Whether a model would be compared with itself."""
        return np.array_equal(self.stats[:, model, 0], self.reference)

    def resampled(self, table: np.ndarray, model: int) -> np.ndarray:
        """A pair counts as often as the product of how often its members are drawn."""
        if self.is_reference(model):
            return np.full(len(table), 100.0)
        # Sentences are drawn, not pairs: pairs that share a sentence are not independent.
        places = np.unique(self.members, return_inverse=True)[1].reshape(self.members.shape)
        weights = (row[places].prod(1) for row in table)
        return 100 * rank_correlations(self.stats[:, model, 0], self.reference, weights)

    def bounds(self, value: float, drawn: np.ndarray) -> tuple[float, float]:
        """Centred on the value, because noise lowers rank correlations."""
        return centred_interval(value, drawn, self.units, -200, 200)

    def number(self, model: int = 0, seed: int = 0) -> Number:
        """A model that is compared with itself has no interval."""
        if self.is_reference(model):
            return Number(100.0)
        if self.quality == NEIGHBOURS:
            # The sentences that are searched are given, so each one is a trial of its own.
            count = len(self.nearest)
            kept = int((self.nearest[:, 1 + model] == self.nearest[:, 0]).sum())
            low, high = (float(100 * end) for end in proportion_interval(kept, count))
            return Number(100 * kept / count, low, high, units=count)
        number = super().number(model, seed)
        if number.low is None or number.high is None:
            return number
        return replace(number, low=max(-100.0, number.low), high=min(100.0, number.high))

    def exact_p(self, model: int, to: int, differ: np.ndarray) -> float:
        """None: pairs share sentences, so they cannot be swapped one by one."""
        return 0.0


def read_answers(file: Path) -> Answers:
    """What `Answers.save` wrote."""
    with np.load(file) as archive:
        arrays = dict(archive)
    known = {quality.name: quality for quality in (*QUALITIES, CHRF, LOSS, NEIGHBOURS)}
    names = zip(arrays.pop("qualities").tolist(), arrays.pop("made").tolist(), strict=True)
    made = {known[name]: how for name, how in names}
    return Similarities(made, **arrays) if SIMILARITY in made else Answers(made, **arrays)
