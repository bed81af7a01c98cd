"""The whole way, from text and a model to labels; the numbers against a slow script on the stock model; and the
controls: text without its words, text without its order, untrained models."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from itertools import islice
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from transformers import MarianMTModel, PreTrainedTokenizerFast

import headwise as hw
from attention.families import tiny
from headwise.attention.discover import output_of
from headwise.data.annotated import Annotated
from headwise.data.treebank import Treebank
from headwise.errors import HeadwiseError
from headwise.heads import COLUMNS
from headwise.roles import alignment, observation
from headwise.roles.observation import RoleOptions
from headwise.roles.rare import count_tokens
from headwise.roles.role import NO_ROLE, role_of
from headwise.roles.role_tests import (
    CONTROL_COLUMNS,
    SENTENCES,
    Roles,
    RoleTexts,
    find_roles,
    random_words,
    sample_sentences,
    shuffled,
)
from headwise.statistics import cohen_h
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
    out = found_in(model, tokenizer, treebank, frequencies=counts, options=RoleOptions(top=50))
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
    out = found_in(model, tokenizer, treebank, options=RoleOptions(max_length=20))
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
def test_language_models_are_tested_on_probes_too(
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
    with pytest.raises(HeadwiseError, match="no second half"):
        found_in(model, tokenizer, sentences[:1])


def test_a_single_document_is_split_into_blocks_and_short_halves_are_said(
    treebank: Treebank, tokenizer: PreTrainedTokenizerFast, tiny_marian: Marian
) -> None:
    model = tiny_marian(vocab_size=len(tokenizer))
    text = [Annotated(s.words, s.id, "one", s.mentions) for s in islice(treebank, 50)]
    blocks, short = found_in(model, tokenizer, text).warnings[::-1]
    assert blocks == (
        "Nearly all 50 sentences of the treebank are of one document: its halves are blocks of 5 neighbouring sentences "
        "(25 and 25), which are less independent than documents. Confirm roles on another text."
    )
    assert "tests of roles cannot find any: coreference, " in short
    assert "in fewer than 10 sentences, in a half" in short


@pytest.mark.parametrize("family", ["gpt2", "gemma2"])
def test_no_logits_are_computed_and_nothing_else_changes(
    treebank: Treebank,
    tokenizer: PreTrainedTokenizerFast,
    family: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The whole forward, slowly, sees the same attention."""
    model = hw.Model(tiny(family, vocab_size=len(tokenizer)), tokenizer, "tiny")
    texts = RoleTexts(list(islice(treebank, 60)))
    few = 64  # positions of the probe that finds the direct path to the logits
    positions: list[int] = []
    layer = model.hf.get_output_embeddings()
    layer.register_forward_hook(lambda _, given, logits: positions.append(logits[..., 0].numel()))
    out = find_roles(model, texts)
    assert max(positions) < few
    monkeypatch.setattr(observation, "run_model", lambda hf, _, inputs: output_of(hf, inputs))
    slow = find_roles(model, texts)
    assert max(positions) > 10 * few
    pd.testing.assert_frame_equal(out.table, slow.table)


def test_layers_say_full_or_sliding_where_a_model_has_both(
    treebank: Treebank, tokenizer: PreTrainedTokenizerFast
) -> None:
    sentences = list(islice(treebank, 60))
    config = {
        "vocab_size": len(tokenizer),
        "sliding_window": 300,
        "layer_types": ["sliding_attention", "full_attention"],
    }
    out = found_in(tiny("gemma2", **config), tokenizer, sentences)
    assert dict(zip(out.labels["layer"], out.labels["attention"], strict=True)) == {
        0: "sliding 300",
        1: "full",
    }
    assert list(out.patterns.columns[:3]) == ["kind", "layer", "attention"]
    assert out.warnings[-1] == (
        "Sliding layers see the last 300 tokens; the repeated tokens of the probes are only 100, so that the limit of "
        "these layers does not show."
    )
    full = found_in(tiny("gpt2", vocab_size=len(tokenizer)), tokenizer, sentences)
    assert "attention" not in full.labels and "Sliding" not in " ".join(full.warnings)


