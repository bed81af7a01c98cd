"""A question to attention heads about a batch of text: prepared once, answered for all heads of each layer at once.

A test is a function from a passage to a `Probe`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from headwise.roles.passage import Passage, View

REACH = 10  # the largest fixed offset of a baseline, in words to either side


@dataclass
class Probe:
    """M measures over B sentences. The value of a measure is Σ answers / Σ counts over the text.

    counts B M: how many tokens are asked about. baseline B N M: the answers of N rules without attention (the best rule
    is the baseline; N may be 0). answer: from a layer's view to sums B H M. per: the measure that replaces counts as
    the divisor of all others (it is not reported itself).
    """

    measures: Sequence[str]
    counts: Tensor
    baseline: Tensor
    answer: Callable[[View], Tensor]
    per: str | None = None


class Arc(NamedTuple):
    """A correct answer: in this sentence, the word `query` should attend most to the word `key`."""

    sentence: int
    query: int
    key: int
    measure: str


def pointing(
    arcs: Iterable[Arc],
    queries: Passage,
    keys: Passage,
    baseline: Literal["offset", "chance"],
    reading: Literal["attended_words", "attending_words"] = "attended_words",
    per_arc: bool = False,
) -> Probe:
    """How often words attend most to a correct answer, any of several correct answers accepted.

    share(h) = mean over query words q with a correct answer of 1[argmax_k≠q A_h[q, k] is correct]; with the reading
    `attending_words`, the argmax is over the words that attend to q. The baseline is `chance` (another random visible
    word) or, for `offset`, the best of three rules: a fixed offset k − q (between two texts, from the same relative
    position), chance, and uniform weights on all subwords, by which the longest visible word gets most. Answers that
    are not visible do not count. per_arc: the unit is the correct answer, not the query word, so that a word with two
    of them can be right once at most.
    """
    names: dict[str, int] = {}
    rows = [(s, q, k, names.setdefault(measure, len(names))) for s, q, k, measure in arcs]
    table = torch.tensor(rows, dtype=torch.long, device=queries.ids.device).view(-1, 4)
    table = table[visible(table, queries, keys, forward=reading == "attending_words")]
    sentence, query, key, measure = table.T
    size, count, width = len(queries.ids), len(names), queries.subwords.shape[1]
    cell = sentence * count + measure  # a sentence and a measure as one number
    asked = cell if per_arc else (cell * width + query).unique() // max(width, 1)
    counts = sum_by_place(asked, torch.ones_like(asked, dtype=torch.float), size * count).view(
        size, count
    )
    rules = []
    if baseline == "offset":
        from_ = query if queries is keys else same_way(sentence, query, queries, keys)
        rules.append(fixed_offsets(sentence, key - from_, measure, (size, count)))
    own = queries is keys and reading == "attended_words"
    if own or baseline == "chance":
        rules.append(
            sum_by_place(
                cell, 1 / queries.visible[sentence, query].clamp_min(1), size * count
            ).view(size, 1, count)
        )
    if own and baseline == "offset":
        rules.append(
            sum_by_place(cell, longest_words(queries)[sentence, query, key], size * count).view(
                size, 1, count
            )
        )

    def answer(view: View) -> Tensor:
        chosen: Tensor = getattr(view, reading)
        hits = (chosen[sentence, :, query] == key[:, None]).float()  # arcs x H
        sums: Tensor = hits.new_zeros(size * count, chosen.shape[1]).index_add_(0, cell, hits)
        return sums.view(size, count, chosen.shape[1]).transpose(1, 2)

    return Probe(list(names), counts, torch.cat(rules, 1), answer)


def visible(table: Tensor, queries: Passage, keys: Passage, forward: bool) -> Tensor:
    """Which answers (sentence, query, key, measure) connect two words that are there and, in causal attention, visible:
    the attending word (`forward`: the key) comes later."""
    sentence, query, key, _ = table.T
    if not len(table):
        return torch.zeros(0, dtype=torch.bool, device=table.device)
    there = (queries.subwords[sentence, query] > 0) & (keys.subwords[sentence, key] > 0)
    if not (queries is keys and queries.causal):
        return there
    later: Tensor = key > query if forward else key < query
    return there & later


def fixed_offsets(
    sentence: Tensor, offset: Tensor, measure: Tensor, shape: tuple[int, int]
) -> Tensor:
    """How many answers are at every offset up to REACH, by sentence and measure: B offsets M."""
    near, size = offset.abs() <= REACH, 2 * REACH + 1
    place = (sentence * size + offset + REACH) * shape[1] + measure
    return sum_by_place(place[near], near[near].float(), shape[0] * size * shape[1]).view(
        shape[0], size, shape[1]
    )


def longest_words(passage: Passage) -> Tensor:
    """The argmax of uniform weights on subwords: for each query word, 1 on the longest other visible word, shared among
    several of that length. B W W."""
    size = passage.subwords.shape[1]
    sight = ~torch.eye(size, dtype=torch.bool, device=passage.ids.device)
    sizes = (passage.subwords[:, None, :] * (sight.tril() if passage.causal else sight)).float()
    best = (sizes == sizes.amax(-1, keepdim=True)) & (sizes > 0)
    shares: Tensor = best / best.sum(-1, keepdim=True).clamp_min(1)
    return shares


def same_way(sentence: Tensor, query: Tensor, queries: Passage, keys: Passage) -> Tensor:
    """The word of the other text at the same relative position."""
    last = [(side.subwords > 0).sum(1)[sentence] - 1 for side in (queries, keys)]
    return (query * last[1] / last[0].clamp_min(1)).round().long()


def sum_by_place(places: Tensor, values: Tensor, size: int) -> Tensor:
    """The sum of the values at every place: `size` numbers."""
    return values.new_zeros(size).index_add_(0, places, values)


def sum_over_queries(queries: Tensor, hits: Tensor) -> Tensor:
    """hits B H Q summed over the chosen queries B Q: B H."""
    sums: Tensor = (hits * queries[:, None]).sum(-1)
    return sums
