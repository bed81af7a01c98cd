"""Draw the picture of docs/results/whisper-base: the sort of role of each of the 144 heads.

    python tools/whisper_figure.py

The roles stand in docs/results/whisper-base/roles.csv.
"""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import vl_convert

from headwise.core.grid import HeadGrid
from headwise.core.heads import Head, HeadMap
from headwise.roles.role import category, category_colour

FOLDER = Path(__file__).resolve().parent.parent / "docs" / "results" / "whisper-base"
HEADS = HeadMap({"encoder-self": (8,) * 6, "decoder-self": (8,) * 6, "cross": (8,) * 6})
SINK = "sink"


def main() -> None:
    table = pd.read_csv(FOLDER / "roles.csv")
    # A head that keeps a place and is a sink as well is shown by its place.
    table["sink"] = table["measure"] == SINK
    table = table.sort_values(["sink", "value"], ascending=[True, False])
    best: dict[Head, str] = {}
    for row in table.to_dict("records"):
        head = Head(row["kind"], row["layer"], row["head"])
        best.setdefault(head, category(row["measure"]))
    colours = {name: category_colour(name) for name in best.values()}
    picture = HeadGrid.of_groups(HEADS, best, "best role", colours).svg()
    (FOLDER / "heads.png").write_bytes(vl_convert.svg_to_png(picture, scale=2))


if __name__ == "__main__":
    main()
