"""Greedy removal of heads in the order of a score (Michel et al. 2019, section 4.2), and what its steps cost a model
that does not translate: perplexity, exp of the loss for each token asked for, or the accuracy of a classifier.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from headwise.heads import Head, HeadMask
from headwise.importance.measurement import importance_values
from headwise.importance.measures import facts
from headwise.model import Model
from headwise.options import WITHOUT_TEXT, Greedy, several
from headwise.pruning.greedy import greedy, random_scores, weight_norms
from headwise.tasks.batches import Batches
from headwise.units import divide_among_heads, left_by_step, units

Rows = list[tuple[str, float, float | None, float | None]]  # measure, value, low, high
Change = tuple[
    float, float | None, float | None, float | None
]  # in %, its 95 % interval, p; the last three or none


@dataclass
class Ranking:
    """How important every head is while only those of a mask are left: the more, the longer it stays.

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
        sign = facts(self.score).sign
        return {head: sign * value for head, value in values.items()}


def greedy_masks(ranking: Ranking, options: Greedy) -> dict[int, HeadMask]:
    """The mask of every step, by how many heads of the options' kinds are to be left (`left_by_step`)."""
    heads = ranking.model.heads
    kinds = options.kinds or heads.kinds
    once = not options.rescore or ranking.score in WITHOUT_TEXT
    parts = units(heads.only(kinds), options.unit)

    def score(mask: HeadMask) -> Mapping[Head, float]:
        return (
            divide_among_heads(ranking(mask), parts) if ranking.score == "random" else ranking(mask)
        )

    (keep,) = several(options.keep) or [1]
    masks = greedy(heads, score, kinds, options.step, once, keep, options.unit)
    return dict(zip(left_by_step(heads, options), masks[1:] or masks, strict=True))
