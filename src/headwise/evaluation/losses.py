"""The losses of sentences under several masks at once, and what they are worth.

Perplexity is exp of the loss for each predicted token; a classifier has accuracy as well.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from transformers import PreTrainedModel

from headwise.attention import evaluating
from headwise.errors import NOT_FINITE, HeadwiseError
from headwise.evaluation.mask_model import mask_model
from headwise.heads import HeadMask
from headwise.importance.ablation import removal_losses
from headwise.importance.processes import failing_together, gather_batches
from headwise.importance.sums import Sums, joined, to_numpy
from headwise.model import Model
from headwise.progress import part
from headwise.qualities import ACCURACY, PERPLEXITY, QualityMeasure
from headwise.statistics import (
    bootstrap,
    difference_bounds,
    effective_units,
    interval,
    proportion_interval,
)
from headwise.tasks.batches import Batches
from headwise.tasks.objective import on_device, predict, sentence_losses

QualityRow = tuple[str, float, float | None, float | None]  # measure, value, low, high
QualityRows = list[QualityRow]

# in %, its 95 % interval, p; the last three or none
Difference = tuple[float, float | None, float | None, float | None]


@dataclass(frozen=True)
class Losses:
    """The loss of every sentence under every mask, the whole model's first.

    summed: sentences x masks, over tokens; tokens: asked for, by sentence. right: of a classifier, sentences x masks:
    whether the class is found. made: on what they were measured, and what of the text was left out.
    """

    summed: np.ndarray
    tokens: np.ndarray
    right: np.ndarray | None = None
    made: str = ""

    @property
    def sentences(self) -> int:
        """How many sentences they are of."""
        return len(self.tokens)

    @property
    def independent_units(self) -> float:
        """How many sentences of one length say as much."""
        return float(effective_units(self.tokens))

    @classmethod
    def measure(
        cls,
        text: Batches,
        masks: Sequence[HeadMask],
        cut: Callable[[HeadMask], Model] | None = None,
    ) -> Losses:
        """All masks go over the text together and share what they can; with `cut`, which makes the smaller model of a
        mask, each model goes over it alone."""
        task = text.task
        whole = HeadMask.full(task.heads)
        if task.predicts_classes:
            return cls.of_classes(text, [whole, *masks], cut)
        silenced = removal_losses(
            task.hf, task.discovery, text, [whole, *masks] if cut is None else [whole]
        )
        columns, tokens = [silenced[0]], silenced[1]
        for place, mask in enumerate(masks if cut is not None else ()):
            assert cut is not None
            smaller = cut(mask)
            share = part(text.progress, place / len(masks), (place + 1) / len(masks))
            whole = HeadMask.full(smaller.heads)
            lost, _ = removal_losses(smaller.hf, smaller.discovery, text.reporting(share), [whole])
            columns.append(lost)
        summed = np.concatenate(columns, axis=1)
        refuse_broken(summed)
        return cls(summed, tokens, made=losses_made(text, tokens))

    @classmethod
    def of_classes(
        cls, text: Batches, masks: Sequence[HeadMask], cut: Callable[[HeadMask], Model] | None
    ) -> Losses:
        """Losses and right answers of a classifier, a pass over the text for each mask."""
        losses = []
        right = []
        for number in range(len(masks)):
            with mask_model(text, masks, number, cut) as (task, batches):
                of_mask = class_losses(task.hf, batches)
            losses.append(of_mask[0])
            right.append(of_mask[1])
        summed = np.stack(losses, axis=1)
        refuse_broken(summed)
        tokens = np.ones(len(summed))
        return cls(summed, tokens, np.stack(right, axis=1), losses_made(text, tokens))

    def beside(self, others: Sequence[Losses]) -> Losses:
        """The same text's losses of other models in columns of their own."""
        all_of = [self, *others]
        right = [each.right for each in all_of if each.right is not None]
        summed = np.concatenate([each.summed for each in all_of], 1)
        return Losses(summed, self.tokens, np.concatenate(right, 1) if right else None, self.made)

    @property
    def quality(self) -> QualityMeasure:
        """What these losses say: a classifier's accuracy, or perplexity."""
        return PERPLEXITY if self.right is None else ACCURACY

    def gain(self, column: int) -> float:
        """What a model gains on the whole one: points of accuracy, or less perplexity, in %."""
        if self.right is not None:
            return 100 * float(self.right[:, column].mean() - self.right[:, 0].mean())
        loss = self.summed.sum(0) / self.tokens.sum()
        return -100 * float(np.expm1(loss[column] - loss[0]))

    def rows(self, column: int, seed: int) -> QualityRows:
        """Loss (nats a token), perplexity, and its change in % of the whole model's; 95 % intervals by a bootstrap over
        sentences, paired for the change; none with a single sentence. Of a classifier loss (nats a text), accuracy in %
        with Wilson's interval, and its change in points."""
        loss = (self.summed.sum(0) / self.tokens.sum())[None]
        drawn = bootstrap(self.summed, self.tokens, seed) if len(self.tokens) > 1 else None
        units = self.independent_units

        def row(name: str, change: Callable[[np.ndarray], np.ndarray]) -> QualityRow:
            value = float(change(loss)[0])
            if drawn is None:
                return name, value, None, None
            low, high = interval(change(drawn), units)
            return name, value, float(low), float(high)

        rows = [row("loss", lambda x: x[:, column])]
        if self.right is not None:
            return rows + self.accuracy_rows(self.right, column, seed)
        rows.append(row("perplexity", lambda x: np.exp(x[:, column])))
        if column:
            rows.append(row("perplexity_change", lambda x: 100 * np.expm1(x[:, column] - x[:, 0])))
        return rows

    def accuracy_rows(self, right: np.ndarray, column: int, seed: int) -> QualityRows:
        """Accuracy in % and its change in points. right: texts x masks, whether the class is right."""
        count = len(right)
        number = int(right[:, column].sum())
        low, high = proportion_interval(number, count)
        rows: QualityRows = [
            ("accuracy", 100 * number / count, float(100 * low), float(100 * high))
        ]
        if not column:
            return rows
        if count < 2:
            return [*rows, ("accuracy_change", self.gain(column), None, None)]
        drawn = 100 * bootstrap(right, self.tokens, seed)
        bounds = interval(drawn[:, column] - drawn[:, 0], count)
        change = (self.gain(column), float(bounds[0]), float(bounds[1]))
        return [*rows, ("accuracy_change", *change)]

    def change(self, column: int, other: Losses, its_column: int, seed: int) -> Difference:
        """The change against another model on the same sentences, by a paired bootstrap: of perplexity in %, of a
        classifier's accuracy in points."""
        if not np.array_equal(self.tokens, other.tokens):
            raise HeadwiseError(
                "Two models were measured on different texts, so their perplexity cannot be compared: measure both "
                "on one text."
            )
        if self.right is not None and other.right is not None:
            return self.change_of_accuracy(self.right[:, column], other.right[:, its_column], seed)
        both = np.stack([self.summed[:, column], other.summed[:, its_column]], axis=1)
        loss = both.sum(0) / self.tokens.sum()
        value = float(100 * np.expm1(loss[0] - loss[1]))
        if len(self.tokens) < 2:
            return value, None, None, None
        drawn = bootstrap(both, self.tokens, seed)
        differences = drawn[:, 0] - drawn[:, 1]
        return value, *difference_bounds(100 * np.expm1(differences), self.independent_units)

    def change_of_accuracy(self, right: np.ndarray, other: np.ndarray, seed: int) -> Difference:
        """Points of accuracy between two models. right, other: whether each text's class is found."""
        value = float(100 * (right.mean() - other.mean()))
        if len(right) < 2:
            return value, None, None, None
        drawn = bootstrap(np.stack([right, other], axis=1), self.tokens, seed)
        differences = 100 * (drawn[:, 0] - drawn[:, 1])
        return value, *difference_bounds(differences, len(right))


