"""Resamples, intervals, and p-values that keep their promise."""

from __future__ import annotations

import time
import tracemalloc
from collections.abc import Iterator

import numpy as np
import pytest

from headwise import statistics
from headwise.statistics import (
    bootstrap,
    centred_interval,
    corrected,
    draws,
    interval,
    jackknife_p,
    over_seeds,
    resampled_sums,
    resamples,
    t_margin,
)


@pytest.mark.parametrize("units", [1, 7, 300])
def test_resamples_are_those_of_the_seed(units: int) -> None:
    wanted = np.concatenate(
        [
            np.random.default_rng((3, n)).multinomial(units, np.full(units, 1 / units), size=50)
            for n in range(20)
        ]
    )
    found = np.concatenate(list(draws(units, 3)))
    assert found.dtype == np.float64 and np.array_equal(found, wanted)
    assert (found.sum(1) == units).all()


def test_resamples_of_many_units_are_drawn_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    """By counting: every resample has as many units as there are, each drawn as often as any other."""
    monkeypatch.setattr(statistics, "_CACHED", 100)
    tables = list(draws(400, 3, np.float32))
    assert [table.shape for table in tables] == [(12, 400)] * 83 + [(4, 400)]
    drawn = np.concatenate(tables)
    assert drawn.dtype == np.float32 and (drawn.sum(1) == 400).all()
    # How often a unit is drawn has the mean 1 and the variance 1 − 1/units of a multinomial draw.
    assert drawn.mean(0) == pytest.approx(1, abs=6 * 1000**-0.5)
    assert drawn.var(0).mean() == pytest.approx(1 - 1 / 400, abs=0.01)
    values = np.random.default_rng(1).normal(0, 2, (400, 1))
    low, high = interval(bootstrap(values, np.ones(400), 3))
    monkeypatch.undo()
    usual = interval(bootstrap(values, np.ones(400), 3))
    assert (float(low[0]), float(high[0])) == pytest.approx([float(x[0]) for x in usual], abs=0.03)
    assert np.array_equal(drawn, np.concatenate(list(draws_again(400)))), "the seed decides"


def draws_again(units: int) -> Iterator[np.ndarray]:
    random = np.random.default_rng((3, units))
    for _ in range(1000):
        yield np.bincount(random.integers(units, size=units), minlength=units)[None]


@pytest.mark.parametrize("sentences", [1, 7, 300])
def test_sums_of_resamples_are_those_of_the_draws(
    sentences: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts = np.random.default_rng(0).integers(0, 40, (sentences, 10))
    wanted = resamples(sentences) @ counts
    assert np.array_equal(resampled_sums(counts), wanted)
    monkeypatch.setattr(statistics, "_CACHED", 1)
    assert np.array_equal(resampled_sums(counts), wanted), "in smaller blocks"


@pytest.mark.slow
def test_a_million_units_stream() -> None:
    """146 seconds and 0.9 GB before."""
    sums, counts = np.ones((1_000_000, 1)), np.ones(1_000_000)
    tracemalloc.start()
    start = time.process_time()
    assert (bootstrap(sums, counts, 0) == 1).all()
    taken = time.process_time() - start
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 120e6 and taken < 60


def test_many_units_take_little_memory() -> None:
    sums, counts = np.ones((60_000, 1)), np.ones(60_000)
    tracemalloc.start()
    assert (bootstrap(sums, counts, 0) == 1).all()
    held, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert held < 2e6 and peak < 120e6  # all tables at once are 480 MB


def test_the_interval_is_that_of_the_mean() -> None:
    values = np.random.default_rng(0).normal(3, 2, (400, 1))
    low, high = interval(bootstrap(values, np.ones(400), 0))
    assert [*low, *high] == pytest.approx(
        [values.mean() - 1.96 * 0.1, values.mean() + 1.96 * 0.1], abs=0.03
    )


def test_a_biased_statistic_keeps_its_value_inside_the_interval() -> None:
    draws = np.linspace(0.2, 0.6, 1001)
    assert centred_interval(0.9, draws, -1) == pytest.approx((0.71, 1.0))
    assert np.isnan(centred_interval(np.nan, draws, -1)).all()


def test_seeds_that_differ_widen_the_interval() -> None:
    random = np.random.default_rng(0)
    alike, apart = (
        random.normal(0, 1, (3, 1000)),
        random.normal(0, 1, (3, 1000)) + np.array([[-9], [0], [9]]),
    )
    assert over_seeds(apart)[1] - over_seeds(apart)[0] > 3 * (
        over_seeds(alike)[1] - over_seeds(alike)[0]
    )
    assert over_seeds(np.full((2, 1000), 5.0)) == (5, 5)


def test_margin_and_correction_against_their_definitions() -> None:
    assert float(t_margin(np.array([1.0, 3.0]))) == pytest.approx(
        12.706, abs=1e-3
    )  # t of one degree of freedom
    assert corrected(np.array([0.01, 0.04, 0.03, 1.1])).tolist() == pytest.approx(
        [0.04, 0.16 / 3, 0.16 / 3, 1]
    )


@pytest.mark.parametrize("units", [12, 40, 200])
def test_p_values_keep_their_promise(units: int) -> None:
    """Heads that are as good as the baseline, in sentences of different length whose tokens go together."""
    random = np.random.default_rng(units)
    counts = random.integers(1, 8, (units, 1, 1))
    skill = random.normal(0.5, 0.2, (units, 4000, 1)).clip(0, 1)
    heads = random.binomial(counts, skill)
    differences = heads - random.binomial(
        counts, random.normal(0.5, 0.2, (units, 4000, 1)).clip(0, 1)
    )
    p = jackknife_p(differences, counts)[:, 0]
    for rate in (0.05, 0.01):
        assert (p <= rate).mean() <= rate * 1.3 + 2 / 4000
    assert units == 12 or (jackknife_p(differences + counts * 0.4, counts) < 0.01).mean() > 0.9


def test_few_sentences_prove_little() -> None:
    """A head that is right everywhere where the baseline is wrong: with 5 sentences p is 1/32, not 0."""
    p = jackknife_p(np.full((5, 1, 1), 3.0), np.full((5, 1, 1), 3.0))
    assert p[0, 0] == 0.5**5
    assert jackknife_p(np.ones((1, 1, 1)), np.ones((1, 1, 1)))[0, 0] == 1
