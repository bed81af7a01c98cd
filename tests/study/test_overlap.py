"""Texts in Python that share sentences, or are one file."""

from __future__ import annotations

import warnings
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import headwise as hw
from headwise.data.text import ParallelText, Text
from headwise.models.tasks import held_out
from headwise.study.overlap import shared_sentences
from models.tasks.askers import asker, lines, sentences
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


@pytest.mark.parametrize("count", [6, 7, 13, 39])
def test_so_many_sentences_are_held_out(count: int) -> None:
    """Spread evenly: between two of them lie as many others, but for one."""
    text = hw.Text.from_lines([f"line {number}" for number in range(40)])
    train, dev = held_out(text, count)
    assert sorted([*train, *dev]) == sorted(text) and len(dev) == count
    places = [-1, *([*text].index(line) for line in dev)]
    gaps = {later - place for place, later in pairwise(places)}
    assert max(gaps) - min(gaps) <= 1 and places[-1] == 39


def test_every_tenth_is_so_many() -> None:
    text = hw.Text.from_lines([f"line {number}" for number in range(40)])
    assert [list(part) for part in held_out(text)] == [list(part) for part in held_out(text, 4)]
    for count in (0, 40, 99):
        refuses(lambda count=count: held_out(text, count), f"{count} of the 40 … from 1 to 39")


@pytest.mark.parametrize("count", [None, 1, 6])
def test_one_sentence_cannot_be_two_texts(count: int | None) -> None:
    refuses(lambda: held_out(hw.Text.from_lines(["a"]), count), "has 1 sentence: … at least two")
    refuses(lambda: held_out(hw.Text.from_lines(["a", "b"]), 2), "hold out 1.")
    assert [len(part) for part in held_out(hw.Text.from_lines(["a", "b"]), 1)] == [1, 1]


def test_a_number_of_dev_sentences(tmp_path: Path, call: Any, refused: Any) -> None:
    asker("gpt2").save(tmp_path / "model")
    file = tmp_path / "a.txt"
    file.write_text("\n".join(sentences(40, 0)) + "\n")
    words = ("prune", tmp_path / "model", "--text", file, "--keep", "2", "--out", tmp_path / "out")
    status, out, err = call(*words, "--dev", "12", "--dry-run")
    assert status == 0 and "12 lines of the training text are held out" in out, err
    assert "dev text has 12 sentences" in out
    assert "from 1 to 39" in refused(*words, "--dev", "50", "--dry-run")
    assert "--dev 0" in refused(*words, "--dev", "0")
    assert "(--dev 50)" in refused(*words, "--dry-run")
    small = hw.prune(asker("gpt2"), sentences(40, 0), hw.Greedy(keep=2), dev=12)
    assert small.heads.total == 2
