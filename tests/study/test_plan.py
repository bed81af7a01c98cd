"""Plans: defaults, changes, environment variables, and one clear sentence for everything that does not fit."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from headwise.core.errors import HeadwiseError
from headwise.core.options import Architecture, Search, validated
from headwise.data.embedded import write_parallel
from headwise.study.ownership import claim, plan_of_study, refuse_others
from headwise.study.plan import GreedySweep, Plan, TopKSweep, make_plan, read_plan

EMBEDDED: dict[str, Any] = {"data": {"embedded": {}}}
EXAMPLES = Path(__file__).parents[2] / "examples"


def test_defaults_and_what_is_given() -> None:
    plan = make_plan(
        {
            "name": "a",
            "seed": 7,
            "data": {"embedded": {"train": 5}},
            "pruning": {"penalty": [1, 0.5]},
        }
    )
    assert (plan.name, plan.seed, plan.pruning[0].penalty) == ("a", 7, [1.0, 0.5])
    assert (
        plan.data.embedded is not None
        and plan.data.embedded.train == 5
        and plan.data.embedded.dev == 500
    )
    assert isinstance(plan.model, Architecture) and plan.pruning[0].kinds == ["encoder-self"]


@pytest.mark.parametrize(
    "path", [*EXAMPLES.glob("*.toml"), EXAMPLES.parent / "src/headwise/study/toy.toml"], ids=str
)
def test_the_plans_that_come_along_are_valid(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADWISE_DATA", str(tmp_path))
    monkeypatch.setenv("HEADWISE_CHECKPOINTS", str(tmp_path))
    monkeypatch.setenv("HEADWISE_TARGET", "de")
    monkeypatch.chdir(tmp_path)  # some paths are relative
    values = tomllib.loads(path.read_text())
    data = values.get("data", {})
    texts = [data.get(split, []) for split in ("train", "dev", "test")]
    files = [file for text in texts for file in ([text] if isinstance(text, str) else text)]
    own = []
    if not data:  # a plan for the user's own text
        files += ["train.en", "train.de", "dev.en", "dev.de"]
        own = ['data.train=["train.en", "train.de"]', 'data.dev=["dev.en", "dev.de"]']
    roles = values.get("roles", {})
    for file in [*files, *roles.get("treebank", []), *roles.get("confirm", [])]:
        place = Path(os.path.expandvars(file))
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text("x\n")
    assert read_plan(path, own).name


def test_a_plan_written_out_is_the_same_plan(tmp_path: Path) -> None:
    values = {
        **EMBEDDED,
        "name": "x-1",
        "seed": 4,
        "model": {"dropout": 0.3},
        "training": {"learning_rate": 1e-5},
    }
    plan = make_plan(
        {**values, "choice": {"max_drop": 1.5}, "pruning": {"kinds": ["cross", "encoder-self"]}}
    )
    (tmp_path / "plan.toml").write_text(plan.to_toml())
    assert read_plan(tmp_path / "plan.toml") == plan
    given = make_plan({**EMBEDDED, "model": 'a "quoted" folder\\é'})
    (tmp_path / "plan.toml").write_text(given.to_toml())
    assert read_plan(tmp_path / "plan.toml") == given


def test_changes_on_top(tmp_path: Path) -> None:
    path = tmp_path / "plan.toml"
    path.write_text("[data.embedded]\n[training]\nepochs = 3\n")
    changes = [
        "training.epochs=5",
        "pruning.penalty=[0.1, 0.2]",
        "name=plain-word",
        "choice.max_drop=2",
    ]
    plan = read_plan(path, changes)
    assert (plan.training.epochs, plan.pruning[0].penalty, plan.name) == (
        5,
        [0.1, 0.2],
        "plain-word",
    )
    assert (
        plan.choice.max_drop == 2 and read_plan(path, ["model=some/folder"]).model == "some/folder"
    )


def test_environment_variables_are_filled_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = [str(file) for split in ("train", "dev") for file in write_parallel(tmp_path, split, 2)]  # type: ignore[arg-type]
    monkeypatch.setenv("PLACE", str(tmp_path))
    path = tmp_path / "plan.toml"
    path.write_text('[data]\ntrain = ["$PLACE/train.en", "${PLACE}/train.fr"]\n')
    assert read_plan(path, [f"data.dev={files[2:]}"]).data.train == files[:2]
    path.write_text("")
    changed = ['data.train=["$PLACE/train.en", "${PLACE}/train.fr"]', f"data.dev={files[2:]}"]
    assert read_plan(path, changed).data.train == files[:2]


def test_a_dollar_in_the_name_of_a_file(tmp_path: Path) -> None:
    """A shell has filled in what was typed; the plan that a study writes is read back as it was."""
    folder = tmp_path / "my$files"
    folder.mkdir()
    data = {
        split: [str(file) for file in write_parallel(folder, split, 2)]  # type: ignore[arg-type]
        for split in ("train", "dev")
    }
    plan = make_plan({"data": data})
    assert plan.data.train == data["train"]
    (tmp_path / "plan.toml").write_text(plan.to_toml())
    assert read_plan(tmp_path / "plan.toml") == plan
    claim(plan, tmp_path / "out")
    refuse_others(plan, tmp_path / "out")
    assert plan_of_study(tmp_path / "out") == plan


def test_names_that_would_share_a_folder(tmp_path: Path) -> None:
    """On macOS and Windows A and a are one."""
    texts = EMBEDDED["data"]
    assert "en-de and EN-DE would share a folder" in refusal(
        {"languages": {"en-de": texts, "EN-DE": texts}}
    )
    sweeps = [{"name": name, "penalty": [0.1]} for name in "Aa"]
    assert "A and a would share a folder" in refusal({**EMBEDDED, "pruning": sweeps})


def refusal(data: Mapping[str, Any], *changes: str) -> str:
    with pytest.raises(HeadwiseError) as caught:
        make_plan(dict(data), changes)
    reason = str(caught.value)
    assert "\n" not in reason and reason.endswith(".")
    return reason


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (
            {"trainin": {}},
            [
                "unknown key 'trainin'",
                "allowed here: choice, data, languages, model, name, pruning",
            ],
        ),
        ({"training": {"epoch": 3}}, ["unknown key 'training.epoch'", "epochs, label_smoothing"]),
        ({"model": {"head": 3}}, ["unknown key 'model.head'", "feedforward, heads"]),
        (
            {"data": {"embedded": {"valid": 3}}},
            ["unknown key 'data.embedded.valid'", "dev, test, train"],
        ),
        ({"training": {"epochs": "three"}}, ["'training.epochs' is 'three'", "valid integer"]),
        ({"training": {"epochs": 0}}, ["'training.epochs' is 0", "greater than or equal to 1"]),
        ({"training": {"batch_tokens": 10**400}}, ["less than or equal to 1000000000"]),
        ({"pruning": {"penalty": 0.1, "start": 1e308}}, ["log α may be at most 100 away from 0"]),
        (
            {"training": {"dtype": "fp8"}},
            ["'training.dtype' is 'fp8'", "'auto', 'float32' or 'bfloat16'"],
        ),
        ({"model": {"norm": "none"}}, ["'model.norm' is 'none'", "'post' or 'pre'"]),
        ({"model": 5}, ["'model' is 5"]),
        ({"data": {"train": 5}}, ["'data.train' is 5", "valid string"]),
        ({"seed": -1}, ["'seed' is -1"]),
        ({"seed": True}, ["'seed' is True", "valid integer"]),
        ({"seeds": [1, True]}, ["'seeds.1' is True"]),
        (
            {"training": {"learning_rate": float("inf")}},
            ["'training.learning_rate' is inf", "finite number"],
        ),
        ({"training": {"epochs": True}}, ["'training.epochs' is True"]),
        (
            {"search": {"length_penalty": float("nan")}},
            ["'search.length_penalty' is nan", "finite number"],
        ),
        ({"model": {"dropout": float("nan")}}, ["'model.dropout' is nan"]),
        ({"choice": {"max_drop": float("nan")}}, ["'choice.max_drop' is nan"]),
        (
            {"pruning": {"penalty": {"from": 0.1, "to": 0.2, "count": 10**9}}},
            ["a count from 2 to 1000"],
        ),
        ({"name": "a b"}, ["'name' is 'a b'"]),
        (
            {"pruning": {"penalty": [0.1, -0.1]}},
            ["'pruning.penalty.1' is -0.1", "greater than or equal to 0"],
        ),
        ({"pruning": {"penalty": []}}, ["at least one of penalty or keep is needed"]),
        (
            {"pruning": {"penalty": [float("inf")]}},
            ["'pruning.penalty.0' is inf", "finite number"],
        ),
        ({"pruning": {"penalty": [True]}}, ["'pruning.penalty.0' is True", "valid number"]),
        ({"pruning": {"penalty": [0.01, 0.01]}}, ["twice"]),
        (
            {"pruning": {"penalty": {"from": 0.1, "to": 0.01, "count": 3}}},
            ["needs numbers 0 < from < to"],
        ),
        (
            {"pruning": {"penalty": {"from": "a", "to": 1, "count": 3}}},
            ["needs numbers 0 < from < to"],
        ),
        (
            {"pruning": {"penalty": {"from": 0.1, "to": float("inf"), "count": 3}}},
            ["needs numbers 0 < from < to"],
        ),
        (
            {"pruning": {"penalty": {"from": True, "to": 3, "count": 3}}},
            ["needs numbers 0 < from < to"],
        ),
        ({"pruning": {"start": float("nan")}}, ["'pruning.start' is nan", "finite number"]),
        ({"pruning": {"start": float("inf")}}, ["'pruning.start' is inf", "finite number"]),
        ({"pruning": {"start": "early"}}, ["'pruning.start' is 'early'"]),
        (
            {"pruning": {"learning_rate": float("inf")}},
            ["'pruning.learning_rate' is inf", "finite number"],
        ),
        ({"pruning": {"epochs": True}}, ["'pruning.epochs' is True", "valid integer"]),
        ({"pruning": {"keep": [True]}}, ["'pruning.keep.0' is True"]),
        ({"pruning": {"keep": [{"encoder-self": True}]}}, ["'pruning.keep.0", "valid integer"]),
        ({"pruning": {"penalty": {"from": 0.1, "to": 1}}}, ["has the keys from, to and count"]),
        ({"pruning": {"kinds": ["cross", "cross"]}}, ["nothing may be there twice"]),
        (
            {"pruning": {"kinds": ["encoder"]}},
            ["'pruning.kinds.0' is 'encoder'", "'encoder-self', 'decoder-self' or"],
        ),
        ({"pruning": {"kinds": []}}, ["'pruning.kinds' is []"]),
        ({"pruning": {"keep": [0]}}, ["'pruning.keep.0' is 0", "greater than or equal to 1"]),
        ({"pruning": {"keep": [25]}}, ["25 heads cannot be kept: there are 24 heads"]),
        (
            {"pruning": {"keep": [{"cross": 5}]}},
            ["keep names cross, but the kinds are encoder-self"],
        ),
        (
            {"pruning": {"keep": [{"crosss": 3}]}},
            ["'crosss' is no kind of heads; there is encoder-self, decoder-self"],
        ),
        ({"pruning": {"keep": [{"cross": "two"}]}}, ["'pruning.keep.0", "valid integer"]),
        (
            {"choice": {"max_drop": float("inf")}},
            ["'choice.max_drop' is inf", "at least 0, or any"],
        ),
        ({"choice": {"max_drop": -0.5}}, ["'choice.max_drop' is -0.5", "at least 0, or any"]),
        ({"choice": {"max_drop": True}}, ["'choice.max_drop' is True", "at least 0, or any"]),
        ({"choice": {"max_drop": "all"}}, ["'choice.max_drop' is 'all'", "at least 0, or any"]),
        ({"pruning": {"keep": [3, 3]}}, ["nothing may be there twice"]),
        (
            {"pruning": {"keep": [3], "rule": "deterministic"}},
            ["rule would mean nothing without a penalty"],
        ),
        ({"pruning": {"keep": [3], "penalty_scale": "code"}}, ["penalty_scale would mean nothing"]),
        (
            {"pruning": {"method": "top-k", "keep": [3], "temperature": 0.5}},
            ["unknown key 'pruning.temperature'; allowed with method 'top-k'"],
        ),
        ({"pruning": {"method": "magic"}}, ["the method 'magic' is none of gates, top-k, greedy"]),
        ({"pruning": {"method": ["a"]}}, ["the method '['a']' is none of gates, top-k, greedy"]),
        ({"pruning": {"method": {"a": 1}}}, ["is none of gates, top-k, greedy"]),
        (
            {"pruning": {"method": "top-k", "penalty": [0.1]}},
            ["'pruning.penalty'; allowed with method 'top-k'"],
        ),
        (
            {"pruning": {"method": "top-k", "keep": [3], "refine": 1}},
            ["unknown key 'pruning.refine'", "'top-k'"],
        ),
        ({"pruning": {"method": "top-k"}}, ["keep is needed"]),
        (
            {"pruning": {"rescore": True}},
            ["unknown key 'pruning.rescore'; allowed with method 'gates': average, "],
        ),
        (
            {"pruning": {"measure": ["gradient"]}},
            ["unknown key 'pruning.measure'; allowed with method 'gates'"],
        ),
        (
            {"pruning": {"method": "greedy", "start": 1.0}},
            ["'pruning.start'; allowed with method 'greedy'"],
        ),
        (
            {"pruning": {"method": "greedy", "penalty": [1]}},
            ["'pruning.penalty'; allowed with method 'greedy'"],
        ),
        (
            {"pruning": {"method": "greedy", "epochs": 3}},
            ["epochs would mean nothing without train"],
        ),
        (
            {"pruning": {"method": "greedy", "measure": ["size"]}},
            ["measure 'size' is unknown", "weight-norm"],
        ),
        (
            {"pruning": {"method": "greedy", "measure": ["random"], "rescore": True}},
            ["rescore would change nothing"],
        ),
        (
            {"pruning": {"method": "greedy", "measure": ["ablation.bleu"]}},
            ["ablation.bleu takes too long"],
        ),
        (
            {"pruning": {"method": "greedy", "controls": ["random"]}},
            ["controls stand beside models that were fine-t"],
        ),
        ({"pruning": {"penalty": [0.1], "refine": 1}}, ["refine fills in between penalties"]),
        ({"pruning": {"controls": ["none"]}}, ["'pruning.controls.0' is 'none'"]),
        (
            {"pruning": [{"name": "a"}, {"name": "a"}]},
            ["every [[pruning]] of several needs a name of its own"],
        ),
        ({"pruning": [{"name": "a"}, {"name": "b", "epochs": 0}]}, ["'pruning.1.epochs' is 0"]),
        (
            {"pruning": [{"name": "a"}, {"name": "b", "penalt": 1}]},
            ["unknown key 'pruning.1.penalt'", "did you mean 'penalty'"],
        ),
        ({"seeds": [1, 1]}, ["no seed may be there twice"]),
        (
            {"seeds": [1, 2], "pruning": {"seeds": [3]}},
            ["the seeds [3], which are not among the plan's seeds"],
        ),
        (
            {"model": "some/folder", "pruning": {"controls": ["from-scratch"]}},
            ["takes a trained model"],
        ),
        (
            {"languages": {"en-fr": {"embedded": {}}}},
            ["[data] names texts and [languages] as well"],
        ),
        ({"choice": {"max_drop": -1}}, ["'choice.max_drop' is -1"]),
        ({"search": {"beam": 0}}, ["'search.beam' is 0"]),
    ],
    ids=str,
)
def test_what_does_not_fit_is_named(data: dict[str, Any], expected: list[str]) -> None:
    found = refusal({**EMBEDDED, **data})
    assert all(part in found for part in expected), found


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ("training.epochs", "should read key=value"),
        ("=3", "should read key=value"),
        ("training.epochs=many", "--set training.epochs=many: 'many' does not fit"),
        ("scoring.measures=['gradiant']", "did you mean 'gradient'"),
        ("pruning.method=greddy", "the method 'greddy' (did you mean 'greedy'?) is none of"),
        ("name.first=x", "name is not a table"),
        ("training.accumulate=" + "9" * 400, "training.accumulate"),
        ("training.average=" + "9" * 400, "at most 18 digits"),
        ("training.speed=3", "unknown key 'training.speed'"),
    ],
)
def test_changes_that_do_not_fit(change: str, expected: str) -> None:
    assert expected in refusal({**EMBEDDED, "name": "n"}, change)


def test_texts_that_are_not_there() -> None:
    scored = {"model": "firefox/en-pt", "pruning": [], "data": {"dev": "a"}}
    assert "it may be the dev text" in refusal(scored)
    assert "needs a train text" in refusal({}) and "needs a train text" in refusal(
        {"data": {"dev": ["a", "b"]}}
    )
    assert "There is no file 'nowhere/a'" in refusal(
        {"data": {"train": ["nowhere/a", "b"], "dev": ["c", "d"]}}
    )


def test_a_test_text_that_is_not_there_shows_before_hours_of_training(tmp_path: Path) -> None:
    files = [str(file) for file in write_parallel(tmp_path, "dev", 2)]
    assert "There is no file" in refusal(
        {"data": {"train": files, "dev": files, "test": f"{tmp_path}/test.tsv"}}
    )


def test_texts_and_the_embedded_corpus_exclude_each_other(tmp_path: Path) -> None:
    files = [str(file) for file in write_parallel(tmp_path, "dev", 2)]
    assert "leave one of them out" in refusal({"data": {"embedded": {}, "dev": files}})
    assert "equal to 24000" in refusal({"data": {"embedded": {"train": 24_001}}})


def test_an_unset_environment_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HEADWISE_NOWHERE", raising=False)
    found = refusal({}, 'data.train=["${HEADWISE_NOWHERE}/a", "b"]')
    assert "$HEADWISE_NOWHERE" in found and "export HEADWISE_NOWHERE=" in found


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"seed = ", "is not valid TOML"),
        (b"name = '\xff'", r"is no text \(UTF-8\)"),
        (b"name." * 20_000, "100,000 characters, and 50,000 are the most"),
    ],
)
def test_files_that_are_no_toml(tmp_path: Path, content: bytes, reason: str) -> None:
    (tmp_path / "plan.toml").write_bytes(content)
    with pytest.raises(HeadwiseError, match=reason):
        read_plan(tmp_path / "plan.toml")
    with pytest.raises(
        HeadwiseError, match=r"is a folder: give the path of a TOML file, such as .*/plan.toml"
    ):
        read_plan(tmp_path)
    with pytest.raises(HeadwiseError, match=r"other.toml does not exist"):
        read_plan(tmp_path / "other.toml")
    with pytest.raises(HeadwiseError, match=r"The plan '9+' cannot be read"):
        read_plan("9" * 300)


def test_options_by_name_are_checked_alike() -> None:
    assert validated(Search, {"beam": 3}, "evaluate") == Search(beam=3)
    with pytest.raises(
        HeadwiseError,
        match=r"evaluate: unknown key 'beams' .did you mean 'beam'.*; allowed here: batch, beam, engine, length_penalty",
    ):
        validated(Search, {"beams": 3}, "evaluate")


def test_every_table_of_a_plan_can_be_listed() -> None:
    for key, field in Plan.model_fields.items():
        if isinstance(field.default, Architecture) or hasattr(field.default, "model_fields"):
            assert "allowed here" in refusal({**EMBEDDED, key: {"no such key": 1}})


def test_a_plan_of_several_studies() -> None:
    sweeps = [{"name": "a", "penalty": [0.1]}, {"name": "b", "keep": [2], "seeds": [2]}]
    pairs = {"en-fr": {"embedded": {"train": 5}}, "fr-en": {"embedded": {"train": 6}}}
    plan = make_plan({"seeds": [1, 2], "languages": pairs, "pruning": sweeps})
    assert list(plan.runs) == ["en-fr/seed-1", "en-fr/seed-2", "fr-en/seed-1", "fr-en/seed-2"]
    run = plan.runs["fr-en/seed-2"]
    assert run.seed == 2 and run.data.embedded is not None and run.data.embedded.train == 6
    assert (
        [sweep.name for sweep in run.pruning] == ["a", "b"] and not run.seeds and not run.languages
    )
    assert [sweep.name for sweep in plan.runs["en-fr/seed-1"].pruning] == ["a"]
    assert list(make_plan({**EMBEDDED, "seeds": [3, 4]}).runs) == ["seed-3", "seed-4"]
    assert list(make_plan({"languages": pairs}).runs) == ["en-fr", "fr-en"]
    assert list(make_plan(EMBEDDED).runs) == ["."]


def test_a_plan_of_sweeps_written_out_is_the_same_plan(tmp_path: Path) -> None:
    sweeps = [
        {
            "name": "a",
            "kinds": ["cross", "encoder-self"],
            "keep": [2, {"cross": 1, "encoder-self": 3}],
        },
        {
            "name": "b",
            "method": "greedy",
            "measure": ["gradient", "random"],
            "orders": 2,
            "rescore": True,
        },
        {"name": "c", "method": "top-k", "keep": [4], "controls": ["fine-tuned", "random"]},
    ]
    for values in (
        {**EMBEDDED, "seeds": [1, 2]},
        {"languages": {"x": {"embedded": {}}, "y": {"embedded": {"dev": 3}}}},
    ):
        plan = make_plan({**values, "pruning": sweeps})
        (tmp_path / "plan.toml").write_text(plan.to_toml())
        assert read_plan(tmp_path / "plan.toml") == plan
        for run in plan.runs.values():
            (tmp_path / "plan.toml").write_text(run.to_toml())
            assert read_plan(tmp_path / "plan.toml") == run


def test_penalties_as_a_range() -> None:
    sweep = make_plan(
        {**EMBEDDED, "pruning": {"penalty": {"from": 0.001, "to": 0.1, "count": 5}}}
    ).pruning[0]
    assert sweep.model_dump()["penalty"] == [0.001, 0.00316, 0.01, 0.0316, 0.1]


def test_every_method_has_only_its_own_options() -> None:
    def sweep(**options: Any) -> dict[str, Any]:
        return make_plan({**EMBEDDED, "pruning": options}).pruning[0].model_dump()

    assert sweep(keep=[3])["penalty"] == [], "a target count replaces λ that nobody asked for"
    assert sweep(keep=[3], penalty=[0.1])["penalty"] == [0.1]
    greedy, top = sweep(method="greedy"), sweep(method="top-k", keep=[3])
    assert {*greedy} == {*GreedySweep.model_fields} and {*top} == {*TopKSweep.model_fields}
    assert greedy["measure"] == ["gradient", "random"] and not {"penalty", "start", "refine"} & {
        *greedy
    }
    assert not {"penalty", "measure", "refine"} & {*top} and "start" in top


class TestOneSidedText:
    @pytest.fixture
    def texts(self, tmp_path: Path) -> dict[str, Any]:
        for split in ("train.txt", "dev.txt"):
            (tmp_path / split).write_text("a b\n")
        return {split: f"{tmp_path}/{split}.txt" for split in ("train", "dev")}

    def test_a_given_model_loses_heads_greedily(self, texts: dict[str, Any]) -> None:
        plan = make_plan({"data": texts, "model": "some/model", "pruning": {"method": "greedy"}})
        assert plan.data.one_sided == {True} and make_plan(EMBEDDED).data.one_sided == set()

    def test_no_model_is_trained_on_it_from_nothing(self, texts: dict[str, Any]) -> None:
        assert "trained on pairs" in refusal({"data": texts, "pruning": {"method": "greedy"}})
