"""Public data sets to download: the list (`catalogue.json`), and `get`, which fetches one with checksums.

pooch downloads and checks the files; a file has its own name only when it is complete and its SHA-256 is right. A file
without a known SHA-256 is identified by its address alone, which names a commit.
"""

import json
import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from urllib.parse import urlsplit

import pooch
import requests

from headwise.core.errors import HeadwiseError, did_you_mean
from headwise.core.folders import below

TIMEOUT = (10, 60)  # seconds to connect, seconds without a byte
CHUNK_BYTES = 1 << 16
UNSURE_FACTOR = 2  # so many times as much may arrive where a size is only an estimate


@dataclass(frozen=True)
class RemoteFile:
    """One file of a set. Without `sha256` `bytes` is an estimate."""

    name: str
    url: str
    bytes: int
    sha256: str | None


@dataclass(frozen=True)
class DataSet:
    """One public data set: its content, licence, origin (repository and commit) and files."""

    name: str
    content: str
    licence: str
    origin: tuple[str, ...]
    files: tuple[RemoteFile, ...]


def catalogue() -> list[DataSet]:
    """The data sets that `get` knows."""
    source = resources.files("headwise.data").joinpath("catalogue.json")
    entries = []
    for facts in json.loads(source.read_text(encoding="utf-8")):
        files = tuple(RemoteFile(**file) for file in facts.pop("files"))
        entries.append(DataSet(**facts, files=files))
    return entries


def data_folder(given: str | Path | None = None) -> Path:
    """The folder of data sets: the given one, HEADWISE_DATA, or else the user's cache folder."""
    chosen = given or os.environ.get("HEADWISE_DATA") or pooch.os_cache("headwise")
    return Path(chosen).expanduser()


def listing(folder: str | Path | None = None) -> list[dict[str, str | int | float]]:
    """The catalogue as rows for a table; `here` counts the files that `folder` has already."""
    root = data_folder(folder)
    rows: list[dict[str, str | int | float]] = []
    for entry in catalogue():
        row: dict[str, str | int | float] = {
            "name": entry.name,
            "content": entry.content,
            "files": len(entry.files),
            "here": sum(below(root, f"{entry.name}/{file.name}").is_file() for file in entry.files),
            "MiB": round(sum(file.bytes for file in entry.files) / 2**20, 1),
            "checksums": sum(file.sha256 is not None for file in entry.files),
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
    root = data_folder(folder)
    home = below(root, entry.name)
    pooch.get_logger().setLevel(logging.WARNING)  # it says every file
    sums = {file.name: file.sha256 for file in entry.files}
    addresses = {file.name: file.url for file in entry.files}
    downloads = pooch.create(home, base_url="", registry=sums, urls=addresses)
    unchecked = []
    try:
        for file in entry.files:
            if file.sha256 is None and not below(home, file.name).is_file():
                unchecked.append(file.name)
            downloader = pooch.HTTPDownloader(
                progressbar=SizeLimit(file), chunk_size=CHUNK_BYTES, timeout=TIMEOUT
            )
            downloads.fetch(file.name, downloader=downloader)
    except requests.HTTPError as error:
        raise HeadwiseError(f"The server refused {file.name}: it answered {error}.") from error
    except requests.RequestException as error:
        raise HeadwiseError(
            f"{file.name} could not be downloaded from {urlsplit(file.url).netloc} ({type(error).__name__}): check the "
            f"network and run the same command again, or put the file into '{home}' yourself."
        ) from error
    except ValueError as error:
        raise HeadwiseError(
            f"The download of {file.name} is damaged and was removed: its SHA-256 is not {file.sha256}; try again later."
        ) from error
    except OSError as error:
        raise HeadwiseError(
            f"Cannot keep '{name}' in '{home}': {error.strerror or error}; name another folder."
        ) from error
    if unchecked:
        logging.getLogger(__name__).warning(
            "%s: no checksum is known for %s, only the commit in the address.",
            name,
            ", ".join(unchecked),
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
    root = data_folder(folder)
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


class SizeLimit:
    """Ends a download when more arrives than the list promises. pooch reports every chunk to it, as to a progress bar."""

    def __init__(self, file: RemoteFile) -> None:
        self.file = file
        self.total = 0  # set by pooch
        self.arrived = 0

    def update(self, size: int) -> None:
        self.arrived += size
        most = self.file.bytes if self.file.sha256 else UNSURE_FACTOR * self.file.bytes
        if self.arrived > most + CHUNK_BYTES:  # the last chunk counts as a whole one
            raise HeadwiseError(
                f"The download of {self.file.name} is too long and was removed: expected {self.file.bytes:,} bytes, more "
                f"than {most:,} arrived; try again later."
            )

    def reset(self) -> None:
        self.arrived = 0

    def close(self) -> None: ...
