"""Speech: tables of recordings with what is said in them, and the samples of an audio file."""

from __future__ import annotations

import hashlib
import io
import json
import math
import warnings
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby, pairwise
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np

from headwise.core.errors import HeadwiseError, few_names
from headwise.core.folders import sha256
from headwise.data.lines import existing_file, is_file, is_table
from headwise.data.store import AnyText
from headwise.data.text import on_one_line, records_of

WORD_COLUMNS = ("audio", "word", "start", "end")
TEXT_COLUMNS = ("audio", "text")
UNKNOWN_SIZE = (
    0x7FFFF000  # bytes of a recording, from which on programs mean "to the end": ffmpeg, SoX
)
SHORTEST_WAV = 128  # bytes: a header alone has 44, or some more
LARGEST_CHUNK = 1 << 20  # bytes before the samples, at most


@dataclass(frozen=True)
class Utterance:
    """An audio file and what is said in it: its text, a code of its language or "", and where the table has them, the
    words and their starts in seconds."""

    audio: Path
    text: str
    language: str = ""
    words: tuple[str, ...] = ()
    starts: tuple[float, ...] = ()


class SpokenWord(NamedTuple):
    """A row of the table. where: which one it is, in words. audio: as it is written there. start: in seconds."""

    where: str
    audio: str
    form: str
    start: float
    language: str


