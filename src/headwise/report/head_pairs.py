"""The section "Pairs": heads that do the same work, and heads that need each other.

Two heads are switched off together; the interaction is what that costs beyond what both cost alone
(`importance/interactions.py`).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import pandas as pd

from headwise.report import charts
from headwise.report.charts import Figure, Panel, axis, tips
from headwise.report.format import number, percent, probability, signed
from headwise.report.page import Columns, Table, section, table
from headwise.report.run_folder import HEAD_COLUMNS, FinishedRun

OTHER_HEAD_COLUMNS = ["other_kind", "other_layer", "other_head"]
THOUSAND = 1000  # interactions are shown in thousandths of a nat
KIND_CODES = {"encoder-self": "e", "decoder-self": "d", "cross": "x"}
MOST_BACKUPS = 12  # rows of the table of backup heads


@section(
    "pairs",
    heading="Heads that replace each other",
    question="Which heads do the same work, and which need each other?",
    order=50,
    files=("interactions.csv",),
    brought_by="scoring.pairs, a number of pairs to switch off together",
)
def head_pairs_section(run: FinishedRun) -> dict[str, Any] | None:
    """The map of all pairs and the table of the strongest; None where no pairs were tried.

    redundant: the measured pairs that do the same work, whose interval is above 0; the other head
    still does it when one of them is off. synergistic: those that need each other, whose interval
    is below 0.
    """
    if run.interactions is None or run.interactions.empty:
        return None
    pairs = with_addresses(run.interactions)
    return {
        "map": interaction_map(pairs),
        "table": head_pairs_table(pairs),
        "redundant": int((pairs["low"] > 0).sum()),
        "synergistic": int((pairs["high"] < 0).sum()),
        "measured_count": int(pairs["value"].notna().sum()),
        "pair_count": len(pairs),
        "backups": backup_table(pairs),
    }


def with_addresses(pairs: pd.DataFrame) -> pd.DataFrame:
    """The pairs with the addresses of both heads, in `address` and `other`."""
    first = pairs[HEAD_COLUMNS].astype(str).agg("/".join, axis=1)
    second = pairs[OTHER_HEAD_COLUMNS].astype(str).agg("/".join, axis=1)
    return pairs.assign(address=first, other=second)


def _model_order(address: str) -> tuple[int, int, int]:
    """The order of heads in the model: by kind, layer and number."""
    kind, layer, head = address.split("/")
    return list(KIND_CODES).index(kind), int(layer), int(head)


def interaction_map(pairs: pd.DataFrame) -> Figure:
    """Heads × heads: the interaction of every pair on the screening sentences; frames mark the
    pairs that were measured and whose interval excludes 0."""
    heads = sorted({*pairs["address"], *pairs["other"]}, key=_model_order)
    size = len(heads)
    index_of = dict(zip(heads, range(size), strict=True))

    # Every pair is drawn twice, on both sides of the diagonal.
    mirrored = pd.concat([pairs, pairs.rename(columns={"address": "other", "other": "address"})])
    significant = (mirrored["low"] > 0) | (mirrored["high"] < 0)
    cells = pd.DataFrame(
        {
            "address": mirrored["address"],
            "other": mirrored["other"],
            "row": mirrored["address"].map(index_of),
            "column": mirrored["other"].map(index_of),
            "value": (THOUSAND * mirrored["screening_value"]).round(2),
            "significant": significant.astype(int),
            "measured": [value_with_interval(row) for row in mirrored.to_dict("records")],
        }
    )

    # The colours end at the 99th percentile: the strongest pairs would leave all others pale. Where
    # that is 0, nearly all pairs have no interaction: any other limit will do, but 0 to 0 is no
    # scale.
    largest = float(pairs["screening_value"].abs().quantile(0.99)) or 1.0
    limit = round(THOUSAND * largest, 3)

    # The axes name a layer at its first head.
    first_of_layers = []
    label = ""
    for index, address in enumerate(heads):
        if address.endswith("/0"):
            first_of_layers.append(index)
            label += f"datum.value == {index} ? '{_layer_code(address)}' : "

    ticks: charts.Spec = {
        "values": first_of_layers,
        "labelExpr": f"{label}''",
        "labelAngle": 0,
        "labelFontSize": 10,
    }
    x = axis("column:O", None, orient="top", domain=[*range(size)], **ticks)
    y = axis("row:O", None, domain=[*range(size)], **ticks)
    colour_scale = charts.field(
        "value:Q",
        scale={
            "range": "diverging",
            "domain": [-limit, limit],
            "clamp": True,
            "interpolate": "rgb",
        },
        legend={
            "orient": "bottom",
            "title": None,
            "gradientLength": 220,
            "values": [-limit, 0, limit],
        },
    )
    tip = tips(
        "address:N|head", "other:N|with", "value:Q|on the screening sentences|+.1f", "measured:N"
    )
    marks = [
        charts.mark("rect", cells, x=x, y=y, color=colour_scale, tooltip=tip),
        charts.mark(
            "rect", cells, {"style": "framed"}, "datum.significant == 1", x=x, y=y, tooltip=tip
        ),
    ]
    cell = max(6, min(18, 760 // size))
    chart = charts.layered(marks, cell * size, "Interaction of pairs of heads")
    return Figure(
        name="interactions",
        title="What two heads cost together, beyond what both cost alone",
        note="thousandths of a nat a token · above 0: they do the same work · below 0: they need each other"
        " · framed: measured, interval excludes 0",
        panels=[
            Panel(
                chart, "pairs", width=cell * size, narrowest=60 + 6 * size, widest=110 + cell * size
            )
        ],
    )


def _layer_code(address: str) -> str:
    """`e0`: encoder self-attention, layer 0."""
    kind, layer, _ = address.split("/")
    return f"{KIND_CODES[kind]}{layer}"


def value_with_interval(row: dict[Any, Any]) -> str:
    """A measured interaction with its interval, in thousandths."""
    if pd.isna(row["value"]):
        return "not measured"
    value = signed(THOUSAND * row["value"], 1)
    low = signed(THOUSAND * row["low"], 1)
    high = signed(THOUSAND * row["high"], 1)
    return f"{value} [{low}, {high}]"


def head_pairs_table(pairs: pd.DataFrame) -> Table | None:
    """The pairs that were measured, the strongest first."""
    columns: Columns = {
        "head": lambda row: row["address"],
        "with": lambda row: row["other"],
        "interaction": lambda row: "\n".join(value_with_interval(row).split(" ", 1)),
        "p": lambda row: probability(row["p"]),
        "both": lambda row: signed(THOUSAND * row["both"], 1),
        "first alone": lambda row: signed(THOUSAND * row["alone"], 1),
        "second alone": lambda row: signed(THOUSAND * row["other_alone"], 1),
        "of both": _share_of_both,
    }
    rows = pairs[pairs["value"].notna()].to_dict("records")
    return table("The strongest pairs", rows, columns, _verdict)


def _share_of_both(row: dict[Any, Any]) -> str:
    """The share of the joint cost that switching off one head at a time does not show. It is a
    share only where both together cost something, and more than each alone."""
    if row["both"] > 0 and row["value"] > 0:
        return percent(row["value"] / row["both"])
    return ""


def _verdict(row: dict[Any, Any]) -> str:
    return "same work" if row["low"] > 0 else "need each other" if row["high"] < 0 else ""


class Backup(NamedTuple):
    """A head whose ablation score rises when another head is removed: the score `before` and
    `after` that, in nats a token."""

    removed: str
    head: str
    before: float
    after: float


def backup_table(pairs: pd.DataFrame) -> Table | None:
    """Backup heads, of the pairs whose interval is above 0. Either head of a pair can be the
    backup of the other."""
    backups = []
    for row in pairs[pairs["low"] > 0].to_dict("records"):
        first = row["address"]
        second = row["other"]
        backups.append(Backup(first, second, row["other_alone"], row["other_alone"] + row["value"]))
        backups.append(Backup(second, first, row["alone"], row["alone"] + row["value"]))

    backups.sort(key=lambda backup: backup.before - backup.after)  # the largest rise first
    columns: Columns = {
        "without": lambda backup: backup.removed,
        "backup head": lambda backup: backup.head,
        "its score before": lambda backup: signed(THOUSAND * backup.before, 1),
        "after": lambda backup: signed(THOUSAND * backup.after, 1),
        "times": _times,
    }
    return table("Backup heads", backups[:MOST_BACKUPS], columns)


def _times(backup: Backup) -> str:
    """How many times larger the score becomes; a score of 0 or below has no such factor."""
    return number(backup.after / backup.before, 1.0) if backup.before > 0 else ""
