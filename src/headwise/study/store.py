"""The store of a run: what finished tasks made, each under a key that says what it was made from.

`.tasks/NAME.json` records a finished task: its key, the keys it needed, its seconds, its outputs with size and SHA-256
of every file, its result. Outputs are written into a work folder, moved to their places when all are whole, and only
then recorded. A task whose record or files are damaged is not done. `.work/NAME-KEY/` holds unfinished work: a killed
task goes on there. Of several processes all run a task; only the main one writes.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from headwise.errors import HeadwiseError
from headwise.files import below, damaged, is_inside, manifest
from headwise.heads import write_text
from headwise.study.progress import Progress

Result = dict[str, Any]
FIELDS: dict[str, Any] = {  # of a record, beside `content` and `threads`
    "name": str,
    "key": str,
    "seconds": (int, float),
    "needs": dict,
    "texts": dict,
    "outputs": list,
    "files": dict,
    "result": dict,
}
MADE = "made"  # the folder inside a work folder that holds outputs under their own names


def digest(value: Any) -> str:
    """A short hash of anything JSON can hold."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]


@dataclass(frozen=True)
class Making:
    """How a task's outputs come about. needs: the names of the tasks it uses, by their keys.

    lasting: those outputs that must be the same when they are made again, or all that was derived from them would be
    of another model. exact: on this device they are, bit by bit, so a difference means another machine and is refused;
    elsewhere what was derived goes, and is made again. texts: the fingerprints of the texts it read, by split.
    device: where it is made.
    """

    name: str
    key: str
    needs: Mapping[str, str]
    outputs: Sequence[str]
    make: Callable[[Path], Result]
    lasting: Sequence[str] = ()
    exact: bool = True
    texts: Callable[[], Mapping[str, str]] = field(default=dict)
    device: str = "cpu"


class Store:
    """The records and outputs in one run folder."""

    def __init__(self, folder: Path, progress: Progress) -> None:
        self.folder, self.progress = folder, progress
        self.together = True

    @property
    def main(self) -> bool:
        """Whether this process is the one that writes."""
        from accelerate import (
            PartialState,
        )  # takes seconds, and a folder is refused before it is needed

        return bool(PartialState().is_main_process)

    def wait(self) -> None:
        """Until all processes are here; not while one works alone."""
        from accelerate import PartialState

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

    def seal(self, tables: Sequence[str]) -> None:
        """Note size and hash of tables that are written from what tasks recorded; they are no task of their own."""
        write_text(self.path("tables"), sealed({"files": manifest(self.folder, tables)}))

    def path(self, name: str) -> Path:
        return below(self.folder, f".tasks/{label_of(name)}.json")

    def records(self) -> dict[str, dict[str, Any]]:
        """All records by the name of their task."""
        found = (read_record(path) for path in sorted((self.folder / ".tasks").glob("*.json")))
        return {record["name"]: record for record in found if "name" in record}

    def holds(self, name: str, key: str, outputs: Sequence[str]) -> bool:
        """Whether a task was made from just these inputs, and these outputs are still as it wrote them."""
        record = self.record(name)
        return record.get("key") == key and not self.damage(record, outputs)

    def damage(self, record: Mapping[str, Any], outputs: Sequence[str]) -> list[str]:
        """What is wrong with some outputs of a recorded task."""
        lost = [
            f"{output} is missing" for output in outputs if not below(self.folder, output).exists()
        ]
        return lost or damaged(self.folder, within(record["files"], outputs))

    def obtain(self, task: Making, required: Sequence[str]) -> Result:
        """The result of a task, made now unless the store holds it. required: outputs that must be there."""
        label = label_of(task.name)
        work = self.folder / ".work" / f"{label}-{task.key}"
        with self.locked(label):
            held = self.agreed(self.main and self.holds(task.name, task.key, required))
            record = self.record(task.name) if held else self.made(task, work, required)
            if self.main:
                for unfinished in (
                    [work] if held else work.parent.glob(f"{label}-{'[0-9a-f]' * len(task.key)}")
                ):
                    shutil.rmtree(unfinished, ignore_errors=True)
            self.wait()  # the next task finds the outputs
        return dict(record["result"])

    def agreed(self, mine: bool) -> bool:
        """What the main process found, for all that work together: one that looked for itself might go another way."""
        from accelerate import PartialState
        from accelerate.utils import broadcast_object_list

        if not self.together or PartialState().num_processes == 1:
            return mine
        answer = [mine]
        broadcast_object_list(answer)
        return answer[0]

    def made(self, task: Making, work: Path, required: Sequence[str]) -> dict[str, Any]:
        """Make a task and publish its outputs. Returns the new record."""
        import torch

        before, start = self.record(task.name), time.perf_counter()
        if self.main:
            self.say_why(task, before, required)
        with self.progress.task(task.name):
            result = task.make(work)
        seconds = max(time.perf_counter() - start, result.get("seconds", 0.0))
        self.wait()  # nobody still reads what now moves
        files = manifest(work / MADE, task.outputs) if self.main else {}
        content = digest(within(files, task.lasting)) if task.lasting else None
        if self.main and content and self.contents(task, before) - {content}:
            self.differs(task)
        record = {
            "name": task.name,
            "key": task.key,
            "seconds": seconds,
            "threads": torch.get_num_threads(),
            "device": task.device,
            "content": content,
            "needs": {key: self.record(name).get("content") for key, name in task.needs.items()},
            "texts": dict(task.texts()),
            "outputs": list(task.outputs),
            "files": files,
            "result": result,
        }
        if self.main:
            if before.get("key") not in (None, task.key):
                self.forget_derived(before["key"], task)
            self.path(task.name).unlink(missing_ok=True)
            self.publish(work / MADE, task.outputs, before.get("outputs", []))
            write_text(self.path(task.name), sealed(record))
        return record

    def say_why(self, task: Making, before: Mapping[str, Any], required: Sequence[str]) -> None:
        """Say why a task that was finished once is made again."""
        if before.get("key") == task.key:
            self.progress.say(
                f"  {task.name} is made again: {'; '.join(self.damage(before, required)[:3])}."
            )
        elif before and task.lasting:
            self.progress.say(
                f"  {task.name} is made again, with all that was derived from it: what it is made from changed."
            )
        elif not before and self.path(task.name).exists():
            self.progress.say(f"  {task.name} is made again: its record is damaged.")

    def contents(self, task: Making, before: Mapping[str, Any]) -> set[str]:
        """What the lasting outputs of a task were before, as its record and the records of what was derived from it
        say."""
        own = before.get("content") if before.get("key") == task.key else None
        return {own, *(record["needs"].get(task.key) for record in self.records().values())} - {
            None
        }

    def differs(self, task: Making) -> None:
        """A model made again from the same inputs must be the same, or its measurements would be of another one."""
        if task.exact:
            raise HeadwiseError(
                f"{task.name} was made again in {self.folder} and came out different, as on another machine or with "
                "other threads: go on there, or choose another --out."
            )
        self.progress.say(
            f"  {task.name} came out different: all that was derived from it is made again."
        )
        self.forget_derived(task.key, task)

    @contextmanager
    def locked(self, label: str) -> Iterator[None]:
        """One process at a time makes a task; of several that make it together, the main one holds the lock."""
        if not self.main:
            yield
            return
        (self.folder / ".tasks").mkdir(parents=True, exist_ok=True)
        with FileLock(self.folder / ".tasks" / f"{label}.lock"):
            yield

    def forget_derived(self, key: str, task: Making) -> None:
        """Changing a task invalidates everything derived from it, so that no table mixes results of both.

        key: the one that goes. task: what takes its place, whose outputs `publish` replaces.
        """
        records = self.records()
        records.pop(task.name, None)
        lost: list[dict[str, Any]] = []
        gone = {key}
        while found := [
            name for name, record in records.items() if not gone.isdisjoint(record["needs"])
        ]:
            lost += [records.pop(name) for name in found]
            gone |= {record["key"] for record in lost}
        used = {
            *task.outputs,
            *(output for record in records.values() for output in record.get("outputs", [])),
        }
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
            (made / path).replace(
                self.folder / path
            )  # a file that others read is there at every moment


