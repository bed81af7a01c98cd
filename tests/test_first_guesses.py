"""What people try first in Python: files and lists in place of our classes; and sentences for what cannot be meant."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import headwise as hw
from headwise.data.embedded import write_treebank
from refusals import refuses
from tasks.askers import asker, lines, pairs, sentences
from tasks.test_classifiers import classifier, drawn


def text_cases(folder: Path) -> dict[str, tuple[hw.Model, Any, Any]]:
    """A model, a text of ours, and what a user has of the same rows."""
    (folder / "a.txt").write_text("\n".join(sentences(12, 0)) + "\n")
    labelled = drawn(12)
    return {
        "a file": (asker("gpt2"), lines(12), str(folder / "a.txt")),
        "a path": (asker("bert"), lines(12), folder / "a.txt"),
        "sentences": (asker("gpt2"), lines(12), sentences(12, 0)),
        "pairs": (asker(), pairs(12), list(pairs(12))),
        "texts and labels": (classifier(), labelled, list(labelled)),
    }


@pytest.mark.parametrize("case", ["a file", "a path", "sentences", "pairs", "texts and labels"])
def test_scores_take_what_people_have(case: str, tmp_path: Path) -> None:
    model, text, given = text_cases(tmp_path)[case]
    ours, theirs = (hw.score(model, one, ["gradient"]) for one in (text, given))
    pd.testing.assert_frame_equal(ours.table, theirs.table)
    assert theirs.signature["text"] == ours.signature["text"]


def test_so_do_quality_pruning_and_pairs(tmp_path: Path) -> None:
    model, text, given = text_cases(tmp_path)["sentences"]
    ours, theirs = (hw.evaluate(model, one).table for one in (text, given))
    pd.testing.assert_frame_equal(ours, theirs)
    small = hw.prune(model, given, hw.Greedy(keep=3), dev=str(tmp_path / "a.txt"))
    assert small.heads.total == len(small.heads) == 3
    many = sentences(300, 0)
    found = [hw.interactions(model, one, 2).table for one in (hw.Text.from_lines(many), many)]
    pd.testing.assert_frame_equal(*found)


def test_roles_take_the_file_of_a_treebank(tmp_path: Path) -> None:
    file = write_treebank(tmp_path / "dev.conllu", 20)
    model = asker("bert")
    ours, theirs = (hw.roles(model, one) for one in (hw.Treebank.read(file), str(file)))
    pd.testing.assert_frame_equal(ours.table, theirs.table)


def test_a_model_of_transformers_needs_no_name() -> None:
    model = asker("gpt2")
    assert hw.Model(model.hf, model.tokenizer).name == "GPT2LMHeadModel"


def test_the_table_of_measures_names_them() -> None:
    assert "gradient" in repr(hw.measure)


def without_a_name() -> None:
    @hw.measure  # type: ignore[arg-type]
    def mine(model: Any, batches: Any) -> None: ...


@pytest.mark.parametrize(
    ("guess", "sentence"),
    [
        (lambda f: hw.load(asker("gpt2").hf), "hw.Model(model, tokenizer)"),
        (lambda f: without_a_name(), "@hw.measure('mine')"),
        (
            lambda f: hw.score(asker(), [f"{f}/a.txt", f"{f}/a.txt"]),
            "hw.ParallelText.read(FILE, FILE)",
        ),
        (lambda f: hw.score(asker("gpt2"), "gone.txt"), "There is no file 'gone.txt'"),
        (lambda f: hw.score(asker("gpt2"), []), "A list was given in place of text"),
    ],
)
def test_what_cannot_be_meant_is_said(
    guess: Callable[[Path], object], sentence: str, tmp_path: Path
) -> None:
    text_cases(tmp_path)
    refuses(lambda: guess(tmp_path), sentence)


def test_scores_are_ranked_and_laid_out() -> None:
    scores = hw.score(asker(), pairs(8), ["confidence", "gradient"])
    of = scores.of("gradient")
    top = scores.top(3, "gradient")
    assert list(top["head"]) == sorted(map(str, of), key=lambda name: -of[hw.Head.parse(name)])[:3]
    assert list(top["value"]) == sorted(of.values(), reverse=True)[:3]
    with hw.masked(asker(), top["head"]):
        pass
    for kind, counts in scores.heads.query.items():
        matrix = scores.matrix(kind, "gradient")
        assert matrix.shape == (len(counts), max(counts))
        assert {matrix[h.layer, h.head] for h in of if h.kind == kind} == {*matrix.flat}
    shown = repr(scores).splitlines()
    assert scores.top(1)["head"][0] in shown[2] and max(map(len, shown)) <= 80
    with pytest.raises(hw.HeadwiseError, match="no scores by 'lrp'"):
        scores.top(3, "lrp")
    with pytest.raises(hw.HeadwiseError, match="no cros heads: choose encoder-self"):
        scores.matrix("cros")  # type: ignore[arg-type]
