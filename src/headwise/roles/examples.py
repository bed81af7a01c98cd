"""For every category of roles that was found, an example sentence for its best head.

Attention is between words (`passage`): to a word the sum over its subwords, from a word the mean. The attention to
tokens outside words is one number per word, so that each word's weights sum to 1.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import pandas as pd
import torch
from torch import Tensor

from headwise.core.heads import Head, head_of
from headwise.data.annotated import Annotated
from headwise.data.subwords import Coverage
from headwise.models.attention.capture import capture
from headwise.models.attention.discover import evaluating
from headwise.models.attention.kernel import AttentionCall
from headwise.roles.coreference import choices
from headwise.roles.halves import in_half
from headwise.roles.observation import CountWords, Subject, run_model, treebank_batches, uncounted
from headwise.roles.passage import Passage, View
from headwise.roles.role import role_of

MOST_EXAMPLES = 8  # examples
FEWEST_EXAMPLE_WORDS = 6  # words of an example
MOST_EXAMPLE_WORDS = 16
CANDIDATES = 1000  # sentences to choose from
FIRST_EXAMPLES = (
    "positional.-1",
    "positional.1",
    "previous-token",
    "nsubj",
    "obj",
    "amod",
    "advmod",
    "rare",
    "coreference",
)

# By word: the words it may attend to, and the right ones among them.
Allowed = dict[int, tuple[set[int], set[int]]]


@dataclass
class Shown:
    """A role and the best example so far. worth: what sentences are compared by."""

    role: Mapping[str, Any]
    worth: tuple[float, ...] = (0.0,)
    picture: dict[str, Any] = field(default_factory=dict)

    @property
    def head(self) -> Head:
        return head_of(self.role)


def examples(
    subject: Subject,
    sentences: Iterable[Annotated],
    roles: pd.DataFrame,
    *,
    frequencies: Mapping[int, int] | None = None,
    count: CountWords = uncounted,
) -> list[dict[str, Any]]:
    """One sentence for the best head of each category of roles, at most MOST_EXAMPLES, ready for JSON.

    It is the best of the first CANDIDATES sentences of FEWEST_EXAMPLE_WORDS to MOST_EXAMPLE_WORDS words, not a typical
    one: the largest share of the words that the role is about attend most to the right word, with the largest weight.
    roles: `Roles.roles`. frequencies: as for `RoleTexts`; without them, rare tokens have no example. Roles that need
    sentence pairs or other texts have none either.

    Each has `kind, layer, head, measure, role, value, baseline` (on the whole text); `id, words`; `weights` (W W, from
    the row's word to the column's), `rest` (W, to tokens outside words); `arcs` ([governor, dependent, relation]);
    `cells` ([from, to], the right words); `right` of `asked` words attend most to a right one; `sentences`, the number
    of candidates.
    """
    if frequencies is None:
        roles = roles[~roles["measure"].str.startswith("rare.")]
    shown = [Shown(role) for role in best_heads(roles[roles["kind"] == subject.kind])]
    if not shown:
        return []
    number = search(subject, sentences, shown, frequencies or {}, count)
    return [each.picture | {"sentences": number} for each in shown if each.picture]


def search(
    subject: Subject,
    text: Iterable[Annotated],
    shown: Sequence[Shown],
    frequencies: Mapping[int, int],
    count: CountWords,
) -> int:
    """Find every role's best sentence, in one pass; returns the number of candidates."""
    batches = treebank_batches(subject, in_half(0, candidates_of(text)), Coverage())
    candidates = 0
    current: list[Passage] = []

    def hook(call: AttentionCall) -> None:
        if call.site.kind != subject.kind:
            return
        assert call.weights is not None
        view = View(call.weights, current[-1], current[-1], call)
        for example in shown:
            if example.head[:2] == call.site:
                keep_best_sentence(example, view, frequencies, subject.options.top)

    model = subject.model
    with (
        evaluating(model),
        torch.no_grad(),
        capture(model, subject.discovery, hook=hook, weights=True),
    ):
        for batch in batches:
            current[:] = batch.sides[subject.kind]
            run_model(model, subject.discovery, batch.inputs)
            candidates += len(current[-1].sentences)
            count(batch.words)
    return candidates


def candidates_of(text: Iterable[Annotated]) -> Iterator[Annotated]:
    """The sentences that an example is chosen from."""
    short = (
        sentence
        for sentence in text
        if FEWEST_EXAMPLE_WORDS <= len(sentence.words) <= MOST_EXAMPLE_WORDS
    )
    return islice(short, CANDIDATES)


def best_heads(roles: pd.DataFrame) -> list[dict[str, Any]]:
    """The best head of each category of roles that a sentence can show; of a relation, the better direction."""
    best: dict[str, dict[str, Any]] = {}
    # In ascending order: the best head of a category comes last, and stays.
    by_margin = roles.assign(above=roles["value"] - roles["baseline"]).sort_values("above")
    for role in by_margin.to_dict("records"):
        if order_of(role["measure"]) is not None:
            best[topic(role["measure"])] = {str(name): value for name, value in role.items()}
    others = sorted(
        set(best) - set(FIRST_EXAMPLES),
        key=lambda name: (name.startswith("positional"), -best[name]["above"]),
    )
    chosen = [name for name in (*FIRST_EXAMPLES, *others) if name in best][:MOST_EXAMPLES]
    roles_shown = [best[name] for name in chosen]
    return sorted(roles_shown, key=lambda role: order_of(role["measure"]) or 0)


