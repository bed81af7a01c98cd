"""Draw curve.png in a folder of results: BLEU against the number of heads kept, from its curve.csv.

    python tools/curve_figure.py docs/results/firefox/en-pt

Columns of curve.csv: how much text, how many epochs, seed, heads kept and how they were chosen (gates, random, or all), the
rate at which the weights trained afterwards (0: they stayed), BLEU with its interval, and the same for the difference to
the untouched model.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pandas as pd
import vl_convert

COLOURS = {"gates, more text": "#1f5fbf", "gates": "#6fa8dc", "random heads": "#d9822b"}


def points(folder: Path) -> pd.DataFrame:
    """What is drawn: a row for each pruned model, on test."""
    table = pd.read_csv(folder / "curve.csv")
    table = table[(table.split == "test") & (table.heads != "all")].copy()
    table["chosen"] = table.heads.map({"gates": "gates", "random": "random heads"})
    more = table.sentences > table.sentences.min()
    table.loc[more & (table.heads == "gates"), "chosen"] = "gates, more text"
    return table


def specification(table: pd.DataFrame) -> dict[str, Any]:
    """Every model as a point with its interval, and lines through the means over seeds."""
    colour = {
        "field": "chosen",
        "type": "nominal",
        "title": None,
        "scale": {"domain": list(COLOURS), "range": list(COLOURS.values())},
        "legend": {"orient": "bottom"},
    }
    kept = {
        "field": "kept",
        "type": "quantitative",
        "title": "encoder heads kept, of 48",
        "scale": {"reverse": True, "domain": [0, 48]},
    }
    difference = {
        "field": "difference",
        "type": "quantitative",
        "title": "BLEU, to the untouched model",
    }
    encoding = {"x": kept, "y": difference, "color": colour}
    ends = {"y": {**difference, "field": "difference_low"}, "y2": {"field": "difference_high"}}
    means = {**encoding, "y": {**difference, "aggregate": "mean"}}
    return {
        "$schema": "https://vega.github.io/schema/vega-lite/v6.4.json",
        "background": "white",
        "width": 520,
        "height": 300,
        "data": {"values": json.loads(table.to_json(orient="records"))},
        "layer": [
            {"mark": {"type": "rule", "opacity": 0.5}, "encoding": {**encoding, **ends}},
            {"mark": {"type": "point", "filled": True, "size": 35}, "encoding": encoding},
            {"mark": {"type": "line"}, "encoding": means},
        ],
    }


def main() -> None:
    folder = Path(sys.argv[1])
    picture = vl_convert.vegalite_to_png(specification(points(folder)), vl_version="v6.4", scale=2)
    (folder / "curve.png").write_bytes(picture)


if __name__ == "__main__":
    main()
