"""The model of one mask among several that are measured on one text."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from headwise.attention import masked
from headwise.heads import HeadMask
from headwise.model import Model
from headwise.progress import part
from headwise.tasks import Task
from headwise.tasks.batches import Batches


@contextmanager
def mask_model(
    text: Batches,
    masks: Sequence[HeadMask],
    number: int,
    cut: Callable[[HeadMask], Model] | None = None,
) -> Iterator[tuple[Task, Batches]]:
    """A block in which a task's model has one of the masks; with the text, which reports this mask's share of the work.

    The first mask is the whole model's. cut: makes the smaller model of each other mask, where that is not the masked
    one.
    """
    task = text.task
    share = part(text.progress, number / len(masks), (number + 1) / len(masks))
    batches = text.reporting(share)
    if cut is not None and number > 0:
        yield cut(masks[number]).task, batches
    else:
        with masked(task.hf, task.discovery, masks[number]):
            yield task, batches
