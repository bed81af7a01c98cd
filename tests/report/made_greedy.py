"""A made-up run of a model of embeddings: heads removed in the order of one score, other orders at the chosen count.

Nothing was scored, tested for roles, or trained.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd

from headwise.heads import Head, HeadMap, HeadMask
from headwise.report.models import MODEL_COLUMNS

HEADS = HeadMap({"encoder-self": (12,) * 6})
SIMILARITY = {64: 98.7, 57: 97.9, 50: 95.6, 43: 92.5, 36: 89.8, 28: 87.1, 14: 69.0, 1: 64.6}
OTHERS = {"confidence": 96.7, "weight-norm": 90.1, "random.1": 95.6, "random.2": 93.9}
CHOSEN = 57


def write_greedy(folder: Path) -> Path:
    """run.json, pruning.csv and layouts/ of the run."""
    folder.mkdir(parents=True)
    rows = rows_of("full", "none", 72, 100.0)
    settings = {}
    for kept, similarity in SIMILARITY.items():
        name = f"greedy-dormancy-{kept}"
        rows += rows_of(name, "greedy.dormancy", kept, similarity)
        settings[name] = {"score": "dormancy"}
        first_heads(kept).save(folder / "layouts" / f"{name}.json")
    for order, similarity in OTHERS.items():
        name = f"greedy-{order}-{CHOSEN}"
        score, _, replicate = order.partition(".")
        rows += rows_of(name, f"greedy.{score}", CHOSEN, similarity)
        settings[name] = {"score": score, "replicate": int(replicate or 0), "comparison": True}
        first_heads(CHOSEN).save(folder / "layouts" / f"{name}.json")
    pd.DataFrame(rows, columns=list(MODEL_COLUMNS)).to_csv(folder / "pruning.csv", index=False)
    facts = {"chosen": f"greedy-dormancy-{CHOSEN}", "max_drop": 2.0, "settings": settings}
    (folder / "run.json").write_text(json.dumps(facts))
    return folder


def rows_of(name: str, method: str, kept: int, similarity: float) -> list[tuple[Any, ...]]:
    """The rows of a model; on dev it is 0.2 points better than on test."""
    start = (method, "encoder-self", name, None, 1, kept, 72)
    weights = 20e6 + 4e4 * kept
    rows = [
        (*start, "parameters", weights, None, None),
        (*start, "memory", 4 * weights, None, None),
    ]
    for part, better in (("", 0.0), ("dev_", 0.2)):
        change = min(0.0, similarity + better - 100)
        rows.append((*start, f"{part}similarity", 100 + change, None, None))
        if method != "none":
            ends = (change - 0.6, change + 0.5)
            rows.append((*start, f"{part}similarity_change", change, *ends))
    return rows


def first_heads(count: int) -> HeadMask:
    """A layout of the first heads, layer by layer."""
    return HeadMask(HEADS, frozenset[Head](list(HEADS)[:count]))
