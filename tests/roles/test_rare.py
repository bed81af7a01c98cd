"""Rare-token heads: made by hand, ties, and against a slow version."""

from __future__ import annotations

from collections import Counter
from itertools import islice

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from headwise.data.subwords import SPECIAL_WORD
from headwise.data.treebank import Treebank
from headwise.roles.passage import Passage, View
from headwise.roles.rare import count_tokens, histogram, rare, why_untested
from roles.handmade import END, baselines, in_subwords, looking, random_weights, values

TOP = 500


@pytest.fixture(scope="module")
def passage(treebank: Treebank) -> Passage:
    return Passage.of(in_subwords(islice(treebank, 40)), 0)


@pytest.fixture(scope="module")
def counts(treebank: Treebank) -> Tensor:
    pieces: Counter[int] = Counter()
    for each in in_subwords(treebank):
        pieces.update(each.ids)
    return histogram(pieces)


def rarest(passage: Passage, counts: Tensor, row: int, number: int) -> list[int]:
    """The tokens of a sentence that are as rare as its first or second rarest."""
    words = passage.words[row].nonzero()[:, 0].tolist()
    often = {k: float(counts[passage.ids[row, k]]) for k in words}
    return [k for k in words if often[k] <= sorted(often.values())[number - 1]]


def test_a_head_that_looks_at_the_rarest_token_scores_one(passage: Passage, counts: Tensor) -> None:
    def rare_one(row: int, query: int) -> int:
        return rarest(passage, counts, row, 1)[-1]  # of several that are equally rare, any is right

    weights = looking(passage, rare_one, random_weights(passage, 1)[:, 0])[:, None]
    found = values(rare(passage, counts, TOP), weights, passage)
    assert set(map(float, found.values())) == {1}


def test_nothing_is_won_by_looking_at_oneself(passage: Passage, counts: Tensor) -> None:
    weights = looking(passage, lambda row, query: query, random_weights(passage, 1)[:, 0])[:, None]
    found = values(rare(passage, counts, TOP), weights, passage)
    assert found["rare.rarest"] == found["rare.two-rarest"] == 0 and found["rare.rarest.own"] > 0


def test_against_a_slow_version(passage: Passage, counts: Tensor) -> None:
    weights = random_weights(passage, 2)
    question = rare(passage, counts, TOP)
    attended = View(weights, passage, passage).attended
    limit = sorted(counts.tolist(), reverse=True)[TOP - 1]
    hits, chance = ({name: [] for name in question.measures} for _ in range(2))
    sentences = 0
    for row in range(len(passage.ids)):
        one, two = (rarest(passage, counts, row, number) for number in (1, 2))
        words = passage.words[row].nonzero()[:, 0].tolist()
        if float(counts[passage.ids[row, one[0]]]) >= limit:
            continue
        sentences += 1
        votes = [Counter[int](), Counter[int]()]
        for q in words:
            chosen = attended[row, :, q].tolist()
            for name, right, counted in (
                ("rare.rarest", one, q not in one),
                ("rare.two-rarest", two, q not in two),
                ("rare.rarest.own", one, True),
            ):
                if counted:
                    hits[name].append([k in right for k in chosen])
                    chance[name].append(len(right) / (len(words) - (name != "rare.rarest.own")))
            if q not in one:
                for head, k in enumerate(chosen):
                    votes[head][k] += 1
        if votes[0]:
            elected = [min(vote, key=lambda k, vote=vote: (-vote[k], k)) for vote in votes]
            hits["rare.rarest.vote"].append([k in one for k in elected])
            chance["rare.rarest.vote"].append(len(one) / len(words))
    assert 0 < sentences < len(passage.ids)
    found, by_chance = values(question, weights, passage), baselines(question)
    for name in question.measures:
        expected = torch.tensor(hits[name]).float().mean(0)
        assert found[name].tolist() == pytest.approx(expected.tolist())
        assert by_chance[name] == pytest.approx(sum(chance[name]) / len(chance[name]))


def test_a_small_list_makes_nothing_rare(passage: Passage, counts: Tensor) -> None:
    """Where there are not so many types, none lies outside the most frequent."""
    assert rare(passage, counts, top=100_000).counts.sum() == 0


def test_frequencies_that_many_tokens_lack_say_nothing(treebank: Treebank) -> None:
    """Of another tokenizer, or of a short text: a head that looks anywhere finds a rarest token. 100 tokens must say so."""
    sentences = in_subwords(list(islice(treebank, 40)))
    common = Counter(id for one in sentences for id in one.ids if id != END)
    few = dict(common.most_common(3))
    shares = []
    for one in sentences:
        in_words = zip(one.ids, one.word_of, strict=True)
        found = [few.get(id, 0) for id, word in in_words if word != SPECIAL_WORD]
        shares.append(found.count(min(found)) / len(found))
    share = sum(shares) / len(shares)
    assert share > 0.2 and common.total() > 100
    assert f"{share:.0%} of the tokens of a sentence" in why_untested(few, sentences)
    assert "100% of the tokens" in why_untested({END: 5}, sentences)
    # Counted on these sentences alone, most tokens occur once; of a large text no two are equally frequent.
    assert "are its rarest" in why_untested(common, sentences)
    large = {id: place for place, (id, _) in enumerate(common.most_common())}
    assert why_untested(large, sentences) == why_untested({}, sentences[:2]) == ""


def test_frequencies_count_ids_without_special_tokens(
    tokenizer: PreTrainedTokenizerFast, treebank: Treebank
) -> None:
    lines = [sentence.text for sentence in islice(treebank, 50)]
    counts = count_tokens(lines, tokenizer)
    ids = (id for line in lines for id in tokenizer(line)["input_ids"])
    assert END not in counts and counts == Counter(id for id in ids if id != END)


def test_a_token_is_rare_from_the_first_place_after_the_most_frequent(
    passage: Passage, counts: Tensor
) -> None:
    often = counts[passage.ids[0, rarest(passage, counts, 0, 1)[0]]]
    more = int((counts > often).sum())
    equal = int((counts == often).sum())
    assert (rare(passage, counts, more).counts[0] > 0).all()
    assert (rare(passage, counts, more + equal).counts[0] == 0).all()
