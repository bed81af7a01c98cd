"""Plans: defaults, changes, environment variables, and one clear sentence for everything that does not fit."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from headwise.data.grammar import write_parallel
from headwise.errors import HeadwiseError
from headwise.study import Plan, make_plan, read_plan
from headwise.study.plan import checked
from headwise.translation.build import Architecture
from headwise.translation.decode import Search

EMBEDDED: dict[str, Any] = {"data": {"embedded": {}}}
EXAMPLES = Path(__file__).parents[2] / "examples"


def test_defaults_and_what_is_told() -> None:
    plan = make_plan({"name": "a", "seed": 7, "data": {"embedded": {"train": 5}}, "pruning": {"penalties": [1, 0.5]}})
    assert (plan.name, plan.seed, plan.pruning.penalties) == ("a", 7, [1.0, 0.5])
    assert plan.data.embedded is not None and plan.data.embedded.train == 5 and plan.data.embedded.dev == 500
    assert isinstance(plan.model, Architecture) and plan.pruning.kinds == ["encoder-self"]


@pytest.mark.parametrize("path", [*EXAMPLES.glob("*.toml"), EXAMPLES.parent / "src/headwise/study/demo.toml"], ids=str)
def test_the_plans_that_come_along_are_valid(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADWISE_DATA", str(tmp_path))
    texts = tomllib.loads(path.read_text())["data"]
    for file in [file for split in ("train", "dev", "test") for file in texts.get(split, [])]:
        place = Path(file.replace("${HEADWISE_DATA}", str(tmp_path)))
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text("x\n")
    assert read_plan(path).name


def test_a_plan_written_out_is_the_same_plan(tmp_path: Path) -> None:
    told = {**EMBEDDED, "name": "x-1", "seed": 4, "model": {"dropout": 0.3}, "training": {"learning_rate": 1e-5}}
    plan = make_plan({**told, "choice": {"max_drop": 1.5}, "pruning": {"kinds": ["cross", "encoder-self"]}})
    (tmp_path / "plan.toml").write_text(plan.to_toml())
    assert read_plan(tmp_path / "plan.toml") == plan
    given = make_plan({**EMBEDDED, "model": 'a "quoted" folder\\é'})
    (tmp_path / "plan.toml").write_text(given.to_toml())
    assert read_plan(tmp_path / "plan.toml") == given


def test_changes_on_top(tmp_path: Path) -> None:
    path = tmp_path / "plan.toml"
    path.write_text("[data.embedded]\n[training]\nepochs = 3\n")
    changes = ["training.epochs=5", "pruning.penalties=[0.1, 0.2]", "name=plain-word", "choice.max_drop=2"]
    plan = read_plan(path, changes)
    assert (plan.training.epochs, plan.pruning.penalties, plan.name) == (5, [0.1, 0.2], "plain-word")
    assert plan.choice.max_drop == 2 and read_plan(path, ["model=some/folder"]).model == "some/folder"


def test_environment_variables_are_filled_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = [str(file) for split in ("train", "dev") for file in write_parallel(tmp_path, split, 2)]  # type: ignore[arg-type]
    monkeypatch.setenv("PLACE", str(tmp_path))
    plan = make_plan({"data": {"train": ["$PLACE/train.en", "${PLACE}/train.fr"], "dev": files[2:]}})
    assert plan.data.train == files[:2]


def refusal(data: Mapping[str, Any], *changes: str) -> str:
    with pytest.raises(HeadwiseError) as caught:
        make_plan(dict(data), changes)
    told = str(caught.value)
    assert "\n" not in told and told.endswith(".")
    return told


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        ({"trainin": {}}, ["unknown key 'trainin'", "allowed here: choice, data, model, name, pruning"]),
        ({"training": {"epoch": 3}}, ["unknown key 'training.epoch'", "epochs, label_smoothing"]),
        ({"model": {"head": 3}}, ["unknown key 'model.head'", "feedforward, heads"]),
        ({"data": {"embedded": {"valid": 3}}}, ["unknown key 'data.embedded.valid'", "dev, test, train"]),
        ({"training": {"epochs": "three"}}, ["'training.epochs' is 'three'", "valid integer"]),
        ({"training": {"epochs": 0}}, ["'training.epochs' is 0", "greater than or equal to 1"]),
        ({"training": {"dtype": "fp8"}}, ["'training.dtype' is 'fp8'", "auto|fp32|bf16"]),
        ({"model": {"norm": "none"}}, ["'model.norm' is 'none'", "'post' or 'pre'"]),
        ({"model": 5}, ["'model' is 5"]),
        ({"data": {"train": 5}}, ["'data.train' is 5", "valid string"]),
        ({"seed": -1}, ["'seed' is -1"]),
        ({"name": "a b"}, ["'name' is 'a b'"]),
        ({"pruning": {"penalties": [0.1, -0.1]}}, ["'pruning.penalties' is [0.1, -0.1]", "at least 0"]),
        ({"pruning": {"penalties": []}}, ["at least one"]),
        ({"pruning": {"penalties": [float("inf")]}}, ["at least 0"]),
        ({"pruning": {"penalties": [0.01, 0.01]}}, ["twice"]),
        ({"pruning": {"kinds": ["encoder"]}}, ["'pruning.kinds.0' is 'encoder'", "'encoder-self', 'decoder-self' or"]),
        ({"pruning": {"kinds": []}}, ["'pruning.kinds' is []"]),
        ({"choice": {"max_drop": -1}}, ["'choice.max_drop' is -1"]),
        ({"search": {"beam": 0}}, ["'search.beam' is 0"]),
    ],
    ids=str,
)  # fmt: skip
def test_what_does_not_fit_is_named(data: dict[str, Any], expected: list[str]) -> None:
    told = refusal({**EMBEDDED, **data})
    assert all(part in told for part in expected), told


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ("training.epochs", "should read key=value"),
        ("=3", "should read key=value"),
        ("training.epochs=many", "'training.epochs' is 'many'"),
        ("name.first=x", "name is not a table"),
        ("training.speed=3", "unknown key 'training.speed'"),
    ],
)
def test_changes_that_do_not_fit(change: str, expected: str) -> None:
    assert expected in refusal({**EMBEDDED, "name": "n"}, change)


def test_texts_that_are_not_there() -> None:
    assert "needs train and dev texts" in refusal({})
    assert "needs train and dev texts" in refusal({"data": {"train": ["a", "b"]}})
    assert "There is no file 'nowhere/a'" in refusal({"data": {"train": ["nowhere/a", "b"], "dev": ["c", "d"]}})


def test_a_test_text_that_is_not_there_shows_before_hours_of_training(tmp_path: Path) -> None:
    files = [str(file) for file in write_parallel(tmp_path, "dev", 2)]
    assert "There is no file" in refusal({"data": {"train": files, "dev": files, "test": f"{tmp_path}/test.tsv"}})


def test_texts_and_the_embedded_corpus_exclude_each_other(tmp_path: Path) -> None:
    files = [str(file) for file in write_parallel(tmp_path, "dev", 2)]
    assert "leave one of them out" in refusal({"data": {"embedded": {}, "dev": files}})


def test_an_unset_environment_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HEADWISE_NOWHERE", raising=False)
    told = refusal({"data": {"train": ["${HEADWISE_NOWHERE}/a", "b"], "dev": ["c", "d"]}})
    assert "$HEADWISE_NOWHERE" in told and "export HEADWISE_NOWHERE=" in told


@pytest.mark.parametrize("content", [b"seed = ", b"name = '\xff'"])
def test_files_that_are_no_toml(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "plan.toml").write_bytes(content)
    with pytest.raises(HeadwiseError, match="is not valid TOML"):
        read_plan(tmp_path / "plan.toml")
    with pytest.raises(HeadwiseError, match=r"other.toml does not exist"):
        read_plan(tmp_path / "other.toml")


def test_options_by_name_are_checked_alike() -> None:
    assert checked(Search, {"beam": 3}, "evaluate") == Search(beam=3)
    with pytest.raises(
        HeadwiseError, match=r"evaluate: unknown key 'beams'; allowed here: batch, beam, length_penalty"
    ):
        checked(Search, {"beams": 3}, "evaluate")


def test_every_table_of_a_plan_can_be_listed() -> None:
    for key, field in Plan.model_fields.items():
        if isinstance(field.default, Architecture) or hasattr(field.default, "model_fields"):
            assert "allowed here" in refusal({**EMBEDDED, key: {"no such key": 1}})
