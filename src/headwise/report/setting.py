"""One row of the story: a model (full or pruned), the heads it has, and everything measured on it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

import pandas as pd

from headwise.errors import HeadwiseError
from headwise.report.wording import HEADS_OF_KIND


@dataclass(frozen=True)
class Measured:
    """A measured number and its 95 % interval, where there is one."""

    value: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, eq=False)
class Setting:
    """A model of the study and its measures by name (`bleu`, `parameters` …)."""

    name: str
    method: str
    kinds: tuple[str, ...]
    kept: int
    total: int
    measures: Mapping[str, Measured]

    @property
    def is_full(self) -> bool:
        """Whether this is the model before pruning."""
        return self.method == "none"

    @property
    def heads(self) -> str:
        """What its heads are called: `encoder heads`, or `attention heads` where several kinds are pruned."""
        return (
            HEADS_OF_KIND[self.kinds[0]]
            if len(self.kinds) == 1 and self.kinds[0] in HEADS_OF_KIND
            else "attention heads"
        )

    @property
    def removed(self) -> int:
        """How many heads are gone."""
        return self.total - self.kept

    @property
    def label(self) -> str:
        """The name as a reader says it: `lambda-0.05` is `λ = 0.05`."""
        if self.is_full:
            return "full model"
        word, dash, value = self.name.partition("-")
        return f"λ\u00a0=\u00a0{value}" if word == "lambda" and dash else self.name

    def value(self, measure: str) -> float | None:
        """The value of a measure, or None when it was not measured."""
        found = self.measures.get(measure)
        return None if found is None else found.value


def read_settings(table: pd.DataFrame) -> tuple[Setting, ...]:
    """The settings of a pruning.csv: the full model first, then from many heads to few."""
    settings = []
    for name, rows in table.groupby("setting", sort=False):
        first = rows.iloc[0]
        measured = rows.dropna(subset=["value"]).drop_duplicates()
        twice = measured.loc[measured.duplicated("measure"), "measure"].tolist()
        if twice:
            raise HeadwiseError(
                f"pruning.csv has more than one {twice[0]} for the setting {name}: give every run a setting of its own."
            )
        kinds = tuple(re.findall(r"[\w-]+", str(first["kinds"])))
        measures = {
            str(row["measure"]): Measured(float(row["value"]), _bound(row["low"]), _bound(row["high"]))
            for row in measured.to_dict("records")
        }
        settings.append(
            Setting(str(name), str(first["method"]), kinds, int(first["kept"]), int(first["total"]), measures)
        )
    return tuple(sorted(settings, key=lambda s: (not s.is_full, -s.kept)))


def _bound(value: float) -> float | None:
    """An end of an interval; an empty cell is no interval."""
    return None if pd.isna(value) else float(value)
