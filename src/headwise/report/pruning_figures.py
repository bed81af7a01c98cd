"""What fewer heads cost, as the paper draws it: BLEU against the heads kept (Voita et al. 2019, figure 7), with a line
for every way of pruning, and marks for the models that pruned ones are held against.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from statistics import fmean
from typing import Any

import altair as alt

from headwise.report.figure import Figure, Panel, Rows, rows
from headwise.report.run import Models
from headwise.report.setting import CONTROLS, RANDOM, Series, Setting, heads_of, series
from headwise.report.wording import NONE, interval, probability, signed

PARTS = {"": "test", "dev_": "dev (where the setting is chosen)"}
SHAPES = {
    "random": "cross",
    "from-scratch": "triangle-up",
    "narrower": "square",
    "one-per-layer": "diamond",
    "one-per-layer-random": "triangle-down",
}  # of the controls that are marks; `further` is a level
# A legend that fits a phone, with `columns_for` its names.
NARROW: dict[str, Any] = {"orient": "bottom", "title": None, "labelLimit": 0, "columnPadding": 6, "labelFontSize": 11}
LETTERS = 40  # so many stand beside each other on a phone
APART = 0.2  # heads, or 0.6 % of them where that is more: so far may marks of as many heads stand from their number
EACH_POINT = (
    "Each point is a model. The solid line is the full model; a bar is the 95 % interval of the difference to it "
    "(paired bootstrap), drawn around the point: one that reaches the line is a difference that chance could make."
)
LEVELS = {"full model": [1, 0], CONTROLS["further"]: [2, 3], "allowed loss": [6, 4]}  # their dashes


def bleu_by_heads(run: Models) -> list[Figure]:
    """BLEU against the heads kept, on test and on dev: a figure for every set of kinds that was pruned together."""
    groups = [kinds for kinds in run.groups if any(s.kinds == kinds for s in run.pruned)]
    found = [_quality_figure(run, kinds, len(groups) > 1) for kinds in groups]
    return [figure for figure in found if figure is not None]


def _quality_figure(run: Models, kinds: tuple[str, ...], several: bool) -> Figure | None:
    lines = series(s for s in run.pruned if s.kinds == kinds)
    controls = [s for s in run.controls if s.kinds == kinds]
    drawn = {part: cells for part in PARTS if len(cells := _cells(run, lines, controls, part)) > 1}
    if not drawn:
        return None
    levels = {part: _levels(run, controls, part) for part in drawn}
    spans = {part: _span(cells, levels[part]) for part, cells in drawn.items()}
    height = max(high - low for low, high in spans.values()) * 1.12
    panels = []
    for part, cells in drawn.items():
        middle = sum(spans[part]) / 2
        domain = [round(middle - height / 2, 2), round(middle + height / 2, 2)]
        chart = _quality_panel(cells, levels[part], domain, lines, part)
        panels.append(Panel(chart, PARTS[part], width=430, narrowest=270))
    cut = any(cell["value"] < spans[part][0] for part, cells in drawn.items() for cell in cells)
    return Figure(
        name="bleu-by-heads" + (f"-{'-'.join(kinds)}" if several else ""),
        title=f"BLEU{'' if len(panels) > 1 else f' on {text_name(*drawn)}'} against the heads kept"
        + (f": {group_name(kinds)}" if several else ""),
        note="solid line: the full model · bars: 95 % interval of the difference to it"
        + (" · ring: the chosen setting" if run.chosen in [s for line in lines for s in line.settings] else ""),
        caption=_caption(run, lines, levels, cut),
        panels=panels,
        columns=2,
    )


def _caption(run: Models, lines: list[Series], levels: dict[str, list[dict[str, Any]]], cut: bool) -> str:
    told = EACH_POINT
    names = {level["name"] for level in next(iter(levels.values()))}
    if CONTROLS["further"] in names:
        told += " The dotted line is the full model trained on for as many steps, without pruning."
    if any(control.control == "narrower" and control.kinds == lines[0].settings[0].kinds for control in run.controls):
        told += " A narrower model has all its heads; it stands at those of the pruned model that it matches in size."
    if any(line.random for line in lines):
        told += " The grey band spans the random orders, its line is their mean."
    if run.chosen is not None and any(run.chosen in line.settings for line in lines):
        told += f" The ring marks the chosen setting ({run.chosen.label})."
    if any(level["name"] == "allowed loss" for found in levels.values() for level in found):
        told += " On dev the dashed line is the loss that is allowed."
    if cut:
        told += " Removal without training falls out of the panels; a study's figure of greedy removal has it whole."
    return told + (" Both panels span equally many BLEU points." if len(levels) > 1 else "")


def _cells(run: Models, lines: list[Series], controls: Sequence[Setting], part: str) -> list[dict[str, Any]]:
    """A mark for every model: its BLEU, and the interval of its difference drawn from the full model's BLEU.

    Models with random orders become one mark for one number of heads: their mean and their range.
    """
    found = [_full_cell(run, lines, part)]
    for line in lines:
        if line.random:
            found += random_cells(line, part)
        else:
            found += [model_cell(run, setting, line.label, part) for setting in line.settings]
    kept = {setting.name: setting.mean_kept for line in lines for setting in line.settings}
    for control in controls:
        if control.control in SHAPES:
            cell = model_cell(run, control, "", part)
            place = kept.get(control.twin or "", control.kept)
            found.append(cell | {"control": CONTROLS[control.control], "kept": round(place, 2)})
    found = [cell for cell in found if cell.get("value") is not None]
    return _beside(found, lines[0].settings[0].total)


def _full_cell(run: Models, lines: list[Series], part: str) -> dict[str, Any]:
    total = lines[0].settings[0].total
    value = run.full.value(f"{part}bleu") if run.full else None
    return {"line": "", "model": "full model", "kept": total, "total": total, "value": value, "sort": "full"}


def model_cell(run: Models, setting: Setting, line: str, part: str) -> dict[str, Any]:
    """One model. low, high: around its point; told: the difference in words."""
    difference, p = setting.measures.get(f"{part}bleu_difference"), setting.value(f"{part}p_value")
    base = run.full.value(f"{part}bleu") if run.full else None
    cell: dict[str, Any] = {
        "line": line,
        "model": setting.label,
        "kept": round(setting.mean_kept, 2),
        "total": setting.total,
        "value": setting.value(f"{part}bleu"),
        "sort": "chosen" if setting is run.chosen else "learned" if setting.learned else "other",
        "told": NONE,
    }
    if difference is not None:
        cell["told"] = f"{signed(difference.value)} {interval(difference.low, difference.high)}".strip()
        cell["told"] += "" if p is None else f", p {'' if p < 0.001 else '= '}{probability(p)}"
        if base is not None and difference.low is not None and difference.high is not None:
            cell |= {"low": base + difference.low, "high": base + difference.high}
    return cell


def random_cells(line: Series, part: str) -> list[dict[str, Any]]:
    """Mean and range over the random orders, for every number of heads left."""
    values: dict[int, list[float]] = {}
    for setting in line.settings:
        if (value := setting.value(f"{part}bleu")) is not None:
            values.setdefault(setting.kept, []).append(value)
    total = line.settings[0].total
    return [
        {"line": line.label, "model": f"mean of {len(found)} {RANDOM}", "kept": kept, "total": total,
         "value": fmean(found), "low": min(found), "high": max(found), "sort": "random",
         "told": f"{min(found):.2f} to {max(found):.2f} over the orders"}
        for kept, found in values.items()
    ]  # fmt: skip


def _beside(cells: list[dict[str, Any]], total: int) -> list[dict[str, Any]]:
    """Marks of as many heads move a little to the left and right of the first; `x` is where a mark is drawn."""
    marks = Counter(cell["kept"] for cell in cells if cell["sort"] not in ("full", "random"))
    seen, furthest = Counter[float](), max(APART, 0.006 * total)
    for cell in cells:
        cell["x"] = cell["kept"]
        if cell["sort"] not in ("full", "random"):
            place = (seen[cell["kept"]] + 1) // 2 * (1 if seen[cell["kept"]] % 2 else -1)
            cell["x"] = round(cell["kept"] + place * furthest / max(1, marks[cell["kept"]] // 2), 3)
            seen[cell["kept"]] += 1
    return cells


def _levels(run: Models, controls: Sequence[Setting], part: str) -> list[dict[str, Any]]:
    """The lines across a panel: the full model, the full model trained on, and on dev the loss that is allowed."""
    base = run.full.value(f"{part}bleu") if run.full else None
    limit = run.facts.get("max_drop")
    found = [] if base is None else [{"name": "full model", "value": base}]
    for control in controls:
        value = control.value(f"{part}bleu")
        if control.control == "further" and value is not None:
            found.append({"name": CONTROLS["further"], "value": value})
    if part and base is not None and isinstance(limit, int | float):
        found.append({"name": "allowed loss", "value": base - limit})
    return found


def _span(cells: Rows, levels: Rows) -> tuple[float, float]:
    """The lowest and the highest number that a panel must show: gates and controls whole, other curves cut."""
    trained = [cell for cell in cells if cell["sort"] in ("learned", "chosen", "full") or "control" in cell]
    shown = trained if any(cell["sort"] == "learned" for cell in trained) else cells
    numbers = [cell[key] for cell in shown for key in ("value", "low", "high") if key in cell]
    numbers += [level["value"] for level in levels]
    low, high = min(numbers), max(numbers)
    return (low, high) if high - low > 0.5 else (low - 0.5, high + 0.5)


def colour_of(lines: Iterable[str]) -> alt.Color:
    """One colour a line, the first the report's own and grey for random orders; the legend names those there are."""
    names = list(dict.fromkeys(lines))
    others = [name for name in names if not name.startswith(RANDOM)]
    domain = [*others[:1], RANDOM, *others[1:]]
    legend = alt.Legend(symbolType="circle", symbolOpacity=1, values=names, columns=columns_for(names), **NARROW)
    scale = alt.Scale(domain=domain, range="category")
    return alt.Color("line:N", scale=scale, legend=legend if len(names) > 1 else None)


