"""A study so small that it runs in seconds, and what tests ask of studies."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pandas as pd

from headwise.core.progress import Progress
from headwise.study.plan import Plan, make_plan
from headwise.study.study import run_study

TINY: dict[str, Any] = {
    "name": "tiny",
    "seed": 3,
    "data": {"embedded": {"train": 300, "dev": 20, "test": 20}},
    "model": {
        "encoder_layers": 2,
        "decoder_layers": 2,
        "heads": 4,
        "width": 32,
        "feedforward": 64,
        "dropout": 0.1,
        "vocabulary": 300,
        "max_length": 64,  # models of so few updates write as much as they may
    },
    "training": {
        "epochs": 4,
        "batch_tokens": 1260,
        "learning_rate": 3e-3,
        "warmup": 20,
        "average": 3,
        "dtype": "float32",
    },
    "pruning": {"penalty": [0.005, 1.0], "epochs": 3, "gate_learning_rate": 0.5, "warmup": 3},
    "scoring": {"untrained": 1, "random_orders": 2, "interactions": 5},
    "search": {"beam": 2},
    "speed": {"sentences": 5, "rounds": 1},
}
SHAPE = [
    "model.encoder_layers=1",
    "model.decoder_layers=1",
    "model.heads=4",
    "model.width=32",
    "model.feedforward=32",
    "model.max_length=48",
]
SMALL = [  # a model of one layer, trained in a second
    *SHAPE,
    "model.vocabulary=300",
    "training.epochs=2",
    "training.batch_tokens=1260",
    "training.dtype=float32",
]
TIMINGS = ("tokens_per_second", "seconds")
QUIET = Progress(quiet=True)
NUMBER = ["setting", "split", "measure", "reference"]  # what tells the rows of pruning.csv apart
BARELY = {
    "measures": ["gradient"],
    "judge": False,
    "untrained": 0,
    "interactions": 0,
    "pruned": [],
}  # scored


class Notes(Progress):
    """Progress that remembers what was made and said."""

    def __init__(self) -> None:
        super().__init__(quiet=True)
        self.made: list[str] = []
        self.lines: list[str] = []

    @contextmanager
    def bar(self, name: str) -> Iterator[None]:
        if self.live is not None:  # a step, not the study
            self.made.append(name)
        with super().bar(name):
            yield

    def say(self, text: str) -> None:
        self.lines.append(text)


def numbers_of(folder: Path) -> pd.DataFrame:
    """pruning.csv of a run, by NUMBER: no word where a number belongs to no text, or is no change."""
    table = pd.read_csv(folder / "pruning.csv", dtype={"split": str, "reference": str})
    return table.fillna({"split": "", "reference": ""}).set_index(NUMBER)


def measured_in(folder: Path) -> set[tuple[str, str, str]]:
    """What was measured of any model of a run: split, measure, reference."""
    return {
        (split, measure, reference) for _, split, measure, reference in numbers_of(folder).index
    }


def plan_of(values: dict[str, Any], **changes: Any) -> Plan:
    return make_plan(copy.deepcopy({**values, **changes}))


def of_model(finished: Path, **changes: Any) -> dict[str, Any]:
    """The values of a short plan that takes the finished study's model, scores by one measure and makes one smaller one."""
    sweep = {"penalty": [1.0], "epochs": 1, "warmup": 0, "gate_learning_rate": 2.0}
    data = {"embedded": {"train": 150, "dev": 12, "test": 12}}
    given = {"model": str(finished / "model"), "data": data, "pruning": sweep, "scoring": BARELY}
    return copy.deepcopy({**TINY, **given, **changes})


def again(plan: Plan, out: Path, only: str | None = None) -> Notes:
    """Run a study, once more or for the first time."""
    notes = Notes()
    run_study(plan, out, notes, only)
    return notes


def facts(folder: Path) -> dict[str, Any]:
    return dict(json.loads((folder / "run.json").read_text()))


def numbers(out: Path) -> dict[str, Any]:
    """Everything that a study gives, over all its runs, but for times."""
    found: dict[str, Any] = {}
    for path in sorted(out.rglob("*")):
        name = str(path.relative_to(out))
        if path.name == "run.json":
            found[name] = {
                key: value
                for key, value in json.loads(path.read_text()).items()
                if key != "seconds"
            }
        elif path.name == "pruning.csv":
            table = pd.read_csv(path)
            found[name] = table[~table.measure.isin(TIMINGS)].to_csv()
        elif path.name in (
            "untrained.csv",
            "interactions.csv",
            "heads.csv",
            "log.csv",
            "model.safetensors",
            "faithfulness.csv",
            "curves.csv",
        ) or (
            path.is_file()
            and {"layouts", "gates", "translations", "rankings", "roles"} & {*path.parts}
        ):
            found[name] = path.read_bytes()
    return {
        name: value
        for name, value in found.items()
        if ".work" not in name and not name.endswith("facts.json")
    }


def different(one: dict[str, Any], other: dict[str, Any]) -> list[str]:
    return [name for name in sorted({*one, *other}) if one.get(name) != other.get(name)]
