"""Reading a run folder: what is there, what is not, and what is wrong."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest

from headwise.errors import HeadwiseError
from headwise.report import models, report
from headwise.report.run_folder import CAUSAL, read_run
from headwise.report.run_grid import read_grid


def test_a_whole_run(run_folder: Path) -> None:
    run = read_run(run_folder)
    assert run.models["kept"].to_dict() == {
        "full": 24,
        "lambda-0.02": 17,
        "lambda-0.05": 9,
        "lambda-0.2": 4,
    }
    assert list(run.models["label"]) == [
        "full model",
        *(f"λ\u00a0=\u00a0{x}" for x in ("0.02", "0.05", "0.2")),
    ]
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
    assert (run.training, run.heads, run.plan, run.chosen, run.full) == (
        None,
        None,
        None,
        None,
        None,
    )
    assert (run.faithfulness, run.curves, run.lrp, run.roles) == (None, None, None, None)
    assert run.models.empty and (run.layouts, run.gates, run.translations) == ({}, {}, {})


def cut(path: Path) -> None:
    path.write_text(path.read_text(encoding="utf-8").split("\n", 1)[1], encoding="utf-8")


def write(text: str) -> Callable[[Path], object]:
    return lambda path: path.write_bytes(text.encode("latin-1"))


def more(text: str) -> Callable[[Path], object]:
    return lambda path: path.write_text(path.read_text() + text)


def again(path: Path) -> None:
    """The last row once more, with another value."""
    table = pd.read_csv(path)
    row = table.iloc[[0]].assign(value=table["value"].iloc[0] + 1)
    pd.concat([table, row]).to_csv(path, index=False)


def spoil_kind(path: Path) -> None:
    table = pd.read_csv(path)
    table.loc[0, "other_kind"] = "x"
    table.to_csv(path, index=False)


def other_behaviour(path: Path) -> None:
    path.write_text(",".join(CAUSAL) + "\nencoder-self,0,0,induction,mood,1,1,1,1,1,True\n")


def long(path: Path) -> None:
    path.write_text(
        path.read_text().split("\n")[0] + "\n" + "encoder-self,0,0,x,1,1,1,1,\n" * 400_005
    )


def test_a_row_that_is_there_twice_counts_once(run_folder: Path) -> None:
    before = read_run(run_folder)
    for name in (
        "heads.csv",
        "untrained.csv",
        "interactions.csv",
        "train/log.csv",
        "roles/table.csv",
    ):
        lines = (run_folder / name).read_text().splitlines()
        (run_folder / name).write_text("\n".join([*lines, *lines[1:]]) + "\n")
    after = read_run(run_folder)
    for name in ("heads", "untrained", "interactions", "training"):
        pd.testing.assert_frame_equal(getattr(before, name), getattr(after, name))
    assert report(run_folder).is_file()


@pytest.mark.parametrize(
    ("file", "spoil", "says"),
    [
        ("", shutil.rmtree, "is no folder"),
        ("run.json", Path.unlink, "a folder without run.json"),
        ("run.json", write('{"chosen": '), "run.json cannot be read as JSON"),
        ("run.json", write("[]"), "should hold one JSON object, not list"),
        ("run.json", write('{"settings": ["lambda-0.05"]}'), "should hold facts of each setting"),
        (
            "heads.csv",
            write("kind,layer,head,measure,value\ncross,0,0,x,1\n"),
            "has no column low, high, n, baseline",
        ),
        (
            "heads.csv",
            more("cross,0,0,x,1,1,1,many,\n"),
            "should have numbers in n, but has 'many'",
        ),
        ("heads.csv", more("cross,,0,x,1,1,1,1,\n"), "should have whole numbers in layer, but has"),
        (
            "heads.csv",
            more("cross,0.5,0,x,1,1,1,1,\n"),
            "should have whole numbers in layer, but has",
        ),
        (
            "heads.csv",
            more("cross,-1,0,x,1,1,1,1,\n"),
            "should have whole numbers in layer, but has",
        ),
        (
            "heads.csv",
            more("cross,one,0,x,1,1,1,1,\n"),
            "should have numbers in layer, but has 'one'",
        ),
        (
            "heads.csv",
            more("crosss,1,0,x,1,1,1,1,\n"),
            "should have kinds of heads .*, but has 'crosss'",
        ),
        (
            "gates/lambda-0.05.csv",
            more("10,,0,0,0.5\n"),
            "should have kinds of heads .*, but has nan",
        ),
        (
            "roles/roles.csv",
            more("encoder-self,0,1e400,x,1,,,1,,r,t,1\n"),
            "should have whole numbers in head",
        ),
        (
            "heads.csv",
            again,
            "has two different rows for kind encoder-self, layer 0, head 0, measure",
        ),
        (
            "heads.csv",
            more("encoder-self,99,0,x,1,1,1,1,\n"),
            "names the head encoder-self/99/0, which",
        ),
        (
            "heads.csv",
            more("cross,99999,0,x,1,1,1,1,\n"),
            "has 99999 in layer, but nothing there is",
        ),
        (
            "heads.csv",
            more("encoder-self,0,0,x,1e308,1,1,1,\n"),
            r"has 1e\+308 in value, but nothing",
        ),
        (
            "heads.csv",
            more("encoder-self,1e308,0,x,1,1,1,1,\n"),
            r"has 1e\+308 in layer, but nothing",
        ),
        ("interactions.csv", spoil_kind, "kinds of heads .* in other_kind, but has 'x'"),
        (
            "run.json",
            write('{"seconds": {"train": "long"}}'),
            "numbers as the seconds .* has 'long'",
        ),
        (
            "run.json",
            write('{"seconds": "long"}'),
            "numbers as the seconds of each step, but has 'long'",
        ),
        ("run.json", write('{"seconds": {"train": 1e308}}'), "numbers as the seconds"),
        ("run.json", write('{"attention": "full"}'), "names of layers by kind .* has 'full'"),
        ("run.json", write('{"attention": {"cross": [5]}}'), r"names of layers by kind .* '\[5\]'"),
        ("roles/causal.csv", other_behaviour, "should be about loss of .*, but has 'mood'"),
        ("heads.csv", long, "has 400,005 rows, and a report shows at most 400,000"),
        ("run.json", write('{"chosen": ' + "[" * 100_000), "run.json cannot be read as JSON"),
        ("run.json", write('{"max_drop": ' + "9" * 5000 + "}"), "run.json cannot be read as JSON"),
        ("layouts/lambda-0.05.json", write("[" * 100_000), "cannot be read as a layout"),
        ("pruning.csv", write(""), "pruning.csv cannot be read as a table"),
        (
            "pruning.csv",
            more("gates,encoder-self,lambda-0.05,0.05,1,9,24,bleu,36.0,,\n"),
            "more than one bleu for the",
        ),
        ("translations/test/lambda-0.05.txt", cut, r"full.txt 60.*lambda-0.05.txt 59"),
        ("translations/test/full.txt", write("caf\xe9\n"), "full.txt cannot be read as text"),
    ],
)
def test_what_is_wrong_is_one_clear_sentence(
    run_folder: Path, file: str, spoil: Callable[[Path], object], says: str
) -> None:
    spoil(run_folder / file)
    with pytest.raises(HeadwiseError, match=says):
        read_run(run_folder)


@pytest.mark.parametrize("name", ["x/../../../PWN", "../PWN", "/tmp/PWN", ".hidden", "a b/c"])
def test_a_setting_of_another_hand_names_no_file(run_folder: Path, name: str) -> None:
    """Of the name of a setting the names of its figures, layout and table of gates are made."""
    beside = {path.name for path in run_folder.parent.iterdir()}
    for file in ("pruning.csv", "run.json"):
        path = run_folder / file
        path.write_text(path.read_text().replace("lambda-0.05", name))
    for folder in ("layouts", "gates"):
        for path in (run_folder / folder).glob("lambda-0.05.*"):
            path.rename(run_folder.parent / f"PWN{path.suffix}")
            beside.add(f"PWN{path.suffix}")
    with pytest.raises(
        HeadwiseError, match=r"has the name .*, of which a file's name would be made"
    ):
        report(run_folder)
    assert {path.name for path in run_folder.parent.iterdir()} == beside


def test_a_grid_names_only_runs_in_its_folder(tmp_path: Path) -> None:
    runs = '{"name": "x", "runs": [{"folder": "../other", "data": "", "seed": 1}]}'
    (tmp_path / "grid.json").write_text(runs)
    with pytest.raises(HeadwiseError, match=r"grid\.json has the name '\.\.'"):
        read_grid(tmp_path)
