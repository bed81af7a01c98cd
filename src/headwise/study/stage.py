"""Stages with a file cache: a stage is a plain function, and is skipped while what goes into it has not changed.

Of several processes every one runs a stage's function; only the main one writes.
"""

from __future__ import annotations

import hashlib
import json
import platform
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from accelerate import PartialState
from filelock import FileLock, Timeout

from headwise.errors import HeadwiseError
from headwise.heads import write_text
from headwise.study.progress import Progress

Result = dict[str, Any]
MADE = "made"


def fingerprint(value: Any) -> str:
    """A short hash of anything JSON can hold."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]


class RunFolder:
    """The folder of one run. `stage` runs a function once for given inputs and keeps its result."""

    def __init__(self, folder: Path, progress: Progress) -> None:
        self.folder, self.progress = folder, progress
        self.seconds: dict[str, float] = {}
        self.made: dict[str, str] = {}
        self.together = True

    @property
    def main(self) -> bool:
        """Whether this process is the one that writes."""
        return bool(PartialState().is_main_process)

    def wait(self) -> None:
        """Until all processes have come here; not while one works alone."""
        if self.together:
            PartialState().wait_for_everyone()

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Stages of the block are run by one process, and wait for no other."""
        self.together = False
        try:
            yield
        finally:
            self.together = True

    def stage(
        self, name: str, inputs: Mapping[str, Any], make: Callable[[Path], Result], outputs: Sequence[str] = ()
    ) -> Result:
        """The result of `make(work)`, from the cache when the inputs are as they were and the outputs are there.

        work: a folder for unfinished work that belongs to these inputs: a killed stage runs again and finds it there.
        make puts its outputs, under their own names, into `work/MADE`. They move to their places when all are whole,
        and only then does the record say that the stage is done.
        """
        key = fingerprint([name, inputs, version("headwise")])
        self.made[name] = key
        label = name.replace("/", ".")
        record = self.folder / ".stages" / f"{label}.json"
        done = read_record(record)
        known = done.get("key") == key and all((self.folder / path).exists() for path in outputs)
        self.wait()  # all have looked before one writes
        work = self.folder / ".work" / f"{label}-{key}"
        if known:
            self.progress.skip(name)
        else:
            start = time.perf_counter()
            with self.progress.stage(name):
                result = make(work)
            seconds = max(time.perf_counter() - start, result.get("seconds", 0.0))
            self.wait()  # nobody still reads what now moves
            before, outputs = done.get("outputs", []), list(outputs)
            done = {"key": key, "seconds": seconds, "outputs": outputs, "result": result}
            if self.main:
                record.unlink(missing_ok=True)
                self.publish(work / MADE, outputs, before)
                write_text(record, json.dumps(done, indent=1))
        if self.main:
            for unfinished in [work] if known else work.parent.glob(f"{label}-*"):
                shutil.rmtree(unfinished, ignore_errors=True)
        self.wait()  # the next stage finds the outputs
        self.seconds[name] = done["seconds"]
        return dict(done["result"])

    def publish(self, made: Path, outputs: Sequence[str], before: Sequence[str]) -> None:
        """Move outputs to their places, and take away what other inputs had left there."""
        for path in {*before, *outputs}:
            old = self.folder / path
            shutil.rmtree(old) if old.is_dir() else old.unlink(missing_ok=True)
        for path in outputs:
            (self.folder / path).parent.mkdir(parents=True, exist_ok=True)
            (made / path).rename(self.folder / path)


def read_record(path: Path) -> dict[str, Any]:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return data if isinstance(data, dict) else {}


@contextmanager
def opened(folder: str | Path, progress: Progress) -> Iterator[RunFolder]:
    """A run folder, made if need be and locked against a second run."""
    run = RunFolder(Path(folder), progress)
    lock = FileLock(run.folder / ".lock")
    try:
        if run.main:
            run.folder.mkdir(parents=True, exist_ok=True)
            lock.acquire(timeout=0)
    except Timeout:
        raise HeadwiseError(f"Another process is working on {folder}: wait for it, or choose another --out.") from None
    except OSError as error:
        raise HeadwiseError(
            f"The run was to be written to {folder}, but that is not possible ({error.strerror}): choose another --out."
        ) from None
    run.wait()
    try:
        yield run
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
