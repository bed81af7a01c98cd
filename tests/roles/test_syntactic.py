"""Syntactic heads: made by hand, and against a slow version."""

from __future__ import annotations

from collections import Counter, defaultdict
from itertools import islice

import pytest
import torch

from headwise.data.treebank import Treebank
from headwise.roles.passage import Passage, View
from headwise.roles.probe import REACH
from headwise.roles.syntactic import attachment, syntactic
from roles.handmade import baselines, first_subword, in_subwords, looking, random_weights, values


def test_a_head_that_looks_at_governors_scores_one(treebank: Treebank) -> None:
    passage = Passage.of(in_subwords(islice(treebank, 20)), 0)

    def governor(row: int, query: int) -> int | None:
        word = passage.sentences[row].words[int(passage.word_of[row, query])]
        return first_subword(passage, row, word.governor) if word.governor >= 0 else None

    weights = looking(passage, governor, random_weights(passage, 1)[:, 0])[:, None]
    found = values(syntactic(passage), weights, passage)
    assert all(value == 1 for name, value in found.items() if name.endswith("to-governor"))
    assert found["syntactic.nsubj.to-dependent"] < 0.5

    def subject(row: int, query: int) -> int | None:
        for word, each in enumerate(passage.sentences[row].words):
            if each.governor == passage.word_of[row, query] and each.relation == "nsubj":
                return first_subword(passage, row, word)
        return None

    from_governor = looking(passage, subject, random_weights(passage, 1)[:, 0])[:, None]
    found = values(syntactic(passage), from_governor, passage)
    assert found["syntactic.nsubj.to-dependent"] == 1 and found["syntactic.obj.to-governor"] < 0.5
    assert values(attachment(passage), from_governor, passage)["attachment.nsubj"] > 0.9


@pytest.mark.parametrize("causal", [False, True])
def test_even_weights_on_pieces_are_no_better_than_the_baseline(
    treebank: Treebank, causal: bool
) -> None:
    """A word of many pieces draws a head that has no preference at all; in random language models that looked like
    syntax. Jitter far below a piece's weight decides between words as long."""
    passage = Passage.of(in_subwords(islice(treebank, 60), most=5), 0, causal=causal)
    rows, length = passage.ids.shape
    scores = 0.01 * torch.randn(rows, 40, length, length, generator=torch.manual_seed(0))
    past = torch.ones(length, length, dtype=torch.bool).tril() if causal else torch.tensor(True)
    sight = passage.words[:, None, None] & past
    weights = scores.masked_fill(~sight, -1e9).softmax(-1)
    question = syntactic(passage)
    counts = question.counts.sum(0)
    often = counts >= 20
    assert often.sum() > 5
    answered = (question.answer(View(weights, passage, passage)).sum(0) / counts).mean(0)
    even, best = question.baseline[:, -1].sum(0) / counts, question.baseline.sum(0).amax(0) / counts
    torch.testing.assert_close(answered[often], even[often], rtol=0, atol=0.05)
    assert bool((answered <= best + 0.03)[often].all())


@pytest.mark.parametrize("causal", [False, True])
def test_against_a_slow_version(treebank: Treebank, causal: bool) -> None:
    passage = Passage.of(in_subwords(islice(treebank, 30), start=True), 0, causal=causal)
    weights = random_weights(passage, 2)
    question = syntactic(passage)
    found, best = values(question, weights, passage), baselines(question)
    between = View(weights, passage, passage).between
    hits: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    counts: Counter[str] = Counter()
    offsets: dict[str, Counter[int]] = defaultdict(Counter)
    for row, sentence in enumerate(passage.sentences):
        partners: dict[tuple[str, int], set[int]] = defaultdict(set)
        for index, word in enumerate(sentence.words):
            if word.governor >= 0:
                partners[f"syntactic.{word.relation}.to-governor", index].add(word.governor)
                partners[f"syntactic.{word.relation}.to-dependent", word.governor].add(index)
        for (name, query), right in partners.items():
            right = {key for key in right if key < query} if causal else right
            counts[name] += bool(right)
            offsets[name].update(key - query for key in right)
            for head in range(2):
                others = between[row, head, query, : len(sentence.words)].clone()
                others[query] = -1
                hits[name][head] += int(others.argmax()) in right
    counted = zip(question.measures, question.counts.sum(0), strict=True)
    assert {name for name in counts if counts[name]} == {name for name, count in counted if count}
    for name, count in counts.items():
        if count:
            assert found[name].tolist() == pytest.approx([hit / count for hit in hits[name]])
            near = [n for offset, n in offsets[name].items() if abs(offset) <= REACH]
            most = max(near, default=0) / count
            rare = count < 20  # there, chance or even weights may be better than the best offset
            assert best[name] == pytest.approx(most) or (rare and best[name] > most)


def test_attachment_against_a_slow_version(treebank: Treebank) -> None:
    passage = Passage.of(in_subwords(islice(treebank, 10)), 0)
    weights = random_weights(passage, 2)
    found = values(attachment(passage), weights, passage)
    between = View(weights, passage, passage).between
    hits: dict[str, list[list[bool]]] = defaultdict(list)
    for row, sentence in enumerate(passage.sentences):
        for index, word in enumerate(sentence.words):
            if word.governor >= 0:
                column = between[row, :, : len(sentence.words), index].clone()
                column[:, index] = -1
                right = (column.argmax(1) == word.governor).tolist()
                hits[f"attachment.{word.relation}"].append(right)
    for name, rows in hits.items():
        assert found[name].tolist() == pytest.approx(torch.tensor(rows).float().mean(0).tolist())
    assert set(found) == set(hits)


def test_text_without_trees_asks_nothing(treebank: Treebank) -> None:
    passage = Passage.of(in_subwords(islice(treebank, 2)), 0)
    passage.sentences = [sentence.__class__.plain(sentence.text) for sentence in passage.sentences]
    assert values(syntactic(passage), random_weights(passage, 2), passage) == {}
