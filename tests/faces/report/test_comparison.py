"""The report of two runs: which heads are paired, numbers against those of the files, and what is refused."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from scipy.stats import spearmanr

import headwise as hw
from axe import serious
from faces.report.conftest import data_of
from faces.report.made import APART, change, make_language, make_other, make_run
from faces.report.visits import visit
from headwise import HeadwiseError
from headwise.core.measured import ModelNumbers
from headwise.core.qualities import BLEU, Number
from headwise.faces.report.comparison import difference, on_same_sentences, read_comparison
from headwise.faces.report.page import PageTable, collect, render
from headwise.faces.report.run_folder import RunContents
from headwise.faces.report.runs import Runs

Content = dict[str, dict[str, Any]]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Two runs of one model, not to be changed."""
    folder = tmp_path_factory.mktemp("runs")
    return make_run(folder / "first"), make_other(folder / "second")


@pytest.fixture(scope="module")
def found(runs: tuple[Path, Path]) -> Runs:
    return read_comparison(*runs)


@pytest.fixture(scope="module")
def content(found: Runs) -> Content:
    return collect(found)


@pytest.fixture(scope="module")
def both(found: Runs) -> tuple[RunContents, RunContents]:
    one, other = found.runs.values()
    return one, other


def cells(table: PageTable | None) -> list[list[str]]:
    assert table is not None
    return [row.cells for row in table.rows]


def test_every_score_is_paired_head_by_head(content: Content, found: Runs) -> None:
    scores, keyed = content["paired_heads"]["points"], []
    for run in found.runs.values():
        table = run.heads.assign(
            address=run.heads[["kind", "layer", "head"]].astype(str).agg("/".join, axis=1)
        )
        keyed.append(table.set_index(["measure", "address"])["value"])
    for panel, measure in enumerate(("lrp.ding", "confidence", "gradient", "ablation.zero")):
        before, after = (values[measure].to_dict() for values in keyed)
        points = [row for row in data_of(scores, panel) if "address" in row]
        assert {row["address"]: row["before"] for row in points} == pytest.approx(before, rel=1e-5)
        assert {row["address"]: row["after"] for row in points} == pytest.approx(after, rel=1e-5)
    said = re.search(r"Gradient (\S+) \[(\S+), (\S+)\]", scores.facts)
    assert said is not None
    value, low, high = (float(text.replace("−", "-")) for text in said.groups())
    one, other = (values["gradient"] for values in keyed)
    assert value == pytest.approx(spearmanr(one, other).statistic, abs=0.005)
    error = math.sqrt((1 + value**2 / 2) / 21)
    ends = [math.tanh(math.atanh(value) + side * 1.96 * error) for side in (-1, 1)]
    assert [low, high] == pytest.approx(ends, abs=0.01)


def test_heads_kept_in_both(content: Content, both: tuple[RunContents, RunContents]) -> None:
    layouts = content["paired_heads"]["layouts"]
    kept = {row[0]: row[1:] for row in cells(layouts)}
    only = ["encoder-self/0/6 and encoder-self/2/6", "encoder-self/0/5 and encoder-self/2/7"]
    # 9 · 9 / 24 would be the same at random.
    shared = "7, of 9 by A and 9 by B"
    a, b = ({head.layer: 0 for head in run.layouts["lambda-0.05"].kept} for run in both)
    for counts, run in zip((a, b), both, strict=True):
        for head in run.layouts["lambda-0.05"].kept:
            counts[head.layer] += 1
    within = sum(a[layer] * b.get(layer, 0) / 8 for layer in a)
    assert kept["λ\u00a0=\u00a00.05"] == [shared, f"{81 / 24:.1f}", f"{within:.1f}", *only]
    maps = content["paired_heads"]["maps"]
    assert [figure.title.partition(":")[0] for figure in maps] == ["A · first", "B · second"]
    for figure, letter in zip(maps, "AB", strict=True):
        drawn = {row["address"]: row["kept"] for row in data_of(figure) if "address" in row}
        kept_heads = [drawn[f"encoder-self/{head}"] for head in ("0/3", "0/6", "0/5", "1/1")]
        only_one = ["kept", "removed"] if letter == "A" else ["removed", "kept"]
        assert kept_heads == ["kept", *only_one, "removed"]


def test_models_of_both_stand_in_one_table(content: Content) -> None:
    table = content["runs_models"]["models"]
    rows = [row for row in cells(table) if row[0] == "λ\u00a0=\u00a00.05"]
    assert [row[1] for row in rows] == ["A · first", "B · second"]
    assert all(any(cell.startswith("−0.31 [−0.71, +0.11]") for cell in row) for row in rows)


def test_curves_of_both_runs_share_a_figure(content: Content) -> None:
    rows = [row for row in data_of(content["runs_models"]["curves"]) if "model" in row]
    shown = {(row["data"], row["kept"], row["value"]) for row in rows}
    assert shown >= {(name, 37.5, -0.31) for name in ("A · first", "B · second")}


def test_the_difference_is_that_on_the_same_sentences(
    both: tuple[RunContents, RunContents],
) -> None:
    one, other = both
    b = other.translations["lambda-0.05"]
    assert one.translations["lambda-0.05"] == b
    found = difference(one, other)
    assert found.startswith("B − A: 0.00 BLEU [−") and "[0.00, 0.00]" not in found
    assert " on the same 60 sentences, not" in found
    worse = [line.replace("la", "une") for line in b]
    changed = replace(other, translations={**other.translations, "lambda-0.05": worse})
    assert one.chosen is not None and changed.chosen is not None
    change, how = on_same_sentences((one, one.chosen), (changed, changed.chosen)) or pytest.fail()
    assert change.value is not None and change.value < 0 and change.finding(BLEU) == "worse"
    assert "60 sentences" in how
    assert "not distinguishable" not in difference(one, changed)


