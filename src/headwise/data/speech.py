"""Speech with the time of each word: a table of audio files, and the samples of an audio file."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby, pairwise
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
from scipy.io import wavfile
from scipy.signal import resample_poly

from headwise.data.lines import existing_file, read_lines
from headwise.errors import HeadwiseError

COLUMNS = ("audio", "word", "start", "end")


@dataclass(frozen=True)
class Utterance:
    """An audio file, what is said in it, and when: words, and their starts in seconds. language: a code, or ""."""

    audio: Path
    words: tuple[str, ...]
    starts: tuple[float, ...]
    language: str = ""


class SpokenWord(NamedTuple):
    """A row of the table, by its number. audio: as it is written there. start: in seconds."""

    row: int
    audio: str
    form: str
    start: float
    language: str


class Speech:
    """Utterances with word times: `for utterance in speech`, `len(speech)`. Audio is read when it is used."""

    def __init__(self, utterances: tuple[Utterance, ...], name: str) -> None:
        self.utterances = utterances
        self.name = name

    @classmethod
    def read(cls, path: str | PathLike[str]) -> Self:
        """A table with a row for each word, in the order of speaking: the columns `audio` (a file, from the table's
        folder), `word`, `start` and `end` (seconds), and perhaps `language` (such as `en`). CSV, or JSON lines.

        Raises HeadwiseError, with the row, for what is missing or is no time.
        """
        file = existing_file(path)
        words = [spoken_word(row, file, number) for number, row in rows_of(file)]
        utterances = []
        for name, group in groupby(words, key=lambda word: word.audio):
            spoken = list(group)
            for before, after in pairwise(spoken):
                if after.start < before.start:
                    raise HeadwiseError(
                        f"Row {after.row} of {file} starts before the row above it: "
                        "sort the words by time."
                    )
            audio = existing_file(file.parent / name)
            forms = tuple(word.form for word in spoken)
            starts = tuple(word.start for word in spoken)
            utterances.append(Utterance(audio, forms, starts, spoken[0].language))
        if not utterances:
            raise HeadwiseError(
                f"{file} has no words: it needs a row for each, with {', '.join(COLUMNS)}."
            )
        return cls(tuple(utterances), file.name)

    def __len__(self) -> int:
        return len(self.utterances)

    def __iter__(self) -> Iterator[Utterance]:
        return iter(self.utterances)

    def __repr__(self) -> str:
        words = sum(len(utterance.words) for utterance in self)
        return f"Speech({self.name!r}, utterances={len(self):,}, words={words:,})"


def rows_of(file: Path) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """The rows of a table, counted from 1."""
    lines = read_lines(file)
    if not file.name.lower().removesuffix(".gz").endswith(".jsonl"):
        yield from enumerate(csv.DictReader(lines), start=1)
        return
    for number, line in enumerate(lines, start=1):
        try:
            row = json.loads(line)
        except ValueError:
            row = None
        if not isinstance(row, dict):
            raise HeadwiseError(
                f"Line {number} of {file} is no JSON object: write one for each word."
            )
        yield number, row


def spoken_word(row: Mapping[str, Any], file: Path, number: int) -> SpokenWord:
    """The word of a row. Raises HeadwiseError where a column is missing or is no time."""
    if missing := [column for column in COLUMNS if row.get(column) in (None, "")]:
        raise HeadwiseError(
            f"Row {number} of {file} lacks {missing[0]}: each row needs {', '.join(COLUMNS)}."
        )
    try:
        start = float(row["start"])
        end = float(row["end"])
    except (TypeError, ValueError):
        start = math.nan
        end = math.nan
    if not 0 <= start <= end < math.inf:
        raise HeadwiseError(
            f"Row {number} of {file} has the times {row['start']} and {row['end']}: write start and end in seconds."
        )
    form = str(row["word"]).strip()
    language = str(row.get("language") or "")
    return SpokenWord(number, str(row["audio"]), form, start, language)


def samples(file: Path, rate: int) -> np.ndarray:
    """The samples of an audio file at a rate (Hz), all channels averaged, float32 in −1 … 1.

    WAV is read by SciPy, every other format by soundfile (an extra).
    """
    try:
        if file.suffix.lower() == ".wav":
            file_rate, read = wavfile.read(file)
            if read.dtype == np.uint8:  # around 128; all other whole numbers are around 0
                read = (read.astype(np.float64) - 128) / 128
            elif read.dtype.kind in "iu":
                read = read.astype(np.float64) / 2 ** (8 * read.dtype.itemsize - 1)
        else:
            try:
                import soundfile
            except ImportError:
                raise HeadwiseError(
                    f"{file} is no WAV file; other audio needs soundfile: pip install 'headwise[audio]'."
                ) from None
            read, file_rate = soundfile.read(file)
    except HeadwiseError:
        raise
    except Exception as error:  # from scipy or soundfile, about the user's file
        raise HeadwiseError(
            f"{file} cannot be read as audio ({type(error).__name__}: {error})."
        ) from None
    mono = read.mean(1) if read.ndim > 1 else read
    if not np.isfinite(mono).all():
        raise HeadwiseError(f"{file} has samples that are not finite numbers.")
    common = math.gcd(rate, int(file_rate))
    resampled = resample_poly(mono, rate // common, int(file_rate) // common)
    return np.asarray(resampled, dtype=np.float32)
