"""The counter of synchronisations sees each sort of them, and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from syncs import syncs

WAITING: dict[str, Callable[[Tensor], Any]] = {
    "item": lambda x: x[0, 0].item(),
    "bool": lambda x: bool((x > 0).all()),
    "tolist": lambda x: x.tolist(),
    "cpu": lambda x: x.cpu(),
    "list index": lambda x: x[:, [0, 1]],
    "boolean index": lambda x: x[x > 0],
    "nonzero": lambda x: (x > 0).nonzero(),
    "from a list": lambda x: x.new_tensor([1.0, 2.0]),
    "equal": lambda x: torch.equal(x, x),
}
FREE: dict[str, Callable[[Tensor], Any]] = {
    "sum": lambda x: x.sum(-1),
    "where": lambda x: torch.where(x > 0, x, 0.0),
    "slice": lambda x: x[:, 1:],
    "softmax": lambda x: x.softmax(-1),
    "assignment": lambda x: x.new_zeros(2, 2).__setitem__((0, 0), x[0, 1]),
}


@pytest.mark.parametrize("name", WAITING)
def test_a_synchronisation_is_counted(name: str) -> None:
    with syncs() as seen:
        WAITING[name](torch.randn(3, 4))
    assert len(seen) == 1


@pytest.mark.parametrize("name", FREE)
def test_work_on_the_device_is_not_counted(name: str) -> None:
    with syncs() as seen:
        FREE[name](torch.randn(3, 4))
    assert not seen
