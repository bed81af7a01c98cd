"""How much heads matter, which score to believe, and untrained models and pairs beside them: what is drawn."""

from __future__ import annotations

import math
from dataclasses import replace

import pandas as pd
import pytest

from faces.report.conftest import data_of
from faces.report.made import emptied
from headwise.core.tables import TESTS
from headwise.faces.report import (
    every_head,
    head_functions,
    head_pairs,
    kept_heads,
    role_tables,
    score_faithfulness,
    score_maps,
    summary,
)
from headwise.faces.report.run_folder import RunContents
from headwise.importance.most_faithful import faithfulness_statistics, most_faithful


def test_the_head_map_has_every_head_with_its_status_and_most_faithful_score(
    run: RunContents,
) -> None:
    assert run.chosen is not None
    assert kept_heads.map_measure(run) == "gradient"  # the most faithful one of this run
    cells = [cell for cell in data_of(kept_heads.head_map(run, run.chosen)) if "kept" in cell]
    kept = {str(head) for head in run.layouts["lambda-0.05"].kept}
    assert {cell["address"] for cell in cells if cell["kept"] == "kept"} == kept
    values = run.heads[run.heads["measure"] == "gradient"].set_index(["layer", "head"])["value"]
    drawn = {(cell["layer"], cell["head"]): cell["value"] for cell in cells}
    assert drawn == pytest.approx(values.to_dict(), rel=1e-4) and len(cells) == 24


def test_maps_of_scores_share_one_order_of_heads(run: RunContents) -> None:
    (figure,) = head_functions.head_functions(run)
    others = score_maps.score_maps(run)
    assert [one.name for one in others] == ["scores-encoder-self", "one-head-off-encoder-self"]
    places = []
    for found in (figure, *others):
        for panel in range(len(found.panels)):
            cells = [cell for cell in data_of(found, panel) if "address" in cell]
            places.append({cell["address"]: cell["column"] for cell in cells})
    assert len(places) == 5 and all(place == places[0] for place in places)
    first = [cell for cell in data_of(figure) if cell.get("layer") == 1 and "address" in cell]
    values = [cell["value"] for cell in sorted(first, key=lambda cell: cell["column"])]
    assert values == sorted(values, reverse=True)


def test_without_relevance_the_most_faithful_score_leads(run: RunContents) -> None:
    heads = run.heads[~run.heads["measure"].str.startswith("lrp")]
    (figure,) = head_functions.head_functions(replace(run, heads=heads))
    titles = [panel.title.split(":")[0] for panel in figure.panels[:2]]
    assert titles == ["Gradient × 10⁻³", "Confidence"]
    (bare,) = head_functions.head_functions(emptied(run, "heads"))
    assert len(bare.panels) == 1 and "by their numbers" in bare.facts
    (scores,) = head_functions.head_functions(emptied(run, "roles"))
    assert len(scores.panels) == 2
    assert head_functions.head_functions_section(emptied(run, "heads", "roles")) is None


def test_the_judges_curves_are_in_the_order_of_the_area(run: RunContents) -> None:
    figure = score_faithfulness.removal_curves_figure(run)
    assert figure is not None
    areas = [float(panel.title.split("area ")[1].split(",")[0]) for panel in figure.panels]
    assert areas == sorted(areas)
    own = run.curves.query("measure == 'gradient' and ranking == 'once'")
    drawn = {p["removed"]: p["loss"] for p in data_of(figure) if p.get("colour") == "once"}
    assert drawn == pytest.approx(own.set_index("removed")["loss"].to_dict())
    more = [own.assign(measure=f"lrp.rule-{i}", loss=own["loss"] * (1 + i)) for i in range(6)]
    many = replace(run, curves=pd.concat([run.curves, *more]))
    figure = score_faithfulness.removal_curves_figure(many)
    assert figure is not None and len(figure.panels) == 9 and "table only: 3" in figure.facts


