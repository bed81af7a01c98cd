"""The figures of a grid: BLEU against heads kept over all seeds, and language pairs side by side."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import altair as alt

from headwise.report.figure import Figure, Panel, Rows, rows
from headwise.report.grid import Grid, pooled
from headwise.report.pruning_figures import (
    EACH_POINT,
    NARROW,
    PARTS,
    bleu_by_heads,
    columns_for,
    group_name,
    heads_scale,
)
from headwise.report.run import Models
from headwise.report.setting import Setting, series
from headwise.report.wording import interval, sentence, signed

SHAPES = ("circle", "square", "triangle-up", "diamond", "cross", "triangle-down", "triangle-left", "triangle-right")


def seed_figures(grid: Grid, data: str) -> list[Figure]:
    """Figure 7 of one data set: the mean line over seeds with its intervals, a mark for each seed's model where several
    have it, and a ring around what each seed chose.
    """
    run = pooled(grid, data)
    if run is None:
        return []
    found = []
    for figure in bleu_by_heads(run):
        part_of = {title: part for part, title in PARTS.items()}
        cells = [list(_seed_cells(grid, data, run, part_of[panel.title])) for panel in figure.panels]
        panels = [_with_seeds(panel, found) for panel, found in zip(figure.panels, cells, strict=True)]
        ringed = any(mark.get("chosen") for panel in panels for mark in _rows(panel))
        found.append(
            replace(
                figure,
                name=f"{figure.name}{f'-{slug(data)}' if data else ''}",
                title=f"{data}: {figure.title}" if data else figure.title,
                note="solid line: the mean of the full models · bars: 95 % interval of the mean difference over seeds"
                + (" · ring: what each seed chose" if ringed else ""),
                caption=_caption(grid, data, ringed) + figure.caption.removeprefix(EACH_POINT),
                panels=panels,
            )
        )
    return found


def slug(name: str) -> str:
    """A name that files can have."""
    return re.sub(r"[^\w-]+", "-", name).strip("-")


def _rows(panel: Panel) -> list[Mapping[str, Any]]:
    """All that a panel draws."""
    return [row for rows in panel.specification()["datasets"].values() for row in rows]


def _caption(grid: Grid, data: str, ringed: bool) -> str:
    seeds = len(grid.of(data))
    told = (
        "The line goes through means over seeds, each standing where its mean difference to the full model of the same "
        "seed puts it, from the mean of the full models; the small marks are the seeds' own models, where several "
        "seeds have one. "
    )
    told += "Every seed chooses a model on dev text by itself: it is ringed. " if ringed else ""
    told += (
        f"Bars: 95 % interval over {seeds} seeds and the sentences, by a bootstrap of both; where only one seed "
        "has a model, over the sentences. So few seeds say little of how much seeds differ."
        if seeds > 1
        else "One seed so far: the bars are 95 % intervals over sentences."
    )
    return told


def _seed_cells(grid: Grid, data: str, run: Models, part: str) -> Iterator[dict[str, Any]]:
    """Models of single seeds, where their difference puts them from the mean of the full models: those with gates that
    several seeds have, and the chosen ones.
    """
    base = run.full.value(f"{part}bleu") if run.full else None
    members = grid.of(data)
    if base is None:
        return
    several = {s.name for s in run.pruned if s.asked["seeds"] > 1 and s.learned}
    lines = {s.name: line.label for kinds in run.groups for line in _lines(run, kinds) for s in line.settings}
    for member in members:
        for setting in member.settings:
            change = setting.measures.get(f"{part}bleu_difference")
            chosen = setting is member.chosen
            if change is not None and (chosen or setting.name in several):
                told = f"{signed(change.value)} {interval(change.low, change.high)}"
                yield {
                    "seed": f"seed {member.seed}", "line": lines[setting.name], "model": setting.label,
                    "x": setting.kept, "value": base + change.value, "told": told, "total": setting.total,
                    "chosen": chosen, "several": setting.name in several,
                }  # fmt: skip


def _lines(run: Models, kinds: tuple[str, ...]) -> list[Any]:
    return series(s for s in run.pruned if s.kinds == kinds)


def _with_seeds(panel: Panel, cells: Rows) -> Panel:
    """The panel with the seeds' marks under its own, of the kinds of heads that it shows, and the rings over them."""
    shown = {cell["model"] for cell in _rows(panel) if "model" in cell}
    cells = [cell for cell in cells if cell["model"] in shown]
    ringed = [cell for cell in cells if cell["chosen"]]
    several = [cell for cell in cells if cell["several"]]
    lines = list(dict.fromkeys(cell["line"] for cell in _rows(panel) if cell.get("line")))
    under = [_seed_marks(several, columns_for(lines))] if several else []
    over = [_place(ringed).mark_point(style="ring", size=240, filled=False, opacity=1, clip=True)] if ringed else []
    first, *others = panel.chart.layer
    return replace(panel, chart=alt.layer(first, *under, *others, *over, **_kept(panel))) if cells else panel


