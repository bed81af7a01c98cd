"""Public data sets to download: the list (`catalogue.json`), and `get`, which fetches one with checksums.

pooch downloads and checks the files; a file has its own name only when it is complete and its SHA-256 is right. Where
the catalogue has no SHA-256, that of the first download is kept in NAME.sha256 (a file for `sha256sum --check`). It
shows later changes, and not whether the first download was right.
"""

import logging
import os
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

import pooch
import requests
from pydantic import AfterValidator, ConfigDict, Field, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from headwise.errors import HeadwiseError, did_you_mean, reason_in
from headwise.folders import below, is_name, write_text

TIMEOUT = (10, 60)  # seconds to connect, seconds without a byte
CHUNK_BYTES = 1 << 16
UNSURE_FACTOR = (
    2  # where only an estimate of a file's size is known, so many times as much may arrive
)
STRICT = ConfigDict(strict=True, extra="forbid")


def file_name(name: str) -> str:
    """A name in the catalogue, of which a file's is made."""
    if not is_name(name):
        raise ValueError("this can be no name of a file")
    return name


FileName = Annotated[str, AfterValidator(file_name)]


@dataclass(frozen=True, config=STRICT)
class RemoteFile:
    """One file of a set. Without `sha256` only the address (a fixed commit) identifies it; `bytes` is an estimate."""

    name: FileName
    url: Annotated[str, Field(pattern="^https?://")]
    bytes: Annotated[int, Field(ge=1)]
    sha256: Annotated[str, Field(pattern="^[0-9a-f]{64}$")] | None

    @property
    def most(self) -> int:
        """The most bytes that may arrive."""
        return self.bytes if self.sha256 else UNSURE_FACTOR * self.bytes


@dataclass(frozen=True, config=STRICT)
class DataSet:
    """One public data set: its content, licence, origin (repository and commit) and files."""

    name: FileName
    content: str
    licence: str
    origin: tuple[str, ...]
    files: tuple[RemoteFile, ...]

    @property
    def bytes(self) -> int:
        """The size of all files together."""
        return sum(file.bytes for file in self.files)

    @property
    def unchecked(self) -> tuple[str, ...]:
        """The files for which no checksum has been confirmed."""
        return tuple(file.name for file in self.files if file.sha256 is None)


def catalogue(path: Path | None = None) -> list[DataSet]:
    """The data sets that `get` knows; `path` reads another list in the format of `catalogue.json`.

    Raises HeadwiseError for a file that is no such list, such as one with a file's name that leads out of its folder.
    """
    source = path or resources.files("headwise.data").joinpath("catalogue.json")
    try:
        return TypeAdapter(list[DataSet]).validate_json(source.read_bytes())
    except OSError as error:
        raise HeadwiseError(
            f"The catalogue {source} cannot be opened ({error.strerror})."
        ) from None
    except ValidationError as error:
        problem = error.errors()[0]
        where = ".".join(map(str, problem["loc"]))
        raise HeadwiseError(
            f"{source} cannot be used as a catalogue: {where and where + ': '}{reason_in(problem['msg'])}."
        ) from None


def data_folder() -> Path:
    """The default folder of data sets: HEADWISE_DATA, or else the user's cache folder."""
    return Path(os.environ.get("HEADWISE_DATA") or pooch.os_cache("headwise")).expanduser()


def listing(folder: str | Path | None = None) -> list[dict[str, str | int | float]]:
    """The catalogue as rows for a table; `here` counts the files that `folder` has already."""
    root = data_folder() if folder is None else Path(folder).expanduser()
    rows: list[dict[str, str | int | float]] = []
    for entry in catalogue():
        row: dict[str, str | int | float] = {
            "name": entry.name,
            "content": entry.content,
            "files": len(entry.files),
            "here": sum(below(root, f"{entry.name}/{file.name}").is_file() for file in entry.files),
            "MiB": round(entry.bytes / 2**20, 1),
            "checksums": len(entry.files) - len(entry.unchecked),
            "licence": entry.licence,
        }
        rows.append(row)
    return rows


