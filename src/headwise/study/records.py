"""The store of a run: what finished steps made, each under a key that says what it was made from.

`.steps/NAME.json` records a finished step: its key, the keys it depended on, its seconds, its outputs with size and
SHA-256 of every file, its result. Outputs are written into a work folder, moved to their places when all are complete,
and only then recorded. A step whose record or files are damaged is not done. `.work/NAME-KEY/` holds unfinished work: a
killed step continues there. With several processes, all do a step and only the main one writes.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from filelock import FileLock

from headwise.core.errors import HeadwiseError
from headwise.core.folders import (
    Content,
    Folder,
    Manifest,
    below,
    digest,
    files_in,
    is_name,
    manifest,
    move,
)
from headwise.core.progress import Progress
from headwise.models.model_files import README

StepResult = dict[str, Any]
Record = Mapping[str, Any]
OF_TABLES = ".steps/tables.json"  # the record of tables that come from the results of several steps
REPLACED = ".replaced"  # the folder of a run where results of an earlier model are kept
STAGING = "staging"  # the folder inside a work folder where outputs wait, under their own names, until all are complete
# What a reader of results does not need: it may stay behind, or be of another version.
NOT_READ = ("model/", "pruned/", "scores/", "losses/", "rankings/", "corpus/")


class Making(Protocol):
    """A step in its run, as the store makes it (`step.Job`)."""

    @property
    def step(self) -> Any: ...

    @property
    def run(self) -> Any: ...

    @property
    def key(self) -> str: ...

    @property
    def dependency_names(self) -> Mapping[str, str]: ...

    @property
    def outputs(self) -> Sequence[str]: ...

    @property
    def reproducible_outputs(self) -> Sequence[str]: ...

    @property
    def make(self) -> Callable[[Path], StepResult]: ...


class Store:
    """The records and outputs in one run folder."""

    def __init__(self, folder: Path, progress: Progress) -> None:
        self.folder = folder
        self.progress = progress
        # Whether all processes do the same steps at the same time, and so may wait for each other.
        self.synchronized = True

    @property
    def main(self) -> bool:
        """Whether this process is the one that writes."""
        # Imported late: this takes seconds, and the folder of another plan should be refused at once.
        from accelerate import PartialState

        return bool(PartialState().is_main_process)

    def wait(self) -> None:
        """Wait until all processes are here; not where one works alone."""
        from accelerate import PartialState

        if self.synchronized:
            PartialState().wait_for_everyone()

    @contextmanager
    def alone(self) -> Iterator[None]:
        """A block whose steps are done in one process, which waits for no other."""
        # Blocks may be nested.
        before = self.synchronized
        self.synchronized = False
        try:
            yield
        finally:
            self.synchronized = before

    def of(self, name: str) -> Folder:
        """The folder with the record of a step."""
        return Folder(self.folder, record=f".steps/{file_label(name)}.json")

    def record(self, name: str) -> Record:
        """The record of a finished step, whatever it was made from; empty without one."""
        record = self.of(name).read()
        return record if "key" in record else {}

    def records(self) -> dict[str, Record]:
        """All records by the name of their step."""
        records = map(Folder.read, run_records(self.folder))
        return {record["name"]: record for record in records if "key" in record}

    def holds(self, name: str, key: str, outputs: Sequence[str]) -> bool:
        """Whether a step was made from just these inputs, and these outputs are still as it wrote them."""
        record = self.record(name)
        return record.get("key") == key and not self.damage(record, outputs)

    def damage(self, record: Record, outputs: Sequence[str]) -> list[str]:
        """What is wrong with some outputs of a recorded step."""
        return Folder(self.folder).damage(files_of_outputs(record["files"], outputs))

    def remove(self, name: str, output: str) -> None:
        """Remove an output of a step, a folder with `/`."""
        folder = self.of(name)
        folder.remove(file for file in folder.files if file.startswith(output))

    def get_or_make(self, job: Making, required: Sequence[str]) -> StepResult:
        """The result of a step, made now unless the store holds it. required: outputs that must be there."""
        name = job.step.name
        label = file_label(name)
        work = below(self.folder / ".work", f"{label}-{job.key}")
        with self.locked(label):
            # The others are told: they must not look for themselves, at another moment.
            stored = self.answer_of_main(self.main and self.holds(name, job.key, required))
            record = self.record(name) if stored else self.make(job, work, required)
            if self.main:
                # Once a step is made, unfinished work from other inputs is of no use any more.
                key = job.key if stored else "[0-9a-f]" * len(job.key)
                for folder in work.parent.glob(f"{label}-{key}"):
                    shutil.rmtree(folder, ignore_errors=True)
            self.wait()  # the next step finds the outputs
        return dict(record["result"])

    def answer_of_main(self, own: bool) -> bool:
        """The answer of the main process, for all processes that do the same steps.

        If each looked for itself, one might make a step that another one reads, and they would wait for each other.
        """
        from accelerate import PartialState
        from accelerate.utils import broadcast_object_list

        if not self.synchronized or PartialState().num_processes == 1:
            return own
        answers = [own]
        broadcast_object_list(answers)
        return answers[0]

    def make(self, job: Making, work: Path, required: Sequence[str]) -> Record:
        """Make a step and publish its outputs. Returns the new record."""
        from headwise.models.environment import environment_info  # loads torch

        name = job.step.name
        before = self.record(name)
        if self.main:
            self.refuse_unrecorded(job)
            self.say_why(job, before, required)
        start = time.perf_counter()
        with self.progress.bar(name):
            result = job.make(work)
        # A step that went on where a killed one was says how long it took in all.
        seconds = max(time.perf_counter() - start, result.get("seconds", 0.0))
        self.wait()  # nobody still reads what now moves

        contents: dict[str, Content] = {}
        if self.main:
            contents.update(files_in(work / STAGING, job.outputs))
        reproducible = job.reproducible_outputs
        files = files_of_outputs(manifest(contents), reproducible)
        content = digest(files) if reproducible else None
        # What was derived from the step was derived from another model.
        if self.main and content and self.contents(job, before) - {content}:
            self.refuse_difference(job)
        dependencies: dict[str, str | None] = {}
        for key, parent in job.dependency_names.items():
            dependencies[key] = self.record(parent).get("content")
        record = {
            "name": name,
            "key": job.key,
            "seconds": seconds,
            "environment": environment_info(),
            "device": job.run.device_name,
            "dtype": job.run.number_type,
            "content": content,
            "dependencies": dependencies,
            "texts": job.run.fingerprints,
            "result": result,
        }

        if self.main:
            if before.get("key") not in (None, job.key):
                self.set_aside(before["key"], job)
            self.of(name).publish(contents, **record)
        return record

    def refuse_unrecorded(self, job: Making) -> None:
        """Raise HeadwiseError where a file is at the place of an output, and no record of this run is about it: it is the
        user's. A damaged record also says that the step was here."""
        if self.of(job.step.name).record.exists():
            return
        recorded = {name for folder in run_records(self.folder) for name in folder.files}
        there = files_in(self.folder, job.outputs)
        Folder(self.folder).refuse_to_replace(there, recorded)

    def say_why(self, job: Making, before: Record, required: Sequence[str]) -> None:
        """Say why a step that was finished once is made again."""
        name = job.step.name
        if before.get("key") == job.key:
            damage = "; ".join(self.damage(before, required)[:3])
            self.progress.say(f"  {name} is made again: {damage}.")
        elif before and job.reproducible_outputs:
            self.progress.say(
                f"  {name} is made again, with all that was derived from it: what it is made from changed."
            )
        elif not before and self.of(name).record.exists() and not self.of(name).read():
            self.progress.say(f"  {name} is made again: its record is damaged.")

    def contents(self, job: Making, before: Record) -> set[str]:
        """Hashes of what the reproducible outputs of a step were before, as its record and the records of what was
        derived from it say."""
        contents = {record["dependencies"].get(job.key) for record in self.records().values()}
        if before.get("key") == job.key:
            contents.add(before.get("content"))
        return contents - {None}

    def refuse_difference(self, job: Making) -> None:
        """A model made again from the same inputs must be the same, or its measurements would be of another one.

        Raises HeadwiseError on a device that is exact; on another one, all that was derived from it is made again.
        """
        name = job.step.name
        if job.run.exact:
            raise HeadwiseError(
                f"{name} was made again in {self.folder} and came out different, as on another machine or with "
                "other threads: go on there, or choose another --out."
            )
        self.progress.say(
            f"  {name} came out different: all that was derived from it is made again."
        )
        self.set_aside(job.key, job)

    @contextmanager
    def locked(self, label: str) -> Iterator[None]:
        """One process at a time makes a step; of several that make it together, the main one holds the lock."""
        if not self.main:
            yield
            return
        (self.folder / ".steps").mkdir(parents=True, exist_ok=True)
        with FileLock(below(self.folder / ".steps", f"{label}.lock")):
            yield

    def set_aside(self, key: str, job: Making) -> None:
        """Move a step and all that was derived from it to `.replaced/NAME-KEY/`, with their records and a copy of the
        tables: no table mixes results of both, and nothing is lost. A step that nothing was derived from stays.

        key: of what is replaced. job: what replaces it, whole by now.
        """
        name = job.step.name
        records = self.records()
        # Collect what was made from the step, then what was made from that, until there is no more.
        own = records.pop(name, None)
        derived: list[Record] = []
        keys = {key}
        while found := [r for r in records.values() if not keys.isdisjoint(r["dependencies"])]:
            for record in found:
                derived.append(records.pop(record["name"]))
                keys.add(record["key"])
        if not derived:
            return

        # Of steps that stay: a file that they share stays, too.
        used = {file for record in records.values() for file in record["files"]}
        aside = below(self.folder / REPLACED, f"{file_label(name)}-{key}")
        moved = {file for record in derived for file in record["files"]} - used
        number = 1
        # A GPU makes another model under the same key; a run that was killed here goes on with what is left.
        while any(
            below(aside, file).exists() and below(self.folder, file).exists() for file in moved
        ):
            number += 1
            aside = below(self.folder / REPLACED, f"{file_label(name)}-{key}-{number}")
        run = Folder(self.folder)
        for table in Folder(self.folder, record=OF_TABLES).files:
            if below(self.folder, table).is_file():
                Folder(aside).put({table: below(self.folder, table).read_bytes()})
        # The last ones first: a run that is killed here still finds what led to the rest.
        for record in [*reversed(derived), *([own] if own else [])]:
            files = record["files"].keys() - used
            for file in files:
                if below(self.folder, file).is_file():
                    move(below(self.folder, file), below(aside, file))
            run.remove(files)
            path = self.of(record["name"]).record
            move(path, below(aside / ".steps", path.name))
        self.progress.say(f"  What was made from the earlier {name} is kept in {aside}.")


