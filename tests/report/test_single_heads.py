"""One head off and one head alone: the numbers, their signs, and what is counted."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

from headwise.report.page import draw, render
from headwise.report.run import Run, read_run
from headwise.report.single_heads import one_head_tables, single_heads
from report.conftest import make_run

COLUMNS = ["kind", "layer", "head", "measure", "value", "low", "high", "n", "baseline"]
BLEU = [(0.53, 0.2, 0.9), (-0.24, -0.4, -0.1), (0.1, -0.1, 0.3), (0.0, 0.0, 0.0)]
ALONE = {(0, 0): (0.2, 0.1, 0.3), (0, 1): (0.004, -0.01, 0.02), (1, 0): (0.51, 0.4, 0.6), (1, 1): (0.9, 0.7, 1.1)}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return read_run(make_run(tmp_path_factory.mktemp("study")))


def bleu_rows() -> list[tuple[object, ...]]:
    return [("encoder-self", 0, h, "ablation.bleu", *cell, 500, None) for h, cell in enumerate(BLEU)]


def alone_rows() -> list[tuple[object, ...]]:
    rows = [("cross", *key, "ablation.all-but-one", *cell, 5000, None) for key, cell in ALONE.items()]
    return [*rows, ("decoder-self", 0, 0, "ablation.all-but-one", 0.0, 0.0, 0.0, 5000, None)]  # a layer's only head


def scored(run: Run, rows: list[tuple[object, ...]]) -> Run:
    return replace(run, heads=pd.DataFrame(rows, columns=COLUMNS))


def test_bleu_that_is_lost_is_a_change_below_zero(run: Run) -> None:
    (table,) = one_head_tables(scored(run, bleu_rows()), "ablation.bleu")
    found = table.layers[0][1]
    assert [found[h].text for h in range(4)] == ["−0.53", "+0.24", "−0.10", "0.00"]
    assert [found[h].sure for h in range(4)] == [True, True, False, False]
    assert [found[h].gain for h in range(4)] == [False, True, False, False]
    assert found[0].told == "encoder-self/0/0: −0.53 [−0.90, −0.20]"
    told = single_heads(scored(run, bleu_rows()))
    assert told is not None and told["unit"] == "Δ BLEU" and told["alone"] is None
    assert "2 of 4 heads change BLEU beyond chance, 1 of them for the better" in told["told"][0]
    assert "from −0.53 to +0.24" in told["told"][0]


def test_bleu_stands_before_the_loss_and_the_loss_says_what_it_is(run: Run) -> None:
    loss = [("encoder-self", 0, 0, "ablation.zero", 0.0477, 0.0411, 0.0546, 900, None),
            ("encoder-self", 0, 1, "ablation.zero", -0.0017, -0.0034, -0.0001, 900, None)]  # fmt: skip
    told = single_heads(scored(run, [*bleu_rows(), *loss]))
    assert told is not None and told["unit"] == "Δ BLEU"
    told = single_heads(scored(run, list(loss)))
    assert told is not None and "thousandths of a nat" in told["unit"]
    assert "which this run did not measure (ablation.bleu)" in told["read"]
    found = told["tables"][0].layers[0][1]
    assert [(found[h].text, found[h].sure, found[h].gain) for h in (0, 1)] == [
        ("+47.7", True, False),
        ("−1.7", True, True),
    ]


def test_the_best_lone_head_of_each_layer(run: Run) -> None:
    told = single_heads(scored(run, alone_rows()))
    assert told is not None and told["tables"] == []
    assert told["alone"].columns == ["layer", "cross-attention"]
    assert [line.cells for line in told["alone"].lines] == [
        ["0", "+0.004 [−0.010, +0.020]\nh1"],
        ["1", "+0.510 [+0.400, +0.600]\nh0"],
    ]
    assert "In 1 of 2 layers one head alone loses nothing beyond chance (cross-attention 0)" in told["alone_told"]
    assert "Most is lost in cross-attention 1: +0.510" in told["alone_told"]


def test_without_the_measures_there_is_nothing(run: Run) -> None:
    assert single_heads(replace(run, heads=None)) is None
    assert single_heads(scored(run, [("cross", 0, 0, "confidence", 0.5, 0.4, 0.6, 9, None)])) is None


def test_heads_without_an_interval_are_never_sure(run: Run) -> None:
    rows = [("cross", 0, h, measure, 0.5, math.nan, math.nan, 9, None)
            for h in (0, 1) for measure in ("ablation.zero", "ablation.all-but-one")]  # fmt: skip
    told = single_heads(scored(run, rows))
    assert told is not None
    assert not any(effect.sure for effect in told["tables"][0].effects)
    assert told["alone"].lines[0].cells == ["0", "+0.500\nh0"]
    assert "In none of 1 layers" in told["alone_told"]


def test_the_page_has_both_tables(run: Run, tmp_path: Path) -> None:
    whole = scored(run, [*bleu_rows(), *alone_rows()])
    page = render(whole, {**draw(whole)})
    assert 'class="sure gain" title="encoder-self/0/1: +0.24 [+0.10, +0.40]">+0.24</td>' in page
    assert '<td title="encoder-self/0/2: −0.10 [−0.30, +0.10]">−0.10</td>' in page
    assert 'aria-label="One head alone in its layer"' in page
