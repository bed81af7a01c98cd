"""Bootstrap, intervals and tests of significance: the only module that draws resamples.

A bootstrap draws as many units (sentences, or groups of them) as there are, with replacement, RESAMPLES times. Every
draw depends only on a seed and the number of units, so all layers and measures of a text share the same resamples, and
differences between two of them are paired. Intervals and p are both corrected for few units, in the same way, so that p
is below 0.05 only where the interval leaves out 0.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

# scipy.stats takes half a second, and is imported where it is first used: what loads a model draws no interval.
import scipy
from scipy.special import ndtri

Numbers = float | np.ndarray

RESAMPLES = 1000
HIGH = 97.5  # percentile that ends a 95 % interval
Z = float(ndtri(HIGH / 100))
FEWEST_UNITS = 6  # with fewer, intervals of draws leave out too much
ENOUGH_SENTENCES = 50  # of a text; on fewer, an interval says little
NEARLY_NOTHING = 1e-9  # in the place of a divisor that is 0 or less
ROUNDING = 1e-9
ROUNDED = 1e-6  # of a number, what sums in float32 may be off
ALIKE = 1e-16  # the variance of a share between clusters below which they are alike
_DRAWN_TOGETHER = 50  # resamples held in memory together
_CACHED = 50_000  # tables of so many units at most stay in memory: 50 MB


def interval(draws: np.ndarray, units: float | np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The 95 % interval of draws along the first axis; NaN with fewer than FEWEST_UNITS units, and where all draws are
    alike: units that all say the same say nothing of others.

    Its ends are the percentiles Φ(∓q) with q = t_{u−1} √(u / (u − 1)), where t_{u−1} is the 97.5 % quantile, for u units
    (Hesterberg 2015, section 4.3: draws of few units spread too little by √((u − 1) / u), and their tails are those of a
    normal distribution). Φ(−q) is 2.5 % of many units, 0.9 % of 10. Draws that are skewed get the end beyond it where
    the accelerated percentile Φ(a + (a ∓ q) / (1 − a (a ∓ q))), a = skewness / 6, lies further out (Efron 1987, with the
    acceleration as the bias). Percentiles alone leave out a skewed truth in 9 % with 10 units, in 7 % with 30. What is
    still left out is not in the sample: of 10 log-normal units the least skewed quarter of the samples misses in 20 %,
    the most skewed in 3 %; so blanks for skewed draws would take the good ones away, and bootstrap-t (9 %) and Hall's
    transformation (8 %, 1.4 times as wide) miss, too. units:
    `effective_units`, where units differ in size; a number, or one for every column.
    """
    units = np.broadcast_to(units, draws.shape[1:])
    q = expanded_quantile(units)
    a = np.broadcast_to(skewness(draws) / 6, q.shape)
    ordered = np.sort(draws, axis=0)
    # The high end is the low end of the draws in falling order.
    # norm.sf(q) = Φ(−q), the share of draws below the end.
    low = at_percentile(ordered, scipy.stats.norm.sf(np.maximum(q, accelerated(q, a))))
    high = at_percentile(ordered[::-1], scipy.stats.norm.sf(np.maximum(q, accelerated(q, -a))))
    # Of so few units any interval would be a guess.
    blank = (units < FEWEST_UNITS) | np.isnan(draws).any(0) | are_alike(draws)
    return np.where(blank, np.nan, low), np.where(blank, np.nan, high)


def are_alike(draws: np.ndarray) -> np.ndarray:
    """Whether draws differ along the first axis by no more than what models of float32 round."""
    alike: np.ndarray = np.ptp(draws, 0) <= ROUNDED * np.abs(draws).max(0)
    return alike


def expanded_quantile(units: np.ndarray) -> np.ndarray:
    """q of `interval`: how many standard deviations of draws over so many units a 95 % interval reaches to either side."""
    # Fewer have no interval, and Student's t needs degrees of freedom.
    several = np.maximum(units, FEWEST_UNITS)
    # With infinitely many units ∞ / ∞ is NaN, and the correction is none.
    with np.errstate(invalid="ignore"):
        q = scipy.stats.t.ppf(HIGH / 100, several - 1) * np.sqrt(several / (several - 1))
    return np.where(np.isinf(several), Z, q)


