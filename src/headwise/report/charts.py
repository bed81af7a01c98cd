"""The four charts of the report: grids of heads, curves, stacked bars, points with intervals.

Each returns the layers of a chart, which `layered` puts on top of each other. Data are rows of a table. Colours come
from the theme: charts name ranges (`category`, `heatmap`, `ordinal`) and styles (`point`, `level`, `on-high` …).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import altair as alt
import numpy as np
import pandas as pd

Rows = pd.DataFrame | Sequence[Mapping[str, Any]]
ROOM = 16  # heads a layer, above which cells have no room for words
SHAPES = ("circle", "square", "triangle-up", "diamond", "cross", "triangle-down", "triangle-left", "triangle-right")
LETTERS = 40  # of the names of a legend that fit beside each other on a phone
PHONE: dict[str, Any] = {"orient": "bottom", "title": None, "labelLimit": 0, "columnPadding": 6, "labelFontSize": 11}
QUIET_AXIS = {"grid": False}


@dataclass(frozen=True)
class Text:
    """Text in cells: the field, the theme's style, a condition for the cells that have it, and options of the mark."""

    name: str
    style: str
    where: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)


def data(rows: Rows) -> Any:
    """Rows as the inline data of a chart; values that are missing are left out."""
    records = rows.to_dict("records") if isinstance(rows, pd.DataFrame) else rows
    return alt.InlineData(values=[{str(k): _plain(v) for k, v in row.items() if _known(v)} for row in records])


def _known(value: Any) -> bool:
    return value is not None and value == value


def _plain(value: Any) -> Any:
    """A value as JSON knows it, with six digits: more are not seen."""
    value = value.item() if isinstance(value, np.generic) else value
    return float(f"{value:.6g}") if isinstance(value, float) else value


def tips(*fields: str) -> list[alt.Tooltip]:
    """What pointing at a mark shows; each field as `name:N|title|format`."""
    parts = [[*text.split("|"), "", ""][:3] for text in fields]
    return [
        alt.Tooltip(name, title=title or alt.Undefined, format=form or alt.Undefined) for name, title, form in parts
    ]


def layered(layers: Sequence[Any], height: int, description: str, **resolve: str) -> Any:
    """Layers on top of each other as one chart."""
    chart = alt.layer(*layers)
    chart = chart.resolve_scale(**resolve) if resolve else chart
    return chart.properties(height=height, description=description)


def same(channel: Any, name: str) -> Any:
    """A channel with the same scale and title for another field."""
    copied = channel.copy(deep=False)
    copied["shorthand"] = name
    return copied


def legend_columns(names: Sequence[str]) -> int:
    """Two columns of a legend where its names fit a phone, else one."""
    return 2 if sum(max((len(name) for name in names[start::2]), default=0) for start in (0, 1)) <= LETTERS else 1


def categories(name: str, names: Iterable[str], grey: str = "", **legend: Any) -> alt.Color:
    """One colour a name, `grey` for one of them; the legend shows the names, if there are several, and fits a phone."""
    known = list(dict.fromkeys(names))
    others = [one for one in known if one != grey]
    shown = alt.Legend(**{"values": known, "symbolOpacity": 1, "columns": legend_columns(known), **PHONE, **legend})
    scale = alt.Scale(domain=[*others[:1], grey, *others[1:]], range="category")
    return alt.Color(name, scale=scale, legend=shown if len(known) > 1 else None)


def shapes(name: str, names: Sequence[str], drawn: Sequence[str] = SHAPES, **legend: Any) -> alt.Shape:
    """One shape a name."""
    scale = alt.Scale(domain=list(names), range=[drawn[i % len(drawn)] for i, _ in enumerate(names)])
    shown = alt.Legend(**{"symbolOpacity": 1, "columns": legend_columns(names), **PHONE, **legend})
    return alt.Shape(name, scale=scale, legend=shown)


def grid(
    cells: Rows, x: Any, y: Any, colour: Any, *, tip: Sequence[Any], texts: Sequence[Text] = (), where: str = "",
    dots: str = "", faint: Any = None, radius: float = 3, **ends: str,
) -> list[Any]:  # fmt: skip
    """Heads as cells: layers × heads, or one row a model. `where`: the cells that are squares; `dots`: those that are
    dots; `faint`: how strong each cell is; `ends` (x2, y2): where cells end that are not as wide as their band.
    """
    base = alt.Chart(data(cells)).encode(x=x, y=y, tooltip=list(tip))
    inked = base.encode(color=colour, **({"opacity": faint} if faint is not None else {}))
    squares = inked.transform_filter(where) if where else inked
    layers = [squares.mark_rect(cornerRadius=radius).encode(**ends)]
    if dots:
        layers.append(inked.transform_filter(dots).mark_circle(size=110, opacity=1))
    return [*layers, *written(cells, x, y, texts, tip)]


def written(cells: Rows, x: Any, y: Any, texts: Sequence[Text], tip: Sequence[Any] = ()) -> list[Any]:
    """Texts at their cells."""
    base = alt.Chart(data(cells)).encode(x=x, y=y, **({"tooltip": list(tip)} if tip else {}))
    seen = [base.transform_filter(text.where) if text.where else base for text in texts]
    marks = [one.mark_text(style=text.style, **text.options) for one, text in zip(seen, texts, strict=True)]
    return [mark.encode(text=text.name) for mark, text in zip(marks, texts, strict=True)]


