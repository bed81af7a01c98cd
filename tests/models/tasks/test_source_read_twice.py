"""Encoder-decoders that write no words: classifiers (the class of bart-large-mnli) and those that find answers."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import torch

import headwise as hw
from headwise.core.heads import Head
from headwise.models.loading import load
from headwise.models.tasks.classification import Classification
from models.attention.families import build
from models.tasks.test_classifiers import IDS, NAMES
from models.training.letters import LETTERS, START, letters
from refusals import refuses

BART = {
    "d_model": 16,
    "encoder_layers": 2,
    "decoder_layers": 1,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 16,
    "decoder_ffn_dim": 16,
    "max_position_embeddings": 40,
    "init_std": 0.4,
    "dropout": 0.0,
    "forced_eos_token_id": None,
}
T5 = {
    "d_model": 16,
    "d_kv": 4,
    "d_ff": 16,
    "num_layers": 2,
    "num_decoder_layers": 1,
    "num_heads": 4,
}
MODELS: dict[str, dict[str, Any]] = {
    "BartForSequenceClassification": BART,
    "MBartForSequenceClassification": BART,
    "T5ForSequenceClassification": T5,
}
ROWS = [
    (
        " ".join(random.Random(seed).choices(LETTERS, k=2 + seed % 6)),
        ["vowel", "consonant", "none"][seed % 3],
    )
    for seed in range(12)
]


def classifier(name: str) -> hw.Model:
    shape = {**MODELS[name], **IDS, "decoder_start_token_id": START, **NAMES}
    return hw.Model(build(name, **shape), letters(), name)


def expected_loss(model: hw.Model) -> float:
    lost = 0.0
    for text, label in ROWS:
        batch = model.tokenizer(text, return_tensors="pt")
        with torch.no_grad():
            lost += float(model.hf(**batch, labels=torch.tensor([NAMES["label2id"][label]])).loss)
    return lost / len(ROWS)


@pytest.mark.parametrize("name", MODELS)
def test_a_classifier_of_both_stacks(name: str, tmp_path: Path) -> None:
    model = classifier(name)
    assert isinstance(model.task, Classification)
    decoder = 4
    encoder = 4 if name.startswith("T5") else 2
    assert model.heads.query == {
        "encoder-self": (encoder,) * 2,
        "decoder-self": (decoder,),
        "cross": (decoder,),
    }
    loss = expected_loss(model)
    found = hw.evaluate(model, ROWS).table.set_index("measure")
    assert found.value["loss"] == pytest.approx(loss, rel=1e-5)
    scores = hw.score(model, ROWS, ["gradient", "ablation.zero", "confidence"])
    for head in (Head("encoder-self", 1, 1), Head("decoder-self", 0, 2), Head("cross", 0, 3)):
        with hw.masked(model, [head]):
            without = expected_loss(model)
        assert scores.of("ablation.zero")[head] == pytest.approx(without - loss, abs=1e-5)
    gone = [Head("encoder-self", 0, 0), Head("cross", 0, 1), Head("decoder-self", 0, 0)]
    small = model.without(gone)
    with hw.masked(model, gone):
        assert expected_loss(small) == pytest.approx(expected_loss(model), rel=1e-5)
    again = load(small.save(tmp_path / "small"))
    assert expected_loss(again) == pytest.approx(expected_loss(small), rel=1e-6)
    refuses(
        lambda: hw.export(small, "onnx", tmp_path / "onnx"), "finds the end of its text by the ids"
    )
    fewer = hw.prune(model, ROWS, hw.Greedy(keep=5), dev=ROWS)
    assert fewer.heads.total == 5


def test_its_own_batches() -> None:
    model = classifier("BartForSequenceClassification")
    batch = model.tokenizer([row[0] for row in ROWS], return_tensors="pt", padding=True)
    labels = torch.tensor([NAMES["label2id"][row[1]] for row in ROWS])
    scores = hw.score(model, [{**batch, "labels": labels}], ["ablation.zero"])
    expected = hw.score(model, ROWS, ["ablation.zero"])
    for head in model.heads:
        assert scores.of("ablation.zero")[head] == pytest.approx(
            expected.of("ablation.zero")[head], abs=1e-5
        )


@pytest.mark.parametrize(
    "name",
    [
        "BartForQuestionAnswering",
        "BertForQuestionAnswering",
        "ElectraForPreTraining",
        "T5ForQuestionAnswering",
    ],
)
def test_answers_that_are_not_measured(name: str, tmp_path: Path, call: Any, refused: Any) -> None:
    shape = (
        BART
        if name.startswith("Bart")
        else {
            "hidden_size": 16,
            "num_hidden_layers": 1,
            "num_attention_heads": 2,
            "intermediate_size": 16,
            "embedding_size": 16,
        }
    )
    if name.startswith("T5"):
        shape = {"d_model": 16, "d_kv": 8, "d_ff": 16, "num_layers": 1, "num_heads": 2}
    hf = build(name, **{**shape, **IDS, "decoder_start_token_id": START})
    model = hw.Model(hf, letters(), name)
    lines = tmp_path / "lines.txt"
    lines.write_text("\n".join(row[0] for row in ROWS) + "\n")
    model.save(tmp_path / "it")
    status, _, err = call("score", tmp_path / "it", "--text", lines, "--out", tmp_path / "run")
    assert status == 0 and "Next:" not in err, err
    said = f"a {name}, whose answers headwise does not measure"
    refuses(lambda: hw.evaluate(model, [row[0] for row in ROWS]), said)
    assert said in refused("evaluate", tmp_path / "it", "--text", lines, "--out", tmp_path / "e")
    prune = ("prune", tmp_path / "it", "--text", lines, "--keep", "50%", "--measure", "dormancy")
    assert said in refused(*prune, "--out", tmp_path / "p")
    small = model.without([next(iter(model.heads))])
    assert load(small.save(tmp_path / "small")).heads == small.heads


def test_both_ends_of_an_answer_are_exported(tmp_path: Path) -> None:
    onnxruntime = pytest.importorskip("onnxruntime", reason="headwise[onnx] is not installed")
    pytest.importorskip("onnxscript", reason="headwise[onnx] is not installed")
    shape = {
        "hidden_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "intermediate_size": 16,
    }
    model = hw.Model(build("BertForQuestionAnswering", **shape, **IDS), letters(), "qa")
    folder = hw.export(model, "onnx", tmp_path / "onnx", say=lambda note: None)
    session = onnxruntime.InferenceSession(str(folder / "model.onnx"))
    assert [each.name for each in session.get_outputs()] == ["start_logits", "end_logits"]
