"""Retrieval heads copy an answer from far back in the text (Wu et al. 2024, "Retrieval head mechanistically explains
long-context factuality")."""

from __future__ import annotations

import random
from typing import Any

import torch
from torch import Tensor

from headwise.data.annotated import Annotated
from headwise.errors import HeadwiseError
from headwise.roles.alignment import split_into_words
from headwise.roles.generated import Generated, with_mentions
from headwise.roles.names import NAMES, PLACES
from headwise.roles.passage import Passage, View
from headwise.roles.probe import Probe, sum_over_queries
from headwise.roles.role import role

TEXTS = 60
HAY = (3, 12)  # sentences around the needle
UNKNOWN = 0.1  # share of subwords
COLOURS = ("red", "green", "blue", "white", "black", "yellow", "brown", "grey")
THINGS = (
    "apple",
    "box",
    "cup",
    "door",
    "fish",
    "hat",
    "key",
    "lamp",
    "map",
    "shoe",
    "stone",
    "tree",
)
FILLING = (
    "The weather was fine that day.",
    "Nobody knew what to say.",
    "There was a lot of work to do.",
    "The train came late again.",
    "Some people like music very much.",
    "It rained during the night.",
    "The water in the river was cold.",
    "Many children play outside in summer.",
    "The shop opens early in the morning.",
    "We had bread and soup for dinner.",
    "The road goes up to the hills.",
    "A small dog slept near the fire.",
)


@role(
    "retrieval",
    data=("texts",),
    kinds=("decoder-self",),
    takes=("longest", "seed"),
    margin=0.10,  # 0.1 in Wu et al. 2024, without a baseline
    expected={"language model": ("retrieval",)},
    baseline="best fixed offset, or random",
    caption="share of the tokens of an answer where the head attends most to that token in the needle",
    source="Wu et al. 2024",
    order=13,
    row=31,
    example=None,
)
def retrieval_texts(tokenizer: Any, longest: int, seed: int) -> Generated:
    """A needle in sentences that have nothing to do with it, a question, and the answer. longest: the most subwords.
    Raises HeadwiseError where not even a short text fits, and where the tokenizer does not know the words."""
    for share in (1.0, 0.5, 0.25):
        draw = random.Random(seed)
        texts = [hidden(draw, number, share) for number in range(TEXTS)]
        tokens = [tokenizer(text.text, verbose=False)["input_ids"] for text in texts]
        if sum(ids.count(tokenizer.unk_token_id) for ids in tokens) > UNKNOWN * sum(
            map(len, tokens)
        ):
            raise HeadwiseError(
                "Retrieval heads were not tested: the tokenizer does not know the words of the texts."
            )
        size = max(map(len, tokens))
        if size <= longest:
            return Generated("needle", texts, retrieval)
    raise HeadwiseError(
        f"Retrieval heads were not tested: a question and its answer take {size} subwords, the model reads {longest}."
    )


def hidden(draw: random.Random, number: int, share: float) -> Annotated:
    """A text with the answer with_mentions in the needle ("needle") and at the end ("answer"). share: of the hay."""
    hay = draw.sample(FILLING, round(share * draw.randint(*HAY)))
    depth = draw.randint(0, len(hay))
    owner = draw.choice(NAMES)
    colour = draw.choice(COLOURS)
    thing = draw.choice(THINGS)
    place = draw.choice(PLACES)
    fact = f"The secret of {owner} is"
    answer = f"a {colour} {thing} in the {place}"
    before = [*hay[:depth], fact]
    needle = [answer + ".", *hay[depth:], f"What is the secret of {owner}?", fact]

    length = len(split_into_words(answer, "").words)
    spans = []
    for name, parts in (("needle", before), ("answer", before + needle)):
        start = len(split_into_words(" ".join(parts), "").words)
        spans.append((name, start, start + length))
    plain = split_into_words(" ".join([*before, *needle, answer]), str(number))
    return with_mentions(plain, spans)


def retrieval(passage: Passage) -> Probe:
    """How often a head looks at the token of the needle that comes next.

    retrieval = share of the answer's tokens t where j = argmax_k A_h[t − 1, k] is in the needle and token j is token t.
    Wu et al. let the model write and count the tokens that it copies; here the answer is given, so that a model which
    does not answer has a score, too. Baseline: a random visible token. Induction heads score high: the needle's first
    words are in the question.
    """
    ids, words = passage.ids, passage.words
    inside = {name: spanned(passage, name) for name in ("needle", "answer")}
    written = inside["answer"][:, 1:]
    same = (
        (ids[:, 1:, None] == ids[:, None]) & inside["needle"][:, None] & words[:, None]
    )  # B t−1 k
    queries = torch.nn.functional.pad(written & words[:, :-1] & same.any(2), (0, 1))
    right = torch.nn.functional.pad(same, (0, 0, 0, 1))
    chance = (queries * right.sum(2) / words.cumsum(1).clamp_min(1)).sum(1)
    hits = right & queries[..., None]
    offsets = [hits.diagonal(-back, 1, 2).sum(1) for back in range(1, ids.shape[1])]
    rules = torch.stack([chance, *offsets], 1)[..., None]

    def answer(view: View) -> Tensor:
        every = right[:, None].expand(-1, view.weights.shape[1], -1, -1).float()
        return sum_over_queries(queries, every.gather(3, view.attended[..., None])[..., 0])[
            ..., None
        ]

    return Probe(["retrieval"], queries.sum(1)[:, None].float(), rules, answer)


def spanned(passage: Passage, name: str) -> Tensor:
    """Which tokens are in the mention of a name: B S."""
    inside = torch.zeros_like(passage.words)
    for row, text in enumerate(passage.sentences):
        span = next(mention for mention in text.mentions if mention.entity == name)
        inside[row] = (passage.word_of[row] >= span.start) & (passage.word_of[row] < span.end)
    return inside
