"""A study that kills itself, in a process of its own."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import torch

from headwise.core.folders import Folder
from headwise.core.progress import Progress
from headwise.faces.report import report
from headwise.study.plan import read_plan
from headwise.study.records import Store
from headwise.study.results import Tables
from headwise.study.step import Job
from headwise.study.study import run_study


def die(*_: Any) -> Any:
    os.kill(os.getpid(), signal.SIGKILL)


def arm(step: str, point: str) -> None:
    """made: its outputs are whole, but aside; published: they are in their places; recorded: the record, too."""
    make, put, say_why = Store.make, Folder.put, Store.say_why
    now: list[str] = []

    def noted(self: Store, job: Job, *rest: Any) -> None:
        now[:] = [job.step.name]
        say_why(self, job, *rest)

    def published(self: Folder, *contents: Any) -> None:
        of_step = now == [step] and self.record.suffix == ".json"
        if of_step and point == "made":
            die()
        put(self, *contents)
        if of_step and point == "published":
            die()

    def recorded(self: Store, job: Job, *rest: Any) -> Any:
        record = make(self, job, *rest)
        return die() if job.step.name == step else record

    Folder.put = published  # type: ignore[method-assign]
    Store.say_why, Store.make = noted, recorded  # type: ignore[method-assign]
    if step == "tables":
        Tables.facts = die  # type: ignore[method-assign]


def study(plan: Path, out: Path, step: str, point: str) -> None:
    torch.set_num_threads(1)
    arm(step, point)
    run_study(
        read_plan(plan), out, Progress(quiet=True), report=die if step == "report" else report
    )