def file_label(name: str) -> str:
    """A step's name as the name of a file."""
    return name.replace("/", ".")


def run_records(folder: Path, pattern: str = "*.json") -> Iterator[Folder]:
    """A run with each of its records in JSON. One of a finished step has its key; of an unfinished one, only files."""
    for path in sorted((folder / ".steps").glob(pattern)):
        if is_name(path.name):
            yield Folder(folder, record=f".steps/{path.name}")


def files_of_outputs(files: Manifest, outputs: Iterable[str]) -> Manifest:
    """The files of a manifest that belong to some outputs, which are files or folders. The README of a model is none:
    words about it may change."""
    folders = tuple(f"{output}/" for output in outputs)
    found = {}
    for file, facts in files.items():
        if f"{file}/".startswith(folders) and not file.endswith(f"/{README}"):
            found[file] = facts
    return found


def refuse_damaged(folder: Path, pattern: str = "*.json") -> None:
    """Raise HeadwiseError where a file of a run that results are read from is missing or not as the study wrote it, as its
    records say. pattern: of the names of records."""
    for run in run_records(folder, pattern):
        files = run.files
        wrong = run.damage({name: files[name] for name in files if not name.startswith(NOT_READ)})
        if not run.read():
            wrong = [f".steps/{run.record.name} has changed"]
        if wrong:
            raise HeadwiseError(
                f"{folder} is damaged: {'; '.join(wrong[:3])}. Run the same study again to heal it."
            )
