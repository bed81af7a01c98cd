"""The store of a run: what finished steps made, each under a key that says what it was made from.

`.steps/NAME.json` records a finished step: its key, the keys it depended on, its seconds, its outputs with size and
SHA-256 of every file, its result. Outputs are written into a work folder, moved to their places when all are complete,
and only then recorded. A step whose record or files are damaged is not done. `.work/NAME-KEY/` holds unfinished work: a
killed step continues there. Of several processes all do a step; only the main one writes.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from filelock import FileLock

from headwise.errors import HeadwiseError
from headwise.files import (
    below,
    damaged,
    digest,
    is_inside,
    manifest,
    manifest_of,
    read_with_checksum,
    with_checksum,
)
from headwise.heads import write_bytes, write_text
from headwise.model_files import README
from headwise.progress import Progress

if TYPE_CHECKING:
    from headwise.study.step import Build

Result = dict[str, Any]
RECORD_FIELDS: dict[
    str, Any
] = {  # what every record must have; `content` and `environment` may be absent
    "name": str,
    "key": str,
    "seconds": (int, float),
    "dependencies": dict,
    "texts": dict,
    "outputs": list,
    "files": dict,
    "result": dict,
}
REPLACED = ".replaced"  # the folder of a run where results of an earlier model are kept
STAGING = "staging"  # the folder inside a work folder where outputs wait, under their own names, until all are complete


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
        before = self.synchronized
        self.synchronized = False
        try:
            yield
        finally:
            self.synchronized = before

    def record(self, name: str) -> dict[str, Any]:
        """The record of a finished step, whatever it was made from; empty without one."""
        return read_record(self.path(name))

    def write_tables(self, contents: Mapping[str, str]) -> None:
        """Write tables that come from what steps recorded, and have no step of their own, instead of the earlier ones.

        The record is written first: it says whose the tables are, also when a killed process wrote only some of them.
        """
        before = read_with_checksum(self.path("tables")).get("files", {})
        write_text(self.path("tables"), with_checksum({"files": manifest_of(contents)}))
        for name, text in contents.items():
            write_text(below(self.folder, name), text)
        for name in before.keys() - contents.keys():
            below(self.folder, name).unlink(missing_ok=True)

    def path(self, name: str) -> Path:
        return below(self.folder / ".steps", f"{label_of(name)}.json")

    def records(self) -> dict[str, dict[str, Any]]:
        """All records by the name of their step."""
        records: dict[str, dict[str, Any]] = {}
        for path in sorted((self.folder / ".steps").glob("*.json")):
            record = read_record(path)
            if "name" in record:
                records[record["name"]] = record
        return records

    def holds(self, name: str, key: str, outputs: Sequence[str]) -> bool:
        """Whether a step was made from just these inputs, and these outputs are still as it wrote them."""
        record = self.record(name)
        return record.get("key") == key and not self.damage(record, outputs)

    def damage(self, record: Mapping[str, Any], outputs: Sequence[str]) -> list[str]:
        """What is wrong with some outputs of a recorded step."""
        missing = []
        for output in outputs:
            if not below(self.folder, output).exists():
                missing.append(f"{output} is missing")
        return missing or damaged(self.folder, files_of_outputs(record["files"], outputs))

    def get_or_make(self, build: Build, required: Sequence[str]) -> Result:
        """The result of a step, made now unless the store holds it. required: outputs that must be there."""
        name = build.step.name
        label = label_of(name)
        work = below(self.folder / ".work", f"{label}-{build.key}")
        with self.locked(label):
            stored = self.answer_of_main(self.main and self.holds(name, build.key, required))
            record = self.record(name) if stored else self.make(build, work, required)
            if self.main:
                unfinished = [work]
                if not stored:
                    # Unfinished work from other inputs is of no use any more.
                    any_key = "[0-9a-f]" * len(build.key)
                    unfinished += work.parent.glob(f"{label}-{any_key}")
                for folder in unfinished:
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

    def make(self, build: Build, work: Path, required: Sequence[str]) -> dict[str, Any]:
        """Make a step and publish its outputs. Returns the new record."""
        from headwise.environment import environment_info  # loads torch

        name = build.step.name
        before = self.record(name)
        if self.main:
            self.refuse_unrecorded(build)
            self.say_why(build, before, required)
        start = time.perf_counter()
        with self.progress.bar(name):
            result = build.make(work)
        seconds = max(time.perf_counter() - start, result.get("seconds", 0.0))
        self.wait()  # nobody still reads what now moves

        outputs = build.outputs
        reproducible = build.reproducible_outputs
        files = manifest(work / STAGING, outputs) if self.main else {}
        content = digest(files_of_outputs(files, reproducible)) if reproducible else None
        if self.main and content and self.contents(build, before) - {content}:
            self.refuse_difference(build)
        dependencies: dict[str, str | None] = {}
        for key, parent in build.dependency_names.items():
            dependencies[key] = self.record(parent).get("content")
        record = {
            "name": name,
            "key": build.key,
            "seconds": seconds,
            "environment": environment_info(),
            "device": build.run.device_name,
            "dtype": build.run.number_type,
            "content": content,
            "dependencies": dependencies,
            "texts": build.run.fingerprints,
            "outputs": outputs,
            "files": files,
            "result": result,
        }

        if self.main:
            if before.get("key") not in (None, build.key):
                self.set_aside(before["key"], build)
            # From now on the step is not done, and what lies at the places of its outputs is its own.
            left = [*before.get("outputs", self.half_published(name)), *outputs]
            write_text(self.path(name), with_checksum({"unfinished": left}))
            self.publish(work / STAGING, outputs, left)
            write_text(self.path(name), with_checksum(record))
        return record

    def refuse_unrecorded(self, build: Build) -> None:
        """Raise HeadwiseError where an output of a step is there, and no record of this run is about it: it is the
        user's. A damaged record also says that the step was here."""
        if self.path(build.step.name).exists():
            return
        recorded: set[str] = set()
        for record in self.records().values():
            recorded.update(record["outputs"])
        for output in build.outputs:
            path = below(self.folder, output)
            if output not in recorded and (path.exists() or path.is_symlink()):
                raise HeadwiseError(
                    f"{build.step.name} would write {path}, which is there already and which no record of this study "
                    "names: move it away, or choose another --out."
                )

    def half_published(self, name: str) -> list[str]:
        """The outputs of a step, old and new, that a killed process was replacing."""
        outputs = read_with_checksum(self.path(name)).get("unfinished", [])
        return [output for output in outputs if is_inside(output)]

    def say_why(self, build: Build, before: Mapping[str, Any], required: Sequence[str]) -> None:
        """Say why a step that was finished once is made again."""
        name = build.step.name
        if before.get("key") == build.key:
            damage = "; ".join(self.damage(before, required)[:3])
            self.progress.say(f"  {name} is made again: {damage}.")
        elif before and build.reproducible_outputs:
            self.progress.say(
                f"  {name} is made again, with all that was derived from it: what it is made from changed."
            )
        elif not before and self.path(name).exists() and not self.half_published(name):
            self.progress.say(f"  {name} is made again: its record is damaged.")

    def contents(self, build: Build, before: Mapping[str, Any]) -> set[str]:
        """Hashes of what the reproducible outputs of a step were before, as its record and the records of what was
        derived from it say."""
        contents = {record["dependencies"].get(build.key) for record in self.records().values()}
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
        self.set_aside(build.key, build)

    @contextmanager
    def locked(self, label: str) -> Iterator[None]:
        """One process at a time makes a step; of several that make it together, the main one holds the lock."""
        if not self.main:
            yield
            return
        (self.folder / ".steps").mkdir(parents=True, exist_ok=True)
        with FileLock(below(self.folder / ".steps", f"{label}.lock")):
            yield

    def set_aside(self, key: str, build: Build) -> None:
        """Move a step and all that was derived from it to `.replaced/NAME-KEY/`, with their records and a copy of the
        tables: no table mixes results of both, and nothing is lost. A step that nothing was derived from stays.

        key: of what is replaced. build: what replaces it, whole by now.
        """
        name = build.step.name
        records = self.records()
        # Collect what was made from the step, then what was made from that, until there is no more.
        own = records.pop(name, None)
        derived: list[dict[str, Any]] = []
        keys = {key}
        while True:
            names = []
            for other, record in records.items():
                if not keys.isdisjoint(record["dependencies"]):
                    names.append(other)
            if not names:
                break
            for other in names:
                derived.append(records.pop(other))
                keys.add(derived[-1]["key"])
        if not derived:
            return

        used: set[str] = set()
        for record in records.values():
            used.update(record["outputs"])
        aside = below(self.folder / REPLACED, f"{label_of(name)}-{key}")
        for table in read_with_checksum(self.path("tables")).get("files", {}):
            if below(self.folder, table).is_file():
                write_bytes(below(aside, table), below(self.folder, table).read_bytes())
        # The last ones first: a run that is killed here still finds what led to the rest.
        for record in [*reversed(derived), *([own] if own else [])]:
            move(sorted(set(record["outputs"]) - used), self.folder, aside)
            label = f"{label_of(record['name'])}.json"
            move([label], self.folder / ".steps", aside / ".steps")
        self.progress.say(f"  What was made from the earlier {name} is kept in {aside}.")

    def publish(self, staging: Path, outputs: Sequence[str], before: Sequence[str]) -> None:
        """Move outputs to their places, and remove those that other inputs had left there."""
        for path in {*before, *outputs}:
            if below(self.folder, path).is_dir() or path not in outputs:
                delete_path(below(self.folder, path))
        for path in outputs:
            below(self.folder, path).parent.mkdir(parents=True, exist_ok=True)
            # Replaced, not removed and written: a file that others read is there at every moment.
            below(staging, path).replace(below(self.folder, path))


