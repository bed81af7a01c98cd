"""What sections are made of: figures of one or more panels, tables; and the table of all sections."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import vl_convert

from headwise.declarations import Declaration, Declarations
from headwise.files import below
from headwise.grid import HeadGrid
from headwise.heads import write_bytes, write_text
from headwise.report import charts
from headwise.report.format import NONE
from headwise.theme import LIGHT

VEGA_LITE = "v6.4"
SCHEMA = {"$schema": f"https://vega.github.io/schema/vega-lite/{VEGA_LITE}.json"}
SHARPNESS = 2


@dataclass(frozen=True, kw_only=True)
class Section(Declaration):
    """A section of a page, declared by `@section(NAME, …)` on the function that collects its content.

    The function takes a Run (a Grid, a Comparison) and returns what the template `templates/NAME.html.j2` needs; None
    leaves the section out. A section of another package or of a script has no template: its figures, tables and
    sentences are shown in their order.

    menu: its name in the page's menu. heading: without one, the template has its own. question: what it answers, for
    the documentation. page: the page it is on: `run`, `grid` or `comparison`. order: its place there. files: what it is
    made from, in the folder of the run. template: the template's name, where it is another's.
    """

    menu: str = ""
    heading: str = ""
    question: str
    page: str = "run"
    order: int
    files: tuple[str, ...] = ()
    template: str = ""


section = Declarations("section", Section, "headwise.report", "headwise.sections")


def sections_of(page: str) -> list[Section]:
    """The sections of a page in their order."""
    return sorted((one for one in section.values() if one.page == page), key=lambda one: one.order)


@dataclass(frozen=True)
class Panel:
    """One chart of a figure. In the page it fills its place, from `narrowest` to `widest` pixels; in files: `width`."""

    chart: charts.Spec
    title: str
    width: int
    narrowest: int = 260
    widest: int = 2000

    def specification(self) -> charts.Spec:
        """The Vega-Lite specification for the page."""
        fit = {"width": "container", "autosize": {"type": "fit-x", "contains": "padding"}}
        return charts.specification(SCHEMA | self.chart | fit)


@dataclass(frozen=True)
class Figure:
    """Panels under one title. `note` explains the marks in the picture files, `facts` are numbers for the caption."""

    name: str
    title: str
    note: str
    panels: list[Panel]
    columns: int = 1
    facts: str = ""

    @property
    def narrow(self) -> bool:
        """Whether the chart is so narrow that its caption has room to its right."""
        return len(self.panels) == 1 and self.panels[0].widest <= 640

    def specification(self) -> charts.Spec:
        """All panels in one Vega-Lite specification, for the files."""
        titled = len(self.panels) > 1
        parts = []
        for p in self.panels:
            parts.append(p.chart | {"width": p.width} | ({"title": p.title} if titled else {}))
        title = {"text": self.title, "subtitle": self.note, "fontSize": 16, "offset": 16}
        resolve = {"scale": {"color": "shared", "strokeDash": "independent"}}
        together = {
            "concat": parts,
            "columns": self.columns,
            "resolve": resolve,
            "title": title,
            "padding": 16,
        }
        return charts.specification(SCHEMA | together)

    def save(self, folder: Path) -> None:
        """Write `NAME.png` and `NAME.svg`, each either whole or not at all."""
        config = charts.vega_config(LIGHT)
        svg = vl_convert.vegalite_to_svg(self.specification(), vl_version=VEGA_LITE, config=config)
        write_text(below(folder, f"{self.name}.svg"), svg)
        write_bytes(below(folder, f"{self.name}.png"), vl_convert.svg_to_png(svg, scale=SHARPNESS))


class HeadChart:
    """The chart of one kind of heads of a HeadGrid: layers × heads. Sections choose its marks; its sizes are the same
    everywhere. more: rows of further cells, in columns behind the last head.
    """

    def __init__(self, grid: HeadGrid, kind: str, more: Sequence[Mapping[str, Any]] = ()) -> None:
        heads = grid.cells(kind)
        self.heads = pd.DataFrame(heads)
        self.cells = [*heads, *more]
        self.columns = int(self.heads["column"].max()) + 1
        self.room = self.columns <= charts.ROOM  # for words in cells
        self.width = max(cell["column"] for cell in self.cells) + 1
        domain: charts.Spec = {"domain": [*range(self.width)]} if more else {}
        if grid.columns:  # in another order than that of their numbers
            domain |= {"labels": False, "titlePadding": 2}
            self.x = charts.axis("column:O", None, orient="top", **domain)
        else:
            self.x = charts.axis("column:O", "head", orient="top", labelAngle=0, **domain)
        self.y = charts.axis("layer:O", "layer")

    def squares(
        self, ink: charts.Spec | None, tip: list[charts.Spec], where: str = "", **look: Any
    ) -> charts.Spec:
        """A square for every head, or those of a test."""
        opacity = look.pop("opacity", None)
        look = {"cornerRadius": 3, **look}
        shared: charts.Spec = {"x": self.x, "y": self.y, "color": ink, "tooltip": tip}
        return charts.mark("rect", self.cells, look, where, opacity=opacity, **shared)

    def texts(
        self,
        tip: list[charts.Spec],
        dark: str,
        lines: Sequence[tuple[str, str, int]],
    ) -> list[charts.Spec]:
        """Words in the cells, where there is room. dark: a test for cells on which text must be pale. lines: for each
        line its column, what its style begins with, and its pixels below the middle.
        """
        if not self.room:
            return []
        marks = []
        for test, style in ((f"!({dark})", "on-low"), (dark, "on-high")):
            for column, start, down in lines:
                words = charts.text(
                    self.cells, column, f"{start}{style}", self.x, self.y, test, tip, dy=down
                )
                marks.append(words)
        return marks

    def panel(
        self,
        marks: Sequence[charts.Spec],
        title: str,
        description: str,
        *,
        row: int = 44,
        narrow: int = 31,
        wide: int = 92,
        beyond: int = 0,
    ) -> Panel:
        """The marks as a panel. row: pixels of a layer; narrow, wide: the fewest and the most pixels of a head; beyond:
        pixels for what stands to the right of the heads.
        """
        usual = 48
        if not self.room:
            row = 22
            narrow = 9
            usual = 20
            wide = 36
        height = row * self.heads["layer"].nunique()
        chart = charts.layered(marks, height, description, color="independent")
        edges = 70 + beyond
        return Panel(
            chart,
            title,
            width=self.width * usual,
            narrowest=edges + self.width * narrow,
            widest=edges + 20 + self.width * wide,
        )


@dataclass(frozen=True)
class Row:
    """Cells of a table. Text after a line break is smaller. A `badge` marks the row; `code`: its name in files."""

    cells: list[str]
    badge: str = ""
    code: str = ""


@dataclass(frozen=True)
class Table:
    """Rows under their columns; `label` names the table for screen readers."""

    label: str
    columns: list[str]
    rows: list[Row]


Columns = dict[
    str, Callable[[Any], str]
]  # of a table: the title of each, and a function of what a row is about


def table(
    label: str,
    items: Iterable[Any],
    columns: Columns,
    badge: Callable[[Any], str] = lambda _: "",
    code: Callable[[Any], str] = lambda _: "",
) -> Table | None:
    """A row an item, a column a function of it: an empty text is an empty cell. Columns of empty cells are
    left out, but for the first; None without rows.
    """
    known = list(items)
    cells = {}
    for title, write in columns.items():
        cells[title] = [write(item) or NONE for item in known]
    used = [title for i, title in enumerate(cells) if not i or set(cells[title]) != {NONE}]
    rows = []
    for i, item in enumerate(known):
        rows.append(Row([cells[title][i] for title in used], badge(item), code(item)))
    return Table(label, used, rows) if rows else None


def chosen_badge(model: Mapping[str, Any] | None) -> str:
    """The badge of the row of a model."""
    return "chosen" if model is not None and model["chosen"] else ""


def figures_in(content: Any) -> list[Figure]:
    """Every figure in a section's content, in lists and mappings too."""
    if isinstance(content, Figure):
        return [content]
    inside = (
        content.values()
        if isinstance(content, dict)
        else content
        if isinstance(content, list | tuple)
        else ()
    )
    return [figure for part in inside for figure in figures_in(part)]
