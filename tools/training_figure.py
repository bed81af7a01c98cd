"""Draw what the encoder heads of a model become while it trains.

    python tools/training_figure.py docs/results/six-layers/longer/heads.csv docs/results/six-layers/longer/heads.png

The table is the heads.csv of examples/heads_in_training.py: a line for each head, coloured by its layer.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import pandas as pd
import vl_convert

PANELS = {
    "positional": "Strongest attention at one offset (−3 to 3, not 0)",
    "syntactic": "Best dependency, above its baseline",
    "confidence": "Confidence",
}
BARS = {
    "positional": 0.9,
    "syntactic": 0.1,
}  # what Voita et al. 2019 (sections 5.1, 5.2) ask of a head


def best_of_heads(table: pd.DataFrame, panel: str) -> pd.DataFrame:
    """The best value of every head at every record. A head that attends to the token itself is not positional."""
    rows = table[(table["class"] == panel) & (table["name"] != "positional.0")]
    best = rows.groupby(["step", "layer", "head"])["value"].max().reset_index()
    best["address"] = best["layer"].astype(str) + "/" + best["head"].astype(str)
    return best


def chart(table: pd.DataFrame, panel: str) -> dict[str, Any]:
    records = json.loads(best_of_heads(table, panel).to_json(orient="records"))
    step = {"field": "step", "type": "quantitative", "title": "updates"}
    value = {"field": "value", "type": "quantitative", "title": None}
    layer = {"field": "layer", "type": "ordinal", "scale": {"scheme": "viridis"}}
    layers = [
        {
            "data": {"values": records},
            "mark": {"type": "line", "strokeWidth": 1.5},
            "encoding": {
                "x": step,
                "y": value,
                "color": layer | {"title": "layer"},
                "detail": {"field": "address"},
            },
        }
    ]
    if panel in BARS:
        layers.append(
            {
                "data": {"values": [{"value": BARS[panel]}]},
                "mark": {"type": "rule", "strokeDash": [4, 3], "color": "#707070"},
                "encoding": {"y": value},
            }
        )
    return {"title": PANELS[panel], "width": 300, "height": 240, "layer": layers}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("table", type=Path)
    parser.add_argument("picture", type=Path)
    given = parser.parse_args()
    table = pd.read_csv(given.table)
    specification = {
        "$schema": "https://vega.github.io/schema/vega-lite/v6.4.json",
        "background": "white",
        "hconcat": [chart(table, panel) for panel in PANELS],
    }
    picture = vl_convert.vegalite_to_png(specification, vl_version="v6.4", scale=1.5)
    given.picture.write_bytes(picture)


if __name__ == "__main__":
    main()
