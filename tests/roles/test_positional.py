"""Positional heads: made by hand, and against a slow version."""

from __future__ import annotations

from itertools import islice

import pytest

from headwise.data.treebank import Treebank
from headwise.roles.passage import Passage
from headwise.roles.positional import OFFSETS, positional
from roles.handmade import baselines, in_subwords, looking, random_weights, values


@pytest.fixture
def passage(treebank: Treebank) -> Passage:
    return Passage.of(in_subwords(islice(treebank, 12), start=True), 0)


def test_a_head_that_looks_one_back_scores_one(passage: Passage) -> None:
    """The first word of a sentence has no token before it and does not count."""
    noise = random_weights(passage, 1)[:, 0]
    before = looking(passage, lambda row, q: q - 1 if passage.words[row, q - 1] else None, noise)
    weights = before[:, None]
    found = values(positional(passage), weights, passage)
    assert found["positional.-1"] == 1 and found["attention-at.-1"] > 0.9
    assert all(found[f"positional.{r}"] < 0.2 for r in OFFSETS if r != -1)


@pytest.mark.parametrize("causal", [False, True])
def test_against_a_slow_version(treebank: Treebank, causal: bool) -> None:
    passage = Passage.of(in_subwords(islice(treebank, 8), start=True), 0, causal=causal)
    weights = random_weights(passage, 2)
    question = positional(passage)
    found, chance = values(question, weights, passage), baselines(question)
    for r in OFFSETS:
        hits, mass, count, by_chance = [0, 0], [0.0, 0.0], 0, 0.0
        for row in range(8):
            words = passage.words[row].nonzero()[:, 0].tolist()
            for q in words:
                there = q + r in words and not (causal and r > 0)
                count += there
                if not there:
                    continue
                by_chance += 1 / sum(k <= q or not causal for k in words)
                for head in range(2):
                    best = words[int(weights[row, head, q, words].argmax())]
                    hits[head] += best == q + r
                    mass[head] += float(weights[row, head, q, q + r])
        if not count:
            assert question.counts[:, OFFSETS.index(r)].sum() == 0
            continue
        assert found[f"positional.{r}"].tolist() == pytest.approx([hit / count for hit in hits])
        mean = [each / count for each in mass]
        assert found[f"attention-at.{r}"].tolist() == pytest.approx(mean, abs=1e-6)
        assert chance[f"positional.{r}"] == pytest.approx(by_chance / count)
