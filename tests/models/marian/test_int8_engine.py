"""Firefox's engine of int8 (the package fxtranslate) translates with files that headwise wrote."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import sacrebleu
from test_firefox import SENTENCES

import headwise as hw
from headwise.models.marian import files as marian_files
from headwise.pruning.repair import Repairs

fxtranslate: Any = pytest.importorskip("fxtranslate", reason="fxtranslate is not installed (dev)")

TEXT = (Path(__file__).parents[3] / "examples" / "pud.en").read_text(encoding="utf-8")


def translations(model: hw.Model, folder: Path) -> list[str]:
    """With all words, as headwise searches."""
    out = hw.export(model, "marian", folder, "int8", say=lambda note: None)
    file = marian_files.marian_file(out)
    assert file is not None
    words = (out / "vocab.spm").read_bytes()
    engine = fxtranslate.Translator(file.read_bytes(), words, words)
    return [engine.translate(sentence) for sentence in SENTENCES]


def equal(ours: list[str], theirs: list[str]) -> int:
    return sum(one == other for one, other in zip(ours, theirs, strict=True))


def likeness(ours: list[str], theirs: list[str]) -> float:
    """chrF, of 100: how much of their letters is the same."""
    return float(sacrebleu.corpus_chrf(ours, [theirs]).score)


def test_whole_and_pruned_models_translate_there(firefox: hw.Model, tmp_path: Path) -> None:
    """Most sentences as here, where nothing is rounded; the words of a model that lost heads, and not of other heads."""
    assert equal(firefox.translate(SENTENCES, beam=1), translations(firefox, tmp_path / "0")) >= 7
    odd, even = (
        firefox.without(
            [head for head in firefox.heads.only(["encoder-self"]) if head.head % 2 == rest]
        )
        for rest in (1, 0)
    )
    there = translations(odd, tmp_path / "1")
    near, far = (likeness(there, each.translate(SENTENCES, beam=1)) for each in (odd, even))
    assert near > 70 and far < near - 20


def test_a_repaired_model_translates_there(firefox: hw.Model, tmp_path: Path) -> None:
    """As headwise does, where the same heads without repair translate otherwise."""
    mask = hw.HeadMask.full(firefox.heads).without(
        [head for head in firefox.heads.only(["encoder-self"]) if head.head % 2]
    )
    given, dev = (
        firefox.task.unread(hw.Text.from_lines(some)) for some in (TEXT.splitlines(), SENTENCES)
    )
    small = Repairs.on(firefox, given, dev).repaired_or_cut(mask)
    there = translations(small, tmp_path / "1")
    near, far = (
        likeness(there, each.translate(SENTENCES, beam=1)) for each in (small, firefox.only(mask))
    )
    assert near > 85 and far < near - 5
