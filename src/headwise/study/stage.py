"""Stages with a file cache: a stage is a plain function; its result is kept with a fingerprint of what went in, and it is skipped while that has not changed."""

from __future__ import annotations

import hashlib
import json
import platform
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock, Timeout

from headwise.errors import HeadwiseError
from headwise.heads import write_text
from headwise.study.progress import Progress

Result = dict[str, Any]


def fingerprint(value: Any) -> str:
    """A short hash of anything JSON can hold."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()[:16]


class RunFolder:
    """The folder of one run: `stage` runs a function once for given inputs and remembers its result in `.stages/NAME.json`."""

    def __init__(self, folder: Path, progress: Progress) -> None:
        self.folder, self.progress = folder, progress
        self.seconds: dict[str, float] = {}
        self.made: dict[str, str] = {}

    def stage(self, name: str, inputs: Mapping[str, Any], make: Callable[[Path], Result], outputs: tuple[str, ...] = ()) -> Result:
        """The result of `make(work)`, from the cache when inputs and outputs are as they were.

        make gets a folder for unfinished work, of its own for these inputs, and must write its outputs whole (beside, then renamed). The stage counts as done
        only when its result is written, so a killed one runs again and finds its unfinished work.
        """
        key = fingerprint([name, inputs, version("headwise")])
        self.made[name] = key
        record = self.folder / ".stages" / f"{name.replace('/', '.')}.json"
        done = read_record(record)
        if done.get("key") == key and all((self.folder / path).exists() for path in outputs):
            self.seconds[name] = done["seconds"]
            self.progress.skip(name)
            return dict(done["result"])
        work = self.folder / ".work" / f"{name.replace('/', '.')}-{key}"
        start = time.perf_counter()
        with self.progress.stage(name):
            result = make(work)
        seconds = done_before(work) + time.perf_counter() - start
        self.seconds[name] = seconds
        write_text(record, json.dumps({"key": key, "seconds": seconds, "result": result}, indent=1))
        clear(work)
        return result


def read_record(path: Path) -> dict[str, Any]:
    try:
        data = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return data if isinstance(data, dict) else {}


def done_before(work: Path) -> float:
    """Seconds that earlier, killed tries left in the work folder's own log."""
    return float(read_record(work / "seconds.json").get("seconds", 0.0))


def clear(folder: Path) -> None:
    """Remove a folder of unfinished work."""
    import shutil

    shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def opened(folder: str | Path, progress: Progress) -> Iterator[RunFolder]:
    """A run folder, made if need be and locked against a second process."""
    folder = Path(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / ".stages").mkdir(exist_ok=True)
        lock = FileLock(folder / ".lock")
        lock.acquire(timeout=0)
    except Timeout:
        raise HeadwiseError(f"Another process is working on {folder}: wait for it, or choose another --out.") from None
    except OSError as error:
        raise HeadwiseError(f"The run was to be written to {folder}, but that is not possible ({error.strerror}): choose another --out.") from None
    try:
        yield RunFolder(folder, progress)
    finally:
        lock.release()


def surroundings() -> Result:
    """What every number's signature says about where it was made."""
    names = ("headwise", "torch", "transformers", "tokenizers", "datasets", "accelerate", "sacrebleu")
    return {
        "versions": {"python": platform.python_version(), **{name: version(name) for name in names}},
        "threads": torch.get_num_threads(),
        "machine": f"{platform.system()} {platform.machine()}",
    }
