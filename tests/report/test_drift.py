"""Functions and scores of the heads that stay: what is kept, lost, new and moved, and how it is told."""

from __future__ import annotations

import math
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from headwise.heads import Head
from headwise.report.drift import best_table, changed_table, changes, course_table, drift, sentences
from headwise.report.drift_figures import drift_figures
from headwise.report.page import draw, render
from headwise.report.run import After, RolesFound, Run, read_run
from headwise.report.score_drift import pairs, rank_sentence, rank_table, score_drift
from report.conftest import make_run
from report.made_after import write_after


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = make_run(tmp_path_factory.mktemp("study"))
    write_after(folder)
    return read_run(folder)


def head(layer: int, number: int) -> Head:
    return Head("encoder-self", layer, number)


def without_roles(found: RolesFound) -> RolesFound:
    return replace(found, roles=found.roles.iloc[:0])


def before_without_roles(run: Run) -> Run:
    assert run.roles is not None
    return replace(run, roles=without_roles(run.roles))


def test_each_role_is_kept_lost_new_or_gone_with_its_head(run: Run) -> None:
    last = changes(run, "encoder-self")[-1]
    assert [str(h) for h in last.heads] == [f"encoder-self/{a}" for a in ("0/3", "2/0", "2/4", "2/6")]
    assert last.kept == [(head(0, 3), "positional.-1")]
    assert last.gained == [(head(2, 4), "syntactic.nsubj.to-governor")]
    assert {h for h, _ in last.lost} == {head(2, 0), head(2, 4)} and len(last.lost) == 6
    assert [measure for _, measure in last.removed] == [
        "rare.two-rarest", "positional.1", "syntactic.nsubj.to-dependent", "syntactic.obj.to-governor",
    ]  # fmt: skip
    assert last.moved == ["syntactic.nsubj.to-governor"]  # 2/0 did it in the full model, now 2/4 does


def test_the_counts_of_all_models_add_up_to_the_roles_of_the_full_one(run: Run) -> None:
    assert run.roles is not None
    for change in changes(run, "encoder-self"):
        assert len(change.kept) + len(change.lost) + len(change.removed) == len(run.roles.roles)
        assert len(change.heads) == change.setting.kept
    table = course_table(run, "encoder-self")
    assert table is not None
    assert [line.cells[1:] for line in table.lines] == [
        ["17", "11", "8", "3", "0", "0", "–"],
        ["9", "11", "5", "6", "1", "0", "nsubj→verb"],
        ["4", "7", "1", "6", "1", "4", "nsubj→verb"],
    ]
    assert [line.badge for line in table.lines] == ["", "chosen", ""]


def test_it_is_said_which_functions_survive_down_to_how_many_heads(run: Run) -> None:
    (_, survive), (_, go) = sentences(run, "encoder-self")
    assert "6 of the full model's 24 encoder heads have a role" in survive
    assert "Every sort is still there with λ\u00a0=\u00a00.02, 17 heads." in survive
    assert "With λ\u00a0=\u00a00.05, 9 heads, none is left for coreference." in survive
    assert "of 11 roles that these heads had in the full model, 5 hold and 6 are lost; 1 is new" in go
    assert go.endswith("Another head has taken up nsubj→verb.")


def test_without_any_role_to_begin_with_it_says_so_plainly(run: Run) -> None:
    bare = before_without_roles(run)
    ((_, told),) = sentences(bare, "encoder-self")
    assert told.startswith("None of the full model's 24 encoder heads has a role by these tests")
    assert "is new: encoder-self/0/3 positional −1" in told
    everywhere = {name: After(a.heads, without_roles(a.roles)) for name, a in run.after.items() if a.roles is not None}
    bare = replace(bare, after=everywhere)
    ((_, told),) = sentences(bare, "encoder-self")
    assert told.endswith("No head of a pruned model has one either.")
    assert drift_figures(bare) == []
    found = drift(bare)
    assert found is not None and found["changed"] == [] and found["courses"] == []
    assert found["best"], "the best heads are told all the same"


def test_roles_that_changed_have_both_scores_and_intervals(run: Run) -> None:
    table = changed_table(run, "encoder-self")
    assert table is not None and len(table.lines) == 3 + 7 + 7
    lines = [line.cells for line in table.lines if line.cells[0] == "λ\u00a0=\u00a00.2" and line.cells[-1] == "new"]
    assert [line[1:3] for line in lines] == [["encoder-self/2/4", "nsubj→verb"]]
    assert lines[0][4] == "0.68 [0.65, 0.71]" and lines[0][5] == "0.45"
    lost = next(line.cells for line in table.lines if line.cells[2] == "obj→verb")
    assert lost[3:5] == ["0.84 [0.81, 0.87]", "0.32 [0.29, 0.35]"]


def test_the_best_head_of_each_function_is_told_whether_or_not_it_makes_a_role(run: Run) -> None:
    table = best_table(run, "encoder-self")
    assert table is not None
    assert table.columns[0] == "function" and table.columns[-1].endswith("(4)")
    line = next(line.cells for line in table.lines if line.cells[0] == "nsubj→verb")
    assert line[1:] == ["0.70 ✓\n2/0", "0.66 ✓\n2/0", "0.64 ✓\n2/4", "0.68 ✓\n2/4"]
    assert all("✓" not in cell for line in table.lines if line.cells[0] == "advmod→verb" for cell in line.cells)


