"""Semantic heads: made by hand, against a slow version, the baselines, and sentences read together."""

from __future__ import annotations

from collections import defaultdict
from itertools import islice

import pytest
import torch

from headwise.data.annotated import Annotated, Word, mention
from headwise.data.treebank import Treebank
from headwise.roles.coreference import coreference, join_sentences, matching_words, windows
from headwise.roles.passage import Passage, View
from roles.handmade import baselines, first_subword, in_subwords, looking, random_weights, values


def annotated(text: str, mentions: list[tuple[int, int, str]], upos: str = "NOUN") -> Annotated:
    """Words without grammar; mentions (start, end, entity), pronouns by their form."""
    words = tuple(
        Word(
            form,
            form.lower(),
            "PRON" if form in ("he", "she", "it", "him") else upos,
            -1,
            "",
            "",
            True,
        )
        for form in text.split()
    )
    return Annotated(
        words, "1", "d", tuple(mention(words, entity, 0, a, b) for a, b, entity in mentions)
    )


@pytest.fixture
def story() -> Passage:
    """Anna saw Bob . she greeted Bob , and he greeted her: mentions Anna, Bob, she (Anna), Bob, he (Bob)."""
    sentence = annotated(
        "Anna saw Bob and she greeted Bob and he smiled",
        [
            (0, 1, "a"),
            (2, 3, "b"),
            (4, 5, "a"),
            (6, 7, "b"),
            (8, 9, "b"),
        ],
    )
    return Passage.of(in_subwords([sentence]), 0)


def test_a_head_that_looks_at_antecedents_scores_one(story: Passage) -> None:
    antecedent = {4: 0, 6: 2, 8: 6}

    def where(row: int, query: int) -> int | None:
        word = antecedent.get(int(story.word_of[row, query]))
        return None if word is None else first_subword(story, row, word)

    weights = looking(story, where, random_weights(story, 1)[:, 0])[:, None]
    question = coreference(story)
    assert all(
        value == 1
        for name, value in values(question, weights, story).items()
        if name != "coreference.proper"
    )
    assert question.counts.tolist() == [
        [3, 2, 0, 1]
    ]  # she, Bob, he; the words have no tag of proper nouns


def test_the_baselines_are_the_nearest_mention_and_the_nearest_with_the_same_head(
    story: Passage,
) -> None:
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
            before = sorted({other.head for other in sentence.mentions if other.head < each.head})
            right = {
                o.head for o in sentence.mentions if o.head < each.head and o.entity == each.entity
            }
            if right:
                best = [
                    max(before, key=lambda k, h=h: float(between[row, h, each.head, k])) in right
                    for h in range(2)
                ]
                hits["coreference"].append(best)
                hits[f"coreference.{each.kind}"].append(best)
    question = coreference(passage)
    found = values(question, weights, passage)
    assert len(hits["coreference"]) > 20
    for name, rows in hits.items():
        assert found[name].tolist() == pytest.approx(torch.tensor(rows).float().mean(0).tolist())
    assert max(baselines(question)["coreference"], 0.5) > 0.5  # most antecedents are near


def test_words_that_are_alike() -> None:
    sentence = annotated("Dogs see dogs and a dog sees it .", [(0, 1, "x"), (7, 8, "x")])
    words = list(sentence.words)
    lemmas = ["dog", "see", "dog", "and", "a", "dog", "see", "it", "."]
    words = [
        w.__class__(w.form, lemma, w.upos, -1, "", "", True)
        for w, lemma in zip(words, lemmas, strict=True)
    ]
    passage = Passage.of(
        in_subwords([Annotated(tuple(words), "1", "1", sentence.mentions)], most=1), 0
    )
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


def test_sentences_read_together_keep_words_mentions_and_places(treebank: Treebank) -> None:
    one, two, three = islice(treebank, 3)
    both = join_sentences([one, two])
    assert both.text == f"{one.text} {two.text}"
    assert [both.text[a:b] for a, b in both.spans] == [w.form for w in (*one.words, *two.words)]
    shift = len(one.words)
    for word, before in zip(both.words[shift:], two.words, strict=True):
        assert word.governor == (before.governor + shift if before.governor >= 0 else -1)
    assert [m.head - shift for m in both.mentions[len(one.mentions) :]] == [
        m.head for m in two.mentions
    ]
    same = [s.__class__(s.words, s.id, "d", s.mentions) for s in (one, two, three)]
    assert [len(each.words) for each in windows(same, 2)] == [len(both.words), len(three.words)]
    assert len(list(windows([one, two, three], 2))) == 3  # three documents
