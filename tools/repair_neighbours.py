"""What smaller models of sentence embeddings still give, in sentence-transformers itself.

    python tools/repair_neighbours.py all-MiniLM-L6-v2 captions.en table.csv runs/36/pruned/greedy-repair-36 …

A row for each model: the mean cosine to the whole model's embedding, the share of sentences whose nearest other one is
the same (neighbour), and the same for queries of the smaller model among embeddings of the whole one (cross), with 95 %
intervals.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import pandas as pd
import torch
from sentence_transformers import SentenceTransformer
from torch import Tensor

import headwise as hw
from headwise.core.statistics import proportion_interval


def embedded(model: str, lines: list[str]) -> Tensor:
    """Of length 1, one a line."""
    # Layers of different sizes are read by a module of headwise.
    loaded = SentenceTransformer(model, device="cpu", trust_remote_code=True)
    found: Tensor = loaded.encode(lines, convert_to_tensor=True, normalize_embeddings=True)
    return found


def nearest(queries: Tensor, among: Tensor) -> Tensor:
    """Of each line, the number of the other one that is nearest."""
    return (queries @ among.t()).fill_diagonal_(-torch.inf).argmax(1)


def main(options: argparse.Namespace) -> None:
    lines = Path(options.text).read_text(encoding="utf-8").splitlines()
    whole = embedded(options.model, lines)
    before = nearest(whole, whole)
    heads = hw.load(options.model).heads.total
    rows = []
    for folder in options.smaller:
        own = embedded(folder, lines)
        row = {"removed": heads - hw.load(folder).heads.total, "model": Path(folder).name}
        row |= {"cosine": float((own * whole).sum(1).mean())}
        for name, among in (("neighbour", own), ("cross", whole)):
            kept = int((nearest(own, among) == before).sum())
            low, high = map(float, proportion_interval(kept, len(lines)))
            row |= {name: kept / len(lines), f"{name}_low": low, f"{name}_high": high}
        rows.append(row)
    pd.DataFrame(rows).to_csv(options.out, index=False, float_format="%.4g")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    for name in ("model", "text", "out"):
        parser.add_argument(name)
    parser.add_argument("smaller", nargs="+")
    main(parser.parse_args())
