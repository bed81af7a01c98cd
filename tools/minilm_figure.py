"""Draw the pictures of docs/results/minilm: what the 72 heads do, and what pruning costs.

    python tools/minilm_figure.py

All numbers stand in the tables of docs/results/minilm.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import vl_convert

FOLDER = Path(__file__).resolve().parent.parent / "docs" / "results" / "minilm"
KEY = ["layer", "head"]
TREEBANKS = ("ewt", "gum", "pud")
SHOWN = 3  # roles in a cell
FEWEST = 2  # treebanks that a role is shown from
SINK = "sink"
LINES = {"dormancy": "#2f6f9f", "confidence": "#d0782f", "weight-norm": "#7d8590"}
RANDOM = "#b9b4aa"
BELOW = 18  # pixels from the middle of a cell to its third role


def cells() -> pd.DataFrame:
    """A row for each head: its dormancy, and its roles with the number of treebanks that have them."""
    scores = pd.read_csv(FOLDER / "heads.csv")
    table = scores[scores.measure == "dormancy"][[*KEY, "value"]].reset_index(drop=True)
    words = role_words()
    for place in range(SHOWN):
        texts = []
        for key in zip(table.layer, table["head"], strict=True):
            of_head = words.get(key, [])
            texts.append(of_head[place] if place < len(of_head) else "")
        table[f"role_{place}"] = texts
    return table


def role_words() -> dict[Any, list[str]]:
    """The roles of each head that most treebanks have, at least FEWEST, the clearest first."""
    tables = [pd.read_csv(FOLDER / f"roles-{name}.csv") for name in TREEBANKS]
    roles = pd.concat(tables).groupby([*KEY, "role"]).value.agg(["count", "mean"]).reset_index()
    roles = roles[roles["count"] >= FEWEST].sort_values(["count", "mean"], ascending=False)
    words: dict[Any, list[str]] = {}
    for (layer, head), of_head in roles.groupby(KEY, sort=False):
        shown = of_head.head(SHOWN)
        texts = []
        for role, count in zip(shown.role, shown["count"], strict=True):
            texts.append(f"{role} {count}")
        words[layer, head] = texts
    return words


def grid() -> dict[str, Any]:
    table = cells()
    ink = {
        "field": "value",
        "type": "quantitative",
        "scale": {
            "domain": [0, 1 / 12, 1 / 6],
            "range": ["#f4f4f1", "#cfe0ee", "#4f93c9"],
            "interpolate": "rgb",
        },
        "legend": {
            "title": "share of what the layer's attention adds (1/12 is average)",
            "orient": "bottom",
            "titleLimit": 0,
            "format": ".2f",
        },
    }
    layers: list[dict[str, Any]] = [
        {"mark": {"type": "rect", "cornerRadius": 3}, "encoding": {"color": ink}}
    ]
    for place in range(SHOWN):
        mark = {"type": "text", "fontSize": 10, "dy": BELOW * (place - 1), "color": "#1c2430"}
        layers.append({"mark": mark, "encoding": {"text": {"field": f"role_{place}"}}})
    return {
        "width": 1200,
        "height": 6 * 58,
        "data": {"values": table.to_dict("records")},
        "encoding": {
            "x": {
                "field": "head",
                "type": "ordinal",
                "axis": {"title": "head", "orient": "top", "labelAngle": 0},
            },
            "y": {
                "field": "layer",
                "type": "ordinal",
                "axis": {"title": "layer", "domain": False, "ticks": False},
            },
        },
        "layer": layers,
    }


def curves() -> dict[str, Any]:
    table = pd.read_csv(FOLDER / "pruning.csv")
    of_dev = (table.split == "dev") & (table.measure == "similarity") & table.reference.isna()
    table = table[of_dev].copy()
    table["order"] = table.setting.str.removeprefix("greedy-").str.replace(r"-\d+$", "", regex=True)
    table["sort"] = table.order.str.replace(r"\.\d$", "", regex=True)
    whole = table[table.setting == "full"]
    lines = table[table.setting != "full"]
    parts = [lines]
    for order, of_order in lines.groupby("order"):
        parts.append(whole.assign(order=order, sort=of_order.sort.iloc[0]))
    points = pd.concat(parts)[["order", "sort", "kept", "value", "low", "high"]]
    points = points.astype(object).where(points.notna(), None)
    colour = {
        "field": "sort",
        "type": "nominal",
        "scale": {"domain": [*LINES, "random"], "range": [*LINES.values(), RANDOM]},
        "legend": {"title": "order of removal"},
    }
    across = {
        "field": "kept",
        "type": "quantitative",
        "title": "heads left of 72",
        "scale": {"reverse": True, "domain": [0, 72]},
    }
    down = {
        "field": "value",
        "type": "quantitative",
        "title": "rank correlation with the whole model × 100",
        "scale": {"domain": [40, 100]},
    }
    shared = {"x": across, "color": colour, "detail": {"field": "order"}}
    return {
        "width": 620,
        "height": 300,
        "data": {"values": points.to_dict("records")},
        "layer": [
            {"mark": {"type": "line", "point": True}, "encoding": {**shared, "y": down}},
            {
                "mark": {"type": "rule"},
                "encoding": {
                    **shared,
                    "y": {**down, "field": "low"},
                    "y2": {"field": "high"},
                },
            },
        ],
    }


def draw(name: str, picture: dict[str, Any]) -> None:
    schema = "https://vega.github.io/schema/vega-lite/v6.4.json"
    config = {
        "font": "DejaVu Sans",
        "scale": {"rectBandPaddingInner": 0.04},
        "view": {"stroke": None},
    }
    specification = {"$schema": schema, "background": "white", **picture, "config": config}
    png = vl_convert.vegalite_to_png(specification, vl_version="v6.4", scale=1.2)
    (FOLDER / f"{name}.png").write_bytes(png)


def main() -> None:
    draw("heads", grid())
    draw("pruning", curves())


if __name__ == "__main__":
    main()
