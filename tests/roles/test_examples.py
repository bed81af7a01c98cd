"""Example sentences: the right one is chosen, its numbers are those of the stock model, and little is kept."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import islice
from typing import Any

import pandas as pd
import pytest
import torch
from transformers import MarianMTModel, PreTrainedTokenizerFast

from attention.families import tiny
from headwise.attention import discover
from headwise.data.annotated import Annotated, Word
from headwise.data.treebank import Treebank
from headwise.heads import COLUMNS
from headwise.roles.examples import (
    LONGEST,
    MOST,
    SHORTEST,
    Shown,
    best_heads,
    examples,
    keep_best_sentence,
    query_words,
)
from headwise.roles.observation import RoleOptions, Subject
from headwise.roles.passage import Passage, View
from headwise.roles.rare import count_tokens
from roles.handmade import first_subword, in_subwords, looking, random_weights

Marian = Callable[..., MarianMTModel]


def roles_of(
    *found: tuple[int, int, str, float], kind: str = "encoder-self", baseline: float = 0.3
) -> pd.DataFrame:
    """Rows as `Roles.roles` has them: layer, head, measure, value."""
    rows = [
        (kind, layer, head, measure, value, None, None, 99, baseline)
        for layer, head, measure, value in found
    ]
    return pd.DataFrame(rows, columns=list(COLUMNS)).assign(role="a role", text="a role", p=0.01)


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
    assert [row["measure"] for row in chosen] == [
        "positional.-1",
        "syntactic.obj.to-dependent",
        *(f"syntactic.r{n}.to-governor" for n in range(4)),
        "rare.two-rarest",
        "coreference",
    ]
    assert len(chosen) == MOST and chosen[0]["layer"] == 1
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
        return (
            first_subword(passage, row, 1)
            if row == 1 and word == 3
            else first_subword(passage, row, 5)
        )

    weights = torch.stack([noise[:, 0], looking(passage, where, noise[:, 1])], 1)
    measure = "syntactic.obj.to-governor"
    shown = Shown(
        {
            "kind": "encoder-self",
            "layer": 0,
            "head": 1,
            "measure": measure,
            "role": "",
            "value": 1,
            "baseline": 0.5,
        }
    )
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
    with_chains = next(
        each for each in treebank if len({m.entity for m in each.mentions}) < len(each.mentions)
    )
    found = query_words("coreference", Passage.of(in_subwords([with_chains]), 0), 0, {}, 0)
    for query, (candidates, right) in found.items():
        entities = {m.head: m.entity for m in with_chains.mentions}
        assert right <= candidates and all(
            entities[key] == entities[query] and key < query for key in right
        )


def slow(
    model: MarianMTModel, tokenizer: Any, sentence: Annotated, layer: int, head: int
) -> torch.Tensor:
    """Attention between words and, in the last column, to no word: from the stock model, with loops."""
    ids = tokenizer(sentence.text)["input_ids"]
    with torch.no_grad():
        whole = model.get_encoder()(torch.tensor([ids]), output_attentions=True).attentions
    a = whole[layer][0, head]
    pieces, at = [], 0
    for word in sentence.words:
        size = len(tokenizer(word.form)["input_ids"]) - 1
        pieces.append(list(range(at, at + size)))
        at += size
    columns = [*pieces, list(range(at, len(ids)))]
    return torch.stack([torch.stack([a[q][:, k].sum(1).mean() for k in columns]) for q in pieces])


def test_against_a_slow_script_on_the_stock_model(
    treebank: Treebank, tokenizer: PreTrainedTokenizerFast, tiny_marian: Marian
) -> None:
    model = tiny_marian(vocab_size=len(tokenizer))
    before = model.config._attn_implementation
    some = list(islice(treebank, 60))
    table = roles_of((1, 2, "syntactic.nsubj.to-governor", 0.4), (0, 1, "positional.1", 0.95))
    shown = examples(Subject(model, tokenizer, discover(model)), some, table)
    assert model.config._attn_implementation == before and json.loads(json.dumps(shown)) == shown
    assert [(each["layer"], each["head"]) for each in shown] == [(0, 1), (1, 2)]
    short = [each for each in some if SHORTEST <= len(each.words) <= LONGEST]
    assert shown[0]["sentences"] == shown[1]["sentences"] == len(short) > 10
    model.set_attn_implementation("eager")
    by_id = {each.id: each for each in short}
    for each in shown:
        expected = slow(model, tokenizer, by_id[each["id"]], each["layer"], each["head"])
        found = torch.tensor(
            [[*row, rest] for row, rest in zip(each["weights"], each["rest"], strict=True)]
        )
        assert each["words"] == [word.form for word in by_id[each["id"]].words]
        assert torch.allclose(found, expected, atol=2e-4)
    worth = {}
    for sentence in short:
        weights = slow(model, tokenizer, sentence, 1, 2)[:, :-1].fill_diagonal_(-1)
        queries = [
            (i, word.governor) for i, word in enumerate(sentence.words) if word.relation == "nsubj"
        ]
        hits = sum(int(weights[i].argmax()) == up for i, up in queries)
        if hits:
            worth[sentence.id] = (
                hits / len(queries),
                min(hits, 2),
                sum(float(weights[i, up]) for i, up in queries),
            )
    best = max(value[:2] for value in worth.values())
    assert worth[shown[1]["id"]][:2] == best
    assert shown[1]["right"] / shown[1]["asked"] == best[0]


def test_rare_tokens_need_frequencies_and_nothing_found_shows_nothing(
    treebank: Treebank, tokenizer: PreTrainedTokenizerFast, tiny_marian: Marian
) -> None:
    model = tiny_marian(vocab_size=len(tokenizer))
    discovery, some = discover(model), list(islice(treebank, 80))
    counts = count_tokens((sentence.text for sentence in treebank), tokenizer)
    table = roles_of((0, 0, "rare.two-rarest", 0.7))
    assert examples(Subject(model, tokenizer, discovery), some, table) == []
    assert (
        examples(Subject(model, tokenizer, discovery), some, table.head(0), frequencies=counts)
        == []
    )
    assert (
        examples(
            Subject(model, tokenizer, discovery),
            [Annotated.plain("too short")],
            table,
            frequencies=counts,
        )
        == []
    )
    options = RoleOptions(top=50)
    (shown,) = examples(
        Subject(model, tokenizer, discovery, options), some, table, frequencies=counts
    )
    keys = {key for _, key in shown["cells"]}
    counted = [counts[tokenizer.convert_tokens_to_ids(word)] for word in shown["words"]]
    assert keys == {index for index, count in enumerate(counted) if count <= sorted(counted)[1]}


@pytest.mark.parametrize("family", ["gpt2", "bert"])
def test_other_families(
    family: str, treebank: Treebank, tokenizer: PreTrainedTokenizerFast
) -> None:
    model = tiny(family, vocab_size=len(tokenizer))
    kind = "decoder-self" if family == "gpt2" else "encoder-self"
    table = roles_of(
        (1, 0, "syntactic.det.to-dependent", 0.7), (1, 1, "positional.-1", 0.9), kind=kind
    )
    shown = examples(Subject(model, tokenizer, discover(model)), islice(treebank, 50), table)
    assert len(shown) == 2
    for each in shown:
        sums = [sum(row) + rest for row, rest in zip(each["weights"], each["rest"], strict=True)]
        unseen = (
            kind == "decoder-self"
        )  # the first word, which can only look at itself, is left out
        assert sums[1:] == pytest.approx([1.0] * (len(sums) - 1), abs=0.01)
        assert sums[0] == pytest.approx(0.0 if unseen else 1.0, abs=0.01)
        assert all(key < query for query, key in each["cells"]) or not unseen
