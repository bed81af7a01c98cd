"""A task of another package (`tagging.py`), known by its entry point alone: scores, a study and its page, the lab."""

from __future__ import annotations

import random
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import numpy as np
import pytest
import torch

import headwise as hw
from headwise.faces.lab.predictor import Predictor
from headwise.models.tasks.task_table import tasks_of_packages
from headwise.study.plan import make_plan
from headwise.study.study import run_study
from models.attention.families import STACK, build
from models.tasks.tagging import Tagging
from models.tasks.test_classifiers import IDS, NAMES
from models.training.letters import LETTERS, letters
from study.studies import QUIET, numbers_of


def declare(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    points = metadata.EntryPoints([metadata.EntryPoint("tagging", value, "headwise.tasks")])
    monkeypatch.setattr(metadata, "entry_points", lambda group: points.select(group=group))
    tasks_of_packages.cache_clear()


@pytest.fixture(autouse=True)
def installed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    declare(monkeypatch, "models.tasks.tagging:Tagging")
    yield
    tasks_of_packages.cache_clear()


def tagger() -> hw.Model:
    hf = build("BertForTokenClassification", **{**STACK, **IDS, **NAMES})
    return hw.Model(hf, letters(), "tiny tagger")


def tagged(path: Path, count: int, seed: int) -> str:
    drawn = random.Random(seed)
    lines = []
    for _ in range(count):
        words = drawn.choices(LETTERS, k=drawn.randint(2, 9))
        lines.append(
            " ".join(f"{word}/{'vowel' if word in 'aeiou' else 'consonant'}" for word in words)
        )
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return str(path)


def test_its_numbers_are_those_of_the_model(tmp_path: Path) -> None:
    model = tagger()
    assert isinstance(model.task, Tagging)
    text = model.task.read(tagged(tmp_path / "dev.txt", 12, 1))
    lost = right = asked = 0.0
    for sentence, tags in text.rows():
        labels = [-100, *(model.hf.config.label2id[tag] for tag in tags.split()), -100]
        with torch.no_grad():
            ids = torch.tensor([model.tokenizer(sentence)["input_ids"]])
            output = model.hf(input_ids=ids, labels=torch.tensor([labels]))
        words = len(tags.split())
        lost += float(output.loss) * words
        right += float((output.logits[0].argmax(-1) == torch.tensor(labels)).sum())
        asked += words
    found = hw.evaluate(model, text).table.set_index("measure")
    assert found.value["loss"] == pytest.approx(lost / asked, rel=1e-5)
    assert found.value["accuracy"] == pytest.approx(100 * right / asked)
    assert found.low["accuracy"] < found.value["accuracy"] < found.high["accuracy"]

    scores = hw.score(model, text, ["gradient", "ablation.zero"])
    head = max(scores.of("ablation.zero"), key=scores.of("ablation.zero").__getitem__)
    with hw.masked(model, [head]):
        without = hw.evaluate(model, text).table.set_index("measure").value["loss"]
    assert scores.of("ablation.zero")[head] == pytest.approx(without - lost / asked, rel=1e-4)


def test_from_scores_to_the_page(tmp_path: Path) -> None:
    tagger().save(tmp_path / "given")
    data = {
        "train": tagged(tmp_path / "train.txt", 60, 0),
        "test": tagged(tmp_path / "test.txt", 12, 2),
    }
    sweep = {"keep": [3], "penalty": [0.01], "epochs": 2, "warmup": 1, "gate_learning_rate": 2.0}
    plan = {
        "model": str(tmp_path / "given"),
        "data": data,
        "pruning": {**sweep, "controls": ["fine-tuned"]},
        "scoring": {"measures": ["gradient", "ablation.zero"], "untrained": 1, "interactions": 2},
        "training": {"batch_tokens": 48, "dtype": "float32"},
        "choice": {"max_drop": "any"},
    }
    run_study(make_plan(plan), tmp_path / "out", QUIET, report=hw.report)
    table = numbers_of(tmp_path / "out")
    pruned = hw.load(tmp_path / "out/pruned/keep-3")
    assert pruned.heads.total == 3
    found = hw.evaluate(pruned, pruned.task.read(data["test"])).table.set_index("measure")
    assert table.loc[("keep-3", "test", "accuracy", "")].value == pytest.approx(
        found.value["accuracy"]
    )
    assert "accuracy" in (tmp_path / "out/report.html").read_text(encoding="utf-8")


def test_the_lab_asks_for_the_tag_of_every_token() -> None:
    model = tagger()
    with torch.no_grad():
        prompt, prediction = Predictor(model).unchanged_prediction("a b c", 1, None)
        logits = model.hf(**prompt.inputs).logits[0]
    names = [NAMES["id2label"][number] for number in logits.argmax(-1).tolist()]
    assert prediction.text.split() == names and len(names) == 5
    best = logits.log_softmax(-1).max(-1).values
    np.testing.assert_allclose(prediction.log_probabilities, best, rtol=1e-4)


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ("models.tasks.tagging:TaggedText", "must be a subclass"),
        ("nothing_of_the_kind", "cannot be imported"),
    ],
)
def test_what_is_no_task_is_refused(value: str, why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    declare(monkeypatch, value)
    with pytest.raises(hw.HeadwiseError, match=why):
        tagger().task  # noqa: B018