def label_of(name: str) -> str:
    """A step's name as the name of a file."""
    return name.replace("/", ".")


def move(names: Iterable[str], folder: Path, to: Path) -> None:
    """Move files and folders from one folder to the same places in another."""
    for name in names:
        source = below(folder, name)
        if source.exists():
            delete_path(below(to, name))
            below(to, name).parent.mkdir(parents=True, exist_ok=True)
            source.rename(below(to, name))


def delete_path(path: Path) -> None:
    """Remove a file or a folder, if it is there."""
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def files_of_outputs(files: Mapping[str, Any], outputs: Sequence[str]) -> dict[str, Any]:
    """The files of a manifest that belong to some outputs, which are files or folders. The README of a model is none:
    words about it may change."""
    folders = tuple(f"{output}/" for output in outputs)
    found = {}
    for file, facts in files.items():
        if f"{file}/".startswith(folders) and not file.endswith(f"/{README}"):
            found[file] = facts
    return found


def read_record(path: Path) -> dict[str, Any]:
    """A record; empty where there is none, it is damaged, or an output would lie outside the folder."""
    try:
        stat = path.stat()
        return parse_record(path, stat.st_mtime_ns, stat.st_size)
    except OSError:
        return {}


@lru_cache(maxsize=4096)
def parse_record(path: Path, changed: int, size: int) -> dict[str, Any]:
    """A record, read once as long as the time and the size of its file stay: a study of many steps reads all records
    after every step."""
    record = read_with_checksum(path)
    for name, kind in RECORD_FIELDS.items():
        if not isinstance(record.get(name), kind):
            return {}
    for facts in record["files"].values():
        if not isinstance(facts, list) or len(facts) != 2:  # size and hash
            return {}
    if not all(map(is_inside, [*record["outputs"], *record["files"]])):
        return {}
    return record
