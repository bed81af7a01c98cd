"""Bootstrap, intervals and tests of significance: the only module that draws resamples.

A bootstrap draws as many units (sentences, or groups of them) as there are, with replacement, RESAMPLES times. Every
draw depends only on a seed and the number of units, so all layers and measures of a text share the same resamples, and
differences between two of them are paired. Intervals and p are both corrected for few units, in the same way, so that p
is below 0.05 only where the interval leaves out 0.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from functools import lru_cache

import numpy as np
from scipy.optimize import brentq
from scipy.stats import false_discovery_control, norm
from scipy.stats import t as student

Numbers = float | np.ndarray

RESAMPLES = 1000
SEED_OF_SEEDS = 12345  # for draws of seeds
LOW, HIGH = 2.5, 97.5  # percentiles of a 95 % interval
Z = float(norm.ppf(HIGH / 100))
ALIKE = 1e-16  # the variance of a share between clusters below which they are alike
_TABLE = 50  # resamples held in memory together
_CACHED = 50_000  # tables of so many units at most stay in memory: 50 MB


def interval(draws: np.ndarray, units: float | np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The 95 % interval of draws along the first axis, by the expanded percentiles of Hesterberg (2015, section 4.3).

    With u units the ends are the percentiles α and 1 − α, α = P(N(0, 1) ≥ t_{u−1} √(u / (u − 1))), t_{u−1} the 97.5 %
    quantile: α is 2.5 % of many units, 0.9 % of 10. The usual percentiles hold 90 % with 10 units: draws spread too
    little by √((u − 1) / u), and their tails are those of a normal distribution. units: `effective_units`, where units
    differ in size; a number, or one for every column. With fewer than 6 the ends are the least and the largest draw.
    """
    place = expanded_tail(units) * (len(draws) - 1)
    place = np.broadcast_to(place, draws.shape[1:])
    first = place.astype(int)
    share = (place - first).astype(draws.dtype)

    def end(ordered: np.ndarray) -> np.ndarray:
        inner = np.minimum(first + 1, len(draws) - 1)
        at_first = np.take_along_axis(ordered, first[None], axis=0)[0]
        at_inner = np.take_along_axis(ordered, inner[None], axis=0)[0]
        between: np.ndarray = at_first * (1 - share) + at_inner * share
        return np.where(np.isnan(draws).any(0), np.nan, between)

    ordered = np.sort(draws, axis=0)
    # The high end is the low end of the draws in falling order.
    return end(ordered), end(ordered[::-1])


def expanded_tail(units: float | np.ndarray) -> np.ndarray:
    """The share of draws that is left out at either end of a 95 % interval over so many units: α of `interval`."""
    # Student's t needs more than 0 degrees of freedom, which a single unit would give.
    several = np.maximum(units, 1 + 1e-9)
    # Of infinitely many units ∞ / ∞ is NaN, and the correction is none.
    with np.errstate(invalid="ignore"):
        quantile = student.ppf(HIGH / 100, several - 1) * np.sqrt(several / (several - 1))
    return np.where(np.isinf(several), LOW / 100, norm.sf(quantile))


