"""Removal curves on models whose loss is known: each head is worth so much, or stands in for another one."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headwise.errors import HeadwiseError
from headwise.heads import Head, HeadMap, HeadMask
from headwise.importance.curves import area_rows, curve_rows, removal_curves, removal_order, removal_steps

HEADS = HeadMap({"encoder-self": (4, 4), "cross": (2,)})
WORTH = {head: float(value) for head, value in zip(HEADS, [3, 1, 4, 1.5, 9, 2, 6, 5, 3.5, 8], strict=True)}
COUNTS = np.array([10.0, 20.0, 30.0])


def lose_the_worth(masks: Sequence[HeadMask]) -> tuple[np.ndarray, np.ndarray]:
    """Each token of each sentence loses what the missing heads are worth, on top of 2 nats; the last sentence more."""
    lost = np.array([2 + sum(WORTH[head] for head in mask.heads if head not in mask.kept) for mask in masks])
    return np.outer(COUNTS, lost) * np.array([0.9, 0.9, 1.1])[:, None], COUNTS


def test_steps_are_tenths_rounded_up() -> None:
    assert removal_steps(144) == [0, 15, 29, 44, 58, 72, 87, 101, 116, 130]
    assert removal_steps(10) == list(range(10))
    assert removal_steps(3) == [0, 1, 2, 3]


def test_the_least_important_go_first() -> None:
    order = removal_order(WORTH)
    assert [WORTH[head] for head in order] == sorted(WORTH.values())
    (curve, *_) = removal_curves(HEADS, {"worth": WORTH}, lose_the_worth, seeds=())
    assert (curve.measure, curve.order, curve.kinds, curve.total) == ("worth", "once", "encoder-self+cross", 10)
    expected = (2 + np.cumsum([0, *sorted(WORTH.values())[:-1]])) * (0.9 * 30 + 1.1 * 30) / 60
    np.testing.assert_allclose(curve.loss, expected)


@settings(max_examples=40, deadline=None)
@given(st.permutations(range(10)))
def test_no_order_beats_the_true_one(places: list[int]) -> None:
    other = {head: float(place) for head, place in zip(HEADS, places, strict=True)}
    curves = removal_curves(HEADS, {"worth": WORTH, "-worth": WORTH, "other": other}, lose_the_worth, seeds=(1,))
    rows = {row["measure"]: row["value"] for row in area_rows(curves)}
    assert rows["worth"] <= min(rows["other"], rows["random"])
    assert rows["-worth"] >= max(rows["other"], rows["random"])


def test_each_mask_is_asked_once_and_the_heads_not_chosen_stay() -> None:
    asked: list[HeadMask] = []

    def lose(masks: Sequence[HeadMask]) -> tuple[np.ndarray, np.ndarray]:
        asked.extend(masks)
        return lose_the_worth(masks)

    some = {head: value for head, value in WORTH.items() if head.kind == "encoder-self"}
    curves = removal_curves(HEADS, {"worth": some, "same": some}, lose, seeds=(0, 1))
    assert {curve.kinds for curve in curves} == {"encoder-self"}
    assert len(asked) == len({mask.kept for mask in asked}) <= 3 * 8
    assert all(mask.count("cross") == 2 for mask in asked)
    assert [(c.measure, c.order, c.seed) for c in curves[2:]] == [("random", "random", 0), ("random", "random", 1)]


def test_scoring_again_saves_the_last_of_two_heads_that_stand_in_for_each_other() -> None:
    pair = {Head("encoder-self", 0, 0), Head("encoder-self", 0, 1)}

    def worth(head: Head, kept: frozenset[Head]) -> float:
        return 20.0 * (not pair & (kept - {head})) if head in pair else 1 + 0.1 * head.head

    def lose(masks: Sequence[HeadMask]) -> tuple[np.ndarray, np.ndarray]:
        lost = [
            20.0 * (not pair & mask.kept) + sum(worth(h, mask.kept) for h in HEADS if h not in mask.kept | pair)
            for mask in masks
        ]
        return np.outer(COUNTS, lost), COUNTS

    def again(mask: HeadMask) -> Mapping[Head, float]:
        return {head: worth(head, mask.kept) for head in mask.kept}

    once, anew = removal_curves(HEADS, {"ablation": again(HeadMask.full(HEADS))}, lose, {"ablation": again}, seeds=())
    assert (anew.order, anew.removed) == ("rescored", once.removed)
    assert once.loss[2] >= 20
    assert anew.loss[-1] < 20
    areas = {row["statistic"]: row["value"] for row in area_rows([once, anew])}
    assert areas["area.rescored"] < areas["area"]


def test_a_measure_whose_low_values_matter_is_turned_round_when_scored_again_too() -> None:
    def again(mask: HeadMask) -> Mapping[Head, float]:
        return {head: -WORTH[head] for head in mask.kept}

    once, anew = removal_curves(HEADS, {"-x": {h: -v for h, v in WORTH.items()}}, lose_the_worth, {"-x": again}, ())
    np.testing.assert_allclose(once.loss, anew.loss)
    assert once.loss[1] == pytest.approx(3)


def test_rows_have_intervals_over_sentences_and_the_range_over_random_orders() -> None:
    curves = removal_curves(HEADS, {"worth": WORTH}, lose_the_worth, seeds=(0, 1, 2))
    rows = curve_rows(curves)
    assert len(rows) == 4 * 10
    for row in rows:
        assert 0.9 / 1.1 * row["loss"] < row["low"] < row["loss"] < row["high"] < 1.1 / 0.9 * row["loss"]
    assert [row["removed"] for row in rows[:10]] == list(range(10))
    assert (rows[0]["seed"], rows[-1]["seed"], rows[-1]["total"]) == (None, 2, 10)
    worth, random = area_rows(curves)
    assert (worth["measure"], worth["statistic"], worth["against"], worth["n"]) == ("worth", "area", "all heads", 3)
    assert worth["low"] < worth["value"] < worth["high"] < random["low"] < random["value"] < random["high"]
    assert random["n"] == 3


def test_a_quality_without_sentences_has_no_interval() -> None:
    def lose(masks: Sequence[HeadMask]) -> tuple[np.ndarray, np.ndarray]:
        return np.array([[100.0 - len(mask) for mask in masks]]), np.ones(1)

    curves = removal_curves(HEADS, {"worth": WORTH}, lose, seeds=())
    assert all(math.isnan(row["low"]) and math.isnan(row["high"]) for row in (*curve_rows(curves), *area_rows(curves)))
    assert area_rows(curves)[0]["value"] == pytest.approx(5)


def test_what_cannot_be_removed_or_measured_is_told() -> None:
    with pytest.raises(HeadwiseError, match="at least one score"):
        removal_curves(HEADS, {}, lose_the_worth)
    with pytest.raises(HeadwiseError, match="worth has 10, part 1"):
        removal_curves(HEADS, {"worth": WORTH, "part": {Head("cross", 0, 0): 1.0}}, lose_the_worth)
    with pytest.raises(HeadwiseError, match="must have the shape"):
        removal_curves(HEADS, {"worth": WORTH}, lambda masks: (np.zeros((2, 3)), np.ones(2)))
    with pytest.raises(HeadwiseError, match="not a number"):
        removal_curves(HEADS, {"worth": WORTH}, lambda masks: (np.full((2, len(masks)), np.nan), np.ones(2)))
