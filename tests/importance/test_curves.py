"""Removal curves on models whose loss is known: each head is worth so much, or stands in for another one."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headwise.core.heads import Head, HeadMap
from headwise.core.layout import HeadMask
from headwise.importance.curves import (
    area_rows,
    circuit_sizes,
    curve_rows,
    least_first,
    recovery,
    removal_curves,
    removal_steps,
)
from refusals import refuses

HEADS = HeadMap({"encoder-self": (4, 4), "cross": (2,)})
WORTH = dict(zip(HEADS, [3.0, 1.0, 4.0, 1.5, 9.0, 2.0, 6.0, 5.0, 3.5, 8.0], strict=True))
COUNTS = np.tile([10.0, 20.0, 30.0], 3)


def lose_the_worth(masks: Sequence[HeadMask]) -> tuple[np.ndarray, np.ndarray]:
    """Each token of each sentence loses what the missing heads are worth, on top of 2 nats; the last sentence more."""
    lost = [2 + sum(WORTH[h] for h in mask.heads if h not in mask.kept) for mask in masks]
    return np.outer(COUNTS * np.tile([0.9, 0.9, 1.1], 3), lost), COUNTS


def test_steps_are_tenths_rounded_up() -> None:
    assert removal_steps(144) == [0, 15, 29, 44, 58, 72, 87, 101, 116, 130]
    assert removal_steps(10) == list(range(10))
    assert removal_steps(3) == [0, 1, 2, 3]


def test_the_least_important_go_first() -> None:
    order = least_first(WORTH)
    assert [WORTH[head] for head in order] == sorted(WORTH.values())
    (curve, *_) = removal_curves(HEADS, {"worth": WORTH}, lose_the_worth, seeds=())
    assert (curve.measure, curve.ranking, curve.total) == ("worth", "once", 10)
    assert curve.kinds == "encoder-self+cross"
    expected = (2 + np.cumsum([0, *sorted(WORTH.values())])) * (0.9 * 30 + 1.1 * 30) / 60
    np.testing.assert_allclose(curve.loss, expected)


@settings(max_examples=40, deadline=None)
@given(st.permutations(range(10)))
def test_no_order_beats_the_true_one(places: list[int]) -> None:
    other = {head: float(place) for head, place in zip(HEADS, places, strict=True)}
    scores = {"worth": WORTH, "-worth": WORTH, "other": other}
    curves = removal_curves(HEADS, scores, lose_the_worth, seeds=(1,))
    rows = {(row["statistic"], row["measure"]): row["value"] for row in area_rows(curves)}
    for name, sign in (("area", 1), ("cpr", -1), ("cmd", 1)):
        worth, worst, *others = (sign * rows[name, measure] for measure in (*scores, "random"))
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
    random = [(curve.measure, curve.ranking, curve.seed) for curve in curves[2:]]
    assert random == [("random", "random", 0), ("random", "random", 1)]


def test_scoring_again_saves_the_last_of_two_heads_that_stand_in_for_each_other() -> None:
    pair = {Head("encoder-self", 0, 0), Head("encoder-self", 0, 1)}

    def worth(head: Head, kept: frozenset[Head]) -> float:
        return 20.0 * (not pair & (kept - {head})) if head in pair else 1 + 0.1 * head.head

    def lose(masks: Sequence[HeadMask]) -> tuple[np.ndarray, np.ndarray]:
        lost = []
        for mask in masks:
            others = [head for head in HEADS if head not in mask.kept | pair]
            gone = sum(worth(head, mask.kept) for head in others)
            lost.append(20.0 * (not pair & mask.kept) + gone)
        return np.outer(COUNTS, lost), COUNTS

    def score(mask: HeadMask) -> Mapping[Head, float]:
        return {head: worth(head, mask.kept) for head in mask.kept}

    first = {"ablation": score(HeadMask.full(HEADS))}
    once, again = removal_curves(HEADS, first, lose, {"ablation": score}, seeds=())
    assert (again.ranking, again.removed) == ("rescored", once.removed)
    assert once.loss[2] >= 20 > again.loss[-2]
    areas = {row["statistic"]: row["value"] for row in area_rows([once, again])}
    assert areas["area.rescored"] < areas["area"]


def test_a_measure_whose_low_values_matter_is_turned_round_when_scored_again_too() -> None:
    def score(mask: HeadMask) -> Mapping[Head, float]:
        return {head: -WORTH[head] for head in mask.kept}

    first = {"-x": score(HeadMask.full(HEADS))}
    once, again = removal_curves(HEADS, first, lose_the_worth, {"-x": score}, ())
    np.testing.assert_allclose(once.loss, again.loss)
    assert once.loss[1] == pytest.approx(3)


def test_rows_have_intervals_over_sentences_and_the_range_over_random_orders() -> None:
    curves = removal_curves(HEADS, {"worth": WORTH}, lose_the_worth, seeds=(0, 1, 2))
    rows = curve_rows(curves)
    assert len(rows) == 4 * 10
    for row in rows:
        edges = row["loss"] * 0.9 / 1.1, row["loss"] * 1.1 / 0.9
        assert edges[0] < row["low"] < row["loss"] < row["high"] < edges[1]
    assert [row["removed"] for row in rows[:10]] == list(range(10))
    assert (rows[0]["seed"], rows[-1]["seed"], rows[-1]["total"]) == (None, 2, 10)
    worth, _, _, random, *_ = area_rows(curves)
    facts = {"measure": "worth", "statistic": "area", "against": "all heads", "n": 9}
    assert worth.items() >= facts.items() and random["n"] == 3
    ends = [row[end] for row in (worth, random) for end in ("low", "value", "high")]
    assert ends == sorted({*ends})


def test_a_quality_without_sentences_has_no_interval() -> None:
    def lose(masks: Sequence[HeadMask]) -> tuple[np.ndarray, np.ndarray]:
        return np.array([[100.0 - len(mask) for mask in masks]]), np.ones(1)

    curves = removal_curves(HEADS, {"worth": WORTH}, lose, seeds=())
    rows = [*curve_rows(curves), *area_rows(curves)]
    assert all(math.isnan(row["low"]) and math.isnan(row["high"]) for row in rows)
    assert area_rows(curves)[0]["value"] == pytest.approx(5)


def test_the_areas_of_mib() -> None:
    """Closed form: a loss that falls with the share kept as √k, and a curve that is perfect from the first circuit."""
    assert circuit_sizes(1000) == [0, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000]
    assert circuit_sizes(24) == [0, 1, 2, 4, 12, 24]
    shares = np.linspace(0, 1, 10001)
    found = recovery(shares, 5 - 2 * np.sqrt(shares))
    assert found == pytest.approx({"cpr": 2 / 3, "cmd": 1 / 3}, abs=1e-4)
    half_beats_all = recovery(np.array([0, 0.5, 1]), np.array([5.0, 2.0, 3.0]))
    expected = {"cpr": 0.25 * 1.5 + 0.25 * 2.5, "cmd": 0.25 + 0.5 * 0.5}
    assert half_beats_all == pytest.approx(expected)
    flat = recovery(np.array([0, 1]), np.array([2.0, 2.0]))
    assert all(math.isnan(value) for value in flat.values())


def test_areas_of_mib_need_only_the_masks_of_their_sizes() -> None:
    curves = removal_curves(HEADS, {"worth": WORTH}, lose_the_worth, seeds=())
    rows = {row["statistic"]: row for row in area_rows(curves)}
    every = sum(WORTH.values())
    kept = {size: sum(sorted(WORTH.values())[10 - size :]) / every for size in (0, 1, 2, 5, 10)}
    areas = [(b - a) / 10 * (kept[a] + kept[b]) / 2 for a, b in ((0, 1), (1, 2), (2, 5), (5, 10))]
    assert rows["cpr"]["value"] == pytest.approx(sum(areas))
    assert rows["cmd"]["value"] == pytest.approx(1 - sum(areas))
    assert np.isnan(rows["cpr"]["low"])  # all sentences lose alike


WRONG = lambda masks: (np.zeros((2, 3)), np.ones(2))  # noqa: E731
NOTHING = lambda masks: (np.full((2, len(masks)), np.nan), np.ones(2))  # noqa: E731


@pytest.mark.parametrize(
    ("scores", "lose", "words"),
    [
        ({}, lose_the_worth, "at least one score"),
        ({"worth": WORTH, "part": {Head("cross", 0, 0): 1.0}}, lose_the_worth, "has 10, part 1"),
        ({"worth": WORTH}, WRONG, "must have the shape"),
        ({"worth": WORTH}, NOTHING, "not numbers"),
    ],
)
def test_what_cannot_be_removed_or_measured_is_reported(scores: Any, lose: Any, words: str) -> None:
    refuses(lambda: removal_curves(HEADS, scores, lose), words)
