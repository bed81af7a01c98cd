"""Roles, attention maps and what pruning changes about roles and scores."""

from __future__ import annotations

import math
from dataclasses import replace

import pandas as pd
import pytest

from faces.report.conftest import data_of
from faces.report.made import causal, emptied
from faces.report.made_roles import SENTENCE
from headwise.core.heads import Head
from headwise.core.tables import TESTS
from headwise.faces.report import after_pruning, head_functions, role_charts, role_tables
from headwise.faces.report.every_head import role_evidence
from headwise.faces.report.format import NONE
from headwise.faces.report.run_folder import Rescored, RunContents
from headwise.roles import role


def head(layer: int, number: int) -> Head:
    return Head("encoder-self", layer, number)


def test_a_grid_has_every_head_and_its_roles(run: RunContents) -> None:
    (figure,) = head_functions.head_functions(run)
    cells = [cell for cell in data_of(figure, 2) if "address" in cell]
    every = {str(head(layer, number)) for layer in range(3) for number in range(8)}
    assert {cell["address"] for cell in cells} == every
    for (layer, number), roles in run.roles.roles.groupby(["layer", "head"]):
        best = [f"{value:.2f}" for value in sorted(roles["value"], reverse=True)]
        (drawn,) = (cell for cell in cells if cell["address"] == str(head(layer, number)))
        lines = [line for at in range(3) if (line := drawn[f"role-{at}"])]
        assert [line.split()[1] for line in lines] == best[:3]


def test_a_sort_of_role_has_its_depth(run: RunContents) -> None:
    roles = run.roles.roles
    categories = [role.category(measure) for measure in roles["measure"]]
    table = role_tables.share_table(run.roles)
    assert table is not None
    at = table.columns.index("layers of encoder heads")
    several = 0
    for row in table.rows[:-1]:
        mine = roles[[one.capitalize() == row.cells[0] for one in categories]]
        layers = [int(layer) for layer, _ in {*zip(mine["layer"], mine["head"], strict=True)}]
        assert row.cells[at].startswith(str(min(layers)))
        if len(set(layers)) > 1:
            several += 1
            mean = sum(layers) / len(layers)
            assert row.cells[at] == f"{min(layers)} to {max(layers)}\nmean {mean:.1f}"
    assert several and table.rows[-1].cells[at] == NONE


def test_the_first_layer_is_where_relevance_and_confidence_may_part(run: RunContents) -> None:
    heads = run.heads[(run.heads["kind"] == "encoder-self") & (run.heads["layer"] == 0)]
    by = heads.pivot_table(index="head", columns="measure", values="value")
    top = max(range(8), key=lambda number: by["lrp.ding"][number])
    place = sorted(by["confidence"], reverse=True).index(by["confidence"][top]) + 1
    said = head_functions.first_layer(run)
    assert f"encoder-self/0/{top}, is number {place} of 8" in said
    for name in ("confidence", "lrp"):
        fewer = run.heads[~run.heads["measure"].str.startswith(name)]
        assert head_functions.first_layer(replace(run, heads=fewer)) == ""


def test_heads_with_a_function_against_the_others_of_their_layer(run: RunContents) -> None:
    """By counting pairs one by one."""
    labels = run.roles.labels[run.roles.labels["kind"] == "encoder-self"]
    rows = run.heads[(run.heads["kind"] == "encoder-self") & (run.heads["measure"] == "confidence")]
    values = rows.set_index(["layer", "head"])["value"]
    won, pairs, named = 0.0, 0, 0
    for one in labels.itertuples():
        if str(one.label).startswith(("no known role", "sink")):
            continue
        named += 1
        for other in labels[labels["layer"] == one.layer].itertuples():
            if str(other.label).startswith(("no known role", "sink")):
                mine, theirs = values[one.layer, one.head], values[other.layer, other.head]
                won += 1.0 if mine > theirs else 0.5 * (mine == theirs)
                pairs += 1
    said = head_functions.within_layers(run)
    assert pairs and f"confidence in {won:g} of {pairs} pairs" in said
    assert f"Of {named} heads with a function" in said
    assert head_functions.within_layers(replace(run, heads=run.heads[:0])) == ""


def test_the_best_head_of_each_role_stands_against_its_baseline(run: RunContents) -> None:
    found = role_tables.best_heads_table(run.roles)
    assert found is not None
    rows = {row.code: row.cells for row in found.rows}
    assert rows["positional.-1"][:4] == [
        "positional −1",
        "encoder-self/0/3",
        "0.97\n[0.94, 1.00]",
        "0.08",
    ]
    badges = {row.code: row.badge for row in found.rows}
    assert (badges["syntactic.obj.to-dependent"], badges["coreference"]) == ("", "role")


def test_an_attention_map_has_every_weight_its_outlines_and_the_roles_own_arc(
    run: RunContents,
) -> None:
    figure = role_charts.attention_maps(run.roles)
    assert figure is not None and len(figure.panels) == 4
    data, size = data_of(figure, 1), len(SENTENCE)
    cells = [row for row in data if "weight" in row]
    assert len(cells) == size * (size + 1)
    sums = pd.DataFrame(cells).groupby("row")["weight"].sum()
    assert list(sums) == pytest.approx([1.0] * size, abs=0.01)
    outlined = [row for row in data if "bottom" in row and "weight" not in row]
    assert [(row["row"], row["column"]) for row in outlined] == [(5, 2)]
    assert {row["name"] for row in data if "name" in row and row["strong"]} == {"obj"}


