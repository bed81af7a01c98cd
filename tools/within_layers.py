"""Do scores mark the heads that have a function? The area under the ROC curve over all heads, and within layers.

    python tools/within_layers.py docs/results/firefox/en-pt [--measure confidence …]

FOLDER has heads.csv and labels.csv. Within layers, only heads of one layer are compared: the share of pairs (one with a
function, one without) in which the one with a function has the higher score, and the probability that labels shuffled
within each layer give as many (one-sided, 100,000 draws).
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import pandas as pd

DRAWS = 100_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--measure", nargs="*", default=["confidence", "lrp.ding.pooled"])
    given = parser.parse_args()
    scores = pd.read_csv(given.folder / "heads.csv")
    labels = pd.read_csv(given.folder / "labels.csv", keep_default_na=False)
    labels = labels[labels["kind"] == "encoder-self"]
    # a sink rests on one token whatever the words: no function of the paper's
    named = labels[(labels["label"] != "no known role") & ~labels["label"].str.startswith("sink")]
    functions = set(named[["layer", "head"]].itertuples(index=False, name=None))
    for measure in given.measure:
        rows = scores[(scores["kind"] == "encoder-self") & (scores["measure"] == measure)]
        values = rows["value"].to_numpy()
        layers = rows["layer"].to_numpy()
        marked = np.array(
            [pair in functions for pair in zip(rows["layer"], rows["head"], strict=True)]
        )
        won, pairs = pairs_won(values, marked, np.zeros_like(layers))
        inside, inside_pairs = pairs_won(values, marked, layers)
        p = permuted(values, marked, layers, inside)
        print(
            f"{measure}: {marked.sum()} of {len(marked)} heads; over all heads {won / pairs:.2f}; within layers "
            f"{inside:g} of {inside_pairs} pairs, {inside / inside_pairs:.2f}, p = {p:.3f}"
        )


def pairs_won(values: np.ndarray, marked: np.ndarray, layers: np.ndarray) -> tuple[float, int]:
    """The pairs of one layer in which the head with a function has the higher score (half for equal ones), and all."""
    won, pairs = 0.0, 0
    for layer in np.unique(layers):
        one = values[(layers == layer) & marked][:, None]
        other = values[(layers == layer) & ~marked][None]
        won += float((one > other).sum() + 0.5 * (one == other).sum())
        pairs += one.size * other.size
    return won, pairs


def permuted(values: np.ndarray, marked: np.ndarray, layers: np.ndarray, found: float) -> float:
    """How often labels shuffled within each layer win as many pairs."""
    generator = np.random.default_rng(0)
    totals = np.zeros(DRAWS)
    for layer in np.unique(layers):
        here = layers == layer
        count = int(marked[here].sum())
        size = int(here.sum())
        if not 0 < count < size:
            continue
        # the sum of the ranks of the marked heads says how many pairs they win
        ranks = pd.Series(values[here]).rank().to_numpy()
        drawn = generator.permuted(np.tile(ranks, (DRAWS, 1)), axis=1)[:, :count]
        totals += drawn.sum(1) - count * (count + 1) / 2
    return float((totals >= found - 1e-9).mean())


if __name__ == "__main__":
    main()
