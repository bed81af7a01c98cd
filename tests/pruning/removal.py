"""The masks of greedy removal, step by step."""

from __future__ import annotations

from typing import Any

from headwise.core.heads import HeadMap
from headwise.core.layout import HeadMask
from headwise.core.options import Greedy
from headwise.core.removal_units import left_by_step
from headwise.pruning import greedy
from headwise.pruning.greedy import RemovalScore, mask_without, removal_orders


def masks_of_steps(heads: HeadMap, *given: Any, **options: Any) -> list[HeadMask]:
    """Those of `greedy`, from the full one on."""
    masks = [HeadMask.full(heads)]
    for removed in greedy.greedy(heads, *given, **options):
        masks.append(masks[-1].without(head for together in removed for head in together))
    return masks


def greedy_masks(score_of: RemovalScore, options: Greedy) -> dict[int, HeadMask]:
    """Those of a score, by how many heads of the options' kinds are left."""
    heads = score_of.model.heads
    order, *_ = removal_orders(score_of, options)
    total = heads.only(options.kinds or heads.kinds).total
    return {left: mask_without(heads, order, total - left) for left in left_by_step(heads, options)}