def test_without_curves_the_best_is_the_one_that_agrees_most(run: RunContents) -> None:
    areas = run.faithfulness["statistic"].str.startswith("area")
    bare = replace(run, faithfulness=run.faithfulness[~areas], curves=run.curves[:0])
    found = faithfulness_statistics(bare.faithfulness)
    assert found is not None and most_faithful(found) == "gradient"
    empty = score_faithfulness.faithfulness_section(emptied(run, "faithfulness", "curves"))
    assert not any(empty.values())


def scored(run: RunContents, rows: list[tuple[object, ...]]) -> RunContents:
    return replace(run, heads=pd.DataFrame(rows, columns=list(TESTS.names[:-1])).assign(units=30))


def test_heads_that_surely_matter_alone_have_a_star_and_are_counted(run: RunContents) -> None:
    changes = [(0.53, 0.2, 0.9), (-0.24, -0.4, -0.1), (0.1, -0.1, 0.3), (0.0, None, None)]
    rows = [
        ("encoder-self", 0, h, "ablation.bleu", *ends, 500, None) for h, ends in enumerate(changes)
    ]
    (figure,) = score_maps.score_maps(scored(run, [*rows]))
    found = {cell["head"]: cell for cell in data_of(figure) if "address" in cell}
    assert [found[h]["text"] for h in range(4)] == ["0.53*", "−0.24*", "0.10", "0.00"]
    assert found[0]["interval"] == "[0.200, 0.900]" and found[3]["interval"] == "not measured"
    assert "2 of 3 intervals exclude 0, 1 of them below 0: better without" in figure.facts
    loss = [("cross", 0, h, "ablation.zero", v, v, v, 9, None) for h, v in enumerate((0.05, 0.0))]
    both = score_maps.score_maps(scored(run, [*rows, *loss]))
    assert [figure.name for figure in both] == ["one-head-off-encoder-self", "one-head-off-cross"]


def test_the_best_lone_head_of_each_layer(run: RunContents) -> None:
    alone = {
        (0, 0): (0.2, 0.1, 0.3),
        (0, 1): (0.004, -0.01, 0.02),
        (1, 0): (0.51, 0.4, 0.6),
        (1, 1): (0.9, 0.7, 1.1),
    }
    measure = "ablation.all-but-one"
    rows = [("cross", *key, measure, *cell, 5000, None) for key, cell in alone.items()]
    one_head = ("decoder-self", 0, 0, measure, 0, 0, 0, 9, None)
    table = score_maps.alone_table(scored(run, [*rows, one_head]))
    assert table is not None and table.columns == ["layer", "cross-attention"]
    assert [row.cells for row in table.rows] == [
        ["0", "+0.004 [−0.010, +0.020]\ncross/0/1 · one head is enough"],
        ["1", "+0.510 [+0.400, +0.600]\ncross/1/0"],
    ]
    assert score_maps.alone_table(emptied(run, "heads")) is None


@pytest.fixture
def uncontrolled(run: RunContents) -> RunContents:
    """The run without untrained models, pairs, and roles on changed text."""
    roles = replace(run.roles, controls=run.roles.controls[:0])
    return replace(emptied(run, "untrained", "interactions"), roles=roles)


def test_the_band_is_the_range_of_all_untrained_heads_of_a_layer(run: RunContents) -> None:
    known = score_maps.control_ranges(run)
    assert len(known) == 3 * 4
    rows = run.untrained.query("layer == 1 and measure == 'confidence'")["value"]
    control = known["encoder-self", 1, "confidence"]
    assert len(rows) == 24 and (control.low, control.high) == (rows.min(), rows.max()) == (0.2, 0.3)
    effect = (0.9 - rows.mean()) / rows.std()
    assert (control.mean, control.effect(0.9)) == pytest.approx((rows.mean(), effect))
    assert [control.holds(value) for value in (0.2, 0.3, 0.31)] == [True, True, False]


