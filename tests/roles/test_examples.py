"""Example sentences: the right one is chosen, its numbers are those of the stock model, and little is kept."""

from __future__ import annotations

import json
from itertools import islice

import pandas as pd
import pytest
import torch

from headwise.core.tables import TESTS
from headwise.data.annotated import Annotated, Word
from headwise.data.treebank import Treebank
from headwise.roles.examples import (
    FEWEST_EXAMPLE_WORDS,
    MOST_EXAMPLE_WORDS,
    MOST_EXAMPLES,
    Shown,
    best_heads,
    examples,
    keep_best_sentence,
    query_words,
)
from headwise.roles.observation import RoleOptions, subject_of
from headwise.roles.passage import Passage, View
from headwise.roles.rare import count_tokens
from roles.conftest import Reader
from roles.handmade import between_words, first_subword, in_subwords, looking, random_weights


def roles_of(
    *found: tuple[int, int, str, float], kind: str = "encoder-self", baseline: float = 0.3
) -> pd.DataFrame:
    """Rows as `Roles.roles` has them: layer, head, measure, value."""
    rows = [(kind, *one, None, None, 99, baseline) for one in found]
    return pd.DataFrame(rows, columns=list(TESTS.names[:-1])).assign(
        units=30, role="a role", text="a role", p=0.01
    )


def of_words(words: str, governors: list[int], relations: list[str], id: str) -> Annotated:
    rows = zip(words.split(), governors, relations, strict=True)
    return Annotated(tuple(Word(w, w, "X", up, rel, rel, True) for w, up, rel in rows), id, id)


def test_the_best_head_of_each_sort_the_papers_first() -> None:
    table = roles_of(
        (0, 0, "positional.-1", 0.92),
        (1, 0, "positional.-1", 0.97),
        (0, 2, "positional.2", 0.95),
        (1, 1, "syntactic.obj.to-governor", 0.6),
        (1, 2, "syntactic.obj.to-dependent", 0.7),
        (0, 5, "rare.two-rarest", 0.7),
        (1, 7, "coreference", 0.8),
        (1, 3, "alignment", 0.9),
        *((0, 1, f"syntactic.r{n}.to-governor", 0.9 - n / 100) for n in range(5)),
    )
    chosen = best_heads(table)
    expected = ["positional.-1", "syntactic.obj.to-dependent"]
    expected += [f"syntactic.r{n}.to-governor" for n in range(4)]
    assert [row["measure"] for row in chosen] == [*expected, "rare.two-rarest", "coreference"]
    assert len(chosen) == MOST_EXAMPLES and chosen[0]["layer"] == 1
    assert best_heads(table.head(0)) == []


def test_the_sentence_in_which_the_head_works_is_chosen() -> None:
    """Of three sentences, a head looks at the object's verb in the second only, and there with most of its weight."""
    forms = "we saw a cat today ."
    tree = [1, -1, 3, 1, 1, 1], ["nsubj", "root", "det", "obj", "advmod", "punct"]
    sentences = [of_words(forms, *tree, id=str(n)) for n in range(3)]
    passage = Passage.of(in_subwords(sentences), 0)
    noise = random_weights(passage, 2)

    def where(row: int, query: int) -> int | None:
        word = int(passage.word_of[row, query])
        return first_subword(passage, row, 1 if row == 1 and word == 3 else 5)

    weights = torch.stack([noise[:, 0], looking(passage, where, noise[:, 1])], 1)
    measure = "syntactic.obj.to-governor"
    found = {"measure": measure, "role": "", "value": 1, "baseline": 0.5}
    shown = Shown({"kind": "encoder-self", "layer": 0, "head": 1, **found})
    keep_best_sentence(shown, View(weights, passage, passage), {}, 0)
    assert shown.picture["id"] == "1" and shown.picture["cells"] == [[3, 1]]
    assert (shown.picture["right"], shown.picture["asked"]) == (1, 1)
    assert shown.picture["weights"][3][1] > 0.85
    assert [1, 3, "obj"] in shown.picture["arcs"] and len(shown.picture["arcs"]) == 5


