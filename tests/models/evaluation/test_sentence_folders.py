"""What a folder of sentence-transformers declares is done: the vectors are its own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from scipy.stats import spearmanr

import headwise as hw
from headwise.data.sentence_pairs import SentencePairs
from models.tasks.askers import embedder, sentences
from refusals import refuses

MODULES = ["Transformer", "Pooling", "Normalize"]


def folder_of(folder: Path, settings: Any, pooling: Any = None, **limits: Any) -> Path:
    """A folder as sentence-transformers writes it."""
    embedder().save(folder)
    package = "sentence_transformers.models"
    modules = [
        {"idx": n, "name": str(n), "path": f"{n}_{sort}" if n else "", "type": f"{package}.{sort}"}
        for n, sort in enumerate(MODULES)
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    for n, sort in enumerate(MODULES[1:], start=1):
        (folder / f"{n}_{sort}").mkdir()
    mean = {"word_embedding_dimension": 16, "pooling_mode_mean_tokens": True, **(pooling or {})}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(mean))
    (folder / "config_sentence_transformers.json").write_text(json.dumps(settings))
    (folder / "sentence_bert_config.json").write_text(json.dumps(limits))
    return folder


PROMPTS = {"prompts": {"query": "b c ", "passage": "x "}, "default_prompt_name": "query"}
CASES: dict[str, tuple[Any, Any]] = {
    "a prompt": (PROMPTS, {}),
    "prompts without a default": ({**PROMPTS, "default_prompt_name": None}, {}),
    "small letters": ({}, {"do_lower_case": True}),
}


@pytest.mark.parametrize("name", CASES)
def test_similarities_are_those_of_sentence_transformers(name: str, tmp_path: Path) -> None:
    library = pytest.importorskip(
        "sentence_transformers", reason="sentence-transformers is not installed"
    )
    settings, limits = CASES[name]
    folder = folder_of(tmp_path / "own", settings, **limits)
    text = sentences(30, 3)
    if limits:
        text = [sentence.title() for sentence in text]
    rows = [(text[n], text[n + 1], float(n * 7 % 5)) for n in range(len(text) - 1)]
    vectors = library.SentenceTransformer(str(folder)).encode(text)
    cosines = [float(vectors[n] @ vectors[n + 1]) for n in range(len(text) - 1)]
    wanted = 100 * spearmanr(cosines, [score for *_, score in rows]).statistic
    found = hw.evaluate(hw.load(folder), SentencePairs.from_rows(rows)).table
    found = found.set_index("measure")
    assert found.value["similarity"] == pytest.approx(wanted, abs=1e-6)
    assert ("'b c '" in found.made["similarity"]) is (name == "a prompt")


def test_sentences_that_it_would_cut_are_left_out_and_counted(tmp_path: Path) -> None:
    model = hw.load(folder_of(tmp_path / "own", {}, max_seq_length=8))
    text = sentences(30, 3)
    long = [line for line in text if len(model.tokenizer(line)["input_ids"]) > 8]
    assert 0 < len(long) < len(text) and model.task.longest == 8
    batches = model.task.batches(text)
    assert f"{len(long)} longer than 8 tokens" in batches.left_out


def test_a_prompt_that_vectors_leave_out_is_refused(tmp_path: Path) -> None:
    model = hw.load(folder_of(tmp_path / "own", PROMPTS, {"include_prompt": False}))
    refuses(lambda: hw.evaluate(model, sentences(9, 3)), "without the tokens of its prompt")
    assert hw.score(model, sentences(9, 3), ["confidence"]).of("confidence")
