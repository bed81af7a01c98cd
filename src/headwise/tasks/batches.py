"""A text as the batches that a model is scored on: all of it, or every other sentence."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any

import torch
from accelerate import PartialState

from headwise.progress import Report, silent
from headwise.training.token_batches import IGNORED

if TYPE_CHECKING:
    from headwise.tasks.task import Task


class Batches:
    """The batches of a text for a model, as often as wanted; of several processes, each gets every n-th batch.

    data: the text as token ids. progress: gets the share of the sentences that were read; a measure that reads the text
    twice starts twice. hide: whether a masked model gets its text with hidden tokens, to predict them.
    """

    hide = True

    def __init__(self, task: Task, text: Any, data: Any, progress: Report = silent) -> None:
        self.task = task
        self.text = text
        self.data = data
        self.progress = progress

    @property
    def provides(self) -> frozenset[str]:
        """What measures may ask for: what the task provides; of batches of a user's own, the loss alone."""
        own = self.text is self.data
        return self.task.provides & {"loss"} if own else self.task.provides_of(self.text)

    @property
    def objective(self) -> str:
        """What the heads are scored by, in words."""
        if "counterparts" in self.provides:
            return "logit of the answer − logit of the wrong answer"
        return "log likelihood" if "loss" in self.provides else "none"

    @property
    def dropped(self) -> int:
        """How many sentences of the text are left out."""
        return sum(self.data.left_out.values())

    @property
    def left_out(self) -> str:
        """What of the text is not read, in words: `3 blank lines, 2 longer than 512 tokens`; empty where all is read."""
        counts = {"blank": getattr(self.text, "blank", 0), **self.data.left_out}
        return ", ".join(f"{count} {reason}" for reason, count in counts.items() if count)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        state = PartialState()
        done = 0
        rest = f"; left out: {self.left_out}" if self.left_out else ""
        for number, batch in enumerate(self.whole()):
            if number % state.num_processes == state.process_index:
                yield batch
            done += int((batch["rows"] >= 0).sum())
            self.progress(
                done / len(self.data), f"{done} of {len(self.data)} {self.data.noun}{rest}"
            )

    def reporting(self, progress: Report) -> Batches:
        """The same with another progress."""
        other = copy.copy(self)
        other.progress = progress
        return other

    def intact(self) -> Batches:
        """The same without hidden tokens, for measures that need no prediction."""
        shown = copy.copy(self)
        shown.hide = False
        return shown

    def whole(self) -> Iterator[dict[str, Any]]:
        """All batches, in every process."""
        batches: Iterator[dict[str, Any]] = self.data.batches(hide=self.hide)
        return batches


class Fold:
    """Every other sentence, counted as per-sentence sums count them: the even ones (0) or the odd ones (1)."""

    def __init__(self, batches: Batches, which: int) -> None:
        self.batches = batches
        self.which = which

    def intact(self) -> Fold:
        """The same sentences without hidden tokens."""
        return Fold(self.batches.intact(), self.which)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        state = PartialState()
        return islice(self.whole(), state.process_index, None, state.num_processes)

    def whole(self) -> Iterator[dict[str, Any]]:
        """All batches, in every process."""
        start = 0
        for batch in self.batches.whole():
            size = len(batch["labels"])
            in_fold = torch.arange(start, start + size) % 2 == self.which
            mine = in_fold & (batch["labels"] != IGNORED).any(1)
            start += size
            if bool(mine.any()):
                yield {name: tensor[mine] for name, tensor in batch.items()}