class Speech(AnyText):
    """Recordings with their texts: `for utterance in speech`. Audio is read when it is used."""

    def __init__(self, utterances: tuple[Utterance, ...], name: str, blank: int = 0) -> None:
        self.utterances = utterances
        self.name = name
        self.blank = blank

    @classmethod
    def read(cls, path: str | PathLike[str]) -> Self:
        """A table, .csv, .tsv or .jsonl, in one of two forms; `language` (such as `en`) is a further column of either.

        A row for each recording: `audio` (a file, from the table's folder) and `text`. Or a row for each word, in the
        order of speaking: `audio`, `word`, `start` and `end` (seconds).

        Raises HeadwiseError, with the row, for what is missing or is no time.
        """
        file = existing_file(path)
        if not is_table(file):
            raise HeadwiseError(
                f"'{file}' is no table: give a .csv, .tsv or .jsonl with the columns {', '.join(TEXT_COLUMNS)}, a row for "
                "each recording."
            )
        rows = list(records_of(file, *TEXT_COLUMNS))
        # A table of words may have texts as well: the words say more.
        columns = rows[0][0].keys() if rows else {*TEXT_COLUMNS}
        if not ({*TEXT_COLUMNS} <= columns or {*WORD_COLUMNS} <= columns):
            raise HeadwiseError(
                f"'{file}' has the columns {few_names([*columns])}: it needs {', '.join(TEXT_COLUMNS)}, or for each "
                f"word {', '.join(WORD_COLUMNS)}. A .csv has commas between them, a .tsv tabs."
            )
        if rows and "word" not in columns:
            return cls(*texts_of(rows, file))
        words = [word_of_row(row, where) for row, where in rows]
        utterances = []
        for name, group in groupby(words, key=lambda word: word.audio):
            spoken = list(group)
            for before, after in pairwise(spoken):
                if after.start < before.start:
                    raise HeadwiseError(
                        f"{after.where} starts before the row above it: sort the words by time."
                    )
            audio = existing_file(file.parent / name)
            forms = tuple(word.form for word in spoken)
            starts = tuple(word.start for word in spoken)
            utterances.append(Utterance(audio, " ".join(forms), spoken[0].language, forms, starts))
        if not utterances:
            raise HeadwiseError(
                f"{file} has no rows: it needs one for each recording, with {', '.join(TEXT_COLUMNS)}, or one for "
                f"each word, with {', '.join(WORD_COLUMNS)}."
            )
        return cls(tuple(utterances), file.name)

    def __len__(self) -> int:
        return len(self.utterances)

    def __iter__(self) -> Iterator[Utterance]:
        return iter(self.utterances)

    def __repr__(self) -> str:
        blank = f", blank={self.blank:,}" if self.blank else ""
        return f"Speech({self.name!r}, utterances={len(self):,}, words={self.words:,}{blank})"

    @property
    def words(self) -> int:
        """How many words are said."""
        return sum(len(utterance.text.split()) for utterance in self)

    @property
    def has_word_times(self) -> bool:
        """Whether the table says when words start."""
        return all(utterance.words for utterance in self)

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of the recordings and what is said in them, in hexadecimal, wherever the files are."""
        digest = hashlib.sha256()
        for utterance in self:
            said = [utterance.text, utterance.language, utterance.words, utterance.starts]
            # The path is left out: the same recordings in another folder are the same text.
            digest.update(json.dumps([sha256(utterance.audio), *said]).encode())
        return digest.hexdigest()

    def take(self, indices: Iterable[int]) -> Self:
        """The recordings with these indices, in this order; raises IndexError outside the table."""
        return type(self)(tuple(self.utterances[index] for index in indices), self.name)


def texts_of(
    rows: Iterable[tuple[Mapping[str, Any], str]], file: Path
) -> tuple[tuple[Utterance, ...], str, int]:
    """The recordings of a table with a row for each, its name, and how many have a blank text or no sample."""
    utterances = []
    blank = 0
    for row, where in rows:
        text = row.get("text")
        if not row.get("audio") or not isinstance(text, str):
            missing = "text" if row.get("audio") else "audio"
            raise HeadwiseError(
                f"{where} lacks {missing}: each row needs {', '.join(TEXT_COLUMNS)}."
            )
        refuse_glued(text, where, file.parent)
        name = str(row["audio"])
        audio = existing_file(file.parent / name)
        said = on_one_line(text)
        if said and not holds_no_sample(audio):
            utterances.append(Utterance(audio, said, str(row.get("language") or "")))
        else:
            blank += 1
    if not utterances:
        raise HeadwiseError(
            f"All {blank} texts of {file} are blank, or their recording has no sound in it: write what is said, or pick "
            "another recording."
        )
    return tuple(utterances), file.name, blank


def holds_no_sample(audio: Path) -> bool:
    """Whether a WAV holds no sample, as clips that were cut off; only files of little more than a header are opened."""
    short = audio.suffix.lower() == ".wav" and audio.stat().st_size <= SHORTEST_WAV
    return short and audio_seconds(audio) == 0


def refuse_glued(text: str, where: str, folder: Path) -> None:
    """Raise HeadwiseError for a text over several lines of which one begins with a recording: it is a row that a quote
    took in."""
    for line in text.splitlines()[1:]:
        name = line.split(",")[0].strip('"')
        if name.strip() and is_file(str(folder / name)):
            raise HeadwiseError(
                f"{where} opens a quote that takes in the row of {name}: close it, or leave it out."
            )


def word_of_row(row: Mapping[str, Any], where: str) -> SpokenWord:
    """The word of a row. Raises HeadwiseError where a column is missing or is no time."""
    if missing := [column for column in WORD_COLUMNS if row.get(column) in (None, "")]:
        raise HeadwiseError(
            f"{where} lacks {missing[0]}: each row needs {', '.join(WORD_COLUMNS)}, or for a table of "
            f"recordings {', '.join(TEXT_COLUMNS)}."
        )
    try:
        start = float(row["start"])
        end = float(row["end"])
    except (TypeError, ValueError):
        start = math.nan
        end = math.nan
    # NaN fails here, too.
    if not 0 <= start <= end < math.inf:
        raise HeadwiseError(
            f"{where} has the times {row['start']} and {row['end']}: write start and end in seconds."
        )
    form = str(row["word"]).strip()
    language = str(row.get("language") or "")
    return SpokenWord(where, str(row["audio"]), form, start, language)


def samples(file: Path, rate: int) -> np.ndarray:
    """The samples of an audio file at a rate (Hz), all channels averaged, float32 in −1 … 1. Raises HeadwiseError for a
    file that is no audio."""
    from scipy.signal import (
        resample_poly,  # takes half a second; tables of recordings are read without
    )

    read, file_rate = audio_in(file)
    if read.dtype == np.uint8:  # around 128; all other whole numbers are around 0
        read = (read.astype(np.float64) - 128) / 128
    elif read.dtype.kind in "iu":
        read = read.astype(np.float64) / 2 ** (8 * read.dtype.itemsize - 1)
    mono = read.mean(1) if read.ndim > 1 else read
    if not np.isfinite(mono).all():
        raise HeadwiseError(f"{file} has samples that are not finite numbers.")
    # The filter of resample_poly grows with its factors.
    common = math.gcd(rate, file_rate)
    resampled = resample_poly(mono, rate // common, file_rate // common)
    return np.asarray(resampled, dtype=np.float32)


def audio_seconds(file: Path) -> float:
    """The length of an audio file. No sample is read, where the format allows it."""
    read, file_rate = audio_in(file, mapped=True)
    return len(read) / file_rate


def audio_in(file: Path, mapped: bool = False) -> tuple[np.ndarray, int]:
    """The samples of an audio file as they are stored, and their rate (Hz). mapped: leave those of a WAV on disk.

    WAV is read by SciPy, every other format by soundfile (an extra).
    """
    try:
        if file.suffix.lower() == ".wav":
            from scipy.io import wavfile

            with warnings.catch_warnings():
                # of a file that was cut off, whose samples end too early
                warnings.filterwarnings("error", "Reached EOF prematurely")
                whole = to_the_end(file)
                try:
                    file_rate, read = wavfile.read(whole or file, mmap=mapped and whole is None)
                except ValueError:  # 24 bits a sample cannot be mapped, nor a file that was cut off
                    file_rate, read = wavfile.read(whole or file)
        else:
            try:
                import soundfile
            except ImportError:
                raise HeadwiseError(
                    f"{file} is no WAV file; other audio needs soundfile: pip install 'headwise-speech[audio]'."
                ) from None
            read, file_rate = soundfile.read(file)
    except HeadwiseError:
        raise
    except Exception as error:  # from scipy or soundfile, about the user's file
        raise HeadwiseError(
            f"{file} cannot be read as audio ({type(error).__name__}: {error})."
        ) from None
    return read, int(file_rate)


def to_the_end(file: Path) -> io.BytesIO | None:
    """A WAV that a program wrote into a pipe, with its true size: such a program cannot go back to write how long the
    recording became, so it leaves 0 or a size beyond all files. None for others, which are read as they are."""
    with file.open("rb") as content:
        if content.read(4) != b"RIFF":
            return None
        content.seek(12)
        block = 1  # bytes of a sample of all channels
        while len(head := content.read(8)) == 8:
            name, size = head[:4], int.from_bytes(head[4:], "little")
            if name == b"data":
                break
            if size > LARGEST_CHUNK:
                return None
            body = content.read(size + size % 2)
            if name == b"fmt ":
                block = max(1, int.from_bytes(body[12:14], "little"))
        else:
            return None
        if 0 < size < UNKNOWN_SIZE:
            return None
        start = content.tell()
        content.seek(0)
        whole = bytearray(content.read())
    size = (len(whole) - start) // block * block
    del whole[start + size :]
    whole[4:8] = (len(whole) - 8).to_bytes(4, "little")
    whole[start - 4 : start] = size.to_bytes(4, "little")
    return io.BytesIO(whole)
