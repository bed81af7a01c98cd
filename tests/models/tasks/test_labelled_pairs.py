"""Classifiers of two texts at once (NLI, paraphrase): what they read is what transformers reads."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from datasets import Dataset
from tokenizers import processors

import headwise as hw
from headwise.core.options import Gates, Training
from headwise.data.labelled_pairs import LabelledPairs
from models.tasks.askers import sentences
from models.tasks.test_classifiers import classifier
from models.training.letters import END, START
from refusals import refuses

LABELS = ["vowel", "consonant", "none"]
ROWS = [
    (one, other, LABELS[number % 3])
    for number, (one, other) in enumerate(zip(sentences(24, 0), sentences(24, 1), strict=True))
]
NAMES = ["text", "text_pair", "label"]


def of_pairs(family: str = "bert") -> hw.Model:
    """A classifier whose tokenizer marks two texts, as BERT's does."""
    model = classifier(family)
    model.tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>",
        pair="<s> $A </s> $B:1 </s>:1",
        special_tokens=[("<s>", START), ("</s>", END)],
    )
    return model


def plain(model: hw.Model) -> tuple[float, float]:
    """The loss and the accuracy, pair by pair, by transformers."""
    typed = getattr(model.hf.config, "type_vocab_size", 0) > 1
    lost = right = 0.0
    for one, other, label in ROWS:
        read = model.tokenizer(one, other, return_tensors="pt", return_token_type_ids=typed)
        number = LABELS.index(label)
        with torch.no_grad():
            output = model.hf(**read, labels=torch.tensor([number]))
        lost += float(output.loss)
        right += int(output.logits.argmax()) == number
    return lost / len(ROWS), 100 * right / len(ROWS)


@pytest.mark.parametrize("family", ["bert", "distilbert", "gpt2"])
def test_the_loss_is_that_of_transformers(family: str) -> None:
    """BERT is told which text a token is of; others have no such input."""
    model = of_pairs(family)
    loss, accuracy = plain(model)
    found = hw.evaluate(model, ROWS).table.set_index("measure")
    assert found.value["loss"] == pytest.approx(loss, rel=1e-5)
    assert found.value["accuracy"] == pytest.approx(accuracy)
    scores = hw.score(model, ROWS, ["ablation.zero", "gradient"])
    head = next(iter(model.heads))
    with hw.masked(model, [head]):
        without, _ = plain(model)
    assert scores.of("ablation.zero")[head] == pytest.approx(without - loss, abs=1e-5)
    assert any(value > 0 for value in scores.of("gradient").values())


def test_inputs_that_a_tokenizer_declares(tmp_path: Path) -> None:
    """`model_input_names` without types: a model of BERT's kind reads none, as transformers' pipeline."""
    model = of_pairs()
    model.hf.save_pretrained(tmp_path)
    model.tokenizer.save_pretrained(tmp_path)
    file = tmp_path / "tokenizer_config.json"
    settings = json.loads(file.read_text())
    names = {"model_input_names": ["input_ids", "attention_mask"]}
    file.write_text(json.dumps(settings | names))
    declared = hw.load(tmp_path)
    lost = 0.0
    for one, other, label in ROWS:
        read = declared.tokenizer(one, other, return_tensors="pt")
        asked = torch.tensor([LABELS.index(label)])
        with torch.no_grad():
            lost += float(declared.hf(**read, labels=asked).loss)
    expected, _ = plain(model)
    assert abs(lost / len(ROWS) - expected) > 1e-3
    found = hw.evaluate(declared, ROWS).table.set_index("measure").value
    assert found["loss"] == pytest.approx(lost / len(ROWS), rel=1e-5)


def test_a_data_set_of_pairs_as_glue_names_them(tmp_path: Path) -> None:
    """Of a file, without options: as the same rows in a table."""
    model = of_pairs()
    frame = pd.DataFrame(ROWS, columns=["premise", "hypothesis", "label"])
    Dataset.from_pandas(frame).to_parquet(tmp_path / "mnli.parquet")
    frame.to_csv(tmp_path / "mnli.csv", index=False)
    spec = f"datasets:{tmp_path / 'mnli.parquet'}"
    given = [model.task.read(each) for each in (spec, str(tmp_path / "mnli.csv"))]
    given.append(model.task.read(f"{spec}?text=premise&text_pair=hypothesis"))
    assert all(list(text) == ROWS for text in given)
    assert given[0].name == given[2].name


