"""What models are for: `task.py` says what a task answers, and each other file has one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from transformers import PreTrainedModel

from headwise.attention import Discovery, classifies
from headwise.heads import HeadMap
from headwise.tasks.classification import Classification
from headwise.tasks.embedding import Embedding, PairEmbedding
from headwise.tasks.language_model import LanguageModel, MaskedLanguageModel
from headwise.tasks.task import AnyText, OwnInputs, Task, held_out
from headwise.tasks.transcription import Transcription
from headwise.tasks.translation import Translation

__all__ = [
    "AnyText",
    "Embedding",
    "OwnInputs",
    "Task",
    "Transcription",
    "Translation",
    "class_of_task",
    "held_out",
    "task_of",
]


def task_of(
    hf: PreTrainedModel,
    tokenizer: Any,
    discovery: Discovery,
    name: str,
    folder: Path | None = None,
) -> Task:
    """The task of a model. folder: the model's own."""
    task_class = class_of_task(hf, discovery.heads)
    if issubclass(task_class, Embedding):
        return task_class(hf, tokenizer, discovery, name, folder)
    return task_class(hf, tokenizer, discovery, name)


def class_of_task(hf: PreTrainedModel, heads: HeadMap) -> type[Task]:
    """The class of a model's task."""
    if classifies(hf):
        return Classification
    if hf.get_output_embeddings() is None:
        return PairEmbedding if hf.config.is_encoder_decoder else Embedding
    if hf.config.is_encoder_decoder:
        return Transcription if hf.main_input_name == "input_features" else Translation
    return LanguageModel if "decoder-self" in heads.kinds else MaskedLanguageModel
