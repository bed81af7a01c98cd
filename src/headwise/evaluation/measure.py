"""What a model answers under several masks, by the quality of its task."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from headwise.answers import Answers
from headwise.evaluation.losses import measure_classes, measure_losses
from headwise.evaluation.similarities import measure_similarities
from headwise.evaluation.word_errors import measure_word_errors
from headwise.heads import HeadMask
from headwise.model import Model
from headwise.qualities import SIMILARITY, WORD_ERROR_RATE
from headwise.tasks.batches import Batches


def measure(
    text: Batches,
    masks: Sequence[HeadMask],
    cut: Callable[[HeadMask], Model] | None = None,
    whole: Answers | None = None,
) -> Answers:
    """What the whole model and those of some masks answer on a text, in this order.

    cut: makes the smaller model of a mask, where that is not the masked one. whole: what was measured of the whole model
    on this text; word errors are taken from there.
    """
    task = text.task
    if task.quality == WORD_ERROR_RATE:
        return measure_word_errors(text, masks, cut, whole)
    if task.quality == SIMILARITY:
        return measure_similarities(text, masks, cut)
    if task.predicts_classes:
        return measure_classes(text, masks, cut)
    return measure_losses(text, masks, cut)
