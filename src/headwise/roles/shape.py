"""How attention is distributed over a sentence: attention sinks, delimiters, and measures of Vig & Belinkov 2019
(section 4), which define no roles.

"Null" attention (to special tokens, or to the first word where there is no start token) is left out, and the rest is
the denominator: D = Σ A_h[q, k] over the subwords q and k of words.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from headwise.heads import Site
from headwise.roles.passage import Passage, View
from headwise.roles.probe import COUNTS, AnswerSums, Probe, sum_over_queries
from headwise.roles.role import role
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


@role(
    "sink",
    data=("treebank", "pairs"),
    kinds=("encoder-self", "decoder-self", "cross"),
    threshold=0.5,
    expected={"language model": ("sink",)},
    baseline="even weight",
    untrained="the baseline",
    caption="mean weight on tokens that are no words",
    source="Clark et al. 2019, 3.2",
    order=8,
    row=7,
    example=None,
)
def sink(passage: Passage, source: Passage | None = None) -> Probe:
    """How much attention goes to tokens outside words: special ones, or the first word where there is no start token.

    sink = mean over the tokens q of words of Σ A_h[q, k] over such k. Baseline: uniform weights. source: where the
    keys are in cross attention.
    """
    keys = source or passage
    rest = keys.there & ~keys.words
    queries = passage.words & rest.any(1, keepdim=True)
    if passage is keys and passage.causal:
        visible = rest.cumsum(1)
        places = keys.there.cumsum(1)
    else:
        visible = rest.sum(1, keepdim=True)
        places = keys.there.sum(1, keepdim=True)
    chance = ((visible / places.clamp_min(1)) * queries).sum(1)

    def answer(view: View) -> Tensor:
        weights = torch.matmul(view.weights, rest[:, None, :, None].to(view.weights.dtype))[..., 0]
        return sum_over_queries(queries, weights)[..., None]

    return Probe(["sink"], queries.sum(1)[:, None].float(), chance[:, None, None], answer)


@role(
    "delimiter",
    data=("treebank",),
    kinds=("decoder-self",),
    threshold=0.5,
    expected={"language model": ("delimiter",)},
    baseline="even weight",
    untrained="the baseline",
    caption="mean weight on punctuation, of tokens behind some",
    source="Clark et al. 2019, 3.2",
    order=9,
    row=10,
    example=None,
)
def delimiter(passage: Passage) -> Probe:
    """How much attention goes to punctuation (Clark et al. 2019, section 3.2).

    delimiter = mean over the tokens q of words behind a punctuation mark of Σ A_h[q, k] over the tokens k of such
    marks. Baseline: uniform weights.
    """
    marks = torch.zeros_like(passage.subwords)
    for row, sentence in enumerate(passage.sentences):
        places = [
            place
            for place, word in enumerate(sentence.words)
            if word.upos == "PUNCT" and place < marks.shape[1]
        ]
        marks[row, places] = 1
    rest = (passage.membership @ marks[..., None])[..., 0] > 0  # B S
    before = rest.cumsum(1)
    queries = passage.words & ~rest & (before > 0)
    chance = (queries * before / passage.there.cumsum(1).clamp_min(1)).sum(1)

    def answer(view: View) -> Tensor:
        weights = torch.matmul(view.weights, rest[:, None, :, None].to(view.weights.dtype))[..., 0]
        return sum_over_queries(queries, weights)[..., None]

    return Probe(["delimiter"], queries.sum(1)[:, None].float(), chance[:, None, None], answer)


@role(
    "distance",
    data=("treebank",),
    baseline="",
    untrained="the mean distance of two subwords",
    caption="mean distance of subwords, weighted by attention",
    source="Vig & Belinkov 2019, eq. 6",
    row=6,
)
@role(
    "dependency-alignment",
    data=("treebank",),
    baseline="",
    untrained="the share of such pairs",
    caption="share of attention between words of which one governs the other",
    source="Vig & Belinkov 2019, eq. 4",
    row=6,
)
@role(
    "pos",
    data=("treebank",),
    baseline="",
    untrained="the share of such words",
    caption="share of attention that goes to words of a part of speech, as `pos.TAG`",
    source="Vig & Belinkov 2019, eq. 3",
    row=6,
)
def shape(passage: Passage) -> Probe:
    """Where attention goes, as shares of D.

    distance = Σ A_h[q, k] · |q − k| / D, in subwords; dependency-alignment = Σ A_h[q, k] · 1[one of the words of q and
    k governs the other] / D; pos.TAG = Σ A_h[q, k] · 1[the word of k is a TAG] / D. Subwords have the tag and the
    governor of their word.
    """
    words = passage.words.float()
    size, length = words.shape
    both = words[:, :, None] * words[:, None]
    place = torch.arange(length, device=words.device)
    far = both * (place[:, None] - place).abs()
    features = torch.stack([both, far, both * governed(passage)], -1).view(size, length * length, 3)
    tags = passage.membership @ tagged(passage)

    def answer(view: View) -> Tensor:
        heads = view.weights.shape[1]
        sums = view.weights.reshape(size, heads, length * length) @ features.to(view.weights.dtype)
        received = torch.matmul(words[:, None, None].to(view.weights.dtype), view.weights)[
            :, :, 0
        ]  # B H K
        return torch.cat([sums, received @ tags.to(received.dtype)], -1)

    names = ["mass", "distance", "dependency-alignment", *(f"pos.{tag}" for tag in TAGS)]
    counts = words.sum(1, keepdim=True).expand(-1, len(names))
    return Probe(names, counts, words.new_zeros(size, 0, len(names)), answer, per="mass")


def tagged(passage: Passage) -> Tensor:
    """The part of speech of every word, as 0 and 1: B W TAGS."""
    rows = [
        (number, index, TAGS.index(word.upos))
        for number, sentence in enumerate(passage.sentences)
        for index, word in enumerate(sentence.words)
        if word.upos in TAGS
    ]
    out = torch.zeros(*passage.subwords.shape, len(TAGS), device=passage.ids.device)
    return mark_places(out, rows)


def governed(passage: Passage) -> Tensor:
    """Which pairs of subwords belong to a word and its governor, in either order: B S S."""
    rows = [
        (number, *pair)
        for number, word, governor, _ in dependencies(passage)
        for pair in ((word, governor), (governor, word))
    ]
    width = passage.subwords.shape[1]
    linked = mark_places(
        torch.zeros(len(passage.ids), width, width, device=passage.ids.device), rows
    )
    return passage.membership @ linked @ passage.membership.transpose(1, 2)


def mark_places(out: Tensor, rows: list[tuple[int, int, int]]) -> Tensor:
    """Set `out` to 1 at every listed place inside it."""
    places = torch.tensor(rows, dtype=torch.long, device=out.device).view(-1, 3)
    places = places[(places < torch.tensor(out.shape, device=out.device)).all(1)]
    out[tuple(places.T)] = 1
    return out


def opening(passage: Passage) -> Probe:
    """The mean over sentences of the weights between their first tokens, which `variability` needs.

    opening.q.k = mean over sentences of A_h[q, k], for q and k among the first OPENING tokens, subwords of words.
    """
    there = first_tokens(passage).flatten(1)

    def answer(view: View) -> Tensor:
        return first_weights(view).flatten(2) * there[:, None]

    names = [f"opening.{q}.{k}" for q in range(OPENING) for k in range(OPENING)]
    return Probe(names, there, there.new_zeros(len(there), 0, len(names)), answer)


def means(answers: AnswerSums) -> dict[Site, Tensor]:
    """The mean weights H OPENING OPENING of every layer, from the answers to `opening`."""
    counts = torch.from_numpy(answers.whole(COUNTS)).sum(0).clamp_min(1)
    sums = {layer: torch.from_numpy(answers.whole(layer)).sum(0) for layer in answers.layers}
    return {
        Site(answers.kind, layer): (total / counts).unflatten(-1, (OPENING, OPENING))
        for layer, total in sums.items()
    }


@role(
    "variability",
    data=("treebank",),
    takes=("mean",),
    baseline="",
    untrained="near 0",
    caption="how much the first 10 tokens' weights differ between sentences",
    source="Vig & Belinkov 2019, eq. 5",
    row=8,
)
def variability(passage: Passage, mean: Mapping[Site, Tensor]) -> Probe:
    """How much attention depends on the content of the sentence: 0 for a head that depends on positions only.

    variability = Σ |A_h[q, k] − mean A_h[q, k]| / 2 D over the first OPENING tokens of each sentence. mean: over
    sentences, by layer, H OPENING OPENING.
    """
    there = first_tokens(passage)

    def answer(view: View) -> Tensor:
        assert view.call is not None
        weights = first_weights(view) * there[:, None]
        away = (weights - mean[view.call.site].to(weights)).abs() * there[:, None]
        return torch.stack([2 * weights.sum((-1, -2)), away.sum((-1, -2))], -1)

    counts = there.any(2).sum(1, keepdim=True).float().expand(-1, 2)
    return Probe(
        ["opening mass", "variability"],
        counts,
        there.new_zeros(len(there), 0, 2),
        answer,
        per="opening mass",
    )


def first_tokens(passage: Passage) -> Tensor:
    """Which pairs of the first tokens are subwords of words, the key visible to the query: B OPENING OPENING."""
    words = torch.nn.functional.pad(
        passage.words[:, :OPENING].float(), (0, max(OPENING - passage.words.shape[1], 0))
    )
    both = words[:, :, None] * words[:, None]
    return both.tril() if passage.causal else both


def first_weights(view: View) -> Tensor:
    """The weights between the first tokens, B H OPENING OPENING, padded with 0."""
    some = view.weights[..., :OPENING, :OPENING]
    return torch.nn.functional.pad(some, (0, OPENING - some.shape[-1], 0, OPENING - some.shape[-2]))
