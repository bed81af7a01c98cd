"""What models are for: `task.py` says what a task answers, each other task has a file, and `task_table.py` says which
task a model has."""

from headwise.data.store import AnyText
from headwise.models.tasks.task import Given, OwnInputs, Task, held_out

__all__ = ["AnyText", "Given", "OwnInputs", "Task", "held_out"]
