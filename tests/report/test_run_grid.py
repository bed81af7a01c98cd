"""The page of a grid: means over seeds, pairs side by side, and what is missing is named."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pytest

from headwise.errors import HeadwiseError
from headwise.report import models, report, run_grid
from headwise.report.page import collect, render
from headwise.report.run_grid import Grid, read_grid
from report.conftest import data_of
from report.made_sweeps import write_grid


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_grid(tmp_path_factory.mktemp("grid"))


@pytest.fixture(scope="module")
def grid(folder: Path) -> Grid:
    return read_grid(folder)


def means(grid: Grid, data: str) -> pd.DataFrame:
    found = run_grid.means_of(grid, data)
    assert found is not None
    return found


def test_means_are_at_their_differences_from_the_mean_full_model(folder: Path, grid: Grid) -> None:
    row = means(grid, "en-de").loc["encoder.lambda-0.04"]
    tables = [pd.read_csv(folder / "en-de" / f"seed-{seed}" / "pruning.csv") for seed in (1, 2, 3)]
    same = [
        t[(t["setting"] == row.name) & (t["measure"] == "bleu_difference")].iloc[0] for t in tables
    ]
    mean, kept = sum(one["value"] for one in same) / 3, [one["kept"] for one in same]
    assert row["bleu_difference"] == pytest.approx(mean) and row[
        "bleu_difference.low"
    ] == pytest.approx(mean - 0.4)
    assert row["bleu"] == pytest.approx(38.2 + 0.3 * 2 + mean) and row["seeds"] == 3
    assert (row["kept_low"], row["kept_high"], row["mean_kept"]) == (
        min(kept),
        max(kept),
        pytest.approx(sum(kept) / 3),
    )


def test_a_model_of_one_seed_keeps_its_own_interval(tmp_path: Path) -> None:
    folder = write_grid(tmp_path)
    path = folder / "en-fr" / "seed-2" / "pruning.csv"
    table = pd.read_csv(path)
    table[table["setting"] != "encoder.keep-6"].to_csv(path, index=False)
    across = pd.read_csv(folder / "across.csv")
    across[(across["data"] != "en-fr") | (across["setting"] != "encoder.keep-6")].to_csv(
        folder / "across.csv", index=False
    )
    row = means(read_grid(folder), "en-fr").loc["encoder.keep-6"]
    alone = pd.read_csv(folder / "en-fr" / "seed-1" / "pruning.csv")
    own = alone[
        (alone["setting"] == "encoder.keep-6") & (alone["measure"] == "bleu_difference")
    ].iloc[0]
    assert row["seeds"] == 1
    assert [row[f"bleu_difference{end}"] for end in ("", ".low", ".high")] == pytest.approx(
        [own["value"], own["low"], own["high"]]
    )


def test_every_seed_has_a_mark_and_a_ring_around_its_choice(grid: Grid) -> None:
    encoder, everything = run_grid.seed_figures(grid, "en-de", means(grid, "en-de"))
    assert encoder.name == "bleu-by-heads-encoder-self-en-de" and "ring" in encoder.note
    cells = data_of(encoder)
    assert {c["x"] for c in cells if "seed" in c and c["model"].endswith("0.04")} == {8, 9, 10}
    kept = {
        f"seed {m.seed}": m.models.loc["encoder.lambda-0.08", "kept"]
        for m in grid.members
        if m.data == "en-de"
    }
    assert {c["seed"]: c["x"] for c in cells if c.get("chosen")} == kept
    assert not any(c.get("chosen") for c in data_of(everything))


def test_tables_of_means_and_of_pairs(grid: Grid) -> None:
    table = run_grid.means_table(grid, "en-de", means(grid, "en-de"))
    assert table is not None and table.columns[4:6] == [
        "to equal further training",
        "to the full model",
    ]
    untrained = run_grid.means_table(grid, "en-de", means(grid, "en-de"), trained=False)
    assert untrained is not None and untrained.rows[0].cells[0] == "full model"
    content = run_grid.build_pairs(grid)
    assert content is not None and content["by_pair"].columns == ["model", "en-de", "en-fr"]
    assert content["by_pair"].rows[0].cells == ["full model, BLEU", "38.80", "44.65"]
    assert {c["data"] for c in data_of(content["pairs"]) if "data" in c} == {"en-de", "en-fr"}


def test_what_is_missing_or_failed_is_named(grid: Grid) -> None:
    page = render(grid, collect(grid))
    assert run_grid.grid_headline(grid) == "2 language pairs, 3 seeds: 5 of 6 runs have results"
    assert "en-fr, seed 3 (not begun)" in page and "RuntimeError: &lt;out of memory&gt;" in page
    content = run_grid.build_runs(grid)
    assert content["pages"] == {"en-de, seed 1": "en-de/seed-1/report.html"}
    assert content["runs"].rows[0].cells[3].startswith("encoder: λ")


def test_a_damaged_run_is_named_and_the_others_are_shown(tmp_path: Path) -> None:
    folder = write_grid(tmp_path)
    (folder / "en-de" / "seed-2" / "run.json").write_text("[")
    grid = read_grid(folder)
    assert "cannot be read" in run_grid.state(grid.members[1])
    assert set(grid.models.loc[grid.models["data"] == "en-de", "seed"]) == {1, 3}
    (folder / "grid.json").write_text(json.dumps({"name": "x", "runs": [{"folder": 1}]}))
    with pytest.raises(HeadwiseError, match="should name the runs of a grid"):
        read_grid(folder)


def test_a_grid_that_has_just_begun_has_a_page(tmp_path: Path) -> None:
    (tmp_path / "grid.json").write_text(
        json.dumps({"name": "new", "runs": [{"folder": "seed-1", "data": "", "seed": 1}]})
    )
    assert "0 of 1 run has results" in report(tmp_path).read_text(encoding="utf-8")
    assert models.groups(read_grid(tmp_path).models) == []
