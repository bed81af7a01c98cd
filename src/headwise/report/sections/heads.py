"""The heads that stay in the chosen model: the head map."""

from __future__ import annotations

from statistics import fmean
from typing import Any

import altair as alt
import pandas as pd

from headwise.heads import HeadMask, Kind
from headwise.report import charts, models
from headwise.report.parts import Figure, Panel, Section
from headwise.report.run import Run
from headwise.report.words import KIND_NAMES

CELL = 48  # pixels


def build(run: Run) -> dict[str, Any] | None:
    """The head map of the chosen model; the section is left out where nothing was pruned."""
    if run.models.empty:
        return None
    chosen = run.chosen
    return {"head_map": head_map(run, chosen) if chosen is not None and chosen["setting"] in run.layouts else None}


def head_map(run: Run, model: models.Model) -> Figure:
    """Layers × heads: what a model keeps (squares) and removes (dots), coloured by confidence."""
    mask, kinds = run.layouts[model["setting"]], run.pruned_kinds(model)
    cells = pd.DataFrame(
        [(*head, str(head), "kept" if head in mask.kept else "removed") for head in mask.heads.only(kinds)],
        columns=["kind", "layer", "head", "address", "fate"],
    )
    confidence = None if run.heads is None else run.heads[run.heads["measure"] == "confidence"]
    if confidence is not None and len(confidence):
        found = confidence.dropna(subset=["value"]).rename(columns={"value": "confidence"})
        cells = cells.merge(found[["kind", "layer", "head", "confidence"]], how="left", on=["kind", "layer", "head"])
    facts = ""
    if "confidence" in cells:
        means = [cells.loc[cells["fate"] == fate, "confidence"].dropna() for fate in ("kept", "removed")]
        if all(len(part) for part in means):
            facts = f"Mean confidence: kept {fmean(means[0]):.2f}, removed {fmean(means[1]):.2f}."
    return Figure(
        name="head-map",
        title=f"{model['kept']} of {model['total']} {models.heads_name(model['kinds'])} kept ({model['label']})",
        note="square: kept · dot: removed" + (" · the darker, the more confident" if "confidence" in cells else ""),
        panels=[_panel(mask, kind, cells[cells["kind"] == kind]) for kind in kinds],
        facts=facts,
    )


def _panel(mask: HeadMask, kind: Kind, cells: pd.DataFrame) -> Panel:
    size, layers = max(mask.heads.query[kind]), len(mask.heads.query[kind])
    x = alt.X("head:O", title="head", axis=alt.Axis(orient="top", labelAngle=0))
    y = alt.Y("layer:O", title="layer")
    legend = alt.Legend(orient="bottom", title="confidence", gradientLength=180, titleOrient="left", values=[0, 0.5, 1])
    colour = alt.Color("confidence:Q", scale=alt.Scale(range="heatmap", domain=[0, 1]), legend=legend)
    kept = cells["fate"].eq("kept").groupby(cells["layer"]).agg(["sum", "size"])
    counts = [{"layer": layer, "text": f"{n} of {total} kept"} for layer, n, total in kept.itertuples()]
    marks = charts.grid(
        cells, x, y, colour, where="datum.fate == 'kept'", dots="datum.fate == 'removed'", radius=5,
        tip=charts.tips("address:N|head", "fate:N", "confidence:Q||.3f"),
    )  # fmt: skip
    chart = charts.layered([*marks, charts.beside(counts, y, "text:N")], layers * 44, f"Head map, {KIND_NAMES[kind]}")
    return Panel(chart, KIND_NAMES[kind], width=size * CELL, narrowest=120 + size * 22, widest=150 + size * 50)


SECTION = Section("heads", "Head map", "The heads that stay", build)
