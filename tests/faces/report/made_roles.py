"""Made-up roles: 24 encoder heads, of which six have roles of four sorts; their controls; and pairs of heads."""

from __future__ import annotations

import math
import random
from collections.abc import Collection, Mapping, Sequence
from itertools import combinations
from typing import Any

import pandas as pd

from headwise.core.heads import Head, HeadMap
from headwise.core.layout import HeadMask
from headwise.core.tables import TESTS, WORDS
from headwise.roles.label import labels, patterns
from headwise.roles.role import display_name, evidence, role_of

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
FACTS = {
    "absent": [
        "encoder-self: no head for amod→noun (encoder-self/2/0 reaches 0.55, 0.90 is needed)",
        "encoder-self: no head for advmod→verb (this text never asks about it)",
    ],
    "low_support": ["syntactic.expl.to-governor", "attachment.expl", "coreference.proper"],
    "warnings": ["12 of 600 sentences of the treebank are too long and were left out."],
    "coverage": {
        "treebank": {
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
    },
    "signature": {"treebank": "toy", "confirmed_on": "the other half"},
}
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


def role_files(
    heads: HeadMap,
    mask: HeadMask | None = None,
    held: Mapping[tuple[int, int, str], float] = ROLES,
) -> dict[str, Any]:
    """The folder roles/ as the stage of roles leaves it. Of a pruned model: its heads, and the roles they hold now."""
    table = role_scores(heads)
    if mask is not None:
        table = table[rows_of(table, mask.kept)].copy()
    keys = list(zip(table["layer"], table["head"], table["measure"], strict=True))
    if mask is not None:
        lost = 0.7 * table["baseline"]
        values = zip(keys, table["value"], lost, strict=True)
        table["value"] = [held.get(key, low if key in ROLES else old) for key, old, low in values]
        table["low"] = (table["value"] - 0.03).clip(0)
        table["high"] = (table["value"] + 0.03).clip(upper=1)

    roles = table[[key in held for key in keys]].assign(p=0.0004)
    roles["role"] = roles["measure"].map(display_name)
    shown = zip(roles["measure"], roles["value"], roles["baseline"], strict=True)
    roles["text"] = [evidence(*one) for one in shown]
    up = [True, True, True, False]
    roles = roles.sort_values(["kind", "layer", "head", "value"], ascending=up)
    named = labels(heads, roles)
    files: dict[str, Any] = {"table": table, "roles": roles, "patterns": patterns(heads, roles)}
    if mask is not None:
        files["labels"] = named[rows_of(named, mask.kept)]
        facts, examples = {"absent": [], "low_support": [], "warnings": [], "coverage": {}}, []
    else:
        files |= {"labels": named, "controls": role_controls(table)}
        rarest = [[q, k] for q in range(10) for k in (5, 8) if q not in (5, 8)]
        facts, examples = (
            FACTS,
            [
                example(0, 3, "positional.-1", [[q, q - 1] for q in range(1, 10)]),
                example(1, 5, "syntactic.obj.to-governor", [[5, 2]]),
                example(0, 6, "rare.two-rarest", rarest),
                example(2, 0, "coreference", [[7, 1], [7, 5]]),
            ],
        )
    files = {f"roles/{name}.csv": content for name, content in files.items()}
    return {**files, "roles/facts.json": facts, "roles/examples.json": examples}


def rows_of(table: pd.DataFrame, heads: Collection[Head]) -> list[bool]:
    """Of each row of a table, whether it is about one of the heads."""
    return [Head(*row) in heads for row in table[["kind", "layer", "head"]].itertuples(index=False)]


def role_scores(heads: HeadMap) -> pd.DataFrame:
    """Every measure of every head, low but for the roles."""
    draw = random.Random(3)
    chances = dict.fromkeys(
        [f"{name}.{at}" for name in ("positional", "attention-at") for at in range(-3, 4)], 0.08
    )
    for relation, chance in BASELINES.items():
        for way in ("to-governor", "to-dependent"):
            chances[f"syntactic.{relation}.{way}"] = chance
    chances |= {"rare.rarest": 0.07, "rare.two-rarest": 0.13, "coreference": 0.5}
    chances["distance"] = math.nan
    rows: list[tuple[Any, ...]] = []
    for head in heads:
        for measure, chance in chances.items():
            low = draw.uniform(0.2, 0.9) * (3 if math.isnan(chance) else chance)
            value = ROLES.get((head.layer, head.head, measure), low)
            ends = (max(value - 0.03, 0), min(value + 0.03, 1))
            rows.append((*head, measure, round(value, 4), *ends, 812, chance, 60))
    return pd.DataFrame(rows, columns=list(TESTS.names))


def example(layer: int, head: int, measure: str, asked: list[list[int]]) -> dict[str, Any]:
    """A sentence on which a head looks where it should, with 0.8 of its weight; 0.1 of all goes to no word."""
    size = len(SENTENCE)
    weights = []
    for query in range(size):
        right = [key for at, key in asked if at == query]
        even = (0.1 if right else 0.9) / size
        row = [even + (0.8 / len(right) if key in right else 0) for key in range(size)]
        weights.append([round(weight, 4) for weight in row])
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
        "arcs": [[up, at, relation] for at, (_, up, relation) in enumerate(SENTENCE) if up >= 0],
        "cells": asked,
        "right": len(asked),
        "asked": len(asked),
        "sentences": 400,
    }


