"""benchmarks/intervals.py: it runs, it finds an interval that is too narrow, and the published table is its own."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from benchmarks import intervals

from headwise.core import statistics

METHODS = Path(__file__).parents[1] / "docs" / "methods"


def test_a_quick_run_of_every_interval() -> None:
    table = intervals.coverage(10, (3, 10))
    assert len(table) == 2 * len(intervals.INTERVALS)
    lines = intervals.markdown(table).splitlines()
    assert lines[0] == "| interval | data | 3 | 10 |" and len(lines) == 2 + len(table) // 2
    means = table[table["interval"].str.startswith("means")].set_index("units")
    assert (means.loc[3, "blank"] == 100).all()


def test_too_narrow_an_interval_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Usual percentiles of 10 units."""
    simulation = intervals.scores(intervals.normal, intervals.ones)

    def missed() -> float:
        low, high, truth = simulation(np.random.default_rng(0), 10, 1000)
        return float(((low > truth) | (high < truth)).mean())

    assert missed() < 0.07
    monkeypatch.setattr(statistics, "expanded_quantile", lambda units: np.full(units.shape, 1.96))
    assert missed() > 0.08


def test_the_published_table_is_that_of_the_file_and_intervals_hold() -> None:
    """At most 6 %, or two standard errors more; what is left is said on the page."""
    table = pd.read_csv(METHODS / "intervals.csv")
    text = intervals.markdown(table.fillna({"data": ""}))
    assert text in (METHODS / "bleu.md").read_text()
    known = {
        ("exponential", 10),
        ("log-normal", 10),
        ("log-normal", 30),
        ("skewed errors", 10),
        ("skewed errors", 30),
    }
    left = set()
    for row in table.itertuples():
        if row.missed > 6 + 2 * row.error:
            left.add((row.data, row.units))
    assert left == known
