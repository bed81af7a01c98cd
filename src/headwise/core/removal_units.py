"""Heads that are removed together: the unit of removal (docs/methods/removal.md, "What is removed at once").

Attention shares each key/value head among equally many query heads. Where a layer keeps different numbers of them,
every query head needs a copy of its key/value head, and the key/value cache grows. Units prevent that:

    head      one query head
    balanced  one query head of every key/value group of a layer: the groups stay equally large
    group     all query heads of one key/value head: the cache shrinks with them
    uniform   the balanced units at one place of all layers of a kind: the layers stay equally large

In a layer where every query head has its own key/value head, `balanced` and `group` are single heads.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import get_args

from headwise.core.errors import HeadwiseError
from headwise.core.heads import Head, HeadMap, Kind, Site, describe
from headwise.core.layout import HeadMask
from headwise.core.options import Greedy, Keep, Pruning, Unit, several

UNITS: tuple[Unit, ...] = get_args(Unit)
Together = tuple[Head, ...]  # heads that are removed together


def usual_unit(heads: HeadMap) -> Unit:
    """`balanced` where query heads share key/value heads, else `head`."""
    return "balanced" if heads.query != heads.key_value else "head"


def removal_units(
    heads: HeadMap,
    unit: Unit | None = None,
    left: HeadMask | None = None,
    values: Mapping[Head, float] | None = None,
) -> list[Together]:
    """The heads of a map in units, in the map's order; by default in `usual_unit`.

    left: only heads of this mask, which obeys the unit. values: heads of different groups and layers go together by
    their rank in these, the least first; without values by their number. Raises HeadwiseError for `uniform` where the
    layers of a kind have different numbers of heads.
    """
    unit = unit or usual_unit(heads)
    all_units: list[Together] = []
    if unit == "uniform":
        for kind in heads.kinds:
            all_units += uniform_units(heads, kind, left, values)
    else:
        for site in heads.sites:
            all_units += layer_units(heads, unit, site, left, values)
    return all_units


def layer_units(
    heads: HeadMap,
    unit: Unit,
    site: Site,
    left: HeadMask | None,
    values: Mapping[Head, float] | None,
) -> list[Together]:
    """The units of one layer."""
    count = heads.count(site)
    # A layer without heads has no key/value head.
    shared = count // max(heads.key_value[site.kind][site.layer], 1)  # query heads of a group
    numbers = range(count) if left is None else left.of(site)
    if unit == "head" or shared <= 1:
        return [(Head(*site, head),) for head in numbers]

    groups: list[list[Head]] = [[] for _ in range(count // shared)]
    for number in numbers:
        groups[number // shared].append(Head(*site, number))
    groups = [group for group in groups if group]  # a unit 'group' removes whole ones
    if unit == "group":
        return [tuple(group) for group in groups]
    if values:
        for group in groups:
            group.sort(key=values.__getitem__)
    # One head of each group together: the groups keep one size, and stay shared.
    return list(zip(*groups, strict=True))


def uniform_units(
    heads: HeadMap, kind: Kind, left: HeadMask | None, values: Mapping[Head, float] | None
) -> list[Together]:
    """The units of all layers of a kind, each of as many heads of every layer."""
    counts = {*zip(heads.query[kind], heads.key_value[kind], strict=True)}
    if len(counts) > 1:
        raise HeadwiseError(
            f"The {kind} layers cannot keep equal numbers of heads (unit 'uniform'), because they have different ones "
            f"now ({describe(heads.only([kind]))}): choose another unit."
        )
    layers: list[list[Together]] = []
    for layer in range(len(heads.query[kind])):
        balanced = layer_units(heads, "balanced", Site(kind, layer), left, values)
        if values:
            balanced.sort(key=lambda together: total(values, together))
        layers.append(balanced)

    across_layers: list[Together] = []
    for units_of_all_layers in zip(*layers, strict=True):
        # The n-th unit of every layer goes together.
        across_layers.append(tuple(chain.from_iterable(units_of_all_layers)))
    return across_layers


def total(values: Mapping[Head, float], together: Together) -> float:
    """The value of a unit: the sum of its heads'."""
    return sum(values[head] for head in together)


def count_heads(some_units: Iterable[Together]) -> int:
    """How many heads these units have."""
    return sum(len(together) for together in some_units)


def reachable(sizes: Iterable[int]) -> int:
    """The sums that some of these sizes can have, as a set of bits."""
    # Bit n is set where n can be reached: one more size shifts all sums. With one unit of heads in each layer, a set
    # of numbers would be slow for the thousands of heads of large models.
    sums = 1
    for size in sizes:
        sums |= sums << size
    return sums


def nearest(sizes: Sequence[int], count: int) -> tuple[int | None, int | None]:
    """The largest reachable sum up to `count`, 0 left out, and the smallest from there on."""
    sums = reachable(sizes)
    up_to_count = (2 << count) - 1  # bits 0 … count
    below = highest_bit(sums & up_to_count & ~1)
    from_count = sums >> count
    lowest = from_count & -from_count  # the lowest bit alone
    above = count + highest_bit(lowest) if from_count else None
    return (below if below > 0 else None), above


