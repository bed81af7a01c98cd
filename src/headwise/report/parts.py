"""What sections are made of: figures of one or more panels, tables, and the declaration of a section itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import altair as alt
import vl_convert

from headwise.heads import write_bytes, write_text
from headwise.report.theme import LIGHT, vega_config

VEGA_LITE = ".".join(alt.SCHEMA_VERSION.split(".")[:2])
SHARPNESS = 2
FIT = alt.AutoSizeParams(type="fit-x", contains="padding")


@dataclass(frozen=True)
class Section:
    """A section of a page: its anchor, its name in the menu, its heading, and the function that collects its content.

    `build` takes a Run (or a Grid) and returns what the template `sections/NAME.html.j2` needs; None leaves it out.
    """

    name: str
    menu: str
    title: str
    build: Callable[[Any], dict[str, Any] | None]


@dataclass(frozen=True)
class Panel:
    """One chart of a figure. In the page it fills its place, from `narrowest` to `widest` pixels; in files: `width`."""

    chart: Any
    title: str
    width: int
    narrowest: int = 260
    widest: int = 2000

    def specification(self) -> dict[str, Any]:
        """The Vega-Lite specification for the page."""
        found: dict[str, Any] = self.chart.properties(width="container", autosize=FIT).to_dict()
        return found


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
    def beside(self) -> bool:
        """Whether the chart is so narrow that its caption has room beside it."""
        return len(self.panels) == 1 and self.panels[0].widest <= 640

    def specification(self) -> dict[str, Any]:
        """All panels in one Vega-Lite specification, for the files."""
        titled = len(self.panels) > 1
        charts = [p.chart.properties(width=p.width, **({"title": p.title} if titled else {})) for p in self.panels]
        title = alt.Title(self.title, subtitle=self.note, fontSize=16, offset=16)
        together = alt.concat(*charts, columns=self.columns).resolve_scale(color="shared", strokeDash="independent")
        found: dict[str, Any] = together.properties(title=title, padding=16).to_dict()
        return found

    def save(self, folder: Path) -> None:
        """Write `NAME.png` and `NAME.svg`, each either whole or not at all."""
        config = vega_config(LIGHT)
        svg = vl_convert.vegalite_to_svg(self.specification(), vl_version=VEGA_LITE, config=config)
        write_text(folder / f"{self.name}.svg", svg)
        write_bytes(folder / f"{self.name}.png", vl_convert.svg_to_png(svg, scale=SHARPNESS))


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
    rows: list[Row] = field(default_factory=list)

    def without_empty(self, empty: str) -> Table:
        """Without the columns in which no row has more than `empty`; the first stays."""
        used = [i for i, _ in enumerate(self.columns) if not i or any(row.cells[i] != empty for row in self.rows)]
        rows = [Row([row.cells[i] for i in used], row.badge, row.code) for row in self.rows]
        return Table(self.label, [self.columns[i] for i in used], rows)


def figures_in(content: Any) -> list[Figure]:
    """Every figure in a section's content, in lists and mappings too."""
    if isinstance(content, Figure):
        return [content]
    inside = content.values() if isinstance(content, dict) else content if isinstance(content, list | tuple) else ()
    return [figure for part in inside for figure in figures_in(part)]
