"""Sentences kept in an Arrow file on disk and read through memory mapping, so that a text may be larger than memory.

Rows go to disk in batches while they are read, and are hashed on the way. The file lives in a temporary folder until
Python ends, or in a cache folder, where a later run finds it again. Strings only: no labels, no tokens.
"""

import atexit
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from functools import cache
from os import PathLike
from pathlib import Path
from typing import Any, ClassVar, Self

import pyarrow as pa
from datasets import Dataset

from headwise.errors import HeadwiseError

BATCH = 10_000  # rows written at a time
FORMAT = 1  # part of every cache key: raise it when the same input would be stored differently


class StoredText:
    """Rows of one or more string columns on disk: the common part of `Text` and `ParallelText`.

    dataset: the memory-mapped `datasets.Dataset`. name: what the text is called in results.
    blank: how many rows were kept out because a side was blank.
    """

    columns: ClassVar[tuple[str, ...]]

    def __init__(self, dataset: Dataset, name: str, *, blank: int = 0, fingerprint: str | None = None) -> None:
        self.dataset = dataset
        self.name = name
        self.blank = blank
        self._fingerprint = fingerprint

    def __len__(self) -> int:
        return len(self.dataset)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r}, rows={len(self):,}, blank={self.blank:,})"

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the rows that were kept, in hexadecimal: equal for equal text, wherever it was read from."""
        if self._fingerprint is None:
            digest = hashlib.sha256()
            for row in self.rows():
                digest.update(_as_bytes(row))
            self._fingerprint = digest.hexdigest()
        return self._fingerprint

    def rows(self) -> Iterator[tuple[str, ...]]:
        """The rows, one tuple each, read from disk a thousand at a time."""
        for batch in self.dataset.iter(batch_size=1000):
            yield from zip(*(batch[column] for column in self.columns), strict=True)

    def head(self, count: int) -> Self:
        """The first `count` rows (all of them when there are fewer), on the same file."""
        if count < 1:
            raise HeadwiseError(f"The first {count} sentences of '{self.name}' were asked for: ask for 1 or more.")
        return self.take(range(min(count, len(self))))

    def take(self, indices: Iterable[int]) -> Self:
        """The rows at these places, in this order, on the same file; raises IndexError outside the text."""
        return type(self)(self.dataset.select(indices), self.name)

    @classmethod
    def _write(
        cls, rows: Iterable[tuple[str, ...]], name: str, cache: str | PathLike[str] | None, key: str | None = None
    ) -> Self:
        """Puts the rows on disk, or finds what an earlier run put into `cache` under the same key.

        Raises HeadwiseError when no row is left or the folder cannot be written; then nothing stays behind.
        """
        folder = Path(tempfile.gettempdir() if cache is None else cache).expanduser()
        try:
            folder = scratch_folder() if cache is None else folder
            dataset, record = (_stored(folder, key) if key else None) or _fill(folder, rows, name, cls.columns, key)
        except OSError as error:
            raise HeadwiseError(
                f"Cannot keep the text '{name}' in '{folder}': {error.strerror or error}; name another cache folder."
            ) from error
        return cls(dataset, name, blank=record["blank"], fingerprint=record["fingerprint"])


@cache
def scratch_folder() -> Path:
    """The cache of this process when none is named: a temporary folder that goes away when Python ends.

    Not sooner: `text.dataset.map(...)` writes beside the file it came from, long after the text itself may be gone.
    """
    folder = Path(tempfile.mkdtemp(prefix="headwise-"))
    atexit.register(_remove, folder, os.getpid())
    return folder


def file_key(kind: str, *files: Path) -> str:
    """A name for the content of these files, from path, size and times, so that an unchanged file is not read again."""
    facts = [
        (str(file.resolve()), stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns)
        for file in files
        if (stat := file.stat())
    ]
    return hashlib.sha256(json.dumps([FORMAT, kind, facts]).encode()).hexdigest()[:32]


def _remove(folder: Path, owner: int) -> None:
    """Removes the folder in the process that made it, not in a forked child that ends earlier."""
    if os.getpid() == owner:
        shutil.rmtree(folder, ignore_errors=True)


def _stored(folder: Path, key: str) -> tuple[Dataset, dict[str, Any]] | None:
    """What the cache has under this key; None when there is nothing or it is damaged (and is to be written anew)."""
    try:
        record = json.loads((folder / f"{key}.json").read_text(encoding="utf-8"))
        dataset = Dataset.from_file(str(folder / f"{key}.arrow"))
        return (dataset, record) if record["rows"] == len(dataset) else None
    except (OSError, ValueError, KeyError):
        return None


def _fill(
    folder: Path, rows: Iterable[tuple[str, ...]], name: str, columns: tuple[str, ...], key: str | None
) -> tuple[Dataset, dict[str, Any]]:
    """Writes KEY.arrow, then KEY.json (its presence says that the other is whole); without a key, named by content."""
    folder.mkdir(parents=True, exist_ok=True)
    half = folder / f"{os.getpid()}-{os.urandom(4).hex()}.part"
    try:
        record = _write_arrow(half, rows, name, columns)
        whole = folder / f"{key or record['fingerprint']}.arrow"
        half.replace(whole)
        half.write_text(json.dumps(record), encoding="utf-8")
        half.replace(whole.with_suffix(".json"))
    finally:
        half.unlink(missing_ok=True)
    return Dataset.from_file(str(whole)), record


def _write_arrow(path: Path, rows: Iterable[tuple[str, ...]], name: str, columns: tuple[str, ...]) -> dict[str, Any]:
    schema = pa.schema([(column, pa.string()) for column in columns])
    digest, blank, written = hashlib.sha256(), 0, 0
    waiting: list[tuple[str, ...]] = []
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, schema) as writer:
        for row in rows:
            if not all(row):
                blank += 1
                continue
            try:
                digest.update(_as_bytes(row))
            except UnicodeEncodeError as error:
                raise HeadwiseError(
                    f"Sentence {written + len(waiting) + blank + 1} of '{name}' holds half of a surrogate pair, "
                    "which is not Unicode text: mend or remove it."
                ) from error
            waiting.append(row)
            if len(waiting) == BATCH:
                writer.write_batch(_record_batch(waiting, schema))
                written += BATCH
                waiting = []
        if waiting:
            writer.write_batch(_record_batch(waiting, schema))
    written += len(waiting)
    if written == 0:
        found = f"all {blank:,} are blank" + (" on one side" if len(columns) > 1 else "") if blank else "there are none"
        raise HeadwiseError(f"No sentences in '{name}': {found}.")
    return {"rows": written, "blank": blank, "fingerprint": digest.hexdigest()}


def _record_batch(rows: list[tuple[str, ...]], schema: pa.Schema) -> pa.RecordBatch:
    return pa.record_batch([pa.array(column, pa.string()) for column in zip(*rows, strict=True)], schema=schema)


def _as_bytes(row: tuple[str, ...]) -> bytes:
    """One row for the fingerprint: each side on a line of its own (no side holds a newline)."""
    return ("\n".join(row) + "\n").encode("utf-8")
