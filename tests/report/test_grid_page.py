"""The page of a grid: means over seeds, pairs side by side, and what is missing is said."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pandas as pd
import pytest

from headwise.errors import HeadwiseError
from headwise.report import write
from headwise.report.grid import Grid, pooled, read_grid
from headwise.report.grid_figures import pairs_figure, seed_figures
from headwise.report.grid_page import draw, headline, means_table, pairs_table, render
from report.made_sweeps import write_grid, write_sweeps


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_grid(tmp_path_factory.mktemp("grid"))


@pytest.fixture(scope="module")
def grid(folder: Path) -> Grid:
    return read_grid(folder)


@pytest.fixture(scope="module")
def page(grid: Grid) -> str:
    return re.sub(r"<script.*?</script>", "", render(grid, draw(grid)), flags=re.DOTALL)


def test_means_stand_where_their_differences_put_them(folder: Path, grid: Grid) -> None:
    models = pooled(grid, "en-de")
    assert models is not None
    assert models.full is not None
    assert models.full.value("bleu") == pytest.approx(38.2 + 0.3 * 2)
    (setting,) = [s for s in models.pruned if s.name == "encoder.lambda-0.04"]
    tables = [pd.read_csv(folder / "en-de" / f"seed-{seed}" / "pruning.csv") for seed in (1, 2, 3)]
    same = [t[(t["setting"] == setting.name) & (t["measure"] == "bleu_difference")].iloc[0] for t in tables]
    mean = sum(row["value"] for row in same) / 3
    assert setting.measures["bleu_difference"].value == pytest.approx(mean)
    assert setting.measures["bleu_difference"].low == pytest.approx(mean - 0.4)
    assert setting.value("bleu") == pytest.approx(38.8 + mean)
    assert setting.asked["kept"] == [min(row["kept"] for row in same), max(row["kept"] for row in same)]
    assert setting.asked["seeds"] == 3


def test_a_setting_of_one_seed_keeps_its_own_interval(tmp_path: Path) -> None:
    folder = write_grid(tmp_path)
    path = folder / "en-fr" / "seed-2" / "pruning.csv"
    table = pd.read_csv(path)
    table[table["setting"] != "encoder.keep-6"].to_csv(path, index=False)
    means = pd.read_csv(folder / "across.csv")
    means[(means["data"] != "en-fr") | (means["setting"] != "encoder.keep-6")].to_csv(
        folder / "across.csv", index=False
    )
    models = pooled(read_grid(folder), "en-fr")
    assert models is not None
    (setting,) = [s for s in models.pruned if s.name == "encoder.keep-6"]
    alone = pd.read_csv(folder / "en-fr" / "seed-1" / "pruning.csv")
    row = alone[(alone["setting"] == "encoder.keep-6") & (alone["measure"] == "bleu_difference")].iloc[0]
    found = setting.measures["bleu_difference"]
    assert (found.value, found.low, found.high) == pytest.approx((row["value"], row["low"], row["high"]))
    assert setting.asked["seeds"] == 1


def test_a_difference_to_anything_has_a_column(tmp_path: Path) -> None:
    folder = write_grid(tmp_path)
    path = folder / "en-fr" / "seed-1" / "pruning.csv"
    table = pd.read_csv(path)
    known = table[(table["setting"] == "encoder.one-per-layer") & (table["measure"] == "bleu_difference")]
    new = known.assign(measure="bleu_difference_to_random", value=0.7, low=0.3, high=1.1)
    pd.concat([table, new]).to_csv(path, index=False)
    means = {data: means_table(read_grid(folder), data) for data in ("en-de", "en-fr")}
    assert means["en-de"] is not None and "to random heads" not in means["en-de"].columns
    assert means["en-fr"] is not None
    (line,) = [line.cells for line in means["en-fr"].lines if line.cells[0].endswith("best head of each layer")]
    assert line[means["en-fr"].columns.index("to random heads")] == "+0.70 [+0.30, +1.10]"


def test_every_seed_has_a_mark(grid: Grid) -> None:
    figures = seed_figures(grid, "en-de")
    assert [figure.name for figure in figures] == [
        "bleu-by-heads-encoder-self-en-de",
        "bleu-by-heads-encoder-self-decoder-self-cross-en-de",
    ]
    cells = [c for rows in figures[0].panels[0].specification()["datasets"].values() for c in rows]
    marks = [c for c in cells if "seed" in c and c["model"].endswith("0.04")]
    assert {c["seed"] for c in marks} == {"seed 1", "seed 2", "seed 3"}
    assert {c["x"] for c in marks} == {8, 9, 10}
    assert not any(c["model"].startswith("all") for c in cells if "seed" in c)


def test_what_each_seed_chose_is_ringed_where_it_is_drawn(grid: Grid) -> None:
    encoder, everything = seed_figures(grid, "en-de")
    cells = [c for rows in encoder.panels[0].specification()["datasets"].values() for c in rows if c.get("chosen")]
    kept = {f"seed {m.seed}": m.chosen.kept for m in grid.of("en-de") if m.chosen}
    assert {c["seed"]: c["x"] for c in cells} == kept
    assert "ring" in encoder.note and "ringed" in encoder.caption
    assert "grey band spans the random orders" in encoder.caption and "falls out of the panels" in encoder.caption
    assert "Each point is a model" not in encoder.caption
    assert "ring" not in everything.note.replace("bars", "") and "ringed" not in everything.caption


def test_a_mean_number_of_heads_need_not_be_whole(tmp_path: Path) -> None:
    folder = write_grid(tmp_path)
    path = folder / "en-de" / "seed-1" / "pruning.csv"
    table = pd.read_csv(path)
    table.loc[table["setting"] == "encoder.lambda-0.04", "kept"] = 10
    table.to_csv(path, index=False)
    grid = read_grid(folder)
    setting = next(s for m in [pooled(grid, "en-de")] if m for s in m.settings if s.name == "encoder.lambda-0.04")
    tables = [pd.read_csv(folder / "en-de" / f"seed-{seed}" / "pruning.csv") for seed in (1, 2, 3)]
    mean = sum(t.loc[t["setting"] == setting.name, "kept"].iloc[0] for t in tables) / 3
    assert setting.mean_kept == pytest.approx(mean)
    assert mean != round(mean)
    cells = [c for rows in seed_figures(grid, "en-de")[0].panels[0].specification()["datasets"].values() for c in rows]
    assert {c["x"] for c in cells if c.get("model") == setting.label and "seed" not in c} == {round(mean, 2)}
    means = means_table(grid, "en-de")
    assert means is not None
    (line,) = [line.cells for line in means.lines if line.cells[0] == setting.label]
    assert line[2].startswith(f"{mean:.1f} (")


def test_pairs_side_by_side(grid: Grid) -> None:
    figure, table = pairs_figure(grid), pairs_table(grid)
    assert figure is not None
    assert table is not None
    assert table.columns == ["model", "en-de", "en-fr"]
    assert table.lines[0].cells[1:] == ["38.80", "44.65"]
    assert all(
        re.search(r"\n\d+ of \d+ heads, [23] seeds", cell) for line in table.lines[1:] for cell in line.cells[1:]
    )
    means = means_table(grid, "en-fr")
    assert means is not None
    assert {line.cells[1] for line in means.lines} == {"2"}


def test_what_is_missing_or_failed_is_said(page: str) -> None:
    assert "2 language pairs, 3 seeds: 5 of 6 studies have results" in page
    assert "No results yet of en-fr, seed 3 (not begun)" in page
    assert "prune/all.keep-3: RuntimeError: &lt;out of memory&gt;" in page
    assert page.count('href="en-de/seed-1/report.html"') == 1
    assert 'href="en-de/seed-2' not in page


def test_a_grid_that_has_only_begun(tmp_path: Path) -> None:
    listed = [{"folder": f"seed-{seed}", "data": "", "seed": seed} for seed in (1, 2)]
    (tmp_path / "grid.json").write_text(json.dumps({"name": "begun", "members": listed}))
    grid = read_grid(tmp_path)
    text = render(grid, draw(grid))
    assert "2 seeds: 0 of 2 studies have results" in text
    assert "none of these studies has measured a pruned model yet" in text
    write_sweeps(tmp_path / "seed-1", 1)
    (tmp_path / "seed-2").mkdir()
    (tmp_path / "seed-2" / "run.json").write_text("{ broken")
    grid = read_grid(tmp_path)
    text = render(grid, draw(grid))
    assert "1 of 2 studies" in text
    assert "cannot be read" in text
    assert "One seed so far" in text
    assert pairs_figure(grid) is None


def test_greedy_models_have_a_table_of_their_own(grid: Grid) -> None:
    first, second = means_table(grid, "en-de"), means_table(grid, "en-de", trained=False)
    assert first is not None and second is not None
    run = pooled(grid, "en-de")
    assert run is not None
    names = [line.cells[0] for table in (first, second) for line in table.lines]
    assert sorted(names) == sorted(["full model", *(s.label for s in run.settings)])
    assert any("gradient" in line.cells[0] for line in second.lines)


def test_two_studies_are_both_and_one_is_it(tmp_path: Path) -> None:
    for seeds, told in (((1, 2), "2 seeds: both studies have results"), ((1,), "One study: it has results")):
        for seed in seeds:
            write_sweeps(tmp_path / f"seed-{seed}", seed)
        listed = [{"folder": f"seed-{seed}", "data": "", "seed": seed} for seed in seeds]
        (tmp_path / "grid.json").write_text(json.dumps({"name": "some", "members": listed}))
        assert headline(read_grid(tmp_path)) == told


def test_a_grid_without_test_text_tells_of_dev(tmp_path: Path) -> None:
    folder = write_grid(tmp_path)
    for path in (folder / "across.csv", *folder.glob("*/*/pruning.csv")):
        table = pd.read_csv(path)
        table[~table["measure"].str.match("bleu|p_value")].to_csv(path, index=False)
    grid = read_grid(folder)
    means, pairs, figure = means_table(grid, "en-de"), pairs_table(grid), pairs_figure(grid)
    assert means is not None and "BLEU on dev" in means.columns
    assert all("–" not in line.cells[3] for line in means.lines)
    assert pairs is not None and all("–" not in cell for cell in pairs.lines[0].cells)
    assert figure is not None and "BLEU on dev" in json.dumps(figure.specification())
    text = render(grid, draw(grid))
    assert "full model, BLEU on dev" in text and "test text" not in re.sub(r"<script.*?</script>", "", text, flags=re.S)


def test_a_grid_is_written_where_a_run_would_be(tmp_path: Path) -> None:
    folder = write_grid(tmp_path / "grid")
    for data in ("en-fr", "en-de/seed-2", "en-de/seed-3"):
        shutil.rmtree(folder / data)
    (folder / "across.csv").unlink()
    page = write(folder)
    assert page == folder / "report.html"
    assert "1 of 6 studies have results" in page.read_text(encoding="utf-8")
    assert (folder / "figures" / "bleu-by-heads-encoder-self-en-de.png").is_file()


def test_a_list_of_studies_that_is_none_is_refused(tmp_path: Path) -> None:
    (tmp_path / "grid.json").write_text('{"members": [{"data": "en-de"}]}')
    with pytest.raises(HeadwiseError, match="should name the studies of a grid"):
        write(tmp_path)
