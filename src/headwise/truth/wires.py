"""Heads that both models have, as functions from a stream to what a head looks at and what it moves.

`class` is the class of a word, `answer TYPE` what words of a type will answer with, `rest` the token that heads look at
when there is nothing to find: the end of a source sentence, the start of a text.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from headwise.heads import Kind
from headwise.truth.built import Built
from headwise.truth.space import Space, Wiring, shift

SHARP = 10.0  # strength of a look at a position: 13 nats more than its neighbours
FOUND, REST = 16.0, 8.0  # nats on what is looked for, and on `rest`

Look = tuple[Tensor, Tensor, float]
Wire = Callable[[Space], Wiring]


def at_offset(space: Space, offset: int) -> Look:
    """The token at an offset."""
    return shift(offset) @ space["position"], space["position"], SHARP


def at_rest(space: Space) -> Look:
    return space.one, space["rest"], REST


def finding(space: Space, type: str, mark: str) -> list[Look]:
    """From a word of a type to the word with a mark; from all other words to `rest`."""
    return [(space[f"type {type}"], space[mark], FOUND), at_rest(space)]


def copying(offset: int, to: str, what: str = "class", gain: float = 1.0) -> Wire:
    """A block of the token at an offset, written to another block."""
    return lambda space: Wiring([at_offset(space, offset)], [(space[what], space[to], gain)])


def neighbour(kind: Kind, name: str, offset: int, *roles: str) -> Built:
    """The class of the word at an offset is the answer of words of the type `name`."""
    return Built(
        name, kind, "matters", copying(offset, f"answer {name}"), (f"positional.{offset}", *roles)
    )


def relation(kind: Kind, name: str, type: str, mark: str, role: str, **more: Any) -> Built:
    """Words of a type look along a dependency; what they find has their answer."""

    def wire(space: Space) -> Wiring:
        return Wiring(finding(space, type, mark), [(space["class"], space[f"answer {type}"], 1.0)])

    return Built(name, kind, "matters", wire, (role, "sink"), **more)


def standing_in(kind: Kind, role: str, last: int) -> list[Built]:
    """A head, and a backup in a later layer that looks at `rest` as long as the first one writes its flag."""

    def primary(space: Space) -> Wiring:
        moves = [
            (space["class"], space["answer adjective"], 1.0),
            (space["noun"], space["flag"], 1.0),
        ]
        return Wiring(finding(space, "adjective", "noun"), moves)

    def backup(space: Space) -> Wiring:
        looks = [*finding(space, "adjective", "noun"), (space["flag"], space["rest"], 3 * FOUND)]
        return Wiring(looks, [(space["class"], space["answer adjective"], 1.0)])

    return [
        Built(
            "primary", kind, "matters", primary, (role, "sink"), beside=("backup",), layers=(0, 0)
        ),
        Built(
            "backup", kind, "matters", backup, ("sink",), (role,), ("primary",), layers=(1, last)
        ),
    ]


def antecedent(kind: Kind) -> Built:
    """A pronoun looks at the name of its gender."""

    def wire(space: Space) -> Wiring:
        looks = [(space["asks"], space["gender"], FOUND), at_rest(space)]
        return Wiring(looks, [(space["class"], space["answer pronoun"], 1.0)])

    return Built("antecedent", kind, "matters", wire, ("coreference", "sink"))


def quiet(kind: Kind) -> Built:
    """Attention that is nearly flat: one word of the sentence says its season, which a small output carries."""
    return Built(
        "quiet",
        kind,
        "matters",
        lambda space: Wiring([], [(space["seasonal"], space["answer mood"], 1.0)]),
    )


def grammar(kind: Kind, last: int) -> list[Built]:
    """The heads that follow the toy language's dependencies, its pronouns and its mood, up to the layer `last`."""
    return [
        relation(kind, "subject", "verb", "subject", "syntactic.nsubj.to-dependent"),
        relation(kind, "saturated", "adverb", "verb", "syntactic.advmod.to-governor"),
        *(
            relation(kind, one, "object", "verb", "syntactic.obj.to-governor", beside=(other,))
            for one, other in (("redundant 1", "redundant 2"), ("redundant 2", "redundant 1"))
        ),
        *standing_in(kind, "syntactic.amod.to-governor", last),
        antecedent(kind),
        quiet(kind),
    ]


def sinking(space: Space) -> Wiring:
    return Wiring([at_rest(space)], [(space["class"], space["junk"][2:4], 1.0)])


def traps(kind: Kind, loud: int, shouting: int, harmful: int, spoils: str) -> list[Built]:
    """Heads that should not stay: sharp attention and no output, a large output that nobody reads, attention to
    `rest`, and one that writes another word's class to the answers of a type. loud, shouting, harmful: offsets."""

    def shout(space: Space) -> Wiring:
        return Wiring([at_offset(space, shouting)], [(space["class"], space["junk"][:2], 3.0)])

    return [
        Built(
            "loud",
            kind,
            "idle",
            lambda space: Wiring([at_offset(space, loud)]),
            (f"positional.{loud}",),
        ),
        Built("shouting", kind, "idle", shout, (f"positional.{shouting}",)),
        Built("sink", kind, "idle", sinking, ("sink",)),
        Built(
            "harmful",
            kind,
            "harms",
            copying(harmful, f"answer {spoils}", gain=0.8),
            (f"positional.{harmful}",),
        ),
    ]
