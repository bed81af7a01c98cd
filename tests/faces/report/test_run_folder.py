"""Reading a run folder: what is there, what is not, and what is wrong."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest

from faces.report.made import LABELS, cells, change
from headwise.core.errors import HeadwiseError
from headwise.core.qualities import Number
from headwise.core.tables import CAUSAL
from headwise.faces.report import models, report
from headwise.faces.report.run_folder import RunContents, read_run
from headwise.faces.report.runs import read_grid


def test_a_whole_run(run: RunContents) -> None:
    kept = {"full": 24, "lambda-0.02": 17, "lambda-0.05": 9, "lambda-0.2": 4}
    assert run.model_table["kept"].to_dict() == kept
    assert list(run.model_table["label"]) == ["full model", *LABELS]
    assert run.full is not None and run.full["setting"] == "full"
    assert run.chosen is not None and run.chosen["setting"] == "lambda-0.05"
    assert models.heads_name(run.chosen["kinds"]) == "encoder heads"
    del kept["full"]
    assert {name: len(mask) for name, mask in run.layouts.items()} == kept
    assert run.change_of(run.chosen, "full") == Number(-0.31, -0.71, 0.11, 0.14, 60)
    assert run.quality_of(run.chosen) == Number(37.9)
    said = [run.change_of(model, "full").finding(run.quality) for model in run.pruned[-2:]]
    assert said == ["not distinguishable", "worse"]
    assert run.quality_of(run.chosen, "dev") == models.measured(run.chosen, "bleu", "dev")
    assert run.change_of(run.chosen, "fine-tuned") == Number()


def test_labels_and_lines_come_from_the_facts(swept: RunContents) -> None:
    labels = {
        name: label.replace("\u00a0", " ") for name, label in swept.model_table["label"].items()
    }
    for name, label in {
        "encoder.lambda-0.04": "encoder: λ = 0.04",
        "encoder.keep-12": "encoder: keep 12",
        "encoder.top-6": "encoder: top-k 6",
        "encoder.greedy-weight-norm-7": "encoder: weight norm, 7 left",
        "encoder.greedy-random.2-7": "encoder: random 2, 7 left",
        "encoder.lambda-0.04.from-scratch": "encoder: λ = 0.04, same layout from scratch",
        "all.fine-tuned": "all: fine-tuned, not pruned",
    }.items():
        assert labels[name] == label
    lines = [
        name for name, _ in models.lines(models.of_kinds(swept.model_table, ("encoder-self",)))
    ]
    assert lines[:3] == ["gates, λ", "gates, target count", "top-k gates"]
    assert lines[-1] == "random orders"


def test_a_run_with_nothing_but_its_facts(run_folder: Path) -> None:
    change(run_folder, {p.name: None for p in run_folder.iterdir() if p.name != "run.json"})
    run = read_run(run_folder)
    tables = (run.training, run.heads, run.faithfulness, run.curves, run.lrp)
    assert all(table.empty for table in tables) and not run.roles
    assert {run.plan, run.chosen, run.full} == {None}
    assert run.model_table.empty and (run.layouts, run.gates, run.translations) == ({}, {}, {})


def test_a_row_that_is_there_twice_counts_once(run_folder: Path) -> None:
    tables = {"heads": "heads.csv", "training": "train/log.csv"}
    tables |= {name: f"{name}.csv" for name in ("untrained", "interactions")}
    before = read_run(run_folder)
    for name in [*tables.values(), "roles/table.csv"]:
        lines = (run_folder / name).read_text().splitlines()
        (run_folder / name).write_text("\n".join([*lines, *lines[1:]]) + "\n")
    after = read_run(run_folder)
    for name in tables:
        pd.testing.assert_frame_equal(getattr(before, name), getattr(after, name))
    assert report(run_folder).is_file()


Spoil = Callable[[Path], object]


def cut(path: Path) -> None:
    path.write_text(path.read_text(encoding="utf-8").split("\n", 1)[1], encoding="utf-8")


def write(text: str) -> Spoil:
    return lambda path: path.write_bytes(text.encode("latin-1"))


def more(text: str) -> Spoil:
    return lambda path: path.write_text(f"{path.read_text()}{text}\n")


def again(path: Path) -> None:
    """The last row once more, with another value."""
    table = pd.read_csv(path)
    row = table.iloc[[0]].assign(value=table["value"].iloc[0] + 1)
    pd.concat([table, row]).to_csv(path, index=False)


def spoil_kind(path: Path) -> None:
    change(path.parent, {path.name: cells({"other_kind": "x"}, other_head=1)})


def long(path: Path) -> None:
    columns = path.read_text().split("\n")[0]
    path.write_text(columns + "\n" + "encoder-self,0,0,x,1,1,1,1,\n" * 400_005)


NO_JSON = "run.json cannot be read as JSON"
MOOD = ",".join(CAUSAL.names) + "\nencoder-self,0,0,induction,mood,1,1,1,1,1,1,1,1,1,1,1,1,True\n"


@pytest.mark.parametrize(
    ("file", "spoil", "says"),
    [
        ("", shutil.rmtree, "is no folder"),
        ("run.json", Path.unlink, "without run.json"),
        ("run.json", write('{"chosen": '), NO_JSON),
        ("run.json", write('{"chosen": ' + "[" * 100_000), NO_JSON),
        ("run.json", write('{"max_drop": ' + "9" * 5000 + "}"), NO_JSON),
        ("run.json", write("[]"), "one JSON object, not list"),
        ("run.json", write('{"settings": ["lambda-0.05"]}'), "'settings' is"),
        (
            "run.json",
            write('{"seconds": {"train": "long"}}'),
            "run the study again: 'seconds.train' is 'long'",
        ),
        ("run.json", write('{"seconds": "long"}'), "'seconds' is 'long'"),
        ("run.json", write('{"seconds": {"train": 1e308}}'), r"'seconds\.train' is 1e\+308"),
        ("run.json", write('{"attention": "full"}'), "'attention' is 'full'"),
        ("run.json", write('{"attention": {"cross": [5]}}'), r"'attention\.cross\.0' is 5"),
        ("heads.csv", write("kind,layer,head,measure,value\n"), "no column low, high, n, baseline"),
        ("heads.csv", more("cross,0,0,x,1,1,1,many,"), "numbers below .* in n, but has 'many'"),
        ("heads.csv", more("cross,,0,x,1,1,1,1,"), "whole numbers .* in layer, but"),
        ("heads.csv", more("cross,0.5,0,x,1,1,1,1,"), "whole numbers .* in layer, but"),
        ("heads.csv", more("cross,-1,0,x,1,1,1,1,"), "whole numbers .* in layer, but"),
        ("heads.csv", more("cross,one,0,x,1,1,1,1,"), "numbers .* in layer, but has 'one'"),
        ("heads.csv", more("crosss,1,0,x,1,1,1,1,"), "kinds of heads .*, but has 'crosss'"),
        ("heads.csv", more("encoder-self,99,0,x,1,1,1,1,"), "the head encoder-self/99/0"),
        ("heads.csv", more("cross,99999,0,x,1,1,1,1,"), "up to 1000 in layer, but has '99999'"),
        ("heads.csv", more("encoder-self,0,0,x,1e308,1,1,1,"), r"in value, but has '1e\+308'"),
        ("heads.csv", more("encoder-self,1e308,0,x,1,1,1,1,"), r"in layer, but has '1e\+308'"),
        ("heads.csv", again, "two different rows for kind encoder-self, layer 0, head 0"),
        ("heads.csv", long, "more than 400,000 rows"),
        ("gates/lambda-0.05.csv", more("10,,0,0,0.5"), "kinds of heads .*, but has an empty cell"),
        ("roles/roles.csv", more("cross,0,1e400,x,1,,,1,,1,r,t"), "whole numbers .* in head"),
        ("roles/causal.csv", write(MOOD), "about loss of .*, but has 'mood'"),
        ("interactions.csv", spoil_kind, "kinds of heads .* in other_kind, but has 'x'"),
        ("layouts/lambda-0.05.json", write("[" * 100_000), "as a layout"),
        ("pruning.csv", write(""), "pruning.csv cannot be read as a table"),
        (
            "pruning.csv",
            more("gates,encoder-self,lambda-0.05,0.05,1,9,24,test,bleu,,36,,,,"),
            "two different rows for setting lambda-0.05, split test, measure bleu: ",
        ),
        ("translations/test/lambda-0.05.txt", cut, r"full.txt 60.*lambda-0.05.txt 59"),
        ("translations/test/full.txt", write("caf\xe9\n"), "full.txt cannot be read as text"),
    ],
)
def test_what_is_wrong_is_one_clear_sentence(
    run_folder: Path, file: str, spoil: Spoil, says: str
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
    with pytest.raises(HeadwiseError, match="of which a file's name would be made"):
        report(run_folder)
    assert {path.name for path in run_folder.parent.iterdir()} == beside


def test_a_grid_names_only_runs_in_its_folder(tmp_path: Path) -> None:
    runs = [{"folder": "../other", "data": "", "seed": 1}]
    change(tmp_path, {"grid.json": {"name": "x", "runs": runs}})
    with pytest.raises(HeadwiseError, match=r"grid\.json has the name '\.\.'"):
        read_grid(tmp_path)
