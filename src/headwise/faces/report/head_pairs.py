"""The section "Pairs": heads that do the same work, and heads that need each other.

Two heads are switched off together; the interaction is what that costs beyond what both cost alone
(`importance/interactions.py`).
"""

from __future__ import annotations

from typing import Any

import pandas as pd

from headwise.core.heads import KINDS, Head, head_of
from headwise.faces.report import charts
from headwise.faces.report.charts import Figure, Panel, axis, tips
from headwise.faces.report.format import estimate, percent, probability, thousandths
from headwise.faces.report.head_rows import model_order
from headwise.faces.report.page import Columns, PageTable, section, table
from headwise.faces.report.run_folder import RunContents

KIND_CODES = dict(zip(KINDS, "edx", strict=True))

SAME_WORK, NEED_EACH_OTHER = "same work", "need each other"


@section(
    "pairs",
    heading="Heads that replace each other",
    question="Which heads do the same work, and which need each other?",
    order=50,
    files=("interactions.csv",),
    brought_by="scoring.interactions, a number of pairs to switch off together",
    qualities=("bleu", "agreement", "perplexity", "accuracy", "wer"),
)
def head_pairs_section(run: RunContents) -> dict[str, Any] | None:
    """The map of all pairs and the table of the strongest; None where no pairs were tried.

    redundant: the measured pairs that do the same work, above 0 by the p of all pairs together;
    the other head still does it when one of them is off. synergistic: those that need each other,
    below 0.
    """
    pairs = run.interactions
    if pairs.empty:
        return None
    verdicts = [_verdict(row) for row in pairs.to_dict("records")]
    return {
        "map": interaction_map(pairs),
        "table": head_pairs_table(pairs),
        "redundant": verdicts.count(SAME_WORK),
        "synergistic": verdicts.count(NEED_EACH_OTHER),
        "measured_count": int(pairs["value"].notna().sum()),
        "pair_count": len(pairs),
    }


def interaction_map(pairs: pd.DataFrame) -> Figure:
    """Heads × heads: the interaction of every pair on the screening sentences; frames mark the
    pairs that were measured and are sure among all of them."""
    rows = [(head_of(row), head_of(row, "other_"), row) for row in pairs.to_dict("records")]
    heads = sorted({head for one, other, _ in rows for head in (one, other)}, key=model_order)
    size = len(heads)
    place_of = {head: place for place, head in enumerate(heads)}
    cells = []
    for one, other, row in rows:
        shared = {
            "value": round(1000 * row["screening_value"], 2),
            "significant": int(_verdict(row) != ""),
            "measured": value_with_interval(row),
        }
        for first, second in ((one, other), (other, one)):  # on both sides of the diagonal
            place = {"row": place_of[first], "column": place_of[second]}
            cells.append({"address": str(first), "other": str(second), **place, **shared})

    # The colours end at the 99th percentile: the strongest pairs would leave all others pale. Where
    # that is 0, nearly all pairs have no interaction: any other limit will do, but 0 to 0 is no
    # scale.
    limit = round(1000 * (float(pairs["screening_value"].abs().quantile(0.99)) or 1.0), 3)
    ends = [-limit, 0, limit]

    # The axes name a layer at its first head.
    names = {place_of[head]: _layer_code(head) for head in heads if head.head == 0}
    ticks: charts.Spec = {"domain": [*range(size)], "values": [*names], "labelAngle": 0}
    ticks |= {"labelExpr": charts.label_of(names), "labelFontSize": 10}
    x = axis("column:O", None, orient="top", **ticks)
    y = axis("row:O", None, **ticks)
    look = {"orient": "bottom", "title": None, "gradientLength": 220, "values": ends}
    colours = charts.heat("value:Q", ends, "diverging", **look)
    tip = tips(
        "address:N|head", "other:N|with", "value:Q|on the screening sentences|+.1f", "measured:N"
    )
    frame = {"style": "framed"}
    marks = [
        charts.mark("rect", cells, x=x, y=y, color=colours, tooltip=tip),
        charts.mark("rect", cells, frame, "datum.significant == 1", x=x, y=y, tooltip=tip),
    ]
    cell = max(6, min(18, 760 // size))
    chart = charts.layered(marks, cell * size, "Interaction of pairs of heads")
    width = cell * size
    return Figure(
        name="interactions",
        title="What two heads cost together, beyond what both cost alone",
        note="thousandths of a nat per token · above 0: they do the same work · below 0: they need each other"
        " · framed: measured, p ≤ 0.05 of all pairs together",
        panels=[Panel(chart, "pairs", width, narrowest=60 + 6 * size, widest=110 + width)],
    )


def _layer_code(head: Head) -> str:
    """`e0`: encoder self-attention, layer 0."""
    return f"{KIND_CODES[head.kind]}{head.layer}"


def value_with_interval(row: dict[Any, Any], join: str = " ") -> str:
    """A measured interaction with its interval, in thousandths."""
    return "not measured" if pd.isna(row["value"]) else estimate(row, thousandths, join)


def head_pairs_table(pairs: pd.DataFrame) -> PageTable | None:
    """The pairs that were measured, the strongest first."""
    columns: Columns = {
        "head": lambda row: str(head_of(row)),
        "with": lambda row: str(head_of(row, "other_")),
        "interaction": lambda row: value_with_interval(row, "\n"),
        "p": lambda row: probability(row["p"]),
        "both": lambda row: thousandths(row["both"]),
        "first alone": lambda row: thousandths(row["alone"]),
        "second alone": lambda row: thousandths(row["other_alone"]),
        "of both": _share_of_both,
    }
    # interactions.csv already has the strongest pair first.
    rows = pairs[pairs["value"].notna()].to_dict("records")
    return table("The strongest pairs", rows, columns, _verdict)


def _share_of_both(row: dict[Any, Any]) -> str:
    """The share of the joint cost that switching off one head at a time does not show. It is a
    share only where both together cost something, and more than each alone."""
    if row["both"] > 0 and row["value"] > 0:
        return percent(row["value"] / row["both"])
    return ""


def _verdict(row: dict[Any, Any]) -> str:
    """By the p that is corrected for all measured pairs, not by the interval of one."""
    if not row["p"] <= 0.05:  # also of NaN
        return ""
    return SAME_WORK if row["value"] > 0 else NEED_EACH_OTHER
