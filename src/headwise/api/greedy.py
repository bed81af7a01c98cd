"""Greedy removal of heads in the order of a score (Michel et al. 2019, section 4.2), and what its steps cost a model
that does not translate: perplexity, exp of the loss for each token asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from headwise.api.batches import Batches
from headwise.api.scoring import importance_values
from headwise.api.sweeps import WITHOUT_TEXT, GreedySweep
from headwise.errors import HeadwiseError
from headwise.heads import Head, HeadMask
from headwise.importance.ablation import removal_losses
from headwise.importance.measures import HARMFUL, LOW_IS_IMPORTANT
from headwise.model import Model
from headwise.progress import part
from headwise.pruning.greedy import greedy, random_scores, weight_norms
from headwise.statistics import bootstrap, interval, paired_bootstrap_p
from headwise.units import alike, units

Rows = list[tuple[str, float, float | None, float | None]]  # measure, value, low, high
Change = tuple[float, float | None, float | None, float | None]  # in %, its 95 % interval, p; the last three or none


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
        sign = -1 if self.score in (*LOW_IS_IMPORTANT, *HARMFUL) else 1
        return {head: sign * value for head, value in values.items()}


def greedy_masks(ranking: Ranking, sweep: GreedySweep) -> dict[int, HeadMask]:
    """The mask of every step, by how many heads of the sweep's kinds are to be left (`GreedySweep.counts`)."""
    heads, once = ranking.model.heads, not sweep.rescore or ranking.score in WITHOUT_TEXT
    parts = units(heads.only(sweep.kinds), sweep.unit)

    def score(mask: HeadMask) -> Mapping[Head, float]:
        return alike(ranking(mask), parts) if ranking.score == "random" else ranking(mask)

    keep = sweep.keep[0] if sweep.keep else 1
    masks = greedy(heads, score, sweep.kinds, sweep.step, once, keep, sweep.unit)
    return dict(zip(sweep.counts(heads), masks[1:] or masks, strict=True))


@dataclass(frozen=True)
class Losses:
    """The loss of every sentence under every mask, the whole model's first.

    summed: sentences x masks, over tokens; tokens: asked for, by sentence.
    """

    summed: np.ndarray
    tokens: np.ndarray

    @classmethod
    def measure(
        cls, text: Batches, masks: Sequence[HeadMask], cut: Callable[[HeadMask], Model] | None = None
    ) -> Losses:
        """All masks go over the text together and share what they can; with `cut`, which makes the smaller model of a
        mask, each model goes over it alone."""
        model = text.model
        whole = HeadMask.full(model.heads)
        silenced = removal_losses(model.hf, model.found, text, [whole, *masks] if cut is None else [whole])
        columns, tokens = [silenced[0]], silenced[1]
        progress = text.progress
        for place, mask in enumerate(masks if cut is not None else ()):
            assert cut is not None
            smaller = cut(mask)
            text.progress = part(progress, place / len(masks), (place + 1) / len(masks))
            columns.append(removal_losses(smaller.hf, smaller.found, text, [HeadMask.full(smaller.heads)])[0])
        text.progress = progress
        summed = np.concatenate(columns, axis=1)
        if not np.isfinite(summed).all():
            raise HeadwiseError("The loss with heads removed is not a number (NaN or infinite): the model is broken.")
        return cls(summed, tokens)

    def rows(self, column: int, seed: int) -> Rows:
        """Loss (nats a token), perplexity, and its change in % of the whole model's; 95 % intervals by a bootstrap over
        sentences, paired for the change; none with a single sentence."""
        loss = (self.summed.sum(0) / self.tokens.sum())[None]
        drawn = bootstrap(self.summed, self.tokens, seed) if len(self.tokens) > 1 else None

        def row(name: str, change: Callable[[np.ndarray], np.ndarray]) -> tuple[str, float, float | None, float | None]:
            low, high = interval(change(drawn)) if drawn is not None else (None, None)
            return (
                name,
                float(change(loss)[0]),
                None if low is None else float(low),
                None if high is None else float(high),
            )

        rows = [row("loss", lambda x: x[:, column]), row("perplexity", lambda x: np.exp(x[:, column]))]
        if column:
            rows.append(row("perplexity_change", lambda x: 100 * np.expm1(x[:, column] - x[:, 0])))
        return rows

    def change(self, column: int, other: Losses, its_column: int, seed: int) -> Change:
        """The change of perplexity against another model on the same sentences, by a paired bootstrap."""
        if not np.array_equal(self.tokens, other.tokens):
            raise HeadwiseError("Two models were measured on different texts, so their perplexity cannot be compared.")
        both = np.stack([self.summed[:, column], other.summed[:, its_column]], axis=1)
        loss = both.sum(0) / self.tokens.sum()
        value = float(100 * np.expm1(loss[0] - loss[1]))
        if len(self.tokens) < 2:
            return value, None, None, None
        drawn = bootstrap(both, self.tokens, seed)
        differences = drawn[:, 0] - drawn[:, 1]
        low, high = interval(100 * np.expm1(differences))
        return value, float(low), float(high), paired_bootstrap_p(float(loss[0] - loss[1]), differences)
