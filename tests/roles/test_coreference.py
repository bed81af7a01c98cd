"""Semantic heads: made by hand, against a slow version, the baselines, and sentences read together."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

import pytest
import torch

from headwise.data.annotated import Annotated, Word, mention
from headwise.data.treebank import Treebank
from headwise.roles.coreference import coreference, matching_words
from headwise.roles.passage import Passage, View
from roles.handmade import baselines, first_subword, in_subwords, looking, random_weights, values


def annotated(text: str, mentions: list[tuple[int, int, str]], upos: str = "NOUN") -> Annotated:
    """Words without grammar; mentions (start, end, entity), pronouns by their form."""
    tags = dict.fromkeys(("he", "she", "it", "him"), "PRON")
    words = tuple(
        Word(form, form.lower(), tags.get(form, upos), -1, "", "", True) for form in text.split()
    )
    found = tuple(mention(words, entity, 0, a, b) for a, b, entity in mentions)
    return Annotated(words, "1", "d", found)


@pytest.fixture
def story() -> Passage:
    """Anna saw Bob . she greeted Bob , and he greeted her: mentions Anna, Bob, she (Anna), Bob, he (Bob)."""
    mentions = [(0, 1, "a"), (2, 3, "b"), (4, 5, "a"), (6, 7, "b"), (8, 9, "b")]
    sentence = annotated("Anna saw Bob and she greeted Bob and he smiled", mentions)
    return Passage.of(in_subwords([sentence]), 0)


def test_a_head_that_looks_at_antecedents_scores_one(story: Passage) -> None:
    antecedent = {4: 0, 6: 2, 8: 6}

    def where(row: int, query: int) -> int | None:
        word = antecedent.get(int(story.word_of[row, query]))
        return None if word is None else first_subword(story, row, word)

    weights = looking(story, where, random_weights(story, 1)[:, 0])[:, None]
    question = coreference(story)
    found = values(question, weights, story)
    found.pop("coreference.proper")  # the words have no tag of proper nouns
    assert set(map(float, found.values())) == {1}
    assert question.counts.tolist() == [[3, 2, 0, 1]]  # she, Bob, he


def test_the_baselines_are_the_nearest_mention_and_that_with_the_same_head(story: Passage) -> None:
    """she: nearest Bob (wrong), no other "she"; Bob: nearest she (wrong), same head Bob; he: nearest Bob, no other.
    Both rules together are right about Bob and he."""
    rules = coreference(story).baseline[0]
    assert rules[0].tolist() == [1, 1, 0, 0] and rules[1].tolist() == [1, 0, 0, 1]
    assert rules[2].tolist() == [2, 1, 0, 1]


def test_only_mentions_before_it_compete(story: Passage) -> None:
    """A head that looks at "saw", a word that no one mentions, is judged by what it does with the rest."""
    weights = torch.zeros(1, 1, *[story.ids.shape[1]] * 2)
    for word, weight in ((1, 0.6), (0, 0.3), (2, 0.1)):
        weights[..., first_subword(story, 0, word)] = weight
    assert values(coreference(story), weights, story)["coreference"] == pytest.approx(1 / 3)


def test_a_text_read_from_left_to_right_loses_what_is_out_of_sight() -> None:
    """Without a start token the first word is left out, and with it the mention of which it is the head."""
    sentence = annotated(
        "Anna saw Bob and she smiled at him", [(0, 1, "a"), (2, 3, "b"), (4, 5, "a"), (7, 8, "b")]
    )
    for start, counted in ((True, 2), (False, 0)):
        passage = Passage.of(in_subwords([sentence], start=start), 0, causal=True)
        assert coreference(passage).counts[0, 0] == counted


def test_against_a_slow_version(treebank: Treebank) -> None:
    passage = Passage.of(in_subwords(treebank), 0)
    weights = random_weights(passage, 2)
    between = View(weights, passage, passage).between
    hits: dict[str, list[list[bool]]] = defaultdict(list)
    for row, sentence in enumerate(passage.sentences):
        for each in sentence.mentions:
            earlier = [other for other in sentence.mentions if other.head < each.head]
            before = sorted({other.head for other in earlier})
            right = {other.head for other in earlier if other.entity == each.entity}
            if right:
                seen = between[row, :, each.head, before].argmax(-1).tolist()
                best = [before[place] in right for place in seen]
                hits["coreference"].append(best)
                hits[f"coreference.{each.kind}"].append(best)
    question = coreference(passage)
    found = values(question, weights, passage)
    assert len(hits["coreference"]) > 20
    for name, rows in hits.items():
        assert found[name].tolist() == pytest.approx(torch.tensor(rows).float().mean(0).tolist())
    assert baselines(question)["coreference"] > 0.5  # most antecedents are near


def test_words_that_are_alike() -> None:
    sentence = annotated("Dogs see dogs and a dog sees it .", [(0, 1, "x"), (7, 8, "x")])
    lemmas = ["dog", "see", "dog", "and", "a", "dog", "see", "it", "."]
    words = [replace(w, lemma=lemma) for w, lemma in zip(sentence.words, lemmas, strict=True)]
    passage = Passage.of(in_subwords([replace(sentence, words=tuple(words))], most=1), 0)
    question = matching_words(passage)
    counts = dict(zip(question.measures, question.counts[0].tolist(), strict=True))
    assert counts == {"same-word": 2, "same-lemma": 5, "same-entity": 2}
    weights = torch.full((1, 1, 10, 10), 0.05)
    for query, key in ((0, 2), (2, 5), (5, 0), (1, 6), (7, 0)):
        weights[0, 0, query, key] = 0.55
    found = values(question, weights, passage)
    # From 2 the head looks at another form of "dog"; from 0 at the same form, which is no other form of the lemma.
    assert found["same-word"] == 0.5 and found["same-entity"] == 0.5
    assert found["same-lemma"] == pytest.approx(3 / 5)
    assert baselines(question)["same-lemma"] == pytest.approx((1 + 1 + 2 + 1 + 1) / 5 / 8)
