"""Greedy removal of heads in the order of a score, a tenth of them at a time, without training (Michel et al. 2019,
section 4.2). A score is a measure, or one of two baselines: random numbers, and the norm of the weights.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from torch import nn

from headwise.core.errors import HeadwiseError, few_names
from headwise.core.heads import Head, HeadMap, Kind, Site
from headwise.core.layout import HeadMask
from headwise.core.measured import is_within
from headwise.core.options import REPAIR, TEXTLESS_ORDERS, Greedy, Keep, Unit, several
from headwise.core.progress import OnProgress, silent
from headwise.core.removal_units import (
    Together,
    count_heads,
    counts_by_kinds,
    divide_among_heads,
    first_units,
    removal_units,
    sizes,
    total,
)
from headwise.importance.measures import facts
from headwise.importance.passes import importance_values
from headwise.models.attention.removal import layer_of
from headwise.models.model import Model
from headwise.models.tasks import AnyText
from headwise.models.tasks.batches import Batches
from headwise.pruning.repair import Repairs

RANKED = 2000  # sentences that heads are ranked on, at most
Score = Callable[[HeadMask], Mapping[Head, float]]


def greedy(
    heads: HeadMap,
    score: Score,
    kinds: Sequence[Kind],
    step: float = 0.1,
    once: bool = True,
    keep: Keep = 1,
    unit: Unit | None = None,
) -> list[list[Together]]:
    """The units of heads that each step removes, the least important first, down to `keep` heads of `kinds`.

    score: the importance of heads in the model with only the heads of a mask; low ones go first. It is called once, on
    the full model, or again after every step. With n heads, ceil(n·i·step) are removed after step i, as in the paper's
    program, and n − keep at the end; of equal heads the first goes. keep: a number in total, or one for each kind, at
    which it loses no more heads. unit: the heads that are removed together; its importance is the sum over its heads,
    and heads of different groups and layers go together by their rank. With units a few heads more may be left than
    these numbers say. Raises HeadwiseError for a score that lacks a head or is not a number, and for a step outside
    (0, 1].
    """
    if not 0 < step <= 1:
        raise HeadwiseError(
            f"Heads cannot be removed in steps of {step}: give a share above 0 and up to 1."
        )
    chosen = heads.only(kinds)
    # By kinds that share a number: how many heads must stay.
    floors = counts_by_kinds(chosen, keep, unit)
    mask = HeadMask.full(heads)
    steps: list[list[Together]] = []
    left = removal_units(chosen, unit)
    # `size`: how many heads are left after this step.
    for size in sizes(left, step, sum(floors.values())):
        if not once or not steps:
            # Units are formed again: heads of different groups belong together by their present rank.
            values = score(mask)
            refuse_holes(values, [head for head in chosen if head in mask.kept])
            left = sorted(removal_units(chosen, unit, mask, values), key=partial(total, values))

        # A kind must not fall below its floor, even where its heads are the least important.
        may_go: set[Together] = set()
        for own, floor in floors.items():
            of_kinds = [together for together in left if together[0].kind in own]
            may_go.update(first_units(of_kinds, count_heads(of_kinds) - floor))
        in_order = [together for together in left if together in may_go]
        removed = first_units(in_order, count_heads(left) - size)

        mask = mask.without(head for together in removed for head in together)
        steps.append(removed)
        left = [together for together in left if together not in removed]
    return steps


def mask_without(heads: HeadMap, order: Iterable[Together], removed: int) -> HeadMask:
    """The mask without the first units of an order of removal: the fewest with at least `removed` heads."""
    gone: list[Head] = []
    for together in order:
        if len(gone) >= removed:
            break
        gone += together
    return HeadMask.full(heads).without(gone)


def next_size(lost: Mapping[int, float], order: Iterable[Together], limit: float) -> int | None:
    """How many heads to remove next to find where an order of removal passes the limit: in the middle between the largest
    number within it and the next one beyond. None where no unit lies between them, or none is beyond.

    lost: the loss of quality by the numbers of heads that were removed so far, 0 of them too.
    """
    # The largest that is known to be allowed, and the next one above it, which is not.
    within = max((removed for removed in lost if is_within(lost[removed], limit)), default=None)
    beyond = min(
        (removed for removed in lost if within is not None and removed > within), default=None
    )
    if within is None or beyond is None:
        return None
    between = []
    removed = 0
    for together in order:
        removed += len(together)
        if within < removed < beyond:
            between.append(removed)
    return between[len(between) // 2] if between else None


def refuse_holes(values: Mapping[Head, float], heads: Sequence[Head]) -> None:
    """Raise HeadwiseError for a score without a number for each of the heads."""
    holes = [str(head) for head in heads if not math.isfinite(values.get(head, math.nan))]
    if holes:
        raise HeadwiseError(
            f"Heads cannot be removed in the order of this score: it is not a number for {len(holes)} of {len(heads)} "
            f"({few_names(holes)}). Score all heads that may be removed."
        )


def random_scores(heads: HeadMap, seed: int) -> dict[Head, float]:
    """Random scores, the baseline of all scores. The same for the same seed."""
    values: list[float] = np.random.default_rng(seed).random(heads.total).tolist()
    return dict(zip(heads, values, strict=True))


def weight_norms(model: Model) -> dict[Head, float]:
    """‖W_v^h‖ · ‖W_o^h‖ of every head, Frobenius norms: magnitude pruning by head, without text.

    The product does not depend on how a head divides its scale between the two. Query heads with the same value head
    share its norm. Raises HeadwiseError for value and output projections of unknown form.
    """
    modules: dict[str, nn.Module] = dict(model.hf.named_modules())
    norms: dict[Head, float] = {}
    for site in model.heads.sites:
        if not model.heads.count(site):
            continue  # all heads of the layer were removed
        try:
            layer = layer_of(modules, model.discovery, site)
        except HeadwiseError as error:
            name = model.discovery.names[site]
            raise HeadwiseError(
                f"The norms of heads' weights cannot be computed: {name} ({type(modules[name]).__name__}) has no "
                "linear value and output projections that headwise knows. Use another score."
            ) from error
        # G: one a key/value head
        values = layer.values().detach().norm(dim=(1, 2))
        outputs = layer.outputs().detach().norm(dim=(0, 2))
        product = values.repeat_interleave(layer.heads // layer.groups) * outputs
        for head, norm in enumerate(product):
            norms[Head(*site, head)] = float(norm)
    return norms


@dataclass
class RemovalScore:
    """The score that heads are removed by: how important each is while only those of a mask are left.

    The larger it is, the longer a head stays.

    score: a measure, `random` or `weight-norm`. rescore: measured again for every mask, else once of the whole model.
    """

    model: Model
    text: Batches
    score: str
    rescore: bool
    seed: int

    def __call__(self, mask: HeadMask) -> dict[Head, float]:
        if self.score == "random":
            return random_scores(self.model.heads, self.seed)
        if self.score == "weight-norm":
            return weight_norms(self.model)
        left = mask if self.rescore and len(mask) < self.model.heads.total else None
        values = importance_values(self.model, self.text, self.score, left, self.seed)
        # For some measures a low value means an important head.
        sign = facts(self.score).sign
        return {head: sign * value for head, value in values.items()}


def removal_score(
    model: Model,
    text: AnyText,
    score: str,
    rescore: bool,
    seed: int,
    replicate: int = 0,
    progress: OnProgress = silent,
) -> RemovalScore:
    """How important heads are on a text, on its first sentences where it is long. replicate: the number of a random
    order, from 1 on."""
    batches = model.task.batches(text.head(RANKED), progress)
    return RemovalScore(model, batches, score, rescore, 1000 * seed + replicate)


def removal_orders(score_of: RemovalScore, options: Greedy) -> list[list[Together]]:
    """The units that greedy removal takes away, the first first, down to the options' number of heads. One order; before
    repair a second one, by which all layers keep equally many heads: what layers miss does not always add up.

    Here heads are chosen, for every study and for `hw.prune`: another way to choose them is another order.
    """
    heads = score_of.model.heads
    kinds = options.kinds or heads.kinds
    # Orders without text are the same whatever heads are left.
    once = not options.rescore or score_of.score in TEXTLESS_ORDERS
    parts = removal_units(heads.only(kinds), options.unit)
    known: dict[frozenset[Head], Mapping[Head, float]] = {}

    def score(mask: HeadMask) -> Mapping[Head, float]:
        if mask.kept not in known:
            known[mask.kept] = score_of(mask)
        values = known[mask.kept]
        if score_of.score == "random":
            # The importance of a unit is a sum: large units would stay for their size alone.
            values = divide_among_heads(values, parts)
        return values

    def even(mask: HeadMask) -> Mapping[Head, float]:
        return evenly(score(mask))

    # Of several target counts, larger models are earlier steps of the same order.
    keep = min(
        several(options.keep),
        key=lambda count: sum(counts_by_kinds(heads.only(kinds), count, options.unit).values()),
        default=1,
    )
    ways = [score, even] if options.repair and score_of.score == REPAIR else [score]
    orders = []
    for way in ways:
        steps = greedy(heads, way, kinds, options.step, once, keep, options.unit)
        orders.append([together for step in steps for together in step])
    return orders


def evenly(values: Mapping[Head, float]) -> dict[Head, float]:
    """Values that keep the order of heads within layers, and by which all layers keep equally many: minus how many of
    its layer are ranked above a head, and less than 1 for the value itself, which decides between layers."""
    layers: dict[Site, list[Head]] = {}
    for head in sorted(values, key=lambda head: values[head]):
        layers.setdefault(Site(head.kind, head.layer), []).append(head)
    found = {}
    for heads in layers.values():
        for above, head in zip(reversed(range(len(heads))), heads, strict=True):
            value = values[head]
            found[head] = value / (1 + abs(value)) / 2 - above
    return found


def cut(
    model: Model,
    mask: HeadMask,
    options: Greedy,
    repairs: Callable[[], Repairs],
) -> Model:
    """The smaller model of a mask, before any training; `model` stays as it is.

    Here heads are cut, for every study and for `hw.prune`. repairs: what makes up for lost heads, asked for where the
    options want that.
    """
    if options.repair:
        return repairs().repaired_or_cut(mask)
    # The mask obeys the unit that was asked for: if that lets the cache grow, the user wants it.
    return model.only(mask, grow=True)


def too_generous(option: str, limit: float, whole: float) -> str:
    """A sentence for a limit of more BLEU than the whole model has."""
    return (
        f"{option} is {limit:g}, but the whole model has only {whole:.1f} BLEU on dev, so any model is within it: the "
        "limit is in BLEU, not in %."
    )
