"""What the lab says of a run's heads is what the run's tables say."""

from __future__ import annotations

import json
import shutil
from importlib import import_module
from pathlib import Path

import pandas as pd
import pytest

import headwise as hw
from faces.report.made import make_run
from headwise.core.tables import CAUSAL
from headwise.data import embedded
from headwise.faces.lab.details import (
    given_model,
    head_details,
    pruned_model,
    run_of,
    run_sentences,
)
from headwise.faces.lab.sentence import ENGLISH, example_trees
from headwise.faces.lab.session import Question, Session
from headwise.faces.report.run_folder import read_run
from headwise.models.tasks import held_out
from headwise.models.tasks.embedding import Embedding
from headwise.models.tasks.translation import Translation
from models.tasks.askers import asker


def test_a_run_s_scores_roles_and_layouts_are_in_its_details(tmp_path: Path) -> None:
    run = read_run(make_run(tmp_path / "run"))
    details = json.loads(json.dumps(head_details(run), allow_nan=False))
    table = pd.read_csv(run.folder / "heads.csv")
    assert {score["measure"] for score in details["scores"]} == set(table["measure"])
    for row in table.dropna(subset=["value"]).to_dict("records"):
        (score,) = [one for one in details["scores"] if one["measure"] == row["measure"]]
        assert score["heads"][f"{row['kind']}/{row['layer']}/{row['head']}"][0] == row["value"]
    roles = pd.read_csv(run.folder / "roles" / "roles.csv")
    of_heads = [role for of_head in details["roles"].values() for role in of_head]
    (word,) = [role for role in of_heads if role["measure"].startswith("word.")]
    assert word in details["roles"]["encoder-self/1/2"] and word["confirmed"]
    assert word["role"] == "says “<a>”" and (word["value"], word["n"]) == (0.5, 40)
    assert len(of_heads) == len(roles) + 1
    assert {model["setting"] for model in details["pruned"]} == run.layouts.keys()
    assert sum(model["chosen"] for model in details["pruned"]) == 1
    meanings = [(role["role"], role["meaning"]) for role in of_heads if role != word]
    assert ("obj→verb", "obj: an object: “tea” in “drinks tea”") in meanings
    assert all((meaning is None) == ("→" not in role) for role, meaning in meanings)
    assert run_sentences(run, Translation) and pruned_model(run) is None
    source = run.folder / "translations" / "dev" / "source.txt"
    kept = source.read_text(encoding="utf-8") if source.is_file() else None
    source.parent.mkdir(parents=True, exist_ok=True)
    source.write_text("猫在睡觉。\n" * 3, encoding="utf-8")  # no blanks between words
    assert run_sentences(run, Translation) == ["猫在睡觉。"] * 3
    source.unlink() if kept is None else source.write_text(kept, encoding="utf-8")
    for model in details["pruned"]:
        shut = {head for head, step in model["closed"].items() if step is not None}
        assert not shut & set(model["kept"]) and all(model["closed"][head] > 0 for head in shut)
    assert any(model["closed"] for model in details["pruned"])


