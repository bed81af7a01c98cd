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
from headwise.importance.curves import (
    area_rows,
    circuit_sizes,
    curve_rows,
    recovery,
    removal_curves,
    removal_order,
    removal_steps,
)

HEADS = HeadMap({"encoder-self": (4, 4), "cross": (2,)})
WORTH = {
    head: float(value)
    for head, value in zip(HEADS, [3, 1, 4, 1.5, 9, 2, 6, 5, 3.5, 8], strict=True)
}
COUNTS = np.array([10.0, 20.0, 30.0])


def lose_the_worth(masks: Sequence[HeadMask]) -> tuple[np.ndarray, np.ndarray]:
    """Each token of each sentence loses what the missing heads are worth, on top of 2 nats; the last sentence more."""
    lost = np.array(
        [2 + sum(WORTH[head] for head in mask.heads if head not in mask.kept) for mask in masks]
    )
    return np.outer(COUNTS, lost) * np.array([0.9, 0.9, 1.1])[:, None], COUNTS


def test_steps_are_tenths_rounded_up() -> None:
    assert removal_steps(144) == [0, 15, 29, 44, 58, 72, 87, 101, 116, 130]
    assert removal_steps(10) == list(range(10))
    assert removal_steps(3) == [0, 1, 2, 3]


def test_the_least_important_go_first() -> None:
    order = removal_order(WORTH)
    assert [WORTH[head] for head in order] == sorted(WORTH.values())
    (curve, *_) = removal_curves(HEADS, {"worth": WORTH}, lose_the_worth, seeds=())
    assert (curve.measure, curve.ranking, curve.kinds, curve.total) == (
        "worth",
        "once",
        "encoder-self+cross",
        10,
    )
    expected = (2 + np.cumsum([0, *sorted(WORTH.values())])) * (0.9 * 30 + 1.1 * 30) / 60
    np.testing.assert_allclose(curve.loss, expected)


@settings(max_examples=40, deadline=None)
@given(st.permutations(range(10)))
def test_no_order_beats_the_true_one(places: list[int]) -> None:
    other = {head: float(place) for head, place in zip(HEADS, places, strict=True)}
    curves = removal_curves(
        HEADS, {"worth": WORTH, "-worth": WORTH, "other": other}, lose_the_worth, seeds=(1,)
    )
    rows = {(row["statistic"], row["measure"]): row["value"] for row in area_rows(curves)}
    for name, sign in (("area", 1), ("cpr", -1), ("cmd", 1)):
        worth, worst, *others = (
            sign * rows[name, measure] for measure in ("worth", "-worth", "other", "random")
        )
        assert worth <= min(others) and worst >= max(others)


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
    assert [(c.measure, c.ranking, c.seed) for c in curves[2:]] == [
        ("random", "random", 0),
        ("random", "random", 1),
    ]


def test_scoring_again_saves_the_last_of_two_heads_that_stand_in_for_each_other() -> None:
    pair = {Head("encoder-self", 0, 0), Head("encoder-self", 0, 1)}

    def worth(head: Head, kept: frozenset[Head]) -> float:
        return 20.0 * (not pair & (kept - {head})) if head in pair else 1 + 0.1 * head.head

    def lose(masks: Sequence[HeadMask]) -> tuple[np.ndarray, np.ndarray]:
        lost = [
            20.0 * (not pair & mask.kept)
            + sum(worth(h, mask.kept) for h in HEADS if h not in mask.kept | pair)
            for mask in masks
        ]
        return np.outer(COUNTS, lost), COUNTS

    def again(mask: HeadMask) -> Mapping[Head, float]:
        return {head: worth(head, mask.kept) for head in mask.kept}

    once, again = removal_curves(
        HEADS, {"ablation": again(HeadMask.full(HEADS))}, lose, {"ablation": again}, seeds=()
    )
    assert (again.ranking, again.removed) == ("rescored", once.removed)
    assert once.loss[2] >= 20
    assert again.loss[-2] < 20
    areas = {row["statistic"]: row["value"] for row in area_rows([once, again])}
    assert areas["area.rescored"] < areas["area"]


def test_a_measure_whose_low_values_matter_is_turned_round_when_scored_again_too() -> None:
    def again(mask: HeadMask) -> Mapping[Head, float]:
        return {head: -WORTH[head] for head in mask.kept}

    once, again = removal_curves(
        HEADS, {"-x": {h: -v for h, v in WORTH.items()}}, lose_the_worth, {"-x": again}, ()
    )
    np.testing.assert_allclose(once.loss, again.loss)
    assert once.loss[1] == pytest.approx(3)


