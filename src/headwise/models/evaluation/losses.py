"""What a model predicts of a text: the losses of its sentences, and the classes of a classifier."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import nn

from headwise.core.answers import Answers
from headwise.core.layout import HeadMask
from headwise.core.progress import turn
from headwise.core.qualities import ACCURACY, LOSS, PERPLEXITY
from headwise.models.attention.discover import evaluating
from headwise.models.evaluation.sums import check_finite, to_numpy
from headwise.models.evaluation.without_heads import removal_losses
from headwise.models.processes import failing_together, gather_batches
from headwise.models.tasks import Task
from headwise.models.tasks.batches import Batches
from headwise.models.tasks.objective import asked_tokens, on_device, predict, sentence_losses


def measure_losses(
    task: Task,
    text: Batches,
    masks: Sequence[HeadMask] = (),
    cut: Callable[[HeadMask], Task] | None = None,
) -> Answers:
    """Losses in nats, and the number of predicted tokens, of every sentence.

    All masks go over the text together and share what they can; with `cut`, which makes the smaller model of a mask,
    each model goes over it alone.
    """
    whole = HeadMask.full(task.heads)
    # a variant with weights of its own is more than a mask
    alone = masks if cut is not None else ()
    together = masks if cut is None else ()

    def reading(place: int) -> Batches:
        """The text for one of several readings, whose progress goes on where that of the one before ends."""
        return text.with_progress(turn(text.progress, place, 1 + len(alone))) if alone else text

    silenced = removal_losses(task.hf, task.discovery, reading(0), [whole, *together])
    columns, tokens = [silenced[0]], silenced[1]
    for place, mask in enumerate(alone, start=1):
        assert cut is not None
        smaller = cut(mask)
        own = HeadMask.full(smaller.heads)
        lost, _ = removal_losses(smaller.hf, smaller.discovery, reading(place), [own])
        columns.append(lost)
    losses = np.concatenate(columns, axis=1)
    check_finite("The loss with heads removed", losses)
    made = f"{len(tokens)} sentences, {int(tokens.sum())} predicted tokens"
    if text.windowed:
        made += f", {text.windowed}"
    made = text.made_on(f"bootstrap over {made}")
    counts = np.broadcast_to(tokens[:, None], losses.shape)
    return Answers({PERPLEXITY: made, LOSS: made}, np.stack([losses, counts], 2), tokens)


def answer_classes(hf: nn.Module, text: Batches) -> Answers:
    """A classifier's answers: the loss of every text in nats, how many classes are asked for (1, or one for each word),
    and how many are found. From all processes, in the order of a single one."""
    parts: list[np.ndarray] = []
    with failing_together(), evaluating(hf), torch.no_grad():
        for batch in text:
            tensors = on_device(hf, batch)
            labels = tensors["labels"]
            logits = predict(hf, tensors)
            is_right = (logits.argmax(-1) == labels).sum(1)  # an ignored label is no class
            sums = to_numpy([sentence_losses(logits, labels), asked_tokens(labels), is_right])
            parts.append(np.column_stack(sums).astype(np.float64))
        parts = gather_batches(parts)
    stats = np.concatenate(parts)
    losses, asked, _ = stats.T
    check_finite("The loss with heads removed", losses)
    # the score interval is of one yes or no a text
    if (asked == 1).all():
        made = (
            "accuracy in % with its exact interval, changes with the score interval of paired shares; "
            f"{len(losses)} texts"
        )
    else:
        made = (
            "accuracy in % of words, with an interval for words that are alike within a sentence, changes by a paired "
            f"bootstrap over sentences; {len(losses)} texts with {int(asked.sum())} classes"
        )
    made = text.made_on(made)
    return Answers({ACCURACY: made, LOSS: made}, stats[:, None], asked)