def get(
    name: str,
    folder: str | Path | None = None,
    entries: Sequence[DataSet] | None = None,
) -> Path:
    """Downloads one data set into FOLDER/NAME and returns that folder; existing files with the right checksum stay.

    Raises HeadwiseError, in one sentence, for a name that is not in the catalogue, without network, when the server has
    no such file, and when a download does not match the catalogue (it is then removed). A logged warning names the files
    without a known checksum.
    """
    entry = _find_entry(name, catalogue() if entries is None else entries)
    root = data_folder() if folder is None else Path(folder).expanduser()
    home = below(root, entry.name)
    pooch.get_logger().setLevel(logging.WARNING)  # it says every file
    missing = False
    try:
        for file in entry.files:
            path = below(home, file.name)
            expected = _checksum(path, file)
            if not path.is_file() or expected not in (None, pooch.file_hash(str(path))):
                missing = True
                _fetch(file, path, expected)
    except OSError as error:
        raise HeadwiseError(
            f"Cannot keep '{name}' in '{home}': {error.strerror or error}; name another folder."
        ) from error
    if missing and entry.unchecked:
        logging.getLogger(__name__).warning(
            "%s: no checksum is known for %s, only the commit in the address.",
            name,
            ", ".join(entry.unchecked),
        )
    return home


def fetched_file(name: str, folder: str | Path | None = None) -> Path:
    """The file that "SET/FILE" means, as `get` has put it into FOLDER/SET; a final .gz may be left out.

    Raises HeadwiseError where the set has no such file, or the file has not been fetched.
    """
    chosen, _, file_name = name.partition("/")
    entry = _find_entry(chosen, catalogue())
    names = [file.name for file in entry.files]
    match = next((file for file in names if file_name in (file, file.removesuffix(".gz"))), None)
    if match is None:
        guess = did_you_mean(file_name, [file.removesuffix(".gz") for file in names], f"{chosen}/")
        raise HeadwiseError(
            f"There is no file '{name}'{guess}; the data set {chosen} has {', '.join(names)}."
        )
    root = data_folder() if folder is None else Path(folder).expanduser()
    path = below(root, f"{entry.name}/{match}")
    if not path.is_file():
        raise HeadwiseError(
            f"'{name}' is not here yet: fetch it by `headwise data get {chosen}`, or name a file."
        )
    return path


def _find_entry(name: str, entries: Sequence[DataSet]) -> DataSet:
    names = {entry.name: entry for entry in entries}
    if name in names:
        return names[name]
    raise HeadwiseError(
        f"There is no data set '{name}' in the catalogue{did_you_mean(name, names)}; it has {', '.join(names)}."
    )


def _checksum(path: Path, file: RemoteFile) -> str | None:
    """The SHA-256 that a file must have: the catalogue's, or else that of its first download."""
    if file.sha256:
        return file.sha256
    kept = path.with_name(f"{path.name}.sha256")
    if kept.is_file():
        return kept.read_text(encoding="utf-8", errors="replace")[:64]
    return None


def _fetch(file: RemoteFile, path: Path, expected: str | None) -> None:
    """Download one file, where there is none with the SHA-256 that is expected."""
    downloader = pooch.HTTPDownloader(
        progressbar=SizeLimit(file), chunk_size=CHUNK_BYTES, timeout=TIMEOUT
    )
    try:
        pooch.retrieve(
            file.url,
            expected and f"sha256:{expected}",
            fname=path.name,
            path=path.parent,
            downloader=downloader,
        )
    except requests.HTTPError as error:
        raise HeadwiseError(f"The server refused {file.name}: it answered {error}.") from error
    except requests.RequestException as error:
        raise HeadwiseError(
            f"{file.name} could not be downloaded from {urlsplit(file.url).netloc} ({type(error).__name__}): check the "
            f"network and run the same command again, or put the file into '{path.parent}' yourself."
        ) from error
    except ValueError as error:
        raise HeadwiseError(
            f"The download of {file.name} is damaged and was removed: its SHA-256 is not {expected}; try again later."
        ) from error
    if expected is None:
        digest = pooch.file_hash(str(path))
        write_text(path.with_name(f"{path.name}.sha256"), f"{digest}  {file.name}\n")


class SizeLimit:
    """Ends a download when more arrives than was promised. pooch reports every chunk to it, as to a progress bar."""

    def __init__(self, file: RemoteFile) -> None:
        self.file = file
        self.total = 0  # set by pooch
        self.arrived = 0

    def update(self, size: int) -> None:
        self.arrived += size
        if self.arrived > self.file.most + CHUNK_BYTES:  # the last chunk counts as a whole one
            raise HeadwiseError(
                f"The download of {self.file.name} is too long and was removed: "
                f"expected {self.file.bytes:,} bytes, more than {self.file.most:,} arrived; try again later."
            )

    def reset(self) -> None:
        self.arrived = 0

    def close(self) -> None: ...
