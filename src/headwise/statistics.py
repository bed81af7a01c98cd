"""Bootstrap, intervals and tests of significance: the only module that draws resamples.

A bootstrap draws as many units (sentences, or groups of them) as there are, with replacement, RESAMPLES times. Every
draw depends only on a seed and the number of units, so all layers and measures of a text share the same resamples, and
differences between two of them are paired.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

import numpy as np
from scipy.stats import binomtest, false_discovery_control, norm
from scipy.stats import t as student

RESAMPLES = 1000
SEED = 12345  # sacreBLEU's own
LOW, HIGH = 2.5, 97.5  # percentiles of a 95 % interval
_TABLE = 50  # resamples held in memory together
_CACHED = 50_000  # tables of so many units at most stay in memory: 50 MB


def interval(draws: np.ndarray, axis: int | None = 0) -> tuple[np.ndarray, np.ndarray]:
    """The 95 % percentile interval of draws along an axis (None: of all of them)."""
    low, high = np.percentile(draws, [LOW, HIGH], axis=axis)
    return low, high


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
    rows = max(1, _TABLE * _CACHED // units)
    for first in range(0, RESAMPLES, rows):
        table = np.empty((min(rows, RESAMPLES - first), units), dtype)
        for row in table:
            row[:] = np.bincount(random.integers(units, size=units), minlength=units)
        yield table


@lru_cache(maxsize=RESAMPLES // _TABLE)
def _table(units: int, seed: int, number: int) -> np.ndarray:
    random = np.random.default_rng((seed, number))
    table = random.multinomial(units, np.full(units, 1 / units), size=_TABLE)
    return table.astype(np.uint8)  # that a unit is drawn 256 times has a probability below 1e-500


def bootstrap(sums: np.ndarray, counts: np.ndarray, seed: int) -> np.ndarray:
    """Σ sums / Σ counts of every resample. sums: units x columns, counts: units; returns resamples x columns."""
    return np.concatenate(
        [(table @ sums) / (table @ counts)[:, None] for table in draws(len(counts), seed)]
    )


def proportion_interval(right: int, count: int) -> tuple[float, float]:
    """95 % interval of a share by Wilson's score (1927), which is sound near 0 and 1, too."""
    low, high = binomtest(right, count).proportion_ci(method="wilson")
    return float(low), float(high)


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
    return interval(np.where(np.isfinite(drawn), drawn, value))


def centred_interval(
    value: float, draws: np.ndarray, least: float, most: float = 1
) -> tuple[float, float]:
    """95 % interval of draws, moved so that its median is the value, and cut to least … most.

    For a statistic that resampling biases, such as a rank correlation, which noise pushes down.
    """
    if not np.isfinite(value) or np.isnan(draws).all():
        return float("nan"), float("nan")
    low, median, high = np.nanpercentile(draws, [LOW, 50, HIGH])
    return max(least, float(value + low - median)), min(most, float(value + high - median))


def rank_interval(r: float, n: int) -> tuple[float, float]:
    """95 % interval of Spearman's rank correlation of n pairs (Bonett and Wright 2000): tanh(atanh r ± 1.96 s) with
    s² = (1 + r²/2) / (n − 3). Not a number for fewer than 4 pairs, or |r| = 1."""
    if n < 4 or not abs(r) < 1:
        return float("nan"), float("nan")
    margin = norm.ppf(HIGH / 100) * ((1 + r**2 / 2) / (n - 3)) ** 0.5
    return float(np.tanh(np.arctanh(r) - margin)), float(np.tanh(np.arctanh(r) + margin))


def resampled_sums(statistics: np.ndarray) -> np.ndarray:
    """The sums of every resample of sentences, drawn as `resamples` does, without holding all draws: RESAMPLES x
    columns. statistics: sentences x columns, whole numbers."""
    random = np.random.default_rng(SEED)
    sentences = len(statistics)
    shares = np.full(sentences, 1 / sentences)
    rows = max(1, min(_TABLE, _TABLE * _CACHED // sentences))
    parts = []
    for first in range(0, RESAMPLES, rows):
        count = min(rows, RESAMPLES - first)
        parts.append(random.multinomial(sentences, shares, size=count) @ statistics)
    return np.concatenate(parts)


def resamples(sentences: int) -> np.ndarray:
    """How often each sentence is drawn, with sacreBLEU's seed: RESAMPLES x sentences."""
    return np.random.default_rng(SEED).multinomial(
        sentences, np.full(sentences, 1 / sentences), size=RESAMPLES
    )


def paired_bootstrap_p(value: float, draws: np.ndarray) -> float:
    """Two-sided p of a paired difference: (#{|δ_b − mean δ_b| ≥ |δ|} + 1) / (n + 1) over its n draws δ_b.

    sacreBLEU centres |δ_b| instead, which makes p about half as large, and does not count ties.
    """
    extreme = int((np.abs(draws - draws.mean()) >= abs(value)).sum())
    return (extreme + 1) / (len(draws) + 1)


def over_seeds(draws: np.ndarray) -> tuple[float, float]:
    """95 % interval of a mean over seeds, by a bootstrap on two levels. draws: seeds x resamples of sentences.

    Every resample draws as many seeds as there are, with replacement.
    """
    seeds, count = draws.shape
    chosen = np.random.default_rng(SEED).integers(seeds, size=(count, seeds))
    low, high = interval(draws[chosen, np.arange(count)[:, None]].mean(1))
    return float(low), float(high)


def t_margin(values: np.ndarray) -> np.ndarray:
    """Half the width of the 95 % t-interval of a mean over the first axis, which has at least two values."""
    size = len(values)
    margin: np.ndarray = student.ppf(0.975, size - 1) * values.std(0, ddof=1) / size**0.5
    return margin


def jackknife_p(differences: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """One-sided p of "Σ differences / Σ counts is not above zero" over independent units: units x … in, … out.

    Student's t of the ratio with its jackknife variance between units. It replaces the sign-flip test, whose smallest
    p with u units is 2^−u, so p is never below that. Not a number where no unit counts.
    """
    asked = counts > 0
    units = asked.sum(0)
    mean = differences.sum(0) / counts.sum(0)
    without = np.maximum(
        1 - counts / counts.sum(0), 1e-9
    )  # what is left of the text when a unit is left out
    spread = np.where(asked, differences - mean * counts, 0) / without
    error = np.sqrt((spread**2).sum(0) * units / np.maximum(units - 1, 1)) / counts.sum(0)
    p: np.ndarray = student.sf(mean / np.maximum(error, 1e-12), np.maximum(units - 1, 1))
    return np.where(units > 1, np.maximum(p, 0.5**units), np.where(np.isnan(p), np.nan, 1.0))


def cohen_h(share: np.ndarray, other: np.ndarray) -> np.ndarray:
    """The effect size of two shares, 2 asin √share − 2 asin √other (Cohen 1988, chapter 6): 0.2 is small, 0.8 large."""
    h: np.ndarray = 2 * (
        np.arcsin(np.sqrt(np.clip(share, 0, 1))) - np.arcsin(np.sqrt(np.clip(other, 0, 1)))
    )
    return h


def corrected(p: np.ndarray) -> np.ndarray:
    """p-values of many tests together, corrected by Benjamini and Hochberg (1995): the false discovery rate."""
    found: np.ndarray = false_discovery_control(np.clip(p, 0, 1))
    return found
