"""Texts that were written for a tokenizer which adds no special tokens: those that stand there are said."""

from __future__ import annotations

import warnings

import pytest

import headwise as hw
from models.attention.families import STACK, build
from models.tasks.test_tagging import PIECES, tokenizer

MADE = ["[CLS] Ann lives in Rome", "[CLS] Bob lives . [SEP]", "Ann lives ."]


def test_they_are_counted_once_for_a_text() -> None:
    model = hw.Model(build("BertForMaskedLM", **{**STACK, "vocab_size": len(PIECES)}), tokenizer())
    text = hw.Text.from_lines(MADE, "made.txt")
    with pytest.warns(UserWarning) as said:
        model.task.batches(text)
        model.task.batches(text.head(1))
    words = [str(each.message) for each in said]
    rows = tokenizer()(MADE)["input_ids"]
    begun = sum(row[:2] == [2, 2] for row in rows)
    assert begun == 2 and sum(row[-2:] == [3, 3] for row in rows) == 1
    assert len(words) == 2
    assert words[0].startswith(f"{begun} of 3 texts in made.txt begin with [CLS]")
    assert words[1].startswith("1 of 3 texts in made.txt end with [SEP]")


@pytest.mark.parametrize("bare", [True, False])
def test_they_are_the_users_where_the_tokenizer_adds_none(bare: bool) -> None:
    """And a text without them is said nothing about."""
    model = hw.Model(build("BertForMaskedLM", **{**STACK, "vocab_size": len(PIECES)}), tokenizer())
    lines = ["Ann lives in Rome"]
    if bare:
        model.tokenizer.backend_tokenizer.post_processor = None
        lines = MADE
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.task.batches(hw.Text.from_lines(lines, f"bare {bare}"))
