"""Draw curve.png in a folder of results: BLEU against the number of heads kept, a panel for each model.

    python tools/curve_figure.py docs/results/firefox
    python tools/curve_figure.py docs/results/repair

Reads curve.csv in the folders of the models, as tools/last_head.py writes it; or MODEL-dev.csv, as tools/repair_curve.py
does. Points below LEAST are left out.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pandas as pd
import vl_convert

COLOURS = {"gradient's order": "#1f5fbf", "gates": "#4f9d4f", "random heads": "#d9822b"}
REPAIRED = {
    "cut": "#8a8a8a",
    "repaired": "#1f5fbf",
    "repaired, then trained": "#4f9d4f",
    "random heads, repaired": "#d9822b",
}
LEAST = -22.0


def repaired_points(folder: Path) -> pd.DataFrame:
    """What is drawn of repaired models: a row for each."""
    tables = [
        pd.read_csv(file)
        .rename(columns={"model": "order"})
        .assign(model=file.name.removesuffix("-dev.csv"))
        for file in sorted(folder.glob("*-dev.csv"))
    ]
    drawn = pd.concat(tables).rename(
        columns={"change": "difference", "low": "difference_low", "high": "difference_high"}
    )
    drawn["order"] = drawn.order.map(
        dict(zip(["cut", "repaired", "trained", "random"], REPAIRED, strict=True))
    )
    return drawn[(drawn.quality == "bleu") & (drawn.difference > LEAST)]


def points(folder: Path) -> pd.DataFrame:
    """What is drawn: a row for each pruned model, on test."""
    tables = []
    for file in sorted(folder.glob("*/curve.csv")):
        table = pd.read_csv(file)
        tables.append(table[(table.split == "test") & (table.chosen != "whole")].copy())
        tables[-1]["model"] = file.parent.name
    drawn = pd.concat(tables)
    drawn["order"] = drawn.chosen.str.split().str[0]
    names = dict(zip(["gradient", "gates", "random"], COLOURS, strict=True))
    drawn["order"] = drawn.order.map(names)
    return drawn


def specification(table: pd.DataFrame, colours: dict[str, str]) -> dict[str, Any]:
    """Every model as a point with its interval, and lines through the means over seeds."""
    colour = {
        "field": "order",
        "type": "nominal",
        "title": None,
        "scale": {"domain": list(colours), "range": list(colours.values())},
        "legend": {"orient": "bottom"},
    }
    counts = sorted({*table.kept})
    kept = {
        "field": "kept",
        "type": "quantitative",
        "title": "encoder heads kept, of 48",
        "scale": {"reverse": True, "domain": [max(0, counts[0] - 3), 28]},
        "axis": {"values": [int(count) for count in counts]},
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
        "data": {"values": json.loads(table.to_json(orient="records"))},
        "facet": {"column": {"field": "model", "title": None}},
        "spec": {
            "width": 300,
            "height": 260,
            "layer": [
                {"mark": {"type": "rule", "opacity": 0.5}, "encoding": {**encoding, **ends}},
                {"mark": {"type": "point", "filled": True, "size": 35}, "encoding": encoding},
                {"mark": {"type": "line"}, "encoding": means},
            ],
        },
    }


def main() -> None:
    folder = Path(sys.argv[1])
    if [*folder.glob("*-dev.csv")]:
        drawn = specification(repaired_points(folder), REPAIRED)
    else:
        drawn = specification(points(folder), COLOURS)
    picture = vl_convert.vegalite_to_png(drawn, vl_version="v6.4", scale=2)
    (folder / "curve.png").write_bytes(picture)


if __name__ == "__main__":
    main()
