"""What the lab says of a run's heads is what the run's tables say."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd

import headwise as hw
from headwise.data import embedded
from headwise.lab.questions import Lab
from headwise.lab.story import pruned_model, run_of, sentences, story
from headwise.report.run_folder import read_run
from report.conftest import make_run
from tasks.askers import asker


def test_a_run_s_scores_roles_and_layouts_are_told(tmp_path: Path) -> None:
    run = read_run(make_run(tmp_path / "run"))
    told = json.loads(json.dumps(story(run), allow_nan=False))
    table = pd.read_csv(run.folder / "heads.csv")
    assert {score["measure"] for score in told["scores"]} == set(table["measure"])
    for row in table.dropna(subset=["value"]).to_dict("records"):
        (score,) = [one for one in told["scores"] if one["measure"] == row["measure"]]
        assert score["heads"][f"{row['kind']}/{row['layer']}/{row['head']}"][0] == row["value"]
    roles = pd.read_csv(run.folder / "roles" / "roles.csv")
    assert sum(map(len, told["roles"].values())) == len(roles)
    assert {model["setting"] for model in told["pruned"]} == run.layouts.keys()
    assert sum(model["chosen"] for model in told["pruned"]) == 1
    assert sentences(run) and pruned_model(run) is None
    for model in told["pruned"]:
        shut = {head for head, step in model["closed"].items() if step is not None}
        assert not shut & set(model["kept"]) and all(model["closed"][head] > 0 for head in shut)
    assert any(model["closed"] for model in told["pruned"])


def test_a_lab_is_opened_from_a_run_a_folder_or_a_model(tmp_path: Path) -> None:
    run, model = make_run(tmp_path / "run"), asker("marian")
    model.save(run / "model")
    embedded.write_treebank(run / "corpus" / "dev.conllu", 40)
    opened = Lab.open(run).about
    assert opened["title"] == "run" and opened["scores"] and opened["roles"] and opened["pruned"]
    assert list(opened["sentences"]) == ["The run's text", "With dependencies"]
    for given in (run / "model" / "config.json").parent, model:
        assert not Lab.open(given).about["scores"]
    assert len(Lab.open(model).about["sentences"]["English examples"]) > 10
    trees = hw.Treebank.read(run / "corpus" / "dev.conllu")
    lab = Lab.open(model, treebank=trees, text=["a b c"])
    assert list(lab.about["sentences"]) == ["Your text", "With dependencies"]
    assert set(lab.about["sentences"]["With dependencies"]) <= {tree.text for tree in trees}
    assert lab.benches["full"].asker.trees.keys() == {tree.text for tree in trees}


def test_a_plain_model_has_no_story(tmp_path: Path) -> None:
    assert run_of(str(tmp_path)) is None
    assert story(None) == {"scores": [], "roles": {}, "pruned": []}