def _quality_panel(cells: Rows, levels: Rows, domain: list[float], lines: list[Series], part: str) -> Any:
    total, name = cells[0]["total"], f"BLEU on {text_name(part)}"
    ticks = sorted({0, *(round(cell["kept"]) for cell in cells)})
    axis = alt.Axis(
        grid=False, values=ticks if len(ticks) <= 7 else alt.Undefined, tickMinStep=1, labelOverlap="greedy"
    )
    x = alt.X("x:Q", title="heads kept", scale=heads_scale(total), axis=axis)
    scale = alt.Scale(domain=domain, zero=False, nice=False)
    y = alt.Y("value:Q", title=name, scale=scale, axis=alt.Axis(tickCount=5))
    low = alt.Y("low:Q", title=name, scale=scale)
    colour = colour_of(line.label for line in lines)
    told = alt.Chart(rows(cells)).encode(x=x, tooltip=tooltip())
    base = told.transform_filter("datum.line != ''").encode(color=colour)
    single = base.transform_filter("datum.sort != 'random'")
    learned = "datum.sort == 'learned' || datum.sort == 'chosen'"
    order = alt.Order("kept:Q")
    marks = [
        base.transform_filter("datum.sort == 'random'").mark_area(opacity=0.2, clip=True).encode(y=low, y2="high:Q"),
        *_level_marks(levels, y),
        base.mark_line(strokeWidth=1.6, opacity=0.6, clip=True, strokeJoin="round").encode(y=y, order=order),
        single.transform_filter(f"!({learned})").mark_rule(strokeWidth=1, opacity=0.3, clip=True)
        .encode(y=low, y2="high:Q"),
        base.mark_point(filled=True, size=34, opacity=1, clip=True).encode(y=y),
        told.transform_filter("datum.sort == 'full'").mark_point(style="level", filled=True, size=60, opacity=1)
        .encode(y=y),
        single.transform_filter(learned).mark_rule(strokeWidth=1.5, opacity=0.8, clip=True).encode(y=low, y2="high:Q"),
        single.transform_filter(learned).mark_point(style="point", filled=True, size=70, opacity=1, clip=True)
        .encode(y=y),
        told.transform_filter("datum.sort == 'chosen'").mark_point(style="ring", size=240, filled=False, opacity=1)
        .encode(y=y),
        *_control_marks(cells, x, y, low),
    ]  # fmt: skip
    return (
        alt.layer(*marks)
        .resolve_scale(shape="independent")
        .properties(height=300, description="BLEU against the number of heads kept")
    )


