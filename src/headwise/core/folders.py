"""Folders that headwise writes in, and the files in them: their names, writing, whose they are, whether they are whole.

A record names what headwise wrote, with SHA-256. A file that no record names is the user's: it is never replaced, moved
or removed. A record is written before files take their places, with the old and the new ones, and again after: what a
killed process leaves is old, new, or known to be between the two, and the next process may replace it.

The record of a model, an export or a command's results is `SHA256SUMS`, which `sha256sum --check` reads; there a file
that was changed since is the user's, too. A run has one for its pages, and one in JSON for each step
(study/records.py): what was changed there is made again.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import shutil
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

from filelock import FileLock, Timeout

from headwise.core.errors import HeadwiseError, WriteError, shown_value

T = TypeVar("T")

# Letters and digits of any script, and these signs; no separator, and no dot or space in front.
NAME = re.compile(r"[\w+=@()-][\w.+=@() -]*")
LONGEST_NAME = 200  # bytes: file systems take 255, and our endings come to it
LONGEST_PATH = 1000

SUMS = "SHA256SUMS"
SUMS_HEADER = re.compile(r"# headwise (model|export|results|pages): ([0-9a-f]{64})")
SUMS_LINE = re.compile(r"([0-9a-f]{64})  (.*)")
MODEL = "model"  # what a SHA256SUMS is about
EXPORT = "export"
RESULTS = "results"
PAGES = "pages"

Content = (
    str | bytes | Path
)  # of a file that is written; a path is that of a file made aside, which is moved
# Size and SHA-256 of files by their names, or only SHA-256. A file that is being replaced has those of both: it is
# neither, whatever it is by now.
Manifest = Mapping[str, Sequence[int | str]]


def is_name(name: Any) -> bool:
    """Whether this can be the name of a file or a folder, wherever it was read: it leads nowhere else."""
    return (
        isinstance(name, str)
        # Names from JSON may have lone surrogates, for which UTF-8 has no bytes.
        and len(name.encode(errors="replace")) <= LONGEST_NAME
        and NAME.fullmatch(name) is not None
    )


def is_inside(path: Any) -> bool:
    """Whether a relative path, with `/` between its names, stays inside the folder that it starts from."""
    return (
        isinstance(path, str) and len(path) <= LONGEST_PATH and all(map(is_name, path.split("/")))
    )


def checked_name(name: Any, source: Path | str) -> str:
    """A name that was read from `source`. Raises HeadwiseError for what can be no name of a file."""
    if not is_name(name):
        raise HeadwiseError(
            f"{source} has the name {str(name)[:LONGEST_NAME]!r}, of which a file's name would be made: it may have at "
            "most 200 letters, digits, '.', '_', '-', and no '/'."
        )
    return str(name)


@lru_cache(maxsize=65536)  # a study looks at the same thousands after every step
def below(folder: Path, path: str) -> Path:
    """A path inside a folder, which every name that a file or a user gave goes through; "." is the folder itself.

    Raises HeadwiseError for one that leads out of the folder.
    """
    if path == ".":
        return folder
    if not is_inside(path):
        raise HeadwiseError(
            f"{str(path)[:LONGEST_NAME]!r} was to be a file in {folder}: its names may have at most 200 letters, digits, "
            "'.', '_', '-', with one '/' between two of them."
        )
    return folder / path


def sha256(path: Path) -> str:
    """The SHA-256 of a file, in hexadecimal; read once as long as its size and times stay."""
    stat = path.stat()
    # A program can set the time of the content (mtime), but not that of the last change (ctime).
    return _sha256(path, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_size)


@lru_cache(maxsize=65536)
def _sha256(path: Path, modified: int, changed: int, size: int) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def digest(value: Any) -> str:
    """A short hash of anything JSON can hold."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]


def size_and_sum(content: Content) -> list[int | str]:
    """Size and SHA-256 of a file, or of what is to be one."""
    if isinstance(content, Path):
        return [content.stat().st_size, sha256(content)]
    data = content.encode() if isinstance(content, str) else content
    return [len(data), hashlib.sha256(data).hexdigest()]


def manifest(contents: Mapping[str, Content]) -> Manifest:
    return {name: size_and_sum(content) for name, content in contents.items()}


def files_in(folder: Path, names: Iterable[str] = (".",)) -> dict[str, Path]:
    """Every file of a folder, or of some files and folders in it, by its path from there."""
    found = {}
    for name in names:
        place = below(folder, name)
        for path in sorted(place.rglob("*")) if place.is_dir() else [place]:
            if path.is_file() or path.is_symlink():
                found[path.relative_to(folder).as_posix()] = path
    return found


