"""Every file of a finished run, damaged in turn: the study notices it, and heals it or refuses; nothing differs in
silence. A sample here, 250 by `make attack` (attack.py)."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headwise.core.errors import HeadwiseError
from headwise.study.study import run_study
from study.studies import QUIET, TINY, again, different, numbers, plan_of


def truncate(file: Path, chance: random.Random) -> None:
    content = file.read_bytes()
    file.write_bytes(content[: chance.randrange(len(content))])


def flip(file: Path, chance: random.Random) -> None:
    content = bytearray(file.read_bytes())
    content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
    file.write_bytes(content)


DAMAGES: dict[str, Callable[[Path, random.Random], object]] = {
    "deleted": lambda file, chance: file.unlink(),
    "truncated": truncate,
    "flipped": flip,
    "emptied": lambda file, chance: file.write_bytes(b""),
}
TIMED = (
    "run.json",
    "pruning.csv",
    "plan.toml",
)  # compared without their times, or written from the plan every time


def files_of(run: Path) -> list[str]:
    """All files of a run that hold something."""
    found = (path for path in sorted(run.rglob("*")) if path.is_file() and path.stat().st_size)
    return [str(path.relative_to(run)) for path in found]


def content_of(file: Path) -> Any:
    """What a file holds; a signature without its times and the folder that its model lay in."""
    if file.name not in ("facts.json", "heads.json", "interactions.json"):
        return file.read_bytes()
    return json.loads(
        file.read_text(),
        object_hook=lambda facts: {
            key: value for key, value in facts.items() if key not in ("seconds", "model")
        },
    )


def after_damage(whole: Path, run: Path, name: str, damage: str, seed: int) -> str:
    """How a study takes damage to one file: refused, healed, or `different`."""
    shutil.copytree(whole, run)
    DAMAGES[damage](run / name, random.Random(f"{seed} {name} {damage}"))
    try:
        again(plan_of(TINY), run)
    except HeadwiseError:
        return "refused"
    # Token ids are checked when a training reads them (tests/models/training/test_token_batches.py), not before.
    unread = name.startswith((".steps/", ".work/text/")) or name in TIMED
    unread |= name.endswith("/README.md")  # the user's own words about a model: they stay
    same = unread or ((run / name).exists() and content_of(run / name) == content_of(whole / name))
    return "healed" if same and not different(numbers(run), numbers(whole)) else "different"


def test_a_sample_of_damaged_files(copied: Path, finished: Path) -> None:
    """One of each sort, all at once."""
    damages = {
        "pruned/lambda-1/model.safetensors": "deleted",
        "pruned/lambda-0.005/config.json": "flipped",
        "scores/gradients/gradient.npz": "flipped",
        "heads.csv": "flipped",
        "translations/dev/full.txt": "emptied",
        "layouts/lambda-1.json": "truncated",
        "rescored/lambda-1/heads.csv": "deleted",
        "roles/examples.json": "flipped",
        "pruning.csv": "flipped",
        ".steps/evaluate.dev.lambda-1.json": "flipped",
    }
    for name, damage in damages.items():
        DAMAGES[damage](copied / name, random.Random(name))
    notes = again(plan_of(TINY), copied)
    assert different(numbers(copied), numbers(finished)) == []
    for name in [*damages][:8]:
        assert any(
            f"{name} is missing" in line or f"{name} has changed" in line for line in notes.lines
        ), name
    assert "  evaluate/dev/lambda-1 is made again: its record is damaged." in notes.lines
    assert again(plan_of(TINY), copied).made == []


def test_another_text_is_refused(copied: Path, tmp_path: Path) -> None:
    """Nothing is trained again, and no result is replaced."""
    texts = {
        split: [str(copied / f"corpus/{split}.{side}") for side in ("en", "fr")]
        for split in ("train", "dev")
    }
    plan, out = (
        plan_of(TINY, data=texts, pruning={"penalty": [1.0], "gate_learning_rate": 1.0}),
        tmp_path / "out",
    )
    run_study(plan, out, QUIET, "train")
    before = numbers(out)
    flip(copied / "corpus/train.en", random.Random(0))
    with pytest.raises(HeadwiseError, match=r"train text .* is not the one that the results"):
        again(plan, out, "train")
    assert different(numbers(out), before) == []