def test_squares_and_cells_are_the_heads_and_their_roles(run: Run) -> None:
    left, each = (figure.specification() for figure in drift_figures(run))
    squares = [r for r in all_values(left) if "sort" in r]
    for change in changes(run, "encoder-self"):
        mine = [row for row in squares if row["model"] == change.setting.label]
        assert {row["address"] for row in mine} == {str(h) for h in change.heads}
        assert sum(row["right"] - row["left"] for row in mine) == pytest.approx(0.92 * len(change.heads), abs=0.01)
    double = [row["sort"] for row in squares if row["model"] == "full model" and row["address"] == "encoder-self/2/4"]
    assert double == ["positional", "syntactic"]
    cells = {(row["role"], row["model"].split("|")[0]): row for row in all_values(each)}
    moved = [cells["2/4  nsubj→verb", f"λ\u00a0=\u00a0{x}"] for x in ("0.02", "0.05", "0.2")]
    assert [(cell["held"], cell["became"]) for cell in moved] == [(False, "no role"), (True, "new"), (True, "new")]
    gone = cells["1/5  obj→verb", "λ\u00a0=\u00a00.2"]
    assert (gone["there"], gone["held"], gone["became"]) == (False, False, "head removed")


def all_values(specification: dict[str, Any]) -> list[dict[str, Any]]:
    """All rows of data in a specification."""
    return [row for values in specification["datasets"].values() for row in values]


def scored(run: Run, before: list[float], after: list[float], measure: str) -> Run:
    """Heads of one layer with a score before and after, in the setting of 17 heads."""
    columns = ["kind", "layer", "head", "measure", "value", "low", "high", "n", "baseline"]
    tables = [
        pd.DataFrame([("encoder-self", 0, h, measure, v, v, v, 9, None) for h, v in enumerate(values)], columns=columns)
        for values in (before, after)
    ]
    return replace(run, heads=tables[0], after={"lambda-0.02": After(tables[1], None)})


def test_rank_correlation_is_that_of_the_heads_that_stay(run: Run) -> None:
    (found,) = pairs(scored(run, [1, 2, 3, 4, 9, 8], [10, 30, 20, 40], "confidence"))
    assert len(found.table) == 4
    assert found.rank == pytest.approx(0.8)  # 1 − 6·2/(4·15)
    (few,) = pairs(scored(run, [1, 2, 3], [1, 2, 3], "confidence"))
    assert math.isnan(few.rank)
    (same,) = pairs(scored(run, [1, 2, 3, 4], [5, 5, 5, 5], "gradient"))
    assert math.isnan(same.rank)


def test_lrp_before_pruning_is_the_share_among_the_heads_that_stay(run: Run) -> None:
    (found,) = pairs(scored(run, [0.1, 0.3, 0.2, 0.2, 0.2], [0.5, 0.25, 0.125, 0.125], "lrp.ding"))
    assert found.table["before"].tolist() == pytest.approx([0.125, 0.375, 0.25, 0.25])
    assert pairs(scored(run, [0.4, 0.6], [1.0], "lrp.ding")) == []  # the only head of its layer always has all of it


def test_scores_are_shown_for_the_chosen_setting_and_ranked_for_all(run: Run) -> None:
    figure, table = score_drift(run), rank_table(run)
    assert figure is not None and "0.05" in figure.title and len(figure.panels) == 3
    assert table is not None and len(table.lines) == 3
    assert table.columns == ["model", "LRP-Ding", "confidence", "gradient"]
    assert table.lines[1].badge == "chosen" and table.lines[1].cells[2].endswith("n = 9")
    assert "with λ\u00a0=\u00a00.05: gradient +0.97 (n = 9)" in rank_sentence(run)


def test_what_is_not_there_is_left_out(run: Run, run_folder: Path) -> None:
    bare = read_run(run_folder)
    assert bare.after == {} and drift(bare) is None
    assert drift_figures(bare) == [] and score_drift(bare) is None
    assert 'id="drift"' not in render(bare, draw(bare))
    only = replace(run, after={name: After(a.heads, None) for name, a in run.after.items()})
    found = drift(only)
    assert found is not None and found["best"] == [] and found["ranks"] is not None
    unscored = replace(run, heads=None)
    found = drift(unscored)
    assert found is not None and found["ranks"] is None


def test_a_setting_that_lost_all_its_heads_has_an_empty_folder(run_folder: Path) -> None:
    write_after(run_folder)
    shutil.rmtree(run_folder / "after" / "lambda-0.2")
    (run_folder / "after" / "lambda-0.2").mkdir()
    assert [c.setting.name for c in changes(read_run(run_folder), "encoder-self")] == ["lambda-0.02", "lambda-0.05"]


def test_the_page_tells_it_all(run: Run) -> None:
    page = render(run, draw(run))
    assert '<a href="#drift">Drift</a>' in page
    assert "17 roles that changed" in page
    assert 'id="chart-functions-left-encoder-self-0"' in page
    assert 'id="chart-scores-after-2"' in page
