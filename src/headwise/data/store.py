"""Sentences in a memory-mapped Arrow file, so that a text may be larger than memory.

Rows are hashed and written in batches while they are read. The file is in a temporary folder until Python ends, or in a
cache folder, where a later run finds it again. Strings only: no labels, no tokens.
"""

from __future__ import annotations

import atexit
import hashlib
import os
import re
import shutil
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from itertools import islice
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

import pyarrow as pa

from headwise.core.errors import HeadwiseError, called_as, shown_value
from headwise.core.folders import Folder, below, digest, manifest

if TYPE_CHECKING:
    from datasets import Dataset

ROWS_AT_ONCE = 1000  # rows written at a time: at most 2 GB, since a line has at most 1 MiB
# A character that is seen: a line of zero-width characters alone is blank, too.
_SEEN = re.compile(r"[^\s\u200b-\u200f\u2060\ufeff\u00ad]")
FORMAT = 2  # part of every cache key: raise it when the same input would be stored differently


class AnyText(ABC):
    """What a model reads: `len(text)`, `.head(n)`, `.take(indices)`, `.fingerprint`.

    name: in results. blank: the number of rows left out because a side was blank.
    """

    name: str
    blank: int
    made: ClassVar[str] = ""  # how a part of the rows was made; empty where a user gave all of them

    @abstractmethod
    def __len__(self) -> int: ...

    @property
    @abstractmethod
    def fingerprint(self) -> str:
        """SHA-256 of the rows, in hexadecimal: equal for equal text, whatever its source."""

    @abstractmethod
    def take(self, indices: Iterable[int]) -> Self:
        """The rows with these indices, in this order; raises IndexError outside the text."""

    def head(self, count: int) -> Self:
        """The first `count` rows (all of them when there are fewer)."""
        if count < 1:
            raise HeadwiseError(
                f"Cannot take the first {count} rows of '{self.name}': ask for 1 or more."
            )
        return self.take(range(min(count, len(self))))


class StoredText(AnyText):
    """Rows of one or more string columns on disk: the common part of `Text` and `ParallelText`.

    dataset: the memory-mapped `datasets.Dataset`. classes: what the numbers 0, 1, … of the last column are called, where
    a data set declares it.
    """

    columns: ClassVar[tuple[str, ...]]
    numbered: ClassVar[bool] = False  # whether the last column may have numbers

    @called_as("hw.Text.read('dev.en') or hw.Text.from_lines(sentences)")
    def __init__(
        self,
        dataset: Dataset,
        name: str,
        *,
        blank: int = 0,
        fingerprint: str | None = None,
        classes: Sequence[str] = (),
    ) -> None:
        if not hasattr(dataset, "features"):
            made = type(self).__name__
            raise HeadwiseError(
                f"{made} was made of {shown_value(dataset)}: write hw.{made}.open(…), or make it of rows, as "
                "hw.Text.from_lines, hw.ParallelText.from_pairs and hw.LabelledText.from_rows do."
            )
        self.dataset = dataset
        self.name = name
        self.blank = blank
        self._fingerprint = fingerprint
        self.classes = tuple(classes)

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int | slice) -> Any:
        """A row as iteration gives it, for a slice a list of rows."""
        if isinstance(index, slice):
            return [self.row(number) for number in range(len(self))[index]]
        return self.row(index)

    def row(self, index: int) -> Any:
        """A row by its number."""
        row = self.dataset[index]
        return tuple(row[column] for column in self.columns)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r}, rows={len(self):,}, blank={self.blank:,})"

    @property
    def fingerprint(self) -> str:
        if self._fingerprint is None:
            hashed = hashlib.sha256()
            for row in self.rows():
                hashed.update(_as_bytes(row))
            self._fingerprint = hashed.hexdigest()
        return self._fingerprint

    @property
    def lines(self) -> Sequence[str]:
        """The first column, list-like, read from disk on access."""
        return self.dataset[self.columns[0]]  # type: ignore[no-any-return]

    def rows(self) -> Iterator[tuple[str, ...]]:
        """The rows, one tuple each, read from disk a thousand at a time."""
        for batch in self.dataset.iter(batch_size=1000):
            yield from zip(*(batch[column] for column in self.columns), strict=True)

    def take(self, indices: Iterable[int]) -> Self:
        return type(self)(self.dataset.select(indices), self.name, classes=self.classes)

    @classmethod
    def _write(
        cls,
        rows: Iterable[tuple[str, ...]],
        name: str,
        cache: str | PathLike[str] | None,
        key: str | None = None,
        classes: Sequence[str] = (),
    ) -> Self:
        """Writes the rows to disk, or finds them in `cache` under the same key. classes: as of the text.

        Raises HeadwiseError when no row is left or the folder cannot be written; then it leaves no file.
        """
        folder = Path(tempfile.gettempdir() if cache is None else cache).expanduser()
        try:
            folder = scratch_folder() if cache is None else folder
            dataset, record = (_stored(folder, key) if key else None) or _fill(
                folder, rows, name, cls.columns, key
            )
        except OSError as error:
            raise HeadwiseError(
                f"Cannot keep the text '{name}' in '{folder}': {error.strerror or error}; name another cache folder."
            ) from error
        return cls(
            dataset,
            name,
            blank=record["blank"],
            fingerprint=record["fingerprint"],
            classes=classes,
        )