def test_roles_that_were_tested_with_the_head_off_say_so(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run")
    row = "encoder-self,1,5,syntactic.obj.to-governor,loss of the answer,1,3,2,4,0.5,,,,,,,,True"
    (folder / "roles" / "causal.csv").write_text(",".join(CAUSAL.names) + f"\n{row}\n")
    roles = head_details(read_run(folder))["roles"]
    of_heads = [role for of_head in roles.values() for role in of_head]
    of_heads = [role for role in of_heads if not role["measure"].startswith("word.")]
    tested = [role for role in of_heads if role["effect"]]
    assert [role["measure"] for role in tested] == ["syntactic.obj.to-governor"]
    assert tested[0]["confirmed"] and "from 1.00 to 4.00 nats" in tested[0]["effect"]
    assert tested[0] in roles["encoder-self/1/5"]
    untested = [role for role in of_heads if not role["effect"]]
    assert untested and not any(role["confirmed"] for role in untested)


def test_a_session_is_opened_from_a_run_a_folder_or_a_model(tmp_path: Path) -> None:
    run, model = make_run(tmp_path / "run"), asker("marian")
    model.save(run / "model")
    embedded.write_treebank(run / "corpus" / "dev.conllu", 40)
    opened = Session.open(run).about
    assert (opened["title"], opened["run"]) == (None, "run")
    assert opened["scores"] and opened["roles"] and opened["pruned"]
    assert list(opened["sentences"]) == ["The run's text", "With dependencies"]
    for given in (run / "model" / "config.json").parent, model:
        assert not Session.open(given).about["scores"]
    assert Session.open(model).about["sentences"]["English examples"][1:] == list(ENGLISH)
    assert set(ENGLISH) <= example_trees().keys()
    trees = hw.Treebank.read(run / "corpus" / "dev.conllu")
    session = Session.open(model, treebank=trees, text=["a b c"])
    assert list(session.about["sentences"]) == ["Your text", "With dependencies"]
    assert set(session.about["sentences"]["With dependencies"]) <= {tree.text for tree in trees}
    assert session.predictors["full"].trees.keys() == {tree.text for tree in trees}


def test_the_lab_begins_with_a_sentence_that_one_head_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a study as of any model; the first sentence where none changes, or none in time."""
    run, model = make_run(tmp_path / "run"), asker("marian")
    model.save(run / "model")
    embedded.write_treebank(run / "corpus" / "dev.conllu", 40)
    for opened in Session.open(run), Session.open(model, text=["a", "b", "a b c d e f"]):
        about = opened.about
        texts = [text for some in about["sentences"].values() for text in some]
        falls = []
        for text in texts[: texts.index(about["opening"]) + 1]:
            effects = opened.head_effects(Question(text=text))
            worst = effects["heads"][min(range(8), key=effects["total"].__getitem__)]
            without = opened.inspect(Question(text=text, gates={worst: 0.0}))
            falls.append(without["new_output"] != without["old_output"])
        assert falls[-1] and not any(falls[:-1])
    monkeypatch.setattr(import_module("headwise.faces.lab.session"), "OPENING_SECONDS", 0.0)
    assert Session.open(model, text=["a", "b"]).about["opening"] == "a"


@pytest.mark.parametrize("named", ["dev", "train"])
def test_a_run_of_one_sided_text_brings_sentences_of_its_dev_text(
    tmp_path: Path, named: str
) -> None:
    """Which the run does not copy: the plan says where it is. Without dev it is a part of train."""
    folder = make_run(tmp_path / "run")
    shutil.rmtree(folder / "translations")
    file = tmp_path / f"{named}.txt"
    file.write_text("short\n" * 9 + "".join(f"the sentence of number {n}\n" for n in range(300)))
    plan = f'model = "models/tiny-embedder"\n[data]\n{named} = "{file}"\n'
    (folder / "plan.toml").write_text(plan)
    text = Embedding.read(file) if named == "dev" else held_out(Embedding.read(file))[1]
    sign(folder, text.fingerprint)

    run = read_run(folder)
    shown = run_sentences(run, Embedding)
    assert shown == [line for line in text.lines if line != "short"][:12] != []
    assert given_model(run) == "tiny-embedder"

    sign(folder, "another")
    assert run_sentences(read_run(folder), Embedding) == []
    sign(folder, text.fingerprint)
    file.unlink()
    assert run_sentences(read_run(folder), Embedding) == []


def sign(folder: Path, dev: str) -> None:
    """Record a fingerprint of the dev text."""
    facts = json.loads((folder / "run.json").read_text())
    facts["signature"]["dev"] = dev
    (folder / "run.json").write_text(json.dumps(facts))


def test_a_plain_model_has_no_head_details(tmp_path: Path) -> None:
    assert run_of(str(tmp_path)) is None
    assert head_details(None) == {"scores": [], "roles": {}, "pruned": []}
