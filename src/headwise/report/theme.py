"""The colours of the report, light and dark: one palette for the page's CSS and for the charts.

Charts name no colour of their own. They use the named ranges (`category`, `heatmap`, `ordinal`) and the mark styles
below, so the same specification is drawn on light and on dark paper. Sequential scales run from the paper's lightness
to the ink's: more is always further from the paper, readable without colour vision.
"""

from __future__ import annotations

from typing import Any

FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, 'Liberation Sans', sans-serif"
COLOURS = {  # on light paper, on dark paper
    "paper": ("#fcfcfa", "#12161b"),
    "card": ("#ffffff", "#191f26"),
    "ink": ("#1c2127", "#e7eaed"),
    "muted": ("#5c6670", "#9aa5b0"),
    "line": ("#dfe3e6", "#2c343d"),
    "accent": ("#0a5c9e", "#6db6f2"),
    "second": ("#b3560b", "#f0a35e"),
    "quiet": ("#8d979f", "#74808b"),
    "changed": ("#ffe3c2", "#5b3a14"),
    "on-low": ("#1c2127", "#e7eaed"),
    "on-high": ("#ffffff", "#12161b"),
    "picked": ("#d6006c", "#ff6bb5"),
}
SCALES = {  # two sequential scales, and what follows accent, quiet and second in charts with many categories
    "heatmap": (
        "#f1f5ea #c5e3c8 #70bdbe #2178a6 #175389 #132f61",
        "#232f3a #1f4565 #1f6283 #329498 #86cba0 #eef4bd",
    ),
    "layers": (
        "#d9eaef #a3cedb #62a8c4 #2b74a3 #1a4478 #111f45",
        "#223b53 #25547a #2c7196 #4f9fb1 #96cec0 #e2f0d0",
    ),
    "categories": (
        "#1f7a4d #7a3fa0 #0f7478 #3b62c9 #8a5a44 #b0306a #6b6a12 #4a5a8a #a3451f #2f6f2f #8b2f8b #7d5a00",
        "#7ccf9a #c79bf0 #5fd0cf #9db4ff #d0a58d #f08fb4 #d3cf6a #aab8e6 #f2a488 #a5d99a #e39be0 #e0b55c",
    ),
}
Palette = dict[str, str]
LIGHT, DARK = ({name: pair[paper] for name, pair in (COLOURS | SCALES).items()} for paper in (0, 1))


def vega_config(palette: Palette) -> dict[str, Any]:
    """The Vega-Lite configuration of a palette: every colour and font that a chart may use."""
    ink, muted, line, accent, second = (
        palette[name] for name in ("ink", "muted", "line", "accent", "second")
    )
    titles = {"titleColor": muted, "titleFontWeight": "normal", "titleFontSize": 12}
    labels: dict[str, Any] = {"labelColor": muted, "labelFontSize": 12, **titles}
    scales = {name: palette[name].split() for name in SCALES}
    return {
        "background": palette["card"],
        "font": FONT,
        "padding": 4,
        "mark": {"color": accent},
        "view": {"stroke": None},
        "scale": {"rectBandPaddingInner": 0.07},
        "range": {
            "category": [accent, palette["quiet"], second, *scales["categories"]],
            "heatmap": scales["heatmap"],
            "ordinal": {"scheme": scales["layers"]},
            "diverging": [second, palette["card"], accent],
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
            "small-on-low": {"color": palette["on-low"], "fontSize": 10, "opacity": 0.8},
            "small-on-high": {"color": palette["on-high"], "fontSize": 10, "opacity": 0.85},
            "point": {"color": accent, "stroke": palette["card"], "strokeWidth": 1.5},
            "framed": {"fillOpacity": 0, "stroke": ink, "strokeWidth": 1.5},
            "untrained": {"color": muted, "fillOpacity": 0.22},
            "ring": {"color": second, "strokeWidth": 2.5},
            "level": {"color": muted, "strokeWidth": 1.5},
            "limit": {"color": second, "strokeWidth": 1.5, "strokeDash": [5, 4]},
            "limit-label": {"color": second, "fontSize": 12},
        },
    }
