"""One pass over text, in which all tests use the same attention weights; nothing of size query × key is kept."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, TypeVar

import torch
from torch import Tensor
from transformers import PreTrainedModel

from headwise.attention import AttentionCall, Discovery, capture, evaluating
from headwise.attention.discover import output_of
from headwise.data.annotated import Annotated
from headwise.data.subwords import Aligned, Coverage, align
from headwise.heads import Kind
from headwise.roles.answers import Answers
from headwise.roles.passage import Passage, View
from headwise.roles.question import Question

TOKENS = 4096  # positions in a batch
WINDOW = 1024  # sentences that are sorted by length together

Test = Callable[..., Any]  # from a kind's passages to a question
Tests = Mapping[Kind, Sequence[Test]]
Half = int  # 0: where roles are found, 1: where they are confirmed


@dataclass
class Batch:
    """The inputs of the model, and by kind of attention the passages of queries and keys (one where both are equal)."""

    half: Half
    inputs: dict[str, Tensor]
    sides: Mapping[Kind, tuple[Passage, ...]]


def observe(
    model: PreTrainedModel,
    found: Discovery,
    batches: Iterable[Batch],
    tests: Tests,
    progress: Callable[[int], None] = lambda sentences: None,
) -> dict[tuple[Kind, Half], Answers]:
    """Apply every test to every layer of its kind, in one pass; the answers by kind and half of the text.

    progress: called after every batch with its number of sentences.
    """
    gathered: dict[tuple[Kind, Half], Answers] = {}
    now: dict[Kind, tuple[tuple[Passage, ...], list[Question]]] = {}
    answers: dict[Kind, dict[int, list[Tensor]]] = {}

    def watch(call: AttentionCall) -> None:
        if call.site.kind in now:
            sides, questions = now[call.site.kind]
            assert call.weights is not None
            view = View(call.weights, sides[0], sides[-1], call)
            answers[call.site.kind][call.site.layer] = [
                question.answer(view) for question in questions
            ]

    with evaluating(model), torch.no_grad(), capture(model, found, watch=watch, weights=True):
        for batch in batches:
            for kind, sides in batch.sides.items():
                now[kind] = sides, [test(*sides) for test in tests[kind]]
                answers[kind] = {}
            forward(model, batch.inputs)
            for kind in batch.sides:
                gathered.setdefault((kind, batch.half), Answers(kind)).add(
                    now[kind][1], answers[kind]
                )
            progress(len(batch.inputs["input_ids"]))
    return gathered


def forward(model: PreTrainedModel, inputs: Mapping[str, Tensor]) -> None:
    """Run the model; only the encoder of an encoder-decoder without target text."""
    if model.config.is_encoder_decoder and "decoder_input_ids" not in inputs:
        model.get_encoder()(**inputs)
    else:
        output_of(model, inputs)


def half_of(sentence: Annotated) -> Half:
    """The half of a sentence: by its document's name, so that no document is in both; otherwise by its id or text.

    Not by CRC32, which the embedded corpus is split by: its dev sentences would all be in one half.
    """
    name = sentence.document or sentence.id or sentence.text
    return hashlib.sha256(name.encode()).digest()[0] & 1


def aligned_batches(
    sentences: Iterable[Annotated],
    tokenizer: Any,
    max_length: int,
    coverage: Coverage,
    half: Callable[[Annotated], Half] = half_of,
) -> Iterator[tuple[Half, list[Aligned]]]:
    """Batches of sentences in subwords, of one half and similar length each; `coverage` counts what is left out."""
    waiting: tuple[list[Aligned], list[Aligned]] = ([], [])
    stream = iter(sentences)
    while some := list(islice(stream, 256)):
        for aligned in align(tokenizer, some, max_length, coverage):
            waiting[half(aligned.sentence)].append(aligned)
        for which, rows in enumerate(waiting):
            if len(rows) >= WINDOW:
                yield from ((which, batch) for batch in batched(rows, lambda row: len(row.ids)))
                rows.clear()
    for which, rows in enumerate(waiting):
        yield from ((which, batch) for batch in batched(rows, lambda row: len(row.ids)))


Row = TypeVar("Row", Aligned, tuple[Aligned, Aligned])


def batched(rows: Iterable[Row], length: Callable[[Row], int]) -> Iterator[list[Row]]:
    """Batches of at most TOKENS positions (one row at least), shortest first."""
    batch: list[Row] = []
    for row in sorted(rows, key=length):
        if batch and length(row) * (len(batch) + 1) > TOKENS:
            yield batch
            batch = []
        batch.append(row)
    if batch:
        yield batch
