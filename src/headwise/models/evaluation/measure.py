"""What a model answers under several masks, by the quality of its task."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from headwise.core.answers import Answers
from headwise.core.layout import HeadMask
from headwise.core.progress import turn
from headwise.core.qualities import ACCURACY, PERPLEXITY, SIMILARITY, QualityMeasure
from headwise.models.attention import keeping
from headwise.models.evaluation.losses import answer_classes, measure_losses
from headwise.models.evaluation.similarities import answer_pairs
from headwise.models.model import Model
from headwise.models.tasks import Task
from headwise.models.tasks.batches import Batches

# a task with another quality answers itself (`Task.answers`)
ANSWERS: dict[QualityMeasure, Callable[[Task, Batches], Answers]] = {
    ACCURACY: answer_classes,
    SIMILARITY: answer_pairs,
}


def measure(
    task: Task,
    text: Batches,
    masks: Sequence[HeadMask],
    cut: Callable[[HeadMask], Model] | None = None,
    whole: Answers | None = None,
) -> Answers:
    """What the whole model and some masked models answer on a text, in this order: a pass over the text for each, except
    that losses of words are measured together.

    cut: makes the smaller model of a mask, where that is not the masked one. whole: what was measured of the whole model
    on this text, where that is not measured again.
    """
    if task.quality == PERPLEXITY:
        return measure_losses(task, text, masks, cut)
    answer = ANSWERS.get(task.quality, type(task).answers)
    every = [HeadMask.full(task.heads), *masks]
    answers = []
    for number, mask in enumerate(every):
        share = turn(text.progress, number, len(every))
        batches = text.reporting(share)
        if number == 0 and whole is not None:
            answers.append(whole.of(0))
        elif number > 0 and cut is not None:
            answers.append(answer(cut(mask).task, batches))
        else:
            with keeping(task.hf, task.discovery, mask):
                answers.append(answer(task, batches))
    return answers[0].beside(*answers[1:])