def test_maps_and_tables_mark_heads_like_untrained_ones(
    run: RunContents, uncontrolled: RunContents
) -> None:
    (figure,) = head_functions.head_functions(run)
    for panel in range(2):
        controls = [cell for cell in data_of(figure, panel) if cell.get("label") == "mean"]
        assert [cell["layer"] for cell in controls] == [0, 1, 2]
        assert {cell["column"] for cell in controls} == {8}
    confident = [cell for cell in data_of(figure, 1) if "address" in cell]
    assert all(cell["framed"] == (0.2 <= cell["value"] <= 0.3) for cell in confident)
    assert 0 < sum(cell["framed"] for cell in confident) < 24
    (plain,) = head_functions.head_functions(uncontrolled)
    assert not any(cell.get("label") == "mean" or cell.get("framed") for cell in data_of(plain))

    table = score_maps.untrained_table(run)
    assert table is not None
    row = next(row for row in table.rows if row.code == "confidence")
    values = run.heads[run.heads["measure"] == "confidence"]["value"]
    above, below = int((values > 0.3).sum()), int((values < 0.2).sum())
    assert row.cells[2:5] == [f"{above} of 24", str(24 - above - below), str(below)]
    shown = every_head.every_head_section(run)
    assert shown is not None and shown["details"]["untrained"]
    first = shown["rows"][0]["scores"][0]
    assert first.untrained == "0.200 to 0.300" and first.like_untrained is False
    assert score_maps.untrained_table(uncontrolled) is None


def test_roles_beside_their_controls(run: RunContents, uncontrolled: RunContents) -> None:
    shares = role_tables.share_table(run.roles)
    assert shares is not None
    at = shares.columns.index("untrained")
    assert [row.cells[at] for row in shares.rows if row.cells[0] == "No known role"] == [
        "99\u202f%\n71 of 72"
    ]
    beside = {"untrained", "best untrained", "shuffled", "on shuffled sentences"}
    for make in (role_tables.best_heads_table, role_tables.share_table):
        plain = make(uncontrolled.roles)
        assert plain is not None and not beside & {*plain.columns}


def test_the_map_of_pairs_is_symmetric_and_frames_the_significant_ones(
    run: RunContents, uncontrolled: RunContents
) -> None:
    content = head_pairs.head_pairs_section(run)
    assert content is not None
    cells = {(cell["address"], cell["other"]): cell for cell in data_of(content["map"])}
    assert len(cells) == 2 * 276
    assert all(cells[other, one]["value"] == cell["value"] for (one, other), cell in cells.items())
    framed = {tuple(sorted(pair)) for pair, cell in cells.items() if cell["significant"]}
    first = ("encoder-self/0/3", "encoder-self/0/6")
    assert framed == {first, ("encoder-self/1/2", "encoder-self/2/0")}
    assert cells[first]["measured"] == "+31.0 [+24.0, +39.0]"
    assert head_pairs.head_pairs_section(uncontrolled) is None


def test_pairs_are_told_apart_by_the_p_of_all_of_them(run: RunContents) -> None:
    """An interval of one pair leaves out 0 in one of 20; framed and counted is what is sure among all pairs."""
    pairs = run.interactions
    assert pairs is not None and (pairs["low"] > 0).any()
    content = head_pairs.head_pairs_section(replace(run, interactions=pairs.assign(p=0.2)))
    assert content is not None
    assert (content["redundant"], content["synergistic"]) == (0, 0)
    assert not any(cell["significant"] for cell in data_of(content["map"]))


def test_no_interval_is_no_interval_around_zero(run: RunContents) -> None:
    rows = run.heads[run.heads["measure"] == "ablation.zero"].assign(low=math.nan, high=math.nan)
    assert score_maps._off_sentence(rows, "ablation.zero").strip().startswith("Too few")
    few = replace(run, heads=run.heads.assign(low=math.nan, high=math.nan))
    assert "Too few sentences were read for intervals" in summary.heads_that_matter(few)
    assert "Too few" not in summary.heads_that_matter(run)
