"""What tests of studies share."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

from study.studies import TINY


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> None:
    """Tiny models are fastest so, and a busy machine disturbs them least."""
    torch.set_num_threads(1)


@pytest.fixture
def tiny() -> dict[str, Any]:
    """The plan as a dictionary, to change."""
    return copy.deepcopy(TINY)
