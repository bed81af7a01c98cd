"""Losses and similarities in files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from headwise.evaluation.answers import Measured, read_measured, save_measured
from headwise.evaluation.losses import Losses
from headwise.evaluation.similarities import Similarities

SUMS = np.arange(6.0).reshape(3, 2)
UNITS = np.array([[0, 1], [1, 2], [2, 0]])


@pytest.mark.parametrize(
    "measured",
    [
        Losses(SUMS, np.array([2, 3, 4]), made="3 sentences"),
        Losses(SUMS, np.ones(3), SUMS > 2, "3 texts"),
        Similarities(SUMS, UNITS, made="3 pairs"),
        Similarities(SUMS, np.arange(3)[:, None], np.array([0.5, 1.0, 2.0]), "a table"),
    ],
)
def test_what_was_saved_is_read(measured: Measured, tmp_path: Path) -> None:
    file = tmp_path / "losses" / "dev" / "one.npz"
    save_measured(measured, file)
    again = read_measured(file)
    assert type(again) is type(measured) and vars(again).keys() == vars(measured).keys()
    for name, value in vars(measured).items():
        np.testing.assert_array_equal(getattr(again, name), value)
    assert type(again.made) is str


def test_a_gain_of_accuracy_has_its_interval_above_zero() -> None:
    """The second model is right in 30 of 40 texts, the whole one in 10."""
    place = np.arange(40)
    right = np.stack([place < 10, place >= 10], 1)
    rows = {name: row for name, *row in Losses(np.zeros((40, 2)), np.ones(40), right).rows(1, 0)}
    value, low, high = rows["accuracy_change"]
    assert value == 50 and 0 < low < 50 < high
    assert rows["accuracy"][0] == 75
