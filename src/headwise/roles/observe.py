"""One pass over text, in which every test reads the same attention weights; nothing of size query × key is kept."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn

from headwise.attention import AttentionCall, Discovery, capture, evaluating
from headwise.data.annotated import Annotated
from headwise.data.subwords import Aligned, Coverage, align
from headwise.heads import Kind
from headwise.roles.ledger import Ledger
from headwise.roles.passage import Passage, View
from headwise.roles.question import Question

TOKENS = 4096  # positions in a batch
WINDOW = 1024  # sentences that are sorted by length together

Tests = Mapping[Kind, Sequence[Callable[..., Question]]]
Half = int  # 0: where roles are found, 1: where they are confirmed


@dataclass
class Batch:
    """What goes into the model, and for every kind of attention that is asked about its query and key side (one
    passage where both are the same)."""

    half: Half
    inputs: dict[str, Tensor]
    sides: Mapping[Kind, tuple[Passage, ...]]


def observe(
    model: nn.Module, found: Discovery, batches: Iterable[Batch], tests: Tests,
    progress: Callable[[int], None] = lambda sentences: None,
) -> dict[tuple[Kind, Half], Ledger]:  # fmt: skip
    """Ask every test about every layer of its kind, in one pass; what they answer, by kind and half of the text.

    progress: called after every batch with its number of sentences.
    """
    ledgers: dict[tuple[Kind, Half], Ledger] = {}
    now: dict[Kind, tuple[tuple[Passage, ...], list[Question]]] = {}
    answers: dict[Kind, dict[int, list[Tensor]]] = {}

    def watch(call: AttentionCall) -> None:
        if call.site.kind in now:
            sides, questions = now[call.site.kind]
            assert call.weights is not None
            view = View(call.weights, sides[0], sides[-1], call)
            answers[call.site.kind][call.site.layer] = [question.answer(view) for question in questions]

    with evaluating(model), torch.no_grad(), capture(model, found, watch=watch, weights=True):
        for batch in batches:
            for kind, sides in batch.sides.items():
                now[kind] = sides, [test(*sides) for test in tests[kind]]
                answers[kind] = {}
            forward(model, batch.inputs)
            for kind in batch.sides:
                ledger = ledgers.setdefault((kind, batch.half), Ledger(kind))
                ledger.add(now[kind][1], answers[kind])
            progress(len(batch.inputs["input_ids"]))
    return ledgers


def forward(model: nn.Module, inputs: Mapping[str, Tensor]) -> None:
    """Run the model; of an encoder-decoder without target text, only its encoder."""
    hf: Any = model
    if hf.config.is_encoder_decoder and "decoder_input_ids" not in inputs:
        hf.get_encoder()(**inputs)
    else:
        hf(**inputs, **({"use_cache": False} if "use_cache" in hf.config.to_dict() else {}))


def half_of(sentence: Annotated) -> Half:
    """Documents go to one half or the other by their names, so that no document is in both; sentences without one by
    theirs, or by their text.

    Not by CRC32, as the splits of the embedded corpus do: all its dev sentences would be in one half.
    """
    name = sentence.document or sentence.id or sentence.text
    return hashlib.sha256(name.encode()).digest()[0] & 1


def aligned_batches(
    sentences: Iterable[Annotated], tokenizer: Any, max_length: int, coverage: Coverage,
    half: Callable[[Annotated], Half] = half_of,
) -> Iterator[tuple[Half, list[Aligned]]]:  # fmt: skip
    """Sentences in pieces, in batches of one half each and of nearly one length; `coverage` counts what is left out."""
    waiting: tuple[list[Aligned], list[Aligned]] = ([], [])
    stream = iter(sentences)
    while some := list(islice(stream, 256)):
        for aligned in align(tokenizer, some, max_length, coverage):
            waiting[half(aligned.sentence)].append(aligned)
        for which, rows in enumerate(waiting):
            if len(rows) >= WINDOW:
                yield from ((which, batch) for batch in cut(rows))
                rows.clear()
    for which, rows in enumerate(waiting):
        yield from ((which, batch) for batch in cut(rows))


def cut(rows: Iterable[Aligned]) -> Iterator[list[Aligned]]:
    """Batches of at most TOKENS positions, shortest sentences first."""
    batch: list[Aligned] = []
    for row in sorted(rows, key=lambda row: len(row.ids)):
        if batch and len(row.ids) * (len(batch) + 1) > TOKENS:
            yield batch
            batch = []
        batch.append(row)
    if batch:
        yield batch
