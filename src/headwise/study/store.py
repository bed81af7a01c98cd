"""The store of a run: what finished tasks made, each under a key that says what it was made from.

`.tasks/NAME.json` records a finished task: its key, the keys it needed, its seconds, its outputs, its result. Outputs
are written into a work folder, moved to their places when all are whole, and only then recorded. `.work/NAME-KEY/`
holds unfinished work: a killed task goes on there. Of several processes all run a task; only the main one writes.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from accelerate import PartialState
from filelock import FileLock, Timeout

from headwise.errors import HeadwiseError
from headwise.heads import write_text
from headwise.study.progress import Progress

Result = dict[str, Any]
MADE = "made"  # the folder inside a work folder that holds outputs under their own names


def digest(value: Any) -> str:
    """A short hash of anything JSON can hold."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]


@dataclass(frozen=True)
class Making:
    """How a task's outputs come about. needs: the keys of the tasks it uses. repeatable: made again from the same
    inputs, the result must be the same."""

    name: str
    key: str
    needs: Sequence[str]
    outputs: Sequence[str]
    make: Callable[[Path], Result]
    repeatable: bool = False


class Store:
    """The records and outputs in one run folder."""

    def __init__(self, folder: Path, progress: Progress) -> None:
        self.folder, self.progress = folder, progress
        self.together = True

    @property
    def main(self) -> bool:
        """Whether this process is the one that writes."""
        return bool(PartialState().is_main_process)

    def wait(self) -> None:
        """Until all processes are here; not while one works alone."""
        if self.together:
            PartialState().wait_for_everyone()

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Tasks of the block run in one process and wait for no other."""
        before, self.together = self.together, False
        try:
            yield
        finally:
            self.together = before

    def record(self, name: str) -> dict[str, Any]:
        """The record of a finished task, whatever it was made from; empty without one."""
        return read_record(self.path(name))

    def path(self, name: str) -> Path:
        return self.folder / ".tasks" / f"{label_of(name)}.json"

    def records(self) -> dict[str, dict[str, Any]]:
        """All records by the name of their task."""
        found = (read_record(path) for path in sorted((self.folder / ".tasks").glob("*.json")))
        return {record["name"]: record for record in found if "name" in record}

    def holds(self, name: str, key: str, outputs: Sequence[str]) -> bool:
        """Whether a task was made from just these inputs, and these outputs are still there."""
        return self.record(name).get("key") == key and all((self.folder / path).exists() for path in outputs)

    def obtain(self, task: Making, required: Sequence[str]) -> Result:
        """The result of a task, made now unless the store holds it. required: outputs that must be there."""
        label = label_of(task.name)
        work = self.folder / ".work" / f"{label}-{task.key}"
        with self.locked(label):
            held = self.holds(task.name, task.key, required)
            self.wait()  # all have looked before one writes
            record = self.record(task.name) if held else self.made(task, work)
            if self.main:
                for unfinished in [work] if held else work.parent.glob(f"{label}-{'[0-9a-f]' * len(task.key)}"):
                    shutil.rmtree(unfinished, ignore_errors=True)
            self.wait()  # the next task finds the outputs
        return dict(record["result"])

    def made(self, task: Making, work: Path) -> dict[str, Any]:
        """Make a task and publish its outputs. Returns the new record."""
        before, start = self.record(task.name), time.perf_counter()
        with self.progress.task(task.name):
            result = task.make(work)
        seconds = max(time.perf_counter() - start, result.get("seconds", 0.0))
        self.wait()  # nobody still reads what now moves
        if task.repeatable and before.get("key") == task.key:
            refuse_different(task.name, before["result"], result, self.folder)
        record = {
            "name": task.name, "key": task.key, "needs": list(task.needs), "seconds": seconds,
            "threads": torch.get_num_threads(), "outputs": list(task.outputs), "result": result,
        }  # fmt: skip
        if self.main:
            if before.get("key") not in (None, task.key):
                self.forget_derived(before, task.outputs)
            self.path(task.name).unlink(missing_ok=True)
            self.publish(work / MADE, task.outputs, before.get("outputs", []))
            write_text(self.path(task.name), json.dumps(record, indent=1))
        return record

    @contextmanager
    def locked(self, label: str) -> Iterator[None]:
        """One process at a time makes a task; of several that make it together, the main one holds the lock."""
        if not self.main:
            yield
            return
        (self.folder / ".tasks").mkdir(parents=True, exist_ok=True)
        with FileLock(self.folder / ".tasks" / f"{label}.lock"):
            yield

    def forget_derived(self, before: dict[str, Any], kept: Sequence[str]) -> None:
        """Changing a task invalidates everything derived from it, so that no table mixes results of both.

        before: the task's old record. kept: its new outputs, which `publish` replaces.
        """
        records = self.records()
        del records[before["name"]]
        lost: list[dict[str, Any]] = []
        gone = {before["key"]}
        while found := [name for name, record in records.items() if not gone.isdisjoint(record.get("needs", []))]:
            lost += [records.pop(name) for name in found]
            gone |= {record["key"] for record in lost}
        used = {*kept, *(output for record in records.values() for output in record.get("outputs", []))}
        for record in reversed(lost):  # a run that is killed here still finds what led to the rest
            for output in {*record.get("outputs", [])} - used:
                remove(self.folder / output)
            self.path(record["name"]).unlink(missing_ok=True)

    def publish(self, made: Path, outputs: Sequence[str], before: Sequence[str]) -> None:
        """Move outputs to their places, and remove those that other inputs had left there."""
        for path in {*before, *outputs}:
            if (self.folder / path).is_dir() or path not in outputs:
                remove(self.folder / path)
        for path in outputs:
            (self.folder / path).parent.mkdir(parents=True, exist_ok=True)
            (made / path).replace(self.folder / path)  # a file that others read is there at every moment


def label_of(name: str) -> str:
    """A task's name as the name of a file."""
    return name.replace("/", ".")


