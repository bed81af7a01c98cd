"""Heads whose weights are made by hand, and what is true of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from headwise.data.text import ParallelText, Text
from headwise.data.treebank import Treebank
from headwise.heads import Head, HeadMap, Kind, Site
from headwise.model import Model
from headwise.truth.residual_stream import USUAL_WORDS, Stream, Weights, Wiring

DISTRACTOR = "distractor"  # the name of every head that is not planted
Truth = Literal["matters", "idle", "harms"]


@dataclass(frozen=True)
class PlantedHead:
    """A head that is written by hand. wiring: what it looks at and what it moves, in a stream.

    truth: it matters when there are heads without which its removal raises the loss (`without`: those; none for most),
    harms when its removal lowers it, else it is idle. roles: the measures of `hw.roles` that are true of it; also: that
    may be true as well. layers: where it may stand, the first and the last.
    """

    name: str
    kind: Kind
    truth: Truth
    wiring: Callable[[Stream], Wiring]
    roles: tuple[str, ...] = ()
    also: tuple[str, ...] = ()
    without: tuple[str, ...] = ()
    layers: tuple[int, int] = (0, 99)


@dataclass(frozen=True)
class PlantedModel:
    """A model with planted heads, and the texts that it is scored and tested on.

    heads: those that are planted; all other heads are distractors, which are idle and have no role.
    text: what heads are scored on. pairs: for the tests of cross attention, with a file of reference links.
    training: what rare tokens are counted in. top: how many of the most frequent tokens are never rare.
    """

    model: Model
    heads: Mapping[Head, PlantedHead]
    text: ParallelText | Text
    treebank: Treebank
    pairs: ParallelText | None = None
    links: Path | None = None
    training: Text | None = None
    top: int = 0

    def truth(self, head: Head) -> Truth:
        return self.heads[head].truth if head in self.heads else "idle"

    def name(self, head: Head) -> str:
        return self.heads[head].name if head in self.heads else DISTRACTOR


def place_heads(
    heads: HeadMap, planted: Sequence[PlantedHead], generator: torch.Generator
) -> dict[Head, PlantedHead]:
    """A random place for every head, in its kind and layers; those with the least choice first."""
    free = {}
    for site in heads.sites:
        free[site] = torch.randperm(heads.count(site), generator=generator).tolist()

    places: dict[Head, PlantedHead] = {}
    for head in sorted(planted, key=lambda head: head.layers[1] - head.layers[0]):
        first, last = head.layers
        depth = len(heads.query[head.kind])
        sites = [Site(head.kind, layer) for layer in range(depth) if first <= layer <= last]
        vacancies = torch.tensor([float(len(free[site])) for site in sites])
        site = sites[int(vacancies.multinomial(1, generator=generator))]
        places[Head(*site, free[site].pop())] = head
    return places


def distractor(stream: Stream, size: int) -> Weights:
    """Random weights: attention between flat and sharp, an output of random size where nobody reads.

    A thousandth of it goes everywhere.
    """
    generator = stream.generator
    exponents = torch.empty(2).uniform_(-1, 1, generator=generator)
    sharp, loud = 10**exponents * torch.tensor([1.0, 0.05])

    def draw(rows: Tensor) -> Tensor:
        coefficients = USUAL_WORDS**-0.5 * torch.randn(size, len(rows), generator=generator)
        weights: Tensor = coefficients @ rows
        return weights

    output = draw(stream["junk"]) * loud + 1e-3 * draw(stream.free) * loud
    return Weights(draw(stream.free) * sharp, draw(stream.free), draw(stream.free), output.T)


def all_weights(
    stream: Stream, heads: HeadMap, planted: Mapping[Head, PlantedHead], size: int
) -> Iterator[tuple[Head, Weights]]:
    """The weights of all heads."""
    for head in heads:
        if head in planted:
            yield head, planted[head].wiring(stream).weights(size, stream)
        else:
            yield head, distractor(stream, size)