def draws(units: int, seed: int, dtype: type[np.floating] = np.float64) -> Iterator[np.ndarray]:
    """How often each unit is drawn: tables of resamples x units, RESAMPLES rows in all.

    Of many units only a few resamples are in memory at once. They are drawn by counting random numbers, which takes a
    tenth of the time of a multinomial draw.
    """
    if units <= _CACHED:
        for number in range(RESAMPLES // _TABLE):
            yield _table(units, seed, number).astype(dtype)
        return
    random = np.random.default_rng((seed, units))
    # As many numbers at once as in the largest table that is kept.
    rows = max(1, _TABLE * _CACHED // units)
    for first in range(0, RESAMPLES, rows):
        table = np.empty((min(rows, RESAMPLES - first), units), dtype)
        for row in table:
            row[:] = np.bincount(random.integers(units, size=units), minlength=units)
        yield table


@lru_cache(maxsize=RESAMPLES // _TABLE)
def _table(units: int, seed: int, number: int) -> np.ndarray:
    # A generator for each table: one that fell out of the cache comes out the same again.
    random = np.random.default_rng((seed, number))
    table = random.multinomial(units, np.full(units, 1 / units), size=_TABLE)
    return table.astype(np.uint8)  # that a unit is drawn 256 times has a probability below 1e-500


def bootstrap(sums: np.ndarray, counts: np.ndarray, seed: int) -> np.ndarray:
    """Σ sums / Σ counts of every resample; NaN for a single unit, of which nothing can be drawn. sums: units x columns,
    counts: units; returns resamples x columns."""
    if len(counts) == 1:
        return np.full((RESAMPLES, sums.shape[1]), np.nan)
    return np.concatenate(
        [(table @ sums) / (table @ counts)[:, None] for table in draws(len(counts), seed)]
    )


def means_with_intervals(
    sums: np.ndarray, counts: np.ndarray, seed: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """The means Σ sums / Σ counts, their 95 % intervals, and their two-sided p of being 0, by the bootstrap: units x
    columns in, columns out."""
    drawn = bootstrap(sums, counts, seed)
    units = effective_units(counts)
    low, high = interval(drawn, units)
    return sums.sum(0) / counts.sum(), low, high, paired_bootstrap_p(drawn, units)


def proportion_interval(right: Numbers, count: Numbers) -> tuple[np.ndarray, np.ndarray]:
    """95 % interval of shares by Wilson's score (1927), which holds near 0 and 1, too. right, count: numbers or arrays
    of one shape; counts need not be whole numbers."""
    share = np.asarray(right / count, dtype=float)
    denominator = 2 * (count + Z**2)
    middle = (2 * count * share + Z**2) / denominator
    margin = Z / denominator * np.sqrt(4 * count * share * (1 - share) + Z**2)
    # At 0 and 1 the formula gives these ends exactly, were it not for rounding.
    low = np.where(share == 0, 0.0, middle - margin)
    high = np.where(share == 1, 1.0, middle + margin)
    return low, high


def clustered_proportion_interval(
    right: np.ndarray, counts: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """95 % interval of the shares Σ right / Σ counts over clusters, whose members are alike: Wilson's score with the
    effective number of members (Korn and Graubard 1998; with Wilson's score Dean and Pagano 2015).

    n* = n / deff · (t_{n−1} / t_{k−1})², where deff is the variance of the ratio between the k clusters divided by
    that of n independent members (Kish 1965), and t are 97.5 % quantiles; n* is never more than n. Where no cluster
    differs from the others, deff cannot be estimated, and a cluster counts as one member. right, counts: clusters x …
    in, … out; NaN where nothing counts.
    """
    right = right.astype(float)
    counts = counts.astype(float)
    clusters = (counts > 0).sum(0)
    n = counts.sum(0)
    with np.errstate(invalid="ignore", divide="ignore"):
        share = right.sum(0) / n
        rest = right - share * counts
        between = (rest**2).sum(0) * clusters / np.maximum(1, clusters - 1) / n**2
        effective = share * (1 - share) / between
        members = student.ppf(HIGH / 100, np.maximum(n - 1, 1e-3))
        quantiles = members / student.ppf(HIGH / 100, clusters - 1)
        effective = np.minimum(n, effective * quantiles**2)
        # rounding leaves a little where no cluster differs
        alike = (clusters < 2) | (between < ALIKE)
        effective = np.where(alike, clusters, effective)
        return proportion_interval(share * effective, effective)


def auroc_interval(value: float, positives: int, others: int) -> tuple[float, float]:
    """95 % interval of an area under the ROC curve of so many positives and others: the score interval of Newcombe
    (2006, part 2, method 5), which holds for few positives and near 1.

    Its ends are the areas θ with |value − θ| = 1.96 √V(θ), V(θ) = θ (1 − θ) / (m n) · (1 + k (1 − θ) / (2 − θ) + k θ /
    (1 + θ)), k = (m + n) / 2 − 1 for m positives and n others.
    """
    k = (positives + others) / 2 - 1

    def beyond(area: float) -> float:
        spread = area * (1 - area) / (positives * others)
        spread *= 1 + k * (1 - area) / (2 - area) + k * area / (1 + area)
        return abs(value - area) - Z * math.sqrt(spread)

    # V is 0 at both ends, where every value of 0 or 1 would be a solution.
    nearly = 1e-9
    low = 0.0 if value <= nearly else brentq(beyond, nearly, value - nearly)
    high = 1.0 if value >= 1 - nearly else brentq(beyond, value + nearly, 1 - nearly)
    return low, high


def ratio_interval(
    sums: np.ndarray, divisors: np.ndarray, value: np.ndarray, seed: int
) -> tuple[np.ndarray, np.ndarray]:
    """95 % interval of Σ sums / Σ divisors, each sum with its own divisor, in float32: units x … in, … out.

    A resample whose divisors are all 0 counts as the value.
    """
    flat, below = sums.reshape(len(sums), -1), divisors.reshape(len(sums), -1)
    tables = draws(len(sums), seed, np.float32)
    drawn = np.concatenate([(table @ flat) / (table @ below) for table in tables]).reshape(
        -1, *value.shape
    )
    return interval(np.where(np.isfinite(drawn), drawn, value), effective_units(divisors))


def centred_interval(
    value: float, draws: np.ndarray, units: float, least: float, most: float = 1
) -> tuple[float, float]:
    """95 % interval of draws over so many units, moved so that its median is the value, and cut to least … most.

    For a statistic that resampling biases, such as a rank correlation, which noise pushes down.
    """
    numbers = draws[~np.isnan(draws)]
    if not np.isfinite(value) or not len(numbers):
        return float("nan"), float("nan")
    moved = value - np.median(numbers)
    low, high = interval(numbers, units)
    return max(least, float(low + moved)), min(most, float(high + moved))


def rank_interval(r: float, n: int) -> tuple[float, float]:
    """95 % interval of Spearman's rank correlation of n pairs (Bonett and Wright 2000): tanh(atanh r ± 1.96 s) with
    s² = (1 + r²/2) / (n − 3). Not a number for fewer than 4 pairs, or |r| = 1."""
    if n < 4 or not abs(r) < 1:
        return float("nan"), float("nan")
    margin = Z * ((1 + r**2 / 2) / (n - 3)) ** 0.5
    return float(np.tanh(np.arctanh(r) - margin)), float(np.tanh(np.arctanh(r) + margin))


def rank_correlations(
    values: np.ndarray, reference: np.ndarray, weights: Iterable[np.ndarray]
) -> np.ndarray:
    """Spearman's rank correlation of two numbers of each pair, for each array of weights: pair p counts w_p times.

    Equal numbers share the mean of their ranks. 0 where all values, or all references, are equal: then nothing is
    ranked.
    """
    one = np.unique(values, return_inverse=True)[1]
    other = np.unique(reference, return_inverse=True)[1]
    found = []
    for times in weights:
        found.append(_correlation(_ranks(one, times), _ranks(other, times), times))
    return np.array(found)


def _ranks(group: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """The weighted ranks of numbers, less a half: the weight of all smaller ones, and half of that of equal ones.

    group: of each number, its place among the different numbers.
    """
    equal = np.bincount(group, weights)
    middle = np.cumsum(equal) - equal / 2
    ranks: np.ndarray = middle[group]
    return ranks


def _correlation(ranks: np.ndarray, others: np.ndarray, weights: np.ndarray) -> float:
    """Pearson's correlation with weights; 0 where one of the two does not vary."""
    total = weights.sum()
    if not total:
        return 0.0
    one = ranks - ranks @ weights / total
    two = others - others @ weights / total
    spread = ((one**2 @ weights) * (two**2 @ weights)) ** 0.5
    return float((one * two) @ weights / spread) if spread else 0.0


def effective_units(counts: np.ndarray) -> np.ndarray:
    """How many units of equal size say as much as units of these: (Σ c)² / Σ c² (Kish 1965, section 11.7); 0 where
    none counts. units x … in, … out."""
    weights = counts.astype(np.float64)
    squares = (weights**2).sum(0)
    found: np.ndarray = weights.sum(0) ** 2 / np.where(squares == 0, 1, squares)
    return found


def paired_bootstrap_p(draws: np.ndarray, units: float | np.ndarray) -> np.ndarray:
    """Two-sided p of a paired difference over so many units, by its n draws δ_b along the first axis: the level at which
    `interval` begins to hold 0.

    q = 2 (min(#{δ_b ≤ 0}, #{δ_b ≥ 0}) + 1) / (n + 1) is too small for few units, for the reasons that `interval` gives.
    So z, with P(|N(0, 1)| ≥ z) = q, becomes p = P(|t_{u−1}| ≥ z √((u − 1) / u)) (Hesterberg 2015, section 4.3). units:
    as for `interval`; p of a single one is 1.
    """
    beyond = np.minimum((draws <= 0).sum(0), (draws >= 0).sum(0))
    share = np.minimum(1, 2 * (beyond + 1) / (len(draws) + 1))
    several = np.maximum(units, 1 + 1e-9)  # as in `expanded_tail`
    z = norm.isf(share / 2) * ((several - 1) / several) ** 0.5
    p: np.ndarray = 2 * student.sf(z, several - 1)
    return np.where(several == units, p, 1.0)


def largest_t_p(sums: np.ndarray, counts: np.ndarray, seed: int) -> np.ndarray:
    """Two-sided p of every ratio Σ sums / Σ counts being 0, corrected for there being several: units x ratios, units in,
    ratios out.

    Bootstrap-t (Efron and Tibshirani 1993, section 12.5) of t = |Σ s − r Σ c| / √Σ (s − r c)², where r is the ratio of the
    text. Compared with the largest t of all ratios in each of the n resamples, so that the chance of any false p below
    α is α (Westfall and Young 1993, section 2.3): p = (#{max t_b ≥ t} + 1) / (n + 1). A ratio without spread has p = 1.
    """
    ratio = sums.sum(0) / counts.sum()
    rest = sums - ratio * counts[:, None]  # a text in which every ratio is 0
    spread = np.sqrt((rest**2).sum(0))
    # Rounding leaves a little spread where every unit has the same ratio.
    varies = spread > 1e-12 * np.abs(sums).sum(0)
    p = np.ones(sums.shape[1])
    if not varies.any():
        return p
    rest = rest[:, varies]
    found = np.abs(sums.sum(0)[varies]) / spread[varies]

    by_size = rest * counts[:, None]
    extreme = np.zeros(len(found))
    resampled = 0
    for table in draws(len(counts), seed):
        total = table @ rest
        mean = total / (table @ counts)[:, None]
        # Σ (s − r c)² multiplied out: an array of resamples x units x ratios would not fit into memory.
        squares = table @ rest**2 - 2 * mean * (table @ by_size)
        squares += mean**2 * (table @ counts**2)[:, None]
        largest = np.abs(total) / np.sqrt(np.maximum(squares, 1e-300))
        extreme += (largest.max(1)[:, None] >= found).sum(0)
        resampled += len(table)
    p[varies] = (extreme + 1) / (resampled + 1)
    return p


def over_seeds(draws: np.ndarray, units: float) -> tuple[float, float]:
    """95 % interval of a mean over seeds, by a bootstrap on two levels. draws: seeds x resamples of so many units.

    Every resample draws as many seeds as there are, with replacement. There is no correction for few seeds: with two or
    three, a factor would be a guess.
    """
    seeds, count = draws.shape
    chosen = np.random.default_rng(SEED_OF_SEEDS).integers(seeds, size=(count, seeds))
    means = draws[chosen, np.arange(count)[:, None]].mean(1)
    low, high = interval(means, units)
    return float(low), float(high)


def t_margin(values: np.ndarray) -> np.ndarray:
    """Half the width of the 95 % t-interval of a mean over the first axis, which has at least two values."""
    size = len(values)
    margin: np.ndarray = student.ppf(0.975, size - 1) * values.std(0, ddof=1) / size**0.5
    return margin


def jackknife_p(differences: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """One-sided p of "Σ differences / Σ counts is not above zero" over independent units: units x … in, … out.

    Student's t of the ratio with its jackknife variance (u − 1) / u Σ (r_−i − r)² between u units (Efron and Tibshirani
    1993, equation 11.5), and as many degrees of freedom as `effective_units` less one: few long units say less than
    their number. It replaces the sign-flip test, whose smallest p with u units is 2^−u, so p is never below that. Not a
    number where no unit counts.
    """
    asked = counts > 0
    units = asked.sum(0)
    freedom = np.maximum(effective_units(counts) - 1, 1)
    mean = differences.sum(0) / counts.sum(0)
    # The share of the text that is left when a unit is left out; 0 where one unit is the whole text.
    without = np.maximum(1 - counts / counts.sum(0), 1e-9)
    spread = np.where(asked, differences - mean * counts, 0) / without
    # Units that are all alike have no error: then p is the smallest of the sign-flip test.
    error = np.sqrt((spread**2).sum(0) * (units - 1) / np.maximum(units, 1)) / counts.sum(0)
    p: np.ndarray = student.sf(mean / np.maximum(error, 1e-12), freedom)
    return np.where(units > 1, np.maximum(p, 0.5**units), np.where(np.isnan(p), np.nan, 1.0))


def cohen_h(share: np.ndarray, other: np.ndarray) -> np.ndarray:
    """The effect size of two shares, 2 asin √share − 2 asin √other (Cohen 1988, chapter 6): 0.2 is small, 0.8 large."""
    h: np.ndarray = 2 * (
        np.arcsin(np.sqrt(np.clip(share, 0, 1))) - np.arcsin(np.sqrt(np.clip(other, 0, 1)))
    )
    return h


def corrected(p: np.ndarray) -> np.ndarray:
    """p-values of many tests together, corrected by Benjamini and Hochberg (1995): the false discovery rate."""
    # SciPy refuses p beyond 0 … 1, where rounding may lead.
    found: np.ndarray = false_discovery_control(np.clip(p, 0, 1))
    return found
