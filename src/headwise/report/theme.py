"""The colours of the report, light and dark: one palette for the page's CSS and for the charts.

Charts name no colour of their own. They use the named ranges (`category`, `heatmap`, `ordinal`) and the mark styles
below, so the same specification is drawn on light and on dark paper. Sequential scales run from the paper's lightness
to the ink's: more is always further from the paper, readable without colour vision.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, 'Liberation Sans', sans-serif"


@dataclass(frozen=True)
class Palette:
    """Colours by use; the tuples are scales, or for charts with many categories."""

    dark: bool
    paper: str
    card: str
    ink: str
    muted: str
    line: str
    accent: str
    second: str
    quiet: str
    changed: str
    on_low: str
    on_high: str
    heat: tuple[str, ...]
    layers: tuple[str, ...]
    categories: tuple[str, ...]


LIGHT = Palette(
    False, "#fcfcfa", "#ffffff", "#1c2127", "#5c6670", "#dfe3e6", "#0a5c9e", "#b3560b", "#8d979f", "#ffe3c2",
    "#1c2127", "#ffffff",
    heat=("#f1f5ea", "#c5e3c8", "#70bdbe", "#2178a6", "#175389", "#132f61"),
    layers=("#d9eaef", "#a3cedb", "#62a8c4", "#2b74a3", "#1a4478", "#111f45"),
    categories=("#1f7a4d", "#7a3fa0", "#0f7478", "#3b62c9", "#8a5a44", "#b0306a", "#6b6a12"),
)  # fmt: skip
DARK = Palette(
    True, "#12161b", "#191f26", "#e7eaed", "#9aa5b0", "#2c343d", "#6db6f2", "#f0a35e", "#74808b", "#5b3a14",
    "#e7eaed", "#12161b",
    heat=("#232f3a", "#1f4565", "#1f6283", "#329498", "#86cba0", "#eef4bd"),
    layers=("#223b53", "#25547a", "#2c7196", "#4f9fb1", "#96cec0", "#e2f0d0"),
    categories=("#7ccf9a", "#c79bf0", "#5fd0cf", "#9db4ff", "#d0a58d", "#f08fb4", "#d3cf6a"),
)  # fmt: skip


def vega_config(palette: Palette) -> dict[str, Any]:
    """The Vega-Lite configuration of a palette: every colour and font that a chart may use."""
    labels: dict[str, Any] = {"labelColor": palette.muted, "titleColor": palette.muted, "titleFontWeight": "normal"}
    labels |= {"labelFontSize": 12, "titleFontSize": 12}
    lines = {f"{part}Color": palette.line for part in ("grid", "domain", "tick")}
    return {
        "background": palette.card,
        "font": FONT,
        "padding": 4,
        "mark": {"color": palette.accent},
        "view": {"stroke": None},
        "scale": {"rectBandPaddingInner": 0.07},
        "range": {
            "category": [palette.accent, palette.quiet, palette.second, *palette.categories],
            "heatmap": list(palette.heat),
            "ordinal": {"scheme": list(palette.layers)},
        },
        "axis": {**labels, **lines, "titlePadding": 8, "labelPadding": 6, "tickSize": 4},
        "axisBand": {"grid": False, "ticks": False, "domain": False},
        "legend": {
            **labels, "gradientStrokeColor": palette.line, "gradientThickness": 10,
            "symbolBaseFillColor": palette.muted, "layout": {"bottom": {"direction": "vertical", "anchor": "start"}},
        },
        "title": {
            "color": palette.ink, "subtitleColor": palette.muted, "anchor": "start", "fontSize": 13, "fontWeight": 600,
            "subtitleFontSize": 12, "subtitlePadding": 6, "offset": 10,
        },
        "style": {
            "label": {"color": palette.muted, "fontSize": 12},
            "label-strong": {"color": palette.ink, "fontSize": 12, "fontWeight": 600},
            "on-low": {"color": palette.on_low, "fontSize": 13},
            "on-high": {"color": palette.on_high, "fontSize": 13},
            "small-on-low": {"color": palette.on_low, "fontSize": 10, "opacity": 0.8},
            "small-on-high": {"color": palette.on_high, "fontSize": 10, "opacity": 0.85},
            "point": {"color": palette.accent, "stroke": palette.card, "strokeWidth": 1.5},
            "ring": {"color": palette.second, "strokeWidth": 2.5},
            "level": {"color": palette.muted, "strokeWidth": 1.5},
            "limit": {"color": palette.second, "strokeWidth": 1.5, "strokeDash": [5, 4]},
            "limit-label": {"color": palette.second, "fontSize": 12},
        },
    }  # fmt: skip