def highest_bit(bits: int) -> int:
    """The number of the highest bit that is set, from 0 on; −1 if there is none."""
    return bits.bit_length() - 1


def first_units(ordered: Sequence[Together], count: int) -> list[Together]:
    """Units of `count` heads together, or of the largest reachable number below: each one, from the first on, that
    leaves this number reachable."""
    # By position: the sums that the units from there on can have, as in `reachable`.
    sums_from = [1]
    for together in reversed(ordered):
        sums_from.append(sums_from[-1] | sums_from[-1] << len(together))
    sums_from.reverse()

    up_to_count = (2 << count) - 1
    # The largest number that units can make, up to the count.
    missing = highest_bit(sums_from[0] & up_to_count)
    chosen = []
    for position, together in enumerate(ordered):
        rest = missing - len(together)
        if rest >= 0 and sums_from[position + 1] >> rest & 1:
            chosen.append(together)
            missing = rest
    return chosen


def sizes(parts: Sequence[Together], step: float, least: int = 1) -> list[int]:
    """How many heads of these units are left after each step, down to `least`; the full model is not among them. Where a
    step would split a unit, the next number that whole units give."""
    each = [len(together) for together in parts]
    heads = sum(each)
    # The last step ends at `least`, whatever the share of a step.
    removed = {heads - least}
    for number in range(1, math.ceil(1 / step) + 1):
        # 10 · 0.1 · 3 is a little more than 3: without rounding, one head too many.
        removed.add(math.ceil(round(heads * step * number, 9)))

    left: list[int] = []
    for count in sorted(removed):
        if not 0 < count <= heads - least:
            continue
        _, reached = nearest(each, heads - count)
        if reached is not None and reached < heads and reached not in left:
            left.append(reached)
    return left


def target_counts(
    heads: HeadMap, keep: Keep, least: int, unit: Unit | None = None
) -> dict[tuple[Kind, ...], int]:
    """The target count, in heads, by the kinds that share it.

    keep: a number in total, a share of all, or a number for each kind. Raises HeadwiseError below `least`, above the heads
    that there are, and for numbers that whole units cannot give.
    """
    groups = counts_by_kinds(heads, keep, unit)
    for kinds, count in groups.items():
        some = heads.only(kinds)
        if not least <= count <= some.total:
            raise HeadwiseError(
                f"{count} heads cannot be kept: there are {some.total} heads to prune ({describe(some)}), those of "
                f"--kinds. Give a number from {least} to {some.total}, or other kinds."
            )
        near = nearest([len(together) for together in removal_units(some, unit)], count)
        if count and count not in near:
            possible = " and ".join(str(number) for number in near if number is not None)
            raise HeadwiseError(
                f"{count} heads cannot be kept: the unit '{unit or usual_unit(heads)}' takes several heads at once "
                f"({describe(some)}). The nearest numbers are {possible}."
            )
    return groups


def counts_by_kinds(
    heads: HeadMap, keep: Keep, unit: Unit | None = None
) -> dict[tuple[Kind, ...], int]:
    """`keep` by the kinds that share a number: all of them, or each alone. A share becomes the nearest number that whole
    units give, at least 1."""
    if isinstance(keep, Mapping):
        return {(kind,): keep[kind] for kind in heads.kinds}
    if isinstance(keep, int):
        return {heads.kinds: keep}
    wanted = keep * heads.total
    near = nearest(
        [len(together) for together in removal_units(heads, unit)], max(1, round(wanted))
    )
    # The nearer of the number below and the one above.
    return {heads.kinds: min((count for count in near if count), key=lambda n: abs(n - wanted))}


def refuse_counts(heads: HeadMap, options: Pruning) -> None:
    """Raise ValueError for more heads than there are, and for numbers that the unit cannot give."""
    # ValueError, as validators of options raise it: a plan then says where in it the number stands.
    some = heads.only(options.kinds or heads.kinds)
    try:
        removal_units(some, options.unit)  # raises where the layers cannot form them
        for keep in several(options.keep):
            target_counts(some, keep, 1, options.unit)
    except HeadwiseError as error:
        raise ValueError(str(error)) from None


def left_by_step(heads: HeadMap, options: Greedy) -> list[int]:
    """How many heads of the options' kinds every step of greedy removal leaves, falling; where all are to stay, all."""
    some = heads.only(options.kinds or heads.kinds)
    least = min(kept_counts(some, options), default=1)
    return sizes(removal_units(some, options.unit), options.step, least) or [some.total]


def kept_counts(heads: HeadMap, options: Greedy) -> list[int]:
    """How many heads, of those that may go, each of the options' target counts keeps; falling, and each once."""
    counts = [
        sum(counts_by_kinds(heads, keep, options.unit).values()) for keep in several(options.keep)
    ]
    return sorted({*counts}, reverse=True)


def divide_among_heads(
    values: Mapping[Head, float], parts: Iterable[Together]
) -> dict[Head, float]:
    """The value of each unit's first head, divided among its heads: so every unit has one random number, where a sum of
    random numbers would rank units by their sizes."""
    shares: dict[Head, float] = {}
    for together in parts:
        share = values[together[0]] / len(together)
        for head in together:
            shares[head] = share
    return shares
