"""Names of files that were read from a file, and files recognised by size and SHA-256, so that damage is seen before a
file is used."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from headwise.errors import HeadwiseError

# Letters and digits of any script, and these signs; no separator, and no dot or space in front.
NAME = re.compile(r"[\w+=@()-][\w.+=@() -]*")
LONGEST_NAME = 200  # bytes: file systems take 255, and our endings come to it
LONGEST_PATH = 1000


def is_name(name: Any) -> bool:
    """Whether this can be the name of a file or a folder, wherever it was read: it leads nowhere else."""
    return (
        isinstance(name, str)
        and len(name.encode(errors="replace")) <= LONGEST_NAME
        and NAME.fullmatch(name) is not None
    )


def is_inside(path: Any) -> bool:
    """Whether a relative path, with `/` between its names, stays inside the folder that it starts from."""
    return (
        isinstance(path, str) and len(path) <= LONGEST_PATH and all(map(is_name, path.split("/")))
    )


def checked_name(name: Any, source: Path | str) -> str:
    """A name that was read from `source`. Raises HeadwiseError for what can be no name of a file."""
    if not is_name(name):
        raise HeadwiseError(
            f"{source} has the name {str(name)[:LONGEST_NAME]!r}, of which a file's name would be made: it may have at "
            "most 200 letters, digits, '.', '_', '-', and no '/'."
        )
    return str(name)


@lru_cache(maxsize=65536)  # a study looks at the same thousands after every step
def below(folder: Path, path: str) -> Path:
    """A path inside a folder, which every name that a file or a user gave goes through; "." is the folder itself.

    Raises HeadwiseError for one that leads out of the folder.
    """
    if path == ".":
        return folder
    if not is_inside(path):
        raise HeadwiseError(
            f"{str(path)[:LONGEST_NAME]!r} was to be a file in {folder}: its names may have at most 200 letters, digits, "
            "'.', '_', '-', with one '/' between two of them."
        )
    return folder / path


def sha256(path: Path) -> str:
    """The SHA-256 of a file, in hexadecimal; read once as long as its size and times stay."""
    stat = path.stat()
    # A program can set the time of the content (mtime), but not that of the last change (ctime).
    return _sha256(path, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_size)


@lru_cache(maxsize=65536)
def _sha256(path: Path, modified: int, changed: int, size: int) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def manifest(folder: Path, outputs: Iterable[str]) -> dict[str, list[Any]]:
    """Size and SHA-256 of every file of some outputs (files or folders), by its path below `folder`."""
    found: dict[str, list[Any]] = {}
    for output in outputs:
        place = below(folder, output)
        for file in sorted(place.rglob("*")) if place.is_dir() else [place]:
            if file.is_file():
                found[file.relative_to(folder).as_posix()] = [file.stat().st_size, sha256(file)]
    return found


def manifest_of(contents: Mapping[str, str]) -> dict[str, list[Any]]:
    """The manifest of texts that will be files under these names."""
    files: dict[str, list[Any]] = {}
    for name, text in contents.items():
        data = text.encode()
        files[name] = [len(data), hashlib.sha256(data).hexdigest()]
    return files


def damaged(folder: Path, files: Mapping[str, Sequence[Any]]) -> list[str]:
    """What is wrong with the files of a manifest: `heads.csv is missing`, `model/config.json has changed`."""
    wrong = []
    for name, (size, known) in files.items():
        path = below(folder, name)
        try:
            same = path.stat().st_size == size and sha256(path) == known
        except OSError:
            wrong.append(f"{name} is missing")
        else:
            if not same:
                wrong.append(f"{name} has changed")
    return wrong


def digest(value: Any) -> str:
    """A short hash of anything JSON can hold."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]


def with_checksum(record: Mapping[str, Any]) -> str:
    """A record as its file has it, with a checksum (`sum`) over all it says."""
    facts = json.loads(json.dumps(record))
    return json.dumps({**facts, "sum": digest(facts)}, indent=1)


def read_with_checksum(path: Path) -> dict[str, Any]:
    """A record without its checksum; empty where there is none, or it is not as it was written."""
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    if not isinstance(record, dict) or record.pop("sum", None) != digest(record):
        return {}
    return record
