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
    "dev perplexity",
    "its change in % [95 %]",
    "dev loss",
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
    """Every model of the study, without columns that no model has a number in; None before one was evaluated.

    Where no test text was translated, BLEU and what belongs to it are those of dev. The loss is told where some models
    have no BLEU.
    """
    if not run.settings:
        return None
    lines = [_line(setting, run) for setting in run.ordered]
    columns = [f"dev {name}" if run.part and name in ("BLEU", "chrF") else name for name in SETTINGS]
    shown = [i for i, name in enumerate(columns) if i < 2 or any(line.cells[i] != NONE for line in lines)]
    told = {"dev BLEU": not run.part, "dev loss": any(s.value("dev_bleu") is None for s in run.settings)}
    shown = [i for i in shown if told.get(SETTINGS[i], True)]
    narrow = [Line([line.cells[i] for i in shown], line.badge, line.code) for line in lines]
    return Table("All settings", [columns[i] for i in shown], narrow)


def _line(setting: Setting, run: Run) -> Line:
    """A setting as a row; what was not measured is a dash."""
    part = run.part
    p = setting.value(f"{part}p_value")
    cells = [
        setting.label,
        f"{setting.kept} ({percent(setting.kept / setting.total)})",
        _cell(setting, f"{part}bleu"),
        _change(setting, f"{part}bleu_difference"),
        NONE if p is None else probability(p),
        _cell(setting, f"{part}chrf"),
        _cell(setting, "dev_bleu"),
        _cell(setting, "dev_perplexity"),
        _change(setting, "dev_perplexity_change"),
        _cell(setting, "dev_loss", "{:.4f}".format),
        _cell(setting, "parameters", quantity),
        _cell(setting, "bytes", size),
        _cell(setting, "tokens_per_second", quantity),
    ]
    return Line(cells, badge="chosen" if setting is run.chosen else "")


def _change(setting: Setting, measure: str) -> str:
    found = None if setting.is_full else setting.measures.get(measure)
    return NONE if found is None else f"{signed(found.value)} {interval(found.low, found.high)}".strip()


def _cell(setting: Setting, measure: str, told: Callable[[float], str] = "{:.2f}".format) -> str:
    value = setting.value(measure)
    return NONE if value is None else told(value)