@contextmanager
def writing(place: Path, *errors: type[Exception]) -> Iterator[None]:
    """A block that writes to a file or a folder. Raises WriteError, in one sentence, where that fails: for an OSError, and
    for `errors`."""
    failures: tuple[type[Exception], ...] = (OSError, *errors)
    try:
        yield
    except failures as error:
        reason = getattr(error, "strerror", None) or error
        full = getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT)
        remedy = "free some space, or choose another --out" if full else "choose another --out"
        raise WriteError(f"{place} could not be written ({reason}): {remedy}.") from error


def write_bytes(path: Path, content: bytes) -> None:
    """Write a file completely or not at all: to a temporary file, which is then renamed."""
    if not path.name:
        raise WriteError(f"'{path}' could not be written (it names no file): choose another --out.")
    # Beside the file: a rename takes place at once only within a file system.
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    with writing(path):
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            temporary.write_bytes(content)
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """`write_bytes` of a text in UTF-8."""
    write_bytes(path, text.encode())


def write_once(path: Path, text: str) -> None:
    """`write_text`, but a file that has this text already stays untouched: another process may have opened it."""
    content = text.encode()

    def there() -> bool:
        return path.is_file() and path.read_bytes() == content

    if there():
        return
    new = path.with_name(f".{path.name}.{os.getpid()}.new")
    write_bytes(new, content)
    try:
        os.link(new, path)  # unlike a renamed file, it never takes the place of another
    except OSError:
        # Some file systems have no hard links, and another process may have been faster.
        if not there():
            new.replace(path)
    new.unlink(missing_ok=True)


def move(path: Path, to: Path) -> None:
    """Move a file, over the one that is there."""
    to.parent.mkdir(parents=True, exist_ok=True)
    path.replace(to)


def as_path(given: Any) -> Path:
    """A file or a folder as a user names it. Raises HeadwiseError for what is no name of one."""
    if not isinstance(given, str | os.PathLike):
        raise HeadwiseError(
            f"{shown_value(given)} was given in place of a file or a folder: give its path, such as 'runs/mine'."
        )
    return Path(given)


