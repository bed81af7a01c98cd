"""Roles, attention maps and what pruning changes about roles and scores."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from headwise.heads import Head
from headwise.report import after_pruning, head_functions, role_charts, role_tables
from headwise.report.every_head import role_evidence
from headwise.report.page import figures_in
from headwise.report.run_folder import FinishedRun, Rescored, read_run
from report.conftest import data_of
from report.made_roles import SENTENCE


@pytest.fixture(scope="module")
def run(whole: Path) -> FinishedRun:
    return read_run(whole)


def head(layer: int, number: int) -> Head:
    return Head("encoder-self", layer, number)


def test_a_grid_has_every_head_and_its_roles(run: FinishedRun) -> None:
    assert run.roles is not None
    (figure,) = head_functions.head_functions(run)
    cells = [cell for cell in data_of(figure, 2) if "address" in cell]
    assert {cell["address"] for cell in cells} == {
        f"encoder-self/{i}/{h}" for i in range(3) for h in range(8)
    }
    held = run.roles.roles.groupby(["layer", "head"])["value"].apply(
        lambda v: [f"{x:.2f}" for x in sorted(v, reverse=True)]
    )
    key: Any
    for key, values in held.items():
        layer, number = key
        drawn = {
            c["role_index"]: c["score"]
            for c in cells
            if c["address"] == f"encoder-self/{layer}/{number}"
        }
        assert [drawn[index] for index in sorted(drawn)] == values[:3]


def test_shares_and_syntax_are_counted_beside_the_paper(run: FinishedRun) -> None:
    assert run.roles is not None
    shares = role_tables.share_table(run.roles)
    syntax = role_tables.syntax_table(run.roles)
    assert shares is not None and syntax is not None
    cells = {row.cells[0]: row.cells for row in shares.rows}
    assert cells["Positional"][3:] == [
        "10\u202f%\n5 of 48",
        "10\u202f%\n5 of 48",
        "8\u202f%\n4 of 48",
    ]
    assert cells["No known role"][1] == "75\u202f%\n18 of 24"
    line = next(row.cells for row in syntax.rows if row.cells[0] == "obj→verb")
    assert line[1] == "encoder-self/1/5" and line[2].startswith("0.84") and line[-1] == "yes"


def test_evidence_is_drawn_with_its_baseline(run: FinishedRun) -> None:
    assert run.roles is not None
    offsets, rare = role_charts.offsets(run.roles), role_charts.rare_tokens(run.roles)
    assert offsets is not None and rare is not None
    bars = [cell for cell in data_of(offsets) if "offset" in cell and "which" in cell]
    assert sum(cell["which"] == "highest" for cell in bars) == 1 and len(bars) == 7
    assert {cell["which"] for cell in data_of(rare) if "which" in cell} == {
        "one of the two rarest",
        "the rarest",
    }


def test_an_attention_map_has_every_weight_its_outlines_and_the_roles_own_arc(
    run: FinishedRun,
) -> None:
    assert run.roles is not None
    figure = role_charts.attention_maps(run.roles)
    assert figure is not None and len(figure.panels) == 4
    assert figure.panels[1].title == "encoder-self/1/5: obj→verb (0.84 vs 0.46); here 1 of 1"
    data, size = data_of(figure, 1), len(SENTENCE)
    cells = [row for row in data if "weight" in row]
    assert len(cells) == size * (size + 1)
    assert list(pd.DataFrame(cells).groupby("row")["weight"].sum()) == pytest.approx(
        [1.0] * size, abs=0.01
    )
    assert [
        (row["row"], row["column"]) for row in data if "bottom" in row and "weight" not in row
    ] == [(5, 2)]
    assert {row["name"] for row in data if "name" in row and row["strong"]} == {"obj"}


def test_arcs_lie_over_those_inside() -> None:
    arcs = [(2, 0, "a"), (2, 1, "b"), (2, 6, "c"), (6, 4, "d"), (5, 6, "e")]
    assert {name: level for *_, name, level in role_charts.arc_levels(arcs)} == {
        "b": 1,
        "a": 2,
        "e": 1,
        "d": 2,
        "c": 3,
    }


def test_each_role_is_kept_lost_new_or_gone_with_its_head(run: FinishedRun) -> None:
    assert run.roles is not None
    found = after_pruning.changes(run, "encoder-self")
    last = found[-1]
    assert last.kept == [(head(0, 3), "positional.-1")] and last.new == [
        (head(2, 4), "syntactic.nsubj.to-governor")
    ]
    assert {h for h, _ in last.lost} == {head(2, 0), head(2, 4)} and len(last.removed) == 4
    for change in found:
        assert len(change.kept) + len(change.lost) + len(change.removed) == len(run.roles.roles)
    table, changed, best = (
        make(run, "encoder-self")
        for make in (
            after_pruning.role_changes_table,
            after_pruning.changed_table,
            after_pruning.best_table,
        )
    )
    assert table is not None and changed is not None and best is not None
    assert [row.cells[1:8] for row in table.rows] == [
        ["17", "11", "8", "3", "0", "0", "–"],
        ["9", "11", "5", "6", "1", "0", "nsubj→verb"],
        ["4", "7", "1", "6", "1", "4", "nsubj→verb"],
    ]
    lost = next(row.cells for row in changed.rows if row.cells[2] == "obj→verb")
    assert lost[3:5] == ["0.84 [0.81, 0.87]", "0.32 [0.29, 0.35]"]
    line = next(row.cells for row in best.rows if row.cells[0] == "nsubj→verb")
    held = [("0.70", "2/0"), ("0.66", "2/0"), ("0.64", "2/4"), ("0.68", "2/4")]
    assert line[1:] == [f"{score} ✓\nencoder-self/{at}" for score, at in held]


def test_squares_and_cells_are_the_heads_and_their_roles(run: FinishedRun) -> None:
    content = after_pruning.after_pruning_section(run)
    assert content is not None
    left, each = content["parts"][0]["figures"]
    squares = [row for row in data_of(left) if "category" in row]
    for change in after_pruning.changes(run, "encoder-self"):
        mine = [row for row in squares if row["model"] == change.model["label"]]
        assert {row["address"] for row in mine} == {str(h) for h in change.heads}
        assert sum(row["right"] - row["left"] for row in mine) == pytest.approx(
            0.92 * len(change.heads), abs=0.01
        )
    cells = {(row["role"], row["model"].split("|")[0]): row for row in data_of(each)}
    moved = [cells["2/4  nsubj→verb", f"λ\u00a0=\u00a0{x}"] for x in ("0.02", "0.05", "0.2")]
    assert [(cell["held"], cell["became"]) for cell in moved] == [
        (False, "no role"),
        (True, "new"),
        (True, "new"),
    ]
    gone = cells["1/5  obj→verb", "λ\u00a0=\u00a00.2"]
    assert (gone["there"], gone["held"], gone["became"]) == (False, False, "head removed")


def scored(run: FinishedRun, before: list[float], after: list[float], measure: str) -> FinishedRun:
    """Heads of one layer with a score before and after."""
    columns = ["kind", "layer", "head", "measure", "value", "low", "high", "n", "baseline"]
    rows = [
        [("encoder-self", 0, h, measure, v, v, v, 9, None) for h, v in enumerate(values)]
        for values in (before, after)
    ]
    tables = [pd.DataFrame(part, columns=columns) for part in rows]
    return replace(run, heads=tables[0], rescored={"lambda-0.02": Rescored(tables[1], None)})


def test_scores_before_and_after_are_ranked_over_the_heads_that_stay(run: FinishedRun) -> None:
    ((_, _, found),) = after_pruning.scores_before_and_after(
        scored(run, [1, 2, 3, 4, 9, 8], [10, 30, 20, 40], "confidence")
    )
    assert after_pruning.rank(found) == pytest.approx(0.8)  # 1 − 6·2/(4·15)
    ((_, _, few),) = after_pruning.scores_before_and_after(
        scored(run, [1, 2, 3], [1, 2, 3], "confidence")
    )
    assert math.isnan(after_pruning.rank(few))
    ((_, _, lrp),) = after_pruning.scores_before_and_after(
        scored(run, [0.1, 0.3, 0.2, 0.2, 0.2], [0.5, 0.25, 0.125, 0.125], "lrp.ding")
    )
    assert lrp["before"].tolist() == pytest.approx(
        [0.125, 0.375, 0.25, 0.25]
    )  # the share among the heads that stay
    assert after_pruning.scores_before_and_after(scored(run, [0.4, 0.6], [1.0], "lrp.ding")) == []
    figure, table = after_pruning.scores_figure(run), after_pruning.rank_table(run)
    assert figure is not None and "0.05" in figure.title and len(figure.panels) == 3
    assert (
        table is not None
        and table.rows[1].badge == "chosen"
        and table.rows[1].cells[2].endswith("n = 9")
    )


def test_without_roles_or_rescored_models_the_section_is_left_out_or_says_so(
    run: FinishedRun,
) -> None:
    assert run.roles is not None
    assert (
        after_pruning.after_pruning_section(replace(run, rescored={})) is None
        and role_tables.role_tables_section(replace(run, roles=None)) is None
    )
    none = replace(run.roles, roles=run.roles.roles.iloc[:0])
    content = after_pruning.after_pruning_section(replace(run, roles=none))
    assert content is not None and not content["parts"][0]["had_roles"]
    assert figures_in(role_tables.role_tables_section(replace(run, roles=none)))


CAUSAL_ROWS = [
    *[("encoder-self", 2, 0, "coreference", "logit difference of IO and S", 4.0, 1.5, 1.0, 2.0)],
    *[
        (
            "encoder-self",
            1,
            5,
            "syntactic.obj.to-governor",
            "loss of the answer",
            1.0,
            3.0,
            2.0,
            4.0,
        )
    ],
]


def with_causal(run: FinishedRun) -> FinishedRun:
    """The run, two of whose roles were tested with the head off; only the second was confirmed."""
    assert run.roles is not None
    names = ["kind", "layer", "head", "measure", "behaviour", "with_all", "value", "low", "high"]
    table = pd.DataFrame(CAUSAL_ROWS, columns=names)
    table = table.assign(others=[0.25, math.nan], confirmed=[False, True])
    return replace(run, roles=replace(run.roles, causal=table))


def test_what_a_role_does_with_its_head_off_is_in_the_table_the_map_and_the_card(
    run: FinishedRun,
) -> None:
    tested = with_causal(run)
    assert tested.roles is not None and run.roles is not None
    shown = role_tables.causal_table(tested.roles)
    assert shown is not None
    lost, answer = shown.rows
    assert lost.cells[3:] == ["4.00", "2.50\n−1.50 [−2.00, −1.00]", "3.75\n−0.25"]
    assert answer.cells[3:] == ["1.00", "4.00\n+3.00 [+2.00, +4.00]", "–"]
    assert [row.badge for row in shown.rows] == ["", "confirmed"]

    cells = data_of(head_functions.head_functions(tested)[0], 2)
    marked = [(cell["address"], cell["role"]) for cell in cells if "✓" in cell.get("score", "")]
    assert marked == [("encoder-self/1/5", "obj→")]

    evidence = role_evidence(tested)
    (tested_role,) = [text for text in evidence[head(1, 5)] if "obj→verb" in text]
    assert tested_role.endswith("from 1.00 to 4.00 nats a token (+3.00 [+2.00, +4.00])")
    assert sum("switching it off" in text for text in evidence[head(2, 0)]) == 1

    assert role_tables.causal_table(run.roles) is None
    assert not any(
        "✓" in cell.get("score", "") for cell in data_of(head_functions.head_functions(run)[0], 2)
    )
