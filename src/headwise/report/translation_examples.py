"""Example translations: some that pruning left as they were, and those it changed most, the differing words marked."""

from __future__ import annotations

import random
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Any

from headwise.report.components import section
from headwise.report.models import BLEU
from headwise.report.run_folder import FinishedRun

SEED = 1
SAME = 3
DIFFERENT = 5
LONGEST = 40  # words: a longer source makes a card nobody reads


@dataclass(frozen=True)
class Piece:
    """Some words, and whether the other translation has them too."""

    text: str
    differs: bool


@dataclass(frozen=True)
class Example:
    """One sentence with its two translations, in pieces; `number` is its line in the test text, counted from 1."""

    number: int
    source: str
    reference: str
    full: list[Piece]
    pruned: list[Piece]
    same: bool


@dataclass(frozen=True)
class Examples:
    """The examples of a report, and how many translations there are and are the same word for word."""

    shown: list[Example]
    total: int
    same: int


@section(
    "translations",
    menu="Translations",
    heading="Translations side by side",
    question="What do the changed translations look like?",
    order=120,
    files=("translations/test/",),
)
def translation_examples_section(run: FinishedRun) -> dict[str, Any] | None:
    """The section is left out where nothing was pruned, and for models that do not translate."""
    return (
        None
        if run.models.empty or run.quality != BLEU
        else {"examples": choose_examples(run), "chosen": run.chosen}
    )


def choose_examples(run: FinishedRun) -> Examples | None:
    """Three seeded draws from the unchanged translations, then the five most changed; None with nothing to compare."""
    texts = run.translations
    chosen = run.chosen
    if chosen is None or not {"source", "reference", "full", chosen["setting"]} <= set(texts):
        return None
    full = texts["full"]
    pruned = texts[chosen["setting"]]
    alike = [similarity(one, other) for one, other in zip(full, pruned, strict=True)]
    same = [i for i, share in enumerate(alike) if share == 1]
    short = [i for i, source in enumerate(texts["source"]) if 0 < len(source.split()) <= LONGEST]
    unchanged = [i for i in same if i in set(short)]
    picked = sorted(random.Random(SEED).sample(unchanged, min(SAME, len(unchanged))))
    picked += sorted((i for i in short if alike[i] < 1), key=lambda i: (alike[i], i))[:DIFFERENT]
    shown = [
        Example(
            i + 1,
            texts["source"][i],
            texts["reference"][i],
            *word_differences(full[i], pruned[i]),
            alike[i] == 1,
        )
        for i in picked
    ]
    return Examples(shown, len(full), len(same))


def similarity(one: str, other: str) -> float:
    """How alike two sentences are as rows of words: 1 for the same words, 0 for no word in common."""
    if one.split() == other.split():
        return 1.0
    return SequenceMatcher(None, one.split(), other.split(), autojunk=False).ratio()


def word_differences(one: str, other: str) -> tuple[list[Piece], list[Piece]]:
    """Two sentences in pieces: words that both have, in the same order, and words that differ."""
    left = one.split()
    right = other.split()
    pieces: tuple[list[Piece], list[Piece]] = ([], [])
    for what, i, j, k, m in SequenceMatcher(None, left, right, autojunk=False).get_opcodes():
        for side, words in zip(pieces, (left[i:j], right[k:m]), strict=True):
            if words:
                side.append(Piece(" ".join(words), what != "equal"))
    return pieces
