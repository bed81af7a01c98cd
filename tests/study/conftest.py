"""One finished run of a tiny study that many tests read."""

from __future__ import annotations

import copy
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from filelock import FileLock

from headwise.study import run_study
from study.studies import QUIET, TINY, plan_of


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> None:
    """Tiny models are fastest so, and a busy machine disturbs them least."""
    torch.set_num_threads(1)


@pytest.fixture
def tiny() -> dict[str, Any]:
    """The plan as a dictionary, to change."""
    return copy.deepcopy(TINY)


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a finished study, not to be changed: the first of pytest's processes makes it for all."""
    place = tmp_path_factory.getbasetemp()
    place = place.parent if "PYTEST_XDIST_WORKER" in os.environ else place
    with FileLock(place / "study.lock"):
        done = place / "study" / "report.html"  # the last of its files
        return done.parent if done.exists() else run_study(plan_of(TINY), done.parent, QUIET)


@pytest.fixture
def copied(finished: Path, tmp_path: Path) -> Path:
    """A copy of the finished run, to change."""
    return Path(shutil.copytree(finished, tmp_path / "run"))
