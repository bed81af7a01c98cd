"""Charts as Vega-Lite specifications: channels, layers, figures, and what several sections draw.

`mark` is one layer: a mark at rows, with its channels. `curve`, `intervals`, `stacked_bars` and others are layers that
belong together; `layered` puts layers on top of each other. Colours come from the theme: charts name ranges
(`category`, `heatmap`, `ordinal`) and styles (`point`, `level`, `on-high` …), which `vega_config` defines for light and
for dark paper. So the same specification is drawn on both.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from headwise.core.grid import HeadGrid
from headwise.core.theme import FONT, LIGHT, Palette, ranges

VEGA_LITE = "v6.4"
SCHEMA = {"$schema": f"https://vega.github.io/schema/vega-lite/{VEGA_LITE}.json"}
SHARPNESS = 2
SVG_WIDTH = re.compile(r'<svg[^>]*? width="([\d.]+)"')
SVG_SIZE = re.compile(r'(<svg[^>]*?) width="([\d.]+)" height="([\d.]+)"')
PRINTED = 0.6  # points of a pixel: words of 12 pixels come to 7 points
MOST_TRIES = 4  # to make a figure as wide as it should be
Spec = dict[str, Any]
ChartRows = pd.DataFrame | Sequence[Mapping[str, Any]]
ATTENTION_NAME = 70  # pixels of `sliding 512` before the number of a layer
MOST_HEADS_WITH_WORDS = 16  # heads a layer, above which cells have no room for words
FIELD_TYPES = {"Q": "quantitative", "N": "nominal", "O": "ordinal"}
SCALE_KEYS = ("domain", "range", "zero", "nice", "clamp", "reverse", "type", "padding")
CHANNEL = ("sort", "bandPosition", "stack")
SHAPES = (
    "circle",
    "square",
    "triangle-up",
    "diamond",
    "cross",
    "triangle-down",
    "triangle-left",
    "triangle-right",
)
HAS_ENDS = "isValid(datum.low)"
LETTERS = 40  # of the names of a legend that fit beside each other on a phone
PHONE: Spec = {
    "orient": "bottom",
    "title": None,
    "labelLimit": 0,
    "columnPadding": 6,
    "labelFontSize": 11,
}


def data(rows: ChartRows) -> list[Spec]:
    """Rows as the data of a chart, six digits a number (more are not seen); values that are missing are left out."""
    records = rows.to_dict("records") if isinstance(rows, pd.DataFrame) else rows
    # `v == v` fails for NaN only, for which JSON has no word.
    return [
        {str(k): _plain(v) for k, v in row.items() if v is not None and v == v} for row in records
    ]


def if_ends(rows: ChartRows) -> ChartRows:
    """The rows, if one of them has an interval: a layer that shows none has no scale."""
    return rows if any("low" in row for row in data(rows)) else []


def _plain(value: Any) -> Any:
    value = value.item() if isinstance(value, np.generic) else value
    return float(f"{value:.6g}") if isinstance(value, float) else value


def field(text: str, **options: Any) -> Spec:
    """A channel that shows a column, `loss:Q` (quantity), `kind:N` (name) or `layer:O` (place in an order)."""
    name, _, kind = text.partition(":")
    return {"field": name, "type": FIELD_TYPES[kind], **options}


def axis(text: str, title: str | None, **options: Any) -> Spec:
    """A position with the title of its axis, and options of the channel (CHANNEL), its scale (SCALE_KEYS) and its axis."""
    scale = {name: options.pop(name) for name in SCALE_KEYS if name in options}
    own = {name: options.pop(name) for name in CHANNEL if name in options}
    parts = {"scale": scale, "axis": options}
    return field(text, title=title, **own, **{name: part for name, part in parts.items() if part})


def layer_axis(attention: Sequence[str] = ()) -> Spec:
    """Layers from top to bottom. attention: of each layer, written before its number."""
    if not attention:
        return axis("layer:O", "layer")
    names = [f"{name} · {layer}" for layer, name in enumerate(attention)]
    return axis(
        "layer:O",
        "layer",
        labelExpr=f"{json.dumps(names, ensure_ascii=False)}[datum.value] || datum.label",
    )


def colour(
    text: str, names: Sequence[Any], ranged: str | list[str] = "category", **legend: Any
) -> Spec:
    """A colour with the names (or ends) of its scale; without options of a legend there is none. ranged: a range of the
    theme, or the colours."""
    # Vega-Lite draws a legend unless it is null: an empty one has the defaults.
    return field(text, scale={"domain": list(names), "range": ranged}, legend=legend or None)


def heat(text: str, ends: Sequence[float], ranged: str = "heatmap", **legend: Any) -> Spec:
    """A colour for numbers between the ends of its scale; those beyond have the colour of the end."""
    found = colour(text, ends, ranged, **legend)
    found["scale"]["clamp"] = True
    if ranged == "diverging":
        # By default Vega-Lite mixes in HCL, which passes other hues on the way.
        found["scale"]["interpolate"] = "rgb"
    return found


def label_of(names: Mapping[Any, str]) -> str:
    """The labels of an axis or legend: a name at each of some numbers, nothing at others."""
    # Vega's ticks are floats: one that is meant to be 0.3 may not equal 0.3.
    tests = [
        f"abs(datum.value - {at}) <= {1e-6 * abs(at)} ? '{name}' : " for at, name in names.items()
    ]
    return f"{''.join(tests)}''"


def categories(text: str, names: Iterable[str], grey: str = "", **legend: Any) -> Spec:
    """One colour a name, `grey` for one of them; the legend shows the names, if there are several, and fits a phone."""
    known = list(dict.fromkeys(names))
    others = [name for name in known if name != grey]
    shown = {"values": known, **_legend(known), **legend} if len(known) > 1 else {}
    # The theme's second colour is its grey: without a grey name, an empty one takes that place.
    return colour(text, [*others[:1], grey, *others[1:]], **shown)


def shape_field(
    text: str, names: Sequence[str], drawn: Sequence[str] = SHAPES, **legend: Any
) -> Spec:
    """One shape a name."""
    scale = {"domain": list(names), "range": [drawn[i % len(drawn)] for i, _ in enumerate(names)]}
    return field(text, scale=scale, legend={**_legend(names), **legend})


def _legend(names: Sequence[str]) -> Spec:
    return {"symbolOpacity": 1, "columns": legend_columns(names), **PHONE}


def legend_columns(names: Sequence[str]) -> int:
    """Two columns of a legend where its names fit a phone, else one."""
    # Vega fills a legend row by row: every second name stands in the same column.
    longest = sum(max(map(len, names[start::2]), default=0) for start in (0, 1))
    return 2 if longest <= LETTERS else 1


def when(test: str, one: Any, other: Any) -> Spec:
    """A channel of one value where the test holds, and else of another."""
    return {"condition": {"test": test, "value": one}, "value": other}


def tips(*fields: str) -> list[Spec]:
    """What pointing at a mark shows; each field as `name:N|title|format`."""
    channels: list[Spec] = []
    for text in fields:
        name, title, form = [*text.split("|"), "", ""][:3]
        said = {"title": title, "format": form}
        channels.append(field(name, **{option: word for option, word in said.items() if word}))
    return channels


def mark(
    kind: str,
    rows: ChartRows,
    look: Mapping[str, Any] | None = None,
    where: str = "",
    **channels: Any,
) -> Spec:
    """One layer: a mark, its look, a test for the rows that have it, and its channels; those that are None are left
    out.
    """
    encoding = {name: channel for name, channel in channels.items() if channel not in (None, [])}
    transform = {"transform": [{"filter": where}]} if where else {}
    look = {"type": kind, **(look or {})}
    return {"data": data(rows), **transform, "mark": look, "encoding": encoding}


def layered(layers: Sequence[Spec], height: int, description: str, **scales: str) -> Spec:
    """Layers on top of each other as one chart, except those without rows; `scales`: those that are independent of each
    other."""
    resolve = {"resolve": {"scale": scales}} if scales else {}
    drawn = [layer for layer in layers if layer["data"]]
    return {"layer": drawn, "height": height, "description": description, **resolve}


def specification(chart: Spec) -> Spec:
    """A whole specification, with the rows that several layers draw stored once, as `datasets`."""
    names: dict[str, str] = {}

    def stored(part: Any) -> Any:
        if isinstance(part, list):
            return [stored(one) for one in part]
        if not isinstance(part, dict):
            return part
        held: Any = {}
        for key, value in part.items():
            held[key] = named(value) if key == "data" else stored(value)
        return held

    def named(rows: list[Spec]) -> Spec:
        return {"name": names.setdefault(json.dumps(rows), f"data-{len(names)}")}

    found: Spec = stored(chart)
    return found | {"datasets": {name: json.loads(text) for text, name in names.items()}}


def text(
    cells: ChartRows,
    name: str,
    style: str,
    x: Any,
    y: Any,
    where: str = "",
    tip: Any = None,
    **look: Any,
) -> Spec:
    """A text at every cell, in a style of the theme."""
    return mark(
        "text", cells, {"style": style, **look}, where, x=x, y=y, text=field(name), tooltip=tip
    )


def beside(rows: ChartRows, y: Any, name: str) -> Spec:
    """A text at the right end of every row."""
    return text(rows, name, "label", {"value": "width"}, y, align="left", dx=10)


def stacked_bars(
    cells: ChartRows,
    y: Any,
    x: str,
    filled: Any,
    order: str,
    *,
    title: str,
    tip: Sequence[Any],
    texts: Sequence[tuple[str, str]],
) -> list[Spec]:
    """Bars of parts with their numbers in them. `texts`: conditions, and the style of the numbers they select."""
    along = axis(x, title, stack="zero", tickMinStep=1, tickCount=6, grid=False)
    # Numbers lie in their bars only if both layers are stacked in one order.
    shared = {"y": y, "order": field(order), "tooltip": tip}
    layers = [mark("bar", cells, {"cornerRadius": 2}, x=along, color=filled, **shared)]
    middle = field(x, stack="zero", bandPosition=0.5)
    number = field(x)
    for test, style in texts:
        shown = {
            "condition": {"test": f"({test}) && datum['{number['field']}'] > 0", **number},
            "value": "",
        }
        layers.append(mark("text", cells, {"style": style}, x=middle, text=shown, **shared))
    return layers


def curve(
    points: ChartRows,
    x: Spec,
    y: Spec,
    colours: Any,
    *,
    tip: Sequence[Any] = (),
    band: float = 0.0,
    dots: int = 0,
    width: float = 2,
    opacity: float = 1.0,
    detail: Any = None,
    shape: Any = None,
) -> list[Spec]:
    """Lines through points from left to right. `band`: opacity of the area from `low` to `high`; `dots`: their size."""
    shared: Spec = {"x": x, "color": colours, "detail": detail}
    ends: Spec = {"y": {**y, "field": "low"}, "y2": {"field": "high"}}
    layers = []
    look: Spec = {"opacity": band}
    if band:
        layers.append(mark("area", if_ends(points), look, HAS_ENDS, **shared, **ends))
    look = {"strokeWidth": width, "opacity": opacity, "strokeJoin": "round"}
    order = {"field": x["field"], "type": x["type"]}
    test = f"isValid(datum.{y['field']})"
    layers.append(mark("line", points, look, test, y=y, order=order, **shared))
    if dots:
        look = {"filled": True, "size": dots, "opacity": 1}
        layers.append(mark("point", points, look, y=y, tooltip=list(tip), shape=shape, **shared))
    return layers


def intervals(
    points: ChartRows,
    x: Spec,
    y: Spec,
    colours: Any = None,
    *,
    tip: Sequence[Any] = (),
    style: str = "point",
    size: int = 70,
    whisker_look: Mapping[str, Any] | None = None,
    shape: Any = None,
    **look: Any,
) -> list[Spec]:
    """Points with their 95 % intervals from `low` to `high`."""
    shared: Spec = {"x": x, "color": colours, "tooltip": list(tip)}
    ends: Spec = {"y": {**y, "field": "low"}, "y2": {"field": "high"}}
    whiskers = {"strokeWidth": 1.5, "opacity": 0.8, **(whisker_look or {})}
    look = {"style": style, "filled": True, "size": size, "opacity": 1, **look}
    return [
        mark("rule", if_ends(points), whiskers, HAS_ENDS, **shared, **ends),
        mark("point", points, look, y=y, shape=shape, **shared),
    ]


def level_lines(rows: ChartRows, y: Spec, style: str = "level", dash: Any = None) -> Spec:
    """Straight lines across a chart, one a row."""
    tip = None if dash is None else tips("name:N", "value:Q||.2f")
    return mark("rule", rows, {"style": style, "clip": True}, y=y, strokeDash=dash, tooltip=tip)


def ring(rows: ChartRows, x: Any, y: Any) -> Spec:
    """A ring around the chosen model."""
    look = {"style": "ring", "size": 240, "filled": False, "opacity": 1}
    return mark("point", rows, look, x=x, y=y)


def vega_config(palette: Palette) -> dict[str, Any]:
    """The Vega-Lite configuration of a palette: every colour and font that a chart may use."""
    ink = palette["ink"]
    muted = palette["muted"]
    line = palette["line"]
    accent = palette["accent"]
    second = palette["second"]
    colours = ranges(palette)
    titles = {"titleColor": muted, "titleFontWeight": "normal", "titleFontSize": 12}
    labels: dict[str, Any] = {"labelColor": muted, "labelFontSize": 12, **titles}
    return {
        "background": palette["card"],
        "font": FONT,
        "padding": 4,
        "mark": {"color": accent},
        "view": {"stroke": None},
        "scale": {"rectBandPaddingInner": 0.07},
        "range": {
            "category": colours["category"],
            "heatmap": colours["heatmap"],
            "ordinal": {"scheme": colours["ordinal"]},
            "diverging": colours["diverging"],
        },
        "axis": {
            **labels,
            **{f"{part}Color": line for part in ("grid", "domain", "tick")},
            "titlePadding": 8,
            "labelPadding": 6,
            "tickSize": 4,
        },
        "axisBand": {"grid": False, "ticks": False, "domain": False},
        "legend": {
            **labels,
            "gradientStrokeColor": line,
            "gradientThickness": 10,
            "symbolBaseFillColor": muted,
            "layout": {"bottom": {"direction": "vertical", "anchor": "start"}},
        },
        "title": {
            "color": ink,
            "subtitleColor": muted,
            "anchor": "start",
            "fontSize": 13,
            "fontWeight": 600,
            "subtitleFontSize": 12,
            "subtitlePadding": 6,
            "offset": 10,
        },
        "style": {
            "label": {"color": muted, "fontSize": 12},
            "label-strong": {"color": ink, "fontSize": 12, "fontWeight": 600},
            **{on: {"color": palette[on], "fontSize": 13} for on in ("on-low", "on-high")},
            "small-on-function": {"color": "#000000", "fontSize": 10},
            "small-on-low": {"color": palette["on-low"], "fontSize": 10, "opacity": 0.8},
            "small-on-high": {"color": palette["on-high"], "fontSize": 10, "opacity": 0.85},
            "point": {"color": accent, "stroke": palette["card"], "strokeWidth": 1.5},
            "framed": {"fillOpacity": 0, "stroke": ink, "strokeWidth": 1.5},
            "ring": {"color": ink, "strokeWidth": 2.5},  # no line has this colour
            "level": {"color": muted, "strokeWidth": 1.5},
            "limit": {"color": second, "strokeWidth": 1.5, "strokeDash": [5, 4]},
            "limit-label": {"color": second, "fontSize": 12},
        },
    }


@dataclass(frozen=True)
class Panel:
    """One chart of a figure. In the page it fills its place, from `narrowest` to `widest` pixels; in files: `width`.

    wide: whether it has a row of the figure to itself. printed_height: at most, in parts of its width; 0: any.
    """

    chart: Spec
    title: str
    width: int
    narrowest: int = 260
    widest: int = 2000
    wide: bool = False
    printed_height: float = 0.0

    def specification(self) -> Spec:
        """The Vega-Lite specification for the page."""
        fit = {"width": "container", "autosize": {"type": "fit-x", "contains": "padding"}}
        return specification(SCHEMA | self.chart | fit)


def sentence_of(words: str) -> str:
    """Words as a sentence, with a capital letter (λ stays λ) and its full stop."""
    first = words[0].upper() if words[0].isascii() else words[0]
    return f"{first}{words[1:]}{'' if words.endswith('.') else '.'}"


@dataclass(frozen=True)
class Figure:
    """Panels under one title. `note` explains the marks in the picture files, `facts` are numbers for the caption, `made`
    says of which model and text they are (`captions.py`)."""

    name: str
    title: str
    note: str
    panels: list[Panel]
    columns: int = 1
    facts: str = ""
    made: str = ""

    @property
    def caption(self) -> str:
        """What a paper has below the figure."""
        titles = [panel.title for panel in self.panels if panel.title]
        panels = f"Panels: {'; '.join(titles)}" if len(self.panels) > 1 else ""
        sentences = [self.title, panels, self.note.replace(" · ", "; "), self.facts, self.made]
        return " ".join(sentence_of(one) for one in sentences if one)

    @property
    def narrow(self) -> bool:
        """Whether the chart is so narrow that its caption has room to its right."""
        return len(self.panels) == 1 and self.panels[0].widest <= 640

    def specification(self) -> Spec:
        """All panels in one Vega-Lite specification, for the files."""
        parts = []
        for panel in self.panels:
            title = {"title": panel.title} if len(self.panels) > 1 else {}
            parts.append(panel.chart | {"width": panel.width} | title)
        # Panels of unequal width have nothing in common but their heads: each keeps its own legend.
        colours = "independent" if any(panel.wide for panel in self.panels) else "shared"
        together = {
            "concat": parts,
            "columns": self.columns,
            "resolve": {"scale": {"color": colours, "strokeDash": "independent"}},
            "title": {"text": self.title, "subtitle": self.note, "fontSize": 16, "offset": 16},
            "padding": 16,
        }
        return specification(SCHEMA | together)

    def printed(self, width: float, palette: Palette, columns: int) -> str:
        """The figure as SVG `width` points wide, without title and note: a paper has captions."""
        import vl_convert  # of the extra `report`

        config = vega_config(palette)
        pixels = width / PRINTED
        room = (pixels - 110 * columns) / columns
        svg = ""
        # Vega decides how much room the axes take: the panels get what is left.
        for _ in range(MOST_TRIES):
            chart = self.specification()
            del chart["title"]
            chart |= {"columns": columns, "padding": 2}
            for part, panel in zip(chart["concat"], self.panels, strict=True):
                part["width"] = room
                if panel.printed_height:
                    part["height"] = min(part["height"], panel.printed_height * room)
            svg = vl_convert.vegalite_to_svg(chart, vl_version=VEGA_LITE, config=config)
            found = SVG_WIDTH.search(svg)
            left = pixels - float(found[1]) if found else 0.0
            if abs(left) < 1:
                break
            room = max(60.0, room + left / columns)
        return SVG_SIZE.sub(
            lambda size: (
                f'{size[1]} width="{PRINTED * float(size[2]):g}" height="{PRINTED * float(size[3]):g}"'
            ),
            svg,
            count=1,
        )

    def files(self) -> dict[str, str | bytes]:
        """What `NAME.svg` and `NAME.png` hold, by these names."""
        import vl_convert  # of the extra `report`

        config = vega_config(LIGHT)
        svg = vl_convert.vegalite_to_svg(self.specification(), vl_version=VEGA_LITE, config=config)
        # Made from the SVG, so Vega lays the chart out once for both files.
        png = vl_convert.svg_to_png(svg, scale=SHARPNESS)
        return {f"{self.name}.svg": svg, f"{self.name}.png": png}


class HeadChart:
    """The chart of one kind of heads of a HeadGrid: layers × heads. Sections choose its marks; its sizes are the same
    everywhere. more: rows of further cells, in columns behind the last head. attention: of each layer, as
    `RunContents.attention` has it.
    """

    def __init__(
        self,
        grid: HeadGrid,
        kind: str,
        more: Sequence[Mapping[str, Any]] = (),
        attention: Sequence[str] = (),
    ) -> None:
        heads = grid.cells(kind)
        self.heads = pd.DataFrame(heads)
        self.cells = [*heads, *more]
        self.columns = int(self.heads["column"].max()) + 1
        self.fits_words = self.columns <= MOST_HEADS_WITH_WORDS
        self.width = max(cell["column"] for cell in self.cells) + 1
        # An ordinal axis leaves out a column without cells, such as the gap before further cells.
        domain: Spec = {"domain": [*range(self.width)]} if more else {}
        if grid.columns:  # in another order than that of their numbers
            # Columns are ranks here: a label would be read as the number of a head.
            domain |= {"labels": False, "titlePadding": 2}
            self.x = axis("column:O", None, orient="top", **domain)
        else:
            self.x = axis("column:O", "head", orient="top", labelAngle=0, **domain)
        self.y = layer_axis(attention)
        self.named = ATTENTION_NAME if attention else 0

    def squares(self, colours: Spec | None, tip: list[Spec], where: str = "", **look: Any) -> Spec:
        """A square for every head, or those of a test."""
        opacity = look.pop("opacity", None)
        look = {"cornerRadius": 3, **look}
        shared: Spec = {"x": self.x, "y": self.y, "color": colours, "tooltip": tip}
        return mark("rect", self.cells, look, where, opacity=opacity, **shared)

    def texts(
        self,
        tip: list[Spec],
        dark: str,
        lines: Sequence[tuple[str, str, int]],
        there: str = "on-high",
    ) -> list[Spec]:
        """Words in the cells, where there is room. dark: a test for cells on which text must be pale. lines: for each
        line its column, what its style begins with, and its pixels below the middle. there: what it ends with where the
        test holds.
        """
        if not self.fits_words:
            return []
        marks = []
        for test, style in ((f"!({dark})", "on-low"), (dark, there)):
            for column, start, down in lines:
                words = text(
                    self.cells, column, f"{start}{style}", self.x, self.y, test, tip, dy=down
                )
                marks.append(words)
        return marks

    def panel(
        self,
        marks: Sequence[Spec],
        title: str,
        description: str,
        *,
        row: int = 44,
        narrow: int = 31,
        usual: int = 48,
        wide: int = 92,
        beyond: int = 0,
        alone: bool = False,
    ) -> Panel:
        """The marks as a panel. row: pixels of a layer; narrow, usual, wide: the fewest pixels of a head, those in files,
        and the most; beyond: pixels for what stands to the right of the heads; alone: whether it has a row of the figure
        to itself.
        """
        if not self.fits_words:
            row, narrow, usual, wide = 22, 9, 20, 36
        height = row * self.heads["layer"].nunique()
        chart = layered(marks, height, description, color="independent")
        edges = 70 + beyond + self.named
        return Panel(
            chart,
            title,
            width=self.width * usual,
            narrowest=edges + self.width * narrow,
            widest=edges + 20 + self.width * wide,
            wide=alone,
        )
