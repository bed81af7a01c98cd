"""Stages with a file cache: a stage is a plain function, and is skipped while what goes into it has not changed.

Of several processes every one runs a stage's function; only the main one writes.
"""

from __future__ import annotations

import hashlib
import json
import platform
import re
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
WEIGHTS = ("model", "pruned")  # folders of models, which can be made again
OF_A_MODEL = ("measure", "quality/dev", "quality/test", "after", "translate/dev", "translate/test")


def fingerprint(value: Any) -> str:
    """A short hash of anything JSON can hold."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]


def fingerprints(value: Any) -> set[str]:
    """All fingerprints in what a stage is made from, however deep they lie."""
    if isinstance(value, Mapping):
        return fingerprints(list(value.values()))
    if isinstance(value, list | tuple):
        return set().union(*map(fingerprints, value))
    return {value} if isinstance(value, str) and re.fullmatch(r"[0-9a-f]{16}", value) else set()


class RunFolder:
    """The folder of one run. `stage` runs a function once for given inputs and keeps its result.

    thin: models whose weights were taken away count as made; whoever needs one makes it again.
    """

    def __init__(self, folder: Path, progress: Progress, thin: bool = False) -> None:
        self.folder, self.progress, self.thin = folder, progress, thin
        self.together = True

    @property
    def main(self) -> bool:
        """Whether this process is the one that writes."""
        return bool(PartialState().is_main_process)

    def wait(self) -> None:
        """Until all processes have come here; not while one works alone."""
        if self.together:
            PartialState().wait_for_everyone()

    def record(self, name: str) -> dict[str, Any]:
        """What is known of a finished stage: its key, its seconds, its result; nothing of one that was not finished."""
        return read_record(self.place(name))

    def place(self, name: str) -> Path:
        return self.folder / ".stages" / f"{name.replace('/', '.')}.json"

    def finished(self, name: str) -> bool:
        """Whether a stage was ever finished here, whatever it was made from."""
        return self.place(name).exists()

    def key(self, name: str) -> str:
        """What a finished stage was made from, as a fingerprint."""
        found = self.record(name).get("key")
        if found is None:
            raise HeadwiseError(f"{self.folder} has no finished stage '{name}', which was asked for: run it first.")
        return str(found)

    def seconds(self) -> dict[str, float]:
        """How long every finished stage took."""
        records = (read_record(path) for path in sorted((self.folder / ".stages").glob("*.json")))
        return {record["name"]: record["seconds"] for record in records if "name" in record}

    def fail(self, name: str, sentence: str) -> None:
        """Note that a stage failed, so that nothing waits for it in this run."""
        write_text(self.failed(name), sentence)

    def failure(self, name: str) -> str | None:
        """Why a stage failed in this run, if it did."""
        path = self.failed(name)
        return path.read_text(encoding="utf-8") if path.exists() else None

    def failed(self, name: str) -> Path:
        return self.folder / ".stages" / f"{name.replace('/', '.')}.failed"

    def failures(self) -> dict[str, str]:
        """Every stage that failed in this run, and why."""
        paths = sorted((self.folder / ".stages").glob("*.failed"))
        return {path.stem: path.read_text(encoding="utf-8") for path in paths}

    def forget_failures(self) -> None:
        """What failed last time is tried again."""
        for path in (self.folder / ".stages").glob("*.failed"):
            path.unlink()

    @contextmanager
    def whole(self) -> Iterator[None]:
        """Stages of the block make models again whose weights were taken away."""
        before, self.thin = self.thin, False
        try:
            yield
        finally:
            self.thin = before

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
        label = name.replace("/", ".")
        with self.held(label):
            done = self.record(name)
            kept = [path for path in outputs if not (self.thin and path.partition("/")[0] in WEIGHTS)]
            known = done.get("key") == key and all((self.folder / path).exists() for path in kept)
            self.wait()  # all have looked before one writes
            work = self.folder / ".work" / f"{label}-{key}"
            if known:
                self.progress.skip(name)
            else:
                done = self.made(name, key, make, work, list(outputs), done, sorted(fingerprints(inputs)))
            if self.main:
                for unfinished in [work] if known else work.parent.glob(f"{label}-{'[0-9a-f]' * len(key)}"):
                    shutil.rmtree(unfinished, ignore_errors=True)
            self.wait()  # the next stage finds the outputs
        return dict(done["result"])

    def made(
        self, name: str, key: str, make: Callable[[Path], Result], work: Path, outputs: list[str], before: Result,
        of: list[str],
    ) -> Result:  # fmt: skip
        """Run a stage and publish what it made. before: the record of what was there; of: the fingerprints of what it
        is made from. Returns the new record."""
        start = time.perf_counter()
        with self.progress.stage(name):
            result = make(work)
        seconds = max(time.perf_counter() - start, result.get("seconds", 0.0))
        self.wait()  # nobody still reads what now moves
        if before.get("key") == key:
            refuse_different(name, before["result"], result, self.folder)
        done = {
            "name": name, "key": key, "of": of, "seconds": seconds, "threads": torch.get_num_threads(),
            "outputs": outputs, "result": result,
        }  # fmt: skip
        if self.main:
            record = self.place(name)
            if before.get("key") not in (None, key):
                self.forget_what_was_made_of(before, outputs)
            record.unlink(missing_ok=True)
            self.publish(work / MADE, outputs, before.get("outputs", []))
            write_text(record, json.dumps(done, indent=1))
        return done

    @contextmanager
    def held(self, label: str) -> Iterator[None]:
        """One process at a time makes a stage; of several that make it together, the main one holds it."""
        if not self.main:
            yield
            return
        (self.folder / ".stages").mkdir(parents=True, exist_ok=True)
        with FileLock(self.folder / ".stages" / f"{label}.lock"):
            yield

    def forget_what_was_made_of(self, before: Result, outputs: Sequence[str]) -> None:
        """What is made of something else than before takes with it what was made of the old one, so that no table
        holds results of both. before: its old record; outputs: its new files, which stay for `publish`."""
        paths = [path for path in (self.folder / ".stages").glob("*.json") if path != self.place(before["name"])]
        kept, lost = {path: read_record(path) for path in sorted(paths)}, list[tuple[Path, Result]]()
        gone = {before["key"]}
        while found := [(path, record) for path, record in kept.items() if was_made_of(before["name"], gone, record)]:
            lost += found
            for path, record in found:
                del kept[path]
                gone.add(record.get("key"))
        needed = {*outputs, *(output for record in kept.values() for output in record.get("outputs", []))}
        for path, record in reversed(lost):  # whoever is stopped here still finds what led to the rest
            for output in {*record.get("outputs", [])} - needed:
                take_away(self.folder / output)
            path.unlink(missing_ok=True)
        if before["name"] == "train":
            (self.folder / "pruning.csv").unlink(missing_ok=True)

    def publish(self, made: Path, outputs: Sequence[str], before: Sequence[str]) -> None:
        """Move outputs to their places, and take away what other inputs had left there."""
        for path in {*before, *outputs}:
            old = self.folder / path
            if old.is_dir() or path not in outputs:
                take_away(old)
        for path in outputs:
            (self.folder / path).parent.mkdir(parents=True, exist_ok=True)
            (made / path).replace(self.folder / path)  # a file that others read is there at every moment


def take_away(path: Path) -> None:
    """Remove a file or a folder, if it is there."""
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def was_made_of(name: str, gone: set[str], record: Result) -> bool:
    """Whether a record tells of something made of the stage of that name, when that one had one of the keys `gone`.

    Of the trained model everything is made but texts. Records that do not say what they are of are told by their names.
    """
    other = str(record.get("name", ""))
    if name == "train":
        return not other.startswith("corpus/")
    if "of" in record:
        return not gone.isdisjoint(record["of"])
    sort, _, setting = name.partition("/")
    return sort == "prune" and other in {f"{stage}/{setting}" for stage in OF_A_MODEL}


def refuse_different(name: str, before: Result, now: Result, folder: Path) -> None:
    """What is made again of the same must be the same, or its measurements would be of another model."""
    changed = [key for key in before.keys() & now.keys() if key != "seconds" and before[key] != now[key]]
    if name.partition("/")[0] in ("train", "prune") and changed:
        raise HeadwiseError(
            f"{name} was made again in {folder} and came out different ({', '.join(sorted(changed))}), as on another "
            "machine or with other threads: go on there, or choose another --out."
        )


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
