"""Figures with a line: gates through training, BLEU against the heads kept, the training curve."""

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


def bleu_by_heads(run: Run) -> Figure | None:
    """BLEU against the number of heads kept, on test and on dev; None when fewer than two models were measured."""
    limit, full = run.facts.get("max_drop"), run.full
    dev_full = full.value("dev_bleu") if full else None
    lowest = dev_full - limit if dev_full is not None and isinstance(limit, int | float) else None
    measured = {"bleu": _quality(run, "bleu"), "dev_bleu": _quality(run, "dev_bleu")}
    measured = {measure: cells for measure, cells in measured.items() if len(cells) > 1}
    if not measured:
        return None
    spans = {m: _span(cells, lowest if m == "dev_bleu" else None) for m, cells in measured.items()}
    height = max(high - low for low, high in spans.values()) * 1.16
    panels = []
    for measure, cells in measured.items():
        middle = sum(spans[measure]) / 2
        domain = [round(middle - height / 2, 2), round(middle + height / 2, 2)]
        title = "test" if measure == "bleu" else "dev (where the setting is chosen)"
        chart = _quality_panel(cells, domain, lowest if measure == "dev_bleu" else None)
        panels.append(Panel(chart, title, width=400, narrowest=250))
    return Figure(
        name="bleu-by-heads",
        title="BLEU against the heads kept",
        note="solid line: the full model · bars: 95 % interval of the difference to it · ring: the chosen setting",
        caption=(
            "Each point is a model. The solid line is the full model; a bar is the 95 % interval of the difference "
            "to it (paired bootstrap), drawn around the point: a bar that reaches the line is a difference that chance "
            "could make. The ring marks the chosen setting. On dev the dashed line is the loss that the plan allows. "
            "Both panels span equally many BLEU points."
        ),
        panels=panels,
        columns=2,
    )


def _quality(run: Run, measure: str) -> list[dict[str, Any]]:
    """A mark for every model: its BLEU, and on test the interval of its difference, from the full model's BLEU."""
    base = run.full.value(measure) if run.full else None
    cells = []
    for setting in run.settings:
        value = setting.value(measure)
        if value is None:
            continue
        cell = {
            "model": setting.label,
            "kept": setting.kept,
            "value": value,
            "full": setting.is_full,
            "chosen": setting is run.chosen,
        }
        difference = setting.measures.get("bleu_difference") if measure == "bleu" else None
        if base is not None and difference is not None and difference.low is not None and difference.high is not None:
            cell |= {"low": base + difference.low, "high": base + difference.high}
        cells.append(cell)
    return cells


def _span(cells: Rows, limit: float | None) -> tuple[float, float]:
    """The lowest and the highest number that a panel must show."""
    numbers = [cell[key] for cell in cells for key in ("value", "low", "high") if key in cell]
    numbers += [] if limit is None else [limit]
    low, high = min(numbers), max(numbers)
    return (low, high) if high - low > 0.5 else (low - 0.5, high + 0.5)


def _quality_panel(cells: Rows, domain: list[float], limit: float | None) -> Any:
    total = max(cell["kept"] for cell in cells)
    x = alt.X(
        "kept:Q",
        title="heads kept",
        scale=alt.Scale(domain=[0, total * 1.03]),
        axis=alt.Axis(grid=False, values=sorted({0, *(cell["kept"] for cell in cells)}), labelOverlap="greedy"),
    )
    y = alt.Y("value:Q", title="BLEU", scale=alt.Scale(domain=domain, zero=False), axis=alt.Axis(tickCount=5))
    tooltip = [
        alt.Tooltip("model:N"),
        alt.Tooltip("kept:Q", title="heads"),
        alt.Tooltip("value:Q", title="BLEU", format=".2f"),
    ]
    base = alt.Chart(rows(cells)).encode(x=x, y=y, tooltip=tooltip)
    full, chosen = base.transform_filter("datum.full"), base.transform_filter("datum.chosen")
    marks = [
        alt.Chart(rows([c for c in cells if c["full"]])).mark_rule(style="level").encode(y=y),
        base.mark_line(style="path").encode(order=alt.Order("kept:Q")),
        base.transform_filter("isValid(datum.low)")
        .mark_rule(style="whisker")
        .encode(y=alt.Y("low:Q", title="BLEU"), y2="high:Q"),
        base.mark_point(style="point", size=90, filled=True, opacity=1),
        chosen.mark_point(style="ring", size=260, filled=False, opacity=1),
        full.mark_text(style="label", align="right", dy=-14, dx=4).encode(text=alt.value("full model")),
        chosen.mark_text(style="label-strong", align="left", dx=14, dy=14).encode(text="model:N"),
    ]
    if limit is not None:
        edge = alt.Chart(rows([{"value": limit}])).encode(y=y)
        marks.append(edge.mark_rule(style="limit"))
        marks.append(
            edge.mark_text(style="limit-label", align="left", dx=4, dy=12).encode(
                text=alt.value("allowed loss"), x=alt.value(0)
            )
        )
    return alt.layer(*marks).properties(height=260, description="BLEU against the number of heads kept")


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
