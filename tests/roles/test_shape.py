"""Vig & Belinkov's measures against slow versions, and at their ends."""

from __future__ import annotations

from itertools import islice

import pytest
import torch

from headwise.core.heads import Site
from headwise.data.treebank import Treebank
from headwise.models.attention.kernel import AttentionCall
from headwise.roles.passage import Passage, View
from headwise.roles.probe import AnswerSums
from headwise.roles.shape import TAGS, means, opening, shape, variability
from roles.handmade import in_subwords, looking, random_weights, values

SITE = Site("encoder-self", 0)


@pytest.mark.parametrize("causal", [False, True])
def test_shares_against_a_slow_version(treebank: Treebank, causal: bool) -> None:
    """Weight on special tokens is left out of sums and of the denominator."""
    passage = Passage.of(in_subwords(islice(treebank, 8), start=True), 0, causal=causal)
    weights = random_weights(passage, 2)
    mass, far, linked = torch.zeros(2), torch.zeros(2), torch.zeros(2)
    tags = torch.zeros(2, len(TAGS))
    for row, sentence in enumerate(passage.sentences):
        for q in range(passage.ids.shape[1]):
            for k in range(passage.ids.shape[1]):
                i, j = int(passage.word_of[row, q]), int(passage.word_of[row, k])
                if min(i, j) < 0:
                    continue
                a = weights[row, :, q, k]
                mass += a
                far += a * abs(q - k)
                linked += a * (sentence.words[i].governor == j or sentence.words[j].governor == i)
                tags[:, TAGS.index(sentence.words[j].upos)] += a
    found = values(shape(passage), weights, passage)
    sums = {"distance": far, "dependency-alignment": linked, "mass": mass}
    sums |= {f"pos.{tag}": column for tag, column in zip(TAGS, tags.T, strict=True)}
    for name, expected in sums.items():
        torch.testing.assert_close(found[name], expected / mass, rtol=1e-4, atol=1e-7)


def variability_of(passage: Passage, weights: torch.Tensor) -> torch.Tensor:
    answers, question = AnswerSums("encoder-self"), opening(passage)
    answers.add([question], {0: [question.answer(View(weights, passage, passage))]})
    probe = variability(passage, means(answers))
    none = torch.zeros(0)
    call = AttentionCall(SITE, none, none, none, None, weights, none)
    answers = probe.answer(View(weights, passage, passage, call)).sum(0)
    return answers[:, 1] / answers[:, 0]


def test_variability_against_a_slow_version(treebank: Treebank) -> None:
    passage = Passage.of(in_subwords(islice(treebank, 12)), 0)
    weights = random_weights(passage, 1)
    away, mass = 0.0, 0.0
    for q in range(10):
        for k in range(10):
            rows = [r for r in range(12) if passage.words[r, q] and passage.words[r, k]]
            column = [float(weights[r, 0, q, k]) for r in rows]
            away += sum(abs(a - sum(column) / len(column)) for a in column)
            mass += sum(column)
    assert float(variability_of(passage, weights)) == pytest.approx(away / 2 / mass, rel=1e-4)


def test_a_head_that_goes_by_position_does_not_vary(treebank: Treebank) -> None:
    passage = Passage.of(in_subwords(islice(treebank, 12), most=1), 0)
    nothing = torch.zeros_like(random_weights(passage, 1)[:, 0])
    back = looking(passage, lambda row, q: max(q - 1, 0), nothing)
    weights = torch.stack([back, random_weights(passage, 1)[:, 0]], 1)
    fixed, free = variability_of(passage, weights).tolist()
    assert fixed == pytest.approx(0, abs=1e-6) and 0.2 < free <= 1
