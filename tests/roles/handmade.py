"""Attention made by hand, over sentences whose words are cut into pieces at random, and what tests say of it."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from headwise.data.annotated import Annotated
from headwise.data.subwords import Aligned
from headwise.heads import Kind
from headwise.model import Model
from headwise.roles.observation import RoleOptions
from headwise.roles.passage import Passage, View
from headwise.roles.probe import AnswerSums, Probe
from headwise.roles.role_tests import Roles, RoleTexts, find_roles

END = 1


def in_subwords(
    sentences: Iterable[Annotated], seed: int = 0, most: int = 3, start: bool = False
) -> list[Aligned]:
    """Every word as one to `most` pieces with ids of their own, an end token behind, perhaps a start token in front."""
    draw = random.Random(seed)
    ids: dict[tuple[str, int], int] = {}
    out = []
    for sentence in sentences:
        cut = [
            (index, piece)
            for index in range(len(sentence.words))
            for piece in range(draw.randint(1, most))
        ]
        pieces = [ids.setdefault((sentence.words[i].form, piece), len(ids) + 3) for i, piece in cut]
        words = [index for index, _ in cut]
        front = ([2], [-1]) if start else ([], [])
        out.append(Aligned([*front[0], *pieces, END], [*front[1], *words, -1], sentence))
    return out


def random_weights(
    passage: Passage, heads: int, seed: int = 0, keys: Passage | None = None
) -> Tensor:
    """Softmax of random scores over what is there (and in sight): B H Q K, zero in rows of padding."""
    keys = keys or passage
    generator = torch.Generator().manual_seed(seed)
    scores = 2 * torch.randn(
        len(passage.ids), heads, passage.ids.shape[1], keys.ids.shape[1], generator=generator
    )
    hidden = ~keys.mask[:, None, None]
    if passage.causal:
        hidden = hidden | ~torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
    return scores.masked_fill(hidden, -1e9).softmax(-1) * passage.mask[:, None, :, None]


def looking(passage: Passage, where: Callable[[int, int], int | None], noise: Tensor) -> Tensor:
    """One head B Q K that gives 0.9 of its weight to the token `where(row, query)`, the rest, and where there is none
    all, to the weights of `noise`."""
    out = noise.clone()
    for row, query in passage.words.nonzero().tolist():
        key = where(row, query)
        if key is not None:
            out[row, query] *= 0.1
            out[row, query, key] += 0.9
    return out


def first_subword(passage: Passage, row: int, word: int) -> int:
    return int((passage.word_of[row] == word).nonzero()[0, 0])


def values(
    probe: Probe, weights: Tensor, passage: Passage, keys: Passage | None = None
) -> dict[str, Tensor]:
    """Σ answers / Σ counts of every measure, by head."""
    answers = probe.answer(View(weights, passage, keys or passage))
    assert answers.shape == (len(passage.ids), weights.shape[1], len(probe.measures))
    assert probe.counts.shape == (len(passage.ids), len(probe.measures))
    below = probe.counts.sum(0)[None]
    if probe.per:
        below = answers[..., [list(probe.measures).index(probe.per)]].sum(0)
    shares = answers.sum(0) / below
    return {name: shares[:, column] for column, name in enumerate(probe.measures)}


def baselines(probe: Probe) -> dict[str, float]:
    """The share of the best rule, by measure."""
    best = probe.baseline.sum(0).amax(0) / probe.counts.sum(0)
    return dict(zip(probe.measures, best.tolist(), strict=True))


def answered(
    passage: Passage, probes: Sequence[Probe], weights: Tensor, kind: Kind = "encoder-self"
) -> AnswerSums:
    """What one layer of attention answers."""
    out = AnswerSums(kind)
    view = View(weights, passage, passage)
    out.add(probes, {0: [probe.answer(view) for probe in probes]})
    return out


def found_in(
    hf: PreTrainedModel,
    tokenizer: PreTrainedTokenizerFast,
    treebank: Iterable[Annotated],
    options: RoleOptions | None = None,
    **texts: Any,
) -> Roles:
    """The roles of a model."""
    model = Model(hf, tokenizer, "tiny")
    return find_roles(model, RoleTexts(treebank, **texts), options=options or RoleOptions())
