"""A role test that a script declares: tested on halves, named, in the study's tables and resumed, drawn, in the report."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import pandas as pd
import pytest
import torch
from transformers import BertConfig, BertForMaskedLM, PreTrainedTokenizerFast

import headwise as hw
from headwise.data.annotated import Annotated
from headwise.data.treebank import Treebank
from headwise.roles.role import NO_ROLE, category, display_name, ordered_roles, role, role_of
from headwise.study.plan import make_plan
from headwise.study.study import run_study
from models.attention.families import STACK
from refusals import refuses
from study.studies import QUIET

NAME = "first-word"
HEAD = {"kind": "encoder-self", "layer": 1, "head": 2}


@pytest.fixture(autouse=True)
def own_role(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a user writes."""
    monkeypatch.setattr(role, "added", {})

    @role(NAME, margin=0.1, caption="share of words pointing at the first word", source="ours")
    def first_word(sentence: Annotated) -> Iterator[tuple[int, int]]:
        """From every word to the first one of the sentence."""
        for index in range(1, len(sentence.words)):
            yield index, 0


def model_of(tokenizer: PreTrainedTokenizerFast) -> hw.Model:
    """Random weights, but one head looks at the first position, whatever the words are."""
    torch.manual_seed(0)
    shape = {**STACK, "vocab_size": len(tokenizer), "intermediate_size": 16}
    hf = BertForMaskedLM(BertConfig(**shape)).eval()
    attention = hf.bert.encoder.layer[1].attention.self
    rows = slice(16, 24)
    with torch.no_grad():
        hf.bert.embeddings.position_embeddings.weight[0] += 3 * torch.ones(32).cumsum(0).sin()
        first = hf.bert.embeddings.position_embeddings.weight[0]
        attention.query.weight[rows] = 0
        attention.query.bias[rows] = 1.0
        attention.key.weight[rows] = first * 2
    return hw.Model(hf, tokenizer, "first word")


def test_heads_are_found_on_halves_with_baseline_and_interval(
    treebank: Treebank, tokenizer: PreTrainedTokenizerFast
) -> None:
    found = hw.roles(model_of(tokenizer), treebank)
    rows = found.table[found.table["measure"] == NAME]
    assert len(rows) == 8 and (rows["low"] <= rows["value"]).all()
    assert rows["baseline"].between(0.05, 0.6).all() and (rows["n"] > 1000).all()
    have = found.roles[found.roles["measure"] == NAME]
    assert have[list(HEAD)].to_dict("records") == [HEAD] and have["p"].iloc[0] < 0.05
    label = found.labels.set_index(["kind", "layer", "head"])["label"][*HEAD.values()]
    assert label.startswith("first word (") and " vs " in label
    assert "first word" in set(found.patterns["role"])


def test_a_role_that_no_head_has_is_said(
    few_trees: Treebank, tokenizer: PreTrainedTokenizerFast
) -> None:
    role("last-word", threshold=0.9)(lambda sentence: [(0, len(sentence.words) - 1)])
    found = hw.roles(model_of(tokenizer), few_trees)
    assert any(line.startswith("encoder-self: no head for last word") for line in found.absent)


def test_the_table_has_its_names() -> None:
    assert category(NAME) == display_name(NAME) == "first word" != NO_ROLE
    assert ordered_roles()[-1].name == NAME and role_of(NAME) is role[NAME]
    again = role("sink", threshold=0.5)
    refuses(lambda: again(lambda sentence: []), "declared twice")
    refuses(lambda: role["first-words"], "did you mean 'first-word'")


def test_what_a_role_may_not_name_or_take(
    few_trees: Treebank, tokenizer: PreTrainedTokenizerFast
) -> None:
    model = model_of(tokenizer)
    role("too-far", margin=0.1)(lambda sentence: [(0, len(sentence.words))])
    refuses(lambda: hw.roles(model, few_trees), "'too-far' names the words 0 and")
    role.added.clear()
    role("odd", data=("treebank",), takes=("moon",), threshold=0.5)(lambda passage, moon: None)
    words = "'odd' takes moon, but a test on treebank can take"
    refuses(lambda: hw.roles(model, few_trees), words)


def test_in_a_study_and_its_report(
    tmp_path: Path, few_trees: Treebank, tokenizer: PreTrainedTokenizerFast
) -> None:
    model_of(tokenizer).save(tmp_path / "model")
    text = [sentence.text for sentence in few_trees]
    for split, lines in (("train", text[:100]), ("dev", text[80:])):
        (tmp_path / split).write_text("\n".join(lines) + "\n")
    scoring = {"measures": ["confidence"], "judge": False, "untrained": 1, "interactions": 0}
    plan = make_plan(
        {
            "data": {split: str(tmp_path / split) for split in ("train", "dev")},
            "model": str(tmp_path / "model"),
            "roles": {"treebank": [str(few_trees.files[0])]},
            "scoring": scoring,
        }
    )
    run = run_study(plan, tmp_path / "run", QUIET, only="roles")
    roles, controls = (pd.read_csv(run / "roles" / f"{name}.csv") for name in ("roles", "controls"))
    assert NAME in set(roles["measure"]) and NAME in set(controls["measure"])
    examples = json.loads((run / "roles" / "examples.json").read_text())
    shown = next(each for each in examples if each["measure"] == NAME)
    assert all(key == 0 for _, key in shown["cells"]) and shown["right"] > 0
    assert "first word" in hw.report(run).read_text()

    written = (run / "roles" / "roles.csv").stat().st_mtime_ns
    run_study(plan, tmp_path / "run", QUIET, only="roles")
    assert (run / "roles" / "roles.csv").stat().st_mtime_ns == written  # resumed
    role.added.clear()
    role("other-word", margin=0.1)(lambda sentence: [(0, 1)])
    run_study(plan, tmp_path / "run", QUIET, only="roles")
    assert NAME not in set(pd.read_csv(run / "roles" / "table.csv")["measure"])


def test_a_package_declares_one_by_an_entry_point(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = (
        "from headwise.roles.role import role\n\n\n@role('packed', threshold=0.5)\n"
        "def packed(sentence):\n    return []\n"
    )
    (tmp_path / "packed_role.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    points = metadata.EntryPoints([metadata.EntryPoint("packed", "packed_role", "headwise.roles")])
    monkeypatch.setattr(metadata, "entry_points", lambda group: points.select(group=group))
    monkeypatch.delitem(role.__dict__, "installed", raising=False)
    assert role_of("packed") is not None and ordered_roles()[-1].name == "packed"


def test_the_table_is_read_without_torch() -> None:
    code = (
        "import sys; from headwise.roles.role import role, expected_roles; "
        "assert len(role) > 25 and expected_roles('cross') == ['alignment', 'reading']; "
        "assert 'torch' not in sys.modules and 'pandas' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
