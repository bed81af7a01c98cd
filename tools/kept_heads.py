"""Which heads with a function stay: a table beside the curve of `last_head.py`.

    python tools/kept_heads.py docs/results/firefox/en-pt/labels.csv curve.csv kept.csv

Counts kept encoder heads that are positional or syntactic. Expected: of as many heads drawn from all, and of as many heads
of each layer. p: how often such a draw, layers given, has at least as many. `of` counts the heads with a function.
"""

from __future__ import annotations

import sys
from collections import Counter

import numpy as np
import pandas as pd
from scipy.stats import hypergeom

HEADS = 8  # in a layer
LAYERS = 6
WITHOUT = ("no known role", "sink")


def main() -> None:
    labels = pd.read_csv(sys.argv[1])
    encoder = labels[(labels.kind == "encoder-self") & ~labels.label.str.startswith(WITHOUT)]
    able = set(encoder.layer.astype(str) + "/" + encoder["head"].astype(str))
    in_layer = Counter(head[0] for head in able)

    curve = pd.read_csv(sys.argv[2])
    made = curve[(curve.split == "test") & curve.chosen.isin(["gradient", "gates"])]
    rows = []
    points = zip(made.kept, made.chosen, made.seed, made.heads, strict=True)
    for count, chosen, seed, heads in points:
        kept = heads.split()
        there = len(able & {*kept})
        kept_of_layer = Counter(head[0] for head in kept)
        chance = np.ones(1)  # of 0, 1, … heads with a function, the layers given
        mean = 0.0
        for layer in map(str, range(LAYERS)):
            drawn = hypergeom(HEADS, in_layer[layer], kept_of_layer[layer])
            chance = np.convolve(chance, drawn.pmf(np.arange(HEADS + 1)))
            mean += kept_of_layer[layer] * in_layer[layer] / HEADS
        rows.append(
            {
                "kept": count,
                "chosen": chosen,
                "seed": seed,
                "with_a_role": there,
                "of": len(able),
                "expected": count * len(able) / (HEADS * LAYERS),
                "expected_given_layers": mean,
                "p": chance[there:].sum(),
                "heads": heads,
            }
        )
    pd.DataFrame(rows).to_csv(sys.argv[3], index=False, float_format="%.3g")


if __name__ == "__main__":
    main()