def beside(rows: Rows, y: Any, text: str) -> Any:
    """A text at the right end of every row."""
    base = alt.Chart(data(rows)).mark_text(style="label", align="left", dx=10)
    return base.encode(y=y, text=text, x=alt.value("width"))


def stacked(
    cells: Rows, y: Any, x: str, colour: Any, order: str, *, title: str, tip: Sequence[Any],
    texts: Sequence[tuple[str, str]], faint: Any = None,
) -> list[Any]:  # fmt: skip
    """Bars of parts with their numbers in them. `texts`: conditions, and the style of the numbers they select."""
    axis = alt.Axis(tickMinStep=1, tickCount=6, grid=False)
    base = alt.Chart(data(cells)).encode(
        y=y, x=alt.X(x, stack="zero", title=title, axis=axis), order=alt.Order(order), tooltip=list(tip)
    )
    layers = [base.mark_bar(cornerRadius=2).encode(color=colour, **({"opacity": faint} if faint is not None else {}))]
    numbers = base.encode(x=alt.X(x, stack="zero", bandPosition=0.5))
    for test, style in texts:
        shown = alt.condition(f"({test}) && datum[{x.split(':')[0]!r}] > 0", alt.Text(x), alt.value(""))
        layers.append(numbers.mark_text(style=style).encode(text=shown))
    return layers


def curve(
    points: Rows, x: Any, y: Any, colour: Any, *, tip: Sequence[Any] = (), where: str = "", band: float = 0.0,
    dots: int = 0, width: float = 2, opacity: float = 1.0, detail: str | None = None, shape: Any = None,
    clip: bool = False,
) -> list[Any]:  # fmt: skip
    """Lines through points from left to right. `band`: opacity of the area from `low` to `high`; `dots`: their size."""
    base = alt.Chart(data(points)).encode(x=x, color=colour, **({"detail": detail} if detail else {}))
    base = base.transform_filter(where) if where else base
    layers = []
    if band:
        area = base.transform_filter("isValid(datum.low)").mark_area(opacity=band, clip=clip)
        layers.append(area.encode(y=same(y, "low:Q"), y2="high:Q"))
    line = base.transform_filter(f"isValid(datum.{_name(y)})").encode(y=y, order=alt.Order(x["shorthand"]))
    layers.append(line.mark_line(strokeWidth=width, opacity=opacity, strokeJoin="round", clip=clip))
    if dots:
        marks = base.mark_point(filled=True, size=dots, opacity=1, clip=clip).encode(y=y, tooltip=list(tip))
        layers.append(marks.encode(shape=shape) if shape is not None else marks)
    return layers


def _name(channel: Any) -> str:
    return str(channel["shorthand"]).partition(":")[0]


def intervals(
    points: Rows, at: Any, value: Any, colour: Any = None, *, tip: Sequence[Any], where: str = "", style: str = "point",
    size: int = 70, rule: Mapping[str, Any] | None = None, shape: Any = None, bar: bool = False,
    clip: bool = False, **mark: Any,
) -> list[Any]:  # fmt: skip
    """Points (or bars) with their 95 % intervals from `low` to `high`, drawn along the channel of `value`."""
    along, other = ("y", "x") if isinstance(value, alt.Y) else ("x", "y")
    base = alt.Chart(data(points)).encode(**{other: at}, tooltip=list(tip))
    base = base.transform_filter(where) if where else base
    inked = base.encode(color=colour) if colour is not None else base
    ends = {along: same(value, "low:Q"), f"{along}2": "high:Q"}
    whiskers = {"strokeWidth": 1.5, "opacity": 0.8, "clip": clip, **(rule or {})}
    rules = (base if "style" in whiskers else inked).transform_filter("isValid(datum.low)")
    lines = rules.mark_rule(**whiskers).encode(**ends)
    if bar:
        return [inked.mark_bar(cornerRadiusEnd=2, opacity=0.85).encode(**{along: value}), lines]
    dots = inked.mark_point(**{"style": style, "filled": True, "size": size, "opacity": 1, "clip": clip, **mark})
    return [lines, dots.encode(**{along: value}, **({"shape": shape} if shape is not None else {}))]


def levels(rows: Rows, value: Any, style: str = "level", dash: Any = None) -> Any:
    """Straight lines across a chart, one a row."""
    along = "y" if isinstance(value, alt.Y) else "x"
    base = alt.Chart(data(rows)).mark_rule(style=style, clip=True).encode(**{along: value})
    return base if dash is None else base.encode(strokeDash=dash, tooltip=tips("name:N", "value:Q||.2f"))


def ring(rows: Rows, x: Any, y: Any, where: str = "") -> Any:
    """A ring around the chosen model."""
    base = alt.Chart(data(rows)).mark_point(style="ring", size=240, filled=False, opacity=1, clip=True).encode(x=x, y=y)
    return base.transform_filter(where) if where else base