UNTRAINED_SEEDS = (1, 2, 3)
LEVELS = {"confidence": 0.25, "lrp.ding": 0.125, "gradient": 0.002, "ablation.zero": 0.0}


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


def role_controls(table: pd.DataFrame) -> pd.DataFrame:
    """roles/controls.csv: untrained heads score 0.05 to 0.15; on random words a half is left, shuffled a third."""
    draw, table = random.Random(7), table[table["measure"].map(role_of).notna()]
    parts = []
    for control in ("random-words", "shuffled", *(f"untrained.{seed}" for seed in UNTRAINED_SEEDS)):
        values = [draw.uniform(0.05, 0.15) for _ in table["value"]]
        share = {"random-words": 0.5, "shuffled": 0.3}.get(control)
        values = values if share is None else list(share * table["value"])
        false_roles = [int(control == "untrained.2"), *[0] * (len(table) - 1)]
        parts.append(table.assign(control=control, value=values, found=false_roles))
    columns = ["control", "kind", "layer", "head", "measure", "value", "n", "baseline", "found"]
    return pd.concat(parts)[columns]


MEASURED = {
    (3, 6): (0.031, 0.024, 0.039),
    (10, 16): (-0.012, -0.017, -0.006),
    (0, 8): (0.004, -0.001, 0.009),
}


def interactions(heads: HeadMap) -> pd.DataFrame:
    """interactions.csv: every pair screened near 0, those of MEASURED strong; the strongest first."""
    draw = random.Random(6)
    rows = []
    for (i, first), (j, second) in combinations(enumerate(heads), 2):
        found = MEASURED.get((i, j))
        other = {f"other_{name}": value for name, value in second._asdict().items()}
        screened = found[0] * 1.2 if found else draw.gauss(0, 0.001)
        row = {**first._asdict(), **other, "screening_value": screened}
        names = ("value", "low", "high", "p", "alone", "other_alone", "both", "n")
        measured: Sequence[float | None] = [None] * 8
        if found:
            p = 0.4 if found[1] <= 0 <= found[2] else 0.002
            measured = [*found, p, 0.005, 0.01, 0.015 + found[0], 4000]
        rows.append(row | dict(zip(names, measured, strict=True)))
    table = pd.DataFrame(rows)
    return table.sort_values("value", key=abs, ascending=False, kind="stable", na_position="last")


def words() -> pd.DataFrame:
    """words.csv: a head that decides <a>, and one of which the second half does not confirm what the first found."""
    sure = (
        "encoder-self",
        1,
        2,
        "<a>",
        0.5,
        0.4,
        0.6,
        20,
        40,
        0.1,
        1e-9,
        "<o>",
        15,
        "The girl sees <a>",
    )
    unsure = ("encoder-self", 0, 3, "and", 0.1, 0.02, 0.3, 2, 20, 0.05, 0.4, "or", 2, "Salt and")
    return pd.DataFrame([sure, unsure], columns=list(WORDS.names))
