"""sentence-transformers itself loads a pruned model, with the vectors that headwise makes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

import headwise as hw
from headwise.models.model_files import PRUNED_MODULE
from models.evaluation.test_similarities import folder_of_sentence_transformers, sentences

LINES = sentences(6, 2)


def pruned(folder: Path) -> hw.Model:
    """A model of embeddings with an empty layer and one that lacks a head, saved in the folder."""
    given = folder_of_sentence_transformers(
        folder / "given", {"pooling_mode": "mean", "embedding_dimension": 32}
    )
    whole = hw.load(given)
    removed = [head for head in whole.heads if head.layer == 0 or head.head == 1]
    whole.without(removed).save(folder / "small")
    return hw.load(folder / "small")


def test_the_folder_names_the_module_that_loads_it(tmp_path: Path) -> None:
    pruned(tmp_path)
    first, *others = json.loads((tmp_path / "small" / "modules.json").read_text())
    assert first["type"] == PRUNED_MODULE
    assert all(module["type"].startswith("sentence_transformers.") for module in others)
    assert "SentenceTransformer" in (tmp_path / "small" / "README.md").read_text()
    again = hw.load(tmp_path / "given").save(tmp_path / "again")
    assert PRUNED_MODULE not in (again / "modules.json").read_text()


def test_vectors_are_those_of_headwise(tmp_path: Path) -> None:
    pytest.importorskip("sentence_transformers", reason="sentence-transformers is not installed")
    from sentence_transformers import SentenceTransformer

    model = pruned(tmp_path)
    encoded = model.tokenizer(LINES, padding=True, return_tensors="pt")
    with torch.no_grad():
        states = model.hf(**encoded).last_hidden_state
    vectors = model.task.pooling()(states, encoded["attention_mask"].bool())
    expected = torch.nn.functional.normalize(vectors, dim=1)

    loaded = SentenceTransformer(str(tmp_path / "small"), trust_remote_code=True)
    assert f"{type(loaded[0]).__module__}.{type(loaded[0]).__qualname__}" == PRUNED_MODULE
    torch.testing.assert_close(torch.tensor(loaded.encode(LINES)), expected, atol=1e-5, rtol=1e-4)
    loaded.save(str(tmp_path / "theirs"))
    again = SentenceTransformer(str(tmp_path / "theirs"), trust_remote_code=True)
    torch.testing.assert_close(torch.tensor(again.encode(LINES)), expected, atol=1e-5, rtol=1e-4)
