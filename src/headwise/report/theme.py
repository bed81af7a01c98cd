"""The colours of the report, light and dark: one palette for the page's CSS and for the charts.

Charts name no colour of their own. They use the named ranges (`category`, `heatmap`, `ordinal`) and the mark styles
below, so the same specification is drawn on light and on dark paper. Sequential scales run from the paper's lightness
to the ink's, so that more is always further from the paper, in grey as well: readable without colour vision.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, 'Liberation Sans', sans-serif"


@dataclass(frozen=True)
class Palette:
    """Colours by use. categories: for charts with many categories, such as roles."""

    paper: str
    card: str
    ink: str
    muted: str
    line: str
    accent: str
    second: str
    quiet: str
    changed: str
    heat: tuple[str, ...]
    layers: tuple[str, ...]
    categories: tuple[str, ...]
    on_low: str
    on_high: str
    dark: bool


LIGHT = Palette(
    paper="#fcfcfa",
    card="#ffffff",
    ink="#1c2127",
    muted="#5c6670",
    line="#dfe3e6",
    accent="#0a5c9e",
    second="#b3560b",
    quiet="#8d979f",
    changed="#ffe3c2",
    heat=("#f1f5ea", "#c5e3c8", "#70bdbe", "#2178a6", "#175389", "#132f61"),
    layers=("#d9eaef", "#a3cedb", "#62a8c4", "#2b74a3", "#1a4478", "#111f45"),
    categories=("#1f7a4d", "#7a3fa0", "#0f7478", "#3b62c9", "#8a5a44", "#b0306a", "#6b6a12"),
    on_low="#1c2127",
    on_high="#ffffff",
    dark=False,
)
DARK = Palette(
    paper="#12161b",
    card="#191f26",
    ink="#e7eaed",
    muted="#9aa5b0",
    line="#2c343d",
    accent="#6db6f2",
    second="#f0a35e",
    quiet="#74808b",
    changed="#5b3a14",
    heat=("#232f3a", "#1f4565", "#1f6283", "#329498", "#86cba0", "#eef4bd"),
    layers=("#223b53", "#25547a", "#2c7196", "#4f9fb1", "#96cec0", "#e2f0d0"),
    categories=("#7ccf9a", "#c79bf0", "#5fd0cf", "#9db4ff", "#d0a58d", "#f08fb4", "#d3cf6a"),
    on_low="#e7eaed",
    on_high="#12161b",
    dark=True,
)


def vega_config(palette: Palette) -> dict[str, Any]:
    """The Vega-Lite configuration of a palette: every colour and font that a chart may use."""
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
        "axis": _axis(palette),
        "axisBand": {"grid": False, "ticks": False, "domain": False},
        "legend": {
            "labelColor": palette.muted,
            "titleColor": palette.muted,
            "titleFontWeight": "normal",
            "labelFontSize": 12,
            "titleFontSize": 12,
            "gradientStrokeColor": palette.line,
            "gradientThickness": 10,
            "symbolBaseFillColor": palette.muted,
            "layout": {"bottom": {"direction": "vertical", "anchor": "start"}},
        },
        "title": {
            "color": palette.ink,
            "subtitleColor": palette.muted,
            "anchor": "start",
            "fontSize": 13,
            "subtitleFontSize": 12,
            "fontWeight": 600,
            "subtitlePadding": 6,
            "offset": 10,
        },
        "style": _styles(palette),
    }


def _axis(palette: Palette) -> dict[str, Any]:
    """Quiet axes: labels to read, few lines."""
    return {
        "labelColor": palette.muted,
        "titleColor": palette.muted,
        "titleFontWeight": "normal",
        "labelFontSize": 12,
        "titleFontSize": 12,
        "titlePadding": 8,
        "labelPadding": 6,
        "gridColor": palette.line,
        "domainColor": palette.line,
        "tickColor": palette.line,
        "tickSize": 4,
    }


def _styles(palette: Palette) -> dict[str, Any]:
    """The mark styles that charts name instead of colours."""
    return {
        "label": {"color": palette.muted, "fontSize": 12},
        "label-strong": {"color": palette.ink, "fontSize": 12, "fontWeight": 600},
        "on-low": {"color": palette.on_low, "fontSize": 13},
        "on-high": {"color": palette.on_high, "fontSize": 13},
        "small-on-low": {"color": palette.on_low, "fontSize": 10, "opacity": 0.8},
        "small-on-high": {"color": palette.on_high, "fontSize": 10, "opacity": 0.85},
        "whisker": {"color": palette.accent, "strokeWidth": 2},
        "path": {"color": palette.accent, "strokeWidth": 1.5, "opacity": 0.45},
        "point": {"color": palette.accent, "stroke": palette.card, "strokeWidth": 1.5},
        "ring": {"color": palette.second, "strokeWidth": 2.5},
        "level": {"color": palette.muted, "strokeWidth": 1.5},
        "limit": {"color": palette.second, "strokeWidth": 1.5, "strokeDash": [5, 4]},
        "limit-label": {"color": palette.second, "fontSize": 12},
    }