class Folder:
    """A folder, there or not, and a record of what headwise wrote in it.

    sort: what is written there; the record is `SHA256SUMS`, for the pages of a run in `.steps/`. record: where that is,
    instead, a JSON file with a checksum over itself, which may have more facts. Raises HeadwiseError for a name that no
    folder can have.
    """

    def __init__(
        self, place: str | os.PathLike[str], sort: str = RESULTS, record: str = ""
    ) -> None:
        self.place = as_path(place)
        self.sort = sort
        try:
            str(self.place).encode()
            self.place.stat()
        except (FileNotFoundError, NotADirectoryError):
            pass
        except (OSError, ValueError) as error:  # too long, a NUL in it, bytes that are no letters
            reason = getattr(error, "strerror", None) or error
            raise HeadwiseError(
                f"{str(self.place)[:100]!r} cannot be a folder ({reason}): give another one."
            ) from None
        inner, _, name = record.rpartition("/")
        if sort == PAGES:
            inner = ".steps"
        self.record = below(self.place / inner, name or SUMS)

    # The record

    def read(self) -> Mapping[str, Any]:
        """What the record says, the manifest of its files as `files`; nothing without a record of headwise, or where a
        JSON file is damaged. Raises HeadwiseError for a damaged SHA256SUMS."""
        try:
            text = self.record.read_text(encoding="utf-8", errors="replace")
        except OSError:
            return {}
        if self.record.name != SUMS:
            return from_json(text)
        found = from_sums(text)
        # The list of another program is no damage: it just says nothing to us.
        if not found and text.startswith("# headwise"):
            raise HeadwiseError(
                f"{self.record} is damaged, so nothing says which files are whole: copy or write the folder again."
            )
        return found

    @property
    def files(self) -> Manifest:
        files: Manifest = self.read().get("files", {})
        return files

    @property
    def holds(self) -> str | None:
        """What the record is about: MODEL, EXPORT, RESULTS …; None without one."""
        return self.read().get("holds")

    def note(self, files: Manifest, **facts: Any) -> None:
        """Write the record."""
        if self.record.name == SUMS:
            write_text(self.record, to_sums(self.sort, files))
        else:
            write_text(self.record, to_json({"files": files, **facts}))

    # What is in it

    def damage(self, files: Manifest | None = None) -> list[str]:
        """What is wrong with files of a manifest: `heads.csv is missing`, `model/config.json has changed`. By default
        all in the record."""
        wrong = []
        for name, facts in (self.files if files is None else files).items():
            try:
                known = size_and_sum(below(self.place, name))
            except OSError:
                wrong.append(f"{name} is missing")
            else:
                if not all(fact in known for fact in facts):
                    wrong.append(f"{name} has changed")
        return wrong

    def ours(self) -> set[str]:
        """The files that may be replaced and removed."""
        files = self.files
        if self.record.parent != self.place:
            return {*files}  # of a run
        ours = set()
        for name, facts in files.items():
            path = below(self.place, name)
            if path.is_file() and not path.is_symlink() and sha256(path) in facts:
                ours.add(name)
        return ours

    def names(self) -> list[str]:
        """Of the files and folders in it."""
        with writing(self.place):
            return sorted(path.name for path in self.place.iterdir()) if self.place.exists() else []

    def refuse_used(self, hidden: bool = False) -> None:
        """Raise HeadwiseError for a folder with anything in it. hidden: also with what begins with a dot."""
        found = [name for name in self.names() if hidden or not name.startswith(".")]
        if found:
            raise HeadwiseError(
                f"In {self.place} there is something else ({', '.join(found[:3])}): choose a new or empty folder "
                "with --out."
            )

    def refuse_others(self, names: Iterable[str]) -> None:
        """Raise HeadwiseError where one of these names is that of a file which is not ours; of results, also where they
        would stand among other files."""
        known = self.holds == self.sort
        if self.sort == RESULTS and not known:
            self.refuse_used()
        self.refuse_to_replace(names, self.ours() if known else ())

    def refuse_to_replace(self, names: Iterable[str], ours: Collection[str]) -> None:
        for name in names:
            path = below(self.place, name)
            if name not in ours and (path.exists() or path.is_symlink()):
                raise HeadwiseError(
                    f"{path} is in the way: headwise did not write it, or it was changed since. Move it away, or choose "
                    "another folder."
                )

    # Writing

    def make(self) -> None:
        """Make the folder: where that is not possible, it shows before any work."""
        with writing(self.place):
            self.place.mkdir(parents=True, exist_ok=True)

    def refuse_unwritable(self) -> None:
        """Raise HeadwiseError where the folder cannot be made. It is not there afterwards, where it was not before: a
        command that is refused leaves nothing."""
        missing = [path for path in (self.place, *self.place.parents) if not path.exists()]
        self.make()
        for path in missing:
            with suppress(OSError):  # another process may be writing there by now
                path.rmdir()

    @contextmanager
    def lock(self, main: bool = True) -> Iterator[None]:
        """A block in which no other process works in the folder, which is made if need be. main: whether this process is
        the one that writes. Raises HeadwiseError where another process has it."""
        lock = FileLock(self.place / ".lock")
        is_new = not self.place.exists()
        if main:
            self.make()
            with writing(self.place):
                try:
                    lock.acquire(timeout=0)
                except Timeout:
                    raise HeadwiseError(
                        f"Another process is working on {self.place}: wait for it, or choose another --out."
                    ) from None
        try:
            yield
        finally:
            # Where nothing was written, nothing stays. Who waits for a lock that is gone makes another.
            empty = main and self.names() == [".lock"]
            if empty:
                with suppress(OSError):  # Windows removes no open file
                    (self.place / ".lock").unlink()
            lock.release()
            if empty and is_new:
                with suppress(OSError):
                    self.place.rmdir()

    @contextmanager
    def new(self) -> Iterator[Path]:
        """A folder to write in, which then takes the place of this one, completely or not at all, with a record if it has
        none. Raises HeadwiseError where there is something already."""
        place = self.place.resolve()
        Folder(place).refuse_used(hidden=True)
        # With the process's number, so that what two of them write never mixes.
        temporary = place.with_name(f".{place.name}.{os.getpid()}.partial")
        try:
            with writing(place):
                shutil.rmtree(temporary, ignore_errors=True)
                temporary.mkdir(parents=True)
                yield temporary
                if not (temporary / SUMS).exists():
                    Folder(temporary, self.sort).note(manifest(files_in(temporary)))
                if place.exists():
                    place.rmdir()  # it is empty
                temporary.rename(place)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)

    def write(self, contents: Mapping[str, Content], names: Sequence[str]) -> list[Path]:
        """`publish`, unless files of others are in the way. Returns the paths of what was written."""
        self.refuse_others(contents)
        self.publish(contents, names)
        return [below(self.place, name) for name in contents]

    def publish(
        self,
        contents: Mapping[str, Content],
        names: Sequence[str] | None = None,
        **facts: Any,
    ) -> None:
        """Write files or move them to their places, then remove ours that are not among them; each replaces the one
        that is there. names: which may be removed, where the record is about others, too; `figures/` stands for all in
        that folder. facts: for a record in JSON."""
        before = self.files
        new = manifest(contents)
        others = {}
        if names is not None:
            folders = tuple(name for name in names if name.endswith("/"))
            for name in before:
                if name not in new and name not in names and not name.startswith(folders):
                    others[name] = before[name]
        old = self.ours() - new.keys() - others.keys()
        both = {**before, **new}
        # From here to the last line a killed process leaves files that are known as old or new.
        self.note({name: [*before.get(name, ()), *new.get(name, ())] for name in both})
        with writing(self.place):
            for content in contents.values():
                # safetensors writes files that only their owner may read
                if isinstance(content, Path):
                    shutil.copymode(self.record, content)
            self.put(contents)
            self.remove(old)
        self.note({**others, **new}, **facts)

    def put(self, contents: Mapping[str, Content]) -> None:
        """Write files or move them to their places, each completely or not at all."""
        for name, content in contents.items():
            path = below(self.place, name)
            if isinstance(content, Path):
                move(content, path)
            else:
                write_bytes(path, content.encode() if isinstance(content, str) else content)

    def remove(self, names: Iterable[str]) -> None:
        """Remove files that are there, and folders that have nothing else in them."""
        for name in names:
            path = below(self.place, name)
            path.unlink(missing_ok=True)
            # rmdir refuses a folder that has anything in it.
            with suppress(OSError):
                while (path := path.parent) != self.place:
                    path.rmdir()