def accelerated(q: np.ndarray, a: np.ndarray) -> np.ndarray:
    """How far out of a standard normal distribution the accelerated percentile is that stands for −q."""
    beyond = q - a
    reach: np.ndarray = beyond / np.maximum(1 + a * beyond, NEARLY_NOTHING) - a
    return reach


def decelerated(z: np.ndarray, a: np.ndarray) -> np.ndarray:
    """The q that `accelerated` takes to z."""
    beyond = z + a
    q: np.ndarray = beyond / np.maximum(1 - a * beyond, NEARLY_NOTHING) + a
    return q


def skewness(draws: np.ndarray) -> np.ndarray:
    """The third standardised moment along the first axis; 0 where nothing varies."""
    rest = draws - draws.mean(0)
    variance = (rest**2).mean(0)
    with np.errstate(invalid="ignore", divide="ignore"):
        skew: np.ndarray = (rest**3).mean(0) / variance**1.5
    return np.where(np.isfinite(skew), skew, 0)


def at_percentile(ordered: np.ndarray, share: np.ndarray) -> np.ndarray:
    """The draws below which a share of them lies, between two draws by their distance; a share for every column."""
    # Place 0 is the least draw, the last place the largest.
    place = share * (len(ordered) - 1)
    first = place.astype(int)
    part = (place - first).astype(ordered.dtype)
    inner = np.minimum(first + 1, len(ordered) - 1)
    at_first = np.take_along_axis(ordered, first[None], axis=0)[0]
    at_inner = np.take_along_axis(ordered, inner[None], axis=0)[0]
    found: np.ndarray = at_first * (1 - part) + at_inner * part
    return found