def _control_marks(cells: Rows, x: alt.X, y: alt.Y, low: alt.Y) -> list[Any]:
    """Hollow marks for the models that pruned ones are held against."""
    drawn = [cell for cell in cells if "control" in cell]
    present = {cell["control"] for cell in drawn}
    shapes = {CONTROLS[name]: shape for name, shape in SHAPES.items() if CONTROLS[name] in present}
    if not shapes:
        return []
    legend = alt.Legend(columns=columns_for(list(shapes)), **NARROW)
    shape = alt.Shape("control:N", scale=alt.Scale(domain=list(shapes), range=list(shapes.values())), legend=legend)
    base = alt.Chart(rows(drawn)).encode(x=x, tooltip=tooltip())
    return [
        base.mark_rule(style="level", strokeWidth=1, opacity=0.6, clip=True).encode(y=low, y2="high:Q"),
        base.mark_point(style="level", filled=False, strokeWidth=2, size=75, opacity=1, clip=True)
        .encode(y=y, shape=shape),
    ]  # fmt: skip


def tooltip() -> list[alt.Tooltip]:
    """What a mark of `model_cell` tells when it is pointed at."""
    return [
        alt.Tooltip("model:N"),
        alt.Tooltip("kept:Q", title="heads"),
        alt.Tooltip("value:Q", title="BLEU", format=".2f"),
        alt.Tooltip("told:N", title="to the full model"),
    ]