def test_without_translations_the_difference_is_that_of_the_changes(
    both: tuple[RunContents, RunContents],
) -> None:
    one, other = both
    models = other.model_table.copy()
    changed = {("test", "bleu", "full"): Number(0.69, 0.39, 1.09)}
    models["numbers"] = [ModelNumbers(numbers | changed) for numbers in models["numbers"]]
    mute = replace(one, translations={}), replace(other, translations={}, model_table=models)
    # 0.69 − −0.31 = 1; down √(0.3² + 0.42²), up √(0.4² + 0.4²)
    said = difference(*mute)
    assert said.startswith("B − A: +1.00 BLEU [+0.48, +1.57], each compared with the")


def test_runs_that_only_scored_are_compared_by_their_scores(tmp_path: Path) -> None:
    scored = {"pruning.csv": None, "layouts": None}
    folders = change(make_run(tmp_path / "a"), scored), change(make_other(tmp_path / "b"), scored)
    found = read_comparison(*folders)
    assert re.match(
        r"Rank correlation of the 24 heads of A and B by LRP-Ding .* \[", found.headline
    )
    assert "runs_models" not in collect(found)


def test_models_trained_apart_are_compared_without_their_heads(
    runs: tuple[Path, Path], tmp_path: Path
) -> None:
    apart = read_comparison(runs[0], make_other(tmp_path / "apart", **APART))
    assert "trained apart" in apart.notes[0] and apart.heads == []
    shown = collect(apart)
    assert "every_head_of_both" not in shown
    assert not [name for name in ("points", "roles", "layouts") if shown["paired_heads"][name]]
    plan = {"plan.toml": lambda text: text + "\n[model]\nheads = 8\n"}  # as every study that trains
    trained = change(tmp_path / "apart", plan)
    assert read_comparison(runs[0], trained).heads == []


def test_given_models_are_paired_with_a_doubt(tmp_path: Path) -> None:
    folders = [make_run(tmp_path / "one"), make_other(tmp_path / "other", **APART)]
    for at, folder in enumerate(folders):
        change(folder, {"plan.toml": lambda text, at=at: f'model = "given-{at}"\n{text}'})
    given = read_comparison(*folders)
    assert len(given.heads) == 24
    assert "That has a meaning where" in render(given, collect(given))


def test_a_language_model_beside_a_translation_model(
    runs: tuple[Path, Path], tmp_path: Path
) -> None:
    unlike = read_comparison(runs[0], make_language(tmp_path / "language"))
    assert "the two have other heads" in unlike.notes[0]
    text = render(unlike, collect(unlike))
    assert "one run is measured in BLEU, another in perplexity" in text


def test_a_kind_that_some_measures_lack(tmp_path: Path) -> None:

    def with_cross(table: pd.DataFrame) -> pd.DataFrame:
        rows = table[table["measure"] == "gradient"].assign(kind="cross")
        rows.loc[rows.index[::2], "value"] = math.nan
        return pd.concat([table, rows])

    folders = make_run(tmp_path / "one"), make_other(tmp_path / "other")
    for folder in folders:
        change(folder, {"heads.csv": with_cross})
    points = collect(read_comparison(*folders))["paired_heads"]["points"]
    assert ["36 heads" in panel.title for panel in points.panels].count(True) == 1
    assert hw.report(*folders, out=tmp_path / "page").is_file()


def test_bad_input_is_refused_and_nothing_is_written(
    runs: tuple[Path, Path], tmp_path: Path
) -> None:
    one, other = runs
    grid = change(tmp_path / "grid", {"grid.json": {}})
    bare = change(tmp_path / "bare", {"run.json": {"signature": {}}})
    for first, second, place, says in (
        (one, tmp_path / "nothing", tmp_path / "out", "no folder"),
        (one, one.parent / ".." / one.parent.name / one.name, tmp_path / "out", "same folder"),
        (grid, one, tmp_path / "out", "several studies"),
        (one, bare, tmp_path / "out", "nothing to compare"),
        (one, other, one, "there is something else"),
    ):
        with pytest.raises(HeadwiseError, match=says):
            hw.report(first, second, out=place)
    assert not (tmp_path / "out").exists() and not (one / "report.html").exists()


@pytest.mark.parametrize(("width", "theme"), [(1280, "light"), (400, "dark")])
def test_its_page_opens_cleanly_and_heads_are_picked(
    browser: Any, found: Runs, content: Content, tmp_path: Path, width: int, theme: Any
) -> None:
    page = tmp_path / "report.html"
    page.write_text(render(found, content), encoding="utf-8")
    seen = visit(browser, page, width, theme, "#head=encoder-self/0/6")
    assert (seen.console, seen.requests) == ([], [page.as_uri()])
    assert seen.page.evaluate("document.documentElement.scrollWidth") <= width
    card = seen.page.locator("#picked").inner_text()
    assert "A · first: rare tokens" in card
    assert "B · second: λ\u00a0=\u00a00.05, chosen: removed" in card
    figures = "[...document.querySelectorAll('figure:has(.is-picked)')].map(f => f.id)"
    picked = {"scores-of-both", "head-map-a", "head-map-b"}
    assert {f"figure-{name}" for name in picked} <= set(seen.page.evaluate(figures))
    assert serious(seen.page) == []
    seen.page.context.close()
