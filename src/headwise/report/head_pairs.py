"""Pairs of heads switched off together: which do the same work, and which need each other."""

from __future__ import annotations

from typing import Any

import pandas as pd

from headwise.report import charts
from headwise.report.charts import axis, tips
from headwise.report.components import Columns, Figure, Panel, Table, section, table
from headwise.report.format import number, percent, probability, signed
from headwise.report.run_folder import FinishedRun

HEAD = ["kind", "layer", "head"]
OTHER = ["other_kind", "other_layer", "other_head"]
THOUSAND = 1000  # interactions are shown in thousandths of a nat
SHORT = {"encoder-self": "e", "decoder-self": "d", "cross": "x"}


@section(
    "pairs",
    menu="Pairs",
    heading="Heads that replace each other",
    question="Which heads do the same work, and which need each other?",
    order=50,
    files=("interactions.csv",),
)
def head_pairs_section(run: FinishedRun) -> dict[str, Any] | None:
    """The map of all pairs and the table of the strongest; the section is left out where no pairs were tried."""
    if run.interactions is None or run.interactions.empty:
        return None
    found = named(run.interactions)
    sure = found[(found["low"] > 0) | (found["high"] < 0)]
    return {
        "map": interaction_map(found),
        "table": head_pairs_table(found),
        "same": int((sure["value"] > 0).sum()),
        "together": int((sure["value"] < 0).sum()),
        "measured": int(found["value"].notna().sum()),
        "pairs": len(found),
        "backups": backup_table(found),
    }


def named(found: pd.DataFrame) -> pd.DataFrame:
    """The pairs with the addresses of both heads."""
    names = [found[part].astype(str).agg("/".join, axis=1) for part in (HEAD, OTHER)]
    return found.assign(address=names[0], other=names[1])


def interaction_map(found: pd.DataFrame) -> Figure:
    """Heads × heads: the interaction of every pair on the screen's sentences; frames mark the pairs that were measured
    and whose interval excludes 0."""
    order = list(dict.fromkeys([*found["address"], *found["other"]]))
    kinds = {kind: place for place, kind in enumerate(SHORT)}
    order.sort(key=lambda name: (kinds[name.split("/")[0]], *map(int, name.split("/")[1:])))
    place = {name: number for number, name in enumerate(order)}
    both = pd.concat([found, found.rename(columns={"address": "other", "other": "address"})])
    top = float(found["screen"].abs().quantile(0.99)) or 1.0
    sure = (both["low"] > 0) | (both["high"] < 0)
    cells = pd.DataFrame(
        {
            "address": both["address"],
            "other": both["other"],
            "row": both["address"].map(place),
            "column": both["other"].map(place),
            "value": (THOUSAND * both["screen"]).round(2),
            "sure": sure.astype(int),
            "measured": [_interval(row) for row in both.to_dict("records")],
        }
    )
    size = len(order)
    ends = round(THOUSAND * top, 3)
    starts = [at for at, name in enumerate(order) if name.endswith("/0")]
    names = "".join(f"datum.value == {at} ? '{_layer_code(order[at])}' : " for at in starts)
    ticks: charts.Spec = {
        "values": starts,
        "labelExpr": f"{names}''",
        "labelAngle": 0,
        "labelFontSize": 10,
    }
    x = axis("column:O", None, orient="top", domain=[*range(size)], **ticks)
    y = axis("row:O", None, domain=[*range(size)], **ticks)
    ink = charts.field(
        "value:Q",
        scale={"range": "diverging", "domain": [-ends, ends], "clamp": True, "interpolate": "rgb"},
        legend={
            "orient": "bottom",
            "title": None,
            "gradientLength": 220,
            "values": [-ends, 0, ends],
        },
    )
    tip = tips(
        "address:N|head", "other:N|with", "value:Q|on the screen's sentences|+.1f", "measured:N"
    )
    marks = [
        charts.mark("rect", cells, x=x, y=y, color=ink, tooltip=tip),
        charts.mark("rect", cells, {"style": "framed"}, "datum.sure == 1", x=x, y=y, tooltip=tip),
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
    return f"{SHORT[kind]}{layer}"


def _interval(row: dict[Any, Any]) -> str:
    """A measured interaction with its interval, in thousandths."""
    if pd.isna(row["value"]):
        return "not measured"
    value, low, high = (signed(THOUSAND * row[name], 1) for name in ("value", "low", "high"))
    return f"{value} [{low}, {high}]"


def head_pairs_table(found: pd.DataFrame) -> Table | None:
    """The pairs that were measured, the strongest first."""
    columns: Columns = {
        "head": lambda row: row["address"],
        "with": lambda row: row["other"],
        "interaction": lambda row: "\n".join(_interval(row).split(" ", 1)),
        "p": lambda row: probability(row["p"]),
        "both": lambda row: signed(THOUSAND * row["both"], 1),
        "first alone": lambda row: signed(THOUSAND * row["alone"], 1),
        "second alone": lambda row: signed(THOUSAND * row["other_alone"], 1),
        "of both": lambda row: (
            percent(row["value"] / row["both"]) if row["both"] > 0 < row["value"] else ""
        ),
    }
    rows = found[found["value"].notna()].to_dict("records")
    return table("The strongest pairs", rows, columns, lambda row: _verdict(row))


def _verdict(row: dict[Any, Any]) -> str:
    return "same work" if row["low"] > 0 else "need each other" if row["high"] < 0 else ""


def backup_table(found: pd.DataFrame) -> Table | None:
    """Backup heads: their ablation score rises when another head is removed, for the pairs whose interval is above 0."""
    rows = [
        (removed, head, alone, alone + row["value"])
        for row in found[found["low"] > 0].to_dict("records")
        for removed, head, alone in (
            (row["address"], row["other"], row["other_alone"]),
            (row["other"], row["address"], row["alone"]),
        )
    ]
    rows.sort(key=lambda row: row[2] - row[3])
    columns: Columns = {
        "without": lambda row: row[0],
        "backup head": lambda row: row[1],
        "its score before": lambda row: signed(THOUSAND * row[2], 1),
        "after": lambda row: signed(THOUSAND * row[3], 1),
        "times": lambda row: number(row[3] / row[2], 1.0) if row[2] > 0 else "",
    }
    return table("Backup heads", rows[:12], columns)
