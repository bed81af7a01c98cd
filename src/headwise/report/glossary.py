"""The words that a reader may not know, and what they mean: one table, for the report and for the docs' glossary."""

from __future__ import annotations

import csv
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path


@dataclass(frozen=True)
class Term:
    """A word with its meaning, in Markdown with links into the docs.

    spellings: how a page writes it where it explains it; none for words that need no explanation there.
    """

    word: str
    spellings: tuple[str, ...]
    meaning: str

    @property
    def text(self) -> str:
        """The meaning as plain text."""
        return re.sub(r"\[([^]]*)\]\([^)]*\)|[`*]", r"\1", self.meaning)


@cache
def glossary() -> tuple[Term, ...]:
    """All terms, in the order of the docs."""
    terms = []
    path = Path(__file__).parent / "glossary.csv"
    with path.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            spellings = tuple(one for one in row["spellings"].split("|") if one)
            terms.append(Term(row["word"], spellings, row["meaning"]))
    return tuple(terms)
