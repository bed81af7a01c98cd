"""Lines of text files: UTF-8, plain or gzip, separated by the newline character only.

Files are read as bytes and cut at "\\n", because `str.splitlines` also cuts at form feeds, U+2028 and other characters
inside real sentences. The first two bytes identify gzip, never the name. One line at a time is in memory.
"""

import codecs
import gzip
import io
import re
import zlib
from collections.abc import Iterator, Sequence
from os import PathLike
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

from headwise.core.errors import HeadwiseError, did_you_mean
from headwise.core.folders import LONGEST_NAME, as_path

GZIP = b"\x1f\x8b"
POINTER = b"version https://git-lfs"
JSON_LINES = ".jsonl", ".json", ".ndjson"  # endings of files with a JSON object a line
LARGEST_POINTER = 1024  # bytes, by the specification of git-lfs
# What files of other formats begin with, and what to do with them.
_UNPACK = "unpack it, or pack it with gzip"
_UTF8 = "save it as UTF-8"
_ARROW = "Arrow", "give the folder of the data set as datasets:FOLDER?text=COLUMN"
FORMATS = {
    b"PAR1": ("Parquet", "give it as datasets:FILE?text=COLUMN"),
    b"ARROW1": _ARROW,
    b"\xff\xff\xff\xff": _ARROW,  # as `save_to_disk` writes it
    b"PK\x03\x04": (
        "an archive (.zip) or a document of an office program",
        "write its sentences into a file, one a line",
    ),
    b"\xfd7zXZ\x00": ("packed with xz", _UNPACK),
    b"BZh": ("packed with bzip2", _UNPACK),
    GZIP: ("packed with gzip twice", _UNPACK),
    b"\x28\xb5\x2f\xfd": ("packed with zstd", _UNPACK),
    b"\xff\xfe": ("UTF-16", _UTF8),
    b"\xfe\xff": ("UTF-16", _UTF8),
}
PAIR = re.compile(r"(?P<stem>.+\.)(?P<source>[a-z]+)-(?P<target>[a-z]+)")
# Bytes of a line: a gzip file of 3 MB may contain a line of 3 GB.
LONGEST_LINE = 1 << 20


def read_lines(path: str | PathLike[str]) -> Iterator[str]:
    """The lines of a text file, one by one, without the blanks at either end; a blank line comes as "".

    A byte order mark and Windows line ends are understood. Raises HeadwiseError at once when the file does not exist or
    is a folder, and while reading when it is empty, is not UTF-8 (with the number of the line), is damaged gzip, or
    has a line of more than 1 MiB.
    """
    return (line.strip() for line in whole_lines(existing_file(path)))


def whole_lines(file: Path) -> Iterator[str]:
    """The lines of a file that exists, unchanged, the line end included."""
    number = 0
    begins = b""
    try:
        with file.open("rb") as stream:
            unpacked = _unpacked(stream)
            # One byte more than a line may have tells a line that is too long from one that just fits.
            while line := unpacked.readline(LONGEST_LINE + 1):
                number += 1
                if len(line) > LONGEST_LINE:
                    raise HeadwiseError(
                        f"Line {number} of '{file}' is longer than {LONGEST_LINE >> 20} MiB: write a sentence a line."
                    )
                begins = line[:8] if number == 1 else begins
                if number == 1 and b"\r" in line.rstrip(b"\r\n") and not unpacked.peek(1):
                    raise HeadwiseError(
                        f"The lines of '{file}' end with CR alone, as on old Macs: save it with the line ends of Unix or "
                        "Windows."
                    )
                yield _decoded(line, number, file, begins)
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise HeadwiseError(
            f"'{file}' is a damaged gzip file: {error} after line {number}; download it again."
        ) from error
    except OSError as error:
        raise HeadwiseError(f"Cannot read '{file}': {error.strerror or error}.") from error
    if number == 0:
        raise HeadwiseError(f"'{file}' is empty: a text file needs at least one line.")


def existing_file(path: str | PathLike[str]) -> Path:
    """The path as a `Path`. If there is no such file, it may be a name of the catalogue: "multi30k/val.en" means
    val.en.gz of multi30k (see `catalogue.fetched_file`).

    Raises HeadwiseError when it does not exist (naming a similar file), is a folder, or is a pointer of git-lfs.
    """
    file = as_path(path)
    try:
        file = file.expanduser()
        if file.is_dir():
            raise HeadwiseError(f"'{file}' is a folder, not a file: name one file in it.")
        if file.exists():
            refuse_pointer(file)
            return file
        if _is_listed(str(path)):
            # Here, because it takes a while to load, and most texts are files.
            from headwise.data.catalogue import fetched_file

            return fetched_file(str(path))
        hint = _similar(file)
    except (OSError, RuntimeError, ValueError) as error:  # of "~nobody/x", and of a NUL in the name
        raise HeadwiseError(
            f"Cannot read '{file}': {getattr(error, 'strerror', None) or error}."
        ) from error
    raise HeadwiseError(f"There is no file '{file}'{hint or ': check its path'}.")


