"""Public data sets to download: the list (`catalogue.json`), and `get`, which fetches one with checksums.

pooch stores and checks the files; this module adds what pooch lacks: a download continues after an interruption, and
ends when more arrives than was promised. A file has its own name only when it is complete and its SHA-256 is right; an
unfinished one is NAME.part. Where the catalogue has no SHA-256, that of the first download is kept in NAME.sha256 (a
file for `sha256sum --check`). It shows later changes, and not whether the first download was right.
"""

import logging
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib import resources
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

import pooch
import requests
from filelock import FileLock
from pydantic import AfterValidator, ConfigDict, Field, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from headwise.errors import HeadwiseError, did_you_mean, reason_in
from headwise.files import below, is_name
from headwise.heads import write_text

RETRIES = 2  # of a broken or damaged download, by pooch, before the error is raised
TIMEOUT = (10, 60)  # seconds to connect, seconds without a byte
CHUNK = 1 << 16
UNSURE = 2  # where only an estimate of a file's size is known, so many times as much may arrive
STRICT = ConfigDict(strict=True, extra="forbid")


def file_name(name: str) -> str:
    """A name in the catalogue, of which a file's is made."""
    if not is_name(name):
        raise ValueError("this can be no name of a file")
    return name


FileName = Annotated[str, AfterValidator(file_name)]
Progress = Callable[[str, int, int], None]  # name of the file, bytes so far, bytes of the whole


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
        return self.bytes if self.sha256 else UNSURE * self.bytes


@dataclass(frozen=True, config=STRICT)
class Entry:
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


def catalogue(path: Path | None = None) -> list[Entry]:
    """The data sets that `get` knows; `path` reads another list in the format of `catalogue.json`.

    Raises HeadwiseError for a file that is no such list, such as one with a file's name that leads out of its folder.
    """
    source = path or resources.files("headwise.data").joinpath("catalogue.json")
    try:
        return TypeAdapter(list[Entry]).validate_json(source.read_bytes())
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


def default_folder() -> Path:
    """The default folder of data sets: HEADWISE_DATA, or else the user's cache folder."""
    return Path(os.environ.get("HEADWISE_DATA") or pooch.os_cache("headwise")).expanduser()


def listing(folder: str | Path | None = None) -> list[dict[str, str | int | float]]:
    """The catalogue as rows for a table; `here` counts the files that `folder` has already."""
    root = default_folder() if folder is None else Path(folder).expanduser()
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
    progress: Progress | None = None,
    entries: Sequence[Entry] | None = None,
) -> Path:
    """Downloads one data set into FOLDER/NAME and returns that folder; existing files with the right checksum stay.

    Raises HeadwiseError, in one sentence, for a name that is not in the catalogue, without network, when the server has
    no such file, and when a download does not match the catalogue (it is then removed). Several processes may download
    at once. A logged warning names the files without a known checksum.
    """
    entry = _find_entry(name, catalogue() if entries is None else entries)
    root = default_folder() if folder is None else Path(folder).expanduser()
    home = below(root, entry.name)
    try:
        missing = [
            file for file in entry.files if not _is_right(below(home, file.name), file, progress)
        ]
        if missing:
            home.mkdir(parents=True, exist_ok=True)
            with _quiet_pooch(), FileLock(home / ".lock"):
                for file in missing:
                    _fetch(file, home, progress)
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
    root = default_folder() if folder is None else Path(folder).expanduser()
    path = below(root, f"{entry.name}/{match}")
    if not path.is_file():
        raise HeadwiseError(
            f"'{name}' is not here yet: fetch it by `headwise data get {chosen}`, or name a file."
        )
    return path


def _find_entry(name: str, entries: Sequence[Entry]) -> Entry:
    names = {entry.name: entry for entry in entries}
    if name in names:
        return names[name]
    raise HeadwiseError(
        f"There is no data set '{name}' in the catalogue{did_you_mean(name, names)}; it has {', '.join(names)}."
    )


def _is_right(path: Path, file: RemoteFile, progress: Progress | None) -> bool:
    """Whether the file exists and is right: a complete folder needs neither network nor lock nor the right to write."""
    right = path.is_file() and _checksum(path, file) in (None, pooch.file_hash(str(path)))
    if right and progress:
        progress(file.name, file.bytes, file.bytes)
    return right


def _checksum(path: Path, file: RemoteFile) -> str | None:
    """The SHA-256 that a file must have: the catalogue's, or else that of its first download."""
    if file.sha256:
        return file.sha256
    kept = path.with_name(f"{path.name}.sha256")
    if kept.is_file():
        return kept.read_text(encoding="utf-8", errors="replace")[:64]
    return None