def _kept(panel: Panel) -> dict[str, Any]:
    """What a layered chart is beside its layers."""
    chart = panel.chart
    return {"height": chart.height, "description": chart.description, "resolve": chart.resolve}


def _place(cells: Rows) -> Any:
    """Marks where single seeds' models stand."""
    told = [alt.Tooltip("model:N"), alt.Tooltip("seed:N"), alt.Tooltip("x:Q", title="heads")]
    return alt.Chart(rows(cells)).encode(
        x=alt.X("x:Q", title="heads kept", scale=heads_scale(cells[0]["total"])),
        y=alt.Y("value:Q"),
        tooltip=[*told, alt.Tooltip("told:N", title="to its full model")],
    )


def _seed_marks(cells: Rows, columns: int) -> Any:
    seeds = list(dict.fromkeys(cell["seed"] for cell in cells))
    scale = alt.Scale(domain=seeds, range=[SHAPES[i % len(SHAPES)] for i in range(len(seeds))])
    legend = alt.Legend(orient="bottom", title=None, columns=4, symbolOpacity=1)
    marks = _place(cells).mark_point(style="level", strokeWidth=0, filled=True, size=46, opacity=0.6, clip=True)
    colour = alt.Color("line:N", legend=alt.Legend(symbolType="circle", symbolOpacity=1, columns=columns, **NARROW))
    return marks.encode(color=colour, shape=alt.Shape("seed:N", scale=scale, legend=legend))


def pairs_figure(grid: Grid) -> Figure | None:
    """Pairs side by side: BLEU above or below the full model, against the share of heads kept; None for one pair."""
    runs = {data: run for data in grid.data if (run := pooled(grid, data)) is not None}
    if len(runs) < 2:
        return None
    panels: dict[str, list[dict[str, Any]]] = {}
    for data, run in runs.items():
        for kinds in run.groups:
            for line in _lines(run, kinds):
                if line.learned:
                    title = f"{sentence(group_name(kinds))} · {line.label}"
                    panels.setdefault(title, []).extend(_pair_cells(data, line.settings, grid.part))
    drawn = {title: cells for title, cells in panels.items() if len(cells) > 1}
    if not drawn:
        return None
    return Figure(
        name="pairs",
        title="Language pairs side by side",
        note="difference to the full model of the same pair · bars: 95 % interval, over seeds where there are several",
        caption="Every point is a setting, the mean over its seeds. Zero is the full model of the same language pair: "
        "so pairs of high and of low BLEU can be compared. A bar that reaches zero: chance could make the difference.",
        panels=[
            Panel(_pairs_panel(cells, list(runs), grid.text), title, width=430, narrowest=270)
            for title, cells in drawn.items()
        ],
        columns=min(2, len(drawn)),
    )


def _pair_cells(data: str, settings: tuple[Setting, ...], part: str) -> Iterator[dict[str, Any]]:
    for setting in settings:
        change = setting.measures.get(f"{part}bleu_difference")
        if change is None:
            continue
        cell = {
            "data": data, "model": setting.label, "kept": round(100 * setting.kept / setting.total, 2),
            "heads": f"{setting.kept} of {setting.total}", "seeds": setting.asked["seeds"], "value": change.value,
            "told": f"{signed(change.value)} {interval(change.low, change.high)}",
        }  # fmt: skip
        yield cell | ({} if change.low is None else {"low": change.low, "high": change.high})


def _pairs_panel(cells: Rows, data: list[str], text: str) -> Any:
    legend = alt.Legend(orient="bottom", title=None, columns=4, labelLimit=0, symbolOpacity=1, values=data)
    domain = [*data[:1], "", *data[1:]]  # the second colour, grey, is left to what is random
    shapes = alt.Scale(domain=domain, range=[SHAPES[0], SHAPES[0], *SHAPES[1 : len(data)]])
    colour = alt.Color("data:N", scale=alt.Scale(domain=domain, range="category"), legend=legend)
    shape = alt.Shape("data:N", scale=shapes, legend=legend)
    name = f"BLEU on {text}, difference to the full model"
    y, low = alt.Y("value:Q", title=name), alt.Y("low:Q", title=name)
    x = alt.X("kept:Q", title="heads kept (%)", scale=alt.Scale(domain=[0, 100]), axis=alt.Axis(grid=False))
    told = [alt.Tooltip(f"{name}:N") for name in ("data", "model", "heads", "seeds")]
    base = alt.Chart(rows(cells)).encode(x=x, color=colour, tooltip=[*told, alt.Tooltip("told:N", title="BLEU")])
    marks = [
        alt.Chart(rows([{"value": 0}])).mark_rule(style="level").encode(y=y),
        base.mark_line(strokeWidth=1.6, opacity=0.6, strokeJoin="round").encode(y=y, order=alt.Order("kept:Q")),
        base.mark_rule(strokeWidth=2).encode(y=low, y2="high:Q"),
        base.mark_point(filled=True, size=80, opacity=1).encode(y=y, shape=shape),
    ]
    return alt.layer(*marks).properties(height=300, description="BLEU difference against the share of heads kept")
