"""The tables at the end of a command, for the terminal: a block for every head, and what models are worth.

Each is readable without colour: a block holds a digit, letters or a sign, so that a log file says the same.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from headwise.core.grid import NOTHING, HeadGrid, side_by_side
from headwise.core.layout import HeadMask
from headwise.core.progress import write
from headwise.core.qualities import BETTER, QUALITIES, WORSE, Number
from headwise.core.result import plain_number
from headwise.core.theme import TERMINAL
from headwise.faces.report.format import probability_fact, size

if TYPE_CHECKING:
    from headwise.models.evaluation.quality import Quality

FINDING_COLOURS = {BETTER: TERMINAL["kept"], WORSE: TERMINAL["removed"]}
BYTES = ("memory", "cache_bytes")
REMAIN = f"Heads in columns, layers in rows; ■ is kept, {NOTHING} is removed:"


def show_heads(console: Console, grids: Sequence[HeadGrid], caption: str) -> None:
    """Print pictures of the heads of one model, as many side by side as the width has room for."""
    if not grids:
        return
    write(console, f"  {caption}")
    console.print(side_by_side(grids, console.width))


def show_finding(console: Console, headline: str, finding: str) -> None:
    """Print the headline of a study in the colour of its finding."""
    write(console, headline, f"bold {FINDING_COLOURS.get(finding, '')}".strip())


def show_kept(console: Console, layouts: Mapping[str, HeadMask | None]) -> None:
    """Print the layouts of pruned models of one model, by name."""
    masks = {name: mask for name, mask in layouts.items() if mask is not None}
    # Models with other heads, such as a narrower control, do not fit in the same picture.
    for heads in dict.fromkeys(mask.heads for mask in masks.values()):
        grids = [mask.grid(name) for name, mask in masks.items() if mask.heads == heads]
        show_heads(console, grids, REMAIN)


def show_quality(console: Console, quality: Quality) -> None:
    """Print the result of `evaluate`: every measure of every model, and its changes; how each was made below."""
    table = quality.table
    short = {name: Path(name).name for name in table["model"].unique()}
    if len({*short.values()}) < len(short):
        short = {name: name for name in short}
    shown = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=False)
    shown.add_column("", no_wrap=True)
    shown.add_column("", overflow="fold")
    shown.add_column("", overflow="fold")
    columns = ["model", "reference", "value", "low", "high", "p"]
    for measure in table["measure"].unique():
        title, rows = measure.replace("_", " "), table[table["measure"] == measure]
        for model, reference, *numbers in rows[columns].itertuples(index=False, name=None):
            name = f"  from {short.get(reference, reference)}" if reference else short[model]
            shown.add_row(title, Text(name), valued(measure, reference, Number(*numbers)))
            title = ""
    console.print(Padding(shown, (0, 0, 0, 2)))
    for made, rows in table[table["made"] != ""].groupby("made", sort=False):
        names = ", ".join(rows["measure"].unique()).replace("_", " ")
        write(console, f"  {names}: {made}", "dim")
    for note in quality.notes():
        write(console, f"  {note}")


def valued(measure: str, reference: str, number: Number) -> Text:
    """`34.2 [33.1, 35.3]`; a change has its p, and a colour where it is better or worse."""
    assert number.value is not None
    text = plain_number(number.value)
    if measure in BYTES:
        text = size(number.value)
    # A count or a size is exact, and few units have no interval.
    if number.low is None or number.high is None or math.isnan(number.low):
        return Text(text)
    text = f"{text} [{plain_number(number.low)}, {plain_number(number.high)}]"
    for quality in QUALITIES:
        if reference and measure == quality.name:
            assert number.p is not None
            text = f"{text}{quality.unit}, {probability_fact(number.p)}"
            return Text(text, FINDING_COLOURS.get(number.finding(quality), ""))
    return Text(text)