@pytest.mark.parametrize(("window", "warned"), [(26, True), (27, False)])
@pytest.mark.parametrize("second", ["sliding_attention", "full_attention"])
def test_a_window_shorter_than_the_repeated_tokens_are_apart_is_said(
    treebank: Treebank,
    tokenizer: PreTrainedTokenizerFast,
    window: int,
    warned: bool,
    second: str,
) -> None:
    config = {
        "vocab_size": len(tokenizer),
        "sliding_window": window,
        "layer_types": ["sliding_attention", second],
    }
    out = found_in(tiny("gemma2", **config), tokenizer, list(islice(treebank, 60)))
    text = (
        f"Sliding layers see the last {window} tokens; the tokens of the probes repeat after 25, so that these layers "
        "cannot show induction or duplicate-token heads."
    )
    assert (text in out.warnings) == warned


def test_progress_counts_every_pass_and_moves_often(
    treebank: Treebank, tokenizer: PreTrainedTokenizerFast, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(observation, "WORK", 3e7)
    model = hw.Model(tiny("gpt2", vocab_size=len(tokenizer)), tokenizer, "tiny")
    shares: list[float] = []
    ran: list[float] = []  # how much was done before each forward
    run = observation.run_model

    def noted(*args: Any) -> None:
        ran.append(shares[-1] if shares else 0.0)
        run(*args)

    monkeypatch.setattr(observation, "run_model", noted)
    hw.roles(model, treebank, progress=lambda share, what: shares.append(share))
    assert shares == sorted(shares) and max(ran) < 1 and len(set(ran)) == len(ran) > 20
    assert 0.7 < shares[-1] <= 1  # no role was found that a sentence can show


def test_text_that_does_not_fit_is_reported(
    treebank: Treebank, tokenizer: PreTrainedTokenizerFast, tiny_marian: Marian
) -> None:
    model = tiny_marian(vocab_size=len(tokenizer))
    with pytest.raises(
        HeadwiseError,
        match="None of the first 256 sentences can be used: they have more than 2 subwords",
    ):
        found_in(model, tokenizer, treebank, options=RoleOptions(max_length=2))
    foreign = [Annotated.plain("das ist ein Satz fremder Sprache", str(n)) for n in range(100)]
    out = found_in(model, tokenizer, foreign)
    assert out.warnings == ["100% of the subwords of the treebank are unknown: another language?"]
    short = found_in(model, tokenizer, treebank, options=RoleOptions(max_length=20))
    left = short.coverage["treebank"].too_long
    assert left > 0 and short.warnings == [
        f"{left} of 400 sentences of the treebank are too long and were left out."
    ]


def test_first_subword_and_context_are_options(
    treebank: Treebank, tokenizer: PreTrainedTokenizerFast, tiny_marian: Marian
) -> None:
    model = tiny_marian(vocab_size=len(tokenizer), max_position_embeddings=128)
    whole, first = (
        found_in(model, tokenizer, treebank, options=RoleOptions(first_subword=each))
        for each in (False, True)
    )
    relation = "syntactic.nsubj.to-governor"
    assert value(whole, relation, 0, 0)["n"] == value(first, relation, 0, 0)["n"]
    assert value(whole, "positional.-1", 0, 0) == value(first, "positional.-1", 0, 0)
    documents = [
        Annotated(s.words, s.id, f"d{n // 20}", s.mentions) for n, s in enumerate(treebank)
    ]
    joined = found_in(model, tokenizer, documents, options=RoleOptions(context=2))
    assert joined.coverage["treebank"].used == 200


def arcs(sentence: Annotated) -> Counter[tuple[str, str, str]]:
    """Every word with its relation and its governor."""
    forms = [word.form for word in sentence.words]
    return Counter(
        (word.form, word.relation, "" if word.governor < 0 else forms[word.governor])
        for word in sentence.words
    )


def test_shuffled_sentences_keep_their_words_and_trees(treebank: Treebank) -> None:
    before = list(treebank)
    after = shuffled(before, 1)
    assert [arcs(sentence) for sentence in after] == [arcs(sentence) for sentence in before]
    moved = [a.words != b.words for a, b in zip(after, before, strict=True)]
    assert np.mean(moved) > 0.9
    assert all(
        sentence.mentions == () and len(sentence.spans) == len(sentence.words) for sentence in after
    )
    assert shuffled(before, 1) == after != shuffled(before, 2)
    pairs = [(w.governor - i) for s in before for i, w in enumerate(s.words) if w.relation == "det"]
    mixed = [(w.governor - i) for s in after for i, w in enumerate(s.words) if w.relation == "det"]
    assert (
        min(pairs) > 0 and 0.3 < np.mean(np.array(mixed) > 0) < 0.7
    )  # a determiner was before its noun


def test_random_words_keep_trees_and_mentions(treebank: Treebank) -> None:
    before = list(treebank)
    after = random_words(before, 1)
    for old, new in zip(before, after, strict=True):
        assert [(w.governor, w.relation) for w in old.words] == [
            (w.governor, w.relation) for w in new.words
        ]
        assert old.mentions == new.mentions and new.text == " ".join(
            word.form for word in new.words
        )
    counts, drawn = (Counter(w.form for s in text for w in s.words) for text in (before, after))
    assert set(drawn) <= set(counts)
    often = counts.most_common(1)[0]
    assert drawn[often[0]] == pytest.approx(often[1], rel=0.2)


def test_a_long_text_is_thinned_evenly() -> None:
    text = [Annotated.plain(str(number)) for number in range(2 * SENTENCES + 1)]
    few = sample_sentences(text, 1)
    assert len(few) <= SENTENCES and few[1].text == "3" and int(few[-1].text) > 2 * SENTENCES - 3
    assert sample_sentences(text, 4) == text  # neighbours are read together


def test_controls_are_tests_of_untrained_models_and_of_changed_text(
    treebank: Treebank, tokenizer: PreTrainedTokenizerFast, tiny_marian: Marian
) -> None:
    """The slow way: `hw.roles` of every untrained model, and of the model on the changed text."""
    model = hw.Model(tiny_marian(vocab_size=len(tokenizer)), tokenizer, "tiny")
    found = hw.roles(model, treebank, seed=4, untrained=2).controls
    assert tuple(found.columns) == CONTROL_COLUMNS and found["measure"].map(role_of).notna().all()
    assert set(found["control"]) == {"untrained.5", "untrained.6", "random-words", "shuffled"}
    controls = {
        name: hw.untrained(model, int(name.partition(".")[2]))
        for name in ("untrained.5", "untrained.6")
    }
    text = list(treebank)
    slow = {name: hw.roles(control, treebank, seed=4) for name, control in controls.items()}
    slow["shuffled"] = find_roles(model, RoleTexts(shuffled(text, 4)), seed=4)
    slow["random-words"] = find_roles(model, RoleTexts(random_words(text, 4)), seed=4)
    for name, one in slow.items():
        table = one.table[one.table["measure"].map(role_of).notna()]
        rows = found[found["control"] == name]
        assert list(rows["measure"]) == list(table["measure"])
        assert np.array_equal(rows["value"], table["value"]) and rows["found"].sum() == len(
            one.roles
        )
    assert hw.roles(model, treebank, seed=4).controls.empty


def test_the_effect_size_of_shares() -> None:
    """Cohen 1988: from 0.5 to 0.65 is as far as from 0.05 to 0.13, about 0.3."""
    assert cohen_h(
        np.array([1.0, 0.5, 0.65, 0.13]), np.array([0.0, 0.5, 0.5, 0.05])
    ) == pytest.approx([np.pi, 0.0, 0.3047, 0.2867], abs=1e-3)