def test_arcs_lie_over_those_inside() -> None:
    arcs = [(2, 0, "a"), (2, 1, "b"), (2, 6, "c"), (6, 4, "d"), (5, 6, "e")]
    levels = {name: level for *_, name, level in role_charts.arc_levels(arcs)}
    assert levels == {"b": 1, "a": 2, "e": 1, "d": 2, "c": 3}


def test_each_role_is_kept_lost_new_or_gone_with_its_head(run: RunContents) -> None:
    found = after_pruning.changes(run, "encoder-self")
    last = found[-1]
    assert last.kept == [(head(0, 3), "positional.-1")]
    assert last.new == [(head(2, 4), "syntactic.nsubj.to-governor")]
    assert {h for h, _ in last.lost} == {head(2, 0), head(2, 4)} and len(last.removed) == 4
    for change in found:
        assert len(change.kept) + len(change.lost) + len(change.removed) == len(run.roles.roles)


def test_squares_are_the_heads_and_the_table_has_what_changed(run: RunContents) -> None:
    content = after_pruning.after_pruning_section(run)
    assert content is not None
    (part,) = content["parts"]
    drawn = data_of(part["figure"])
    squares = [row for row in drawn if "category" in row and "count" not in row]
    for change in after_pruning.changes(run, "encoder-self"):
        mine = [row for row in squares if row["model"] == change.model["label"]]
        assert {row["address"] for row in mine} == {str(h) for h in change.heads}
        width = sum(row["right"] - row["left"] for row in mine)
        assert width == pytest.approx(0.92 * len(change.heads), abs=0.01)
    now = {(row.cells[0][-4:], *row.cells[1:3]): row.cells[-1] for row in part["changed"].rows}
    moved = ("encoder-self/2/4", "nsubj→verb")
    assert [now.get((penalty, *moved)) for penalty in ("0.02", "0.05", "\u00a00.2")] == [
        None,
        "new",
        "new",
    ]
    assert now["0.05", "encoder-self/2/0", "nsubj→verb"] == "lost"


def scored(run: RunContents, before: list[float], after: list[float], measure: str) -> RunContents:
    """Heads of one layer with a score before and after."""
    tables = []
    for values in (before, after):
        rows = [("encoder-self", 0, h, measure, v, v, v, 9, None, 9) for h, v in enumerate(values)]
        tables.append(pd.DataFrame(rows, columns=list(TESTS.names)))
    return replace(run, heads=tables[0], rescored={"lambda-0.02": Rescored(tables[1], run.roles)})


def test_scores_before_and_after_are_ranked_over_the_heads_that_stay(run: RunContents) -> None:
    def found(before: list[float], after: list[float], measure: str) -> pd.DataFrame:
        ((_, _, table),) = after_pruning.scores_before_and_after(
            scored(run, before, after, measure)
        )
        return table

    ranked = found([1, 2, 3, 4, 9, 8], [10, 30, 20, 40], "confidence")
    assert after_pruning.rank(ranked) == pytest.approx(0.8)  # 1 − 6·2/(4·15)
    assert math.isnan(after_pruning.rank(found([1, 2, 3], [1, 2, 3], "confidence")))
    lrp = found([0.1, 0.3, 0.2, 0.2, 0.2], [0.5, 0.25, 0.125, 0.125], "lrp.ding")
    # the share among the heads that stay
    assert lrp["before"].tolist() == pytest.approx([0.125, 0.375, 0.25, 0.25])
    assert after_pruning.scores_before_and_after(scored(run, [0.4, 0.6], [1.0], "lrp.ding")) == []


def test_without_roles_or_rescored_models_the_section_is_left_out_or_says_so(
    run: RunContents,
) -> None:
    assert after_pruning.after_pruning_section(replace(run, rescored={})) is None
    assert role_tables.role_tables_section(emptied(run, "roles")) is None
    none = replace(run, roles=replace(run.roles, roles=run.roles.roles.iloc[:0]))
    content = after_pruning.after_pruning_section(none)
    assert content is not None and not content["parts"][0]["had_roles"]
    assert role_tables.role_tables_section(none) is not None


def test_what_a_role_does_with_its_head_off_is_in_the_map_and_the_card(run: RunContents) -> None:
    def marked(run: RunContents) -> list[tuple[str, str]]:
        cells = [
            row for row in data_of(head_functions.head_functions(run)[0], 2) if "role-0" in row
        ]
        lines = [(cell["address"], cell[f"role-{at}"]) for cell in cells for at in range(3)]
        return [(address, line.split()[0]) for address, line in lines if "✓" in line]

    tested = replace(run, roles=replace(run.roles, causal=causal()))
    assert marked(tested) == [("encoder-self/1/5", "obj→")] and marked(run) == []
    evidence = role_evidence(tested)
    (confirmed,) = [text for text in evidence[head(1, 5)] if "obj→verb" in text]
    assert confirmed.endswith("from 1.00 to 4.00 nats per token (+3.00 [+2.00, +4.00])")
    assert sum("switching it off" in text for text in evidence[head(2, 0)]) == 1
    assert role_tables.causal_table(run.roles) is None
