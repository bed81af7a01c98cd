"""The words that a reader may not know, and what they mean: one table for the report, the lab and the docs' glossary,
and one of the relations in trees of sentences."""

from __future__ import annotations

import csv
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from headwise.roles.role import declared_for, display_name

HERE = Path(__file__).parent


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
        # Where the second part matches, group 1 is empty: stars and backticks vanish.
        return re.sub(r"\[([^]]*)\]\([^)]*\)|[`*]", r"\1", self.meaning)


@cache
def glossary() -> tuple[Term, ...]:
    """All terms, in the order of the docs."""
    terms = []
    with (HERE / "glossary.csv").open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            spellings = tuple(one for one in row["spellings"].split("|") if one)
            terms.append(Term(row["word"], spellings, row["meaning"]))
    return tuple(terms)


@cache
def relations() -> dict[str, str]:
    """What each relation of Universal Dependencies 2 means, without its subtype: de Marneffe et al. 2021, table 2."""
    with (HERE / "relations.csv").open(encoding="utf-8", newline="") as file:
        return {row["relation"]: row["meaning"] for row in csv.DictReader(file)}


@cache
def relation_terms() -> tuple[Term, ...]:
    """The relations as terms, spelled as the roles of heads along them: `det→noun`."""
    terms = []
    for relation, meaning in relations().items():
        measures = (f"syntactic.{relation}.to-governor", f"syntactic.{relation}.to-dependent")
        terms.append(Term(relation, tuple(map(display_name, measures)), meaning))
    return tuple(terms)


def meaning_of_role(measure: str) -> str | None:
    """What the relation in a role's name means (`det: a determiner…`); None for a role along no known relation."""
    declared = declared_for(measure)
    if declared is None or declared.variants != "relation":
        return None
    relation = measure.split(".")[1]
    meaning = relations().get(relation)
    return None if meaning is None else f"{relation}: {meaning}"
