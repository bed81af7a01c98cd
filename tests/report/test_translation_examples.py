"""Example translations and the words that differ."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwise.report.run_folder import read_run
from headwise.report.translation_examples import choose_examples, similarity, word_differences

WORDS = st.lists(st.sampled_from(["le", "chien", "voit", "la", "lettre"]), max_size=8).map(" ".join)


@given(WORDS, WORDS)
def test_pieces_put_together_are_the_sentences(one: str, other: str) -> None:
    left, right = word_differences(one, other)
    assert (" ".join(p.text for p in left), " ".join(p.text for p in right)) == (one, other)
    assert [p.text for p in left if not p.differs] == [p.text for p in right if not p.differs]


def test_only_what_differs_is_marked() -> None:
    left, right = word_differences("le chien voit la lettre", "le chat voit une lettre")
    assert [(p.text, p.differs) for p in left] == [
        ("le", False),
        ("chien", True),
        ("voit", False),
        ("la", True),
        ("lettre", False),
    ]
    assert [p.text for p in right if p.differs] == ["chat", "une"]
    assert similarity("a b", "a  b") == 1
    assert similarity("a b", "c d") == 0


def test_some_unchanged_then_the_most_changed(run_folder: Path) -> None:
    run = read_run(run_folder)
    chosen = choose_examples(run)
    assert chosen is not None
    assert [example.same for example in chosen.shown] == [True] * 3 + [False] * 5
    full, pruned = run.translations["full"], run.translations["lambda-0.05"]
    alike = [similarity(a, b) for a, b in zip(full, pruned, strict=True)]
    shown = [alike[example.number - 1] for example in chosen.shown[3:]]
    assert shown == sorted(alike)[:5]
    assert (chosen.total, chosen.same) == (
        60,
        sum(a == b for a, b in zip(full, pruned, strict=True)),
    )
    assert choose_examples(run) == chosen


@pytest.mark.parametrize("name", ["source", "full", "lambda-0.05"])
def test_nothing_to_show_when_a_side_is_missing(run_folder: Path, name: str) -> None:
    (run_folder / "translations" / "test" / f"{name}.txt").unlink()
    assert choose_examples(read_run(run_folder)) is None
