"""The report's section on how much heads matter: what the maps, the judge's table and the sentences tell."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from headwise.errors import HeadwiseError
from headwise.report.faithfulness import judge_table, judged, most_faithful, verdicts
from headwise.report.figure import Figure
from headwise.report.page import draw, render
from headwise.report.relevance import conservation_table, parting, pooled_sentences
from headwise.report.removal_figures import curve_areas, removal_curves
from headwise.report.run import Run, read_run
from headwise.report.score_figures import drawn_measures, score_lede, score_maps


def change(folder: Path, file: str, **cells: Any) -> Run:
    """Rows of a table, named by `where`, with other cells."""
    table, where = pd.read_csv(folder / file), cells.pop("where")
    rows = pd.Series(True, index=table.index)
    for column, value in where.items():
        rows &= table[column] == value
    assert rows.any()
    for column, value in cells.items():
        table.loc[rows, column] = value
    table.to_csv(folder / file, index=False)
    return read_run(folder)


def keep(folder: Path, file: str, column: str, values: list[str]) -> Run:
    """A table with some of its rows."""
    table = pd.read_csv(folder / file)
    table[table[column].isin(values)].to_csv(folder / file, index=False)
    return read_run(folder)


def cells_of(figure: Figure, panel: int) -> list[dict[str, Any]]:
    return [
        row for rows in figure.panels[panel].specification()["datasets"].values() for row in rows if "address" in row
    ]


def told(run: Run) -> dict[str, str]:
    return dict(verdicts(run))


def test_all_maps_have_the_heads_in_the_order_of_relevance(run_folder: Path) -> None:
    (figure,) = score_maps(read_run(run_folder))
    assert [panel.title.split(":")[0] for panel in figure.panels] == [
        "LRP-Ding", "Confidence", "Gradient × 10⁻³", "Zero ablation × 10⁻³",
    ]  # fmt: skip
    orders = []
    for panel in range(4):
        cells = sorted(cells_of(figure, panel), key=lambda c: (c["layer"], c["rank"]))
        assert [cell["rank"] for cell in cells] == list(range(1, 9)) * 3
        orders.append([cell["address"] for cell in cells])
        if panel == 0:
            for layer in range(3):
                values = [cell["value"] for cell in cells if cell["layer"] == layer]
                assert values == sorted(values, reverse=True)
        assert cells[0]["interval"].count(" to ") == 1
    assert all(order == orders[0] for order in orders)


def test_colours_start_at_0_and_an_equal_share_is_marked(run_folder: Path) -> None:
    run = read_run(run_folder)
    (figure,) = score_maps(run)
    assert run.heads is not None
    for panel, measure in enumerate(["lrp.ding", "confidence", "gradient", "ablation.zero"]):
        specification = figure.panels[panel].specification()
        colour = specification["layer"][0]["encoding"]["color"]
        most = run.heads.loc[run.heads["measure"] == measure, "value"].max()
        assert colour["scale"]["domain"][0] == 0
        assert most <= colour["scale"]["domain"][1] < 1.1 * most
        assert ("1/8" in colour["legend"]["labelExpr"]) == (measure == "lrp.ding")
    ends = next(rows for rows in figure.panels[0].specification()["datasets"].values() if "address" not in rows[0])
    for end in ends:
        values = [cell["value"] for cell in cells_of(figure, 0) if cell["layer"] == end["layer"]]
        assert end["rank"] == sum(value >= 1 / 8 for value in values)


@pytest.mark.parametrize(
    ("measures", "drawn"),
    [
        (["confidence"], ["confidence"]),
        (["gradient", "confidence"], ["confidence", "gradient"]),
        (["lrp.alpha-beta.pooled", "lrp.alpha-beta", "lrp.attnlrp"], ["lrp.alpha-beta"]),
        (
            ["lrp.attnlrp", "lrp.ding", "ablation.mean", "gradient.normalised"],
            ["lrp.ding", "gradient.normalised", "ablation.mean"],
        ),
        (["entropy", "dormancy", "positional.-1"], []),
        (["gradient.token", "gradient.normalised"], ["gradient.normalised"]),
    ],
)
def test_one_measure_of_each_family_is_drawn(measures: list[str], drawn: list[str]) -> None:
    assert drawn_measures(measures) == drawn


@pytest.mark.parametrize("measures", [["confidence"], ["gradient", "ablation.zero"], ["lrp.alpha-beta"], ["entropy"]])
def test_the_page_works_with_any_scores(run_folder: Path, measures: list[str]) -> None:
    table = pd.read_csv(run_folder / "heads.csv")
    table.loc[table["measure"] == "lrp.ding.pooled", "measure"] = "entropy"
    table.to_csv(run_folder / "heads.csv", index=False)
    run = keep(run_folder, "heads.csv", "measure", measures)
    figures = score_maps(run)
    assert len(figures) == (measures != ["entropy"])
    assert all(len(figure.panels) == len(measures) for figure in figures)
    page = render(run, draw(run))
    assert ("No maps of scores" in page) == (measures == ["entropy"])
    assert ("different questions" in score_lede(run)) == (len(measures) > 1)


def test_a_model_of_many_heads_and_several_kinds_is_drawn(run_folder: Path) -> None:
    rows = [
        (kind, layer, head, measure, (head * 7 + layer) % 32 / 400, None, None, 9, None)
        for kind, heads in (("decoder-self", 32), ("cross", 1)) for layer in range(3) for head in range(heads)
        for measure in ("lrp.ding", "confidence")
    ]  # fmt: skip
    columns = ["kind", "layer", "head", "measure", "value", "low", "high", "n", "baseline"]
    pd.DataFrame(rows, columns=columns).to_csv(run_folder / "heads.csv", index=False)
    figures = score_maps(read_run(run_folder))
    assert [figure.name for figure in figures] == ["scores-decoder-self", "scores-cross"]
    assert (figures[0].columns, figures[1].columns) == (1, 2)
    for figure in figures:
        figure.save(run_folder / "figures")
    assert cells_of(figures[0], 0)[0]["interval"] == "not measured"


def test_the_head_that_is_relevant_and_not_confident_is_named(run_folder: Path) -> None:
    (figure,) = score_maps(read_run(run_folder))
    assert "LRP-Ding and confidence have a rank correlation of 0." in figure.caption
    assert "They part most at h6 of layer 0 (1st of 8 by LRP-Ding, 8th by confidence)." in figure.caption


def test_scores_that_agree_part_nowhere() -> None:
    table = pd.DataFrame({"layer": [0, 0, 0, 1, 1], "head": [0, 1, 2, 0, 1], "value": [0.5, 0.3, 0.2, 0.6, 0.4]})
    one, other = table.assign(measure="lrp.ding"), table.assign(measure="confidence")
    assert parting(one, other) == "LRP-Ding and confidence have a rank correlation of 1.00 within layers."
    assert parting(one.assign(value=0.5), other) == ""


def test_removal_is_told_from_the_numbers(run_folder: Path) -> None:
    text = told(read_run(run_folder))["By removal"]
    assert text.startswith("Removing the heads of lowest gradient first costs least: 0.31 [0.29, 0.33] nats a token")
    assert "Random orders cost 0.80 (0.63 to 0.98)." in text
    assert "LRP-Ding (0.34) cannot be told from it" in text
    assert "Scored again after each step, gradient costs 0.25 [0.23, 0.27]." in text
    assert "comes 3rd of 6 (0.38). A head whose work" in text


def test_a_score_no_better_than_chance_is_called_that(run_folder: Path) -> None:
    run = change(run_folder, "faithfulness.csv", where={"measure": "random", "statistic": "area"}, low=0.2)
    assert "no better than the luckiest of them" in told(run)["By removal"]
    where = {"measure": "ablation.zero", "statistic": "area"}
    text = told(change(run_folder, "faithfulness.csv", where=where, value=0.1, low=0.09, high=0.11))["By removal"]
    assert text.startswith("Removing the heads of lowest zero ablation first")
    assert "comes" not in text


def test_agreement_is_told_from_the_numbers(run_folder: Path) -> None:
    text = told(read_run(run_folder))["By agreement"]
    assert text == (
        "Gradient agrees best with exact ablation of one head at a time (rank correlation 0.71 [0.62, 0.78]; the "
        "ablation, repeated on another text as long, would agree with itself to 0.93). Within that interval: "
        "LRP-Ding (0.66)."
    )


def test_agreement_that_may_be_none_is_told_as_that(run_folder: Path) -> None:
    run = change(run_folder, "faithfulness.csv", where={"statistic": "spearman"}, value=0.1, low=-0.2, high=0.3)
    assert told(run)["By agreement"].startswith("No score clearly ranks heads as exact ablation does")
    where = {"measure": "-entropy", "statistic": "spearman"}
    run = change(run_folder, "faithfulness.csv", where=where, value=-0.4, low=-0.5, high=-0.3)
    assert "The other way round: entropy, low first;" in told(run)["By agreement"]


def test_several_kinds_are_told_apart_and_the_table_is_of_all(run_folder: Path) -> None:
    table = pd.read_csv(run_folder / "faithfulness.csv")
    ranks = table[table["statistic"].isin(["spearman", "ceiling", "stability"])]
    cross = ranks.assign(kinds="cross", value=[1 - value for value in ranks["value"]])
    whole = ranks.assign(kinds="encoder-self+cross", value=0.5 * ranks["value"])
    pd.concat([table, cross, whole]).to_csv(run_folder / "faithfulness.csv", index=False)
    run = read_run(run_folder)
    found = judged(run)
    assert found is not None
    assert found.of("spearman")["gradient"].value == pytest.approx(0.355)
    assert found.of("area")["gradient"].value == pytest.approx(0.31)
    assert "cross-attention entropy, low first (0.67)" in told(run)["By agreement"]


def test_the_table_has_a_row_a_score_the_best_first(run_folder: Path) -> None:
    table = judge_table(read_run(run_folder))
    assert table is not None
    names = [line.cells[0] for line in table.lines]
    assert names == [
        "Gradient", "LRP-Ding", "Zero ablation", "LRP-αβ", "Confidence", "Random order", "Entropy, low first",
        "Zero ablation, repeated",
    ]  # fmt: skip
    assert [line.badge for line in table.lines] == ["best", *[""] * 7]
    gradient, random, ceiling = table.lines[0], table.lines[5], table.lines[7]
    assert dict(zip(table.columns, gradient.cells, strict=True)) == {
        "score": "Gradient", "loss while heads go": "0.31\n[0.29, 0.33]", "scored again": "0.25\n[0.23, 0.27]",
        "rank correlation": "0.71\n[0.62, 0.78]", "within layers": "0.64\n[0.55, 0.71]",
        "Kendall": "0.55\n[0.46, 0.62]", "top quarter found": "70\u202f%", "on another text": "0.97",
    }  # fmt: skip
    assert random.cells[1] == "0.80\n0.63 to 0.98"
    assert ceiling.cells[3:5] == ["0.93", "0.88"]
    page = render(read_run(run_folder), {**draw(read_run(run_folder))})
    assert re.search(r'<td>0.71<span class="who">\[0.62, 0.78\]</span></td>', page)


def test_without_curves_the_best_is_the_one_that_agrees_most(run_folder: Path) -> None:
    table = pd.read_csv(run_folder / "faithfulness.csv")
    table[~table["statistic"].str.startswith("area")].to_csv(run_folder / "faithfulness.csv", index=False)
    run = read_run(run_folder)
    found = judged(run)
    assert found is not None
    assert most_faithful(found) == "gradient"
    assert list(told(run)) == ["By agreement"]
    table = pd.read_csv(run_folder / "faithfulness.csv")
    table[table["statistic"].str.startswith("kendall")].to_csv(run_folder / "faithfulness.csv", index=False)
    assert verdicts(read_run(run_folder)) == []
    assert judge_table(read_run(run_folder)) is not None


def test_nothing_judged_is_told(run_folder: Path) -> None:
    (run_folder / "faithfulness.csv").unlink()
    (run_folder / "curves.csv").unlink()
    run = read_run(run_folder)
    assert (judge_table(run), removal_curves(run), verdicts(run)) == (None, None, [])
    assert "No judgement: the scores have not been held against exact ablation" in render(run, draw(run))


def test_curves_are_in_the_order_of_their_area_and_the_areas_are_the_judges(run_folder: Path) -> None:
    run = read_run(run_folder)
    figure = removal_curves(run)
    assert figure is not None
    assert figure.panels[0].title == "Gradient · area 0.31, scored again 0.25"
    assert [panel.title.split(" · ")[0] for panel in figure.panels[1:]] == [
        "LRP-Ding", "Zero ablation", "LRP-αβ", "Confidence", "Entropy, low first",
    ]  # fmt: skip
    assert "5 random orders" in figure.caption
    assert run.curves is not None
    found = judged(run)
    assert found is not None
    for measure, value in found.of("area").items():
        order = "random" if measure == "random" else "once"
        assert curve_areas(run.curves)[measure, order] == pytest.approx(value.value, abs=0.01)


def test_many_curves_are_cut_to_the_best_and_told(run_folder: Path) -> None:
    table = pd.read_csv(run_folder / "curves.csv")
    gradient = table[(table["measure"] == "gradient") & (table["order"] == "once")]
    more = [gradient.assign(measure=f"lrp.rule-{i}", loss=gradient["loss"] * (1 + i)) for i in range(6)]
    pd.concat([table, *more]).to_csv(run_folder / "curves.csv", index=False)
    figure = removal_curves(read_run(run_folder))
    assert figure is not None
    assert len(figure.panels) == 9
    assert "Scores in the table only: 3." in figure.caption


def test_curves_without_random_orders_or_intervals_are_drawn(run_folder: Path) -> None:
    table = pd.read_csv(run_folder / "curves.csv")
    table = table[(table["order"] != "random") & (table["measure"] == "gradient")].assign(low=None, high=None)
    table.to_csv(run_folder / "curves.csv", index=False)
    figure = removal_curves(read_run(run_folder))
    assert figure is not None
    assert "random" not in figure.note + figure.caption
    figure.save(run_folder / "figures")


def test_relevance_that_was_absorbed_is_in_a_table(run_folder: Path) -> None:
    table = conservation_table(read_run(run_folder))
    assert table is not None
    assert table.lines[0].cells == [
        "LRP-Ding, per-step", "100.0\u202f%", "96.2\u202f%", "4.1\u202f%", "−0.3\u202f%", "0.0\u202f%", "0.0\u202f%",
    ]  # fmt: skip
    run = keep(run_folder, "lrp.csv", "what", ["started", "arrived"])
    table = conservation_table(run)
    assert table is not None
    assert table.columns == ["rule", "went in", "arrived at the embeddings"]


def test_pooled_relevance_is_held_against_the_per_step_one(run_folder: Path) -> None:
    run = change(run_folder, "heads.csv", where={"measure": "lrp.ding.pooled", "layer": 1, "head": 4}, value=0.5)
    (sentence,) = pooled_sentences(run)
    assert re.fullmatch(
        r"LRP-Ding: per step and pooled have a rank correlation of 0\.\d\d; they are furthest apart at "
        r"encoder-self/1/4, 0\.\d+ against 0\.50+\.", sentence,
    )  # fmt: skip
    assert pooled_sentences(keep(run_folder, "heads.csv", "measure", ["lrp.ding", "confidence"])) == []


def test_a_table_without_a_column_is_refused(run_folder: Path) -> None:
    pd.read_csv(run_folder / "curves.csv").drop(columns="order").to_csv(run_folder / "curves.csv", index=False)
    with pytest.raises(HeadwiseError, match=r"curves\.csv has no column order"):
        read_run(run_folder)
