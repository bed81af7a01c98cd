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
from headwise.truth.space import USUAL_WORDS, Space, Weights, Wiring

DISTRACTOR = "distractor"  # the name of every head that is not built
Truth = Literal["matters", "idle", "harms"]


@dataclass(frozen=True)
class Built:
    """A head. wire: its weights, from the stream.

    truth: it matters when there are heads without which its removal raises the loss (`beside`: those; none for most),
    harms when its removal lowers it, else it is idle. roles: the measures of `hw.roles` that are true of it; also: that
    may be found as well. layers: where it may stand, the first and the last.
    """

    name: str
    kind: Kind
    truth: Truth
    wire: Callable[[Space], Wiring]
    roles: tuple[str, ...] = ()
    also: tuple[str, ...] = ()
    beside: tuple[str, ...] = ()
    layers: tuple[int, int] = (0, 99)


@dataclass(frozen=True)
class Known:
    """A model whose heads are known, with the texts that they are scored and tested on.

    built: by head; all other heads are distractors, which are idle and have no role. text: what heads are scored on.
    pairs: for the tests of cross attention, with a file of reference links. training: what rare tokens are counted in.
    top: how many of the most frequent tokens are never rare.
    """

    model: Model
    built: Mapping[Head, Built]
    text: ParallelText | Text
    treebank: Treebank
    pairs: ParallelText | None = None
    links: Path | None = None
    training: Text | None = None
    top: int = 0

    def truth(self, head: Head) -> Truth:
        return self.built[head].truth if head in self.built else "idle"


def placed(heads: HeadMap, built: Sequence[Built], generator: torch.Generator) -> dict[Head, Built]:
    """A random place for every head, in its kind and layers; those with the least choice first."""
    free = {
        site: torch.randperm(heads.count(site), generator=generator).tolist()
        for site in heads.sites
    }
    found: dict[Head, Built] = {}
    for head in sorted(built, key=lambda one: one.layers[1] - one.layers[0]):
        depth = len(heads.query[head.kind])
        sites = [
            Site(head.kind, layer)
            for layer in range(depth)
            if head.layers[0] <= layer <= head.layers[1]
        ]
        room = torch.tensor([float(len(free[site])) for site in sites])
        site = sites[int(room.multinomial(1, generator=generator))]
        found[Head(*site, free[site].pop())] = head
    return found


def distractor(space: Space, size: int) -> Weights:
    """Random weights: attention between flat and sharp, an output of random size where nobody reads.

    A thousandth of it goes everywhere.
    """
    generator = space.generator
    sharp, loud = 10 ** torch.empty(2).uniform_(-1, 1, generator=generator) * torch.tensor(
        [1.0, 0.05]
    )
    usual = USUAL_WORDS**-0.5

    def drawn(rows: Tensor) -> Tensor:
        made: Tensor = usual * torch.randn(size, len(rows), generator=generator) @ rows
        return made

    output = drawn(space["junk"]) * loud + 1e-3 * drawn(space.free) * loud
    return Weights(drawn(space.free) * sharp, drawn(space.free), drawn(space.free), output.T)


def drawn(
    space: Space, heads: HeadMap, built: Mapping[Head, Built], size: int
) -> Iterator[tuple[Head, Weights]]:
    """The weights of all heads."""
    for head in heads:
        yield (
            head,
            built[head].wire(space).weights(size, space)
            if head in built
            else distractor(space, size),
        )
