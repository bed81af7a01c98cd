"""Which score to trust: what the terminal says of what the judge found."""

from __future__ import annotations

import pandas as pd

import headwise as hw
from headwise.core.tables import FAITHFULNESS
from headwise.importance.most_faithful import as_faithful, faithfulness_statistics, judge_lines
from models.tasks.askers import asker, embedder, lines
from refusals import refuses

KINDS = "encoder-self+cross"


def found(areas: dict[str, tuple[float, float, float]]) -> pd.DataFrame:
    rows = []
    for name, (value, low, high) in areas.items():
        rows.append((name, "all heads", KINDS, "area", value, low, high, 30))
        rows.append((name, "ablation.zero", KINDS, "spearman", 1 - value / 10, 0.1, 0.9, 30))
        rows.append((name, "ablation.zero", KINDS, "spearman.within", 0.4, 0.3, 0.5, 30))
        rows.append((name, "ablation.zero", "cross", "spearman", 0.0, 0.0, 0.1, 10))
    rows.append(("random", "all heads", KINDS, "area", 9.0, 8.0, 10.0, 5))
    rows.append(("ablation.zero", "ablation.zero", KINDS, "ceiling", 0.8, None, None, 30))
    return pd.DataFrame(rows, columns=list(FAITHFULNESS.names))


def test_the_score_whose_order_costs_least_is_trusted() -> None:
    table = found({"confidence": (3.0, 2.8, 3.2), "gradient": (1.0, 0.9, 1.1)})
    said = judge_lines(table)
    assert said[-1] == "  Trust gradient when you remove several heads."
    assert [line.split(":")[0].strip() for line in said[1:4]] == [
        "gradient",
        "confidence",
        "random orders",
    ]
    ranks = "rank 0.90 [0.10, 0.90], within layers 0.40 [0.30, 0.50]"
    assert f"    gradient: loss 1.00 [0.90, 1.10], {ranks}" in said
    assert any("random orders: loss 9.00" in line for line in said) and any(
        "0.80" in line for line in said
    )


def test_scores_that_a_text_cannot_tell_apart_are_named() -> None:
    table = found({"confidence": (1.05, 0.8, 1.3), "gradient": (1.0, 0.9, 1.1), "lrp": (5, 4, 6)})
    assert as_faithful(faithfulness_statistics(table), "gradient") == ["confidence"]
    assert judge_lines(table)[-1].endswith("too short to tell it from confidence.")


def test_a_model_without_a_loss_cannot_be_judged() -> None:
    """It was told to add ablation, which it does not have."""
    refuses(
        lambda: hw.score(embedder(), lines(12), ["confidence"], judge=True), "predicts no words"
    )


def test_a_share_of_a_layer_is_said_where_nothing_else_ranks_heads() -> None:
    scores = hw.score(embedder(), lines(12))
    assert any("not those of different layers" in line for line in scores.lines())
    scores = hw.score(asker("gpt2"), lines(12), ["dormancy", "gradient"])
    assert not any("not those of different layers" in line for line in scores.lines())
