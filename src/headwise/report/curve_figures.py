"""Figures with a line: gates through training, and the training curve."""

from __future__ import annotations

from typing import Any

import altair as alt
import pandas as pd

from headwise.heads import KINDS
from headwise.report.figure import Figure, Panel, Rows, layer_title, rows
from headwise.report.run import Run
from headwise.report.setting import Setting

GATE_POINTS = 20_000  # points in all gate curves together: about 1 MB of page
CURVE_POINTS = 400


def gate_curves(run: Run) -> list[Figure]:
    """For every setting with a gate log: how the probability of each gate to be open went, a panel a layer."""
    known = [s for s in run.pruned if s.name in run.gates]
    lines = sum(len(run.gates[s.name].drop_duplicates(["kind", "layer", "head"])) for s in known)
    points = max(20, min(120, GATE_POINTS // max(lines, 1)))
    return [_gate_figure(run, setting, points) for setting in known]


def _gate_figure(run: Run, setting: Setting, points: int) -> Figure:
    table, mask = run.gates[setting.name].dropna(subset=["p_open"]), run.layouts.get(setting.name)
    table = table[table["step"].isin(_thinned(table["step"], points))]
    kept = set() if mask is None else {tuple(head) for head in mask.kept}
    present = set(table["kind"])
    panels = []
    for kind in (kind for kind in KINDS if kind in present):
        of_kind = table[table["kind"] == kind]
        for layer in sorted(set(of_kind["layer"])):
            cells = [
                {
                    "step": row["step"],
                    "head": row["head"],
                    "p": round(row["p_open"], 3),
                    "fate": "kept" if (kind, row["layer"], row["head"]) in kept else "removed",
                }
                for row in of_kind[of_kind["layer"] == layer].to_dict("records")
            ]
            title = layer_title(kind, layer, len(present) > 1)
            panels.append(Panel(_gate_panel(cells, f"{kind}-{layer}"), title, width=230, narrowest=150))
    return Figure(
        name=f"gates-{setting.name}",
        title=f"{setting.label}: {setting.kept} of {setting.total} heads stay open",
        note="probability that each gate is open, through pruning"
        + ("" if mask is None else " · blue: kept · grey: removed"),
        caption="",
        panels=panels,
        columns=3,
    )


def _gate_panel(cells: Rows, name: str) -> Any:
    hover = alt.selection_point(name=f"at_{name.replace('-', '_')}", on="pointerover", fields=["head"], empty=False)
    line = alt.Chart(rows(cells)).mark_line(interpolate="monotone", strokeJoin="round")
    return (
        line.encode(
            x=alt.X("step:Q", title="step", axis=alt.Axis(tickCount=3, format=",d", grid=False)),
            y=alt.Y("p:Q", title=None, scale=alt.Scale(domain=[0, 1]), axis=alt.Axis(values=[0, 0.5, 1])),
            detail="head:N",
            color=alt.Color("fate:N", scale=alt.Scale(domain=["kept", "removed"], range="category"), legend=None),
            strokeWidth=alt.condition(hover, alt.value(4), alt.value(1.6)),
            order=alt.Order("step:Q"),
            tooltip=[alt.Tooltip("head:N"), alt.Tooltip("fate:N")],
        )
        .add_params(hover)
        .properties(height=120, description=f"Gate probabilities, {name}")
    )


def training_curve(run: Run) -> Figure | None:
    """The loss on the training text and on dev through training; None without a log."""
    if run.training is None:
        return None
    names = {"loss": "training loss", "dev_loss": "dev loss"}
    table = run.training[run.training["measure"].isin(names)].dropna(subset=["value"])
    cells = [
        {"step": row["step"], "curve": names[row["measure"]], "value": round(row["value"], 4)}
        for _, part in table.groupby("measure")
        for row in part[part["step"].isin(_thinned(part["step"], CURVE_POINTS))].to_dict("records")
    ]
    if not cells:
        return None
    colour = alt.Scale(domain=["dev loss", "training loss"], range="category")
    chart = (
        alt.Chart(rows(cells))
        .mark_line(strokeWidth=1.8, strokeJoin="round")
        .encode(
            x=alt.X("step:Q", title="step", axis=alt.Axis(format=",d", grid=False, tickCount=8)),
            y=alt.Y("value:Q", title="loss (nats a token)", scale=alt.Scale(zero=False)),
            color=alt.Color("curve:N", scale=colour, legend=alt.Legend(orient="top", title=None, symbolType="stroke")),
            tooltip=[alt.Tooltip("curve:N"), alt.Tooltip("step:Q"), alt.Tooltip("value:Q", format=".3f")],
        )
        .properties(height=240, description="Loss through training")
    )
    return Figure(
        name="training",
        title="Loss through training",
        note="cross-entropy on the training text and on dev",
        caption=(
            "The loss on the training text, as it was minimised, and on dev text. The model is trained out when the "
            "dev curve no longer falls."
        ),
        panels=[Panel(chart, "loss", width=640)],
    )


def _thinned(steps: pd.Series[int], points: int) -> set[int]:
    """At most so many of the steps, evenly spread, the first and the last among them."""
    known = sorted(set(steps))
    if len(known) <= points:
        return set(known)
    return {known[round(i * (len(known) - 1) / (points - 1))] for i in range(points)}