@cache
def scratch_folder() -> Path:
    """The default cache of this process: a temporary folder that is removed when Python ends.

    Not sooner: `text.dataset.map(...)` writes next to the file it came from, long after the text itself may be gone.
    """
    folder = Path(tempfile.mkdtemp(prefix="headwise-"))
    owner = os.getpid()

    def remove() -> None:
        if os.getpid() == owner:  # not in a fork
            shutil.rmtree(folder, ignore_errors=True)

    atexit.register(remove)
    return folder


def file_key(kind: str, *files: Path) -> str:
    """A key for the content of these files, from path, size and times, so that an unchanged file is not read again."""
    facts = []
    for file in files:
        stat = file.stat()
        facts.append((str(file.resolve()), stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns))
    return digest([FORMAT, kind, facts])


def _stored(folder: Path, key: str) -> tuple[Dataset, dict[str, Any]] | None:
    """The cache's entry for this key; None when it is missing or damaged (and must be written again)."""
    record = Folder(folder, record=f"{key}.json")
    if not record.files or record.damage():
        return None
    return _opened(below(folder, f"{key}.arrow")), {**record.read()}


def _fill(
    folder: Path,
    rows: Iterable[tuple[str, ...]],
    name: str,
    columns: tuple[str, ...],
    key: str | None,
) -> tuple[Dataset, dict[str, Any]]:
    """Writes KEY.arrow, then KEY.json (it says that the other is complete); without a key, named by content."""
    with part_file(folder) as part:
        record = _write_arrow(part, rows, name, columns)
        whole = below(folder, f"{key or record['fingerprint']}.arrow")
        part.replace(whole)
    written = Folder(folder, record=f"{whole.stem}.json")
    written.note(manifest({whole.name: whole}), **record)
    return _opened(whole), record


def _opened(arrow: Path) -> Dataset:
    from datasets import Dataset  # takes a second, and much bad input is refused without it

    return Dataset.from_file(str(arrow))


@contextmanager
def part_file(folder: Path) -> Iterator[Path]:
    """A file name in this folder for unfinished output, to be renamed; what is left under it is removed."""
    folder.mkdir(parents=True, exist_ok=True)
    part = below(folder, f"{os.getpid()}-{os.urandom(4).hex()}.part")
    try:
        yield part
    finally:
        part.unlink(missing_ok=True)


def _write_arrow(
    path: Path, rows: Iterable[tuple[str, ...]], name: str, columns: tuple[str, ...]
) -> dict[str, Any]:
    schema = pa.schema([(column, pa.string()) for column in columns])
    hashed = hashlib.sha256()
    blank = 0
    written = 0

    def kept() -> Iterator[tuple[str, ...]]:
        nonlocal blank
        for number, row in enumerate(rows, start=1):
            if not all(map(_SEEN.search, row)):
                blank += 1
                continue
            try:
                hashed.update(_as_bytes(row))
            except UnicodeEncodeError as error:
                raise HeadwiseError(
                    f"Sentence {number} of '{name}' holds half of a surrogate pair, "
                    "which is not Unicode text: correct or remove it."
                ) from error
            yield row

    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, schema) as writer:
        stream = kept()
        while batch := list(islice(stream, ROWS_AT_ONCE)):
            sides = [pa.array(side, pa.string()) for side in zip(*batch, strict=True)]
            writer.write_batch(pa.record_batch(sides, schema=schema))
            written += len(batch)
    if written == 0:
        reason = "there are none"
        if blank:
            reason = f"all {blank:,} are blank" + (" on one side" if len(columns) > 1 else "")
        raise HeadwiseError(f"No sentences in '{name}': {reason}.")
    return {"rows": written, "blank": blank, "fingerprint": hashed.hexdigest()}


def _as_bytes(row: tuple[str, ...]) -> bytes:
    """One row for the fingerprint: each side on a line of its own (no side holds a newline)."""
    return ("\n".join(row) + "\n").encode("utf-8")
