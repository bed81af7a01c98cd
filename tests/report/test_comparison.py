"""The report of two runs: which heads are paired, numbers against those of the files, and what is refused."""

from __future__ import annotations

import json
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
from headwise import HeadwiseError
from headwise.report.comparison import difference, on_same_sentences, read_comparison
from headwise.report.page import Table, collect, render
from headwise.roles.role import MATCHES
from report.conftest import data_of, make_run
from report.made_language import make_language
from report.made_other import GAINED, GONE, another_model, make_other
from report.visits import visit


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Two runs of one model, not to be changed."""
    folder = tmp_path_factory.mktemp("runs")
    return make_run(folder / "first"), make_other(folder / "second")


@pytest.fixture(scope="module")
def content(runs: tuple[Path, Path]) -> dict[str, dict[str, Any]]:
    return collect(read_comparison(*runs))


def cells(found: Table | None) -> list[list[str]]:
    assert found is not None
    return [row.cells for row in found.rows]


def test_settings_that_differ_are_listed_with_both_values(
    content: dict[str, dict[str, Any]],
) -> None:
    shown = cells(content["comparison_settings"]["settings"])
    assert shown == [["prune.max_drop", "1.0", "0.5"], ["extra.note", "–", "<b>only here</b>"]]


def test_every_score_is_paired_head_by_head(
    content: dict[str, dict[str, Any]], runs: tuple[Path, Path]
) -> None:
    found, tables = content["comparison_scores"], [pd.read_csv(run / "heads.csv") for run in runs]
    keyed = [table.set_index(["kind", "layer", "head", "measure"])["value"] for table in tables]
    for panel, measure in enumerate(("lrp.ding", "confidence", "gradient", "ablation.zero")):
        one, other = (values.xs(measure, level="measure") for values in keyed)
        points = [row for row in data_of(found["points"], panel) if "address" in row]
        assert len(points) == 24
        squares = {
            row["address"]: row for row in data_of(found["maps"][0], panel) if "address" in row
        }
        for row in points:
            kind, layer, head = row["address"].split("/")
            key = (kind, int(layer), int(head))
            assert (row["before"], row["after"]) == pytest.approx((one[key], other[key]), rel=1e-5)
            assert squares[row["address"]]["value"] == pytest.approx(
                other[key] - one[key], abs=2e-6
            )
    one, other = (values.xs("gradient", level="measure") for values in keyed)
    row = next(row for row in cells(found["ranks"]) if row[0] == "Gradient")
    value, low, high = (float(text.replace("−", "-")) for text in re.findall(r"[+−][\d.]+", row[2]))
    assert value == pytest.approx(spearmanr(one, other).statistic, abs=0.005)
    error = math.sqrt((1 + value**2 / 2) / 21)
    ends = [math.tanh(math.atanh(value) + side * 1.96 * error) for side in (-1, 1)]
    assert [low, high] == pytest.approx(ends, abs=0.01)


def test_roles_of_one_run_only(content: dict[str, dict[str, Any]]) -> None:
    found = content["comparison_roles"]
    shown = {(row[0], row[-1]) for row in cells(found["changed"])}
    assert shown == {
        (f"encoder-self/{GONE[1]}/{GONE[2]}", "only A"),
        (f"encoder-self/{GAINED[1]}/{GAINED[2]}", "only B"),
    }
    assert ["Rare tokens", "1 head", "0 heads"] in cells(found["counts"])


def test_heads_kept_at_equal_counts(content: dict[str, dict[str, Any]]) -> None:
    found = content["comparison_layouts"]
    counts = {row[0].split()[0]: row[3:] for row in cells(found["layouts"])}
    assert counts["17"] == ["17", "12.0", "–", "–"]
    only = [["encoder-self/0/6 and encoder-self/2/6"], ["encoder-self/0/5 and encoder-self/2/7"]]
    assert counts["9"] == ["7", f"{81 / 24:.1f}", *only[0], *only[1]]
    drawn = {row["address"]: row["group"] for row in data_of(found["map"]) if "address" in row}
    assert [drawn[f"encoder-self/{head}"] for head in ("0/3", "0/6", "0/5", "1/1")] == [
        "both",
        "only A",
        "only B",
        "neither",
    ]


def test_curves_of_both_runs_share_a_figure(content: dict[str, dict[str, Any]]) -> None:
    rows = [row for row in data_of(content["comparison_cost"]["curves"]) if "model" in row]
    assert {(row["data"], row["kept"], row["value"]) for row in rows} >= {
        (name, 37.5, -0.31) for name in ("A · first", "B · second")
    }


def test_the_page_starts_with_the_difference_and_its_interval(runs: tuple[Path, Path]) -> None:
    found = read_comparison(*runs)
    a, b = (run.translations["lambda-0.05"] for run in found.both)
    assert a == b
    sentence = (
        "on the same 60 sentences, not distinguishable; A keeps 9 and B 9 of 24 encoder heads"
    )
    assert difference(found) == f"B − A: 0.00 BLEU [0.00, 0.00] {sentence}"

    other = found.both[1]
    worse = [line.replace("la", "une") for line in b]
    changed = replace(other, translations={**other.translations, "lambda-0.05": worse})
    direct = replace(found, runs=dict(zip(found.runs, (found.both[0], changed), strict=True)))
    value, low, high, p, sentences = on_same_sentences(direct) or pytest.fail("not compared")
    assert low < value < high < 0 and p < 0.05 and sentences == 60
    assert "not distinguishable" not in difference(direct)


def test_without_translations_the_difference_is_that_of_the_changes(
    runs: tuple[Path, Path],
) -> None:
    found = read_comparison(*runs)
    models = found.both[1].models.copy()
    names = [f"bleu_difference{end}" for end in ("", ".low", ".high")]
    models.loc["lambda-0.05", names] = [0.69, 0.39, 1.09]
    both = (
        replace(found.both[0], translations={}),
        replace(found.both[1], translations={}, models=models),
    )
    bare = replace(found, runs=dict(zip(found.runs, both, strict=True)))
    # 0.69 − −0.31 = 1; down √(0.3² + 0.42²), up √(0.4² + 0.4²)
    assert difference(bare).startswith("B − A: +1.00 BLEU [+0.48, +1.57], each compared with the")
    unpruned = [replace(run, models=run.models.iloc[:0]) for run in found.both]
    scored = replace(found, runs=dict(zip(found.runs, unpruned, strict=True)))
    assert re.match(r"LRP-Ding ranks the 24 heads of A and B with a .* \[", difference(scored))


def test_models_trained_apart_are_compared_without_their_heads(
    runs: tuple[Path, Path], tmp_path: Path
) -> None:
    apart = read_comparison(runs[0], another_model(make_other(tmp_path / "apart")))
    found = collect(apart)
    assert "trained apart" in apart.reason and apart.heads == []
    assert not {"comparison_scores", "comparison_heads"} & set(found)
    assert (
        found["comparison_roles"]["changed"] is None and found["comparison_layouts"]["map"] is None
    )
    assert cells(found["comparison_layouts"]["layouts"])[1][3:] == ["3 · 2 · 4", "3 · 2 · 4"]
    assert "Heads are not compared one by one" in render(apart, found)
    plan = apart.both[1].folder / "plan.toml"
    plan.write_text(plan.read_text() + "\n[model]\nheads = 8\n")  # as every study that trains
    assert read_comparison(runs[0], plan.parent).heads == []


def matches(folder: Path) -> Path:
    """Two heads of the first model with heads of the second in other layers."""
    table = pd.DataFrame(0.5, index=range(2), columns=list(MATCHES))
    table[["kind", "other_kind"]] = "encoder-self"
    table[["layer", "head", "other_layer", "other_head", "n"]] = [[0, 6, 2, 1, 9], [1, 0, 0, 3, 9]]
    table[["affinity", "p"]] = [[0.91, 0.004], [0.62, 0.4]]
    table["confirmed"] = [True, False]
    table.to_csv(folder / "matches.csv", index=False)
    return folder / "matches.csv"


def test_matched_heads_stand_beside_their_roles(runs: tuple[Path, Path], tmp_path: Path) -> None:
    apart = another_model(make_other(tmp_path / "apart"))
    found = read_comparison(runs[0], apart, matches(tmp_path))
    shown = collect(found)["comparison_matches"]["tables"][0]
    assert [row.cells[:3] for row in shown.rows] == [
        ["encoder-self/0/6", "encoder-self/2/1", "0.91\n[0.50, 0.50]"]
    ]
    assert "rare tokens" in shown.rows[0].cells[shown.columns.index("roles in A · first")]
    assert "1 of 2 pairs" in render(found, collect(found))
    assert "comparison_matches" not in collect(read_comparison(runs[0], apart))


def test_given_models_are_paired_with_a_doubt(runs: tuple[Path, Path], tmp_path: Path) -> None:
    folders = [make_run(tmp_path / "one"), another_model(make_other(tmp_path / "other"))]
    for folder in folders:
        plan = folder / "plan.toml"
        plan.write_text(f'model = "given-{folder.name}"\n{plan.read_text()}')
    found = read_comparison(*folders)
    assert len(found.heads) == 24 and not found.same_model
    assert "That has a meaning where" in render(found, collect(found))


def test_a_language_model_beside_a_translation_model(
    runs: tuple[Path, Path], tmp_path: Path
) -> None:
    found = read_comparison(runs[0], make_language(tmp_path / "language"))
    text = render(found, collect(found))
    assert "The two have other heads" in found.reason
    assert "one run is measured in BLEU, the other in perplexity" in text


def test_a_kind_that_some_measures_lack(runs: tuple[Path, Path], tmp_path: Path) -> None:
    """Its figure has the measures that are there."""
    folders = make_run(tmp_path / "one"), make_other(tmp_path / "other")
    for folder in folders:
        table = pd.read_csv(folder / "heads.csv")
        rows = table[table["measure"] == "gradient"].assign(kind="cross")
        rows.loc[rows.index[::2], "value"] = math.nan
        pd.concat([table, rows]).to_csv(folder / "heads.csv", index=False)
    found = collect(read_comparison(*folders))["comparison_scores"]
    assert [len(figure.panels) for figure in found["maps"]] == [4, 1]
    assert hw.compare(*folders, tmp_path / "page").is_file()


def test_bad_input_is_refused_and_nothing_is_written(
    runs: tuple[Path, Path], tmp_path: Path
) -> None:
    one, other = runs
    (tmp_path / "grid").mkdir()
    (tmp_path / "grid" / "grid.json").write_text("{}")
    bare = tmp_path / "bare"
    bare.mkdir()
    (bare / "run.json").write_text(json.dumps({"signature": {}}))
    for first, second, says in (
        (one, tmp_path / "nothing", "no folder"),
        (one, one.parent / ".." / one.parent.name / one.name, "same folder"),
        (tmp_path / "grid", one, "several runs"),
        (one, bare, "nothing to compare"),
    ):
        with pytest.raises(HeadwiseError, match=says):
            hw.compare(first, second, tmp_path / "out")
    with pytest.raises(HeadwiseError, match="there is something else"):
        hw.compare(one, other, one)
    assert not (tmp_path / "out").exists() and not (one / "report.html").exists()


@pytest.mark.parametrize(("width", "theme"), [(1280, "light"), (400, "dark")])
def test_its_page_opens_cleanly_and_heads_are_picked(
    browser: Any, runs: tuple[Path, Path], tmp_path: Path, width: int, theme: Any
) -> None:
    found, page = read_comparison(*runs), tmp_path / "report.html"
    page.write_text(render(found, collect(found)), encoding="utf-8")
    seen = visit(browser, page, width, theme, "#head=encoder-self/0/6")
    assert (seen.console, seen.requests) == ([], [page.as_uri()])
    assert seen.page.evaluate("document.documentElement.scrollWidth") <= width
    card = seen.page.locator("#picked").inner_text()
    assert (
        "A · first: rare tokens" in card
        and "B · second: λ\u00a0=\u00a00.05, chosen: removed" in card
    )
    marked = set(
        seen.page.evaluate(
            "[...document.querySelectorAll('figure:has(.is-picked)')].map(f => f.id)"
        )
    )
    assert {
        "figure-scores-of-both",
        "figure-score-differences-encoder-self",
        "figure-kept-by-both",
    } <= marked
    assert serious(seen.page) == []
    seen.page.context.close()
