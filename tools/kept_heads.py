"""Which heads with a function stay: a table beside the curve of `last_head.py`.

    python tools/kept_heads.py docs/results/firefox/en-pt/labels.csv curve.csv kept.csv

Counts kept encoder heads that are positional or syntactic. Expected: of as many heads drawn from all, and of as many heads
of each layer. p: how often such a draw, layers given, has at least as many; p_corrected: of all choices of the table
(Benjamini and Hochberg). `of` counts the heads with a function.
"""

from __future__ import annotations

import sys

import pandas as pd

from headwise.core.statistics import corrected, kept_of_marked

WITHOUT = ("no known role", "sink")


def main() -> None:
    labels = pd.read_csv(sys.argv[1])
    encoder = labels[labels.kind == "encoder-self"]
    layers = encoder.layer.to_numpy()
    heads = encoder.layer.astype(str) + "/" + encoder["head"].astype(str)
    marked = ~encoder.label.str.startswith(WITHOUT).to_numpy()

    curve = pd.read_csv(sys.argv[2])
    made = curve[(curve.split == "test") & curve.chosen.isin(["gradient", "gates"])]
    rows = []
    points = zip(made.kept, made.chosen, made.seed, made.heads, strict=True)
    for count, chosen, seed, names in points:
        kept = heads.isin(names.split()).to_numpy()
        there, mean, p = kept_of_marked(kept, marked, layers)
        rows.append(
            {
                "kept": count,
                "chosen": chosen,
                "seed": seed,
                "with_a_role": there,
                "of": int(marked.sum()),
                "expected": count * marked.mean(),
                "expected_given_layers": mean,
                "p": p,
                "heads": names,
            }
        )
    table = pd.DataFrame(rows)
    # seeds of the same heads are one count
    once = table.drop_duplicates("heads")
    table["p_corrected"] = pd.Series(corrected(once.p.to_numpy()), index=once.index)
    table.to_csv(sys.argv[3], index=False, float_format="%.6g")


if __name__ == "__main__":
    main()
