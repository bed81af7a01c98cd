"""Draw docs/results/papers/bleu-by-share.png: BLEU against the share of heads kept, the paper's points and ours.

    python tools/papers_figure.py

The paper's points are those of the report, docs/results/papers/published.csv. Ours are read from the tables of the studies.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import vl_convert

RESULTS = Path(__file__).resolve().parent.parent / "docs" / "results"
ALL_KINDS = "encoder-self+decoder-self+cross"
TITLES = {"encoder-self": "Encoder heads", ALL_KINDS: "Heads of all kinds"}
COLOURS = {
    "Voita et al., OpenSubtitles English-Russian": "#b5b5b5",
    "Voita et al., WMT English-Russian": "#707070",
    "A: Multi30k, width 128": "#0b5aa0",
    "B: English-German, 6 + 2 layers": "#c4501b",
    "C: Multi30k, width 256": "#4f9d4f",
    "D: English-German, trained and pruned longer": "#8a4fa0",
}


@dataclass(frozen=True)
class Curve:
    """Points of one study: a table, the kinds of heads it prunes, and settings by the start of their names."""

    label: str
    table: str
    kinds: str
    settings: tuple[str, ...]


CURVES = (
    Curve(
        "A: Multi30k, width 128",
        "multi30k-en-de-grid/across.csv",
        "encoder-self",
        ("encoder.lambda",),
    ),
    Curve(
        "C: Multi30k, width 256",
        "multi30k-en-de/pruning.csv",
        "encoder-self",
        ("lambda",),
    ),
    Curve(
        "B: English-German, 6 + 2 layers",
        "six-layers/pruning.csv",
        "encoder-self",
        ("encoder.keep",),
    ),
    Curve(
        "D: English-German, trained and pruned longer",
        "six-layers/longer/pruning.csv",
        "encoder-self",
        ("encoder.lambda",),
    ),
    Curve(
        "A: Multi30k, width 128",
        "multi30k-en-de-grid/grid.csv",
        ALL_KINDS,
        ("all.lambda", "dense.keep-24"),
    ),
    Curve(
        "B: English-German, 6 + 2 layers",
        "six-layers/pruning.csv",
        ALL_KINDS,
        ("all.keep",),
    ),
)


def our_points(curve: Curve) -> pd.DataFrame:
    """Heads kept and BLEU difference to equal further training, or to the untouched model where that was not trained."""
    table = pd.read_csv(RESULTS / curve.table)
    of_curve = table[
        (table.kinds == curve.kinds)
        & (table.method == "gates")
        & table.setting.str.startswith(curve.settings)
    ]
    tested = of_curve[of_curve.split == "test"]
    rows = tested[tested.reference == "fine-tuned"]
    if rows.empty:
        rows = tested[tested.reference == "full"]
    columns = rows[["kinds", "kept", "total", "value", "low", "high"]]
    return columns.assign(source=curve.label)


def published_points() -> pd.DataFrame:
    table = pd.read_csv(RESULTS / "papers" / "published.csv")
    return pd.DataFrame(
        {
            "kinds": table.kinds,
            "kept": table.kept,
            "total": table.total,
            "value": table.change,
            "source": "Voita et al., " + table.data,
        }
    )


def panel(points: pd.DataFrame, kinds: str) -> dict[str, Any]:
    """Lines through the points of one group of heads, and the intervals of ours."""
    rows = points[points.kinds == kinds]
    records = json.loads(rows.to_json(orient="records"))
    colour = {
        "field": "source",
        "type": "nominal",
        "title": None,
        "scale": {"domain": list(COLOURS), "range": list(COLOURS.values())},
        "legend": {"orient": "bottom", "columns": 2, "labelLimit": 0},
    }
    share = {
        "field": "share",
        "type": "quantitative",
        "title": "heads kept (%)",
        "scale": {"reverse": True, "domain": [0, 100]},
    }
    difference = {
        "field": "value",
        "type": "quantitative",
        "title": "BLEU difference to equal further training",
    }
    encoding = {"x": share, "y": difference, "color": colour}
    interval = {
        "mark": {"type": "rule"},
        "encoding": {
            **encoding,
            "y": {"field": "low", "type": "quantitative"},
            "y2": {"field": "high"},
        },
    }
    return {
        "title": TITLES[kinds],
        "width": 380,
        "height": 280,
        "data": {"values": records},
        "layer": [
            interval,
            {"mark": {"type": "line", "point": True}, "encoding": encoding},
        ],
    }


def main() -> None:
    points = pd.concat([published_points(), *map(our_points, CURVES)])
    points["share"] = 100 * points.kept / points.total
    specification = {
        "$schema": "https://vega.github.io/schema/vega-lite/v6.4.json",
        "background": "white",
        "hconcat": [panel(points, kinds) for kinds in TITLES],
    }
    picture = vl_convert.vegalite_to_png(specification, vl_version="v6.4", scale=2)
    (RESULTS / "papers" / "bleu-by-share.png").write_bytes(picture)


if __name__ == "__main__":
    main()
