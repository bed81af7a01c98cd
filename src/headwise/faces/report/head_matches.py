"""The section of two runs "Heads that correspond": what `headwise match` found of their models."""

from __future__ import annotations

from functools import partial
from typing import Any

from headwise.core.heads import head_of
from headwise.faces.report.format import number, probability
from headwise.faces.report.page import Columns, section, table
from headwise.faces.report.runs import Runs


@section(
    "comparison_matches",
    heading="Heads that correspond",
    question="Which head of one does the work of which head of the other?",
    pages=("comparison",),
    story=True,
    order=40,
    files=("matches.csv",),
    template="plain",
)
def matched_heads_section(found: Runs) -> dict[str, Any] | None:
    """The pairs of heads with what each run knows of both, the most alike first; None where no matches were given."""
    if found.matches is None:
        return None
    rows = found.matches.to_dict("records")
    corresponding = [row for row in rows if row["confirmed"]]
    columns: Columns = {
        "head of A": lambda row: str(head_of(row)),
        "head of B": lambda row: str(head_of(row, "other_")),
        "affinity": lambda row: (
            f"{number(row['affinity'], 0.1)}\n[{number(row['low'], 0.1)}, {number(row['high'], 0.1)}]"
        ),
        "on another sentence": lambda row: number(row["shuffled"], 0.1),
        "p": lambda row: probability(row["p"]),
        "next best": lambda row: number(row["runner_up"], 0.1),
    }
    for (name, run), prefix in zip(found.runs.items(), ("", "other_"), strict=True):
        known = run.roles.labels.to_dict("records")
        labels = {head_of(row): row["label"] for row in known}
        columns[f"role in {name}"] = partial(
            lambda labels, prefix, row: labels.get(head_of(row, prefix), ""), labels, prefix
        )
    pairs = table("Heads that correspond", corresponding, columns)
    return {
        "figures": [],
        "tables": [pairs] if pairs else [],
        "sentences": [
            f"{len(corresponding)} of {len(rows)} pairs correspond: they attend to the same words, more than to the same "
            "places (p at most 0.05, corrected), and no other head of B is more alike. matches.csv has all pairs.",
            "Affinity: how alike two heads attend on one text, 0 to 1, with a 95 % interval. On another sentence: the "
            "same two heads while the second model reads another sentence of equal length; what they have in common "
            "there depends on places alone. Next best: the largest affinity with any other head of B.",
        ],
    }