def remove(path: Path) -> None:
    """Remove a file or a folder, if it is there."""
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def refuse_different(name: str, before: Result, now: Result, folder: Path) -> None:
    """A model made again from the same inputs must be the same, or its measurements would be of another one."""
    changed = [key for key in before.keys() & now.keys() if key != "seconds" and before[key] != now[key]]
    if changed:
        raise HeadwiseError(
            f"{name} was made again in {folder} and came out different ({', '.join(sorted(changed))}), as on another "
            "machine or with other threads: go on there, or choose another --out."
        )


def read_record(path: Path) -> dict[str, Any]:
    """A record; empty where there is none, it is damaged, or an output would lie outside the folder."""
    try:
        stat = path.stat()
        return parsed(path, stat.st_mtime_ns, stat.st_size)
    except (OSError, ValueError):
        return {}


@lru_cache(maxsize=4096)
def parsed(path: Path, changed: int, size: int) -> dict[str, Any]:
    """A record as it was at some time: a study of many tasks looks at all of them after every one."""
    data = json.loads(path.read_text(encoding="utf-8"))
    whole = isinstance(data, dict) and {"name", "key", "seconds", "outputs", "result"} <= data.keys()
    inside = whole and isinstance(data["outputs"], list) and all(map(is_inside, data["outputs"]))
    return data if inside else {}


def is_inside(output: Any) -> bool:
    """Whether a path that was read from disk stays inside its folder."""
    parts = Path(output).parts if isinstance(output, str) else ()
    return bool(parts) and not Path(output).is_absolute() and ".." not in parts


@contextmanager
def locked_folder(folder: Path, main: bool) -> Iterator[None]:
    """A run folder, made if need be and locked against a second run."""
    lock = FileLock(folder / ".lock")
    try:
        if main:
            folder.mkdir(parents=True, exist_ok=True)
            lock.acquire(timeout=0)
    except Timeout:
        raise HeadwiseError(f"Another process is working on {folder}: wait for it, or choose another --out.") from None
    except OSError as error:
        raise HeadwiseError(
            f"The run was to be written to {folder}, but that is not possible ({error.strerror}): choose another --out."
        ) from None
    try:
        yield
    finally:
        lock.release()