def test_a_table_with_the_joined_text_beside_the_pair(tmp_path: Path) -> None:
    frame = pd.DataFrame(ROWS, columns=["sentence1", "sentence2", "label"])
    frame["text"] = frame.sentence1 + " " + frame.sentence2
    frame.to_csv(tmp_path / "both.csv", index=False)
    words = "has sentence1 and sentence2, and also text: leave out"
    refuses(lambda: hw.evaluate(of_pairs(), str(tmp_path / "both.csv")), words)
    refuses(lambda: hw.evaluate(of_pairs(), frame), words)


def test_formats(tmp_path: Path) -> None:
    model = of_pairs()
    frame = pd.DataFrame(ROWS, columns=NAMES)
    nli = frame.set_axis(["premise", "hypothesis", "label"], axis=1)
    nli.assign(idx=range(len(nli))).to_csv(tmp_path / "nli.csv", index=False)
    frame.to_csv(tmp_path / "a.tsv", sep="\t", index=False)
    snli = [
        json.dumps({"gold_label": label, "sentence1": one, "sentence2": other})
        for one, other, label in ROWS
    ]
    (tmp_path / "snli.jsonl").write_text("\n".join(snli) + "\n")
    nli.to_parquet(tmp_path / "a.parquet")
    data_set = f"datasets:{tmp_path}/a.parquet?text=premise&text_pair=hypothesis"
    given: list[Any] = [*(str(tmp_path / name) for name in ("nli.csv", "a.tsv", "snli.jsonl"))]
    texts = [model.task.read(name) for name in (*given, data_set)]
    texts += [model.task.text_of(some) for some in (ROWS, nli, Dataset.from_pandas(nli))]
    for text in texts:
        assert isinstance(text, LabelledPairs) and list(text) == ROWS
    assert not isinstance(model.task.text_of([("a b", "none")]), LabelledPairs)
    refuses(
        lambda: hw.score(model, [(one, other, "no-class") for one, other, _ in ROWS]),
        "'no-class' is a label",
    )


@pytest.mark.parametrize("engine", ["torch", "onnx"])
@pytest.mark.parametrize(("family", "typed"), [("bert", True), ("distilbert", False)])
def test_graphs_read_which_text_a_token_is_of(
    engine: str, family: str, typed: bool, tmp_path: Path
) -> None:
    """What the tokenizer gives is what the graph takes, as in transformers."""
    model = of_pairs(family)
    hw.export(model, engine, tmp_path / "graph")
    read = model.tokenizer(
        "a b c", "d e", return_tensors="pt", return_token_type_ids=typed, return_attention_mask=True
    )
    with torch.no_grad():
        expected = model.hf(**read).logits
    if engine == "torch":
        program = torch.export.load(tmp_path / "graph" / "model.pt2").module()
        (logits,) = program(inputs=dict(read))
    else:
        ort = pytest.importorskip("onnxruntime", reason="headwise[onnx] is not installed")
        session = ort.InferenceSession(tmp_path / "graph" / "model.onnx")
        arrays = {name: tensor.numpy() for name, tensor in read.items()}
        logits = torch.from_numpy(session.run(None, arrays)[0])
    torch.testing.assert_close(logits, expected, rtol=1e-4, atol=1e-5)


def test_pruned_and_trained(tmp_path: Path) -> None:
    model = of_pairs()
    small = hw.prune(model, ROWS, hw.Greedy(keep=3), dev=8)
    assert small.heads.total == 3
    training = Training(batch_tokens=64, dtype="float32")
    gated = hw.prune(model, ROWS, Gates(keep=2, epochs=1, warmup=1), dev=8, training=training)
    assert gated.heads.total == 2
