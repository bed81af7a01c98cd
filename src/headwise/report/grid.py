"""A grid folder, read into memory: the studies of several seeds and language pairs, and what they say together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

import pandas as pd

from headwise.errors import HeadwiseError
from headwise.report.run import Models, read_json, read_measured, read_table
from headwise.report.setting import Measured, Setting
from headwise.report.wording import count

ACROSS_COLUMNS = (
    "data", "method", "kinds", "setting", "seeds", "kept", "kept_low", "kept_high", "total", "measure", "value", "low",
    "high",
)  # fmt: skip
PARTS = ("", "dev_")
ENDINGS = ("", "_to_pruned", "_to_further", "_to_random", "_to_uncompensated")  # of what a difference is to


@dataclass(frozen=True)
class Member:
    """One study of a grid, as far as it has come. trouble: why it cannot be read, if so."""

    place: str
    data: str
    seed: int
    facts: Mapping[str, Any]
    settings: tuple[Setting, ...]
    trouble: str
    page: bool

    @property
    def name(self) -> str:
        """`en-de, seed 1`."""
        return ", ".join([*([self.data] if self.data else []), f"seed {self.seed}"])

    @property
    def full(self) -> Setting | None:
        """The model before pruning."""
        return next((s for s in self.settings if s.is_full), None)

    @property
    def chosen(self) -> Setting | None:
        """The model that was chosen on dev text."""
        return next((s for s in self.settings if not s.is_full and s.name == self.facts.get("chosen")), None)

    @property
    def tried(self) -> int:
        """How many settings it chose from: those measured on dev, but controls and random orders."""
        others = [s for s in self.settings if not s.is_full and s.control is None and s.method != "greedy.random"]
        return sum(s.value("dev_bleu") is not None for s in others)

    @property
    def state(self) -> str:
        """How far it has come, in a few words."""
        if self.trouble:
            return self.trouble
        if not self.settings:
            return "no model measured yet" if self.facts else "not begun"
        missing = [name for name in self.facts.get("settings", {}) if name not in {s.name for s in self.settings}]
        told = f"{count(len(self.settings), 'model')} measured"
        return told + (f", {len(missing)} pruned and not measured yet" if missing else "")

    @property
    def failures(self) -> list[str]:
        """What failed, with the last line of why."""
        failed: Mapping[str, str] = self.facts.get("failed") or {}
        return [f"{stage}: {(why.strip().splitlines() or ['no reason was left'])[-1]}" for stage, why in failed.items()]


@dataclass(frozen=True)
class Grid:
    """All studies of a plan, in its order. means: over seeds, by data, setting and measure, where two have them."""

    folder: Path
    name: str
    members: tuple[Member, ...]
    means: Mapping[tuple[str, str, str], Measured]

    @property
    def part(self) -> str:
        """What stands before the names of measures that are reported: nothing for test text, `dev_` without any."""
        pruned = [s for member in self.members for s in member.settings if not s.is_full]
        return "dev_" if pruned and all(s.value("bleu") is None for s in pruned) else ""

    @property
    def text(self) -> str:
        """The text of the numbers: `test` or `dev`."""
        return "dev" if self.part else "test"

    @property
    def data(self) -> list[str]:
        """The data sets, one empty name where there is only one."""
        return list(dict.fromkeys(member.data for member in self.members))

    def of(self, data: str) -> list[Member]:
        """The studies of a data set that have measured something."""
        return [member for member in self.members if member.data == data and member.settings]


def read_grid(folder: Path) -> Grid:
    """Read a grid folder. A member that cannot be read, or is not there yet, is kept with the reason."""
    told = read_json(folder / "grid.json", dict)
    try:
        listed = [(str(m["folder"]), str(m["data"]), int(m["seed"])) for m in told["members"]]
        name = str(told["name"])
    except (KeyError, TypeError, ValueError) as error:
        raise HeadwiseError(
            f"{folder / 'grid.json'} should name the studies of a grid, each with folder, data and seed, but does not "
            f"({type(error).__name__}: {error}): run the study again."
        ) from None
    return Grid(folder, name, tuple(_member(folder, *one) for one in listed), _means(folder / "across.csv"))


def _means(path: Path) -> dict[tuple[str, str, str], Measured]:
    """The means over seeds with their intervals; none without the file."""
    table = read_table(path, ACROSS_COLUMNS)
    if table is None:
        return {}
    values = table[["value", "low", "high"]].astype(float).itertuples(index=False, name=None)
    keys = table[["data", "setting", "measure"]].fillna("").astype(str).itertuples(index=False, name=None)
    return {
        key: Measured(value, None if pd.isna(low) else low, None if pd.isna(high) else high)
        for key, (value, low, high) in zip(keys, values, strict=True)
    }


def _member(grid: Path, place: str, data: str, seed: int) -> Member:
    folder = grid / place
    facts: Mapping[str, Any] = {}
    settings: tuple[Setting, ...] = ()
    trouble = ""
    if (folder / "run.json").is_file():
        try:
            facts, settings = read_measured(folder)
        except HeadwiseError as error:
            trouble = f"cannot be read: {error}"
    elif folder.is_dir():
        trouble = "begun, nothing measured yet"
    return Member(place, data, seed, facts, settings, trouble, (folder / "report.html").is_file())


def pooled(grid: Grid, data: str) -> Models | None:
    """The studies of one data set as one, whose settings are means over seeds; None before one has results.

    Where at least two seeds have a setting, its differences and their intervals are those of across.csv; otherwise its
    one seed's. Its BLEU is put where the mean difference puts it, from the mean of all full models: seeds that start
    higher do not lift the settings that only they have. `asked["seeds"]`: how many seeds a setting stands on.
    """
    members = grid.of(data)
    if not members:
        return None
    full = _mean_full(members)
    every = {s.name: s for member in reversed(members) for s in member.settings if not s.is_full}
    settings = [_mean(grid, data, members, setting, full) for setting in every.values()]
    ordered = sorted(settings, key=lambda s: -s.kept)
    facts = {key: value for key, value in members[0].facts.items() if key == "max_drop"}
    return Models(facts, (*([full] if full else []), *ordered))


def _mean_full(members: Sequence[Member]) -> Setting | None:
    found = [member.full for member in members if member.full is not None]
    if not found:
        return None
    means: dict[str, Measured] = {}
    for part in PARTS:
        values = [value for full in found if (value := full.value(f"{part}bleu")) is not None]
        means |= {f"{part}bleu": Measured(fmean(values))} if values else {}
    return replace(found[0], measures=means, asked={"seeds": len(found)})


def _mean(grid: Grid, data: str, members: Sequence[Member], setting: Setting, full: Setting | None) -> Setting:
    """A setting over the seeds that have it."""
    same = [own for member in members for own in member.settings if own.name == setting.name]
    measures: dict[str, Measured] = {}
    for part in PARTS:
        for ending in ENDINGS:
            measure = f"{part}bleu_difference{ending}"
            found = grid.means.get((data, setting.name, measure))
            alone = [own.measures[measure] for own in same if measure in own.measures]
            if found is None and len(alone) == 1:
                found = alone[0]
            if found is not None:
                measures[measure] = found
        base, change = full.value(f"{part}bleu") if full else None, measures.get(f"{part}bleu_difference")
        if base is not None and change is not None:
            measures[f"{part}bleu"] = Measured(base + change.value)
    kept = [own.kept for own in same]
    asked = {**setting.asked, "seeds": len(same), "kept": [min(kept), max(kept)], "mean_kept": fmean(kept)}
    return replace(setting, kept=round(fmean(kept)), measures=measures, asked=asked)
