"""How much heads matter and which score to believe: what is drawn, and the numbers of the tables."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

from headwise.report import head_functions, kept_heads, score_faithfulness, score_maps
from headwise.report.run_folder import FinishedRun, read_run
from report.conftest import data_of

COLUMNS = ["kind", "layer", "head", "measure", "value", "low", "high", "n", "baseline"]


@pytest.fixture(scope="module")
def run(whole: Path) -> FinishedRun:
    return read_run(whole)


def test_the_head_map_has_every_head_with_its_status_and_most_faithful_score(
    run: FinishedRun,
) -> None:
    assert run.chosen is not None and run.heads is not None
    measure = kept_heads.map_measure(run)
    assert measure == "gradient"  # the most faithful one of this run
    figure = kept_heads.head_map(run, run.chosen)
    assert figure is not None
    cells = [cell for cell in data_of(figure) if "kept" in cell]
    kept = {str(head) for head in run.layouts["lambda-0.05"].kept}
    assert {cell["address"] for cell in cells if cell["kept"] == "kept"} == kept
    assert len(cells) == 24
    values = run.heads[run.heads["measure"] == measure].set_index(["kind", "layer", "head"])
    for cell in cells:
        expected = values["value"]["encoder-self", cell["layer"], cell["head"]]
        assert cell["value"] == pytest.approx(expected, rel=1e-4)


def test_a_run_without_pruning_has_a_map_of_all_heads(run_folder: Path) -> None:
    (run_folder / "pruning.csv").unlink()
    scored = read_run(run_folder)
    assert scored.chosen is None
    figure = kept_heads.head_map(scored, None)
    assert figure is not None and "kept" not in figure.title and "removed" not in figure.note


def test_maps_of_scores_share_one_order_of_heads(run: FinishedRun) -> None:
    (figure,) = head_functions.head_functions(run)
    (others,) = score_maps.score_maps(run)
    assert [panel.title.split(":")[0] for panel in figure.panels + others.panels] == [
        "LRP-Ding",
        "Confidence",
        "Functions",
        "Gradient × 10⁻³",
        "Zero ablation × 10⁻³",
    ]
    places = [
        {(c["layer"], c["head"]): c["column"] for c in data_of(found, i) if "address" in c}
        for found in (figure, others)
        for i in range(2)
    ]
    assert places[0] == places[1] == places[2] == places[3]
    functions = {}
    for cell in data_of(figure, 2):
        if "address" in cell:
            functions[cell["address"]] = cell["rank"] - 1
    assert functions == {
        f"encoder-self/{layer}/{head}": column for (layer, head), column in places[0].items()
    }
    first = [cell for cell in data_of(figure) if cell.get("layer") == 1 and "address" in cell]
    assert [c["value"] for c in sorted(first, key=lambda c: c["column"])] == sorted(
        (c["value"] for c in first), reverse=True
    )


def test_without_relevance_the_most_faithful_score_leads(run: FinishedRun) -> None:
    assert run.heads is not None
    heads = run.heads[~run.heads["measure"].str.startswith("lrp")]
    (figure,) = head_functions.head_functions(replace(run, heads=heads))
    assert [panel.title.split(":")[0] for panel in figure.panels[:2]] == [
        "Gradient × 10⁻³",
        "Confidence",
    ]
    (bare,) = head_functions.head_functions(replace(run, heads=None))
    assert len(bare.panels) == 1 and bare.facts == "Order: heads by their numbers."
    (scores,) = head_functions.head_functions(replace(run, roles=None))
    assert len(scores.panels) == 2
    assert head_functions.head_functions_section(replace(run, heads=None, roles=None)) is None


def test_relevance_tables(run: FinishedRun) -> None:
    conserved, apart, pooled = (
        score_maps.conservation_table(run),
        score_maps.apart_table(run),
        score_maps.pooled_table(run),
    )
    assert conserved is not None and apart is not None and pooled is not None
    shares = [
        "100.0\u202f%",
        "96.2\u202f%",
        "4.1\u202f%",
        "−0.3\u202f%",
        "0.0\u202f%",
        "0.0\u202f%",
    ]
    assert conserved.rows[0].cells == ["LRP-Ding, per-step", *shares]
    assert apart.rows[0].cells[2].startswith("encoder-self/0/6 (1 · 8 of 8)")
    assert pooled.rows[0].cells[0] == "LRP-Ding"


def test_the_judges_table_and_curves_are_in_the_order_of_the_area(run: FinishedRun) -> None:
    table, figure = (
        score_faithfulness.faithfulness_table(run),
        score_faithfulness.removal_curves_figure(run),
    )
    assert table is not None and figure is not None and run.curves is not None
    assert [row.cells[0] for row in table.rows[:2]] == ["Gradient", "LRP-Ding"] and table.rows[
        0
    ].badge == "best"
    assert table.rows[1].badge == "as good" and table.rows[0].cells[1:4] == [
        "0.31\n[0.29, 0.33]",
        "0.25\n[0.23, 0.27]",
        "0.71\n[0.62, 0.78]",
    ]
    assert (
        table.rows[-1].cells[0] == "Zero ablation, repeated" and table.rows[-1].cells[3] == "0.93"
    )
    assert figure.panels[0].title == "Gradient · area 0.31, scored again 0.25"
    assert [p.title.split(" · ")[0] for p in figure.panels[1:4]] == [
        "LRP-Ding",
        "Zero ablation",
        "LRP-αβ",
    ]
    assert "Random orders: 5." in figure.facts
    own = run.curves[
        (run.curves["measure"] == "gradient") & (run.curves["ranking"] == "once")
    ].set_index("removed")["loss"]
    drawn = {p["removed"]: p["loss"] for p in data_of(figure) if p.get("colour") == "once"}
    assert drawn == pytest.approx(own.to_dict())


def test_many_curves_are_cut_to_the_best(run: FinishedRun) -> None:
    assert run.curves is not None
    gradient = run.curves[(run.curves["measure"] == "gradient") & (run.curves["ranking"] == "once")]
    more = [
        gradient.assign(measure=f"lrp.rule-{i}", loss=gradient["loss"] * (1 + i)) for i in range(6)
    ]
    figure = score_faithfulness.removal_curves_figure(
        replace(run, curves=pd.concat([run.curves, *more]))
    )
    assert (
        figure is not None
        and len(figure.panels) == 9
        and "Scores in the table only: 3." in figure.facts
    )


def test_without_curves_the_best_is_the_one_that_agrees_most(run: FinishedRun) -> None:
    assert run.faithfulness is not None
    bare = replace(
        run,
        faithfulness=run.faithfulness[~run.faithfulness["statistic"].str.startswith("area")],
        curves=None,
    )
    found = score_faithfulness.faithfulness_statistics(bare)
    assert found is not None and score_faithfulness.most_faithful(found) == "gradient"
    empty = replace(run, faithfulness=None, curves=None)
    assert score_faithfulness.faithfulness_section(empty) == {
        "removal": None,
        "statistics": None,
        "kinds": None,
    }


def scored(run: FinishedRun, rows: list[tuple[object, ...]]) -> FinishedRun:
    return replace(run, heads=pd.DataFrame(rows, columns=COLUMNS))


def test_bleu_that_is_lost_is_a_change_below_zero(run: FinishedRun) -> None:
    cells = [(0.53, 0.2, 0.9), (-0.24, -0.4, -0.1), (0.1, -0.1, 0.3), (0.0, None, None)]
    rows = [
        ("encoder-self", 0, h, "ablation.bleu", *cell, 500, None) for h, cell in enumerate(cells)
    ]
    (table,) = score_maps.score_maps_section(scored(run, [*rows]))["effects"]
    found = table["layers"][0][1]
    assert [found[h]["text"] for h in range(4)] == ["−0.53", "+0.24", "−0.10", "0.00"]
    assert [(found[h]["sure"], found[h]["gain"]) for h in range(4)] == [
        (True, False),
        (True, True),
        (False, False),
        (False, False),
    ]
    assert found[0]["tip"] == "encoder-self/0/0: −0.53 [−0.90, −0.20]"
    assert table["facts"].startswith("2 of 4 intervals exclude 0, 1 of them for the better")
    loss = [
        ("cross", 0, h, "ablation.zero", value, value - 0.01, value + 0.01, 9, None)
        for h, value in enumerate((0.05, 0.0))
    ]
    found = score_maps.score_maps_section(scored(run, [*loss]))
    assert not found["in_bleu"] and found["effects"][0]["layers"][0][1][0]["text"] == "+50.0"


def test_the_best_lone_head_of_each_layer(run: FinishedRun) -> None:
    alone = {
        (0, 0): (0.2, 0.1, 0.3),
        (0, 1): (0.004, -0.01, 0.02),
        (1, 0): (0.51, 0.4, 0.6),
        (1, 1): (0.9, 0.7, 1.1),
    }
    rows = [
        ("cross", *key, "ablation.all-but-one", *cell, 5000, None) for key, cell in alone.items()
    ]
    table = score_maps.alone_table(
        scored(run, [*rows, ("decoder-self", 0, 0, "ablation.all-but-one", 0, 0, 0, 9, None)])
    )
    assert table is not None and table.columns == ["layer", "cross-attention"]
    assert [row.cells for row in table.rows] == [
        ["0", "+0.004 [−0.010, +0.020]\ncross/0/1 · one head is enough"],
        ["1", "+0.510 [+0.400, +0.600]\ncross/1/0"],
    ]
    assert score_maps.alone_table(replace(run, heads=None)) is None
