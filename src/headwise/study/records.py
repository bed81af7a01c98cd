"""The store of a run: what finished steps made, each under a key that says what it was made from.

`.steps/NAME.json` records a finished step: its key, the keys it needed, its seconds, its outputs with size and SHA-256
of every file, its result. Outputs are written into a work folder, moved to their places when all are whole, and only
then recorded. A step whose record or files are damaged is not done. `.work/NAME-KEY/` holds unfinished work: a killed
step goes on there. Of several processes all do a step; only the main one writes.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from filelock import FileLock, Timeout

from headwise.errors import HeadwiseError
from headwise.files import below, damaged, is_inside, manifest
from headwise.heads import write_text
from headwise.progress import Progress

if TYPE_CHECKING:
    from headwise.study.step import Build

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
        """Steps of the block run in one process and wait for no other."""
        before, self.together = self.together, False
        try:
            yield
        finally:
            self.together = before

    def record(self, name: str) -> dict[str, Any]:
        """The record of a finished step, whatever it was made from; empty without one."""
        return read_record(self.path(name))

    def seal(self, tables: Sequence[str]) -> None:
        """Note size and hash of tables that are written from what steps recorded; they are no step of their own."""
        write_text(self.path("tables"), sealed({"files": manifest(self.folder, tables)}))

    def path(self, name: str) -> Path:
        return below(self.folder / ".steps", f"{label_of(name)}.json")

    def records(self) -> dict[str, dict[str, Any]]:
        """All records by the name of their step."""
        found = (read_record(path) for path in sorted((self.folder / ".steps").glob("*.json")))
        return {record["name"]: record for record in found if "name" in record}

    def holds(self, name: str, key: str, outputs: Sequence[str]) -> bool:
        """Whether a step was made from just these inputs, and these outputs are still as it wrote them."""
        record = self.record(name)
        return record.get("key") == key and not self.damage(record, outputs)

    def damage(self, record: Mapping[str, Any], outputs: Sequence[str]) -> list[str]:
        """What is wrong with some outputs of a recorded step."""
        lost = [
            f"{output} is missing" for output in outputs if not below(self.folder, output).exists()
        ]
        return lost or damaged(self.folder, within(record["files"], outputs))

    def get_or_make(self, build: Build, required: Sequence[str]) -> Result:
        """The result of a step, made now unless the store holds it. required: outputs that must be there."""
        name = build.step.name
        label = label_of(name)
        work = below(self.folder / ".work", f"{label}-{build.key}")
        with self.locked(label):
            held = self.agreed(self.main and self.holds(name, build.key, required))
            record = self.record(name) if held else self.make(build, work, required)
            if self.main:
                # Once it is made, unfinished work from other inputs is of no use either.
                any_key = "[0-9a-f]" * len(build.key)
                unfinished = [work] if held else work.parent.glob(f"{label}-{any_key}")
                for folder in unfinished:
                    shutil.rmtree(folder, ignore_errors=True)
            self.wait()  # the next step finds the outputs
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

    def make(self, build: Build, work: Path, required: Sequence[str]) -> dict[str, Any]:
        """Make a step and publish its outputs. Returns the new record."""
        import torch

        name = build.step.name
        before = self.record(name)
        if self.main:
            self.say_why(build, before, required)
        start = time.perf_counter()
        with self.progress.bar(name):
            result = build.make(work)
        seconds = max(time.perf_counter() - start, result.get("seconds", 0.0))
        self.wait()  # nobody still reads what now moves

        outputs = build.outputs
        reproducible = build.reproducible
        files = manifest(work / MADE, outputs) if self.main else {}
        content = digest(within(files, reproducible)) if reproducible else None
        if self.main and content and self.contents(build, before) - {content}:
            self.refuse_difference(build)
        needs = {key: self.record(needed).get("content") for key, needed in build.needs.items()}
        record = {
            "name": name,
            "key": build.key,
            "seconds": seconds,
            "threads": torch.get_num_threads(),
            "device": build.run.device_name,
            "content": content,
            "needs": needs,
            "texts": build.run.fingerprints,
            "outputs": outputs,
            "files": files,
            "result": result,
        }

        if self.main:
            if before.get("key") not in (None, build.key):
                self.forget_derived(before["key"], build)
            self.path(name).unlink(missing_ok=True)
            self.publish(work / MADE, outputs, before.get("outputs", []))
            write_text(self.path(name), sealed(record))
        return record

    def say_why(self, build: Build, before: Mapping[str, Any], required: Sequence[str]) -> None:
        """Say why a step that was finished once is made again."""
        name = build.step.name
        if before.get("key") == build.key:
            damage = "; ".join(self.damage(before, required)[:3])
            self.progress.say(f"  {name} is made again: {damage}.")
        elif before and build.reproducible:
            self.progress.say(
                f"  {name} is made again, with all that was derived from it: what it is made from changed."
            )
        elif not before and self.path(name).exists():
            self.progress.say(f"  {name} is made again: its record is damaged.")

    def contents(self, build: Build, before: Mapping[str, Any]) -> set[str]:
        """What the reproducible outputs of a step were before, as its record and the records of what was derived from
        it say."""
        contents = {record["needs"].get(build.key) for record in self.records().values()}
        if before.get("key") == build.key:
            contents.add(before.get("content"))
        return contents - {None}

    def refuse_difference(self, build: Build) -> None:
        """A model made again from the same inputs must be the same, or its measurements would be of another one.

        Raises HeadwiseError on a device that is exact; on another one, all that was derived from it is made again.
        """
        name = build.step.name
        if build.run.exact:
            raise HeadwiseError(
                f"{name} was made again in {self.folder} and came out different, as on another machine or with "
                "other threads: go on there, or choose another --out."
            )
        self.progress.say(
            f"  {name} came out different: all that was derived from it is made again."
        )
        self.forget_derived(build.key, build)

    @contextmanager
    def locked(self, label: str) -> Iterator[None]:
        """One process at a time makes a step; of several that make it together, the main one holds the lock."""
        if not self.main:
            yield
            return
        (self.folder / ".steps").mkdir(parents=True, exist_ok=True)
        with FileLock(below(self.folder / ".steps", f"{label}.lock")):
            yield

    def forget_derived(self, key: str, build: Build) -> None:
        """Changing a step invalidates everything derived from it, so that no table mixes results of both.

        key: the one that is replaced. build: what replaces it, whose outputs `publish` replaces.
        """
        records = self.records()
        records.pop(build.step.name, None)

        lost: list[dict[str, Any]] = []
        keys = {key}
        while True:
            derived = [
                name for name, record in records.items() if not keys.isdisjoint(record["needs"])
            ]
            if not derived:
                break
            for name in derived:
                record = records.pop(name)
                lost.append(record)
                keys.add(record["key"])

        used = set(build.outputs)
        for record in records.values():
            used.update(record["outputs"])
        for record in reversed(lost):  # a run that is killed here still finds what led to the rest
            for output in set(record["outputs"]) - used:
                delete_path(below(self.folder, output))
            self.path(record["name"]).unlink(missing_ok=True)

    def publish(self, made: Path, outputs: Sequence[str], before: Sequence[str]) -> None:
        """Move outputs to their places, and remove those that other inputs had left there."""
        for path in {*before, *outputs}:
            if below(self.folder, path).is_dir() or path not in outputs:
                delete_path(below(self.folder, path))
        for path in outputs:
            below(self.folder, path).parent.mkdir(parents=True, exist_ok=True)
            below(made, path).replace(
                below(self.folder, path)
            )  # a file that others read is there at every moment


def label_of(name: str) -> str:
    """A step's name as the name of a file."""
    return name.replace("/", ".")


def delete_path(path: Path) -> None:
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
    """A record as it was at some time: a study of many steps looks at all of them after every one."""
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
