"""Heads that both models have, as functions from a stream to what a head looks at and what it moves.

`class` is the class of a word, `answer TYPE` what words of a type will answer with, `rest` the token that heads look at
when there is nothing to find: the end of a source sentence, the start of a text.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from headwise.heads import Kind
from headwise.truth.planted import PlantedHead
from headwise.truth.residual_stream import Stream, Wiring, shift

SHARP = 10.0  # strength of a look at a position: 13 nats more than its neighbours
TARGET, REST = 16.0, 8.0  # nats on what is looked for, and on `rest`

Look = tuple[Tensor, Tensor, float]
Wire = Callable[[Stream], Wiring]


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
    return [
        relation(kind, "subject", "verb", "subject", "syntactic.nsubj.to-dependent"),
        relation(kind, "saturated", "adverb", "verb", "syntactic.advmod.to-governor"),
        *(
            relation(kind, one, "object", "verb", "syntactic.obj.to-governor", without=(other,))
            for one, other in (("redundant 1", "redundant 2"), ("redundant 2", "redundant 1"))
        ),
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
