"""Draw docs/results/gemma-3-270m/heads.png: 18 layers × 4 heads, with what each head costs and what it does.

    python tools/gemma_figure.py

All numbers stand in the tables of docs/results/gemma-3-270m.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import vl_convert

FOLDER = Path(__file__).resolve().parent.parent / "docs" / "results" / "gemma-3-270m"
KEY = ["layer", "head"]
SCORE = "ablation.zero"
SINK = "sink"
SHOWN = 2  # roles in a cell
FURTHEST = 0.15  # nats a token at the ends of the colours


def cells() -> pd.DataFrame:
    """A row for each head: its layer's name, the loss without it, whether that is sure, and its roles."""
    scores = pd.read_csv(FOLDER / "heads.csv")
    scores = scores[scores.measure == SCORE]
    labels = pd.read_csv(FOLDER / "labels.csv")[[*KEY, "attention"]]
    table = scores.merge(labels, on=KEY)
    table["row"] = table.attention + " · " + table.layer.astype(str)
    table["sure"] = (table.low > 0) | (table.high < 0)
    roles = role_words()
    table["roles"] = [roles.get(key, "") for key in zip(table.layer, table["head"], strict=True)]
    table["text"] = [f"{value:+.2f}".replace("-", "−") for value in table.value]
    return table[[*KEY, "row", "value", "sure", "text", "roles"]]


def role_words() -> dict[Any, str]:
    """The clearest roles of each head, those with ✓ first, and `sink` where it has no other."""
    roles = pd.read_csv(FOLDER / "roles.csv")
    causal = pd.read_csv(FOLDER / "causal.csv")
    confirmed = causal.loc[causal.confirmed, [*KEY, "measure"]].assign(mark=" ✓")
    roles = roles.merge(confirmed, how="left", on=[*KEY, "measure"]).fillna({"mark": ""})
    roles = roles.sort_values(["mark", "value"], ascending=False)
    words: dict[Any, str] = {}
    for (layer, head), of_head in roles.groupby(KEY, sort=False):
        others = of_head[of_head.role != SINK]
        shown = (others if len(others) else of_head).head(SHOWN)
        words[layer, head] = ", ".join(shown.role + shown.mark)
    return words


def text_layer(field: str, below: int, size: int, weight: str, where: str) -> dict[str, Any]:
    """A line of text in some cells, so many pixels below their middle."""
    mark = {"type": "text", "dy": below, "fontSize": size, "fontWeight": weight, "color": "#1c2430"}
    encoding = {"text": {"field": field}}
    return {"mark": mark, "encoding": encoding, "transform": [{"filter": where}]}


def main() -> None:
    table = cells()
    order = table.drop_duplicates("layer").sort_values("layer").row.tolist()
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
            "title": "loss without the head, nats a token",
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
        "width": 840,
        "height": 18 * 36,
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
    (FOLDER / "heads.png").write_bytes(picture)


if __name__ == "__main__":
    main()
