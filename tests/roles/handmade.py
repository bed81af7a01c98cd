"""Attention made by hand, over sentences whose words are cut into pieces at random, and what tests say of it."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from headwise.core.heads import Kind
from headwise.data.annotated import Annotated
from headwise.data.subwords import Aligned
from headwise.models.model import Model
from headwise.roles.observation import RoleOptions
from headwise.roles.passage import Passage, View
from headwise.roles.probe import AnswerSums, Probe
from headwise.roles.role_data import RoleTexts
from headwise.roles.role_tests import Roles, find_roles

END = 1


def in_subwords(
    sentences: Iterable[Annotated], seed: int = 0, most: int = 3, start: bool = False
) -> list[Aligned]:
    """Every word as one to `most` pieces with ids of their own, an end token behind, perhaps a start token in front."""
    draw = random.Random(seed)
    ids: dict[tuple[str, int], int] = {}
    out = []
    for sentence in sentences:
        pieces, words = ([2], [-1]) if start else ([], [])
        for index, word in enumerate(sentence.words):
            for piece in range(draw.randint(1, most)):
                pieces.append(ids.setdefault((word.form, piece), len(ids) + 3))
                words.append(index)
        out.append(Aligned([*pieces, END], [*words, -1], sentence))
    return out


def random_weights(
    passage: Passage, heads: int, seed: int = 0, keys: Passage | None = None
) -> Tensor:
    """Softmax of random scores over what is there (and in sight): B H Q K, zero in rows of padding."""
    keys = keys or passage
    generator = torch.Generator().manual_seed(seed)
    shape = (len(passage.ids), heads, passage.ids.shape[1], keys.ids.shape[1])
    scores = 2 * torch.randn(shape, generator=generator)
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
    model: Model, treebank: Iterable[Annotated], options: RoleOptions | None = None, **texts: Any
) -> Roles:
    """The roles of a model."""
    return find_roles(model, RoleTexts(treebank, **texts), options=options or RoleOptions())


def between_tokens(model: Model, sentence: Annotated, layer: int, head: int) -> Tensor:
    """Attention between the tokens of a sentence, from transformers' own eager encoder."""
    hf: Any = model.hf
    before = hf.config._attn_implementation
    hf.set_attn_implementation("eager")
    ids = torch.tensor([model.tokenizer(sentence.text)["input_ids"]])
    with torch.no_grad():
        weights: Tensor = hf.get_encoder()(ids, output_attentions=True).attentions[layer][0, head]
    hf.set_attn_implementation(before)
    return weights


def between_words(model: Model, sentence: Annotated, layer: int, head: int) -> Tensor:
    """The same between words and, in the last column, to no word, by loops: of a tokenizer that puts an end behind."""
    weights = between_tokens(model, sentence, layer, head)
    columns, at = list[list[int]](), 0
    for word in sentence.words:
        size = len(model.tokenizer(word.form)["input_ids"]) - 1
        columns.append(list(range(at, at + size)))
        at += size
    columns.append(list(range(at, len(weights))))
    rows = [[weights[q][:, k].sum(1).mean() for k in columns] for q in columns[:-1]]
    return torch.tensor(rows)


def word_tokenizer(words: Sequence[str], marks: bool = False) -> PreTrainedTokenizerFast:
    """A token a word, with an end behind; the first three are padding, the end and what is unknown. marks: whether
    punctuation marks are words of their own."""
    raw = Tokenizer(models.WordLevel({word: n for n, word in enumerate(words)}, unk_token=words[2]))
    parts = [pre_tokenizers.WhitespaceSplit(), *[pre_tokenizers.Punctuation()] * marks]
    raw.pre_tokenizer = pre_tokenizers.Sequence(parts)
    end = [(words[1], END)]
    raw.post_processor = processors.TemplateProcessing(f"$A {words[1]}", special_tokens=end)
    names = dict(zip(("pad_token", "eos_token", "unk_token"), words, strict=False))
    return PreTrainedTokenizerFast(tokenizer_object=raw, **names)
