"""From scores to roles: hand-made heads are recognised exactly, random ones are not."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice

import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor

from headwise.core.heads import HeadMap
from headwise.data.annotated import Annotated, mention
from headwise.data.subwords import Coverage
from headwise.data.treebank import Treebank
from headwise.roles.causal import no_effects
from headwise.roles.coreference import coreference, matching_words
from headwise.roles.label import (
    DRAWS,
    compare_halves,
    find,
    labels,
    missing_roles,
    patterns,
    threshold,
)
from headwise.roles.passage import Passage
from headwise.roles.positional import positional
from headwise.roles.probe import AnswerSums, Probe, together
from headwise.roles.rare import rare
from headwise.roles.role import NO_ROLE
from headwise.roles.role_tests import compare_texts, drawn_again, warnings
from headwise.roles.syntactic import syntactic
from roles.handmade import answered, first_subword, in_subwords, looking, random_weights

HEADS = HeadMap({"encoder-self": (5,)})


def found(first: AnswerSums, second: AnswerSums) -> pd.DataFrame:
    """The roles."""
    whole = together([first, second]).table()
    return find(whole, compare_halves(first.table(), second.table()))


@pytest.mark.parametrize("times", [1, 5, 6, 10])
def test_a_role_needs_most_draws_of_the_halves(times: int) -> None:
    """Two heads look one back; one is confirmed in so many of ten draws of other halves, the other in all."""
    generator = np.random.default_rng(1)
    half = generator.binomial(20, np.broadcast_to([1, 0.95, 0.7], (100, 3)))
    hits = torch.tensor(np.concatenate([half, half]), dtype=torch.float)[..., None]
    counts = torch.full((200, 1), 20.0)
    answers = AnswerSums("encoder-self")
    answers.add([Probe(["positional.-1"], counts, 0.1 * counts[:, None], len)], {0: [hits]})  # type: ignore[arg-type]
    first = np.arange(200) < 100
    tests = compare_texts([(answers.some(first), answers.some(~first))])
    assert len(drawn_again([answers], seed=0)) == DRAWS
    one = tests.assign(confirmed=tests["confirmed"] & (tests["head"] == 0))
    draws = times * [tests] + (DRAWS - times) * [one]
    whole = answers.table()
    roles = find(whole, tests, draws).set_index("head")
    assert list(roles.index) == ([0, 1] if times > DRAWS / 2 else [0])
    assert roles.draws[0] == DRAWS and roles.text[0] == "positional −1 (1.00)"
    if DRAWS / 2 < times < DRAWS:
        assert roles.draws[1] == times and roles.text[1].endswith(f", in {times} of {DRAWS} draws)")
    none = roles[:0]
    (line,) = missing_roles(whole, none, tests, none.reset_index(), no_effects(none))[:1]
    assert "not in most draws of other halves" in line


@pytest.fixture(scope="module")
def halves(treebank: Treebank) -> list[Passage]:
    sentences = [with_others(sentence) for sentence in treebank]
    return [Passage.of(in_subwords(part), 0) for part in (sentences[:200], sentences[200:])]


def with_others(sentence: Annotated) -> Annotated:
    """Every noun is a mention, as in real corpora: otherwise the nearest mention nearly always is the antecedent."""
    mentions, taken = list(sentence.mentions), {each.head for each in sentence.mentions}
    for i, word in enumerate(sentence.words):
        if word.upos == "NOUN" and i not in taken:
            mentions.append(mention(sentence.words, f"n{i}", 0, i, i + 1))
    return replace(sentence, mentions=tuple(sorted(mentions, key=lambda m: (m.start, -m.end))))


def probes(passage: Passage) -> list[Probe]:
    """Frequencies fall with the id, so that one token of every sentence is the rarest."""
    frequencies = torch.arange(2000, 1999 - int(passage.ids.max()), -1, dtype=torch.float)
    rarest = rare(passage, frequencies, 400)
    return [positional(passage), syntactic(passage), rarest, coreference(passage)]


def crafted(passage: Passage, seed: int) -> Tensor:
    """Five heads: one back, at the governor of subjects, at the rarest token, at the antecedent, at random."""
    noise = random_weights(passage, 5, seed)

    def governor(row: int, query: int) -> int | None:
        word = passage.sentences[row].words[int(passage.word_of[row, query])]
        return first_subword(passage, row, word.governor) if word.relation == "nsubj" else None

    def rarest(row: int, query: int) -> int:
        return int((passage.ids[row] * passage.words[row]).argmax())

    def antecedent(row: int, query: int) -> int | None:
        word, mentions = int(passage.word_of[row, query]), passage.sentences[row].mentions
        for each in mentions:
            for other in mentions:
                if each.head == word and other.entity == each.entity and other.head < word:
                    return first_subword(passage, row, other.head)
        return None

    def before(row: int, query: int) -> int | None:
        return query - 1 if query else None

    heads = enumerate((before, governor, rarest, antecedent))
    made = [looking(passage, where, noise[:, head]) for head, where in heads]
    return torch.stack([*made, noise[:, 4]], 1)


def test_heads_made_by_hand_are_recognised_exactly(halves: list[Passage]) -> None:
    first, second = (
        answered(half, probes(half), crafted(half, seed)) for seed, half in enumerate(halves)
    )
    roles = found(first, second)
    by_head = roles.groupby("head")["measure"].agg(set).to_dict()
    names = ["positional.-1", "syntactic.nsubj.to-governor", "rare.two-rarest", "coreference"]
    assert by_head == {head: {name} for head, name in enumerate(names)}
    text = labels(HEADS, roles).set_index("head")["label"]
    assert text[0] == "positional −1 (1.00)" and text[4] == NO_ROLE
    assert text[1].startswith("nsubj→verb (1.00 vs 0.") and text[2] == "rare tokens (1.00)"
    whole = together([first, second]).table()
    tests = compare_halves(first.table(), second.table())
    missing = "\n".join(missing_roles(whole, roles, tests, roles, no_effects(roles)))
    assert not any(name in missing for name in ("positional −1", "nsubj→verb", "rare"))
    assert "encoder-self: no head for positional +1 (encoder-self/0/" in missing
    shares = patterns(HEADS, roles).set_index("role")["share"].to_dict()
    sorts = ("positional", "syntactic", "rare tokens", "coreference", NO_ROLE)
    assert shares == dict.fromkeys(sorts, 0.2)


def test_a_role_must_hold_on_both_halves(halves: list[Passage]) -> None:
    passages = [Passage.of(in_subwords(half.sentences), 0) for half in halves]
    first = answered(passages[0], probes(passages[0]), crafted(passages[0], 0))
    second = answered(passages[1], probes(passages[1]), random_weights(passages[1], 5))
    assert found(first, second).empty and found(second, first).empty


def test_random_attention_has_no_role(treebank: Treebank) -> None:
    """Of 100 models of 4 random heads at most one in twenty may be given any role; the bars make it none at all."""
    sentences = list(islice(treebank, 120))
    one, other = (
        Passage.of(in_subwords(part, most=1), 0) for part in (sentences[:60], sentences[60:])
    )
    of_one, of_other = probes(one), probes(other)
    named = 0
    for run in range(100):
        first = answered(one, of_one, random_weights(one, 4, 2 * run))
        second = answered(other, of_other, random_weights(other, 4, 2 * run + 1))
        named += not found(first, second).empty
    assert named == 0


def test_p_values_of_random_attention_are_calibrated(treebank: Treebank) -> None:
    """Against chance, which is exactly what random attention reaches, one test in twenty is below 0.05."""
    passage = Passage.of(in_subwords(islice(treebank, 150), most=1), 0)
    prepared = [matching_words(passage), probes(passage)[2]]
    runs = [answered(passage, prepared, random_weights(passage, 8, run)) for run in range(60)]
    p = pd.concat([run.table() for run in runs])
    p = p[~p["measure"].str.endswith(("own", "vote"))]
    for measure, rows in p.groupby("measure"):
        assert (rows["p"] <= 0.05).mean() <= 0.05 + 3 * np.sqrt(0.05 * 0.95 / len(rows)), measure


def test_the_threshold_is_a_score_or_points_above_the_baseline() -> None:
    assert threshold("syntactic.obj.to-governor", 0.4) == pytest.approx(0.5)
    assert threshold("positional.-1", 0.1) == 0.9


Half = tuple[float, int, int, float]  # of a head that looks at the token before: value, n, units, p


@pytest.mark.parametrize(
    ("first", "second", "reason"),
    [
        (
            (0.98, 1700, 111, 0.0),
            (0.99, 168, 9, 0.0),
            "seen 1700 and 168 times in 111 and 9 sentences of the halves, 30 times in 10",
        ),
        ((0.95, 0, 0, 1.0), (0.95, 0, 0, 1.0), "it does not occur in this text)"),
        ((0.5, 100, 50, 0.0), (0.6, 100, 50, 0.0), "0/0 reaches 0.55, 0.90 is needed)"),
        (
            (0.99, 100, 50, 0.0),
            (0.85, 100, 50, 0.0),
            "0/0 reaches 0.92, but 0.85 on the second half, where 0.90 is needed)",
        ),
        (
            (0.99, 100, 50, 0.2),
            (0.99, 100, 50, 0.0),
            "0/0 reaches 0.99, but p = 0.20 on the first half, 0.05 is needed)",
        ),
        (
            (0.99, 100, 50, 0.0),
            (0.99, 100, 50, 0.3),
            "0/0 reaches 0.99, but p = 0.30 on the second half, 0.05 is needed)",
        ),
    ],
)
def test_a_missing_role_has_its_true_reason(first: Half, second: Half, reason: str) -> None:
    rows = pd.DataFrame([first, second], columns=["value", "n", "units", "p"])
    head = {"kind": "encoder-self", "layer": 0, "head": 0, "measure": "positional.-1"}
    rows = rows.assign(**head, baseline=0.1)
    summed = {"value": rows["value"].mean(), "n": rows["n"].sum(), "units": rows["units"].sum()}
    whole = rows[:1].assign(**summed)
    tests = compare_halves(rows[:1], rows[1:])
    roles = find(whole, tests)
    assert roles.empty
    lines = missing_roles(whole, roles, tests, roles, no_effects(roles))
    (line,) = (one for one in lines if "encoder-self: no head for positional −1 (" in one)
    assert reason in line


@pytest.mark.parametrize(("on_words", "kept"), [(0.001, False), (0.049, False), (0.06, True)])
def test_a_head_that_gives_words_no_weight_has_no_role_by_its_largest_weight(
    on_words: float, kept: bool
) -> None:
    """99.9 % on special tokens, and of the rest most on the token before: it was "positional −1 (1.00)"."""
    rows = []
    for measure, value, baseline in (
        ("positional.-1", 1.0, 0.1),
        ("sink", 1 - on_words, 0.1),
        ("s-inhibition", 1.0, 0.2),
    ):
        facts = {"kind": "decoder-self", "layer": 0, "head": 0, "measure": measure, "value": value}
        rows.append({**facts, "n": 500, "baseline": baseline, "units": 50, "p": 1e-9})
    table = pd.DataFrame(rows)
    found = find(table, compare_halves(table, table)).set_index("measure")
    assert ("positional.-1" in found.index) == kept
    # templates ask a head to look up where it rests elsewhere, and a sink is what it is
    assert {"s-inhibition", "sink"} <= set(found.index)
    assert found["on_words"].to_numpy() == pytest.approx(on_words)


def test_a_head_that_rests_on_special_tokens_makes_no_measure_rare() -> None:
    """What is too rare is counted in tokens and sentences; what the sink would be is said of the head."""
    rows = []
    for head, on_words, value in ((0, 0.01, 0.99), (1, 0.9, 0.3)):
        facts = {"kind": "encoder-self", "layer": 0, "head": head, "n": 7_000, "units": 200}
        for measure, of_measure in (("positional.-1", value), ("sink", 1 - on_words)):
            rows.append(
                facts | {"measure": measure, "value": of_measure, "baseline": 0.1, "p": 0.0}
            )
    table = pd.DataFrame(rows)
    tests = compare_halves(table, table)
    assert tests["enough"].all() and not warnings({}, tests)
    roles = find(table, tests)
    assert "positional.-1" not in {*roles["measure"]}
    lines = missing_roles(table, roles, tests, roles, no_effects(roles))
    (line,) = (one for one in lines if "no head for positional −1 (" in one)
    assert "0/0 reaches 0.99, but gives words 1.0% of its weight, 5% are needed" in line


def test_other_text_is_said() -> None:
    coverage = {"treebank": Coverage(sentences=9, used=9, other_text=2)}
    nothing = pd.DataFrame({"measure": [], "n": [], "n_again": [], "enough": []}, dtype=float)
    (line,) = warnings(coverage, nothing)
    assert line.startswith("2 of 9 sentences of the treebank are other words or blanks")
