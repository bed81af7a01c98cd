"""Draw curve.png in a folder of results: BLEU against the number of heads kept, a panel for each model.

Of repaired models also text.png: BLEU against the time of their training, and the text.

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
TRAINED = "trained-40000"  # the text that all numbers of heads were trained on
# What models were trained on that are not named after it: the text that the repair was fitted on.
TEXTS = {"repaired": "no training", "trained": "8,000, twice"}


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
    drawn = drawn[(drawn.quality == "bleu") & (drawn.difference > LEAST)]
    ways = [*drawn.order]
    drawn["order"] = drawn.order.map(
        dict(zip(["cut", "repaired", TRAINED, "random"], REPAIRED, strict=True))
    )
    drawn["text"] = [text_of(way) for way in ways]
    return drawn


def text_of(way: str) -> str | None:
    """What a model was trained on after its repair, as the axis names it; None for other models."""
    if way in TEXTS:
        return TEXTS[way]
    before, _, sentences = way.partition("trained-")
    return f"{int(sentences):,}" if sentences and not before else None


def of_texts(table: pd.DataFrame) -> dict[str, Any]:
    """BLEU by the seconds of repair and training: a line for each number of heads, its points named after the text."""
    table = table[table.text.notna() & (table.seed.astype(str) == "1")].copy()
    repair = table[table.text == TEXTS["repaired"]].set_index("kept").seconds
    trained = table.text != TEXTS["repaired"]
    table.loc[trained, "seconds"] += table.kept[trained].map(repair)
    change = {"type": "quantitative", "title": "BLEU, to the untouched model"}
    encoding = {
        "x": {
            "field": "seconds",
            "type": "quantitative",
            "title": "processor seconds of repair and training",
            "scale": {"type": "log", "domain": [60, 2000]},
            "axis": {"values": [60, 100, 200, 500, 1000, 2000]},
        },
        "y": {**change, "field": "difference"},
        "color": {
            "field": "kept",
            "type": "nominal",
            "sort": "descending",
            "title": "encoder heads kept, of 48",
            "legend": {"orient": "bottom"},
        },
    }
    ends = {"y": {**change, "field": "difference_low"}, "y2": {"field": "difference_high"}}
    named = {"mark": {"type": "text", "align": "left", "dx": 6, "dy": 9}}
    return {
        "$schema": "https://vega.github.io/schema/vega-lite/v6.4.json",
        "background": "white",
        "data": {"values": json.loads(table.to_json(orient="records"))},
        "width": 460,
        "height": 260,
        "layer": [
            {"mark": {"type": "rule", "opacity": 0.5}, "encoding": {**encoding, **ends}},
            {"mark": {"type": "point", "filled": True, "size": 35}, "encoding": encoding},
            {"mark": {"type": "line", "opacity": 0.6}, "encoding": encoding},
            {**named, "encoding": {**encoding, "text": {"field": "text"}}},
        ],
    }


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


def draw(chart: dict[str, Any], file: Path) -> None:
    file.write_bytes(vl_convert.vegalite_to_png(chart, vl_version="v6.4", scale=2))


def main() -> None:
    folder = Path(sys.argv[1])
    if not [*folder.glob("*-dev.csv")]:
        draw(specification(points(folder), COLOURS), folder / "curve.png")
        return
    table = repaired_points(folder)
    draw(specification(table[table.order.notna()], REPAIRED), folder / "curve.png")
    draw(of_texts(table[table.model == "en-pt"]), folder / "text.png")


if __name__ == "__main__":
    main()