def _fetch(file: RemoteFile, home: Path, progress: Progress | None) -> None:
    expected = _checksum(below(home, file.name), file)
    store = pooch.create(
        path=home,
        base_url="",
        registry={file.name: expected and f"sha256:{expected}"},
        urls={file.name: file.url},
        retry_if_failed=RETRIES,
    )
    downloader = ResumingDownloader(file, below(home, f"{file.name}.part"), progress)
    try:
        store.fetch(file.name, downloader=downloader)
    except requests.RequestException as error:
        raise HeadwiseError(
            f"The download of {file.name} stopped at {downloader.here:,} of {file.bytes:,} bytes: "
            "run the same command again to continue it."
        ) from error
    except ValueError as error:
        raise HeadwiseError(
            f"The download of {file.name} is damaged and was removed: expected SHA-256 {expected}, "
            f"found {downloader.checksum}; try again later."
        ) from error
    if expected is None:
        write_text(below(home, f"{file.name}.sha256"), f"{downloader.checksum}  {file.name}\n")


@contextmanager
def _quiet_pooch() -> Iterator[None]:
    """pooch logs every file to the terminal; the caller of `get` has `progress` for that."""
    logger = pooch.get_logger()
    level = logger.level
    logger.setLevel(logging.WARNING)
    try:
        yield
    finally:
        logger.setLevel(level)


class ResumingDownloader:
    """A downloader for pooch that keeps the bytes so far in `part` and requests only the rest (HTTP Range).

    Raises HeadwiseError where another try is useless (no connection, no such file, the server's file is too short) and
    an error of `requests` where it is not (the connection broke): pooch then tries again, from where it stopped.
    """

    def __init__(self, file: RemoteFile, part: Path, progress: Progress | None) -> None:
        self.file = file
        self.part = part
        self.progress = progress
        self.checksum = ""  # SHA-256 of the last whole download

    @property
    def here(self) -> int:
        """Bytes in the part file."""
        return self.part.stat().st_size if self.part.exists() else 0

    def __call__(self, url: str, output_file: str, store: object) -> None:
        if self.file.sha256 is None:  # a wrong continuation would go unnoticed
            self.part.unlink(missing_ok=True)
        if self.file.sha256 is None or self.here < self.file.bytes:
            self._download(url)
        self.checksum = pooch.file_hash(str(self.part))
        self.part.replace(output_file)

    def _download(self, url: str) -> None:
        with self._response(url) as response:
            continues = response.headers.get("Content-Range", "").startswith(f"bytes {self.here}-")
            mode = "ab" if response.status_code == 206 and continues else "wb"
            with self.part.open(mode) as out:
                for chunk in response.iter_content(CHUNK):
                    out.write(chunk)
                    if out.tell() > self.file.most:
                        raise self._wrong_size(
                            "too long", f"more than {self.file.most:,} bytes arrived"
                        )
                    if self.progress:
                        self.progress(self.file.name, out.tell(), self.file.bytes)
            if self.file.sha256 and self.here < self.file.bytes:
                # Where all that was promised came, the server's own file is short.
                if "Content-Length" in response.headers:
                    raise self._wrong_size("truncated", f"found {self.here:,}")
                raise requests.ConnectionError("the server closed the connection before the end")

    def _response(self, url: str) -> requests.Response:
        """The server's answer to the request for the rest of the file; the body is not read yet."""
        headers = {"Accept-Encoding": "identity"}
        if self.here:
            headers["Range"] = f"bytes={self.here}-"
        try:
            response = requests.get(url, headers=headers, stream=True, timeout=TIMEOUT)
        except requests.RequestException as error:
            raise HeadwiseError(
                f"Cannot reach {urlsplit(url).netloc} to download {self.file.name} ({type(error).__name__}): "
                f"check the network, or put the file into '{self.part.parent}' yourself."
            ) from error
        if response.ok:
            return response
        response.close()
        if response.status_code == requests.codes.requested_range_not_satisfiable:
            raise self._wrong_size("truncated", f"found {self.here:,}")
        raise HeadwiseError(
            f"The server refused {self.file.name}: it answered {response.status_code} {response.reason} for {url}."
        )

    def _wrong_size(self, how: str, size: str) -> HeadwiseError:
        self.part.unlink(missing_ok=True)
        return HeadwiseError(
            f"The download of {self.file.name} is {how} and was removed: "
            f"expected {self.file.bytes:,} bytes, {size}; try again later."
        )
