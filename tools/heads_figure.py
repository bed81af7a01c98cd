"""Draw heads.png in a folder of results: all heads, with what each costs and what it does.

    python tools/heads_figure.py docs/results/gemma-3-270m

All numbers stand in the tables of that folder: heads.csv (with zero ablation), labels.csv, roles.csv, and causal.csv where
there is one.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pandas as pd
import vl_convert

KEY = ["kind", "layer", "head"]
SCORE = "ablation.zero"
SINK = "sink"
SHOWN = 2  # roles in a cell
FURTHEST = 0.15  # nats per token at the ends of the colours


def cells(folder: Path) -> pd.DataFrame:
    """A row for each head: its layer's name, the loss without it, whether that is sure, and its roles."""
    scores = pd.read_csv(folder / "heads.csv")
    table = scores[scores.measure == SCORE].copy()
    attention = table.kind
    if "attention" in (labels := pd.read_csv(folder / "labels.csv")):
        attention = table.merge(labels, on=KEY).attention.set_axis(table.index)
    table["row"] = attention + " · " + table.layer.astype(str)
    table["sure"] = (table.low > 0) | (table.high < 0)
    roles = role_words(folder)
    keys = zip(table.kind, table.layer, table["head"], strict=True)
    table["roles"] = [roles.get(key, "") for key in keys]
    table["text"] = [f"{value:+.2f}".replace("-", "−") for value in table.value]
    return table[[*KEY, "row", "value", "sure", "text", "roles"]]


def role_words(folder: Path) -> dict[Any, str]:
    """The clearest roles of each head, those with ✓ first, and `sink` where it has no other."""
    roles = pd.read_csv(folder / "roles.csv").assign(mark="")
    if (folder / "causal.csv").exists():
        causal = pd.read_csv(folder / "causal.csv")
        confirmed = causal.loc[causal.confirmed, [*KEY, "measure"]].assign(mark=" ✓")
        roles = roles.drop(columns="mark").merge(confirmed, how="left", on=[*KEY, "measure"])
        roles = roles.fillna({"mark": ""})
    roles = roles.sort_values(["mark", "value"], ascending=False)
    words: dict[Any, str] = {}
    for (kind, layer, head), of_head in roles.groupby(KEY, sort=False):
        others = of_head[of_head.role != SINK]
        shown = (others if len(others) else of_head).head(SHOWN)
        words[kind, layer, head] = ", ".join(shown.role + shown.mark)
    return words


def text_layer(field: str, below: int, size: int, weight: str, where: str) -> dict[str, Any]:
    """A line of text in some cells, so many pixels below their middle."""
    mark = {"type": "text", "dy": below, "fontSize": size, "fontWeight": weight, "color": "#1c2430"}
    encoding = {"text": {"field": field}}
    return {"mark": mark, "encoding": encoding, "transform": [{"filter": where}]}


def main() -> None:
    folder = Path(sys.argv[1])
    table = cells(folder)
    order = table.row.drop_duplicates().tolist()
    width = 840 if table["head"].max() < 4 else 1440
    across = {"title": "head", "orient": "top", "labelAngle": 0}
    down = {"title": None, "labelFontSize": 12, "domain": False, "ticks": False}
    ink = {
        "field": "value",
        "type": "quantitative",
        "scale": {
            "domain": [-FURTHEST, 0, FURTHEST],
            "range": ["#e08a4f", "#f4f4f1", "#4f93c9"],
            "clamp": True,
            "interpolate": "rgb",
        },
        "legend": {
            "title": "loss without the head, nats per token",
            "orient": "bottom",
            "titleLimit": 0,
        },
    }
    squares = {"mark": {"type": "rect", "cornerRadius": 3}, "encoding": {"color": ink}}
    layers = [
        squares,
        text_layer("text", -7, 12, "bold", "datum.sure"),
        text_layer("text", -7, 12, "normal", "!datum.sure"),
        text_layer("roles", 8, 11, "normal", "datum.roles != ''"),
    ]
    specification = {
        "$schema": "https://vega.github.io/schema/vega-lite/v6.4.json",
        "background": "white",
        "width": width,
        "height": len(order) * 36,
        "data": {"values": table.to_dict("records")},
        "encoding": {
            "x": {"field": "head", "type": "ordinal", "axis": across},
            "y": {"field": "row", "type": "ordinal", "sort": order, "axis": down},
        },
        "layer": layers,
        "config": {
            "font": "DejaVu Sans",
            "scale": {"rectBandPaddingInner": 0.04},
            "view": {"stroke": None},
        },
    }
    picture = vl_convert.vegalite_to_png(specification, vl_version="v6.4", scale=1.2)
    (folder / "heads.png").write_bytes(picture)


if __name__ == "__main__":
    main()
