"""The text that a smaller model was made on: its folder knows the sentences again, wherever it lies.

Kept are 32 bits of the SHA-256 of each sentence; of a large text those of the lowest hashes, which are a random sample of
its sentences. No sentence can be read back from them, but a sentence at hand can be looked up.
"""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from heapq import nsmallest
from itertools import islice
from pathlib import Path
from typing import Any, Protocol

from headwise.core.errors import HeadwiseError
from headwise.core.folders import read_json, write_text
from headwise.models.tasks.task import source_sentences

FILE = "known_text.json"
FORMAT = "headwise-known-text"
LOOKED_AT = 1_000_000  # sentences of a text, at most
MOST = 10_000  # hashes of a text that are kept
DIGITS = 8  # hexadecimal, of a hash
EVERY = 16**DIGITS  # all hashes are below
# Of a text's sentences: from this share on it is said that they are in another text, too.
MANY = 0.01


@dataclass(frozen=True)
class KnownText:
    """A text whose sentences can be recognised. hashes: of its sentences; below: of those with a lower hash all are kept."""

    hashes: frozenset[int]
    below: int

    @classmethod
    def of(cls, text: Any) -> KnownText | None:
        """What is kept of a text; nothing of recordings."""
        if not hasattr(text, "lines"):
            return None
        every = {*hashes_of(text)}
        lowest = nsmallest(MOST + 1, every)
        if len(lowest) <= MOST:
            return cls(frozenset(lowest), EVERY)
        return cls(frozenset(lowest[:MOST]), lowest[MOST])

    def shared(self, text: Any) -> str:
        """How many sentences of a text are among these, in words; empty where there are few, and for recordings."""
        if not hasattr(text, "lines"):
            return ""
        count = compared = found = 0
        for number in hashes_of(text):
            count += 1
            compared += number < self.below
            found += number in self.hashes
        if not found or found < MANY * compared:
            return ""
        sampled = compared < count
        return f"{'about ' * sampled}{round(found * count / compared):,} of {count:,} sentences"

    def to_json(self) -> dict[str, Any]:
        numbers = "".join(f"{number:0{DIGITS}x}" for number in sorted(self.hashes))
        return {"below": self.below, "hashes": numbers}

    @classmethod
    def from_json(cls, facts: Any) -> KnownText:
        """Raises KeyError, TypeError or ValueError for anything that `to_json` does not write."""
        numbers = facts["hashes"]
        starts = range(0, len(numbers), DIGITS)
        return cls(
            frozenset(int(numbers[start : start + DIGITS], 16) for start in starts),
            int(facts["below"]),
        )


class MadeOnText(Protocol):
    """A model, as far as texts ask for it."""

    name: str
    known_texts: tuple[KnownText, ...]


def hashes_of(text: Any) -> Iterator[int]:
    """A number for each sentence that a model reads first, in order."""
    for sentence in islice(source_sentences(text), LOOKED_AT):
        digest = hashlib.sha256(sentence.encode("utf-8")).hexdigest()
        yield int(digest[:DIGITS], 16)


def write_known_texts(folder: Path, texts: Sequence[KnownText]) -> None:
    """Write what a model's folder knows of the texts that it was made on, where there are any."""
    if texts:
        facts = {"format": FORMAT, "version": 1, "texts": [text.to_json() for text in texts]}
        write_text(folder / FILE, json.dumps(facts, indent=2) + "\n")


def read_known_texts(folder: Path) -> tuple[KnownText, ...]:
    """The texts that the model in a folder was made on; none where nothing says so. Raises HeadwiseError for a file that
    is none of headwise's."""
    path = folder / FILE
    if not path.is_file():
        return ()
    try:
        return tuple(map(KnownText.from_json, read_json(path, dict)["texts"]))
    except (KeyError, TypeError, ValueError):
        raise HeadwiseError(
            f"{path} is not as headwise wrote it: copy the model again, or delete this file."
        ) from None


def known_lines(models: Iterable[MadeOnText], text: Any, what: str = "") -> Iterator[str]:
    """A sentence for each model that was made on many sentences of a text. what: the text in words, by default its name."""
    for model in models:
        for known in model.known_texts:
            if shared := known.shared(text):
                yield (
                    f"{shared} of {what or text.name} are in the text on which the heads of {model.name} were chosen: "
                    "there it shows what it was fitted to, not what it is worth. Give text that shares no sentences "
                    "with it."
                )
                break


def warn_of_known_text(models: Iterable[MadeOnText], text: Any) -> None:
    """Warn where a text shares many sentences with one that a model was made on. text: as a task has completed it."""
    for line in known_lines(models, text):
        warnings.warn(line, stacklevel=3)
