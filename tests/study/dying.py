"""A study that kills itself, in a process of its own."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import torch

from headwise.report import report
from headwise.study import read_plan, run_study
from headwise.study.progress import Progress
from headwise.study.store import Making, Store
from headwise.study.tables import Tables


def die(*_: Any) -> Any:
    os.kill(os.getpid(), signal.SIGKILL)


def arm(task: str, point: str) -> None:
    """made: its outputs are whole, but aside; published: they are in their places; recorded: the record, too."""
    made, publish, say_why = Store.made, Store.publish, Store.say_why
    now: list[str] = []

    def noted(self: Store, making: Making, *rest: Any) -> None:
        now[:] = [making.name]
        say_why(self, making, *rest)

    def published(self: Store, *outputs: Any) -> None:
        if now == [task] and point == "made":
            die()
        publish(self, *outputs)
        if now == [task] and point == "published":
            die()

    def recorded(self: Store, making: Making, *rest: Any) -> Any:
        record = made(self, making, *rest)
        return die() if making.name == task else record

    Store.say_why, Store.publish = noted, published  # type: ignore[method-assign]
    Store.made = recorded  # type: ignore[method-assign]
    if task == "tables":
        Tables.facts = die  # type: ignore[method-assign]


def study(plan: Path, out: Path, task: str, point: str) -> None:
    torch.set_num_threads(1)
    arm(task, point)
    run_study(
        read_plan(plan), out, Progress(quiet=True), report=die if task == "report" else report
    )
