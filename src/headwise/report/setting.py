"""One row of the story: a model (full, pruned or a control) and what was measured on it; and lines of them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pandas as pd

from headwise.errors import HeadwiseError
from headwise.report.wording import HEADS_OF_KIND, measure_name

METHODS = {"hard-concrete": "gates, λ", "wanted-count": "gates, wanted count", "top-k": "top-k gates"}
RANDOM = "random orders"
CONTROLS = {
    "further": "trained on, not pruned",
    "random": "random heads",
    "from-scratch": "same layout from scratch",
    "narrower": "narrower model",
    "one-per-layer": "best head of each layer",
    "one-per-layer-random": "a random head of each layer",
}


@dataclass(frozen=True)
class Measured:
    """A measured number and its 95 % interval, where there is one."""

    value: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, eq=False)
class Setting:
    """A model of the study and its measures by name (`bleu`, `parameters` …). asked: what run.json says of it."""

    name: str
    method: str
    kinds: tuple[str, ...]
    kept: int
    total: int
    measures: Mapping[str, Measured]
    asked: Mapping[str, Any] = field(default_factory=dict)

    @property
    def is_full(self) -> bool:
        """Whether this is the model before pruning."""
        return self.method == "none"

    @property
    def control(self) -> str | None:
        """Which control this is (a name of CONTROLS); None for the full model and for pruned ones."""
        start, _, name = self.method.partition(".")
        return name if start == "control" else None

    @property
    def twin(self) -> str | None:
        """The setting that a control stands beside; None where it stands beside a whole sweep."""
        return self.asked.get("of")

    @property
    def sweep(self) -> str:
        """The name of its sweep, where the plan had several."""
        return self.asked.get("sweep") or ""

    @property
    def learned(self) -> bool:
        """Whether its heads were found in training, by gates."""
        return self.method in METHODS

    @property
    def heads(self) -> str:
        """What its heads are called: `encoder heads`, or `attention heads` where several kinds are pruned."""
        return heads_of(self.kinds)

    @property
    def mean_kept(self) -> float:
        """How many heads stay; of a setting over seeds their mean, which need not be whole."""
        return float(self.asked.get("mean_kept", self.kept))

    @property
    def removed(self) -> int:
        """How many heads are gone."""
        return self.total - self.kept

    @property
    def label(self) -> str:
        """The name as a reader says it: `lambda-0.05` is `λ = 0.05`, `all.keep-10` is `all: 10 wanted`."""
        if self.is_full:
            return "full model"
        own = self.name.removeprefix(f"{self.sweep}.")
        start = f"{self.sweep}: " if self.sweep and own != self.name else ""
        if self.control is None:
            return start + _told(own)
        twin = f"{_told((self.twin or '').removeprefix(f'{self.sweep}.'))}, " if self.twin else ""
        return f"{start}{twin}{CONTROLS.get(self.control, self.control)}"

    def beyond_chance(self, difference: str, p: str) -> bool:
        """Whether a difference is more than chance: its interval leaves 0 out, and p, if known, is below 0.05."""
        found, chance = self.measures.get(difference), self.value(p)
        if found is None or found.low is None or found.high is None:
            return False
        return (found.low > 0 or found.high < 0) and (chance is None or chance < 0.05)

    def value(self, measure: str) -> float | None:
        """The value of a measure, or None when it was not measured."""
        found = self.measures.get(measure)
        return None if found is None else found.value


@dataclass(frozen=True)
class Series:
    """The settings of one method and one sweep, from many heads to few: a line of a figure."""

    label: str
    settings: tuple[Setting, ...]

    @property
    def learned(self) -> bool:
        """Whether gates found the heads."""
        return self.settings[0].learned

    @property
    def random(self) -> bool:
        """Whether these are heads removed in random orders, several models for one number of heads."""
        return self.label.startswith(RANDOM)


def series(settings: Iterable[Setting]) -> list[Series]:
    """Pruned settings as lines, those of learned gates first. Sweeps of one method are one line, but for greedy removal
    with training after it, or with mean outputs kept.
    """
    found: dict[str, list[Setting]] = {}
    for setting in settings:
        found.setdefault(_method(setting.method) + _way(setting), []).append(setting)
    lines = [Series(label, tuple(part)) for label, part in found.items()]
    return sorted(lines, key=lambda line: (not line.learned, line.random))


def _way(setting: Setting) -> str:
    """What greedy removal does beside removing."""
    if setting.asked.get("tune"):
        return ", then trained"
    return ", mean outputs kept" if setting.asked.get("compensate") else ""


def heads_of(kinds: tuple[str, ...]) -> str:
    """`encoder heads`, or `attention heads` where there are several kinds."""
    return HEADS_OF_KIND[kinds[0]] if len(kinds) == 1 and kinds[0] in HEADS_OF_KIND else "attention heads"


def _method(method: str) -> str:
    """A method as a reader says it: `greedy.gradient.rescored` is `greedy, gradient, scored again`."""
    name, _, score = method.partition(".")
    if name != "greedy":
        return METHODS.get(method, method)
    if score == "random":
        return RANDOM
    again = ", scored again" if score.endswith(".rescored") else ""
    return f"greedy, {measure_name(score.removesuffix('.rescored'))}{again}"


def _told(name: str) -> str:
    """`λ = 0.05`, `10 wanted`, `top 10`, `gradient, 10 left`; a name of another sort stays as it is."""
    word, dash, rest = name.partition("-")
    if not dash:
        return name
    if word == "lambda":
        return f"λ\u00a0=\u00a0{rest}"
    if word in ("keep", "top"):
        numbers = re.sub(r"[a-z-]+-(?=\d)", "", rest)
        return f"{numbers}\u00a0wanted" if word == "keep" else f"top\u00a0{numbers}"
    if word == "greedy":
        score, _, left = rest.rpartition("-")
        order = score.replace(".", " ") if score.startswith("random") else measure_name(score)
        return f"{order}, {left}\u00a0left"
    return name


def read_settings(table: pd.DataFrame, asked: Mapping[str, Mapping[str, Any]]) -> tuple[Setting, ...]:
    """The settings of a pruning.csv: the full model first, then from many heads to few. asked: what run.json says."""
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
            Setting(
                str(name), str(first["method"]), kinds, int(first["kept"]), int(first["total"]), measures,
                asked.get(str(name), {}),
            )
        )  # fmt: skip
    return tuple(sorted(settings, key=lambda s: (not s.is_full, -s.kept)))


def _bound(value: float) -> float | None:
    """An end of an interval; an empty cell is no interval."""
    return None if pd.isna(value) else float(value)
