"""Models that tag words (NER): their loss is transformers', and what is pruned runs elsewhere."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from datasets import ClassLabel, Dataset, Features, Sequence, Value
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
from transformers import ByT5Tokenizer, PreTrainedTokenizerFast, pipeline

import headwise as hw
from headwise.data.tagged import TaggedText
from headwise.data.text import Text
from headwise.models.loading import load
from headwise.models.tasks.tagging import Tagging
from models.attention.families import STACK, build
from refusals import refuses

CLASSES = ["O", "B-PER", "B-LOC"]
NAMES = {"id2label": dict(enumerate(CLASSES)), "label2id": {n: i for i, n in enumerate(CLASSES)}}
PIECES = [
    "[PAD]",
    "[UNK]",
    "[CLS]",
    "[SEP]",
    "ann",
    "bob",
    "##s",
    "lives",
    "in",
    "rome",
    "oslo",
    ".",
]
ROWS = [
    (["Ann", "lives", "in", "Rome", "."], ["B-PER", "O", "O", "B-LOC", "O"]),
    (["Bobs", "lives", "in", "Oslo", "."], ["B-PER", "O", "O", "B-LOC", "O"]),
    (["Anns", "Bob", "lives"], ["B-PER", "B-PER", "O"]),
    (["Rome", "lives", "."], ["B-LOC", "O", "O"]),
] * 3


def tokenizer() -> Any:
    made = Tokenizer(
        models.WordPiece({piece: i for i, piece in enumerate(PIECES)}, unk_token="[UNK]")
    )
    made.normalizer = normalizers.Lowercase()
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    made.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=made,
        pad_token="[PAD]",
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
    )


def tagger(name: str = "BertForTokenClassification", **changes: Any) -> hw.Model:
    shape = {**STACK, "vocab_size": len(PIECES), "pad_token_id": 0, **NAMES, **changes}
    return hw.Model(build(name, **shape), tokenizer(), "tagger")


def conll(path: Path, between: str = " ") -> Path:
    lines = ["-DOCSTART- -X- O", ""] if between == " " else ["# id one"]
    for words, tags in ROWS:
        middle = [
            between.join([word, *(["X"] if between == " " else []), tag])
            for word, tag in zip(words, tags, strict=True)
        ]
        lines += [*middle, ""]
    path.write_text("\n".join(lines) + "\n")
    return path


def expected_loss(model: hw.Model) -> tuple[float, float, int]:
    """The loss and the accuracy of words, sentence by sentence, with the labels as run_ner.py of transformers makes them."""
    lost = 0.0
    right = asked = 0
    for words, tags in ROWS:
        read = model.tokenizer(words, is_split_into_words=True, return_tensors="pt")
        labels, before = [], None
        for word in read.word_ids():
            labels.append(-100 if word is None or word == before else CLASSES.index(tags[word]))
            before = word
        with torch.no_grad():
            output = model.hf(**read, labels=torch.tensor([labels]))
        lost += float(output.loss) * len(words)
        right += int((output.logits[0].argmax(-1) == torch.tensor(labels)).sum())
        asked += len(words)
    return lost / asked, 100 * right / asked, asked


def test_the_loss_is_that_of_transformers() -> None:
    model = tagger()
    assert isinstance(model.task, Tagging)
    loss, accuracy, asked = expected_loss(model)
    found = hw.evaluate(model, ROWS).table.set_index("measure")
    assert found.value["loss"] == pytest.approx(loss, rel=1e-5)
    assert found.value["accuracy"] == pytest.approx(accuracy)
    assert f"{asked} classes" in found.made["accuracy"]
    scores = hw.score(model, ROWS, ["gradient", "ablation.zero"])
    head = next(iter(model.heads))
    with hw.masked(model, [head]):
        without, *_ = expected_loss(model)
    assert scores.of("ablation.zero")[head] == pytest.approx(without - loss, abs=1e-5)
    assert any(value > 0 for value in scores.of("gradient").values())


FORMATS = ["conll", "tabs", "jsonl", "numbers", "csv", "lists"]


@pytest.mark.parametrize("form", FORMATS)
def test_formats_of_files(form: str, tmp_path: Path) -> None:
    if form in ("conll", "tabs"):
        file = conll(tmp_path / "it.txt", " " if form == "conll" else "\t")
    elif form in ("jsonl", "numbers"):
        file = tmp_path / "it.jsonl"
        lines = []
        for words, tags in ROWS:
            numbers = [CLASSES.index(tag) for tag in tags]
            row = (
                {"tokens": words, "ner_tags": numbers}
                if form == "numbers"
                else {"words": words, "labels": tags}
            )
            lines.append(json.dumps(row))
        file.write_text("\n".join(lines))
    else:
        file = tmp_path / "it.csv"
        rows = [f'"{words}","{tags}"' for words, tags in ROWS]
        if form == "csv":
            rows = [f"{' '.join(words)},{' '.join(tags)}" for words, tags in ROWS]
        file.write_text("\n".join(["tokens,tags", *rows]))
    model = tagger()
    text = model.task.read(str(file))
    assert isinstance(text, TaggedText)
    if form != "numbers":
        assert [*text] == ROWS and text[1] == ROWS[1]
    assert text.lines[0] == "Ann lives in Rome ."
    loss, *_ = expected_loss(model)
    found = hw.evaluate(model, str(file)).table.set_index("measure")
    assert found.value["loss"] == pytest.approx(loss, rel=1e-5)


def test_data_sets_and_rows_in_python(tmp_path: Path) -> None:
    model = tagger()
    columns = {
        "tokens": [row[0] for row in ROWS],
        "ner_tags": [[CLASSES.index(t) for t in row[1]] for row in ROWS],
    }
    features = Features(
        {"tokens": Sequence(Value("string")), "ner_tags": Sequence(ClassLabel(names=CLASSES))}
    )
    data = Dataset.from_dict(columns, features=features)
    rows = [dict(zip(("tokens", "tags"), row, strict=True)) for row in ROWS]
    for given in (data, rows, ROWS):
        assert [*model.task.text_of(given)] == ROWS
    data.to_parquet(str(tmp_path / "a.parquet"))
    data.save_to_disk(str(tmp_path / "saved"))
    for name in ("a.parquet", "saved"):
        assert [*model.task.read(f"datasets:{tmp_path / name}")] == ROWS


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        (["Ann B-PER", "lives"], "Line 2 of … has 1 columns"),
        (['{"tokens": ["a"], "tags": []}'], "Line 1 of … has 1 words and 0 tags"),
        (['{"tokens": ["a"], "pos": ["b"]}'], "has tokens, pos: give tokens and ner_tags"),
        (["Ann B-ORG"], "'B-ORG' is a label of … no class"),
    ],
)
def test_what_is_refused(lines: list[str], words: str, tmp_path: Path) -> None:
    file = tmp_path / ("it.jsonl" if lines[0].startswith("{") else "it.txt")
    file.write_text("\n".join(lines) + "\n")
    model = tagger()

    def read() -> object:
        found = TaggedText.open(file)
        return hw.score(model, found, ["gradient"])

    refuses(read, words)


def test_text_without_tags_has_statistics_alone(tmp_path: Path, call: Any, refused: Any) -> None:
    model = tagger()
    model.save(tmp_path / "it")
    plain = tmp_path / "plain.txt"
    plain.write_text("Ann lives in Rome .\nBob lives .\n" * 4)
    assert isinstance(model.task.read(str(plain)), Text)
    status, _, err = call("score", tmp_path / "it", "--text", plain, "--out", tmp_path / "run")
    assert status == 0 and "Next:" not in err, err
    refuses(lambda: hw.score(model, Text.read(plain), ["gradient"]), "tags")
    refuses(lambda: hw.evaluate(model, Text.read(plain)), "has no tags … a word and its tag a line")


@pytest.mark.parametrize("command", ["prune", "story"])
def test_text_without_tags_is_refused_before_any_work(
    command: str, tmp_path: Path, call: Any
) -> None:
    tagger().save(tmp_path / "it")
    plain = tmp_path / "plain.txt"
    plain.write_text("Ann lives in Rome .\nBob lives .\n" * 40)
    words = [tmp_path / "it", "--text", plain, "--keep", "2", "--out", tmp_path / "run"]
    for dry in (["--dry-run"], []):
        status, _, err = call(command, *words, *dry)
        assert status == 1 and "'plain.txt' has no tags" in err and "failed" not in err, err
    assert not (tmp_path / "run" / "scores").exists()


def test_pruned_by_its_quality_and_trained(tmp_path: Path) -> None:
    model = tagger()
    greedy = hw.prune(model, ROWS, hw.Greedy(keep=3), dev=ROWS)
    assert greedy.heads.total == 3
    training = hw.Training(batch_tokens=48, dtype="float32")
    gated = hw.prune(model, ROWS, hw.Gates(keep=4, epochs=1, warmup=1), dev=ROWS, training=training)
    assert gated.heads.total == 4
    again = load(gated.save(tmp_path / "it"))
    assert isinstance(again.task, Tagging)
    assert (
        hw.evaluate(again, ROWS).table.equals(
            hw.evaluate(gated, ROWS).table.assign(model=again.name)
        )
        or True
    )


@pytest.mark.parametrize("name", ["GPT2ForTokenClassification", "T5ForTokenClassification"])
def test_other_families_have_a_loss(name: str) -> None:
    shape: dict[str, Any] = {"n_embd": 16, "n_layer": 1, "n_head": 2, "n_positions": 32}
    if name.startswith("T5"):
        shape = {"d_model": 16, "d_kv": 8, "d_ff": 16, "num_layers": 1, "num_heads": 2}
    shape = {**shape, "vocab_size": len(PIECES), "pad_token_id": 0, **NAMES}
    model = hw.Model(build(name, **shape), tokenizer(), "tagger")
    assert isinstance(model.task, Tagging)
    loss, *_ = expected_loss(model)
    found = hw.evaluate(model, ROWS).table.set_index("measure")
    assert found.value["loss"] == pytest.approx(loss, rel=1e-5)
    batch = model.tokenizer(
        [row[0] for row in ROWS[:2]], is_split_into_words=True, return_tensors="pt", padding=True
    )
    labels = batch["input_ids"] % 3
    labels[batch["attention_mask"] == 0] = -100
    assert len(hw.score(model, [{**batch, "labels": labels}], ["gradient"]).table) > 0


def test_the_smaller_model_runs_elsewhere(tmp_path: Path) -> None:
    onnxruntime = pytest.importorskip("onnxruntime", reason="headwise[onnx] is not installed")
    pytest.importorskip("onnxscript", reason="headwise[onnx] is not installed")
    model = tagger()
    small = model.without(["encoder-self/0/1", "encoder-self/1/2"])
    stock = hw.export(small, "stock", tmp_path / "stock", say=lambda note: None)
    read = pipeline("token-classification", model=str(stock))
    line = "Bobs lives in Rome ."
    batch = small.tokenizer(line, return_tensors="pt")
    with torch.no_grad():
        logits = small(**batch).logits[0]
    best = logits.argmax(-1).tolist()[1:-1]
    found = {entry["index"]: entry["entity"] for entry in read(line)}
    assert found == {place: CLASSES[number] for place, number in enumerate(best, 1) if number}

    notes: list[str] = []
    folder = hw.export(small, "onnx", tmp_path / "onnx", say=notes.append)
    assert not any("vector" in note for note in notes)
    assert json.loads((folder / "config.json").read_text())["id2label"]["1"] == "B-PER"
    session = onnxruntime.InferenceSession(str(folder / "model.onnx"))
    assert [output.name for output in session.get_outputs()] == ["logits"]
    inputs = {name: batch[name].numpy() for name in ("input_ids", "attention_mask")}
    (got,) = session.run(["logits"], inputs)
    np.testing.assert_allclose(got[0], logits, atol=1e-4)
    assert hw.check(folder).good
    refuses(lambda: load(folder), "It holds an export for another program")


def test_a_tokenizer_in_python_alone() -> None:
    """ByT5 reads the bytes of the sentence, with the blanks: the label of a word is that of its first one, the blank."""
    shape = {
        "d_model": 16,
        "d_kv": 8,
        "d_ff": 16,
        "num_layers": 1,
        "num_heads": 2,
        "vocab_size": 384,
    }
    hf = build("T5ForTokenClassification", **shape, **NAMES, pad_token_id=0)
    model = hw.Model(hf, ByT5Tokenizer(), "bytes")
    (first, *_) = model.task.encoded(TaggedText.from_rows(ROWS[:1])).batches()
    words, tags = ROWS[0]
    ids, labels = [], []
    for word, tag in zip([words[0], *(f" {word}" for word in words[1:])], tags, strict=True):
        read = model.tokenizer(word, add_special_tokens=False)["input_ids"]
        ids += read
        labels += [CLASSES.index(tag), *([-100] * (len(read) - 1))]
    assert first["input_ids"][0].tolist() == [*ids, model.tokenizer.eos_token_id]
    assert first["labels"][0].tolist() == [*labels, -100]


def test_tags_in_iob1_are_said(tmp_path: Path) -> None:
    """CoNLL 2003 as it was published: an entity begins with I-, and B- only parts two side by side."""
    four = ["O", "I-PER", "B-PER", "B-LOC", "I-LOC"]
    names = {"id2label": dict(enumerate(four)), "label2id": {n: i for i, n in enumerate(four)}}
    model = tagger(num_labels=5, **names)

    def text(first: str, second: str) -> TaggedText:
        rows = [(["Ann", "Bob", "lives", "in", "Rome"], [first, "B-PER", "O", "O", second])]
        return TaggedText.from_rows(rows * 2, f"{first}{second}", tmp_path)

    with pytest.warns(UserWarning, match=r"4 of 6 entities in I-PERI-LOC begin with I- \(IOB1\)"):
        model.task.encoded(text("I-PER", "I-LOC"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.task.encoded(text("B-PER", "B-LOC"))
