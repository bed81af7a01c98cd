"""Texts in Python that share sentences, or are one file."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest

import headwise as hw
from headwise.data.text import ParallelText, Text
from headwise.study.overlap import shared_sentences
from models.tasks.askers import asker, lines
from refusals import refuses


def test_prune_says_it_in_python(tmp_path: Path) -> None:
    model, options = asker("bert"), hw.Greedy(keep=2, measure="random")
    path = tmp_path / "text.txt"
    path.write_text("".join(f"{line}\n" for line in lines(12)), encoding="utf-8")
    refuses(lambda: hw.prune(model, str(path), options, dev=path), "as training and as dev text")
    with pytest.warns(UserWarning, match="6 of 6 dev sentences are also in the train text"):
        hw.prune(model, lines(12), options, dev=lines(6))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        hw.prune(model, lines(6), options, dev=lines(6, 3))


def test_a_chance_sentence_is_not_said() -> None:
    """Every sentence that is twice in a text counts as often; pairs are compared by what the model reads."""
    train = ParallelText.from_pairs([(f"s{n}", "x") for n in range(200)])
    few = ParallelText.from_pairs([("s1", "y"), *((f"d{n}", "y") for n in range(120))])
    many = Text.from_lines(["s1", "s1", *(f"d{n}" for n in range(98))])
    assert not [*shared_sentences({"train": train, "dev": few})]
    (line,) = shared_sentences({"train": train, "dev": many})
    assert line.startswith("2 of 100 dev sentences")
