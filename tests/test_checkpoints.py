"""Real checkpoints, as people have them: they load, and have the heads that their papers say."""

from __future__ import annotations

from pathlib import Path

import pytest

import headwise as hw

HEADS = {
    "gemma-3-270m": ("causal-lm", 72),
    "whisper-base": ("translation", 144),
    "all-MiniLM-L6-v2": ("embedding", 72),
}


@pytest.mark.parametrize("name", HEADS)
def test_a_checkpoint_loads(checkpoints: Path, name: str) -> None:
    """Whisper's has no padding token, which sound does not need."""
    if not (checkpoints / name).is_dir():
        pytest.skip(f"{checkpoints} has no {name}")
    model = hw.load(checkpoints / name)
    task, heads = HEADS[name]
    assert (model.task.name, model.heads.total) == (task, heads)
    if name == "whisper-base":
        assert len(model.alignment_heads) == 8
