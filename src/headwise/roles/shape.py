"""How attention is distributed over a sentence: attention sinks, delimiters, and measures of Vig & Belinkov 2019
(section 4), which define no roles.

"Null" attention (to special tokens, or to the first word where there is no start token) is left out, and the rest is
the denominator: D = Σ A_h[q, k] over the subwords q and k of words.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import torch
from torch import Tensor

from headwise.core.heads import Site
from headwise.roles.passage import Passage, View
from headwise.roles.probe import COUNTS, AnswerSums, Probe, mean_over_queries
from headwise.roles.syntactic import dependencies

TAGS = (
    "ADJ",
    "ADP",
    "ADV",
    "AUX",
    "CCONJ",
    "DET",
    "INTJ",
    "NOUN",
    "NUM",
    "PART",
    "PRON",
    "PROPN",
    "PUNCT",
    "SCONJ",
    "SYM",
    "VERB",
    "X",
)
OPENING = 10  # first tokens of a sentence, which `variability` compares


def sink(passage: Passage, source: Passage | None = None) -> Probe:
    """How much attention goes to tokens outside words: special ones, or the first word where there is no start token.

    sink = mean over the tokens q of words of Σ A_h[q, k] over such k. Baseline: uniform weights. source: where the
    keys are in cross attention.
    """
    keys = source or passage
    rest = keys.mask & ~keys.words
    # Without such a token there is nothing to attend to.
    queries = passage.words & rest.any(1, keepdim=True)
    if passage is keys and passage.causal:
        # A causal query sees what stands before it: sums so far.
        rest_visible = rest.cumsum(1)
        all_visible = keys.mask.cumsum(1)
    else:
        rest_visible = rest.sum(1, keepdim=True)
        all_visible = keys.mask.sum(1, keepdim=True)
    chance = ((rest_visible / all_visible.clamp_min(1)) * queries).sum(1)

    return mean_over_queries("sink", queries, chance[:, None], partial(weight_on, rest))


def weight_on(keys: Tensor, view: View) -> Tensor:
    """The attention weight on some keys, B K, from each query: B H Q."""
    return torch.matmul(view.weights, keys[:, None, :, None].to(view.weights.dtype))[..., 0]


def delimiter(passage: Passage) -> Probe:
    """How much attention goes to punctuation (Clark et al. 2019, section 3.2).

    delimiter = mean over the tokens q of words behind a punctuation mark of Σ A_h[q, k] over the tokens k of such
    marks. Baseline: uniform weights.
    """
    marks = torch.zeros_like(passage.subwords)
    for row, sentence in enumerate(passage.sentences):
        for index, word in enumerate(sentence.words[: marks.shape[1]]):
            if word.upos == "PUNCT":
                marks[row, index] = 1
    rest = (passage.membership @ marks[..., None])[..., 0] > 0  # B S
    before = rest.cumsum(1)
    queries = passage.words & ~rest & (before > 0)
    chance = (queries * before / passage.mask.cumsum(1).clamp_min(1)).sum(1)

    return mean_over_queries("delimiter", queries, chance[:, None], partial(weight_on, rest))


def shape(passage: Passage) -> Probe:
    """Where attention goes, as shares of D.

    distance = Σ A_h[q, k] · |q − k| / D, in subwords; dependency-alignment = Σ A_h[q, k] · 1[one of the words of q and
    k governs the other] / D; pos.TAG = Σ A_h[q, k] · 1[the word of k is a TAG] / D. Subwords have the tag and the
    governor of their word.
    """
    words = passage.words.float()
    size, length = words.shape
    both = words[:, :, None] * words[:, None]
    positions = torch.arange(length, device=words.device)
    # |q − k| of two subwords of words; 0 elsewhere.
    far = both * (positions[:, None] - positions).abs()
    features = torch.stack([both, far, both * governed(passage)], -1).view(size, length * length, 3)
    tags = passage.membership @ tagged(passage)

    def answer(view: View) -> Tensor:
        heads = view.weights.shape[1]
        # All features in one product, of B H Q·K with B Q·K 3.
        sums = view.weights.reshape(size, heads, length * length) @ features.to(view.weights.dtype)
        asking = words[:, None, None].to(view.weights.dtype)
        received = torch.matmul(asking, view.weights)[:, :, 0]  # B H K
        return torch.cat([sums, received @ tags.to(received.dtype)], -1)

    names = ["mass", "distance", "dependency-alignment", *(f"pos.{tag}" for tag in TAGS)]
    counts = words.sum(1, keepdim=True).expand(-1, len(names))
    return Probe(names, counts, words.new_zeros(size, 0, len(names)), answer, per="mass")


def tagged(passage: Passage) -> Tensor:
    """The part of speech of every word, as 0 and 1: B W TAGS."""
    rows = []
    for number, sentence in enumerate(passage.sentences):
        for index, word in enumerate(sentence.words):
            if word.upos in TAGS:
                rows.append((number, index, TAGS.index(word.upos)))
    out = torch.zeros(*passage.subwords.shape, len(TAGS), device=passage.ids.device)
    return mark_entries(out, rows)


def governed(passage: Passage) -> Tensor:
    """Which pairs of subwords belong to a word and its governor, in either order: B S S."""
    rows = []
    for number, word, governor, _ in dependencies(passage):
        rows.append((number, word, governor))
        rows.append((number, governor, word))
    width = passage.subwords.shape[1]
    pairs = torch.zeros(len(passage.ids), width, width, device=passage.ids.device)
    # Pairs of words, W W; below they become pairs of subwords.
    linked = mark_entries(pairs, rows)
    return passage.membership @ linked @ passage.membership.transpose(1, 2)


def mark_entries(out: Tensor, rows: list[tuple[int, int, int]]) -> Tensor:
    """Set `out` to 1 at every listed index inside it."""
    indices = torch.tensor(rows, dtype=torch.long, device=out.device).view(-1, 3)
    inside = indices[(indices < torch.tensor(out.shape, device=out.device)).all(1)]
    out[tuple(inside.T)] = 1
    return out


def opening(passage: Passage) -> Probe:
    """The mean over sentences of the weights between their first tokens, which `variability` needs.

    opening.q.k = mean over sentences of A_h[q, k], for q and k among the first OPENING tokens, subwords of words.
    """
    pairs = first_tokens(passage).flatten(1)

    def answer(view: View) -> Tensor:
        return first_weights(view).flatten(2) * pairs[:, None]

    names = []
    for query in range(OPENING):
        names += [f"opening.{query}.{key}" for key in range(OPENING)]
    return Probe(names, pairs, pairs.new_zeros(len(pairs), 0, len(names)), answer)


def means(answers: AnswerSums) -> dict[Site, Tensor]:
    """The mean weights H OPENING OPENING of every layer, from the answers to `opening`."""
    counts = torch.from_numpy(answers.array(COUNTS)).sum(0).clamp_min(1)
    means_by_site = {}
    for layer in answers.layers:
        sums = torch.from_numpy(answers.array(layer)).sum(0)
        means_by_site[Site(answers.kind, layer)] = (sums / counts).unflatten(-1, (OPENING, OPENING))
    return means_by_site


def variability(passage: Passage, mean: Mapping[Site, Tensor]) -> Probe:
    """How much attention depends on the content of the sentence: 0 for a head that depends on positions only.

    variability = Σ |A_h[q, k] − mean A_h[q, k]| / 2 D over the first OPENING tokens of each sentence. mean: over
    sentences, by layer, H OPENING OPENING.
    """
    pairs = first_tokens(passage)

    def answer(view: View) -> Tensor:
        assert view.call is not None
        weights = first_weights(view) * pairs[:, None]
        difference = (weights - mean[view.call.site].to(weights)).abs() * pairs[:, None]
        # Two distributions of mass D differ by 2 D at most.
        return torch.stack([2 * weights.sum((-1, -2)), difference.sum((-1, -2))], -1)

    counts = pairs.any(2).sum(1, keepdim=True).float().expand(-1, 2)
    no_rules = pairs.new_zeros(len(pairs), 0, 2)
    names = ["opening mass", "variability"]
    return Probe(names, counts, no_rules, answer, per="opening mass")


def first_tokens(passage: Passage) -> Tensor:
    """Which pairs of the first tokens are subwords of words, the key visible to the query: B OPENING OPENING."""
    missing = max(OPENING - passage.words.shape[1], 0)
    words = torch.nn.functional.pad(passage.words[:, :OPENING].float(), (0, missing))
    both = words[:, :, None] * words[:, None]
    return both.tril() if passage.causal else both


def first_weights(view: View) -> Tensor:
    """The weights between the first tokens, B H OPENING OPENING, padded with 0."""
    weights = view.weights[..., :OPENING, :OPENING]
    missing_keys = OPENING - weights.shape[-1]
    missing_queries = OPENING - weights.shape[-2]
    return torch.nn.functional.pad(weights, (0, missing_keys, 0, missing_queries))