def read_json(path: Path, kind: type[T]) -> T:
    """A JSON file of any hand that holds one object (`dict`) or list. Raises HeadwiseError for another one."""
    try:
        held = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise HeadwiseError(
            f"{path} cannot be read as JSON ({error}): copy it or make it again."
        ) from None
    if not isinstance(held, kind):
        should = "object" if kind is dict else "list"
        raise HeadwiseError(
            f"{path} should hold one JSON {should}, not {type(held).__name__}: copy it or make it again."
        )
    return held


def to_json(facts: Mapping[str, Any]) -> str:
    """A record as its file has it, with a checksum (`sum`) over all it says."""
    # As it will be read back: tuples become lists, and keys text, which changes the checksum.
    plain = json.loads(json.dumps(facts))
    return json.dumps({**plain, "sum": digest(plain)}, indent=1)


@lru_cache(maxsize=4096)  # a study of many steps reads all records after every step
def from_json(text: str) -> Mapping[str, Any]:
    """What `to_json` wrote; nothing where it is damaged, or names a file outside of the folder."""
    try:
        facts = json.loads(text)
    # RecursionError: brackets nested deeper than Python goes.
    except (ValueError, RecursionError):
        return {}
    if not isinstance(facts, dict) or facts.pop("sum", None) != digest(facts):
        return {}
    files = facts.get("files", {})
    if not isinstance(files, dict) or not all(map(is_inside, files)):
        return {}
    return facts if all(isinstance(known, list) for known in files.values()) else {}


def to_sums(sort: str, files: Manifest) -> str:
    """A SHA256SUMS: a line for each file, below one that says what it is about and seals the others."""
    lines = []
    for name, facts in files.items():
        lines += [f"{fact}  {name}\n" for fact in facts if isinstance(fact, str)]
    text = "".join(lines)
    return f"# headwise {sort}: {hashlib.sha256(text.encode()).hexdigest()}\n{text}"


def from_sums(text: str) -> Mapping[str, Any]:
    """What `to_sums` wrote; nothing of another program's list, or a damaged one."""
    header, *lines = text.splitlines() or [""]
    files: dict[str, list[int | str]] = {}
    for line in lines:
        entry = SUMS_LINE.fullmatch(line)
        if entry and is_inside(entry[2]):
            files.setdefault(entry[2], []).append(entry[1])
    said = SUMS_HEADER.fullmatch(header)
    if said is None or not files or to_sums(said[1], files) != text:
        return {}
    return {"holds": said[1], "files": files}


# Files that a user named


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
    with writing(path):
        # A device or a pipe must be written into: a renamed file would take its place.
        place.write_bytes(data)
    return path
