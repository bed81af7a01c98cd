"""The whole way, from text and a model to labels; and the numbers against a slow script on the stock model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from transformers import MarianMTModel, PreTrainedTokenizerFast

from attention.families import tiny
from headwise.data.annotated import Annotated
from headwise.data.treebank import Treebank
from headwise.errors import HeadwiseError
from headwise.heads import COLUMNS
from headwise.roles import alignment
from headwise.roles.passes import Reading
from headwise.roles.rare import count_tokens
from headwise.roles.role import NO_ROLE
from headwise.roles.role_tests import Roles
from roles.handmade import found_in

Marian = Callable[..., MarianMTModel]


def value(
    out: Roles, measure: str, layer: int, head: int, kind: str = "encoder-self"
) -> dict[str, Any]:
    table = out.table
    rows = table[(table["kind"] == kind) & (table["layer"] == layer) & (table["head"] == head)]
    found: dict[str, Any] = rows[rows["measure"] == measure].to_dict("records")[0]
    return found


def test_a_random_model_has_no_role(
    treebank: Treebank, tokenizer: PreTrainedTokenizerFast, tiny_marian: Marian
) -> None:
    model = tiny_marian(vocab_size=len(tokenizer))
    counts = count_tokens((sentence.text for sentence in treebank), tokenizer)
    before = model.config._attn_implementation
    out = found_in(model, tokenizer, treebank, frequencies=counts, reading=Reading(top=50))
    assert model.config._attn_implementation == before
    assert list(out.table.columns) == list(COLUMNS)
    assert set(out.labels["kind"]) == {"encoder-self"} and set(out.labels["label"]) == {NO_ROLE}
    assert out.coverage["treebank"].used == 400 and out.roles.empty and out.warnings == []
    assert (out.table["low"] <= out.table["value"]).all() and (
        out.table["value"] <= out.table["high"]
    ).all()
    assert any("positional −1" in text for text in out.absent)
    measures = set(out.table["measure"])
    assert {
        "positional.-3",
        "attention-at.0",
        "syntactic.nsubj.to-governor",
        "rare.two-rarest",
        "coreference",
        "same-word",
        "distance",
        "variability",
        "dependency-alignment",
        "pos.NOUN",
        "sink",
    } <= measures


def test_against_a_slow_script_on_the_stock_model(
    treebank: Treebank, tokenizer: PreTrainedTokenizerFast, tiny_marian: Marian
) -> None:
    """Sentence by sentence, attention from transformers' own eager code, words by hand. Near-ties may flip a count."""
    model = tiny_marian(vocab_size=len(tokenizer))
    out = found_in(model, tokenizer, treebank, reading=Reading(max_length=20))
    model.set_attn_implementation("eager")
    positional, subject, governor, count = [], [], [], 0
    for sentence in treebank:
        ids = tokenizer(sentence.text)["input_ids"]
        if len(ids) > 20:
            continue
        count += 1
        pieces, at = [], 0
        for word in sentence.words:
            size = len(tokenizer(word.form)["input_ids"]) - 1
            pieces.append(range(at, at + size))
            at += size
        assert at == len(ids) - 1
        with torch.no_grad():
            whole = model.get_encoder()(torch.tensor([ids]), output_attentions=True).attentions
        a = whole[1][0, 2, :-1, :-1]
        positional += [int(a[q].argmax() == q - 1) for q in range(1, at)]
        words = torch.stack(
            [torch.stack([a[list(q)][:, list(k)].sum(1).mean() for k in pieces]) for q in pieces]
        )
        words.fill_diagonal_(-1)
        for index, word in enumerate(sentence.words):
            if word.relation == "nsubj":
                subject.append(int(words[index].argmax() == word.governor))
            hanging = enumerate(sentence.words)
            subjects = [
                k for k, other in hanging if other.governor == index and other.relation == "nsubj"
            ]
            if subjects:
                governor.append(int(int(words[index].argmax()) in subjects))
    assert out.coverage["treebank"].used == count and 0 < count < 400
    for measure, hits in (
        ("positional.-1", positional),
        ("syntactic.nsubj.to-governor", subject),
        ("syntactic.nsubj.to-dependent", governor),
    ):
        row = value(out, measure, 1, 2)
        assert row["n"] == len(hits) and row["value"] == pytest.approx(
            sum(hits) / len(hits), abs=1.5 / len(hits)
        )


