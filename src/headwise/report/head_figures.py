"""Figures of the heads that pruning keeps: the head map, the heads left by layer."""

from __future__ import annotations

from statistics import fmean
from typing import Any

import altair as alt
import pandas as pd

from headwise.heads import KINDS, HeadMask, Kind, Site
from headwise.report.figure import Figure, Panel, Rows, rows
from headwise.report.run import Run
from headwise.report.setting import Setting
from headwise.report.wording import KIND_NAMES, listed

CELL = 48


def head_map(run: Run, setting: Setting) -> Figure:
    """Layers × heads: what a setting keeps (full squares) and removes (dots), coloured by confidence."""
    mask, kinds = run.layouts[setting.name], run.pruned_kinds(setting)
    confidence = _by_head(run.heads, "confidence")
    cells = [
        {
            "kind": head.kind,
            "layer": head.layer,
            "head": head.head,
            "address": str(head),
            "fate": "kept" if head in mask.kept else "removed",
            "confidence": confidence.get(tuple(head)),
        }
        for head in mask.heads.only(kinds)
    ]
    panels = [_map_panel(mask, kind, [c for c in cells if c["kind"] == kind]) for kind in kinds]
    return Figure(
        name="head-map",
        title=f"{setting.kept} of {setting.total} {setting.heads} kept ({setting.label})",
        note="square: kept · dot: removed" + (" · the darker, the more confident" if confidence else ""),
        caption=_map_caption(cells, setting),
        panels=panels,
    )


def _map_caption(cells: Rows, setting: Setting) -> str:
    told = (
        f"Every head that could be removed. A full square is a head that the model with {setting.label} keeps, a dot "
        "is a head cut out of it. "
    )
    known = [cell for cell in cells if cell["confidence"] is not None]
    if not known:
        return told
    told += (
        "The colour is the head's confidence in the full model: the mean over words of its largest attention weight."
    )
    groups = [[cell["confidence"] for cell in known if cell["fate"] == fate] for fate in ("kept", "removed")]
    if all(groups):
        told += f" Mean confidence of the heads kept: {fmean(groups[0]):.2f}; of those removed: {fmean(groups[1]):.2f}."
    return told


def _map_panel(mask: HeadMask, kind: Kind, cells: Rows) -> Panel:
    x = alt.X("head:O", title="head", axis=alt.Axis(orient="top", labelAngle=0))
    y = alt.Y("layer:O", title="layer")
    size = max(mask.heads.query[kind])
    tooltip = [alt.Tooltip("address:N", title="head"), alt.Tooltip("fate:N"), alt.Tooltip("confidence:Q", format=".3f")]
    legend = alt.Legend(orient="bottom", title="confidence", gradientLength=180, titleOrient="left", values=[0, 0.5, 1])
    colour = alt.Color("confidence:Q", scale=alt.Scale(range="heatmap", domain=[0, 1]), legend=legend)
    base = alt.Chart(rows(cells)).encode(x=x, y=y, color=colour, tooltip=tooltip)
    kept = base.transform_filter("datum.fate == 'kept'").mark_rect(cornerRadius=5)
    removed = base.transform_filter("datum.fate == 'removed'").mark_circle(size=110, opacity=1)
    layers = range(len(mask.heads.query[kind]))
    counts = [{"layer": i, "text": _count(cells, i)} for i in layers]
    told = (
        alt.Chart(rows(counts))
        .mark_text(style="label", align="left", dx=10)
        .encode(y=y, text="text:N", x=alt.value("width"))
    )
    chart = alt.layer(kept, removed, told).properties(
        height=len(layers) * 44, description=f"Head map, {KIND_NAMES[kind]}"
    )
    return Panel(chart, KIND_NAMES[kind], width=size * CELL, narrowest=120 + size * 22, widest=150 + size * 50)


