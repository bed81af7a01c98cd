"""Greedy removal of heads in the order of a score, a tenth of them at a time, without training (Michel et al. 2019,
section 4.2); and two baseline scores: random numbers, and the norm of the weights.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from torch import nn

from headwise.attention.matrices import matrices
from headwise.errors import HeadwiseError
from headwise.heads import Head, HeadMap, HeadMask, Kind
from headwise.model import Model
from headwise.pruning.target_count import Keep

Score = Callable[[HeadMask], Mapping[Head, float]]
Quality = Callable[[HeadMask], float]


def greedy(
    heads: HeadMap, score: Score, kinds: Sequence[Kind], step: float = 0.1, once: bool = True, keep: Keep = 1
) -> list[HeadMask]:
    """Nested masks over all heads, from the full model to `keep` heads of `kinds`.

    score: the importance of heads (low ones go first) in the model with only the heads of a mask. It is called once, on
    the full model, or again after every step. Of n heads ceil(n·i·step) are removed after step i, as in the paper's
    program, and n − keep at the end; of equal heads the first goes. keep: a number in total, or one for each kind, at
    which it loses no more heads. Raises HeadwiseError for a score that lacks a head or is not a number, and for a step
    outside (0, 1].
    """
    if not 0 < step <= 1:
        raise HeadwiseError(f"Heads cannot be removed in steps of {step}: give a share above 0 and up to 1.")
    chosen = heads.only(kinds)
    floors = dict.fromkeys(chosen.kinds, 0) if isinstance(keep, int) else keep
    masks = [HeadMask.full(heads)]
    left = list(chosen)
    for size in sizes(chosen.total, step, keep if isinstance(keep, int) else sum(keep.values())):
        if not once or len(masks) == 1:
            left = order(score(masks[-1]), [head for head in chosen if head in masks[-1].kept])
        spare = {kind: masks[-1].count(kind) - floors[kind] for kind in chosen.kinds}
        gone: list[Head] = []
        for head in left:
            if len(gone) < len(left) - size and spare[head.kind]:
                gone.append(head)
                spare[head.kind] -= 1
        masks.append(masks[-1].without(gone))
        left = [head for head in left if head in masks[-1].kept]
    return masks


def sizes(total: int, step: float, least: int = 1) -> list[int]:
    """How many of `total` heads are left after each step, down to `least`; without the full model."""
    gone = {math.ceil(round(total * step * i, 9)) for i in range(1, math.ceil(1 / step) + 1)} | {total - least}
    return [total - count for count in sorted(gone) if 0 < count <= total - least]


def order(values: Mapping[Head, float], heads: Sequence[Head]) -> list[Head]:
    """Heads from the least important on; equal ones keep their order."""
    holes = [str(head) for head in heads if not math.isfinite(values.get(head, math.nan))]
    if holes:
        raise HeadwiseError(
            f"Heads cannot be removed in the order of this score: it is not a number for {len(holes)} of {len(heads)} "
            f"({', '.join(holes[:3])}{' …' if len(holes) > 3 else ''}). Score all heads that may be removed."
        )
    return sorted(heads, key=lambda head: values[head])


def smallest_within(masks: Sequence[HeadMask], quality: Quality, max_drop: float) -> tuple[HeadMask, list[float]]:
    """The mask with the fewest heads whose quality is at most `max_drop` below that of the first mask, the full model.

    Every mask is tried, because quality may fall and rise again; all qualities are returned too. Higher is better.
    """
    if not max_drop >= 0:
        raise HeadwiseError(f"The largest loss of quality cannot be {max_drop}: give a number of at least 0.")
    found = [quality(mask) for mask in masks]
    good = [mask for mask, value in zip(masks, found, strict=True) if value >= found[0] - max_drop]
    if not good:
        raise HeadwiseError("The quality of the full model is not a number (NaN): nothing can be compared with it.")
    return min(good, key=len), found


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
        name, count = model.found.names[site], model.heads.count(site)
        groups = model.heads.key_value[site.kind][site.layer]
        if not count:
            continue
        try:
            layer = matrices(modules, name, count, groups)
        except HeadwiseError as error:
            raise HeadwiseError(
                f"The norms of heads' weights cannot be computed: {name} ({type(modules[name]).__name__}) has no "
                "linear value and output projections that headwise knows. Use another score."
            ) from error
        values = layer.values().detach().norm(dim=(1, 2))
        outputs = layer.outputs().detach().norm(dim=(0, 2))
        product = values.repeat_interleave(count // groups) * outputs
        norms |= {Head(*site, head): float(norm) for head, norm in enumerate(product)}
    return norms
