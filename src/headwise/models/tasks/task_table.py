"""Which task a model has: those of this package, and those that packages add by entry points of the group
`headwise.tasks`, each a subclass of `Task`; so does `headwise-speech` (plugins/)."""

from __future__ import annotations

from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel

from headwise.core.errors import HeadwiseError
from headwise.core.heads import HeadMap
from headwise.models.attention.discover import Discovery
from headwise.models.tasks import Task
from headwise.models.tasks.classification import Classification
from headwise.models.tasks.embedding import Embedding, PairEmbedding
from headwise.models.tasks.language_model import LanguageModel, MaskedLanguageModel
from headwise.models.tasks.tagging import Tagging
from headwise.models.tasks.translation import Translation
from headwise.models.tasks.unmeasured import Unmeasured
from headwise.models.tasks.without_package import SpeechWithoutPackage

# A model has the first task that fits it; the last one fits all that are left.
OWN_TASKS: tuple[type[Task], ...] = (
    Classification,
    Tagging,
    Unmeasured,
    PairEmbedding,
    Embedding,
    SpeechWithoutPackage,
    Translation,
    LanguageModel,
    MaskedLanguageModel,
)


def task_of(
    hf: PreTrainedModel,
    tokenizer: Any,
    discovery: Discovery,
    name: str,
    folder: Path | None = None,
) -> Task:
    """The task of a model. folder: the model's own."""
    return class_of_task(hf, discovery.heads)(hf, tokenizer, discovery, name, folder)


def class_of_task(hf: PreTrainedModel, heads: HeadMap) -> type[Task]:
    """The class of a model's task: other packages are asked first."""
    tasks = (*tasks_of_packages(), *OWN_TASKS)
    return next(task for task in tasks if task.fits(hf, heads))


@cache
def tasks_of_packages() -> tuple[type[Task], ...]:
    """The tasks of installed packages. Raises HeadwiseError for a package that cannot be imported, or that names
    something else."""
    found = []
    for point in metadata.entry_points(group="headwise.tasks"):
        try:
            task = point.load()
        except Exception as error:
            raise HeadwiseError(
                f"The package '{point.value}' declares a task and cannot be imported ({type(error).__name__}: {error}): "
                "mend or uninstall it."
            ) from error
        if not (isinstance(task, type) and issubclass(task, Task)):
            raise HeadwiseError(
                f"'{point.value}' is declared as a task, but is {task!r:.80}: it must be a subclass of "
                "headwise.models.tasks.Task."
            )
        found.append(task)
    return tuple(found)
