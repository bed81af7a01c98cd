"""Folders that are made once for all of pytest's processes, by the first that needs them, and that no test may change."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from filelock import FileLock

SHARED: dict[
    str, Path
] = {}  # those that this process has asked for, by the names of their fixtures


def made_once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], object]) -> Path:
    """The folder of a fixture, which `make` fills."""
    place = factory.getbasetemp()
    place = place.parent if "PYTEST_XDIST_WORKER" in os.environ else place
    folder = SHARED[name] = place / name
    with FileLock(f"{folder}.lock"):
        if not state_file(folder).exists():
            shutil.rmtree(folder, ignore_errors=True)  # of a process that failed half-way
            make(folder)
            state_file(folder).write_text(json.dumps(state(folder)))
    return folder


def state_file(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}.json")


def state(folder: Path) -> dict[str, list[int]]:
    """Size and time of every file."""
    files = {path: path.stat() for path in sorted(folder.rglob("*")) if path.is_file()}
    return {
        str(path.relative_to(folder)): [found.st_size, found.st_mtime_ns]
        for path, found in files.items()
        if path.suffix != ".lock"
    }


def changed(name: str) -> list[str]:
    """The files of a shared folder that are new, gone or others than when it was made. They are told once."""
    before, after = json.loads(state_file(SHARED[name]).read_text()), state(SHARED[name])
    if before == after:
        return []
    state_file(SHARED[name]).write_text(json.dumps(after))
    return sorted(file for file in {*before, *after} if before.get(file) != after.get(file))
