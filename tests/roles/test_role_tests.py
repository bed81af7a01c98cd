"""The whole way, from text and a model to labels; the numbers against a slow script on the stock model; and the
controls: text without its words, text without its order, untrained models."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

import headwise as hw
from headwise.core.statistics import cohen_h
from headwise.core.tables import CONTROLS, TESTS
from headwise.data.annotated import Annotated
from headwise.data.subwords import Coverage, align_subwords
from headwise.data.treebank import Treebank
from headwise.importance.untrained import untrained
from headwise.models.attention.discover import output_of
from headwise.roles import observation
from headwise.roles.alignment import WordLinks, read_links
from headwise.roles.label import labels
from headwise.roles.observation import RoleOptions
from headwise.roles.rare import count_tokens
from headwise.roles.role import NO_ROLE, role_of
from headwise.roles.role_data import (
    CONTROL_SENTENCES,
    RoleTexts,
    random_words,
    sample_sentences,
    shuffled,
)
from headwise.roles.role_tests import Roles, find_roles, warnings
from refusals import refuses
from roles.conftest import Reader
from roles.handmade import between_tokens, between_words, found_in


def value(out: Roles, measure: str, layer: int, head: int, kind: str = "encoder-self") -> Any:
    table = out.table.set_index(["kind", "layer", "head", "measure"])
    return table.loc[(kind, layer, head, measure)]


def test_a_random_model_has_no_role(treebank: Treebank, reader: Reader) -> None:
    model = reader()
    counts = count_tokens((sentence.text for sentence in treebank), model.tokenizer)
    before = model.hf.config._attn_implementation
    out = found_in(model, treebank, RoleOptions(top=50), frequencies=counts)
    assert model.hf.config._attn_implementation == before
    assert list(out.table.columns) == list(TESTS.names)
    assert set(out.labels["kind"]) == {"encoder-self"} and set(out.labels["label"]) == {NO_ROLE}
    assert out.coverage["treebank"].used == 400 and out.roles.empty and out.warnings == []
    assert (out.table["low"] <= out.table["value"]).all()
    assert (out.table["value"] <= out.table["high"]).all()
    assert any("positional −1" in text for text in out.absent)
    expected = (
        "positional.-3 attention-at.0 syntactic.nsubj.to-governor rare.two-rarest coreference"
    )
    expected += " same-word distance variability dependency-alignment pos.NOUN sink"
    assert {*expected.split()} <= {*out.table["measure"]}


def test_against_a_slow_script_on_the_stock_model(few_trees: Treebank, reader: Reader) -> None:
    """Sentence by sentence, attention from transformers' own eager code, words by hand. Near-ties may flip a count."""
    model = reader()
    out = found_in(model, few_trees, RoleOptions(max_length=20))
    hits: dict[str, list[bool]] = defaultdict(list)
    count = 0
    for sentence in few_trees:
        if len(model.tokenizer(sentence.text)["input_ids"]) > 20:
            continue
        count += 1
        tokens = between_tokens(model, sentence, 1, 2)[:-1, :-1].argmax(1).tolist()
        hits["positional.-1"] += [key == q for q, key in enumerate(tokens[1:])]
        words = between_words(model, sentence, 1, 2)[:, :-1]
        best = words.fill_diagonal_(-1).argmax(1).tolist()
        for index, word in enumerate(sentence.words):
            if word.relation == "nsubj":
                hits["syntactic.nsubj.to-governor"].append(best[index] == word.governor)
            links = [(other.governor, other.relation) for other in sentence.words]
            subjects = [k for k, link in enumerate(links) if link == (index, "nsubj")]
            if subjects:
                hits["syntactic.nsubj.to-dependent"].append(best[index] in subjects)
    assert out.coverage["treebank"].used == count and 0 < count < 120
    for measure, right in hits.items():
        row, near = value(out, measure, 1, 2), 1.5 / len(right)
        assert row["n"] == len(right)
        assert row["value"] == pytest.approx(sum(right) / len(right), abs=near)


@pytest.mark.parametrize("family", ["bert", "t5"])
def test_other_readers(few_trees: Treebank, reader: Reader, family: str) -> None:
    out = found_in(reader(family), few_trees)
    assert set(out.table["kind"]) == {"encoder-self"} and out.roles.empty


@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_language_models_are_tested_on_probes_too(
    few_trees: Treebank, reader: Reader, family: str
) -> None:
    out = found_in(reader(family), few_trees)
    measures = set(out.table["measure"])
    assert {"induction", "duplicate-token", "previous-token", "copying", "sink"} <= measures
    assert "syntactic.det.to-dependent" in measures
    assert "positional.1" not in measures and "rare.rarest" not in measures
    assert any("decoder-self: no head for induction (decoder-self/" in line for line in out.absent)


