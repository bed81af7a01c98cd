"""Pieces put together to words."""

from __future__ import annotations

from itertools import islice

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from headwise.data.treebank import Treebank
from headwise.roles.passage import Passage, View
from roles.handmade import in_subwords, random_weights


@settings(max_examples=25, deadline=None)
@given(
    counts=st.lists(st.lists(st.integers(1, 3), min_size=1, max_size=5), min_size=1, max_size=3),
    seed=st.integers(0, 99),
)
def test_rows_still_sum_to_one(counts: list[list[int]], seed: int) -> None:
    """Sum for "to", mean for "from": a row of weights that sums to 1 does so between words, too."""
    length = max(sum(row) for row in counts)
    word_of = torch.full((len(counts), length), -1)
    for row, each in zip(word_of, counts, strict=True):
        row[: sum(each)] = torch.arange(len(each)).repeat_interleave(torch.tensor(each))
    passage = Passage(torch.zeros_like(word_of), word_of >= 0, word_of)
    between = View(random_weights(passage, 2, seed), passage, passage).between
    there = (passage.subwords > 0)[:, None].expand(-1, 2, -1)
    assert between.sum(-1)[there] == pytest.approx(1.0)
    assert between.sum(-1)[~there].abs().sum() == 0


def test_against_a_slow_version(treebank: Treebank) -> None:
    passage = Passage.of(in_subwords(islice(treebank, 6)), 0)
    weights = random_weights(passage, 3)
    view = View(weights, passage, passage)
    for row, sentence in enumerate(passage.sentences):
        words = range(len(sentence.words))
        pieces = [(passage.word_of[row] == word).nonzero()[:, 0].tolist() for word in words]
        for head in range(3):
            for q, from_ in enumerate(pieces):
                a = weights[row, head].tolist()
                slow = [sum(a[i][j] for i in from_ for j in to) / len(from_) for to in pieces]
                found = view.between[row, head, q, : len(pieces)].tolist()
                assert found == pytest.approx(slow, abs=1e-6)
                slow[q] = -1.0
                assert view.attended_words[row, head, q] == slow.index(max(slow))


def test_special_tokens_are_never_pointed_at(treebank: Treebank) -> None:
    passage = Passage.of(in_subwords(islice(treebank, 4), start=True), 0)
    weights = random_weights(passage, 2)
    weights[..., 0] = 5
    attended = View(weights, passage, passage).attended
    assert passage.words[:, None].expand(-1, 2, -1).gather(2, attended).all()


def test_the_first_word_is_left_out_where_nothing_else_is_in_sight(treebank: Treebank) -> None:
    sentences = list(islice(treebank, 4))
    bare = Passage.of(in_subwords(sentences), 0, causal=True)
    assert not (bare.word_of == 0).any()
    assert (bare.subwords[:, 0] == 0).all() and (bare.visible[:, 1] == 0).all()
    started = Passage.of(in_subwords(sentences, start=True), 0, causal=True)
    assert (started.word_of == 0).any() and (started.visible[:, 1] == 1).all()
