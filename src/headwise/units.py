"""Which heads go together: the unit of removal (docs/methods/removal.md, "What goes at once").

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
from typing import get_args

from headwise.errors import HeadwiseError
from headwise.heads import Head, HeadMap, HeadMask, Kind, Site, describe
from headwise.options import Greedy, Keep, Pruning, Unit, several

UNITS: tuple[Unit, ...] = get_args(Unit)
Together = tuple[Head, ...]  # heads that go at once


def usual_unit(heads: HeadMap) -> Unit:
    """`balanced` where query heads share key/value heads, else `head`."""
    return "balanced" if heads.query != heads.key_value else "head"


def units(
    heads: HeadMap,
    unit: Unit | None = None,
    left: HeadMask | None = None,
    values: Mapping[Head, float] | None = None,
) -> list[Together]:
    """The heads of a map in units, in the map's order; none: `usual_unit`.

    left: only heads of this mask, which obeys the unit. values: heads of different groups and layers go together by
    their rank in these, the least first; without them by their number. Raises HeadwiseError for `uniform` where the
    layers of a kind have different numbers of heads.
    """
    unit = unit or usual_unit(heads)
    if unit == "uniform":
        return [
            together
            for kind in heads.kinds
            for together in uniform_units(heads, kind, left, values)
        ]
    return [
        together for site in heads.sites for together in of_layer(heads, unit, site, left, values)
    ]


def of_layer(
    heads: HeadMap,
    unit: Unit,
    site: Site,
    left: HeadMask | None,
    values: Mapping[Head, float] | None,
) -> list[Together]:
    """The units of one layer."""
    count = heads.count(site)
    shared = count // max(heads.key_value[site.kind][site.layer], 1)  # query heads of a group
    numbers = range(count) if left is None else left.of(site)
    if unit == "head" or shared <= 1:
        return [(Head(*site, head),) for head in numbers]
    groups = [
        [Head(*site, head) for head in numbers if head // shared == group]
        for group in range(count // shared)
    ]
    if unit == "group":
        return [tuple(group) for group in groups if group]
    groups = [sorted(group, key=values.__getitem__) if values else group for group in groups]
    return list(zip(*(group for group in groups if group), strict=True))


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
    layers = [
        of_layer(heads, "balanced", Site(kind, layer), left, values)
        for layer in range(len(heads.query[kind]))
    ]
    if values:
        layers = [sorted(layer, key=lambda together: total(values, together)) for layer in layers]
    return [
        tuple(head for together in row for head in together) for row in zip(*layers, strict=True)
    ]


def total(values: Mapping[Head, float], together: Together) -> float:
    """The value of a unit: the sum of its heads'."""
    return sum(values[head] for head in together)


def reachable(sizes: Iterable[int]) -> int:
    """The sums that some of these sizes can have, as a set of bits."""
    sums = 1
    for size in sizes:
        sums |= sums << size
    return sums


def nearest(sizes: Sequence[int], count: int) -> tuple[int | None, int | None]:
    """The largest reachable sum up to `count`, 0 left out, and the smallest from there on."""
    sums = reachable(sizes)
    below = (sums & ((2 << count) - 1) & ~1).bit_length() - 1
    above = sums >> count
    return (below if below > 0 else None), (
        count + (above & -above).bit_length() - 1 if above else None
    )


def first_units(ordered: Sequence[Together], count: int) -> list[Together]:
    """Units of `count` heads together, or of the largest reachable number below: each one, from the first on, that
    leaves this number reachable."""
    later = [1]
    for together in reversed(ordered):
        later.append(later[-1] | later[-1] << len(together))
    missing = (later[-1] & ((2 << count) - 1)).bit_length() - 1
    chosen = []
    for place, together in enumerate(ordered):
        if missing >= len(together) and later[-2 - place] >> (missing - len(together)) & 1:
            chosen.append(together)
            missing -= len(together)
    return chosen


def sizes(parts: Sequence[Together], step: float, least: int = 1) -> list[int]:
    """How many heads of these units are left after each step, down to `least`; without the full model. Where that
    would split a unit, the next number that whole units give."""
    each = [len(together) for together in parts]
    heads = sum(each)
    removed = {math.ceil(round(heads * step * i, 9)) for i in range(1, math.ceil(1 / step) + 1)} | {
        heads - least
    }
    left = [
        nearest(each, heads - count)[1] for count in sorted(removed) if 0 < count <= heads - least
    ]
    return [count for count in dict.fromkeys(left) if count is not None and count < heads]


def target_counts(
    heads: HeadMap, keep: Keep, least: int, unit: Unit | None = None
) -> dict[tuple[Kind, ...], int]:
    """The target count, in heads, by the kinds that share it.

    keep: a number in total, or one for each kind. Raises HeadwiseError below `least`, above the heads that there are,
    and for numbers that whole units cannot give.
    """
    groups: dict[tuple[Kind, ...], int] = (
        {heads.kinds: keep}
        if isinstance(keep, int)
        else {(kind,): keep[kind] for kind in heads.kinds}
    )
    for kinds, count in groups.items():
        some = heads.only(kinds)
        if not least <= count <= some.total:
            raise HeadwiseError(
                f"{count} heads cannot be kept: there are {some.total} heads to prune ({describe(some)}). "
                f"Give a number from {least} to {some.total}."
            )
        near = nearest([len(together) for together in units(some, unit)], count)
        if count and count not in near:
            raise HeadwiseError(
                f"{count} heads cannot be kept: the unit '{unit or usual_unit(heads)}' takes several heads at once "
                f"({describe(some)}). The nearest numbers are {' and '.join(str(n) for n in near if n is not None)}."
            )
    return groups


def refuse_counts(heads: HeadMap, options: Pruning) -> None:
    """Raise ValueError for more heads than there are, and for numbers that the unit cannot give."""
    some = heads.only(options.kinds or heads.kinds)
    try:
        units(some, options.unit)  # which some layers cannot form
        for keep in several(options.keep):
            target_counts(some, keep, 1, options.unit)
    except HeadwiseError as error:
        raise ValueError(str(error)) from None


def left_by_step(heads: HeadMap, options: Greedy) -> list[int]:
    """How many heads of the options' kinds every step of greedy removal leaves, falling; where all are to stay, all."""
    least = 1
    for keep in several(options.keep):
        least = keep if isinstance(keep, int) else sum(keep.values())
    some = heads.only(options.kinds or heads.kinds)
    return sizes(units(some, options.unit), options.step, least) or [some.total]


def divide_among_heads(
    values: Mapping[Head, float], parts: Iterable[Together]
) -> dict[Head, float]:
    """The values of units' first heads, divided among their heads: so random numbers rank units, not pairs of heads."""
    return {head: values[together[0]] / len(together) for together in parts for head in together}
