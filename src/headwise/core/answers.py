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
    ROUNDING,
    centred_interval,
    clustered_proportion_interval,
    draws,
    effective_units,
    interval,
    paired_bootstrap_p,
    paired_proportion_interval,
    paired_proportion_p,
    proportion_interval,
    rank_correlations,
    unseen_share,
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


def refuse_too_short(split: str, number: int, over: str, held_out: bool = False) -> str:
    """`too_short`; raises HeadwiseError for a text of fewer than FEWEST_UNITS, which gives no interval. held_out: whether
    it is a part of the training text."""
    line = too_short(split, number, over)
    if number < FEWEST_UNITS:
        remedy = (
            " It is held out of the training text: name dev text of its own, or hold out more (--dev 50)."
            * held_out
        )
        raise HeadwiseError(f"{line} Fewer than {FEWEST_UNITS} have no interval.{remedy}")
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

    def own(self, model: int) -> np.ndarray:
        """The statistics of a model that its quality is computed from: units x S."""
        return self.stats[:, model, slice(*self.quality.columns)]

    def resampled(self, times: np.ndarray, model: int) -> np.ndarray:
        """The values of a model. times: how often each unit is drawn, resamples x units; returns resamples."""
        assert self.quality.value is not None
        return self.quality.value(times @ self.own(model))

    def value(self, model: int = 0) -> float:
        """The quality of a model on the text."""
        # The text itself is a resample in which every unit is drawn once.
        return float(self.resampled(np.ones((1, len(self.weights))), model)[0])

    def drawn(self, model: int = 0, seed: int = 0) -> np.ndarray:
        """The quality of a model in every resample of the units (RESAMPLES)."""
        parts = draws(len(self.weights), seed)
        return np.concatenate([self.resampled(times, model) for times in parts])

    def bounds(self, value: float, drawn: np.ndarray) -> tuple[float, float]:
        """The 95 % interval of a value, or of a change, from its resamples."""
        low, high = interval(drawn, self.units)
        return float(low), float(high)

    @property
    def is_of_trials(self) -> bool:
        """Whether every unit is one yes or no, so that shares of them are exact by the binomial distribution."""
        return self.quality.is_share and bool((self.weights == 1).all())

    def worse(self, model: int, to: int, count: int) -> list[tuple[int, float, float]]:
        """The units on which a model is worse than another one (`to`), the worst first, at most `count`: their number, and
        their own quality in that one and in this one."""
        assert self.quality.value is not None
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            before, after = (self.quality.value(self.own(one)) for one in (to, model))
            lost = self.quality.better * (before - after)
        # A unit of which nothing is asked has no value.
        lost[~np.isfinite(lost)] = 0.0
        order = np.argsort(-lost, kind="stable")[:count]
        return [
            (int(unit), float(before[unit]), float(after[unit])) for unit in order if lost[unit] > 0
        ]

    def number(self, model: int = 0, seed: int = 0) -> Number:
        """The quality of a model with its 95 % interval: exact for a share, else by the bootstrap. With few units there is
        none."""
        value = self.value(model)
        if self.quality.is_share:
            asked, found = self.own(model).T
            ends = proportion_interval if self.is_of_trials else clustered_proportion_interval
            if self.is_of_trials:
                asked, found = asked.sum(), found.sum()
            # Shares are in percent everywhere.
            low, high = (float(100 * end) for end in ends(found, asked))
            return Number(value, low, high, units=self.units)
        if self.units < FEWEST_UNITS:
            return Number(value, units=self.units)
        drawn = self.drawn(model, seed)
        if np.ptp(drawn) < ROUNDING:
            return self.without_spread(value, value)
        return Number(value, *self.bounds(value, drawn), units=self.units)

    def without_spread(self, value: float, worth: float, p: float | None = None) -> Number:
        """A value, or a change, that all units agree on, of a model that is worth so much.

        The resamples are all alike, but the units say something of others only by their number: a share of the text that
        none of them shows (`unseen_share`) may be as good or as bad as can be. No interval where that has no value.
        """
        whole = self.quality.whole
        if whole is None:
            return Number(value, units=self.units)
        share = float(unseen_share(self.units))
        low = value - share * worth
        high = value + share * max(whole - worth, 0.0)
        return Number(value, low, high, p, self.units)

    def change(self, model: int, to: int = 0, seed: int = 0) -> Number:
        """The change from one model (`to`) to another, its 95 % interval, and its p, which is two-sided; only the value
        with fewer than FEWEST_UNITS units, except for shares of them.

        Shares of units have the score interval and the exact test of paired yes and no. All else has a paired bootstrap:
        both models are evaluated on the same resamples. Where at most MOST_EXACT_UNITS differ, p is no less than that of
        an exact test: every way of swapping those between the two. Equal answers have p = 1, and the interval of
        `without_spread`.
        """
        value = self.difference(model, to)
        if self.is_of_trials:
            # +1: only the first model has it right; −1: only the other.
            moved = self.own(model)[:, 1] - self.own(to)[:, 1]
            gained, lost = int((moved > 0).sum()), int((moved < 0).sum())
            ends = paired_proportion_interval(gained, lost, len(moved))
            low, high = (100 * end for end in ends)
            return Number(value, low, high, paired_proportion_p(gained, lost), self.units)
        if self.units < FEWEST_UNITS:
            return Number(value, units=self.units)
        differ = np.flatnonzero((self.own(model) != self.own(to)).any(1))
        if not len(differ):
            return self.without_spread(0.0, self.value(model), 1.0)
        # The same seed: both models are drawn with the same units, which is what makes it paired.
        drawn = self.quality.change(self.drawn(to, seed), self.drawn(model, seed))
        p = float(paired_bootstrap_p(drawn, self.units))
        # Where few units differ, many resamples are alike, and the bootstrap finds too much.
        if len(differ) <= MOST_EXACT_UNITS:
            p = max(p, self.exact_p(model, to, differ))
        if np.ptp(drawn) < ROUNDING:
            return self.without_spread(value, self.value(model), p)
        return Number(value, *self.bounds(value, drawn), p, self.units)

    def difference(self, model: int, to: int = 0) -> float:
        """The value of `change` alone."""
        return float(self.quality.change(self.value(to), self.value(model)))

    def exact_p(self, model: int, to: int, differ: np.ndarray) -> float:
        """The share of all ways to swap the units that differ in which the two are at least as far apart."""
        value = self.quality.value
        assert value is not None
        swaps = np.array(list(product((0, 1), repeat=len(differ))))  # the first swaps none
        own, others = self.own(model), self.own(to)
        # What each way of swapping adds to the sums of the first model, and takes from the other's.
        moved = swaps @ (others[differ] - own[differ])
        ours = value(own.sum(0) + moved)
        theirs = value(others.sum(0) - moved)
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

    def resampled(self, times: np.ndarray, model: int) -> np.ndarray:
        """A pair counts as often as the product of how often its members are drawn."""
        if self.is_reference(model):
            return np.full(len(times), 100.0)
        # Sentences are drawn, not pairs: pairs that share a sentence are not independent.
        places = np.unique(self.members, return_inverse=True)[1].reshape(self.members.shape)
        # A pair of two sentences drawn twice and three times counts six times.
        weights = (row[places].prod(1) for row in times)
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

    def worse(self, model: int, to: int, count: int) -> list[tuple[int, float, float]]:
        """The sentences that have another nearest one, in the order of the text: their number, and that of the nearest."""
        if not len(self.nearest):
            return []
        before, after = self.nearest[:, 1 + to], self.nearest[:, 1 + model]
        moved = np.flatnonzero(before != after)[:count]
        return [(int(unit), float(before[unit]), float(after[unit])) for unit in moved]

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
