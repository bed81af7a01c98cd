"""Folders whose tokenizer is a vocabulary alone, or lacks it, and models of sentence-transformers in folders of old."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import sentencepiece
import torch
from transformers import AutoModel, AutoTokenizer

import headwise as hw
from models.attention.families import STACK, T5, build
from refusals import refuses

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "cat", "##s", "sleep", "."]
LINES = ["the cats sleep .", "the cat sleeps ."] * 5


def bert(folder: Path) -> None:
    build("BertForMaskedLM", **STACK).save_pretrained(folder)
    (folder / "vocab.txt").write_text("\n".join(WORDS))


def gpt2(folder: Path) -> None:
    shape = {"n_embd": 16, "n_layer": 1, "n_head": 2, "vocab_size": 300}
    build("GPT2LMHeadModel", **shape).save_pretrained(folder)
    letters = [chr(code) for code in range(33, 127)]
    numbers = {word: number for number, word in enumerate([*letters, "Ġ", "th", "the", "Ġc"])}
    (folder / "vocab.json").write_text(json.dumps({**numbers, "<|endoftext|>": 200}))
    (folder / "merges.txt").write_text("#version: 0.2\nt h\nth e\nĠ c\n")


def t5(folder: Path) -> None:
    build("T5ForConditionalGeneration", **{**T5, "vocab_size": 200}).save_pretrained(folder)
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(LINES),
        model_prefix=str(folder / "spiece"),
        vocab_size=24,
        hard_vocab_limit=False,
        pad_id=0,
        eos_id=1,
        unk_id=2,
        bos_id=-1,
        minloglevel=2,
    )


FOLDERS: dict[str, tuple[Callable[[Path], None], str]] = {
    "bert": (bert, "vocab.txt"),
    "gpt2": (gpt2, "vocab.json"),
    "t5": (t5, "spiece.model"),
}


@pytest.mark.parametrize("name", FOLDERS)
def test_a_vocabulary_is_a_tokenizer(name: str, tmp_path: Path) -> None:
    make, _ = FOLDERS[name]
    make(tmp_path)
    model = hw.load(tmp_path)
    expected = AutoTokenizer.from_pretrained(tmp_path)
    assert model.tokenizer(LINES)["input_ids"] == expected(LINES)["input_ids"]
    text = zip(LINES, LINES, strict=True) if name == "t5" else LINES
    assert hw.score(model, list(text), ["confidence"]).signature["sentences"] == 10


@pytest.mark.parametrize("name", FOLDERS)
def test_a_missing_vocabulary_is_named(name: str, tmp_path: Path) -> None:
    make, vocabulary = FOLDERS[name]
    make(tmp_path)
    for file in {vocabulary, "merges.txt"}:
        (tmp_path / file).unlink(missing_ok=True)
    (tmp_path / "tokenizer_config.json").write_text("{}")
    refuses(lambda: hw.load(tmp_path), f"has no words: {vocabulary} or … is missing")


def test_byte_pairs_without_their_rules_are_refused(tmp_path: Path) -> None:
    gpt2(tmp_path)
    (tmp_path / "merges.txt").unlink()
    refuses(lambda: hw.load(tmp_path), "transformers reads no tokenizer in … merges.txt")


def test_files_that_make_no_tokenizer_are_named_as_such(tmp_path: Path) -> None:
    bert(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    refuses(lambda: hw.load(tmp_path), "transformers reads no tokenizer in")


def old_layout(folder: Path, pooling: str = "cls") -> Path:
    """As sentence-transformers 0.3 wrote it: the model in a folder of its own."""
    inner = folder / "0_Transformer"
    build("BertModel", **STACK).save_pretrained(inner)
    (inner / "vocab.txt").write_text("\n".join(WORDS))
    (inner / "sentence_bert_config.json").write_text('{"max_seq_length": 12}')
    (folder / "1_Pooling").mkdir()
    flags: dict[str, Any] = {f"pooling_mode_{pooling}_token": True, "word_embedding_dimension": 32}
    (folder / "1_Pooling/config.json").write_text(json.dumps(flags))
    modules = [
        {
            "idx": 0,
            "name": "0",
            "path": "0_Transformer",
            "type": "sentence_transformers.models.Transformer",
        },
        {
            "idx": 1,
            "name": "1",
            "path": "1_Pooling",
            "type": "sentence_transformers.models.Pooling",
        },
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "config.json").write_text('{"__version__": "0.3.0"}')
    return folder


@pytest.mark.parametrize("with_config", [True, False])
def test_a_model_of_old_sentence_transformers(with_config: bool, tmp_path: Path) -> None:
    folder = old_layout(tmp_path / "old")
    if not with_config:
        (folder / "config.json").unlink()
    model = hw.load(folder)
    assert model.task.pooling().modes == ("cls",)  # type: ignore[attr-defined]
    plain = AutoModel.from_pretrained(folder / "0_Transformer").eval()
    batch = model.tokenizer(LINES[:2], return_tensors="pt", padding=True)
    with torch.no_grad():
        assert torch.equal(model(**batch).last_hidden_state, plain(**batch).last_hidden_state)
    small = model.without(["encoder-self/0/1"])
    for each, place in ((model, "whole"), (small, "small")):
        saved = each.save(tmp_path / place)
        assert (
            not (saved / "0_Transformer").exists()
            and (saved / "sentence_bert_config.json").exists()
        )
        again = hw.load(saved)
        assert again.heads == each.heads
        assert again.task.pooling().modes == ("cls",)  # type: ignore[attr-defined]
    assert (folder / "0_Transformer/config.json").exists()


def test_sentence_transformers_reads_what_is_saved(tmp_path: Path) -> None:
    library = pytest.importorskip(
        "sentence_transformers", reason="headwise[sentences] is not installed"
    )
    folder = old_layout(tmp_path / "old")
    expected = library.SentenceTransformer(str(folder)).encode(LINES[:2])
    saved = hw.load(folder).save(tmp_path / "new")
    assert abs(library.SentenceTransformer(str(saved)).encode(LINES[:2]) - expected).max() < 1e-5


def test_modules_that_lead_out_of_the_folder_are_not_followed(tmp_path: Path) -> None:
    folder = old_layout(tmp_path / "old")
    modules = json.loads((folder / "modules.json").read_text())
    shutil.move(folder / "0_Transformer", tmp_path / "elsewhere")
    modules[0]["path"] = "../elsewhere"
    (folder / "modules.json").write_text(json.dumps(modules))
    with pytest.raises(hw.HeadwiseError):
        hw.load(folder)
