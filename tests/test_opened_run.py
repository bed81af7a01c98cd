"""`hw.Run`: a study opened by its folder, and what takes it."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pandas as pd
import pytest

import headwise as hw
from faces.report.made import make_run
from headwise.faces.lab.session import Session
from headwise.faces.report.run_folder import read_run
from headwise.faces.report.summary import summary_section
from refusals import refuses


def test_a_study_opens_with_its_verdict_models_and_tables(finished: Path) -> None:
    run = hw.Run(finished)
    read = read_run(finished)
    assert run.name == finished.name and os.fspath(run) == str(finished)
    said = summary_section(read)
    assert run.verdict == " ".join([said["headline"] + ".", said["basis"], said["advice"]]).strip()
    assert {*run.models["model"]} == {*read.model_table.index}
    assert list(run.models.columns) == ["model", "heads", "bleu", "change", "low", "high"]
    pd.testing.assert_frame_equal(run.scores.table, hw.Scores.read(finished).table)
    assert len(run.roles.labels) == len(pd.read_csv(finished / "roles" / "labels.csv"))
    assert {*run.pruning["setting"]} == {*read.model_table.index}
    assert {"scores", "roles", "pruning"} <= {*run.tables}


def test_its_models_are_loaded_by_name(finished: Path) -> None:
    run = hw.Run(str(finished))
    full = run.model("full")
    assert full.heads.total == run.scores.heads.total
    for name, mask in run.layouts.items():
        if (finished / "pruned" / name).is_dir():
            assert run.model(name).layout == mask
    assert run.chosen is None or run.model().layout == run.layouts[run.chosen]
    refuses(lambda: run.model("ful"), "has no model 'ful' (did you mean 'full'?)")


def test_weights_that_were_not_kept_are_said(tmp_path: Path) -> None:
    run = hw.Run(make_run(tmp_path / "run"))
    assert run.chosen == "lambda-0.05"
    refuses(run.model, "The weights of lambda-0.05 were not kept: set weights = 'all'")
    none = json.loads((tmp_path / "run" / "run.json").read_text()) | {"chosen": None}
    (tmp_path / "run" / "run.json").write_text(json.dumps(none))
    refuses(hw.Run(tmp_path / "run").model, "has no chosen model: name one, of full, ")


def test_it_prints_in_80_columns_and_shows_a_picture(tmp_path: Path) -> None:
    run = hw.Run(make_run(tmp_path / "run"))
    shown = repr(run).splitlines()
    assert shown[0].startswith("Run('") and max(map(len, shown[1:])) <= 80
    assert run.verdict[:40] in shown[1] and any("lambda-0.05" in line for line in shown)
    assert "<svg" in run._repr_html_() and "<table" in run._repr_html_()
    assert repr(run.plot()).count("■") == len(run.layouts["lambda-0.05"])


def test_what_takes_a_folder_takes_the_run(copied: Path) -> None:
    run = hw.Run(copied)
    about = Session.open(run).about
    assert about["run"] == copied.name and about["scores"] and about["pruned"]
    assert hw.Scores.read(run).measures == run.scores.measures
    assert hw.load(run).heads == run.model("full").heads
    pytest.importorskip("vl_convert", reason="vl-convert is not installed (headwise[report])")
    assert run.report() == hw.report(run) == copied / "report.html"


def test_what_was_not_found_is_said(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run")
    shutil.rmtree(folder / "roles")
    (folder / "heads.csv").unlink()
    run = hw.Run(folder)
    refuses(lambda: run.scores, "has no table scores: its plan leaves it out")
    refuses(lambda: run.roles, "has no table roles")
    assert "scores" not in repr(run)


def test_a_folder_that_is_no_study_is_refused(tmp_path: Path, grid: Path) -> None:
    refuses(lambda: hw.Run(tmp_path), "is a folder without run.json")
    refuses(lambda: hw.Run(tmp_path / "gone"), "is no folder")
    refuses(lambda: hw.Run(None), "None was given in place of a file or a folder")  # type: ignore[arg-type]
    refuses(lambda: hw.Run(grid), "holds several studies: name one of them, such as ")


@pytest.fixture
def grid(tmp_path: Path) -> Path:
    """The folder of two seeds."""
    make_run(tmp_path / "grid" / "seed-1")
    listed = [{"folder": "seed-1", "data": "", "seed": 1}]
    (tmp_path / "grid" / "grid.json").write_text(json.dumps({"name": "two", "runs": listed}))
    return tmp_path / "grid"
