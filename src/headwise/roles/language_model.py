"""Roles in language models: previous token, duplicate token, induction, copying, attention sinks, delimiters.

Induction needs text in which only repetition can be predicted: probes of repeated random tokens (Olsson et al. 2022,
"Data Collection").
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor, nn

from headwise.attention import Discovery, projection
from headwise.errors import HeadwiseError
from headwise.heads import Site
from headwise.roles.passage import Passage, View
from headwise.roles.positional import neighbour, shifted
from headwise.roles.question import Question, over
from headwise.roles.role import role

LENGTH, REPEATS = 25, 4  # Olsson et al. 2022
PROBES = 20  # in each half
PREFIX = {
    "induction": 1,
    "duplicate-token": 0,
    "induction.-1": -1,
}  # offset from an earlier copy of the token


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
def sink(queries: Passage, other: Passage | None = None) -> Question:
    """How much attention goes to tokens outside words: special ones, or the first word where there is no start token.

    sink = mean over the tokens q of words of Σ A_h[q, k] over such k. Baseline: uniform weights. other: where the keys
    are in cross attention.
    """
    keys = other or queries
    rest = keys.there & ~keys.words
    asked = queries.words & rest.any(1, keepdim=True)
    if queries is keys and queries.causal:
        marked, places = rest.cumsum(1), keys.there.cumsum(1)
    else:
        marked, places = (marks.sum(1, keepdim=True) for marks in (rest, keys.there))
    chance = ((marked / places.clamp_min(1)) * asked).sum(1)

    def answer(view: View) -> Tensor:
        weights = torch.matmul(view.weights, rest[:, None, :, None].to(view.weights.dtype))[..., 0]
        return over(asked, weights)[..., None]

    return Question(["sink"], asked.sum(1)[:, None].float(), chance[:, None, None], answer)


@role(
    "previous-token",
    data=("treebank",),
    kinds=("decoder-self",),
    threshold=0.5,
    expected={"language model": ("previous-token",)},
    baseline="even weight",
    untrained="the baseline",
    short="previous",
    caption="mean of A_h[q, q − 1] on text",
    source="Olsson et al. 2022",
    order=5,
    row=9,
    example=1,
)
def previous(passage: Passage) -> Question:
    """previous-token = mean of A_h[q, q − 1] over tokens q with a token before them (Olsson et al. 2022; real text)."""
    asked = passage.words & shifted(passage.words, -1)
    chance = (asked / passage.there.cumsum(1).clamp_min(1)).sum(1)

    def answer(view: View) -> Tensor:
        return over(asked, neighbour(view.weights, -1))[..., None]

    return Question(
        ["previous-token"], asked.sum(1)[:, None].float(), chance[:, None, None], answer
    )


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
def delimiter(passage: Passage) -> Question:
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
    asked = passage.words & ~rest & (before > 0)
    chance = (asked * before / passage.there.cumsum(1).clamp_min(1)).sum(1)

    def answer(view: View) -> Tensor:
        weights = torch.matmul(view.weights, rest[:, None, :, None].to(view.weights.dtype))[..., 0]
        return over(asked, weights)[..., None]

    return Question(["delimiter"], asked.sum(1)[:, None].float(), chance[:, None, None], answer)


def probes(
    tokens: Sequence[int],
    start: int | None,
    longest: int,
    seed: int,
    counts: Mapping[int, int] | None = None,
) -> Iterator[tuple[int, Passage]]:
    """For each half, PROBES sequences of LENGTH random tokens repeated REPEATS times, after a start token if any.

    tokens: the ids to draw from; with counts (their frequencies in training text), without the most and the least
    frequent tenth. Sequences are shorter for a model with few positions.
    """
    if counts:
        order = sorted((each for each in tokens if counts.get(each)), key=lambda each: counts[each])
        tokens = order[len(order) // 10 : len(order) - len(order) // 10]
    length = min(LENGTH, (longest - 1) // REPEATS, len(tokens))
    if length < 2:
        raise HeadwiseError(
            f"Sequences of random tokens, repeated {REPEATS} times, do not fit: the model has {longest} positions "
            f"and there are {len(tokens)} tokens to draw from."
        )
    random = torch.Generator().manual_seed(seed)
    for half in (0, 1):
        drawn = torch.stack(
            [torch.randperm(len(tokens), generator=random)[:length] for _ in range(PROBES)]
        )
        ids = torch.tensor(tokens)[drawn].repeat(1, REPEATS)
        word_of = torch.arange(ids.shape[1]).repeat(PROBES, 1)
        if start is not None:
            ids = torch.nn.functional.pad(ids, (1, 0), value=start)
            word_of = torch.nn.functional.pad(word_of, (1, 0), value=-1)
        yield half, Passage(ids, torch.ones_like(ids, dtype=torch.bool), word_of, causal=True)


@role(
    "induction",
    data=("repeats",),
    kinds=("decoder-self",),
    threshold=0.5,
    expected={"language model": ("induction",)},
    baseline="even weight",
    untrained="the baseline",
    caption="mean weight on what followed the same token before",
    source="Olsson et al. 2022",
    order=7,
    row=20,
    example=None,
)
@role(
    "duplicate-token",
    data=("repeats",),
    kinds=("decoder-self",),
    threshold=0.5,
    expected={"language model": ("duplicate-token",)},
    baseline="even weight",
    untrained="the baseline",
    short="duplicate",
    caption="mean weight on the same token before",
    source="Wang et al. 2023",
    order=6,
    row=20,
    example=None,
)
@role(
    "induction.-1",
    data=("repeats",),
    kinds=("decoder-self",),
    baseline="even weight",
    untrained="the baseline",
    display="induction −1",
    caption="mean weight on what preceded the same token before, the other reading of Olsson's words",
    source="Olsson et al. 2022",
    row=20,
)
def repetition(passage: Passage) -> Question:
    """Where the attention of a repeated token goes, on probes.

    For a token q with earlier copies at the positions p: induction = mean over q of Σ_p A_h[q, p + 1] (the token after
    the copy: "prefix matching"), duplicate-token = Σ_p A_h[q, p], induction.-1 = Σ_p A_h[q, p − 1] (the other reading
    of Olsson's words). First copies are no queries. Baseline: uniform weights on visible tokens.
    """
    ids, words = passage.ids, passage.words
    length = ids.shape[1]
    same = (ids[:, :, None] == ids[:, None]) & words[:, :, None] & words[:, None]
    same = same & torch.ones_like(same).tril(-1)
    asked = same.any(2)
    looked = torch.stack([moved(same, offset) for offset in PREFIX.values()], -1)
    looked = looked & words[:, None, :, None] & torch.ones_like(same).tril()[..., None]
    chance = (looked.sum(2) / passage.there.cumsum(1).clamp_min(1)[..., None]).sum(1)
    features = looked.flatten(1, 2)

    def answer(view: View) -> Tensor:
        return view.weights.reshape(*view.weights.shape[:2], length * length) @ features.to(
            view.weights.dtype
        )

    counts = asked.sum(1, keepdim=True).expand(-1, len(PREFIX)).float()
    return Question(list(PREFIX), counts, chance[:, None], answer)


def moved(marks: Tensor, offset: int) -> Tensor:
    """Marks B Q K with every key moved on by `offset`."""
    rolled = marks.roll(offset, 2)
    if offset:
        rolled[..., 0 if offset > 0 else -1] = False
    return rolled


@role(
    "copying",
    data=("repeats",),
    kinds=("decoder-self",),
    takes=("outputs", "embeddings"),
    needs=("outputs", "embeddings"),
    baseline="",
    untrained="unknown",
    caption="rise of the attended token through the head's own path to the logits, −1 … 1",
    source="Olsson et al. 2022",
    row=21,
)
def copying(passage: Passage, outputs: Mapping[Site, Tensor], embeddings: Tensor) -> Question:
    """How much a head raises the logit of the token that it attends to, on the direct path from its output.

    For each token q of a probe, ℓ = the logits of the probe's different tokens from the head's output alone, less the
    mean over the vocabulary, without the final norm; copying = mean over q of
    2 · ReLU(ℓ[token of argmax_k A_h[q, k]]) / Σ ReLU(ℓ) − 1: 1 when only this logit is raised, −1 when it is not
    (Olsson et al. 2022). outputs: the output projection by layer, H D M; embeddings: the output embedding, V M.
    """
    words, number = passage.words, passage.ids.shape[1] // REPEATS
    tokens = passage.ids[:, -number:]
    raised_by = embeddings[tokens] - embeddings.mean(0)  # B n M
    which = (passage.ids[:, :, None] == tokens[:, None]).float()  # B S n

    def answer(view: View) -> Tensor:
        assert view.call is not None
        if not view.weights.shape[1]:
            return view.weights.new_zeros(len(words), 0, 1)
        states = torch.einsum("bqhd,hdm->bhqm", view.call.output, outputs[view.call.site])
        raised = torch.relu(torch.einsum("bhqm,bnm->bhqn", states, raised_by))
        at = view.pointed[..., None].expand(*view.pointed.shape, number)
        own = (raised * which[:, None].expand(-1, raised.shape[1], -1, -1).gather(2, at)).sum(-1)
        return over(words, 2 * own / raised.sum(-1).clamp_min(1e-12) - 1)[..., None]

    return Question(
        ["copying"],
        words.sum(1)[:, None].float(),
        words.new_zeros(len(words), 0, 1).float(),
        answer,
    )


def output_weights(model: nn.Module, found: Discovery) -> dict[Site, Tensor] | None:
    """`projection.output_weights`, or None where heads go through something else first."""
    try:
        return projection.output_weights(model, found)
    except HeadwiseError:
        return None
