"""A table of the page: columns, and lines of cells that are already written out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from headwise.report.run import Run
from headwise.report.setting import Setting
from headwise.report.wording import NONE, interval, percent, probability, quantity, signed, size

SETTINGS = (
    "model",
    "heads kept",
    "BLEU",
    "difference [95 %]",
    "p",
    "chrF",
    "dev BLEU",
    "parameters",
    "size",
    "tokens/s",
)


@dataclass(frozen=True)
class Line:
    """A row of cells, of which the first lines count most.

    `badge` is a word beside its name and marks the row, `code` the name that the run's files use.
    """

    cells: list[str]
    badge: str = ""
    code: str = ""


@dataclass(frozen=True)
class Table:
    """Some lines under their columns; `label` says what it holds to those who do not see it."""

    label: str
    columns: list[str]
    lines: list[Line]


def settings_table(run: Run) -> Table | None:
    """Every model of the study; None before one was evaluated."""
    if not run.settings:
        return None
    return Table("All settings", list(SETTINGS), [_line(setting, run) for setting in run.ordered])


def _line(setting: Setting, run: Run) -> Line:
    """A setting as a row; what was not measured is a dash."""
    difference, p = setting.measures.get("bleu_difference"), setting.value("p_value")
    told = (
        "" if difference is None else f"{signed(difference.value)} {interval(difference.low, difference.high)}".strip()
    )
    cells = [
        setting.label,
        f"{setting.kept} ({percent(setting.kept / setting.total)})",
        _cell(setting, "bleu"),
        told or NONE,
        NONE if p is None else probability(p),
        _cell(setting, "chrf"),
        _cell(setting, "dev_bleu"),
        _cell(setting, "parameters", quantity),
        _cell(setting, "bytes", size),
        _cell(setting, "tokens_per_second", quantity),
    ]
    return Line(cells, badge="chosen" if setting is run.chosen else "")


def _cell(setting: Setting, measure: str, told: Callable[[float], str] = "{:.2f}".format) -> str:
    value = setting.value(measure)
    return NONE if value is None else told(value)
