"""The full model's training: its loss on the training text and on dev."""

from __future__ import annotations

from typing import Any

import altair as alt
import pandas as pd

from headwise.report import charts
from headwise.report.parts import Figure, Panel, Section
from headwise.report.run import Run
from headwise.report.sections.gates import thinned

POINTS = 400
CURVES = {"dev_loss": "dev loss", "loss": "training loss"}


def build(run: Run) -> dict[str, Any]:
    """The curve, where the model was trained in this run."""
    return {"curve": training_curve(run)}


def training_curve(run: Run) -> Figure | None:
    """The loss on the training text and on dev through training; None without a log."""
    table = (
        None if run.training is None else run.training[run.training["measure"].isin(CURVES)].dropna(subset=["value"])
    )
    if table is None or table.empty:
        return None
    parts = [part[part["step"].isin(thinned(part["step"], POINTS))] for _, part in table.groupby("measure")]
    points = pd.concat(parts).assign(curve=lambda t: t["measure"].map(CURVES))
    x = alt.X("step:Q", title="step", axis=alt.Axis(format=",d", grid=False, tickCount=8))
    y = alt.Y("value:Q", title="loss (nats a token)", scale=alt.Scale(zero=False))
    names = list(CURVES.values())
    legend = alt.Legend(orient="top", title=None, symbolType="stroke")
    colour = alt.Color("curve:N", scale=alt.Scale(domain=names, range="category"), legend=legend)
    (line,) = charts.curve(points[["step", "curve", "value"]], x, y, colour, width=1.8)
    line = line.encode(tooltip=charts.tips("curve:N", "step:Q", "value:Q||.3f"))
    return Figure(
        name="training",
        title="Loss through training",
        note="cross-entropy on the training text and on dev",
        panels=[Panel(charts.layered([line], 240, "Loss through training"), "loss", width=640)],
    )


SECTION = Section("training", "Training", "The full model's training", build)
