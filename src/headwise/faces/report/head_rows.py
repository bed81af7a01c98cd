"""Rows of tables about heads: those of one kind, those of one measure, the heads they name."""

from __future__ import annotations

import pandas as pd

from headwise.core.heads import KINDS, Head, head_of
from headwise.core.tables import HEAD_COLUMNS
from headwise.faces.report.run_folder import RunContents


def of_kind(rows: pd.DataFrame, kind: str) -> pd.DataFrame:
    """The rows of one kind of heads."""
    return rows[rows["kind"] == kind]


def of_measure(scores: pd.DataFrame, measure: str) -> pd.DataFrame:
    """The rows of heads that have a value of a measure."""
    return scores[scores["measure"] == measure].dropna(subset=["value"])


def values_by_head(run: RunContents, measure: str) -> dict[Head, float]:
    """The value of each head that a measure has one for."""
    rows = of_measure(run.heads, measure).to_dict("records")
    return {head_of(row): row["value"] for row in rows}


def heads_in(rows: pd.DataFrame) -> list[Head]:
    """The heads that rows are about, each once, in the order of the model."""
    named = rows[HEAD_COLUMNS].drop_duplicates().itertuples(index=False, name=None)
    return sorted((Head(*head) for head in named), key=model_order)


def with_function(labels: pd.DataFrame) -> pd.DataFrame:
    """The labels that are functions as Voita et al. 2019 mean them: a sink rests on one token, whatever the words."""
    return labels[~labels["label"].str.startswith(("no known role", "sink"))]


def model_order(head: Head) -> tuple[int, int, int]:
    """The place of a head in the model: by kind, layer and number."""
    # A head itself would be sorted by the letters of its kind: cross before encoder.
    return KINDS.index(head.kind), head.layer, head.head
