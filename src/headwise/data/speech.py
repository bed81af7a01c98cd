"""Speech with the time of each word: a table of audio files, and the samples of an audio file."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby
from os import PathLike
from pathlib import Path
from typing import Any, Self

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


class Speech:
    """Utterances with word times: `for utterance in speech`, `len(speech)`. Audio is read when it is used."""

    def __init__(self, utterances: tuple[Utterance, ...], name: str) -> None:
        self.utterances, self.name = utterances, name

    @classmethod
    def read(cls, path: str | PathLike[str]) -> Self:
        """A table with a row for each word, in the order of speaking: the columns `audio` (a file, from the table's
        folder), `word`, `start` and `end` (seconds), and perhaps `language` (such as `en`). CSV, or JSON lines.

        Raises HeadwiseError, with the row, for what is missing or is no time.
        """
        file = existing_file(path)
        rows = [(number, spoken(row, file, number)) for number, row in rows_of(file)]
        utterances = []
        for audio, group in groupby(rows, key=lambda row: row[1][0]):
            words = list(group)
            starts = [row[2] for _, row in words]
            if wrong := next(
                (n for (n, _), a, b in zip(words[1:], starts, starts[1:], strict=False) if b < a),
                None,
            ):
                raise HeadwiseError(
                    f"Row {wrong} of {file} starts before the row above it: sort the words by time."
                )
            source = existing_file(file.parent / audio)
            utterances.append(
                Utterance(source, tuple(row[1] for _, row in words), tuple(starts), words[0][1][3])
            )
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


def spoken(row: Mapping[str, Any], file: Path, number: int) -> tuple[str, str, float, str]:
    """Audio, word, start and language of a row."""
    if missing := [column for column in COLUMNS if row.get(column) in (None, "")]:
        raise HeadwiseError(
            f"Row {number} of {file} lacks {missing[0]}: each row needs {', '.join(COLUMNS)}."
        )
    try:
        start, end = float(row["start"]), float(row["end"])
    except (TypeError, ValueError):
        start = end = math.nan
    if not 0 <= start <= end < math.inf:
        raise HeadwiseError(
            f"Row {number} of {file} has the times {row['start']} and {row['end']}: write start and end in seconds."
        )
    return str(row["audio"]), str(row["word"]).strip(), start, str(row.get("language") or "")


def samples(file: Path, rate: int) -> np.ndarray:
    """The samples of an audio file at a rate (Hz), all channels averaged, float32 in −1 … 1.

    WAV is read by SciPy, every other format by soundfile (an extra).
    """
    try:
        if file.suffix.lower() == ".wav":
            found, read = wavfile.read(file)
            if read.dtype.kind in "iu":
                middle, half = (
                    (128, 128)
                    if read.dtype == np.uint8
                    else (0, 2 ** (8 * read.dtype.itemsize - 1))
                )
                read = (read.astype(np.float64) - middle) / half
        else:
            try:
                import soundfile
            except ImportError:
                raise HeadwiseError(
                    f"{file} is no WAV file; other audio needs soundfile: pip install 'headwise[audio]'."
                ) from None
            read, found = soundfile.read(file)
    except HeadwiseError:
        raise
    except Exception as error:  # from scipy or soundfile, about the user's file
        raise HeadwiseError(
            f"{file} cannot be read as audio ({type(error).__name__}: {error})."
        ) from None
    one = read.mean(1) if read.ndim > 1 else read
    if not np.isfinite(one).all():
        raise HeadwiseError(f"{file} has samples that are not finite numbers.")
    common = math.gcd(rate, int(found))
    return np.asarray(resample_poly(one, rate // common, int(found) // common), dtype=np.float32)
