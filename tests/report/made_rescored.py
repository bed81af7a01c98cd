"""Made-up folders rescored/SETTING: three pruned models scored again, in which two functions have moved."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from pathlib import Path

import pandas as pd

from headwise.heads import Head, HeadMask
from headwise.roles.label import labels, patterns
from headwise.roles.role import display_name, evidence
from report.made_roles import ROLES, scores

# What heads do after pruning. nsubj→verb of 2/0 ends up at 2/4, obj→verb of 1/5 is lost, 0/6 goes with its head.
AFTER = {
    "lambda-0.02": {
        (0, 3, "positional.-1"): 0.98,
        (0, 6, "rare.two-rarest"): 0.69,
        (1, 2, "positional.1"): 0.95,
        (1, 5, "syntactic.obj.to-governor"): 0.8,
        (2, 0, "syntactic.nsubj.to-governor"): 0.66,
        (2, 0, "syntactic.det.to-governor"): 0.9,
        (2, 0, "coreference"): 0.66,
        (2, 4, "positional.-1"): 0.94,
    },
    "lambda-0.05": {
        (0, 3, "positional.-1"): 0.97,
        (0, 6, "rare.two-rarest"): 0.7,
        (1, 2, "positional.1"): 0.97,
        (2, 0, "syntactic.det.to-governor"): 0.89,
        (2, 4, "positional.-1"): 0.92,
        (2, 4, "syntactic.nsubj.to-governor"): 0.64,
    },
    "lambda-0.2": {(0, 3, "positional.-1"): 0.92, (2, 4, "syntactic.nsubj.to-governor"): 0.68},
}


def write_rescored(
    folder: Path, asked: Mapping[str, Mapping[tuple[int, int, str], float]] = AFTER
) -> None:
    """rescored/SETTING/ for each setting: roles as asked, scores like those of the full model, a little shaken."""
    full = pd.read_csv(folder / "heads.csv")
    for setting, held in asked.items():
        mask = HeadMask.read(folder / "layouts" / f"{setting}.json")
        place = folder / "rescored" / setting
        (place / "roles").mkdir(parents=True)
        draw = random.Random(setting)
        left = full[
            [
                Head(*row) in mask.kept
                for row in full[["kind", "layer", "head"]].itertuples(index=False)
            ]
        ].copy()
        left = left[left["measure"].isin(["confidence", "gradient", "lrp.ding"])]
        left["value"] = [value * draw.uniform(0.75, 1.25) for value in left["value"]]
        lrp = left["measure"] == "lrp.ding"
        left.loc[lrp, "value"] /= left[lrp].groupby("layer")["value"].transform("sum")
        left.to_csv(place / "heads.csv", index=False)
        write_roles_left(place / "roles", mask, held)


def write_roles_left(
    folder: Path, mask: HeadMask, held: Mapping[tuple[int, int, str], float]
) -> None:
    table = scores(mask.heads)
    table = table[
        [
            Head(*row) in mask.kept
            for row in table[["kind", "layer", "head"]].itertuples(index=False)
        ]
    ].copy()
    keys = list(zip(table["layer"], table["head"], table["measure"], strict=True))
    table["value"] = [
        held.get(key, 0.7 * row["baseline"] if key in ROLES else row["value"])
        for key, row in zip(keys, table.to_dict("records"), strict=True)
    ]
    table["low"], table["high"] = (
        (table["value"] - 0.03).clip(0),
        (table["value"] + 0.03).clip(upper=1),
    )
    roles = table[[key in held for key in keys]].assign(
        role=lambda t: t["measure"].map(display_name), p=0.0004
    )
    roles["text"] = [
        evidence(row["measure"], row["value"], row["baseline"]) for row in roles.to_dict("records")
    ]
    named = labels(mask.heads, roles)
    kept = [
        Head(*row) in mask.kept for row in named[["kind", "layer", "head"]].itertuples(index=False)
    ]
    for name, each in {"table": table, "roles": roles, "labels": named[kept]}.items():
        each.to_csv(folder / f"{name}.csv", index=False)
    patterns(mask.heads, roles).to_csv(folder / "patterns.csv", index=False)
    (folder / "facts.json").write_text(
        json.dumps({"absent": [], "low_support": [], "warnings": [], "coverage": {}})
    )
    (folder / "examples.json").write_text("[]")
