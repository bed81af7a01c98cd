"""The page of a grid: means over seeds, and what is missing or damaged is named."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

from faces.report.conftest import data_of
from faces.report.made import change, chosen_rows, read, without
from faces.report.made_sweeps import write_grid
from headwise.core.errors import HeadwiseError
from headwise.faces.report import report
from headwise.faces.report.page import collect, page_files
from headwise.faces.report.runs import Runs, read_grid, seed_figures


@pytest.fixture(scope="module")
def grid(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    return read_grid(write_grid(tmp_path_factory.mktemp("grid")))


def mean_row(grid: Runs, data: str, setting: str) -> pd.Series:
    return grid.parts[data].loc[setting]


def change_of(folder: Path, setting: str) -> pd.Series:
    """The row of pruning.csv with a model's change of BLEU."""
    table = read(folder / "pruning.csv")
    where = {"setting": setting, "split": "test", "measure": "bleu", "reference": "full"}
    return table[chosen_rows(table, where)].iloc[0]


def test_means_are_at_their_differences_from_the_mean_full_model(grid: Runs) -> None:
    setting = "encoder.lambda-0.04"
    row = mean_row(grid, "en-de", setting)
    same = [change_of(run.folder, setting) for run in list(grid.runs.values())[:3]]
    mean, kept = sum(one["value"] for one in same) / 3, [one["kept"] for one in same]
    moved = row["numbers"].of("bleu", "test", "full")
    assert [moved.value, moved.low, moved.high] == pytest.approx([mean, mean - 0.4, mean + 0.4])
    quality = row["numbers"].of("bleu", "test").value
    assert quality == pytest.approx(38.2 + 0.3 * 2 + mean) and row["seeds"] == 3
    assert [row["kept_low"], row["kept_high"]] == [min(kept), max(kept)]
    assert row["mean_kept"] == pytest.approx(sum(kept) / 3)


def test_a_model_of_one_seed_keeps_its_own_interval(tmp_path: Path) -> None:
    setting = "encoder.keep-6"

    def alone(table: pd.DataFrame) -> pd.DataFrame:
        return table[(table["data"] != "en-fr") | (table["setting"] != setting)]

    gone = {"en-fr/seed-2/pruning.csv": without(setting=setting), "across.csv": alone}
    row = mean_row(read_grid(change(write_grid(tmp_path), gone)), "en-fr", setting)
    own = change_of(tmp_path / "en-fr" / "seed-1", setting)
    assert row["seeds"] == 1
    moved = row["numbers"].of("bleu", "test", "full")
    kept = own[["value", "low", "high"]].tolist()
    assert [moved.value, moved.low, moved.high] == pytest.approx(kept)


def test_every_seed_has_a_mark_and_a_ring_around_its_choice(grid: Runs) -> None:
    encoder, everything = seed_figures(grid)[:2]
    cells = data_of(encoder)
    assert {c["x"] for c in cells if "seed" in c and c["model"].endswith("0.04")} == {8, 9, 10}
    kept = {}
    for name, run in list(grid.runs.items())[:3]:
        kept[name.removeprefix("en-de, ")] = run.model_table.loc["encoder.lambda-0.08", "kept"]
    assert {c["seed"]: c["x"] for c in cells if c.get("chosen")} == kept
    assert not any(c.get("chosen") for c in data_of(everything))


def test_figures_of_data_sets_of_like_names_are_files_of_their_own(grid: Runs) -> None:
    names = dict(zip(("a b", "a-b"), grid.seeds, strict=True))
    seeds = {name: grid.seeds[data] for name, data in names.items()}
    parts = {name: grid.parts[data] for name, data in names.items()}
    figures = seed_figures(replace(grid, seeds=seeds, parts=parts))
    assert len({figure.name for figure in figures}) == len(figures)


def test_a_model_stands_beside_itself_in_the_other_data_set(grid: Runs) -> None:
    shown = collect(grid)["runs_models"]["models"]
    rows = [row.cells for row in shown.rows]
    assert [row[:2] for row in rows[:2]] == [["full model", "en-de"], ["full model", "en-fr"]]
    assert {row[0] for row in rows[::2]} == {row[0] for row in rows[1::2]}


def test_a_damaged_run_is_named_and_the_others_are_shown(tmp_path: Path) -> None:
    folder = change(write_grid(tmp_path), {"en-de/seed-2/run.json": "["})
    grid = read_grid(folder)
    assert "cannot be read" in grid.absent["en-de, seed 2"]
    assert set(grid.seeds["en-de"]["seed"]) == {1, 3}
    change(folder, {"grid.json": {"name": "x", "runs": [{"folder": 1}]}})
    with pytest.raises(HeadwiseError, match="should name the runs of a grid"):
        read_grid(folder)


def test_a_grid_that_has_just_begun_has_a_page(tmp_path: Path) -> None:
    runs = [{"folder": "seed-1", "data": "", "seed": 1}]
    change(tmp_path, {"grid.json": {"name": "new", "runs": runs}})
    assert "0 of 1 run with results" in report(tmp_path).read_text(encoding="utf-8")


def test_captions_of_a_grid_say_model_and_text(tmp_path: Path) -> None:
    """What all runs say is said once."""
    folder = write_grid(tmp_path)
    for run in read_grid(folder).runs.values():
        (run.folder / "plan.toml").write_text('model = "some/model"\n[data]\ntest = "own.txt"\n')
    captions = str(page_files(read_grid(folder))["figures/captions.md"])
    first = captions.split("## ")[1]
    assert first.count("Model: some/model") == 1
    assert "BLEU on own.txt" in first and "over seeds and sentences" in first