def draws(units: int, seed: int, dtype: type[np.floating] = np.float64) -> Iterator[np.ndarray]:
    """How often each unit is drawn: arrays of resamples x units, RESAMPLES rows in all.

    With many units, only a few resamples are in memory at once. They are drawn by counting random numbers, which takes a
    tenth of the time of a multinomial draw.
    """
    if units <= _CACHED:
        for number in range(RESAMPLES // _DRAWN_TOGETHER):
            yield _times_drawn(units, seed, number).astype(dtype)
        return
    random = np.random.default_rng((seed, units))
    # As many numbers at once as in the largest array that is kept.
    rows = max(1, _DRAWN_TOGETHER * _CACHED // units)
    for first in range(0, RESAMPLES, rows):
        times = np.empty((min(rows, RESAMPLES - first), units), dtype)
        for row in times:
            row[:] = np.bincount(random.integers(units, size=units), minlength=units)
        yield times


@lru_cache(maxsize=RESAMPLES // _DRAWN_TOGETHER)
def _times_drawn(units: int, seed: int, number: int) -> np.ndarray:
    # A generator for each array: one that fell out of the cache comes out the same again.
    random = np.random.default_rng((seed, number))
    times = random.multinomial(units, np.full(units, 1 / units), size=_DRAWN_TOGETHER)
    return times.astype(np.uint8)  # that a unit is drawn 256 times has a probability below 1e-500


def bootstrap(sums: np.ndarray, counts: np.ndarray, seed: int) -> np.ndarray:
    """Σ sums / Σ counts of every resample; NaN for a single unit, of which nothing can be drawn. sums: units x columns,
    counts: units; returns resamples x columns."""
    if len(counts) == 1:
        return np.full((RESAMPLES, sums.shape[1]), np.nan)
    return np.concatenate(
        # They say how often each unit was drawn, so a product sums a resample.
        [(times @ sums) / (times @ counts)[:, None] for times in draws(len(counts), seed)]
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
    """95 % interval of shares, exact by the binomial distribution (Clopper and Pearson 1934). right, count: numbers or
    arrays of one shape; they need not be whole numbers. NaN where nothing counts."""
    right = np.asarray(right, dtype=float)
    wrong = np.asarray(count - right, dtype=float)
    tail = 1 - HIGH / 100
    # The distributions have no parameter 0: there the ends are 0 and 1.
    low = np.where(
        right == 0, 0.0, scipy.stats.beta.ppf(tail, np.where(right == 0, 1, right), wrong + 1)
    )
    high = np.where(
        wrong == 0, 1.0, scipy.stats.beta.isf(tail, right + 1, np.where(wrong == 0, 1, wrong))
    )
    nothing = np.isnan(right) | (right + wrong <= 0)
    return np.where(nothing, np.nan, low), np.where(nothing, np.nan, high)


def unseen_share(units: Numbers) -> Numbers:
    """The largest share of units that may have what none of so many has: the upper end z² / (u + z²) of the 95 % score
    interval of 0 of u (Wilson 1927). 0.32 of 8 units, 0.07 of 50, 0.013 of 300."""
    return Z**2 / (units + Z**2)


def units_for_share(share: float) -> int:
    """How many units it takes that `unseen_share` is at most a share, 0 < share ≤ 1: 381 for 0.01, 73 for 0.05.

    With fewer, no change of a share of units can be told to stay within it, not even where no unit has changed.
    """
    return max(1, math.ceil(Z**2 * (1 / share - 1)))


def paired_proportion_interval(gained: int, lost: int, units: int) -> tuple[float, float]:
    """95 % interval of the difference of two shares of the same units, where so many units have only the second, and so
    many only the first: the score interval of Tango (1998, section 3).

    Its ends are the differences δ with |gained − lost − u δ| = 1.96 √(u (2 q + δ (1 − δ))), where q is the likeliest share
    of lost units under δ: the larger root of 2 u q² − (gained + lost − (2 u − gained + lost) δ) q − lost δ (1 − δ) = 0.
    Units that are alike in both say nothing but their number. Without any other its ends are ∓ `unseen_share`.
    """

    def beyond(delta: float) -> float:
        # The quadratic of the docstring: 2 u q² + b q + c = 0.
        b = (2 * units - gained + lost) * delta - gained - lost
        c = -lost * delta * (1 - delta)
        q = (math.sqrt(max(b * b - 8 * units * c, 0.0)) - b) / (4 * units)
        spread = max(units * (2 * q + delta * (1 - delta)), 0.0)
        return abs(gained - lost - units * delta) - Z * math.sqrt(spread)

    value = (gained - lost) / units
    nearly = 1e-9  # the spread is 0 at ±1, and at a value without lost or gained units, which would be solutions
    low = (
        -1.0 if value <= -1 + nearly else scipy.optimize.brentq(beyond, -1 + nearly, value - nearly)
    )
    high = 1.0 if value >= 1 - nearly else scipy.optimize.brentq(beyond, value + nearly, 1 - nearly)
    return low, high


def paired_proportion_p(gained: int, lost: int) -> float:
    """Two-sided p of as many gained as lost units: the exact test of McNemar (1947), by the binomial distribution."""
    return float(scipy.stats.binomtest(gained, gained + lost).pvalue) if gained + lost else 1.0


def clustered_proportion_interval(
    right: np.ndarray, counts: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """95 % interval of the shares Σ right / Σ counts over clusters, whose members are alike: exact, with the effective
    number of members (Korn and Graubard 1998).

    n* = n / deff · (t_{n−1} / t_f)², where deff is the jackknife variance of the ratio between clusters divided by the
    variance of n independent members (Kish 1965), and t are 97.5 % quantiles; n* is never more than n. f: what is known
    of the variance between clusters, the `effective_units` less one, or, where that is less, those of the clusters with
    a member of the rarer answer: where 3 of 30 clusters have a wrong member, its variance is that of 3. Where no cluster
    differs from the others, deff cannot be estimated, and a cluster counts as one member. right, counts: clusters x …
    in, … out; NaN where nothing counts.
    """
    right = right.astype(float)
    counts = counts.astype(float)
    n = counts.sum(0)
    clusters = effective_units(counts)
    with_right = effective_units(counts * (right > 0))
    with_wrong = effective_units(counts * (right < counts))
    known = np.minimum(clusters - 1, np.minimum(with_right, with_wrong))
    # Of hardly any member the quantile is beyond all numbers, and the least of both is n.
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        share = right.sum(0) / n
        between = jackknife_variance(right, counts)
        # n / deff: so many independent members would vary as much.
        effective = share * (1 - share) / between
        quantiles = scipy.stats.t.ppf(HIGH / 100, np.maximum(n - 1, 1e-3))
        quantiles /= scipy.stats.t.ppf(HIGH / 100, np.maximum(known, 1))
        effective = np.minimum(n, effective * quantiles**2)
        # rounding leaves a little where no cluster differs
        alike = (clusters < 1 + ROUNDING) | (between < ALIKE)
        effective = np.where(alike, clusters, effective)
        return proportion_interval(share * effective, effective)


def jackknife_variance(sums: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """The variance of Σ sums / Σ counts over independent units, (u − 1) / u Σ (r_−i − r)² with u units that count, each
    left out in turn (Efron and Tibshirani 1993, equation 11.5): units x … in, … out."""
    asked = counts > 0
    units = asked.sum(0)
    total = counts.sum(0)
    # The share of the text that is left when a unit is left out; 0 where one unit is the whole text.
    # r − r_−i = (s_i − r c_i) / (C − c_i); the division by C comes at the end.
    without = np.maximum(1 - counts / total, 1e-9)
    rest = np.where(asked, sums - sums.sum(0) / total * counts, 0) / without
    variance: np.ndarray = (rest**2).sum(0) * (units - 1) / np.maximum(units, 1) / total**2
    return variance


def auroc_interval(value: float, positives: int, others: int) -> tuple[float, float]:
    """95 % interval of an area under the ROC curve of so many positives and others: the score interval of Newcombe
    (2006, part 2, method 5), which holds for few positives and near 1.

    Its ends are the areas θ with |value − θ| = 1.96 √V(θ), V(θ) = θ (1 − θ) / (m n) · (1 + k (1 − θ) / (2 − θ) + k θ /
    (1 + θ)), k = (m + n) / 2 − 1 for m positives and n others. Not a number where both together are fewer than
    FEWEST_UNITS.
    """
    if positives + others < FEWEST_UNITS:
        return float("nan"), float("nan")
    k = (positives + others) / 2 - 1

    def beyond(area: float) -> float:
        spread = area * (1 - area) / (positives * others)
        spread *= 1 + k * (1 - area) / (2 - area) + k * area / (1 + area)
        return abs(value - area) - Z * math.sqrt(spread)

    # V is 0 at both ends, where every value of 0 or 1 would be a solution.
    nearly = 1e-9
    low = 0.0 if value <= nearly else scipy.optimize.brentq(beyond, nearly, value - nearly)
    high = 1.0 if value >= 1 - nearly else scipy.optimize.brentq(beyond, value + nearly, 1 - nearly)
    return low, high


@dataclass(frozen=True)
class MarkedInGroups:
    """How high numbers of marked units are beside the others of their own group, such as heads with a role beside the
    others of their layer.

    won, pairs: of the pairs of a marked and an unmarked unit of one group, those in which the marked one has the higher
    number (half for equal ones), and all. share: of won in pairs, the area under the ROC curve within groups; not a number
    without pairs. p: how often marks that are shuffled within every group win as many (one-sided, exact).
    """

    won: float
    pairs: int
    p: float

    @property
    def share(self) -> float:
        return self.won / self.pairs if self.pairs else float("nan")


def marked_in_groups(values: np.ndarray, marked: np.ndarray, groups: np.ndarray) -> MarkedInGroups:
    """Compare numbers of marked units with those of unmarked ones, only within groups (a stratified Wilcoxon test; van
    Elteren 1960, with equal weights of pairs).

    values, marked, groups: one for each unit. Every way of marking as many units of each group counts, so nothing is drawn.
    """
    won, pairs = 0.0, 0
    chances = np.ones(1)  # of twice the pairs won: 0, 1, 2 …
    for group in np.unique(groups):
        here = groups == group
        count, others = int(marked[here].sum()), int((~marked[here]).sum())
        if not count or not others:
            continue
        # Ranks of equal numbers end in a half: doubled, all are whole.
        doubled = np.rint(2 * scipy.stats.rankdata(values[here])).astype(int)
        least = count * (count + 1)  # twice the rank sum of the lowest places
        won += (doubled[marked[here]].sum() - least) / 2
        pairs += count * others
        ways = sums_of_subsets(doubled, count)[least:]
        # Groups are shuffled independently, so their sums add up: a convolution.
        chances = np.convolve(chances, ways / ways.sum())
    return MarkedInGroups(won, pairs, min(1.0, float(chances[round(2 * won) :].sum())))


def sums_of_subsets(numbers: np.ndarray, size: int) -> np.ndarray:
    """Of all subsets of so many of these numbers, how many have the sum 0, 1, 2 …; numbers are whole and not below 0."""
    ways = np.zeros((size + 1, int(numbers.sum()) + 1))
    ways[0, 0] = 1
    for number in numbers:
        # the larger subsets first, so that no number is taken twice
        for taken in range(size, 0, -1):
            ways[taken, number:] += ways[taken - 1, : ways.shape[1] - number]
    found: np.ndarray = ways[size]
    return found


def kept_of_marked(
    kept: np.ndarray, marked: np.ndarray, groups: np.ndarray
) -> tuple[int, float, float]:
    """How many marked units are among the kept ones, how many a draw of as many units of every group would have, and how
    often such a draw has as many or more (one-sided, exact: a hypergeometric distribution for each group)."""
    expected = 0.0
    chances = np.ones(1)
    for group in np.unique(groups):
        here = groups == group
        size, of_marked, of_kept = (int(one.sum()) for one in (here, marked[here], kept[here]))
        expected += of_marked * of_kept / size
        drawn = scipy.stats.hypergeom(size, of_marked, of_kept).pmf(
            np.arange(min(of_marked, of_kept) + 1)
        )
        chances = np.convolve(chances, drawn)
    found = int((kept & marked).sum())
    return found, expected, min(1.0, float(chances[found:].sum()))


def ratio_interval(
    sums: np.ndarray,
    divisors: np.ndarray,
    value: np.ndarray,
    seed: int,
    ends: tuple[float, float] | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """95 % interval of Σ sums / Σ divisors, each sum with its own divisor, in float32: units x … in, … out.

    A resample whose divisors are all 0 counts as the value. ends: the least and the largest ratio that a unit can have.
    With them there is an interval also where all units are alike: the `unseen_share` may have such ratios.
    """
    flat, below = sums.reshape(len(sums), -1), divisors.reshape(len(sums), -1)
    drawn_times = draws(len(sums), seed, np.float32)
    drawn = np.concatenate([(times @ flat) / (times @ below) for times in drawn_times]).reshape(
        -1, *value.shape
    )
    drawn = np.where(np.isfinite(drawn), drawn, value)
    units = effective_units(divisors)
    low, high = interval(drawn, units)
    if ends is not None:
        alike = are_alike(drawn) & (units >= FEWEST_UNITS)
        share = unseen_share(units)
        low = np.where(alike, value - share * (value - ends[0]), low)
        high = np.where(alike, value + share * (ends[1] - value), high)
    return low, high


def centred_interval(
    value: float, draws: np.ndarray, units: float, least: float, most: float = 1
) -> tuple[float, float]:
    """95 % interval of draws over so many units, moved so that its median is the value, and cut to least … most.

    For a statistic that resampling biases, such as a rank correlation, which noise pushes down.
    """
    numbers = draws[~np.isnan(draws)]
    if not np.isfinite(value) or not len(numbers) or units < FEWEST_UNITS:
        return float("nan"), float("nan")
    moved = value - np.median(numbers)
    low, high = interval(numbers, units)
    return max(least, float(low + moved)), min(most, float(high + moved))


def rank_interval(r: float, n: int) -> tuple[float, float]:
    """95 % interval of Spearman's rank correlation of n pairs (Bonett and Wright 2000): tanh(atanh r ± 1.96 s) with
    s² = (1 + r²/2) / (n − 3). Not a number for fewer than FEWEST_UNITS pairs, or |r| = 1."""
    if n < FEWEST_UNITS or not abs(r) < 1 - ROUNDING:
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
    `interval` begins to hold 0, also where it is blank.

    z with P(N(0, 1) ≥ z) = (min(#{δ_b ≤ 0}, #{δ_b ≥ 0}) + 1) / (n + 1) is where 0 lies in the draws. p = P(|t_{u−1}| ≥
    q √((u − 1) / u)), where q is the smaller of z and what is accelerated to z; z, where 0 is outside all draws, which is
    the furthest that ends reach. units: as for `interval`; p of a single one is 1.
    """
    below = (draws <= 0).sum(0)
    above = (draws >= 0).sum(0)
    beyond = np.minimum(below, above)
    z = scipy.stats.norm.isf(np.minimum(0.5, (beyond + 1) / (len(draws) + 1)))
    a = skewness(draws) / 6
    q = np.minimum(z, decelerated(z, np.where(below < above, a, -a)))
    q = np.where(beyond == 0, z, np.maximum(q, 0))
    several = np.maximum(units, 1 + 1e-9)  # Student's t needs more than 0 degrees of freedom
    p: np.ndarray = 2 * scipy.stats.t.sf(q * ((several - 1) / several) ** 0.5, several - 1)
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
    for times in draws(len(counts), seed):
        total = times @ rest
        mean = total / (times @ counts)[:, None]
        # Σ (s − r c)² multiplied out: an array of resamples x units x ratios would not fit into memory.
        squares = times @ rest**2 - 2 * mean * (times @ by_size)
        squares += mean**2 * (times @ counts**2)[:, None]
        largest = np.abs(total) / np.sqrt(np.maximum(squares, 1e-300))
        extreme += (largest.max(1)[:, None] >= found).sum(0)
        resampled += len(times)
    p[varies] = (extreme + 1) / (resampled + 1)
    return p


def over_seeds(values: np.ndarray, draws: np.ndarray, units: float) -> tuple[float, float]:
    """95 % interval of the mean of values over seeds, whose models were tried on one text. values: of each seed; draws:
    seeds x resamples of so many units, FEWEST_UNITS at least.

    The mean ± √(m² + n²), m the `t_margin` of the values, and n that of their mean over other texts: its standard
    deviation between resamples, t_{u−1} √(u / (u − 1)) times (variances recovered from margins: Zou and Donner 2008).
    Degrees of freedom for the sum (Welch) leave out too much with two or three seeds: 11 and 7 % where seeds differ.
    Not a number where neither seeds nor resamples differ: that says nothing of other ones.
    """
    # Over texts: seeds were tried on one text, which other texts would move together.
    of_text = draws.mean(0).std() * expanded_quantile(np.array(units))
    margin = float(np.hypot(t_margin(values), of_text))
    mean = float(values.mean())
    if margin < ROUNDING:
        return float("nan"), float("nan")
    return mean - margin, mean + margin


def t_margin(values: np.ndarray) -> np.ndarray:
    """Half the width of the 95 % t-interval of a mean over the first axis, which has at least two values."""
    size = len(values)
    margin: np.ndarray = scipy.stats.t.ppf(0.975, size - 1) * values.std(0, ddof=1) / size**0.5
    return margin


def jackknife_p(differences: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """One-sided p of "Σ differences / Σ counts is not above zero" over independent units: units x … in, … out.

    Student's t of the ratio with its `jackknife_variance`, and as many degrees of freedom as `effective_units` less one:
    few long units say less than their number. It replaces the sign-flip test, whose smallest p with u units is 2^−u, so
    p is never below that. Not a number where no unit counts.
    """
    units = (counts > 0).sum(0)
    freedom = np.maximum(effective_units(counts) - 1, 1)
    mean = differences.sum(0) / counts.sum(0)
    # Units that are all alike have no error: then p is the smallest of the sign-flip test.
    error = np.sqrt(jackknife_variance(differences, counts))
    # One-sided: only a mean above 0 is small.
    p: np.ndarray = scipy.stats.t.sf(mean / np.maximum(error, 1e-12), freedom)
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
    found: np.ndarray = scipy.stats.false_discovery_control(np.clip(p, 0, 1))
    return found