def test_rows_have_intervals_over_sentences_and_the_range_over_random_orders() -> None:
    curves = removal_curves(HEADS, {"worth": WORTH}, lose_the_worth, seeds=(0, 1, 2))
    rows = curve_rows(curves)
    assert len(rows) == 4 * 10
    for row in rows:
        assert (
            0.9 / 1.1 * row["loss"]
            < row["low"]
            < row["loss"]
            < row["high"]
            < 1.1 / 0.9 * row["loss"]
        )
    assert [row["removed"] for row in rows[:10]] == list(range(10))
    assert (rows[0]["seed"], rows[-1]["seed"], rows[-1]["total"]) == (None, 2, 10)
    worth, _, _, random, *_ = area_rows(curves)
    assert (worth["measure"], worth["statistic"], worth["against"], worth["n"]) == (
        "worth",
        "area",
        "all heads",
        3,
    )
    assert (
        worth["low"]
        < worth["value"]
        < worth["high"]
        < random["low"]
        < random["value"]
        < random["high"]
    )
    assert random["n"] == 3


def test_a_quality_without_sentences_has_no_interval() -> None:
    def lose(masks: Sequence[HeadMask]) -> tuple[np.ndarray, np.ndarray]:
        return np.array([[100.0 - len(mask) for mask in masks]]), np.ones(1)

    curves = removal_curves(HEADS, {"worth": WORTH}, lose, seeds=())
    assert all(
        math.isnan(row["low"]) and math.isnan(row["high"])
        for row in (*curve_rows(curves), *area_rows(curves))
    )
    assert area_rows(curves)[0]["value"] == pytest.approx(5)


def test_the_areas_of_mib() -> None:
    """Closed form: a loss that falls with the share kept as √k, and a curve that is perfect from the first circuit."""
    assert circuit_sizes(1000) == [0, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000]
    assert circuit_sizes(24) == [0, 1, 2, 4, 12, 24]
    shares = np.linspace(0, 1, 10001)
    found = recovery(shares, 5 - 2 * np.sqrt(shares))
    assert found["cpr"] == pytest.approx(2 / 3, abs=1e-4) and found["cmd"] == pytest.approx(
        1 / 3, abs=1e-4
    )
    better = recovery(
        np.array([0, 0.5, 1]), np.array([5.0, 2.0, 3.0])
    )  # half of the heads beat all of them
    assert better["cpr"] == pytest.approx(0.25 * 1.5 + 0.25 * 2.5) and better[
        "cmd"
    ] == pytest.approx(0.25 + 0.5 * 0.5)
    assert all(
        math.isnan(value) for value in recovery(np.array([0, 1]), np.array([2.0, 2.0])).values()
    )


def test_areas_of_mib_need_only_the_masks_of_their_sizes() -> None:
    curves = removal_curves(HEADS, {"worth": WORTH}, lose_the_worth, seeds=())
    rows = {row["statistic"]: row for row in area_rows(curves)}
    every = sum(WORTH.values())
    kept = {size: sum(sorted(WORTH.values())[10 - size :]) / every for size in (0, 1, 2, 5, 10)}
    areas = [(b - a) / 10 * (kept[a] + kept[b]) / 2 for a, b in ((0, 1), (1, 2), (2, 5), (5, 10))]
    assert rows["cpr"]["value"] == pytest.approx(sum(areas))
    assert rows["cmd"]["value"] == pytest.approx(1 - sum(areas))
    assert rows["cpr"]["low"] <= rows["cpr"]["value"] <= rows["cpr"]["high"]


def test_what_cannot_be_removed_or_measured_is_reported() -> None:
    with pytest.raises(HeadwiseError, match="at least one score"):
        removal_curves(HEADS, {}, lose_the_worth)
    with pytest.raises(HeadwiseError, match="worth has 10, part 1"):
        removal_curves(HEADS, {"worth": WORTH, "part": {Head("cross", 0, 0): 1.0}}, lose_the_worth)
    with pytest.raises(HeadwiseError, match="must have the shape"):
        removal_curves(HEADS, {"worth": WORTH}, lambda masks: (np.zeros((2, 3)), np.ones(2)))
    with pytest.raises(HeadwiseError, match="not a number"):
        removal_curves(
            HEADS, {"worth": WORTH}, lambda masks: (np.full((2, len(masks)), np.nan), np.ones(2))
        )
