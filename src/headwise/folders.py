"""Folders that commands write in: new, empty, or headwise's own by the record in it; any other keeps what is in it. And
files that a user named, which are replaced.

The record is `SHA256SUMS`, which `sha256sum --check` reads: a line for each file, below one that says what the folder
holds and seals the others. A file that the record does not name, or that is no longer as it was written, is the user's.
A study has records of its own, one for each step (study/records.py).
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from headwise.errors import HeadwiseError, WriteError
from headwise.files import LONGEST_NAME, below, is_inside, sha256
from headwise.heads import write_bytes, write_text

SUMS = "SHA256SUMS"
SUMS_HEADER = re.compile(r"# headwise (model|export|results|pages): ([0-9a-f]{64})")
SUMS_LINE = re.compile(r"([0-9a-f]{64})  (.*)")
MODEL = "model"  # what a folder holds
EXPORT = "export"
RESULTS = "results"
PAGES = "pages"
PAGES_RECORD = (
    ".steps"  # where a run keeps the record of its pages: files in a run are not all of one command
)


def record(holds: str, lines: Iterable[tuple[str, str]]) -> str:
    """The text of a record. lines: name and SHA-256 of every file; of a file that is replaced, both sums."""
    text = "".join(f"{digest}  {name}\n" for name, digest in lines)
    return f"# headwise {holds}: {hashlib.sha256(text.encode()).hexdigest()}\n{text}"


def holds(folder: Path) -> str | None:
    """What headwise wrote in a folder: `model`, `export` or `results`; None without a record of its own."""
    header = SUMS_HEADER.fullmatch(first_line(folder))
    return header[1] if header else None


def first_line(folder: Path) -> str:
    try:
        with (folder / SUMS).open(encoding="utf-8", errors="replace") as file:
            return file.readline(200).rstrip("\n")
    except OSError:
        return ""


def sums(folder: Path) -> list[tuple[str, str]]:
    """Name and SHA-256 of every file in the record of a folder; nothing without a record.

    Raises HeadwiseError for a record that is not as it was written. A list of sums of another program is no record.
    """
    if not first_line(folder).startswith("# headwise"):
        return []
    text = (folder / SUMS).read_text(encoding="utf-8", errors="replace")
    _, _, lines = text.partition("\n")
    entries = []
    for line in lines.splitlines():
        entry = SUMS_LINE.fullmatch(line)
        if entry and is_inside(entry[2]):
            entries.append((entry[2], entry[1]))
    kind = holds(folder)
    if kind is None or not entries or record(kind, entries) != text:
        raise HeadwiseError(
            f"{folder / SUMS} is damaged, so nothing says which files are whole: copy or write the folder again."
        )
    return entries


def seal(folder: Path, holds: str) -> None:
    """Write the record of all files of a folder."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    lines = [(path.relative_to(folder).as_posix(), sha256(path)) for path in files]
    (folder / SUMS).write_text(record(holds, lines))


def unchanged(folder: Path) -> set[str]:
    """The files of a folder that are as its record says: they are ours, and may be replaced."""
    ours = set()
    for name, digest in sums(folder):
        path = below(folder, name)
        if path.is_file() and not path.is_symlink() and sha256(path) == digest:
            ours.add(name)
    return ours


@contextmanager
def new_folder(folder: Path) -> Iterator[Path]:
    """A folder to write into, which then takes the place of `folder`: completely, or not at all. Raises HeadwiseError
    where there is something already."""
    place = refuse_used(folder)
    # With the process's number, so that what two of them write never mixes.
    temporary = place.with_name(f".{place.name}.{os.getpid()}.partial")
    try:
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir(parents=True)
        yield temporary
        if place.exists():
            place.rmdir()  # it is empty
        temporary.rename(place)
    except OSError as error:
        raise WriteError(
            f"{place} could not be written ({error.strerror or error}): choose another folder or free some space."
        ) from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def refuse_used(folder: Path) -> Path:
    """Where a folder is when its links are followed. Raises HeadwiseError for one that is neither new nor empty."""
    try:
        place = folder.resolve()
        used = place.exists() and (not place.is_dir() or any(place.iterdir()))
    except (OSError, RuntimeError, ValueError) as error:
        # The name is too long or has a NUL in it, or links lead in a circle.
        reason = getattr(error, "strerror", None) or error
        raise HeadwiseError(
            f"{str(folder)[:200]!r} cannot be a folder ({reason}): choose a new one."
        ) from None
    if used:
        raise HeadwiseError(f"{place} is not empty: choose a new folder.")
    return place


def refuse_other_files(folder: Path, names: Sequence[str]) -> None:
    """Raise HeadwiseError for a folder in which results would stand among other files, or take their place.

    names: of the files that may be written.
    """
    try:
        found = sorted(path.name for path in folder.iterdir() if not path.name.startswith("."))
    except FileNotFoundError:
        return
    except OSError as error:
        raise HeadwiseError(
            f"{folder} was to be written to, but that is not possible ({error.strerror}): choose another folder."
        ) from None
    if found and holds(folder) != RESULTS:
        raise HeadwiseError(
            f"Results were to be written to {folder}, where there is something else ({', '.join(found[:3])}): choose a "
            "new or empty folder with --out."
        )
    refuse_to_replace(folder, names, unchanged(folder))


