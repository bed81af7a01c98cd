"""The judge's figure: the loss of the model while its heads are removed in the order of each score."""

from __future__ import annotations

from typing import Any

import altair as alt
import pandas as pd

from headwise.report.figure import Figure, Panel, rows
from headwise.report.run import Run
from headwise.report.wording import measure_name, number, sentence

MOST_CURVES = 9
ORDERS = {"once": "scored once", "rescored": "scored again after each step"}
COLOURS = ["once", "random", "rescored"]


def removal_curves(run: Run) -> Figure | None:
    """The loss while heads are removed, a panel a score, the best first; None without curves.csv."""
    if run.curves is None or run.curves.empty:
        return None
    table = run.curves.dropna(subset=["loss"])
    areas = curve_areas(table)
    shown = [measure for measure, order in sorted(areas, key=lambda key: areas[key]) if order == "once"][:MOST_CURVES]
    known = table[(table["order"] == "random") | table["measure"].isin(shown)]
    span = _span(known)
    panels = [_curve_panel(known, measure, span, areas) for measure in shown]
    left_out = len({measure for measure, order in areas if order == "once"}) - len(shown)
    seeds = table.loc[table["order"] == "random", "seed"].nunique()
    return Figure(
        name="removal-curves",
        title="Loss while heads go, the least important first",
        note="blue: in the order of the score · orange: scored again after each step · thin: the other scores"
        + (f" · grey: {seeds} random orders" if seeds else ""),
        caption=_caption(set(known["order"]), seeds, left_out),
        panels=panels,
        columns=3 if len(panels) > 2 else len(panels),
    )


def _caption(orders: set[str], seeds: int, left_out: int) -> str:
    told = "One panel a score, the best order first. Blue: in the order of the score; "
    told += "orange: scored again after each step; " if "rescored" in orders else ""
    told += f"the grey area spans {seeds} random orders; " if seeds else ""
    told += (
        "thin lines are the other scores. Bands are 95 % intervals over sentences. A good order keeps the curve low "
        "for long: its area is the mean loss above that of the whole model, over the steps."
    )
    return told + (f" Scores in the table only: {left_out}." if left_out else "")


def curve_areas(table: pd.DataFrame) -> dict[tuple[str, str], float]:
    """By measure and order: the mean loss above that of the whole model, over the steps after the first."""
    found: dict[tuple[str, str], float] = {}
    for (measure, order), part in table.groupby(["measure", "order"]):
        losses = part.groupby("removed")["loss"].mean().sort_index()
        if len(losses) > 1:
            found[str(measure), str(order)] = float(losses.iloc[1:].mean() - losses.iloc[0])
    return found


def _span(table: pd.DataFrame) -> list[float]:
    """From the lowest to the highest number of the curves, with a little room."""
    numbers = table[["loss", "low", "high"]]
    low, high = float(numbers.min().min()), float(numbers.max().max())
    return [round(low - 0.03 * (high - low), 4), round(high + 0.03 * (high - low), 4)]


def _curve_panel(table: pd.DataFrame, measure: str, span: list[float], areas: dict[tuple[str, str], float]) -> Panel:
    scale, name = alt.Scale(domain=span, zero=False), "loss (nats a token)"
    y, low = (
        alt.Y("loss:Q", title=name, scale=scale, axis=alt.Axis(tickCount=4)),
        alt.Y("low:Q", title=name, scale=scale),
    )
    base = alt.Chart(rows(_points(table, measure))).encode(
        x=alt.X(
            "removed:Q",
            title="heads removed",
            scale=alt.Scale(domain=[0, int(table["total"].max())]),
            axis=alt.Axis(grid=False, tickCount=4, tickMinStep=1),
        ),
        color=alt.Color("colour:N", scale=alt.Scale(domain=COLOURS, range="category"), legend=None),
        detail="measure:N",
    )
    mine, along = base.transform_filter("datum.colour != 'random'"), alt.Order("removed:Q")
    tooltip = [
        alt.Tooltip("order:N"),
        alt.Tooltip("removed:Q", title="heads removed"),
        alt.Tooltip("loss:Q", format=".3f"),
        alt.Tooltip("interval:N", title="95 % interval"),
    ]
    marks = [
        base.transform_filter("datum.order == 'random'").mark_area(opacity=0.3).encode(y=low, y2="high:Q"),
        base.transform_filter("datum.colour == 'random' && isValid(datum.loss)")
        .mark_line(strokeWidth=1, opacity=0.5)
        .encode(y=y, order=along),
        mine.transform_filter("isValid(datum.low)").mark_area(opacity=0.2).encode(y=low, y2="high:Q"),
        mine.mark_line(strokeWidth=2.2, strokeJoin="round").encode(y=y, order=along),
        mine.mark_point(filled=True, size=34, opacity=1).encode(y=y, tooltip=tooltip),
    ]
    told = [
        number(areas[measure, order], min(0.5, abs(areas[measure, order])))
        for order in ORDERS
        if (measure, order) in areas
    ]
    title = f"{sentence(measure_name(measure))} · area {', scored again '.join(told)}"
    chart = alt.layer(*marks).properties(height=190, description=f"Loss while heads are removed by {measure}")
    return Panel(chart, title, width=270, narrowest=150)


def _points(table: pd.DataFrame, measure: str) -> list[dict[str, Any]]:
    """What a panel draws: the range of the random orders, the other scores' curves, its own with their intervals."""
    random = table[table["order"] == "random"].groupby("removed")["loss"].agg(["min", "max"])
    points: list[dict[str, Any]] = [
        {"measure": "random", "order": "random", "colour": "random", "removed": removed, "low": low, "high": high}
        for removed, low, high in random.round(4).itertuples()
    ]
    for row in table[table["order"] != "random"].sort_values(["measure", "order", "removed"]).to_dict("records"):
        point = {"measure": row["measure"], "removed": row["removed"], "loss": round(row["loss"], 4)}
        if row["measure"] == measure:
            bounded = not pd.isna(row["low"])
            point |= {"low": round(row["low"], 4), "high": round(row["high"], 4)} if bounded else {}
            interval = f"{row['low']:.3f} to {row['high']:.3f}" if bounded else "not measured"
            points.append(point | {"order": ORDERS[row["order"]], "colour": row["order"], "interval": interval})
        elif row["order"] == "once":
            points.append(point | {"order": ORDERS["once"], "colour": "random"})
    return points
