"""A study so small that it runs in seconds, and one finished run of it that many tests read."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch

from headwise.study import Progress, make_plan, run_study

TINY: dict[str, Any] = {
    "name": "tiny",
    "seed": 3,
    "data": {"embedded": {"train": 300, "dev": 40, "test": 40}},
    "model": {
        "encoder_layers": 2, "decoder_layers": 2, "heads": 4, "width": 32, "feedforward": 64, "dropout": 0.1,
        "vocabulary": 300,
    },
    "training": {"epochs": 4, "batch_tokens": 1260, "learning_rate": 3e-3, "warmup": 20, "average": 3, "dtype": "fp32"},
    "pruning": {"penalties": [0.005, 1.0], "epochs": 3, "gate_learning_rate": 0.5, "warmup": 3},
    "search": {"beam": 2},
    "speed": {"sentences": 5, "rounds": 1},
}  # fmt: skip


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
    """The folder of a finished study, not to be changed."""
    return run_study(make_plan(copy.deepcopy(TINY)), tmp_path_factory.mktemp("study") / "run", Progress(quiet=True))
