"""Do scores mark the heads that have a function? The area under the ROC curve over all heads, and within layers.

    python tools/within_layers.py docs/results/firefox/en-pt docs/results/firefox/pt-en

Reads heads.csv and labels.csv in each folder, and writes within-layers.csv beside them. Within layers, only heads of one
layer are compared: the share of pairs (one with a function, one without) in which the one with a function has the higher
score, and how often labels shuffled within each layer give as many (one-sided, exact). of: heads with a function.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pandas as pd

from headwise.core.statistics import auroc_interval, marked_in_groups
from headwise.faces.report.head_rows import with_function

MEASURES = ["confidence", "lrp.ding.pooled", "gradient", "ablation.zero"]


def main() -> None:
    for folder in map(Path, sys.argv[1:]):
        scores = pd.read_csv(folder / "heads.csv")
        labels = pd.read_csv(folder / "labels.csv", keep_default_na=False)
        labels = labels[labels["kind"] == "encoder-self"]
        named = with_function(labels)
        functions = set(named[["layer", "head"]].itertuples(index=False, name=None))
        rows = []
        for measure in MEASURES:
            found = scores[(scores["kind"] == "encoder-self") & (scores["measure"] == measure)]
            values, layers = found["value"].to_numpy(), found["layer"].to_numpy()
            heads = zip(found["layer"], found["head"], strict=True)
            marked = np.array([head in functions for head in heads])
            whole = marked_in_groups(values, marked, np.zeros_like(layers)).share
            low, high = auroc_interval(whole, int(marked.sum()), int((~marked).sum()))
            inside = marked_in_groups(values, marked, layers)
            rows.append(
                {"measure": measure, "of": int(marked.sum()), "over_all": whole, "low": low}
                | {"high": high, "won": inside.won, "pairs": inside.pairs}
                | {"within_layers": inside.share, "p": inside.p}
            )
        table = pd.DataFrame(rows)
        table.to_csv(folder / "within-layers.csv", index=False, float_format="%.6g")
        print(folder, table.to_string(index=False), sep="\n")


if __name__ == "__main__":
    main()