def label_of(name: str) -> str:
    """A task's name as the name of a file."""
    return name.replace("/", ".")


def remove(path: Path) -> None:
    """Remove a file or a folder, if it is there."""
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def within(files: Mapping[str, Any], outputs: Sequence[str]) -> dict[str, Any]:
    """The files of a manifest that belong to some outputs."""
    starts = tuple(f"{output}/" for output in outputs)
    return {file: facts for file, facts in files.items() if f"{file}/".startswith(starts)}


def sealed(record: Mapping[str, Any]) -> str:
    """A record as its file has it, with a sum over all it says."""
    facts = json.loads(json.dumps(record))
    return json.dumps({**facts, "sum": digest(facts)}, indent=1)


def read_record(path: Path) -> dict[str, Any]:
    """A record; empty where there is none, it is damaged, or an output would lie outside the folder."""
    try:
        stat = path.stat()
        return parsed(path, stat.st_mtime_ns, stat.st_size)
    except (OSError, ValueError, RecursionError):
        return {}


@lru_cache(maxsize=4096)
def parsed(path: Path, changed: int, size: int) -> dict[str, Any]:
    """A record as it was at some time: a study of many tasks looks at all of them after every one."""
    data = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(data, dict) or data.pop("sum", None) != digest(data):
        return {}
    if not all(isinstance(data.get(name), kind) for name, kind in FIELDS.items()):
        return {}
    inside = all(map(is_inside, [*data["outputs"], *data["files"]]))
    return (
        data
        if inside and all(isinstance(f, list) and len(f) == 2 for f in data["files"].values())
        else {}
    )


@contextmanager
def locked_folder(folder: Path, main: bool) -> Iterator[None]:
    """A run folder, made if need be and locked against a second run."""
    lock = FileLock(folder / ".lock")
    try:
        if main:
            folder.mkdir(parents=True, exist_ok=True)
            lock.acquire(timeout=0)
    except Timeout:
        raise HeadwiseError(
            f"Another process is working on {folder}: wait for it, or choose another --out."
        ) from None
    except OSError as error:
        raise HeadwiseError(
            f"The run was to be written to {folder}, but that is not possible ({error.strerror}): choose another --out."
        ) from None
    try:
        yield
    finally:
        lock.release()
