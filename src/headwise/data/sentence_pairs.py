"""Pairs of sentences with a number each that says how similar they are, such as those of STS: `SentencePairs`."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from headwise.core.errors import HeadwiseError
from headwise.core.heads import as_rows
from headwise.data.lines import existing_file, named_table
from headwise.data.store import StoredText, file_key
from headwise.data.text import (
    AnyPath,
    TextSpec,
    one_spec,
    records_of,
    rows_in_python,
    side_of,
)

KEYS = ("sentence1", "sentence2", "score")


class SentencePairs(StoredText):
    """Pairs of sentences with a score each: `len(text)`, iteration over (sentence, other, score), `.lines`, `.scores`,
    `.head(n)`, `.take(indices)`, `.fingerprint`. The higher the score, the more alike the two; its scale is free."""

    columns = ("text", "other", "score")
    numbered = True

    @classmethod
    def is_named_by(cls, spec: Any) -> bool:
        """Whether a user names a table."""
        return named_table(spec) is not None

    @classmethod
    def open(cls, spec: TextSpec, cache: AnyPath | None = None) -> Self:
        """A file ending in .tsv, .csv (its first line names the columns) or .jsonl (.gz may follow), with sentence1,
        sentence2 and score. Raises HeadwiseError for another, and for a score that is no number."""
        file = existing_file(one_spec(spec, "A table of sentence pairs"))
        key = file_key("sentence pairs", file)
        return cls._write(_rows(file), file.name, cache, key)

    @classmethod
    def from_rows(
        cls,
        rows: Iterable[tuple[str, str, float]],
        name: str = "pairs",
        cache: AnyPath | None = None,
    ) -> Self:
        """(sentence, other, score) that are already in Python."""
        written = []
        for number, (left, right, score) in enumerate(rows_in_python(rows, cls), start=1):
            written.append((left, right, _score(score, f"Pair {number}")))
        return cls._write(written, name, cache)

    @classmethod
    def made_of(cls, given: Any) -> Self | None:
        """Such a text, of rows in Python: (sentence, other, score), or by name, a table, or a data set; None of anything
        else."""
        there = getattr(given, "column_names", None)
        rows: Any = as_rows(given) if there is None else given
        if there is None and not (isinstance(rows, list | tuple) and rows):
            return None
        if there is None and isinstance(rows[0], Mapping):
            there = list(rows[0])
        if there is not None:
            return (
                cls.from_rows(tuple(row[key] for key in KEYS) for row in rows)
                if {*KEYS} <= {*there}
                else None
            )
        are_pairs = all(isinstance(row, list | tuple) and len(row) == len(KEYS) for row in rows)
        return cls.from_rows(rows) if are_pairs else None

    @property
    def lines(self) -> Sequence[str]:
        """The sentences, the two of a pair one after the other."""
        return [sentence for left, right, _ in self.rows() for sentence in (left, right)]

    @property
    def scores(self) -> list[float]:
        """The score of every pair."""
        return [float(score) for score in self.dataset["score"]]

    def __iter__(self) -> Iterator[tuple[str, str, float]]:
        return ((left, right, float(score)) for left, right, score in self.rows())


def _rows(file: Path) -> Iterator[tuple[str, str, str]]:
    for record, where in records_of(file, *KEYS):
        left = side_of(record, "sentence1", where)
        right = side_of(record, "sentence2", where)
        if "score" not in record:
            raise HeadwiseError(f"{where} has no 'score': it has {', '.join(record) or 'nothing'}.")
        # A pair with a blank side is left out, whatever its score.
        blank = not (left and right)
        yield left, right, "" if blank else _score(record["score"], where)


def _score(score: object, where: str) -> str:
    """A score as text. Raises HeadwiseError for what is no finite number."""
    try:
        number = float(score)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        number = math.nan
    if not math.isfinite(number) or isinstance(score, bool):
        raise HeadwiseError(
            f"{where} has {str(score)[:40]!r} as its score, which is no number: write how alike the two sentences are, "
            "such as 3.5."
        )
    return repr(number)