def _level_marks(levels: Rows, y: alt.Y) -> list[Any]:
    """A rule for every level. Their names stand in a legend: inside the panel they would stand on marks."""
    names = list(dict.fromkeys(level["name"] for level in levels))
    if not names:
        return []
    stroke: dict[str, Any] = {"symbolType": "stroke", "symbolSize": 500, "symbolStrokeWidth": 1.5}
    legend = alt.Legend(columns=columns_for(names), **stroke, **NARROW)
    scale = alt.Scale(domain=names, range=[LEVELS[name] for name in names])
    told = [alt.Tooltip("name:N"), alt.Tooltip("value:Q", format=".2f")]
    base = alt.Chart(rows(levels)).mark_rule(style="level", clip=True)
    return [base.encode(y=y, strokeDash=alt.StrokeDash("name:N", scale=scale, legend=legend), tooltip=told)]


def columns_for(names: Sequence[str]) -> int:
    """Two columns of a legend where its names leave room for them, else one."""
    return 2 if sum(max((len(name) for name in names[start::2]), default=0) for start in (0, 1)) <= LETTERS else 1


def heads_scale(total: int) -> alt.Scale:
    """From no head to all, with room for marks at both ends."""
    return alt.Scale(domain=[-0.02 * total, 1.02 * total], nice=False)


def text_name(part: str) -> str:
    """The text of a part, for axes."""
    return "dev" if part else "test"


def group_name(kinds: tuple[str, ...]) -> str:
    """`encoder heads`; of several kinds all are named."""
    return heads_of(kinds) if len(kinds) == 1 else f"{heads_of(kinds)} ({', '.join(kinds)})"
