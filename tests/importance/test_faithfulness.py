"""The judge: its correlations against scipy, its statements on scores of which the truth is known."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import scipy.stats
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from headwise.core.heads import Head, HeadMap
from headwise.importance import faithfulness as module
from headwise.importance import ranks
from headwise.importance.faithfulness import agreement, kendall, likeness, precision, spearman
from headwise.models.evaluation.sums import SentenceSums, add_all, head_values
from refusals import refuses

HEADS = HeadMap({"encoder-self": (6, 6), "cross": (4, 4, 4)})
WORTH = np.random.default_rng(7).gamma(1.0, 1.0, HEADS.total)


def rows_of(heads: int) -> st.SearchStrategy[list[list[int]]]:
    return st.lists(
        st.lists(st.integers(0, 4), min_size=heads, max_size=heads), min_size=2, max_size=2
    )


ROWS = st.integers(2, 12).flatmap(rows_of)


def measured(
    worth: np.ndarray,
    sentences: int = 120,
    noise: float = 0.5,
    seed: int = 0,
    heads: HeadMap = HEADS,
) -> SentenceSums:
    """Every head is worth so much in each of the sentences, of 5 to 19 tokens, and some noise."""
    random, found, start = np.random.default_rng(seed), SentenceSums(heads), 0
    counts = random.integers(5, 20, sentences)
    for site in heads.sites:
        mine = worth[start : (start := start + heads.count(site))]
        sums = counts[:, None] * (mine + noise * random.standard_normal((sentences, len(mine))))
        add_all([(found, site, torch.from_numpy(sums), torch.from_numpy(counts))])
    return found


def by_name(
    rows: list[dict[str, Any]], measure: str, kinds: str = "encoder-self+cross"
) -> dict[str, dict[str, Any]]:
    of_both = (row for row in rows if (row["measure"], row["kinds"]) == (measure, kinds))
    return {row["statistic"]: row for row in of_both}


@settings(max_examples=80, deadline=None)
@given(ROWS)
def test_correlations_are_scipys(pair: list[list[int]]) -> None:
    one, other = (np.array([row, row[::-1]], float) for row in pair)
    theirs = scipy.stats.spearmanr, scipy.stats.kendalltau
    for ours, expected in zip((spearman, kendall), theirs, strict=True):
        for row, found in enumerate(ours(one, other)):
            if len(set(one[row])) > 1 and len(set(other[row])) > 1:
                assert found == pytest.approx(expected(one[row], other[row]).statistic)
            else:
                assert np.isnan(found)


def test_many_rows_are_taken_in_parts_and_many_heads_row_by_row(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    one, other = np.random.default_rng(1).integers(0, 7, (2, 50, 9)).astype(float)
    whole = kendall(one, other)
    monkeypatch.setattr(module, "PAIRS_AT_ONCE", 100)
    assert np.array_equal(kendall(one, other), whole)
    monkeypatch.setattr(module, "MANY_HEADS", 9)
    np.testing.assert_allclose(kendall(one, other), whole)


@settings(max_examples=80, deadline=None)
@given(ROWS, st.integers(1, 12))
def test_precision_is_the_mean_over_ways_to_break_ties(pair: list[list[int]], count: int) -> None:
    score, truth = (np.array(row, float) for row in pair)
    count = min(count, len(score))
    random, shares = np.random.default_rng(0), []
    for _ in range(600):
        one, other = (
            {*np.lexsort((random.random(len(values)), -values))[:count].tolist()}
            for values in (score, truth)
        )
        shares.append(len(one & other) / count)
    assert precision(score[None], truth[None], count)[0] == pytest.approx(np.mean(shares), abs=0.09)


def test_a_constant_score_finds_as_many_heads_as_chance() -> None:
    assert precision(np.zeros((1, 20)), np.arange(20.0)[None], 5)[0] == pytest.approx(5 / 20)


def test_a_good_score_a_useless_one_and_one_that_is_upside_down() -> None:
    same, down = measured(WORTH, seed=1), measured(-WORTH, seed=1)
    mixed = measured(np.random.default_rng(3).permutation(WORTH), seed=2)
    scores = {"good": same, "-good": same, "-down": down, "useless": mixed}
    rows = agreement(scores, measured(WORTH, seed=3), seed=5)
    good, against, down, useless = (by_name(rows, name) for name in scores)
    assert good["spearman"]["value"] > 0.9
    assert good["precision@25%"]["value"] >= 0.6
    assert against["spearman"]["value"] == pytest.approx(-good["spearman"]["value"])
    assert abs(useless["spearman"]["value"]) < 0.5
    for name in ("spearman", "kendall", "spearman.within", "kendall.within"):
        row = good[name]
        assert -1 <= row["low"] <= row["value"] <= row["high"] <= 1
        assert (row["against"], row["n"]) == ("ablation.zero", 24)
    assert down["spearman"]["value"] > 0.9


def test_within_layers_is_the_mean_over_layers() -> None:
    score, truth = measured(WORTH, seed=1, noise=1), measured(WORTH, seed=3, noise=1)
    rows = agreement({"score": score}, truth)
    one, other = head_values(score), head_values(truth)

    def compared(statistic: Any, *where: Any) -> float:
        heads = [head for head in HEADS if head[: len(where)] == where]
        return float(statistic([one[h] for h in heads], [other[h] for h in heads]).statistic)

    for kind in ("encoder-self", "cross"):
        found = by_name(rows, "score", kind)
        of_kind = [site for site in HEADS.sites if site.kind == kind]
        within = [compared(scipy.stats.spearmanr, *site) for site in of_kind]
        assert found["spearman.within"]["value"] == pytest.approx(np.mean(within))
        assert found["kendall"]["value"] == pytest.approx(compared(scipy.stats.kendalltau, kind))


def test_the_ceiling_is_what_the_same_ablation_on_another_text_reaches() -> None:
    heads = HeadMap({"encoder-self": (16,) * 6})
    worth = np.random.default_rng(0).standard_normal(heads.total)
    options = {"sentences": 60, "noise": 5.0, "heads": heads}

    def scored(seed: int) -> np.ndarray:
        return np.array([[*head_values(measured(worth, seed=seed, **options)).values()]])

    again = [spearman(scored(seed), scored(seed + 100)) for seed in range(30)]
    rows = agreement({}, measured(worth, seed=200, **options))
    ceiling = by_name(rows, "ablation.zero", "encoder-self")
    assert ceiling["ceiling"]["value"] == pytest.approx(np.mean(again), abs=0.08)
    assert ceiling["ceiling.half"]["value"] < ceiling["ceiling"]["value"] - 0.05
    assert ceiling["ceiling.within"]["value"] == pytest.approx(ceiling["ceiling"]["value"], abs=0.1)
    assert math.isnan(ceiling["ceiling"]["low"])


@pytest.mark.parametrize(
    ("sentences", "worth", "texts"),
    [(10, "alike", 100), (30, "no relation", 60), (200, "alike", 100)],
)
def test_intervals_hold_what_other_texts_give(
    sentences: int, worth: str, texts: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """95 % of them hold the median over texts of this length. Errors may be 1.2 times as frequent, and two standard
    errors more are no surprise. Before: 10 % at 10 sentences, and 13 % where a score is nothing but noise."""
    monkeypatch.setattr(module, "kendall", lambda one, other: np.zeros(len(one)))  # is slow
    monkeypatch.setattr(module, "TOP_SHARES", {})
    monkeypatch.setattr(ranks, "RANDOM_HALVES", 2)
    heads = HeadMap({"encoder-self": (12,)})
    true = np.random.default_rng(0).gamma(1.0, 1.0, heads.total)
    scored = np.ones(heads.total) if worth == "alike" else true[::-1]
    found = []
    for text in range(texts):
        score = measured(scored, sentences, 3.0, 2 * text, heads)
        truth = measured(true, sentences, 3.0, 2 * text + 1, heads)
        rows = by_name(agreement({"s": score}, truth, seed=text), "s", "encoder-self")
        found.append([rows["spearman"][name] for name in ("value", "low", "high")])
    values, lows, highs = np.array(found).T
    expected = np.median(values)
    outside = ((expected < lows) | (expected > highs)).mean()
    assert outside <= 0.06 + 2 * (0.06 / texts) ** 0.5
    assert (highs - lows).mean() < 8 * values.std()


def test_stability_tells_a_noisy_score_from_a_steady_one() -> None:
    scores = {"steady": measured(WORTH, noise=0.1), "noisy": measured(WORTH, noise=8)}
    rows = agreement(scores, measured(WORTH, seed=1))
    assert by_name(rows, "steady")["stability"]["value"] > 0.97
    assert by_name(rows, "noisy")["stability"]["value"] < 0.8
    assert by_name(rows, "noisy")["stability"]["against"] == "noisy"


def test_the_same_seed_gives_the_same_rows() -> None:
    scores, truth = {"s": measured(WORTH, seed=1)}, measured(WORTH, seed=3)
    assert repr(agreement(scores, truth, seed=1)) == repr(agreement(scores, truth, seed=1))
    assert repr(agreement(scores, truth, seed=1)) != repr(agreement(scores, truth, seed=2))


def test_a_layer_of_one_head_is_left_out_of_the_layers() -> None:
    heads = HeadMap({"encoder-self": (1, 5), "cross": (1, 1)})
    one, other = (measured(np.arange(8.0), heads=heads, seed=n, noise=0.01) for n in (0, 1))
    rows = agreement({"s": one}, other)
    assert by_name(rows, "s", "encoder-self")["spearman.within"]["value"] == pytest.approx(1)
    assert math.isnan(by_name(rows, "s", "cross")["spearman.within"]["value"])
    assert by_name(rows, "s", "cross")["spearman"]["value"] == pytest.approx(1)


def test_a_constant_score_has_no_correlation() -> None:
    rows = by_name(agreement({"flat": measured(np.ones(24), noise=0)}, measured(WORTH)), "flat")
    assert all(math.isnan(rows["spearman"][column]) for column in ("value", "low", "high"))
    assert rows["precision@50%"]["value"] == pytest.approx(0.5)


def test_what_cannot_be_judged_is_reported() -> None:
    truth, silent = measured(WORTH), measured(WORTH, sentences=3)
    for site in HEADS.sites:
        silent.parts[site] = [np.column_stack([silent.whole(site)[0], np.zeros(3)])]
    part = measured(WORTH, heads=HeadMap({"encoder-self": (6,), "cross": (4, 4, 4)}))
    words = "6 heads of encoder-self layer 1, but has none"
    refuses(lambda: agreement({"part": part}, truth), words)
    nothing = "No token of the text counts for"
    words = f"{nothing} 'none' in encoder-self layer 0"
    refuses(lambda: agreement({"none": SentenceSums(HEADS)}, truth), words)
    refuses(lambda: agreement({"silent": silent}, truth), f"{nothing} 'silent'")
    refuses(
        lambda: likeness({Head("cross", 0, 0): 1.0}, {}, ("lrp", "confidence")),
        "score the same heads",
    )


def test_a_single_sentence_has_a_correlation_and_no_interval() -> None:
    rows = by_name(agreement({"s": measured(WORTH, sentences=1)}, measured(WORTH)), "s")
    assert rows["spearman"]["value"] > 0.5
    ends = ("spearman", "low"), ("kendall", "high"), ("stability", "value")
    assert all(math.isnan(rows[name][end]) for name, end in ends)


def test_a_score_that_tells_of_one_kind_is_judged_on_it() -> None:
    some = HEADS.only(["cross"])
    scores = {"part": measured(WORTH[12:], heads=some), "whole": measured(WORTH)}
    rows = agreement(scores, measured(WORTH, seed=1))
    assert {row["kinds"] for row in rows if row["measure"] == "part"} == {"cross"}
    assert len({row["kinds"] for row in rows if row["measure"] == "whole"}) == 3
    assert by_name(rows, "part", "cross")["spearman"]["value"] > 0.9


def test_values_in_another_scale_are_judged_in_it() -> None:
    def most_is_one(values: np.ndarray) -> np.ndarray:
        scaled: np.ndarray = values / values.max(-1, keepdims=True)
        return scaled

    plain, scaled = measured(WORTH), measured(WORTH)
    scaled.scale = most_is_one
    rows = agreement({"plain": plain, "scaled": scaled}, measured(WORTH, seed=1))
    one, other = by_name(rows, "plain"), by_name(rows, "scaled")
    assert one["spearman.within"]["value"] == pytest.approx(other["spearman.within"]["value"])
    assert one["spearman"]["value"] > other["spearman"]["value"] + 0.01
    assert max(head_values(scaled).values()) == 1


def test_a_layer_whose_heads_are_all_removed_is_no_obstacle() -> None:
    heads = HeadMap({"encoder-self": (5, 0, 5)})
    worth = np.arange(10.0)
    rows = agreement({"s": measured(worth, heads=heads)}, measured(worth, heads=heads, seed=1))
    assert by_name(rows, "s", "encoder-self")["spearman"]["n"] == 10


def test_a_truth_of_some_kinds_judges_those() -> None:
    some = HEADS.only(["cross"])
    rows = agreement({"all": measured(WORTH)}, measured(WORTH[12:], heads=some))
    assert {row["kinds"] for row in rows} == {"cross"}
    assert by_name(rows, "all", "cross")["spearman"]["value"] > 0.9


def test_two_scores_that_differ_in_one_head_are_less_alike_in_its_layer() -> None:
    values = {head: float(head.head) for head in HEADS}
    relevant = {**values, Head("encoder-self", 0, 0): 10.0}
    found = likeness(relevant, values, ("lrp", "confidence"))
    rows = by_name(found, "lrp", "cross")
    assert rows["spearman"]["value"] == rows["spearman.within"]["value"] == pytest.approx(1)
    assert by_name(found, "lrp", "encoder-self")["spearman.within"]["value"] < 1


def test_values_are_those_of_the_table() -> None:
    rows = measured(WORTH).rows("confidence")
    table = {Head(row["kind"], row["layer"], row["head"]): row["value"] for row in rows}
    assert head_values(measured(WORTH)) == pytest.approx(table)
