"""Sentence pairs as a model with two stacks reads them, whether it translates or only has vectors."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from headwise.data.text import ParallelText
from headwise.models.attention.configuration import start_token
from headwise.models.languages import refuse_other_labels
from headwise.models.tasks.task import Task
from headwise.models.training.token_batches import Encoded, batches


class EncodedPairs(Encoded):
    """Sentence pairs as a translation model is scored on them."""

    noun = "sentences"

    def __init__(self, task: Task, text: ParallelText) -> None:
        refuse_other_labels(task.hf, task.tokenizer, task.model_name)
        super().__init__(text, task.tokenizer, task.longest)
        self.task = task

    def batches(self, hide: bool = True) -> Iterator[dict[str, Any]]:
        """The text once, shortest pairs first; nothing is ever hidden."""
        return batches(self, start_token(self.task.hf))
