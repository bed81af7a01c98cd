"""kill -9 within a study: in the end the numbers of an uninterrupted run. `make attack` (attack.py) kills at 25 steps."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pytest

from headwise.study.plan import make_plan
from headwise.study.study import run_study
from own_process import Running
from study import dying
from study.studies import BARELY, Notes, again, different, numbers

POINTS = ("made", "published", "recorded")


def kill(plan: Path, out: Path, step: str, point: str) -> None:
    """A study that is killed there."""
    process = Running(
        Path(tempfile.mkdtemp(dir=plan.parent)) / "process", dying.study, plan, out, step, point
    )
    status, _, errors = process.end()
    assert status == -9, f"{step}, {point}: {status}\n{errors}"


def kill_at_all(values: dict[str, Any], folder: Path, victims: list[tuple[str, str]]) -> None:
    plan, out = folder / "plan.toml", folder / "broken"
    plan.write_text(make_plan(values).to_toml())
    for step, point in victims:
        kill(plan, out, step, point)
    again(make_plan(values), out)
    assert different(numbers(out), numbers(folder / "unbroken")) == []
    assert again(make_plan(values), out).made == []


def order_of(values: dict[str, Any], folder: Path) -> list[str]:
    """The steps of an uninterrupted run, in the order in which they were made."""
    notes = Notes()
    run_study(make_plan(values), folder / "unbroken", notes)
    return list(dict.fromkeys(notes.made))


@pytest.mark.campaign
def test_killed_between_outputs_and_record(tiny: dict[str, Any], tmp_path: Path) -> None:
    """Of a model, and of what is made from it."""
    short = {**tiny["training"], "epochs": 1, "average": 1}
    tiny |= {
        "scoring": BARELY,
        "training": short,
        "pruning": {**tiny["pruning"], "penalty": [1.0]},
    }
    order_of(tiny, tmp_path)
    kill_at_all(
        tiny, tmp_path, [("prune/lambda-1", "published"), ("evaluate/dev/lambda-1", "published")]
    )
