"""A treebank of the embedded corpus, a tokenizer that knows its words, and models that read them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from transformers import PreTrainedTokenizerFast

from headwise.data.embedded import write_treebank
from headwise.data.treebank import Treebank
from headwise.models.model import Model
from models.attention.families import tiny
from roles.handmade import word_tokenizer

Reader = Callable[..., Model]


def trees(paths: pytest.TempPathFactory, count: int) -> Treebank:
    return Treebank.read(write_treebank(paths.mktemp("treebank") / "dev.conllu", count))


@pytest.fixture(scope="session")
def treebank(tmp_path_factory: pytest.TempPathFactory) -> Treebank:
    """400 sentences of the embedded corpus, each a document of its own."""
    return trees(tmp_path_factory, 400)


@pytest.fixture(scope="session")
def few_trees(tmp_path_factory: pytest.TempPathFactory) -> Treebank:
    """The first 120 of them."""
    return trees(tmp_path_factory, 120)


@pytest.fixture(scope="session")
def tokenizer(treebank: Treebank) -> PreTrainedTokenizerFast:
    """Its words, and an end of sentence behind them."""
    forms = sorted({word.form for sentence in treebank for word in sentence.words})
    return word_tokenizer(["<pad>", "</s>", "<unk>", *forms], marks=True)


@pytest.fixture(scope="session")
def reader(tokenizer: PreTrainedTokenizerFast) -> Reader:
    """A factory: `reader(family, **config)` is a tiny random model of that tokenizer."""

    def build(family: str = "marian", **changes: Any) -> Model:
        return Model(tiny(family, vocab_size=len(tokenizer), **changes), tokenizer, "tiny")

    return build
