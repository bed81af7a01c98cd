"""The device that is asked for: `auto` is the best one, and every other name is usable or refused in one sentence."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import headwise as hw
from headwise.core.errors import HeadwiseError
from headwise.core.progress import Progress
from headwise.models.devices import usable
from headwise.study.plan import make_plan
from headwise.study.study import run_study


@pytest.mark.parametrize(
    ("cuda", "mps", "best"),
    [(True, True, "cuda"), (False, True, "mps"), (False, False, "cpu"), (True, False, "cuda")],
)
def test_auto_is_the_best_that_is_there(
    monkeypatch: pytest.MonkeyPatch, cuda: bool, mps: bool, best: str
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: cuda)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: mps)
    assert usable("auto") == best


@pytest.mark.parametrize("device", ["gpu", "cuda:99", "cuda:-1", "meta", "", "Cpu"])
def test_others_are_refused(device: str, tmp_path: Path) -> None:
    for ask in (
        lambda: usable(device),
        lambda: hw.load(tmp_path, device=device),
        lambda: run_study(
            make_plan({"data": {"embedded": {}}}),
            tmp_path / "run",
            Progress(quiet=True),
            device=device,
        ),
    ):
        with pytest.raises(HeadwiseError, match=f"device {device} was asked for, but torch cannot"):
            ask()
    assert not (tmp_path / "run").exists()
