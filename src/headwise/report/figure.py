"""A figure of the report: charts declared once, shown in the page and written as PNG and SVG files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import altair as alt
import vl_convert

from headwise.heads import write_bytes, write_text
from headwise.report.theme import LIGHT, vega_config

Rows = Sequence[Mapping[str, Any]]
VEGA_LITE = ".".join(alt.SCHEMA_VERSION.split(".")[:2])
SHARPNESS = 2
FIT = alt.AutoSizeParams(type="fit-x", contains="padding")


@dataclass(frozen=True)
class Panel:
    """One chart of a figure.

    In the page it is as wide as its place, between `narrowest` and `widest` pixels; in the files it has `width`.
    """

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
    """Some panels under one title. `note` says what the marks mean (in files), `caption` how to read them (page)."""

    name: str
    title: str
    note: str
    caption: str
    panels: list[Panel]
    columns: int = 1

    @property
    def beside(self) -> bool:
        """Whether the chart is so narrow that its caption has room beside it."""
        return len(self.panels) == 1 and self.panels[0].widest <= 640

    def specification(self) -> dict[str, Any]:
        """All panels in one Vega-Lite specification, for the files."""
        charts = [
            p.chart.properties(width=p.width, **({"title": p.title} if len(self.panels) > 1 else {}))
            for p in self.panels
        ]
        title = alt.Title(self.title, subtitle=self.note, fontSize=16, offset=16)
        together = alt.concat(*charts, columns=self.columns).resolve_scale(color="shared", strokeDash="independent")
        found: dict[str, Any] = together.properties(title=title, padding=16).to_dict()
        return found

    def save(self, folder: Path) -> None:
        """Write `NAME.png` and `NAME.svg`, each either whole or not at all."""
        specification, config = self.specification(), vega_config(LIGHT)
        svg = vl_convert.vegalite_to_svg(specification, vl_version=VEGA_LITE, config=config)
        png = vl_convert.svg_to_png(svg, scale=SHARPNESS)
        write_text(folder / f"{self.name}.svg", svg)
        write_bytes(folder / f"{self.name}.png", png)


def rows(values: Rows) -> Any:
    """Data for a chart, one mapping a mark, kept in the specification itself."""
    return alt.InlineData(values=list(values))


def layer_title(kind: str, layer: int, many_kinds: bool) -> str:
    """`layer 2`, with its kind where a run has more than one."""
    return f"{kind} layer {layer}" if many_kinds else f"layer {layer}"
