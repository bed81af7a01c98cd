"""A made-up folder roles/: 24 encoder heads, of which six have roles of four sorts, and a sentence to show them."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pandas as pd

from headwise.heads import COLUMNS, HeadMap
from headwise.roles.label import labels, patterns
from headwise.roles.role import display_name, evidence
from report.made_controls import role_controls

RELATIONS = ("nsubj", "obj", "amod", "advmod", "det", "nmod")
BASELINES = {"nsubj": 0.45, "obj": 0.46, "amod": 0.8, "advmod": 0.33, "det": 0.64, "nmod": 0.43}
ROLES = {
    (0, 3, "positional.-1"): 0.97,
    (0, 6, "rare.two-rarest"): 0.71,
    (1, 2, "positional.1"): 0.94,
    (1, 5, "syntactic.obj.to-governor"): 0.84,
    (1, 5, "syntactic.nsubj.to-dependent"): 0.66,
    (2, 0, "syntactic.nsubj.to-governor"): 0.7,
    (2, 0, "syntactic.det.to-governor"): 0.91,
    (2, 0, "syntactic.nmod.to-governor"): 0.6,
    (2, 0, "coreference"): 0.68,
    (2, 4, "positional.-1"): 0.93,
    (2, 4, "syntactic.det.to-governor"): 0.88,
}
ABSENT = [
    "encoder-self: no head for amod→noun (encoder-self/2/0 reaches 0.55, 0.90 is needed)",
    "encoder-self: no head for advmod→verb (this text never asks about it)",
]


def scores(heads: HeadMap) -> pd.DataFrame:
    """table.csv: every measure of every head, low but for the roles."""
    draw = random.Random(3)
    chances = {
        f"{name}.{offset}": 0.08
        for name in ("positional", "attention-at")
        for offset in range(-3, 4)
    }
    chances |= {
        f"syntactic.{rel}.{way}": BASELINES[rel]
        for rel in RELATIONS
        for way in ("to-governor", "to-dependent")
    }
    chances |= {
        "rare.rarest": 0.07,
        "rare.two-rarest": 0.13,
        "coreference": 0.5,
        "distance": float("nan"),
    }
    rows: list[tuple[Any, ...]] = []
    for head in heads:
        for measure, chance in chances.items():
            low = draw.uniform(0.2, 0.9) * (chance if chance == chance else 3)
            value = ROLES.get((head.layer, head.head, measure), low)
            rows.append(
                (
                    *head,
                    measure,
                    round(value, 4),
                    max(value - 0.03, 0),
                    min(value + 0.03, 1),
                    812,
                    chance,
                )
            )
    return pd.DataFrame(rows, columns=list(COLUMNS))


SENTENCE = [
    ("The", 1, "det"),
    ("<b>dog</b>", 2, "nsubj"),
    ("saw", -1, "root"),
    ("a", 5, "det"),
    ("small", 5, "amod"),
    ('"cat"</script>', 2, "obj"),
    ("because", 8, "mark"),
    ("it", 8, "nsubj"),
    ("slept", 2, "advcl"),
    (".", 2, "punct"),
]


def example(layer: int, head: int, measure: str, cells: list[list[int]]) -> dict[str, Any]:
    """One sentence on which a head looks where it should, with 0.8 of its weight; 0.1 of all goes to no word."""
    size = len(SENTENCE)
    weights = []
    for query in range(size):
        right = [key for asked, key in cells if asked == query]
        even = (0.1 if right else 0.9) / size
        weights.append(
            [round(even + (0.8 / len(right) if key in right else 0), 4) for key in range(size)]
        )
    return {
        "kind": "encoder-self",
        "layer": layer,
        "head": head,
        "measure": measure,
        "role": display_name(measure),
        "value": ROLES[layer, head, measure],
        "baseline": 0.46,
        "id": "toy-7",
        "words": [word for word, *_ in SENTENCE],
        "weights": weights,
        "rest": [0.1] * size,
        "arcs": [
            [up, index, relation] for index, (_, up, relation) in enumerate(SENTENCE) if up >= 0
        ],
        "cells": cells,
        "right": len(cells),
        "asked": len(cells),
        "sentences": 400,
    }


def write_roles(folder: Path, heads: HeadMap) -> None:
    """The folder as the stage of roles leaves it."""
    folder.mkdir(parents=True, exist_ok=True)
    table = scores(heads)
    chosen = [
        (row["layer"], row["head"], row["measure"]) in ROLES for row in table.to_dict("records")
    ]
    roles = table[chosen].assign(role=lambda t: t["measure"].map(display_name), p=0.0004)
    roles["text"] = [
        evidence(row["measure"], row["value"], row["baseline"]) for row in roles.to_dict("records")
    ]
    roles = roles.sort_values(
        ["kind", "layer", "head", "value"], ascending=[True, True, True, False]
    )
    tables = {
        "table": table,
        "roles": roles,
        "labels": labels(heads, roles),
        "patterns": patterns(heads, roles),
    }
    tables["controls"] = role_controls(table)
    for name, each in tables.items():
        each.to_csv(folder / f"{name}.csv", index=False)
    coverage = {
        "sentences": 600,
        "used": 588,
        "too_long": 12,
        "unalignable": 0,
        "words": 7629,
        "merged_words": 3,
        "split_words": 1333,
        "subwords": 9976,
        "unknown_subwords": 20,
    }
    facts = {
        "absent": ABSENT,
        "low_support": ["syntactic.expl.to-governor", "attachment.expl", "coreference.proper"],
        "warnings": ["12 of 600 sentences of the treebank are too long and were left out."],
        "coverage": {"treebank": coverage},
        "signature": {"treebank": "toy", "confirmed_on": "the other half"},
    }
    (folder / "facts.json").write_text(json.dumps(facts))
    shown = [
        example(0, 3, "positional.-1", [[q, q - 1] for q in range(1, 10)]),
        example(1, 5, "syntactic.obj.to-governor", [[5, 2]]),
        example(
            0, 6, "rare.two-rarest", [[q, k] for q in range(10) for k in (5, 8) if q not in (5, 8)]
        ),
        example(2, 0, "coreference", [[7, 1], [7, 5]]),
    ]
    (folder / "examples.json").write_text(json.dumps(shown))
