"""The run folder of a study, read into memory: what the stages left there, and None for what they did not."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import pandas as pd

from headwise.errors import HeadwiseError
from headwise.heads import COLUMNS, HeadMask, Kind
from headwise.report.setting import Setting, read_settings

TEXT = ("setting", "kind", "measure", "against", "kinds", "statistic", "order", "mode", "what", "role", "text", "label")
LOG_COLUMNS = ("step", "epoch", "measure", "value")
GATE_COLUMNS = ("step", "kind", "layer", "head", "p_open")
PRUNING_COLUMNS = ("method", "kinds", "setting", "seed", "kept", "total", "measure", "value", "low", "high")
FAITHFULNESS_COLUMNS = ("measure", "against", "kinds", "statistic", "value", "low", "high", "n")
CURVE_COLUMNS = ("measure", "order", "seed", "removed", "total", "loss", "low", "high")
LRP_COLUMNS = ("measure", "mode", "what", "value", "low", "high")
ROLE_COLUMNS = {
    "table": COLUMNS,
    "roles": (*COLUMNS, "role", "text", "p"),
    "labels": ("kind", "layer", "head", "label"),
    "patterns": ("kind", "layer", "role", "heads", "share"),
}

T = TypeVar("T")


@dataclass(frozen=True)
class RolesFound:
    """What each head does, as the stage of roles left it: its tables, what it says of the text, example sentences."""

    table: pd.DataFrame
    roles: pd.DataFrame
    labels: pd.DataFrame
    patterns: pd.DataFrame
    facts: Mapping[str, Any]
    examples: Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class After:
    """A pruned model, looked at again: its scores and roles. Its heads have the numbers of the whole model."""

    heads: pd.DataFrame | None
    roles: RolesFound | None


@dataclass(frozen=True)
class Models:
    """The models of a study. `settings` holds the full one first, then the others from many heads to few."""

    facts: Mapping[str, Any]
    settings: tuple[Setting, ...]

    @property
    def full(self) -> Setting | None:
        """The model before pruning."""
        return next((s for s in self.settings if s.is_full), None)

    @property
    def pruned(self) -> list[Setting]:
        """Every pruned model, from many heads to few; controls are not among them."""
        return [s for s in self.settings if not s.is_full and s.control is None]

    @property
    def controls(self) -> list[Setting]:
        """The models that pruned ones are held against."""
        return [s for s in self.settings if s.control is not None]

    @property
    def part(self) -> str:
        """What stands before the names of measures on the text of the last numbers: nothing where that is the test
        text, `dev_` where no model but the full one was measured on any.
        """
        others = [s for s in self.settings if not s.is_full] or self.settings
        return "" if any(s.value("bleu") is not None for s in others) else "dev_"

    @property
    def text(self) -> str:
        """The text of the last numbers: `test` or `dev`."""
        return "dev" if self.part else "test"

    @property
    def groups(self) -> list[tuple[str, ...]]:
        """The sets of kinds of heads that were pruned together, single kinds first."""
        return sorted(dict.fromkeys(s.kinds for s in self.settings if not s.is_full), key=len)

    @property
    def ordered(self) -> list[Setting]:
        """All models for a table: the full one, then kinds by kinds from many heads to few, controls behind theirs."""
        place = {kinds: i for i, kinds in enumerate(self.groups)}
        others = [s for s in self.settings if not s.is_full]
        ordered = sorted(others, key=lambda s: (place[s.kinds], -s.kept, s.twin or s.name, s.control is not None))
        return [s for s in self.settings if s.is_full] + ordered

    @property
    def chosen(self) -> Setting | None:
        """The pruned model that run.json names as chosen; None when there is none or the choice was not to prune."""
        return next((s for s in self.pruned if s.name == self.facts.get("chosen")), None)


@dataclass(frozen=True)
class Run(Models):
    """All that a report tells of one study."""

    folder: Path
    plan: str | None
    training: pd.DataFrame | None
    heads: pd.DataFrame | None
    faithfulness: pd.DataFrame | None
    curves: pd.DataFrame | None
    lrp: pd.DataFrame | None
    roles: RolesFound | None
    layouts: Mapping[str, HeadMask]
    gates: Mapping[str, pd.DataFrame]
    translations: Mapping[str, list[str]]
    after: Mapping[str, After]

    def pruned_kinds(self, setting: Setting) -> list[Kind]:
        """The kinds of heads that a setting could remove, of those in its layout; all of them where none is named."""
        known = self.layouts[setting.name].heads.kinds
        return [kind for kind in known if kind in setting.kinds] or list(known)


def read_run(folder: Path) -> Run:
    """Read a run folder. Raises HeadwiseError when it is none, or when one of its files is not what it should be."""
    if not (folder / "run.json").is_file():
        found = "a folder without run.json" if folder.is_dir() else "no folder"
        raise HeadwiseError(
            f"A report was asked of {folder}, but that is {found}: name the --out folder of a finished study."
        )
    facts, settings = read_measured(folder)
    names = [s.name for s in settings if not s.is_full]
    layouts = {name: folder / "layouts" / f"{name}.json" for name in names}
    gates = {name: read_table(folder / "gates" / f"{name}.csv", GATE_COLUMNS) for name in names}
    return Run(
        folder=folder,
        facts=facts,
        plan=_text(folder / "plan.toml"),
        training=read_table(folder / "train" / "log.csv", LOG_COLUMNS),
        heads=read_table(folder / "heads.csv", COLUMNS),
        faithfulness=read_table(folder / "faithfulness.csv", FAITHFULNESS_COLUMNS),
        curves=read_table(folder / "curves.csv", CURVE_COLUMNS),
        lrp=read_table(folder / "lrp.csv", LRP_COLUMNS),
        roles=_roles(folder / "roles"),
        settings=settings,
        layouts={name: HeadMask.read(path) for name, path in layouts.items() if path.is_file()},
        gates={name: table for name, table in gates.items() if table is not None},
        translations=_translations(folder / "translations" / "test", names),
        after={name: _after(folder / "after" / name) for name in names if (folder / "after" / name).is_dir()},
    )


def _after(folder: Path) -> After:
    """The folder after/SETTING/, of which scores or roles may not be there."""
    return After(read_table(folder / "heads.csv", COLUMNS), _roles(folder / "roles"))


def read_measured(folder: Path) -> tuple[Mapping[str, Any], tuple[Setting, ...]]:
    """What a run folder says of itself, and its models with their measures; none without a pruning.csv."""
    facts: Mapping[str, Any] = read_json(folder / "run.json", dict)
    pruning = read_table(folder / "pruning.csv", PRUNING_COLUMNS)
    return facts, () if pruning is None else read_settings(pruning, facts.get("settings", {}))


def _roles(folder: Path) -> RolesFound | None:
    """The files of the folder roles/, which must all be there; None without the folder."""
    if not folder.is_dir():
        return None
    tables = {name: read_table(folder / f"{name}.csv", columns) for name, columns in ROLE_COLUMNS.items()}
    found = {name: table for name, table in tables.items() if table is not None}
    missing = [f"{name}.csv" for name in tables if name not in found]
    missing += [name for name in ("facts.json", "examples.json") if not (folder / name).is_file()]
    if missing:
        raise HeadwiseError(f"{folder} has no {', '.join(missing)}: run the stage of roles again.")
    return RolesFound(
        **found, facts=read_json(folder / "facts.json", dict), examples=read_json(folder / "examples.json", list)
    )


def read_json(path: Path, sort: type[T]) -> T:
    """A JSON file that holds one object or list."""
    try:
        held = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise HeadwiseError(f"{path} was to be read as JSON, but that failed ({error}): run the study again.") from None
    if not isinstance(held, sort):
        should = "object" if sort is dict else "list"
        raise HeadwiseError(
            f"{path} should hold one JSON {should}, but holds {type(held).__name__}: run the study again."
        )
    return held


def read_table(path: Path, columns: tuple[str, ...]) -> pd.DataFrame | None:
    """A CSV file with the columns it must have, or None when there is no such file."""
    if not path.is_file():
        return None
    try:
        table = pd.read_csv(path, encoding="utf-8", dtype=dict.fromkeys(TEXT, str))
    except (OSError, ValueError) as error:
        raise HeadwiseError(
            f"{path} was to be read as a table, but that failed ({error}): run its stage again."
        ) from None
    missing = [column for column in columns if column not in table.columns]
    if missing:
        raise HeadwiseError(f"{path} has no column {', '.join(missing)}; it should have {', '.join(columns)}.")
    return table.replace([math.inf, -math.inf], math.nan)  # a loss that blew up is no number that a chart can show


def _text(path: Path) -> str | None:
    """A text file, or None when there is no such file."""
    if not path.is_file():
        return None
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise HeadwiseError(f"{path} was to be read as text, but that failed ({error}): run its stage again.") from None


def _translations(folder: Path, names: list[str]) -> dict[str, list[str]]:
    """The lines of every translation file that is there; they must be equally many."""
    texts = {name: _text(folder / f"{name}.txt") for name in ("source", "reference", "full", *names)}
    lines = {name: text.removesuffix("\n").split("\n") for name, text in texts.items() if text is not None}
    counts = {name: len(rows) for name, rows in lines.items()}
    if len(set(counts.values())) > 1:
        told = ", ".join(f"{name}.txt {count}" for name, count in counts.items())
        raise HeadwiseError(
            f"The files in {folder} should have equally many lines, but have: {told}. Run evaluate again."
        )
    return lines