def order_of(measure: str) -> int | None:
    """The order of a role among the examples; None where a sentence cannot show it."""
    declared = role_of(measure)
    return None if declared is None else declared.example


def topic(measure: str) -> str:
    """What has one example: an offset, a relation, or a role."""
    first, *rest = measure.split(".")
    if first == "syntactic":
        return rest[0]
    return first if first == "rare" else measure


def query_words(
    measure: str, passage: Passage, number: int, frequencies: Mapping[int, int], top: int
) -> Allowed:
    """The words of a sentence that a measure is about. Without coreference each may attend to all visible words."""
    sentence = passage.sentences[number]
    queries: Allowed = {}
    if measure == "coreference":
        for choice in choices([sentence]):
            queries[choice.query] = set(choice.candidates), set(choice.antecedents)
        return queries

    rare: set[int] = set()
    if measure.startswith("rare."):
        rare = rarest_words(passage, number, frequencies, top)
    right = set(right_words(measure, sentence, rare))
    itself = measure.startswith("positional.")  # only positional heads may attend to the query
    present = passage.present[number]
    for query in present:
        visible = set(present)
        if passage.causal:
            visible = {key for key in present if key <= query}
        if not itself:
            visible.discard(query)
        right_keys = {key for key in visible if (query, key) in right}
        if right_keys:
            queries[query] = visible, right_keys
    return queries


def right_words(measure: str, sentence: Annotated, rare: set[int]) -> Iterator[tuple[int, int]]:
    """Which word should attend to which, in words (a positional head is tested on subwords)."""
    declared = role_of(measure)
    if declared is not None and "sentence" in declared.data:
        yield from declared.right_words(sentence)
        return
    first, *rest = measure.split(".")
    for index, word in enumerate(sentence.words):
        if first in ("positional", "previous-token"):
            yield index, index + (int(rest[0]) if rest else -1)
        elif first == "rare" and index not in rare:
            for rarest in rare:
                yield index, rarest
        elif first == "syntactic" and word.governor >= 0 and word.relation == rest[0]:
            yield (index, word.governor) if rest[1] == "to-governor" else (word.governor, index)


def rarest_words(
    passage: Passage, number: int, frequencies: Mapping[int, int], top: int
) -> set[int]:
    """The words with the two rarest subwords of a sentence; none when these are among the `top` most frequent."""
    counted = []  # of each subword, how often it occurs, and its word
    tokens = passage.ids[number].tolist()
    for token, word in zip(tokens, passage.word_of[number].tolist(), strict=True):
        if word >= 0:
            counted.append((frequencies.get(token, 0), word))
    counted.sort()
    limit = sorted(frequencies.values(), reverse=True)[top - 1] if len(frequencies) >= top else 0
    # As in `rare`: a sentence of frequent words alone has no rare token.
    if len(counted) < 2 or counted[0][0] >= limit:
        return set()
    second, _ = counted[1]
    return {word for count, word in counted if count <= second}


def keep_best_sentence(shown: Shown, view: View, frequencies: Mapping[int, int], top: int) -> None:
    """Take the best sentence of a batch, if it is better than the best so far."""
    for number, weights in enumerate(view.between[:, shown.head.head].tolist()):
        allowed = query_words(shown.role["measure"], view.keys, number, frequencies, top)
        if not allowed:
            continue
        hits = 0
        right_weights = []
        for query, (visible, right) in allowed.items():
            # Sorted, so that of equal weights the first word wins, as in a `View`.
            attended = max(sorted(visible), key=weights[query].__getitem__)
            hits += attended in right
            right_weights.append(sum(weights[query][key] for key in right))
        # The share of right answers, then two of them rather than one, then their weight.
        count = len(allowed)
        worth = hits / count, float(min(hits, 2)), sum(right_weights) / count
        if hits and worth > shown.worth:
            shown.worth = worth
            shown.picture = picture(shown.role, view, number, allowed)
            shown.picture["right"] = hits
            shown.picture["asked"] = count


def picture(role: Mapping[str, Any], view: View, number: int, allowed: Allowed) -> dict[str, Any]:
    """The example of one sentence and head."""
    passage = view.keys
    head = int(role["head"])
    sentence = passage.sentences[number]
    size = len(sentence.words)
    outside = view.weights[number, head] @ (~passage.words[number]).to(view.weights.dtype)  # Q
    rest = passage.as_query[number].T.to(outside.dtype) @ outside
    arcs = []
    for index, word in enumerate(sentence.words):
        if word.governor >= 0:
            arcs.append([word.governor, index, word.relation])
    cells = []
    for query, (_, right) in allowed.items():
        cells += [[query, key] for key in right]
    return {
        "kind": role["kind"],
        "measure": role["measure"],
        "role": role["role"],
        "layer": int(role["layer"]),
        "head": head,
        "value": round(float(role["value"]), 4),
        "baseline": round(float(role["baseline"]), 4),
        "id": sentence.id,
        "words": [word.form for word in sentence.words],
        "weights": [rounded(row) for row in view.between[number, head, :size, :size]],
        "rest": rounded(rest[:size]),
        "arcs": arcs,
        "cells": sorted(cells),
    }


def rounded(weights: Tensor) -> list[float]:
    return [round(weight, 4) for weight in weights.tolist()]