def test_which_words_a_role_asks(treebank: Treebank) -> None:
    sentence = of_words("we saw cats", [1, -1, 1], ["nsubj", "root", "obj"], "x")
    passage = Passage.of(in_subwords([sentence], most=1), 0)
    ids = passage.ids[0].tolist()
    often = {ids[0]: 900, ids[1]: 40, ids[2]: 3}
    measures = ["positional.1", "syntactic.nsubj.to-dependent", "rare.two-rarest", "coreference"]
    queries = {measure: query_words(measure, passage, 0, often, 1) for measure in measures}
    assert queries["positional.1"] == {0: ({0, 1, 2}, {1}), 1: ({0, 1, 2}, {2})}
    assert queries["syntactic.nsubj.to-dependent"] == {1: ({0, 2}, {0})}
    assert queries["rare.two-rarest"] == {0: ({1, 2}, {1, 2})}
    assert queries["coreference"] == {}
    # even its rarest token is among the three most frequent
    assert query_words("rare.two-rarest", passage, 0, often, 3) == {}
    chains = (
        each for each in treebank if len({m.entity for m in each.mentions}) < len(each.mentions)
    )
    with_chains = next(chains)
    entities = {m.head: m.entity for m in with_chains.mentions}
    found = query_words("coreference", Passage.of(in_subwords([with_chains]), 0), 0, {}, 0)
    assert found
    for query, (candidates, right) in found.items():
        before = {key for key in entities if key < query and entities[key] == entities[query]}
        assert right <= candidates & before


def test_against_a_slow_script_on_the_stock_model(treebank: Treebank, reader: Reader) -> None:
    model, some = reader(), list(islice(treebank, 60))
    before = model.hf.config._attn_implementation
    table = roles_of((1, 2, "syntactic.nsubj.to-governor", 0.4), (0, 1, "positional.1", 0.95))
    shown = examples(subject_of(model), some, table)
    assert model.hf.config._attn_implementation == before
    assert json.loads(json.dumps(shown)) == shown
    assert [(each["layer"], each["head"]) for each in shown] == [(0, 1), (1, 2)]
    short = [each for each in some if FEWEST_EXAMPLE_WORDS <= len(each.words) <= MOST_EXAMPLE_WORDS]
    assert shown[0]["sentences"] == shown[1]["sentences"] == len(short) > 10
    by_id = {each.id: each for each in short}
    for each in shown:
        sentence = by_id[each["id"]]
        expected = between_words(model, sentence, each["layer"], each["head"])
        found = [[*row, rest] for row, rest in zip(each["weights"], each["rest"], strict=True)]
        assert each["words"] == [word.form for word in sentence.words]
        assert torch.allclose(torch.tensor(found), expected, atol=2e-4)
    worth = {}
    for sentence in short:
        best = between_words(model, sentence, 1, 2)[:, :-1].fill_diagonal_(-1).argmax(1).tolist()
        subjects = [i for i, word in enumerate(sentence.words) if word.relation == "nsubj"]
        hits = sum(best[i] == sentence.words[i].governor for i in subjects)
        if hits:
            worth[sentence.id] = hits / len(subjects), min(hits, 2)
    assert worth[shown[1]["id"]] == max(worth.values())
    assert shown[1]["right"] / shown[1]["asked"] == max(worth.values())[0]


def test_rare_tokens_need_frequencies_and_nothing_found_shows_nothing(
    treebank: Treebank, reader: Reader
) -> None:
    model, some = reader(), list(islice(treebank, 80))
    subject, tokenizer = subject_of(model), model.tokenizer
    counts = count_tokens((sentence.text for sentence in treebank), tokenizer)
    table = roles_of((0, 0, "rare.two-rarest", 0.7))
    assert examples(subject, some, table) == []
    assert examples(subject, some, table.head(0), frequencies=counts) == []
    short = [Annotated.plain("too short")]
    assert examples(subject, short, table, frequencies=counts) == []
    few = subject_of(model, RoleOptions(top=50))
    (shown,) = examples(few, some, table, frequencies=counts)
    keys = {key for _, key in shown["cells"]}
    counted = [counts[tokenizer.convert_tokens_to_ids(word)] for word in shown["words"]]
    assert keys == {index for index, count in enumerate(counted) if count <= sorted(counted)[1]}


@pytest.mark.parametrize("family", ["gpt2", "bert"])
def test_other_families(family: str, treebank: Treebank, reader: Reader) -> None:
    """A causal model's first word, which can only look at itself, is left out."""
    unseen = family == "gpt2"
    kind = "decoder-self" if unseen else "encoder-self"
    found = (1, 0, "syntactic.det.to-dependent", 0.7), (1, 1, "positional.-1", 0.9)
    shown = examples(subject_of(reader(family)), islice(treebank, 50), roles_of(*found, kind=kind))
    assert len(shown) == 2
    for each in shown:
        sums = [sum(row) + rest for row, rest in zip(each["weights"], each["rest"], strict=True)]
        assert sums[1:] == pytest.approx([1.0] * (len(sums) - 1), abs=0.01)
        assert sums[0] == pytest.approx(0.0 if unseen else 1.0, abs=0.01)
        assert all(key < query for query, key in each["cells"]) or not unseen
