"""Draw docs/images/relevance.png: every head's share of its layer's relevance by four rules, beside exact ablation.

    PYTHONPATH=src python tools/relevance_figure.py

Firefox's English-Portuguese model on its own translations of examples/pud.en.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import vl_convert

import headwise as hw
from headwise.core.theme import LIGHT

ROOT = Path(__file__).parents[1]
MEASURES = {
    "lrp.ding.pooled": "ding",
    "lrp.alpha-beta.pooled": "alpha-beta",
    "lrp.attnlrp.pooled": "attnlrp",
    "lrp.cp.pooled": "cp",
    "ablation.zero": "loss without the head",
}


def main() -> None:
    scores = hw.score(
        hw.load("firefox/en-pt"), hw.Text.read(ROOT / "examples" / "pud.en"), list(MEASURES)
    )
    table = scores.table[scores.table["measure"].isin(MEASURES)].copy()
    table["layer"] = (
        table["kind"].replace("encoder-self", "encoder") + " " + table["layer"].astype(str)
    )
    order = table["layer"].drop_duplicates().tolist()
    panels = []
    for measure, title in MEASURES.items():
        rows = table[table["measure"] == measure]
        share = measure.startswith("lrp")
        ink = {
            "field": "value",
            "type": "quantitative",
            "title": "share of the layer" if share else "nats per token",
            "scale": {
                "range": LIGHT["heatmap"].split(),
                "domain": [0, 0.4] if share else [0, 3],
                "clamp": True,
            },
            "legend": {"orient": "bottom", "gradientLength": 130, "tickCount": 3},
        }
        layer: dict[str, Any] = {"field": "layer", "type": "ordinal", "sort": order, "title": None}
        layer["axis"] = {} if measure == next(iter(MEASURES)) else None
        panels.append(
            {
                "title": title,
                "width": 150,
                "height": 150,
                "data": {"values": rows[["layer", "head", "value"]].to_dict("records")},
                "mark": "rect",
                "encoding": {
                    "x": {"field": "head", "type": "ordinal", "axis": {"labelAngle": 0}},
                    "y": layer,
                    "color": ink,
                },
            }
        )
    specification = {
        "$schema": "https://vega.github.io/schema/vega-lite/v6.4.json",
        "background": "white",
        "hconcat": panels,
        "resolve": {"scale": {"color": "independent"}},
        "config": {
            "font": "DejaVu Sans",
            "axis": {"domain": False, "ticks": False},
            "scale": {"rectBandPaddingInner": 0.06},
            "view": {"stroke": None},
        },
    }
    picture = vl_convert.vegalite_to_png(specification, vl_version="v6.4", scale=2)
    (ROOT / "docs" / "images" / "relevance.png").write_bytes(picture)
    print(
        table.sort_values("value").groupby("measure").tail(3)[["measure", "layer", "head", "value"]]
    )


if __name__ == "__main__":
    main()