def losses_made(text: Batches, tokens: np.ndarray) -> str:
    """How many sentences and tokens of a text losses are about, and what of it was left out."""
    if text.task.predicts_classes:
        made = f"{len(tokens)} texts"
    else:
        made = f"{len(tokens)} sentences, {int(tokens.sum())} predicted tokens"
    if text.windowed:
        made += f", {text.windowed}"
    return text.made_on(made)


def refuse_broken(losses: np.ndarray) -> None:
    """Raise HeadwiseError for losses that are not finite."""
    if not np.isfinite(losses).all():
        raise HeadwiseError(
            f"The loss with heads removed is not a number (NaN or infinite). {NOT_FINITE}."
        )


def class_losses(model: PreTrainedModel, text: Batches) -> Sums:
    """The loss of every text in nats, and whether a classifier finds its class. From all processes, in the order of a
    single one."""
    parts: list[Sums] = []
    with failing_together(), evaluating(model), torch.no_grad():
        for batch in text:
            tensors = on_device(model, batch)
            labels = tensors["labels"]
            logits = predict(model, tensors)
            is_right = logits[:, 0].argmax(-1) == labels[:, 0]
            losses, right = to_numpy([sentence_losses(logits, labels), is_right])
            parts.append((losses.astype(np.float64), right.astype(np.float64)))
        parts = gather_batches(parts)
    return joined(parts)