def named_folder(name: str | Path, of: str = "a study") -> Path:
    """The path of a folder that a user named. Raises HeadwiseError for a name that no folder can have, or that is no
    UTF-8."""
    folder = Path(name)
    try:
        str(name).encode()
        folder.stat()
    except (FileNotFoundError, NotADirectoryError):
        return folder  # whether it must be there, those decide who look for its files
    except (OSError, ValueError) as error:  # too long, a NUL in it, bytes that are no letters
        reason = getattr(error, "strerror", None) or error
        raise HeadwiseError(
            f"{str(name)[:100]!r} cannot be the folder of {of} ({reason}): give another one."
        ) from None
    return folder


def refuse_other_pages(run: Path, names: Sequence[str]) -> None:
    """Raise HeadwiseError where the folder of a run has a page or a figure that headwise did not write there."""
    refuse_to_replace(run, names, {name for name, _ in sums(run / PAGES_RECORD)})


def refuse_to_replace(folder: Path, names: Sequence[str], ours: Collection[str]) -> None:
    for name in names:
        path = below(folder, name)
        if name not in ours and (path.exists() or path.is_symlink()):
            raise HeadwiseError(
                f"{path} would be replaced, but headwise did not write it, or it was changed since: move it away, or "
                "choose another folder."
            )


def output_file(path: Path, inputs: Iterable[Path] = ()) -> Path:
    """Where a file that a user named is written, its links followed; a device or a pipe itself. A file that is there is
    replaced, as other programs do with what their `-o` names.

    Raises HeadwiseError, before any work, for a folder, a file of the inputs, and a place that nothing can be written to.
    """
    refused = f"{str(path)[:LONGEST_NAME]!r} cannot be written:"
    try:
        if path.exists() and not path.is_file() and not path.is_dir():
            return path
        place = path.resolve()
        if place.is_dir():
            raise HeadwiseError(f"{refused} it is a folder. Name a file.")
        if any(place.exists() and given.exists() and place.samefile(given) for given in inputs):
            raise HeadwiseError(f"{refused} it is what the command reads. Name another file.")
        parent = next(folder for folder in place.parents if folder.exists())
    except (OSError, RuntimeError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise HeadwiseError(f"{refused} {reason}. Name another file.") from None
    if not (parent.is_dir() and os.access(parent, os.W_OK)):
        raise HeadwiseError(f"{refused} nothing can be written in {parent}. Name another file.")
    return place


def write_file(path: Path, content: str | bytes) -> Path:
    """Write a file that a user named (`output_file`), completely or not at all, and return its path."""
    data = content if isinstance(content, bytes) else content.encode()
    place = output_file(path)
    if not place.exists() or place.is_file():
        write_bytes(place, data)
        return path
    try:
        place.write_bytes(data)
    except OSError as error:
        raise WriteError(f"{path} could not be written ({error.strerror}).") from None
    return path


def write_files(folder: Path, contents: Mapping[str, str | bytes]) -> list[Path]:
    """Write files into a folder that the caller made, each completely or not at all. Returns their paths."""
    paths = []
    for name, content in contents.items():
        path = below(folder, name)
        if isinstance(content, bytes):
            write_bytes(path, content)
        else:
            write_text(path, content)
        paths.append(path)
    return paths


@contextmanager
def locked_folder(folder: Path, main: bool = True) -> Iterator[None]:
    """A folder to write to, made if need be and locked: two commands never work in it at once. main: whether this process
    is the one that writes. Raises HeadwiseError where another process has it, or where it cannot be made."""
    lock = FileLock(folder / ".lock")
    made = not folder.exists()
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
            f"{folder} was to be written to, but that is not possible ({error.strerror}): choose another --out."
        ) from None
    try:
        yield
    finally:
        lock.release()
        if main and made and [path.name for path in folder.iterdir()] == [".lock"]:
            shutil.rmtree(folder)  # nothing was written


def write_results(
    folder: Path, contents: Mapping[str, str | bytes], names: Sequence[str]
) -> list[Path]:
    """Write results into a folder, instead of those of an earlier command. Returns the paths of what was written.

    names: of all files that such results may have; `figures/` stands for all in that folder. Raises HeadwiseError for a
    folder with other files (`refuse_other_files`).
    """
    refuse_other_files(folder, list(contents))
    return replace_files(folder, folder, RESULTS, contents, names)


def write_pages(run: Path, contents: Mapping[str, str | bytes], names: Sequence[str]) -> list[Path]:
    """Write pages and figures into the folder of a run; else as `write_results`."""
    refuse_other_pages(run, list(contents))
    return replace_files(run, run / PAGES_RECORD, PAGES, contents, names)


def replace_files(
    folder: Path,
    record_folder: Path,
    holds: str,
    contents: Mapping[str, str | bytes],
    names: Sequence[str],
) -> list[Path]:
    """Write files, and then remove those of an earlier time that are not among them. Of a killed command the record
    names old and new files, so that the next one may replace both."""
    before = sums(record_folder)
    new = {}
    for name, content in contents.items():
        data = content if isinstance(content, bytes) else content.encode()
        new[name] = hashlib.sha256(data).hexdigest()
    old = {}
    others = {}
    for name, digest in before:
        covered = name in names or name.startswith(tuple(n for n in names if n.endswith("/")))
        if covered and name not in new:
            old[name] = digest
        elif name not in new:
            others[name] = digest

    write_text(record_folder / SUMS, record(holds, dict.fromkeys([*before, *new.items()])))
    paths = write_files(folder, contents)
    for name, digest in old.items():
        path = below(folder, name)
        if path.is_file() and sha256(path) == digest:
            path.unlink()
    write_text(record_folder / SUMS, record(holds, {**others, **new}.items()))
    return paths
