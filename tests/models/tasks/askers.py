"""Tiny models with a tokenizer of letters, and text for them."""

from __future__ import annotations

import random
from typing import Any

import headwise as hw
from importance.asking import worded
from models.attention.families import tiny
from models.training.letters import END, LETTERS, PAD, START, letters

IDS = {"pad_token_id": PAD, "bos_token_id": START, "eos_token_id": END}


def asker(family: str = "marian", **changes: Any) -> hw.Model:
    """A family's tiny model. Translation models read sentences that end, all others such as begin and end."""
    if family == "marian":
        translating = worded(family, **{**IDS, "decoder_start_token_id": START, **changes})
        return hw.Model(translating, letters("$A </s>"), "tiny marian")
    return hw.Model(worded(family, **{**IDS, **changes}), letters(), f"tiny {family}")


def embedder() -> hw.Model:
    """A BERT without a head, whose tokenizer has no mask token."""
    return hw.Model(tiny("bert", **IDS), letters(mask_token=None), "tiny embedder")


def pairs(count: int, seed: int = 0) -> hw.ParallelText:
    """Pairs of sentences of 2 to 9 letters."""
    return hw.ParallelText.from_pairs(
        zip(sentences(count, seed), sentences(count, seed + 1), strict=True)
    )


def lines(count: int, seed: int = 0) -> hw.Text:
    return hw.Text.from_lines(sentences(count, seed))


def sentences(count: int, seed: int) -> list[str]:
    drawn = random.Random(seed)
    return [" ".join(drawn.choices(LETTERS, k=drawn.randint(2, 9))) for _ in range(count)]
