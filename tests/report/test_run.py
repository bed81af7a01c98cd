"""Reading a run folder: what is there, what is not, and what is wrong."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from headwise.errors import HeadwiseError
from headwise.report import models
from headwise.report.run import read_run


def test_a_whole_run(run_folder: Path) -> None:
    run = read_run(run_folder)
    assert run.models["kept"].to_dict() == {"full": 24, "lambda-0.02": 17, "lambda-0.05": 9, "lambda-0.2": 4}
    assert list(run.models["label"]) == ["full model", *(f"λ\u00a0=\u00a0{x}" for x in ("0.02", "0.05", "0.2"))]
    assert run.full is not None and run.full["setting"] == "full"
    assert run.chosen is not None and run.chosen["setting"] == "lambda-0.05"
    assert models.heads_name(run.chosen["kinds"]) == "encoder heads"
    assert {name: len(mask) for name, mask in run.layouts.items()} == {
        k: v for k, v in run.models["kept"].items() if v < 24
    }
    assert models.bounds(run.chosen, "bleu_difference") == (-0.71, 0.11)
    assert models.bounds(run.chosen, "bleu") == (None, None)
    assert models.verdict(run.chosen, "bleu_difference", "p_value") == "not distinguishable"
    assert models.verdict(run.pruned[-1], "bleu_difference", "p_value") == "worse"


def test_a_run_with_nothing_but_its_facts(run_folder: Path) -> None:
    for path in run_folder.iterdir():
        if path.name != "run.json":
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    run = read_run(run_folder)
    assert (run.training, run.heads, run.plan, run.chosen, run.full) == (None, None, None, None, None)
    assert (run.faithfulness, run.curves, run.lrp, run.roles) == (None, None, None, None)
    assert run.models.empty and (run.layouts, run.gates, run.translations) == ({}, {}, {})


def without_run_json(folder: Path) -> None:
    (folder / "run.json").unlink()


def broken_json(folder: Path) -> None:
    (folder / "run.json").write_text('{"chosen": ')


def a_list_of_facts(folder: Path) -> None:
    (folder / "run.json").write_text("[]")


def without_a_column(folder: Path) -> None:
    (folder / "heads.csv").write_text("kind,layer,head,measure,value\nencoder-self,0,0,confidence,0.5\n")


def an_empty_table(folder: Path) -> None:
    (folder / "pruning.csv").write_text("")


def a_measure_twice(folder: Path) -> None:
    with (folder / "pruning.csv").open("a") as file:
        file.write("gates,encoder-self,lambda-0.05,0.05,1,9,24,bleu,36.0,,\n")


def a_word_for_a_number(folder: Path) -> None:
    table = (folder / "heads.csv").read_text().replace("12841", "many", 1)
    (folder / "heads.csv").write_text(table)


def settings_of_another_kind(folder: Path) -> None:
    (folder / "run.json").write_text('{"settings": ["lambda-0.05"]}')


def a_line_missing(folder: Path) -> None:
    path = folder / "translations" / "test" / "lambda-0.05.txt"
    path.write_text(path.read_text(encoding="utf-8").split("\n", 1)[1], encoding="utf-8")


def not_utf8(folder: Path) -> None:
    (folder / "translations" / "test" / "full.txt").write_bytes(b"caf\xe9\n")


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (shutil.rmtree, "is no folder"),
        (without_run_json, "a folder without run.json"),
        (broken_json, "run.json cannot be read as JSON"),
        (a_list_of_facts, "should hold one JSON object, not list"),
        (without_a_column, "has no column low, high, n, baseline"),
        (an_empty_table, "pruning.csv cannot be read as a table"),
        (a_measure_twice, "more than one bleu for the setting lambda-0.05"),
        (a_word_for_a_number, "should have numbers in n, but has 'many'"),
        (settings_of_another_kind, "should hold facts of each setting"),
        (a_line_missing, r"full.txt 60.*lambda-0.05.txt 59"),
        (not_utf8, "full.txt cannot be read as text"),
    ],
)
def test_what_is_wrong_is_one_clear_sentence(run_folder: Path, spoil: Callable[[Path], None], says: str) -> None:
    spoil(run_folder)
    with pytest.raises(HeadwiseError, match=says):
        read_run(run_folder)