def is_file(name: Any) -> bool:
    """Whether a user names a file that is there."""
    if isinstance(name, str) and len(name) > LONGEST_NAME:
        return False  # for such a name the file system raises an error in place of "no"
    return isinstance(name, str | PathLike) and Path(name).is_file()


def named_files(given: Any) -> list[Any] | None:
    """The names of files: of one, or of a list in which all are there; None for anything else."""
    if isinstance(given, str | PathLike):
        return [given]
    if isinstance(given, list | tuple) and given and all(map(is_file, given)):
        return [*given]
    return None


def refuse_pointer(file: Path) -> None:
    """Raise HeadwiseError where git has left a pointer in the place of a large file."""
    # To look into a pipe would take what is in it; and a pointer is small.
    if not file.is_file() or file.stat().st_size > LARGEST_POINTER:
        return
    with file.open("rb") as content:
        if content.read(len(POINTER)) == POINTER:
            raise HeadwiseError(
                f"{file} is a pointer of git-lfs, not the file itself: run `git lfs pull` in {file.parent}."
            )


def side_files(path: str | PathLike[str]) -> list[str | PathLike[str]]:
    """The names of both files that a name with two languages of the catalogue means: "multi30k/val.en" and
    "multi30k/val.de" for "multi30k/val.en-de". Any other name comes alone."""
    pair = PAIR.fullmatch(str(path))
    if pair and _is_listed(str(path)) and not Path(path).exists():
        return [pair["stem"] + pair["source"], pair["stem"] + pair["target"]]
    return [path]


def one_sided(spec: str | PathLike[str] | Sequence[str | PathLike[str]]) -> bool:
    """Whether a text is named as one file with a sentence a line, or as one column ("datasets:NAME?text=COLUMN"): neither
    pairs nor a table."""
    names = [spec] if isinstance(spec, str | PathLike) else spec
    if len(names) != 1:
        return False
    name = str(names[0])
    if name.startswith("datasets:"):
        return "text" in parse_qs(name.partition("?")[2])
    return not is_table(Path(name)) and len(side_files(name)) == 1


def named_table(spec: Any) -> str | PathLike[str] | None:
    """The file of a text that is one table; None for a text that is named in another way."""
    names = [spec] if isinstance(spec, str | PathLike) else spec
    if len(names) != 1 or str(names[0]).startswith("datasets:") or not is_table(Path(names[0])):
        return None
    return names[0]


def is_table(file: Path) -> bool:
    """Whether a name ends like that of a table with named columns."""
    return ends_with(file, ".tsv", ".csv", *JSON_LINES)


def ends_with(file: str | PathLike[str], *endings: str) -> bool:
    """Whether a name has one of these endings, before that of gzip."""
    return Path(file).name.lower().removesuffix(".gz").endswith(endings)


def _is_listed(name: str) -> bool:
    """Whether the first part of a name is a data set of the catalogue."""
    folder, slash, _ = name.partition("/")
    return bool(slash and folder) and folder in _data_sets()


def _data_sets() -> set[str]:
    """The names of the data sets of the catalogue."""
    from headwise.data.catalogue import catalogue

    return {entry.name for entry in catalogue()}


def _similar(file: Path) -> str:
    """A hint for a missing file: a longer or shorter name (dev.en, dev.en.gz), or else a similar one."""
    before = str(file).removesuffix(file.name)
    if not file.parent.is_dir():
        guess = did_you_mean(str(file.parent), _data_sets())
        return f": the folder '{file.parent}' does not exist{guess}"
    # dev.en for dev.en.gz: such a name is the right one, however little alike the two are as strings.
    names = sorted(other.name for other in file.parent.iterdir() if other.is_file())
    related = [name for name in names if name.startswith(file.name) or file.name.startswith(name)]
    return did_you_mean(file.name, related or names, before, alike=0 if related else 0.75)


def _unpacked(stream: io.BufferedReader) -> io.BufferedReader:
    """The stream itself, or its content when it is gzip; works on a pipe, too (nothing is read twice)."""
    if stream.peek(2)[:2] != GZIP:
        return stream
    return io.BufferedReader(gzip.GzipFile(fileobj=stream), buffer_size=1 << 16)


def _decoded(line: bytes, number: int, file: Path, begins: bytes) -> str:
    """A line as text. begins: what the file begins with. A byte order mark also stands where files were joined."""
    try:
        return line.removeprefix(codecs.BOM_UTF8).decode("utf-8")
    except UnicodeDecodeError as error:
        for start, (what, remedy) in FORMATS.items():
            if begins.startswith(start):
                raise HeadwiseError(
                    f"'{file}' is {what}, and plain text is needed here: {remedy}."
                ) from error
        byte = line[error.start]
        raise HeadwiseError(
            f"Line {number} of '{file}' is not UTF-8 (byte 0x{byte:02x} at byte {error.start + 1}): "
            "give plain text in UTF-8."
        ) from error
