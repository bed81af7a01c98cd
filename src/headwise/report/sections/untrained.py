"""What untrained twins score: the range that each score is compared with, and effect sizes against it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from statistics import fmean, median
from typing import Any

import pandas as pd

from headwise.report.parts import Columns, Table, table
from headwise.report.run import Roles, Run
from headwise.report.words import KIND_NAMES, measure_name, number, signed
from headwise.roles.label import effects
from headwise.roles.role import RANDOM_WORDS, SHUFFLED, UNTRAINED, category

Layer = tuple[str, int, str]  # kind, layer, measure
HEAD = ["kind", "layer", "head"]


@dataclass(frozen=True)
class Band:
    """The heads of one layer in all untrained twins, by one measure: mean, lowest, highest, standard deviation."""

    mean: float
    low: float
    high: float
    spread: float

    def holds(self, value: float) -> bool:
        """Whether a head with this value is like one of an untrained model."""
        return self.low <= value <= self.high

    def effect(self, value: float) -> float:
        """How far a value is above the mean of untrained heads, in their standard deviations (Glass's Δ)."""
        return (value - self.mean) / self.spread if self.spread > 0 else float("nan")

    def text(self, scale: float) -> str:
        """`0.12 to 0.15`."""
        return f"{number(self.low, scale, 1)} to {number(self.high, scale, 1)}"


def bands(run: Run) -> Mapping[Layer, Band]:
    """The band of every layer and measure that untrained twins were scored by; empty without any."""
    if run.untrained is None:
        return {}
    groups = run.untrained.dropna(subset=["value"]).groupby(["kind", "layer", "measure"])["value"]
    found: pd.DataFrame = groups.agg(["mean", "min", "max", "std"])
    return {
        key: Band(*map(float, row)) for key, row in zip(found.index, found.to_numpy(), strict=True)
    }


def count(run: Run) -> int:
    """How many untrained twins there are."""
    return 0 if run.untrained is None else int(run.untrained["seed"].nunique())


def of_twins(found: Roles) -> pd.DataFrame:
    """The tests of roles of untrained twins; no row without any."""
    controls = found.controls
    empty = pd.DataFrame(columns=["control", "kind", "layer", "head", "measure", "value", "found"])
    return empty if controls is None else controls[controls["control"].str.startswith(UNTRAINED)]


def on_changed_text(found: Roles, control: str) -> Mapping[tuple[Any, ...], float]:
    """The model's own scores on random words, or on shuffled sentences, by kind, layer, head and measure."""
    if found.controls is None:
        return {}
    rows = found.controls[found.controls["control"] == control].dropna(subset=["value"])
    keys = rows[["kind", "layer", "head", "measure"]].itertuples(index=False, name=None)
    return dict(zip(keys, rows["value"], strict=True))


def best_of_twins(found: Roles) -> Mapping[tuple[str, str], tuple[float, float, float]]:
    """By kind and measure the best head of every untrained twin: mean, lowest and highest over the twins."""
    best = (
        of_twins(found)
        .dropna(subset=["value"])
        .groupby(["kind", "measure", "control"])["value"]
        .max()
    )
    groups = best.groupby(level=["kind", "measure"]).agg(["mean", "min", "max"])
    return {
        (str(kind), str(m)): (row[0], row[1], row[2])
        for (kind, m), row in zip(groups.index, groups.to_numpy(), strict=True)
    }


def untrained_table(run: Run) -> Table | None:
    """Every measure and kind beside untrained twins: how many heads are outside their range, and how far."""
    known = bands(run)
    if run.heads is None or not known:
        return None
    rows = []
    for (measure, kind), part in run.heads.dropna(subset=["value"]).groupby(
        ["measure", "kind"], sort=False
    ):
        pairs = [
            (row["value"], known.get((str(kind), row["layer"], str(measure))))
            for row in part.to_dict("records")
        ]
        both = [(value, band) for value, band in pairs if band is not None]
        if both:
            rows.append((str(measure), str(kind), both))
    columns: Columns = {
        "score": lambda row: measure_name(row[0]),
        "heads": lambda row: KIND_NAMES[row[1]],
        "mean": lambda row: number(fmean(v for v, _ in row[2]), _scale(row), 1),
        "untrained": lambda row: number(fmean(b.mean for _, b in row[2]), _scale(row), 1),
        "above": lambda row: f"{sum(v > b.high for v, b in row[2])} of {len(row[2])}",
        "within": lambda row: str(sum(b.holds(v) for v, b in row[2])),
        "below": lambda row: str(sum(v < b.low for v, b in row[2])),
        "median effect": lambda row: signed(median(b.effect(v) for v, b in row[2]), 1),
    }
    return table("Beside untrained models", rows, columns, code=lambda row: row[0])


def _scale(row: tuple[str, str, list[tuple[float, Band]]]) -> float:
    return max(abs(value) for value, _ in row[2])


def effect(value: float, baseline: float) -> float:
    """Cohen's h of two shares, as `effect` in roles.csv."""
    h: float = effects([value], [baseline]).item()
    return h


def controls_table(found: Roles) -> Table | None:
    """How many heads have a role, of the model and of every control."""
    if found.controls is None or found.controls.empty:
        return None
    heads = len(found.labels)
    sorts = list(dict.fromkeys(category(measure) for measure in found.roles["measure"]))
    sorts += [
        s
        for s in dict.fromkeys(map(category, of_role(found.controls)["measure"]))
        if s not in sorts
    ]

    def have(rows: pd.DataFrame, sort: str = "") -> str:
        held = rows[rows["measure"].map(category) == sort] if sort else rows
        return str(len(held[HEAD].drop_duplicates()))

    text: Columns = {
        "tested": lambda row: row[0],
        f"of {heads} heads with a role": lambda row: have(row[1]),
    }
    text |= {sort: partial(lambda sort, row: have(row[1], sort), sort) for sort in sorts}
    names = {
        RANDOM_WORDS: "the model, on random words",
        SHUFFLED: "the model, on shuffled sentences",
    }
    rows = [("the model", found.roles)]
    for control, part in found.controls.groupby("control", sort=False):
        rows.append(
            (
                names.get(str(control), f"untrained, seed {str(control).rpartition('.')[2]}"),
                of_role(part),
            )
        )
    return table("Roles in the controls", rows, text)


def of_role(controls: pd.DataFrame) -> pd.DataFrame:
    """The rows of controls that are roles."""
    return controls[controls["found"] == 1]