def test_a_role_confirmed_with_the_head_off_leads_the_picture_and_has_a_tick(
    few_trees: Treebank, reader: Reader
) -> None:
    """Induction below a position that the head looks at more often."""
    out = found_in(reader("gpt2"), few_trees)
    head = next(iter(out.heads))
    rows = pd.DataFrame([(*head, "positional.-1", 0.9), (*head, "induction", 0.5)])
    rows.columns = pd.Index(["kind", "layer", "head", "measure", "value"])
    rows["text"] = ["positional −1 (0.90)", "induction (0.50)"]
    causal = rows.iloc[1:].assign(confirmed=True)
    plain = replace(out, roles=rows, labels=labels(out.heads, rows))
    assert plain.plot().groups == {head: "positional"} and "✓" not in "".join(plain.lines())
    ticked = replace(plain, causal=causal)
    assert ticked.plot().groups == {head: "induction"}
    assert "positional −1 (0.90), induction (0.50) ✓" in "\n".join(ticked.lines())


def test_sentence_pairs_test_the_decoder_and_cross_attention(
    few_trees: Treebank, reader: Reader, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    two = frozenset({(0, 0), (1, 1)})
    monkeypatch.setattr(
        observation, "drawn_links", lambda text: WordLinks([(two, two)] * len(text), apart=True)
    )
    monkeypatch.setattr(observation, "aligner", lambda: "eflomal-align")
    pairs = [(sentence.text, sentence.text) for sentence in few_trees]
    out = found_in(reader(), few_trees, pairs=pairs)
    by_kind = out.table.groupby("kind")["measure"].agg(set)
    assert by_kind["cross"] == {"alignment", "monotonicity", "reading", "sink"}
    assert {"positional.-1", "sink"} <= by_kind["decoder-self"]
    assert "positional.1" not in by_kind["decoder-self"]
    assert value(out, "alignment", 0, 0, "cross")["baseline"] > 0.9
    assert len(out.labels) == 24
    assert out.files()["links.txt"].count("\n0-0 1-1") == len(pairs)
    out.save(tmp_path)
    assert out.links and list(read_links(tmp_path / "links.txt")) == list(out.links)
    refuses(
        lambda: found_in(reader("bert"), few_trees, pairs=pairs), "a BertModel does not translate"
    )


def test_without_an_aligner_copied_words_test_the_reading_position(
    few_trees: Treebank, reader: Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(observation, "aligner", lambda: None)
    pairs = [(sentence.text, sentence.text) for sentence in few_trees]
    out = found_in(reader(), few_trees, pairs=pairs)
    cross = out.table[out.table["kind"] == "cross"]
    assert {*cross["measure"]} == {"monotonicity", "reading", "sink"} and (cross["n"] > 0).all()
    assert any("eflomal" in line for line in out.warnings)


def test_another_treebank_may_confirm(treebank: Treebank, reader: Reader) -> None:
    sentences = list(treebank)
    out = found_in(reader(), sentences[:150], confirm=sentences[150:250])
    assert out.coverage["treebank"].used == 250
    refuses(lambda: found_in(reader(), sentences[:1]), "no second half")


def test_a_single_document_is_split_into_blocks_and_short_halves_are_said(
    treebank: Treebank, reader: Reader
) -> None:
    text = [Annotated(s.words, s.id, "one", s.mentions) for s in islice(treebank, 50)]
    short, blocks = found_in(reader(), text).warnings
    assert "Nearly all 50 sentences of the treebank are of one document" in blocks
    assert "blocks of 5 neighbouring sentences (25 and 25)" in blocks
    assert "tests of roles cannot find any: coreference, " in short
    assert "in fewer than 10 sentences, in a half" in short


@pytest.mark.parametrize("family", ["gpt2", "gemma2"])
def test_no_logits_are_computed_and_nothing_else_changes(
    treebank: Treebank, reader: Reader, family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The whole forward, slowly, sees the same attention."""
    model, some = reader(family), list(islice(treebank, 60))
    few = 64  # positions of the probe that finds the direct path to the logits
    positions: list[int] = []
    layer = model.hf.get_output_embeddings()
    layer.register_forward_hook(lambda _, given, logits: positions.append(logits[..., 0].numel()))
    out = found_in(model, some)
    assert max(positions) < few
    monkeypatch.setattr(observation, "run_model", lambda hf, _, inputs: output_of(hf, inputs))
    slow = found_in(model, some)
    assert max(positions) > 10 * few
    pd.testing.assert_frame_equal(out.table, slow.table)


def sliding(reader: Reader, window: int, second: str) -> hw.Model:
    return reader("gemma2", sliding_window=window, layer_types=["sliding_attention", second])


def test_layers_say_full_or_sliding_where_a_model_has_both(
    treebank: Treebank, reader: Reader
) -> None:
    sentences = list(islice(treebank, 60))
    out = found_in(sliding(reader, 300, "full_attention"), sentences)
    names = dict(zip(out.labels["layer"], out.labels["attention"], strict=True))
    assert names == {0: "sliding 300", 1: "full"}
    assert list(out.patterns.columns[:3]) == ["kind", "layer", "attention"]
    assert "last 300 tokens; the repeated tokens of the probes are only 100" in out.warnings[-1]
    full = found_in(reader("gpt2"), sentences)
    assert "attention" not in full.labels and "Sliding" not in " ".join(full.warnings)


@pytest.mark.parametrize(("window", "warned"), [(26, True), (27, False)])
@pytest.mark.parametrize("second", ["sliding_attention", "full_attention"])
def test_a_window_shorter_than_the_repeated_tokens_are_apart_is_said(
    treebank: Treebank, reader: Reader, window: int, warned: bool, second: str
) -> None:
    out = found_in(sliding(reader, window, second), list(islice(treebank, 30)))
    words = f"last {window} tokens; the tokens of the probes repeat after 25"
    assert (words in " ".join(out.warnings)) == warned


def test_progress_counts_every_pass_and_moves_often(
    treebank: Treebank, reader: Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(observation, "WORK", 3e7)
    shares: list[float] = []
    ran: list[float] = []  # how much was done before each forward
    run = observation.run_model

    def noted(*args: Any) -> None:
        ran.append(shares[-1] if shares else 0.0)
        run(*args)

    monkeypatch.setattr(observation, "run_model", noted)
    hw.roles(reader("gpt2"), treebank, progress=lambda share, what: shares.append(share))
    assert shares == sorted(shares) and max(ran) < 1 and len(set(ran)) == len(ran) > 20
    assert 0.7 < shares[-1] <= 1  # no role was found that a sentence can show


def test_text_that_does_not_fit_is_reported(treebank: Treebank, reader: Reader) -> None:
    short = RoleOptions(max_length=2)
    words = "None of the first 256 sentences … more than 2 subwords"
    refuses(lambda: found_in(reader(), treebank, short), words)
    foreign = [Annotated.plain("das ist ein Satz fremder Sprache", str(n)) for n in range(100)]
    (warning,) = found_in(reader(), foreign).warnings
    assert "100% of the subwords of the treebank are unknown" in warning
    out = found_in(reader(), treebank, RoleOptions(max_length=20))
    (warning,), left = out.warnings, out.coverage["treebank"].too_long
    assert left > 0 and f"{left} of 400 sentences of the treebank are too long" in warning


def test_a_short_training_text_takes_no_other_test_with_it(
    treebank: Treebank, reader: Reader
) -> None:
    model = reader()
    text = list(islice(treebank, 60))
    out = found_in(model, text, frequencies=count_tokens([text[0].text], model.tokenizer))
    assert any(line.startswith("Rare-token heads were not tested") for line in out.warnings)
    measures = {*out.table["measure"]}
    assert {"positional.-1", "syntactic.det.to-governor"} <= measures
    assert not any(measure.startswith("rare.") for measure in measures)


def test_words_that_became_one_are_said() -> None:
    tests = pd.DataFrame({"measure": [], "n": [], "n_again": [], "enough": []}, dtype=float)
    coverage = {"treebank": Coverage(sentences=9, used=9, words=80, merged_words=20)}
    (line,) = warnings(coverage, tests)
    assert line.startswith("20% of the words of the treebank share a subword with a neighbour")
    assert (
        warnings({"treebank": Coverage(sentences=9, used=9, words=95, merged_words=5)}, tests) == []
    )


def test_words_of_many_pieces_are_said(treebank: Treebank) -> None:
    """Bytes know every language, so that no subword is unknown: two to a letter of Russian."""
    tests = pd.DataFrame({"measure": [], "n": [], "n_again": [], "enough": []}, dtype=float)
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=500, initial_alphabet=alphabet, show_progress=False)
    own = [sentence.text for sentence in treebank]
    made.train_from_iterator(own, trainer)
    bytes_of_english = PreTrainedTokenizerFast(tokenizer_object=made)
    text = "Мальчик читает книгу в саду"
    for sentences, said in ((own[:50], 0), ([text] * 3, 1)):
        counts = Coverage()
        align_subwords(bytes_of_english, sentences, 512, counts)
        lines = warnings({"treebank": counts}, tests)
        assert len(lines) == said and counts.unknown_subwords == 0
    ids = bytes_of_english(text)["input_ids"]
    assert lines[0].startswith(f"A word of the treebank is {len(ids) / 5:.1f} subwords on average")


def test_trees_of_sud_are_said() -> None:
    """Surface-syntactic UD: comp:obj and comp:aux, which UD tells apart, are one relation."""

    def of(*relations: str) -> list[str]:
        rows = [{"measure": f"syntactic.{each}.to-governor", "n": 99} for each in relations]
        return warnings({}, pd.DataFrame(rows).assign(n_again=99, enough=True))

    (line,) = of("comp", "subj", "mod")
    assert "those of SUD" in line
    assert not of("nsubj", "obj", "det") and not of("comp", "nsubj")


def arcs(sentence: Annotated) -> Counter[tuple[str, str, str]]:
    """Every word with its relation and its governor."""
    forms = [*(word.form for word in sentence.words), ""]
    return Counter((word.form, word.relation, forms[word.governor]) for word in sentence.words)


def test_shuffled_sentences_keep_their_words_and_trees(treebank: Treebank) -> None:
    before = list(treebank)
    after = shuffled(before, 1)
    assert [arcs(sentence) for sentence in after] == [arcs(sentence) for sentence in before]
    moved = [a.words != b.words for a, b in zip(after, before, strict=True)]
    assert np.mean(moved) > 0.9
    assert all(one.mentions == () and len(one.spans) == len(one.words) for one in after)
    assert shuffled(before, 1) == after != shuffled(before, 2)
    determiner_first, mixed = (
        [w.governor > i for s in text for i, w in enumerate(s.words) if w.relation == "det"]
        for text in (before, after)
    )
    assert all(determiner_first) and 0.3 < np.mean(mixed) < 0.7


def test_random_words_keep_trees_and_mentions(treebank: Treebank) -> None:
    before = list(treebank)
    after = random_words(before, 1)
    for old, new in zip(before, after, strict=True):
        one, other = ([(w.governor, w.relation) for w in each.words] for each in (old, new))
        assert one == other and old.mentions == new.mentions
        assert new.text == " ".join(word.form for word in new.words)
    counts, drawn = (Counter(w.form for s in text for w in s.words) for text in (before, after))
    assert set(drawn) <= set(counts)
    often = counts.most_common(1)[0]
    assert drawn[often[0]] == pytest.approx(often[1], rel=0.2)


def test_a_long_text_is_thinned_evenly() -> None:
    text = [Annotated.plain(str(number)) for number in range(2 * CONTROL_SENTENCES + 1)]
    few = sample_sentences(text)
    assert (
        len(few) <= CONTROL_SENTENCES
        and few[1].text == "3"
        and int(few[-1].text) > 2 * CONTROL_SENTENCES - 3
    )


def test_controls_are_tests_of_untrained_models_and_of_changed_text(
    few_trees: Treebank, reader: Reader
) -> None:
    """The slow way: `hw.roles` of every untrained model, and of the model on the changed text."""
    model, text = reader(), list(few_trees)
    found = hw.roles(model, few_trees, seed=4, untrained=2).controls
    assert tuple(found.columns) == CONTROLS.names and found["measure"].map(role_of).notna().all()
    slow = {f"untrained.{n}": hw.roles(untrained(model, n), few_trees, seed=4) for n in (5, 6)}
    slow["shuffled"] = find_roles(model, RoleTexts(shuffled(text, 4)), seed=4)
    slow["random-words"] = find_roles(model, RoleTexts(random_words(text, 4)), seed=4)
    assert set(found["control"]) == {*slow}
    for name, one in slow.items():
        table = one.table[one.table["measure"].map(role_of).notna()]
        rows = found[found["control"] == name]
        assert list(rows["measure"]) == list(table["measure"])
        assert np.array_equal(rows["value"], table["value"])
        assert rows["found"].sum() == len(one.roles)
    assert hw.roles(model, few_trees, seed=4).controls.empty


def test_the_effect_size_of_shares() -> None:
    """Cohen 1988: from 0.5 to 0.65 is as far as from 0.05 to 0.13, about 0.3."""
    found = cohen_h(np.array([1.0, 0.5, 0.65, 0.13]), np.array([0.0, 0.5, 0.5, 0.05]))
    assert found == pytest.approx([np.pi, 0.0, 0.3047, 0.2867], abs=1e-3)
