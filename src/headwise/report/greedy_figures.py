"""Greedy removal, as the paper draws it: BLEU against the share of heads removed, by score and by kind of heads
(Michel et al. 2019, figures 3 and 4), with random orders and learned gates beside.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import altair as alt

from headwise.report.figure import Figure, Panel, Rows, rows
from headwise.report.pruning_figures import colour_of, group_name, model_cell, random_cells, text_name, tooltip
from headwise.report.run import Run
from headwise.report.setting import Series, heads_of, series
from headwise.report.wording import sentence


def greedy_curves(run: Run) -> list[Figure]:
    """A figure by score, a panel for every set of kinds, and one by kinds for the score that most of them share; none
    without greedy removal.
    """
    found = {kinds: series(s for s in run.pruned if s.kinds == kinds) for kinds in run.groups}
    groups = {kinds: lines for kinds, lines in found.items() if any(not line.learned for line in lines)}
    every = [s for lines in groups.values() for line in lines if not line.learned for s in line.settings]
    part = max(("", "dev_"), key=lambda part: sum(s.value(f"{part}bleu") is not None for s in every))
    by_score = {sentence(group_name(kinds)): [(s.label, s) for s in lines] for kinds, lines in groups.items()}
    figures = [_by_score(run, by_score, part), _by_kind(run, groups, part)]
    return [figure for figure in figures if figure is not None]


def _by_score(run: Run, panels: dict[str, list[tuple[str, Series]]], part: str) -> Figure | None:
    cells = {title: found for title, lines in panels.items() if len(found := _cells(run, lines, part)) > 1}
    if not cells:
        return None
    lines = [line for found in panels.values() for _, line in found]
    random, gates = any(line.random for line in lines), any(line.learned for line in lines)
    text = "the test text" if part == "" else "dev text"
    return Figure(
        name="greedy-curves",
        title=f"BLEU on {text_name(part)} while heads go, the least important first",
        note=f"on {text} · bands: 95 % interval of the difference to the full model"
        + (", and the range of the random orders" if random else ""),
        caption=f"Heads are removed in the order of a score, some more at a time; BLEU is on {text}. A coloured band "
        "is the 95 % interval of the difference to the full model."
        + (" The grey one spans the random orders: a score is worth something where it lies above." if random else "")
        + (" Gates, which train while they prune, stand beside." if gates else ""),
        panels=_panels(cells, [line.label for line in lines], part),
        columns=min(2, len(cells)),
    )


def _by_kind(run: Run, groups: dict[tuple[str, ...], list[Series]], part: str) -> Figure | None:
    """The order that most sets of kinds share, a line each; None where none is shared."""
    shared: dict[str, list[tuple[str, Series]]] = {}
    for kinds, lines in groups.items():
        for line in lines:
            if not line.learned and not line.random:
                shared.setdefault(line.label, []).append((heads_of(kinds), line))
    most = max(shared, key=lambda label: len(shared[label]), default="")
    if len(shared.get(most, ())) < 2:
        return None
    return Figure(
        name="greedy-by-kind",
        title=f"BLEU on {text_name(part)} while heads go, by kind of heads: {most}",
        note="share of the heads of these kinds that is removed",
        caption="The same order of removal over different kinds of heads, each against the share of its own heads: "
        "where the curve falls early, the model leans on that kind most.",
        panels=_panels({"": _cells(run, shared[most], part)}, [name for name, _ in shared[most]], part),
    )


def _panels(charts: dict[str, list[dict[str, Any]]], lines: list[str], part: str) -> list[Panel]:
    return [
        Panel(_panel(cells, lines, part), title, width=430, narrowest=270, widest=2000 if title else 620)
        for title, cells in charts.items()
    ]


def _cells(run: Run, lines: Sequence[tuple[str, Series]], part: str) -> list[dict[str, Any]]:
    """The marks of a panel: every line starts at the full model; `gone` is the share removed in per cent."""
    base = run.full.value(f"{part}bleu") if run.full else None
    found = []
    for name, line in lines:
        total = line.settings[0].total
        cells = random_cells(line, part) if line.random else [model_cell(run, s, name, part) for s in line.settings]
        start = {"line": name, "model": "full model", "kept": total, "total": total, "value": base, "sort": "full"}
        found += [start | {"low": base, "high": base}, *(cell | {"line": name} for cell in cells)]
    return [
        cell | {"gone": round(100 * (1 - cell["kept"] / cell["total"]), 2)}
        for cell in found
        if cell["value"] is not None
    ]


def _panel(cells: Rows, lines: list[str], part: str) -> Any:
    x = alt.X("gone:Q", title="heads removed (%)", scale=alt.Scale(domain=[0, 100]), axis=alt.Axis(grid=False))
    scale, name = alt.Scale(zero=False), f"BLEU on {text_name(part)}"
    y, low = alt.Y("value:Q", title=name, scale=scale), alt.Y("low:Q", title=name, scale=scale)
    base = alt.Chart(rows(cells)).encode(x=x, color=colour_of(lines), tooltip=tooltip())
    marks = [
        base.transform_filter("isValid(datum.low)").mark_area(opacity=0.18).encode(y=low, y2="high:Q"),
        base.mark_line(strokeWidth=2, strokeJoin="round").encode(y=y, order=alt.Order("gone:Q")),
        base.mark_point(filled=True, size=34, opacity=1).encode(y=y),
    ]
    return alt.layer(*marks).properties(height=300, description="BLEU against the share of heads removed")
