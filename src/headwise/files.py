"""Files known again by size and SHA-256, so that damage is seen before a file is used."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any


def sha256(path: Path) -> str:
    """The SHA-256 of a file, in hexadecimal; read once as long as its size and time stay."""
    stat = path.stat()
    return _sha256(path, stat.st_mtime_ns, stat.st_size)


@lru_cache(maxsize=65536)
def _sha256(path: Path, changed: int, size: int) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@lru_cache(maxsize=65536)
def below(folder: Path, name: str) -> Path:
    """The path of a file in a folder: a study looks at the same thousands after every task."""
    return folder / name


def manifest(folder: Path, outputs: Iterable[str]) -> dict[str, list[Any]]:
    """Size and SHA-256 of every file of some outputs (files or folders), by its path below `folder`."""
    found: dict[str, list[Any]] = {}
    for output in outputs:
        place = folder / output
        for file in sorted(place.rglob("*")) if place.is_dir() else [place]:
            if file.is_file():
                found[file.relative_to(folder).as_posix()] = [file.stat().st_size, sha256(file)]
    return found


def damaged(folder: Path, files: Mapping[str, Sequence[Any]]) -> list[str]:
    """What is wrong with the files of a manifest: `heads.csv is missing`, `model/config.json has changed`."""
    wrong = []
    for name, (size, known) in files.items():
        path = below(folder, name)
        try:
            stat = path.stat()
            same = stat.st_size == size and _sha256(path, stat.st_mtime_ns, stat.st_size) == known
        except OSError:
            wrong.append(f"{name} is missing")
        else:
            if not same:
                wrong.append(f"{name} has changed")
    return wrong


def is_inside(name: Any) -> bool:
    """Whether a path that was read from disk stays inside its folder."""
    parts = Path(name).parts if isinstance(name, str) else ()
    return bool(parts) and not Path(name).is_absolute() and ".." not in parts
