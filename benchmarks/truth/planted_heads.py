"""Heads whose weights are written by hand, what is true of them, and those that several models have.

A wiring is a function from a stream to what a head looks at and what it moves. `class` is the class of a word,
`answer TYPE` what words of a type will answer with, `rest` the token that heads look at when there is nothing to find:
the end of a source sentence, the start of a text.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from headwise.core.heads import Head, HeadMap, Kind, Site
from headwise.data.text import ParallelText, Text
from headwise.data.treebank import Treebank
from headwise.models.model import Model

from .residual_stream import USUAL_WORDS, Stream, Weights, Wiring, shift

DISTRACTOR = "distractor"  # the name of every head that is not planted
Truth = Literal["matters", "idle", "harms"]
SHARP = 10.0  # strength of a look at a position: 13 nats more than its neighbours
TARGET = 16.0  # nats on what is looked for
REST = 8.0  # nats on `rest`
Look = tuple[Tensor, Tensor, float]
Wire = Callable[[Stream], Wiring]


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


def at_offset(stream: Stream, offset: int) -> Look:
    """The token at an offset."""
    return shift(offset) @ stream["position"], stream["position"], SHARP


def at_rest(stream: Stream) -> Look:
    return stream.one, stream["rest"], REST


def at_mark(stream: Stream, type: str, mark: str) -> list[Look]:
    """From a word of a type to the word with a mark; from all other words to `rest`."""
    return [(stream[f"type {type}"], stream[mark], TARGET), at_rest(stream)]


def copy_at_offset(offset: int, to: str, what: str = "class", gain: float = 1.0) -> Wire:
    """A block of the token at an offset, written to another block."""
    return lambda stream: Wiring([at_offset(stream, offset)], [(stream[what], stream[to], gain)])


def neighbour_head(kind: Kind, name: str, offset: int, *roles: str) -> PlantedHead:
    """The class of the word at an offset is the answer of words of the type `name`."""
    return PlantedHead(
        name,
        kind,
        "matters",
        copy_at_offset(offset, f"answer {name}"),
        (f"positional.{offset}", *roles),
    )


def relation(kind: Kind, name: str, type: str, mark: str, role: str, **more: Any) -> PlantedHead:
    """Words of a type look along a dependency; what they find has their answer."""

    def wiring(stream: Stream) -> Wiring:
        return Wiring(
            at_mark(stream, type, mark), [(stream["class"], stream[f"answer {type}"], 1.0)]
        )

    return PlantedHead(name, kind, "matters", wiring, (role, "sink"), **more)


def with_backup(kind: Kind, role: str, last: int) -> list[PlantedHead]:
    """A head, and a backup in a later layer that looks at `rest` as long as the first one writes its flag."""

    def primary(stream: Stream) -> Wiring:
        moves = [
            (stream["class"], stream["answer adjective"], 1.0),
            (stream["noun"], stream["flag"], 1.0),
        ]
        return Wiring(at_mark(stream, "adjective", "noun"), moves)

    def backup(stream: Stream) -> Wiring:
        looks = [
            *at_mark(stream, "adjective", "noun"),
            (stream["flag"], stream["rest"], 3 * TARGET),
        ]
        return Wiring(looks, [(stream["class"], stream["answer adjective"], 1.0)])

    return [
        PlantedHead(
            "primary", kind, "matters", primary, (role, "sink"), without=("backup",), layers=(0, 0)
        ),
        PlantedHead(
            "backup", kind, "matters", backup, ("sink",), (role,), ("primary",), layers=(1, last)
        ),
    ]


def antecedent(kind: Kind) -> PlantedHead:
    """A pronoun looks at the name of its gender."""

    def wiring(stream: Stream) -> Wiring:
        looks = [(stream["asks"], stream["gender"], TARGET), at_rest(stream)]
        return Wiring(looks, [(stream["class"], stream["answer pronoun"], 1.0)])

    return PlantedHead("antecedent", kind, "matters", wiring, ("coreference", "sink"))


def quiet(kind: Kind) -> PlantedHead:
    """Attention that is nearly flat: one word of the sentence says its season, which a small output carries."""
    return PlantedHead(
        "quiet",
        kind,
        "matters",
        lambda stream: Wiring([], [(stream["seasonal"], stream["answer mood"], 1.0)]),
    )


def grammar(kind: Kind, last: int) -> list[PlantedHead]:
    """The heads that follow the toy language's dependencies, its pronouns and its mood, up to the layer `last`."""
    to_verb = "syntactic.obj.to-governor"
    return [
        relation(kind, "subject", "verb", "subject", "syntactic.nsubj.to-dependent"),
        relation(kind, "saturated", "adverb", "verb", "syntactic.advmod.to-governor"),
        relation(kind, "redundant 1", "object", "verb", to_verb, without=("redundant 2",)),
        relation(kind, "redundant 2", "object", "verb", to_verb, without=("redundant 1",)),
        *with_backup(kind, "syntactic.amod.to-governor", last),
        antecedent(kind),
        quiet(kind),
    ]


def sinking(stream: Stream) -> Wiring:
    return Wiring([at_rest(stream)], [(stream["class"], stream["junk"][2:4], 1.0)])


def traps(kind: Kind, loud: int, unread: int, harmful: int, spoils: str) -> list[PlantedHead]:
    """Heads that should not stay: sharp attention and no output, a large output that nobody reads, attention to
    `rest`, and one that writes another word's class to the answers of a type. loud, unread, harmful: offsets."""

    def wiring(stream: Stream) -> Wiring:
        return Wiring([at_offset(stream, unread)], [(stream["class"], stream["junk"][:2], 3.0)])

    return [
        PlantedHead(
            "loud",
            kind,
            "idle",
            lambda stream: Wiring([at_offset(stream, loud)]),
            (f"positional.{loud}",),
        ),
        PlantedHead("unread", kind, "idle", wiring, (f"positional.{unread}",)),
        PlantedHead("sink", kind, "idle", sinking, ("sink",)),
        PlantedHead(
            "harmful",
            kind,
            "harms",
            copy_at_offset(harmful, f"answer {spoils}", gain=0.8),
            (f"positional.{harmful}",),
        ),
    ]
