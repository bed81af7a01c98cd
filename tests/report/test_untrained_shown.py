"""Untrained models beside scores and roles, and the map of pairs: what is drawn, and the numbers of the tables."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from headwise.report import (
    every_head,
    head_functions,
    head_pairs,
    role_charts,
    role_tables,
    score_maps,
)
from headwise.report.run_folder import FinishedRun, read_run
from report.conftest import data_of
from report.made_controls import MEASURED


@pytest.fixture(scope="module")
def run(whole: Path) -> FinishedRun:
    return read_run(whole)


def without(run: FinishedRun) -> FinishedRun:
    """The run as it is without controls and head_pairs."""
    assert run.roles is not None
    return replace(run, untrained=None, interactions=None, roles=replace(run.roles, controls=None))


def test_the_band_is_the_range_of_all_untrained_heads_of_a_layer(run: FinishedRun) -> None:
    known = score_maps.control_ranges(run)
    assert run.untrained is not None and len(known) == 3 * 4
    table = run.untrained
    rows = table[(table["layer"] == 1) & (table["measure"] == "confidence")]["value"]
    control = known["encoder-self", 1, "confidence"]
    assert len(rows) == 24 and (control.low, control.high) == (rows.min(), rows.max()) == (0.2, 0.3)
    assert control.mean == pytest.approx(rows.mean()) and control.effect(0.9) == pytest.approx(
        (0.9 - rows.mean()) / rows.std()
    )
    assert control.holds(0.2) and control.holds(0.3) and not control.holds(0.31)


def test_maps_have_a_column_of_untrained_heads_and_mark_heads_like_them(run: FinishedRun) -> None:
    (figure,) = head_functions.head_functions(run)
    for panel in range(2):
        cells = data_of(figure, panel)
        controls = {cell["layer"]: cell for cell in cells if cell.get("label") == "mean"}
        assert sorted(controls) == [0, 1, 2] and all(
            cell["column"] == 8 for cell in controls.values()
        )
    confident = [cell for cell in data_of(figure, 1) if "address" in cell]
    assert all(cell["framed"] == (0.2 <= cell["value"] <= 0.3) for cell in confident)
    assert 0 < sum(cell["framed"] for cell in confident) < 24
    (plain,) = head_functions.head_functions(without(run))
    assert not [
        cell for cell in data_of(plain) if cell.get("label") == "mean" or cell.get("framed")
    ]


def test_tables_have_a_column_of_untrained_heads(run: FinishedRun) -> None:
    table = score_maps.untrained_table(run)
    assert table is not None and run.heads is not None
    row = next(row for row in table.rows if row.code == "confidence")
    values = run.heads[run.heads["measure"] == "confidence"]["value"]
    above, below = int((values > 0.3).sum()), int((values < 0.2).sum())
    assert row.cells[4:7] == [f"{above} of 24", str(24 - above - below), str(below)]
    (effects,) = score_maps.score_maps_section(run)["effects"]
    assert sorted(effects["untrained"]) == [0, 1, 2]
    shown = every_head.every_head_section(run)
    assert shown is not None and shown["details"]["untrained"]
    first = shown["rows"][0]["scores"][0]
    assert first.untrained == "0.200 to 0.300" and first.like_untrained is False
    assert score_maps.untrained_table(without(run)) is None


def test_roles_beside_their_controls(run: FinishedRun) -> None:
    assert run.roles is not None
    table, syntax, shares = (
        role_tables.controls_table(run.roles),
        role_tables.syntax_table(run.roles),
        role_tables.share_table(run.roles),
    )
    assert table is not None and syntax is not None and shares is not None
    counts = {row.cells[0]: row.cells[1] for row in table.rows}
    assert counts == {
        "the model": "6",
        "the model, on random words": "0",
        "the model, on shuffled sentences": "0",
        "untrained, seed 1": "0",
        "untrained, seed 2": "1",
        "untrained, seed 3": "0",
    }
    found = dict(
        zip(
            syntax.columns,
            next(r for r in syntax.rows if r.code == "syntactic.obj.to-governor").cells,
            strict=True,
        )
    )
    assert (
        found["score"].startswith("0.84")
        and found["random words"] == "0.42"
        and found["shuffled"] == "0.25"
    )
    assert (
        0.1 < float(found["best untrained"].split("\n")[0]) <= 0.15
        and found["effect (h)"] == "+0.83"
    )
    last = dict(zip(shares.columns, shares.rows[-1].cells, strict=True))
    assert last["untrained encoder heads"].startswith("99")
    control_ranges = [
        row
        for row in data_of(role_charts.offsets(run.roles))
        if "which" not in row and "low" in row
    ]  # type: ignore[arg-type]
    assert len(control_ranges) == 7 and all(
        0.05 <= row["low"] <= row["high"] <= 0.15 for row in control_ranges
    )
    plain = without(run).roles
    assert plain is not None and role_tables.controls_table(plain) is None
    columns = role_tables.syntax_table(plain)
    assert columns is not None and not {"best untrained", "shuffled"} & {*columns.columns}


def test_the_map_of_pairs_is_symmetric_and_frames_the_significant_ones(run: FinishedRun) -> None:
    content = head_pairs.head_pairs_section(run)
    assert content is not None
    assert (
        content["redundant"],
        content["synergistic"],
        content["measured_count"],
        content["pair_count"],
    ) == (
        1,
        1,
        3,
        276,
    )
    cells = {(cell["address"], cell["other"]): cell for cell in data_of(content["map"])}
    assert len(cells) == 2 * 276
    assert all(cells[other, one]["value"] == cell["value"] for (one, other), cell in cells.items())
    framed = {pair for pair, cell in cells.items() if cell["significant"]}
    assert {tuple(sorted(pair)) for pair in framed} == {
        ("encoder-self/0/3", "encoder-self/0/6"),
        ("encoder-self/1/2", "encoder-self/2/0"),
    }
    assert cells["encoder-self/0/3", "encoder-self/0/6"]["measured"] == "+31.0 [+24.0, +39.0]"
    assert head_pairs.head_pairs_section(without(run)) is None


def test_the_tables_of_pairs(run: FinishedRun) -> None:
    content = head_pairs.head_pairs_section(run)
    assert content is not None
    badges = [row.badge for row in content["table"].rows]
    assert badges == ["same work", "need each other", ""] and len(MEASURED) == 3
    woken = [row.cells for row in content["backups"].rows]
    assert woken == [
        ["encoder-self/0/3", "encoder-self/0/6", "+10.0", "+41.0", "4.1"],
        ["encoder-self/0/6", "encoder-self/0/3", "+5.0", "+36.0", "7.2"],
    ]
