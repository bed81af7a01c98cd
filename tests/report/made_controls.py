"""Made-up controls: three untrained models, roles on changed text, and pairs of heads of which four were measured."""

from __future__ import annotations

import random
from itertools import combinations
from typing import Any

import pandas as pd

from headwise.heads import HeadMap
from headwise.roles.role import role_of

LEVELS = {"confidence": 0.25, "lrp.ding": 0.125, "gradient": 0.002, "ablation.zero": 0.0}
UNTRAINED_SEEDS = (1, 2, 3)
MEASURED = {
    (3, 6): (0.031, 0.024, 0.039),
    (10, 16): (-0.012, -0.017, -0.006),
    (0, 8): (0.004, -0.001, 0.009),
}


def untrained(heads: HeadMap) -> pd.DataFrame:
    """untrained.csv: every untrained model's heads near one level; the lowest and highest confidence are 0.2 and 0.3."""
    draw = random.Random(5)
    rows = [
        (seed, *head, measure, level + draw.uniform(-0.2, 0.2) * (level or 0.005), 1200)
        for seed in UNTRAINED_SEEDS
        for head in heads
        for measure, level in LEVELS.items()
    ]
    table = pd.DataFrame(rows, columns=["seed", "kind", "layer", "head", "measure", "value", "n"])
    for head, value in ((0, 0.2), (1, 0.3)):
        table.loc[(table["head"] == head) & (table["measure"] == "confidence"), "value"] = value
    return table


def interactions(heads: HeadMap) -> pd.DataFrame:
    """interactions.csv: every pair screened near 0, those of MEASURED strong; the strongest first."""
    draw, rows = random.Random(6), list[dict[str, Any]]()
    for one, other in combinations(range(heads.total), 2):
        every = list(heads)
        first, second = every[one], every[other]
        found = MEASURED.get((one, other))
        row = {
            **first._asdict(),
            **{f"other_{name}": value for name, value in second._asdict().items()},
            "screening_value": found[0] * 1.2 if found else draw.gauss(0, 0.001),
        }
        if found:
            row |= dict(zip(("value", "low", "high"), found, strict=True))
            row |= {
                "p": 0.002,
                "alone": 0.005,
                "other_alone": 0.01,
                "both": 0.015 + found[0],
                "n": 4000,
            }
        rows.append(row)
    names = ("value", "low", "high", "p", "alone", "other_alone", "both", "n")
    table = pd.DataFrame(rows, columns=[*rows[0], *(name for name in names if name not in rows[0])])
    return table.sort_values("value", key=abs, ascending=False, kind="stable", na_position="last")


def role_controls(table: pd.DataFrame) -> pd.DataFrame:
    """roles/controls.csv: untrained heads score 0.05 to 0.15; on random words a half is left, shuffled a third."""
    draw, table = random.Random(7), table[table["measure"].map(role_of).notna()]
    parts = []
    for control in ("random-words", "shuffled", *(f"untrained.{seed}" for seed in UNTRAINED_SEEDS)):
        values = [draw.uniform(0.05, 0.15) for _ in table["value"]]
        share = {"random-words": 0.5, "shuffled": 0.3}.get(control)
        values = values if share is None else list(share * table["value"])
        found = [0] * len(table)
        if control == "untrained.2":
            found[0] = 1  # one false role
        parts.append(table.assign(control=control, value=values, found=found))
    columns = ["control", "kind", "layer", "head", "measure", "value", "n", "baseline", "found"]
    return pd.concat(parts)[columns]