def _count(cells: Rows, layer: int) -> str:
    inside = [cell for cell in cells if cell["layer"] == layer]
    return f"{sum(cell['fate'] == 'kept' for cell in inside)} of {len(inside)} kept"


def heads_by_layer(run: Run) -> Figure | None:
    """Stacked bars: how many heads every layer keeps, setting by setting; None without layouts.

    Where gates found the heads of some settings, the others (greedy removal) are left out.
    """
    known = [s for s in run.pruned if s.name in run.layouts]
    known = [s for s in known if s.learned] or known
    if not known:
        return None
    kinds = [kind for kind in KINDS if any(kind in run.pruned_kinds(s) for s in known)]
    panels = [_stack(run, [s for s in known if kind in run.pruned_kinds(s)], kind) for kind in kinds]
    return Figure(
        name="heads-by-layer",
        title="Heads kept by layer",
        note="the number in a bar is the number of heads that the layer keeps",
        caption="One bar for each model, from the full one down; the parts of a bar are its layers, the lowest first."
        + _emptied(run, known),
        panels=panels,
    )


def _emptied(run: Run, known: list[Setting]) -> str:
    """Which layers lost all their heads, and where."""
    told = []
    for setting in known:
        mask = run.layouts[setting.name]
        sites = [site for site in mask.heads.sites if site.kind in run.pruned_kinds(setting) and not mask.of(site)]
        if sites:
            told.append(f"{listed([f'{KIND_NAMES[site.kind]} {site.layer}' for site in sites])} ({setting.label})")
    return f" Layers left without a head, where only the path around them remains: {'; '.join(told)}." if told else ""


def _stack(run: Run, known: list[Setting], kind: Kind) -> Panel:
    known = sorted(known, key=lambda s: -run.layouts[s.name].count(kind))
    order = [s.label for s in ([run.full] if run.full else []) + known]
    counts = run.layouts[known[0].name].heads.query[kind]
    full = [("full model", layer, count) for layer, count in enumerate(counts)] if run.full else []
    left = [
        (s.label, layer, len(run.layouts[s.name].of(Site(kind, layer)))) for s in known for layer in range(len(counts))
    ]
    cells = [{"setting": label, "layer": layer, "kept": kept} for label, layer, kept in (*full, *left)]
    base = alt.Chart(rows(cells)).encode(
        y=alt.Y("setting:N", sort=order, title=None),
        x=alt.X("kept:Q", stack="zero", title="heads kept", axis=alt.Axis(tickMinStep=1, tickCount=6)),
        order=alt.Order("layer:Q"),
        tooltip=[alt.Tooltip("setting:N"), alt.Tooltip("layer:O"), alt.Tooltip("kept:Q", title="heads kept")],
    )
    legend = alt.Legend(orient="top", title="layer")
    colour = alt.Color("layer:O", scale=alt.Scale(range="ordinal"), legend=legend)
    marks = [base.mark_bar(cornerRadius=2).encode(color=colour)]
    half = (len(counts) - 1) / 2
    for test, style in ((f"datum.layer < {half}", "on-low"), (f"datum.layer >= {half}", "on-high")):
        seen = base.transform_filter("datum.kept > 0").encode(x=alt.X("kept:Q", stack="zero", bandPosition=0.5))
        marks.append(seen.mark_text(style=style).encode(text=alt.condition(test, alt.Text("kept:Q"), alt.value(""))))
    chart = alt.layer(*marks).properties(height=34 * len(order), description=f"Heads kept by layer, {KIND_NAMES[kind]}")
    return Panel(chart, KIND_NAMES[kind], width=560)


def _by_head(table: pd.DataFrame | None, measure: str) -> dict[tuple[Any, ...], float]:
    """A measure by (kind, layer, head)."""
    if table is None:
        return {}
    found = table[table["measure"] == measure].dropna(subset=["value"])
    return {(r["kind"], r["layer"], r["head"]): round(r["value"], 4) for r in found.to_dict("records")}
