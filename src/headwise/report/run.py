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
class Run:
    """All that a report tells. `settings` holds the full model first, then the pruned ones from many heads to few."""

    folder: Path
    facts: Mapping[str, Any]
    plan: str | None
    training: pd.DataFrame | None
    heads: pd.DataFrame | None
    faithfulness: pd.DataFrame | None
    curves: pd.DataFrame | None
    lrp: pd.DataFrame | None
    roles: RolesFound | None
    settings: tuple[Setting, ...]
    layouts: Mapping[str, HeadMask]
    gates: Mapping[str, pd.DataFrame]
    translations: Mapping[str, list[str]]

    def pruned_kinds(self, setting: Setting) -> list[Kind]:
        """The kinds of heads that a setting could remove, of those in its layout; all of them where none is named."""
        known = self.layouts[setting.name].heads.kinds
        return [kind for kind in known if kind in setting.kinds] or list(known)

    @property
    def full(self) -> Setting | None:
        """The model before pruning."""
        return next((s for s in self.settings if s.is_full), None)

    @property
    def pruned(self) -> list[Setting]:
        """Every pruned model, from many heads to few."""
        return [s for s in self.settings if not s.is_full]

    @property
    def chosen(self) -> Setting | None:
        """The pruned model that run.json names as chosen; None when there is none or the choice was not to prune."""
        return next((s for s in self.pruned if s.name == self.facts.get("chosen")), None)


def read_run(folder: Path) -> Run:
    """Read a run folder. Raises HeadwiseError when it is none, or when one of its files is not what it should be."""
    if not (folder / "run.json").is_file():
        found = "a folder without run.json" if folder.is_dir() else "no folder"
        raise HeadwiseError(
            f"A report was asked of {folder}, but that is {found}: name the --out folder of a finished study."
        )
    pruning = _table(folder / "pruning.csv", PRUNING_COLUMNS)
    settings = read_settings(pruning) if pruning is not None else ()
    names = [s.name for s in settings if not s.is_full]
    layouts = {name: folder / "layouts" / f"{name}.json" for name in names}
    gates = {name: _table(folder / "gates" / f"{name}.csv", GATE_COLUMNS) for name in names}
    return Run(
        folder=folder,
        facts=_json(folder / "run.json", dict),
        plan=_text(folder / "plan.toml"),
        training=_table(folder / "train" / "log.csv", LOG_COLUMNS),
        heads=_table(folder / "heads.csv", COLUMNS),
        faithfulness=_table(folder / "faithfulness.csv", FAITHFULNESS_COLUMNS),
        curves=_table(folder / "curves.csv", CURVE_COLUMNS),
        lrp=_table(folder / "lrp.csv", LRP_COLUMNS),
        roles=_roles(folder / "roles"),
        settings=settings,
        layouts={name: HeadMask.read(path) for name, path in layouts.items() if path.is_file()},
        gates={name: table for name, table in gates.items() if table is not None},
        translations=_translations(folder / "translations" / "test", names),
    )


def _roles(folder: Path) -> RolesFound | None:
    """The files of the folder roles/, which must all be there; None without the folder."""
    if not folder.is_dir():
        return None
    tables = {name: _table(folder / f"{name}.csv", columns) for name, columns in ROLE_COLUMNS.items()}
    found = {name: table for name, table in tables.items() if table is not None}
    missing = [f"{name}.csv" for name in tables if name not in found]
    missing += [name for name in ("facts.json", "examples.json") if not (folder / name).is_file()]
    if missing:
        raise HeadwiseError(f"{folder} has no {', '.join(missing)}: run the stage of roles again.")
    return RolesFound(**found, facts=_json(folder / "facts.json", dict), examples=_json(folder / "examples.json", list))


def _json(path: Path, sort: type[T]) -> T:
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


def _table(path: Path, columns: tuple[str, ...]) -> pd.DataFrame | None:
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