@pytest.mark.parametrize("family", ["bert", "t5"])
def test_other_readers(treebank: Treebank, tokenizer: PreTrainedTokenizerFast, family: str) -> None:
    model = tiny(family, vocab_size=len(tokenizer))
    out = found_in(model, tokenizer, treebank)
    assert set(out.table["kind"]) == {"encoder-self"} and out.roles.empty


@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_language_models_are_asked_on_probes_too(
    treebank: Treebank, tokenizer: PreTrainedTokenizerFast, family: str
) -> None:
    model = tiny(family, vocab_size=len(tokenizer))
    out = found_in(model, tokenizer, treebank)
    measures = set(out.table["measure"])
    assert {"induction", "duplicate-token", "previous-token", "copying", "sink"} <= measures
    assert "syntactic.det.to-dependent" in measures
    assert "positional.1" not in measures and "rare.rarest" not in measures
    assert any(
        line.startswith("decoder-self: no head for induction (decoder-self/") for line in out.absent
    )


def test_sentence_pairs_test_the_decoder_and_cross_attention(
    treebank: Treebank,
    tokenizer: PreTrainedTokenizerFast,
    tiny_marian: Marian,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        alignment,
        "links",
        lambda pairs: {one.sentence.id: frozenset({(0, 0), (1, 1)}) for one, _ in pairs},
    )
    model = tiny_marian(vocab_size=len(tokenizer))
    pairs = [(sentence.text, sentence.text) for sentence in treebank]
    out = found_in(model, tokenizer, treebank, pairs=pairs)
    by_kind = out.table.groupby("kind")["measure"].agg(set)
    assert by_kind["cross"] == {"alignment", "monotonicity", "sink"}
    assert {"positional.-1", "sink"} <= by_kind["decoder-self"] and "positional.1" not in by_kind[
        "decoder-self"
    ]
    assert value(out, "alignment", 0, 0, "cross")["baseline"] > 0.9
    assert len(out.labels) == 24
    with pytest.raises(HeadwiseError, match="a BertModel does not translate"):
        bert = tiny("bert", vocab_size=len(tokenizer))
        found_in(bert, tokenizer, treebank, pairs=pairs)


def test_another_treebank_may_confirm(
    treebank: Treebank, tokenizer: PreTrainedTokenizerFast, tiny_marian: Marian
) -> None:
    model = tiny_marian(vocab_size=len(tokenizer))
    sentences = list(treebank)
    out = found_in(model, tokenizer, sentences[:150], confirm=sentences[150:250])
    assert out.coverage["treebank"].used == 250
    one = [Annotated(s.words, s.id, "the only document", s.mentions) for s in sentences[:50]]
    with pytest.raises(HeadwiseError, match="no second half"):
        found_in(model, tokenizer, one)


def test_text_that_does_not_fit_is_reported(
    treebank: Treebank, tokenizer: PreTrainedTokenizerFast, tiny_marian: Marian
) -> None:
    model = tiny_marian(vocab_size=len(tokenizer))
    with pytest.raises(
        HeadwiseError,
        match="None of the first 256 sentences can be used: they have more than 2 subwords",
    ):
        found_in(model, tokenizer, treebank, reading=Reading(max_length=2))
    foreign = [Annotated.plain("das ist ein Satz fremder Sprache", str(n)) for n in range(100)]
    out = found_in(model, tokenizer, foreign)
    assert out.warnings == ["100% of the subwords of the treebank are unknown: another language?"]
    short = found_in(model, tokenizer, treebank, reading=Reading(max_length=20))
    left = short.coverage["treebank"].too_long
    assert left > 0 and short.warnings == [
        f"{left} of 400 sentences of the treebank are too long and were left out."
    ]


def test_first_subword_and_context_are_readings(
    treebank: Treebank, tokenizer: PreTrainedTokenizerFast, tiny_marian: Marian
) -> None:
    model = tiny_marian(vocab_size=len(tokenizer), max_position_embeddings=128)
    whole, first = (
        found_in(model, tokenizer, treebank, reading=Reading(first_subword=each))
        for each in (False, True)
    )
    relation = "syntactic.nsubj.to-governor"
    assert value(whole, relation, 0, 0)["n"] == value(first, relation, 0, 0)["n"]
    assert value(whole, "positional.-1", 0, 0) == value(first, "positional.-1", 0, 0)
    documents = [
        Annotated(s.words, s.id, f"d{n // 20}", s.mentions) for n, s in enumerate(treebank)
    ]
    joined = found_in(model, tokenizer, documents, reading=Reading(context=2))
    assert joined.coverage["treebank"].used == 200
