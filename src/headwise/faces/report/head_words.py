"""The section "Words that need a head": what the model no longer says without it (`roles/lost_words.py`)."""

from __future__ import annotations

from typing import Any

import pandas as pd

from headwise.core.folders import below, read_json
from headwise.core.heads import head_of
from headwise.core.tables import HEAD_COLUMNS, WORDS
from headwise.faces.report.format import probability
from headwise.faces.report.page import Columns, PageTable, section, table
from headwise.faces.report.run_folder import RunContents
from headwise.roles.behaviour import FALSE_WORDS


@section(
    "words",
    heading="Words that need a head",
    question="Which words does the model stop saying without a head?",
    order=28,
    files=("words.csv",),
    brought_by="roles.words",
    qualities=("bleu", "agreement"),
)
def head_words_section(run: RunContents) -> dict[str, Any]:
    """The table of the words that are confirmed; all empty where nobody looked for words."""
    words = confirmed_words(run.words)
    place = below(run.folder, WORDS.signature_file)
    read = read_json(place, dict).get("sentences", 0) if place.is_file() else None
    return {
        "searched": read is not None,
        "too_short": read == 0,
        "found": words_table(words),
        "words": len(words),
        "heads": len(words[HEAD_COLUMNS].drop_duplicates()),
        "tried": len(run.words),
    }


def confirmed_words(words: pd.DataFrame) -> pd.DataFrame:
    """The words that the other half of the sentences confirms, the surest first."""
    return words[words["p"] < FALSE_WORDS]


def words_table(words: pd.DataFrame) -> PageTable | None:
    """A row for each word; None without any."""
    columns: Columns = {
        "head": lambda row: str(head_of(row)),
        "word": lambda row: row["word"],
        "lost": lambda row: f"{row['lost']:.0f} of {row['units']:.0f}",
        "other words": lambda row: f"{row['others']:.0%}",
        "most often for": lambda row: row["instead"],
        "p": lambda row: probability(row["p"]),
        "such as": lambda row: (
            # The example ends just before the lost word, so its end says more.
            f"… {row['example'][-40:]}" if len(row["example"]) > 40 else row["example"]
        ),
    }
    rows = words.to_dict("records")
    return table("Words that need a head", rows, columns)


def word_facts(run: RunContents) -> list[tuple[str, str, str]]:
    """The surest word of each head, for the opening."""
    # The first row of a head is its surest word, as words.csv has the surest first.
    surest = confirmed_words(run.words).drop_duplicates(HEAD_COLUMNS)
    facts = []
    for row in surest.head(3).to_dict("records"):
        text = f"without it the model no longer says “{row['word']}” in {row['lost']:.0f} of {row['units']:.0f} sentences"
        facts.append((str(head_of(row)), text, ""))
    return facts
