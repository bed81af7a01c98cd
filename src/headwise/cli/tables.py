"""The tables at the end of a command, for the terminal: a block for every head, and what models are worth.

Each is readable without colour: a block holds a digit, letters or a sign, so that a log file says the same.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from rich.console import Console
from rich.padding import Padding
from rich.style import Style
from rich.table import Table
from rich.text import Text

from headwise.heads import Head, HeadMap, HeadMask, Site
from headwise.report.theme import DARK

if TYPE_CHECKING:
    import pandas as pd

SCALE = DARK["heatmap"].split()
HUES = [DARK["accent"], DARK["second"], *DARK["categories"].split()]
KEPT, REMOVED = (
    Style(color="cyan"),
    Style(color="magenta"),
)  # as the terminal has them, on light or dark
NOTHING = "·"
ADDRESS = ["kind", "layer", "head"]
LESS_IS_BETTER = "perplexity_change"
HEADS = "Heads in columns, layers in rows:"
SCORED = "Heads in columns, layers in rows; 0 is the lowest value of a measure, 9 its highest:"
REMAIN = f"Heads in columns, layers in rows; ■ is kept, {NOTHING} is removed:"


class Map(NamedTuple):
    """A block of `block` characters for every head, with its colours. note: what stands below the title."""

    title: str
    note: str
    block: int
    blocks: Mapping[Head, tuple[str, Style]]


def show_maps(console: Console, heads: HeadMap, maps: Sequence[Map], caption: str) -> None:
    """Print maps: layers in rows, heads from 0 in columns, as many maps side by side as the width has room for. The
    heads of a layer that are too many for a line go on below."""
    if maps:
        console.print(f"  {caption}", markup=False, soft_wrap=True)
    names = {site: f"{site.kind}/{site.layer}" for site in heads.sites}
    room = (
        console.width - 4 - max(map(len, names.values()), default=0)
    )  # 2 before the names, 2 between columns
    most = max((heads.count(site) for site in heads.sites), default=0)
    band, left = list[Map](), room
    for one in maps:
        width = max(len(one.title), len(one.note), most * one.block)
        if band and width > left:
            print_band(console, heads, names, band, room)
            band, left = [], room
        band.append(one)
        left -= width + 2
    if band:
        print_band(console, heads, names, band, room)


def print_band(
    console: Console, heads: HeadMap, names: Mapping[Site, str], maps: Sequence[Map], room: int
) -> None:
    """Print maps side by side. room: characters for them."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="")
    table.add_column("", no_wrap=True)
    for one in maps:
        table.add_column(Text(f"{one.title}\n{one.note}"))
    for site, name in names.items():
        cells = []
        for one in maps:
            line, number = max(1, room // one.block), range(heads.count(site))
            blocks = [
                one.blocks.get(Head(*site, head), (NOTHING.rjust(one.block), "")) for head in number
            ]
            lines = [Text.assemble(*blocks[start : start + line]) for start in number[::line]]
            cells.append(Text("\n").join(lines))
        table.add_row(name, *cells)
    console.print(Padding(table, (0, 0, 0, 2)))


def score_maps(table: pd.DataFrame) -> list[Map]:
    """For each measure of a table of scores, a digit for every head: tenths of the way from its lowest to its highest
    value."""
    maps = []
    for measure, rows in table.groupby("measure", sort=False):
        low, high = rows.value.min(), rows.value.max()
        values = rows[[*ADDRESS, "value"]].itertuples(index=False, name=None)
        blocks = {Head(*address): scored(value, low, high) for *address, value in values}
        maps.append(Map(str(measure), f"{low:.3g} … {high:.3g}", 2, blocks))
    return maps


def scored(value: float, low: float, high: float) -> tuple[str, Style]:
    """The block of one score."""
    if math.isnan(value):
        return f" {NOTHING}", Style()
    tenths = min(int(10 * (value - low) / (high - low)), 9) if high > low else 0
    ground = SCALE[tenths * len(SCALE) // 10]
    return f" {tenths}", Style(bgcolor=ground, color=DARK["on-low" if tenths < 5 else "on-high"])


def role_map(heads: HeadMap, roles: pd.DataFrame) -> Map:
    """The first two letters of the category of each head's best role. roles: as `Roles.roles`."""
    from headwise.roles.role import category

    best = roles.drop_duplicates(ADDRESS)  # the highest value of each head comes first
    rows = best[[*ADDRESS, "measure"]].itertuples(index=False, name=None)
    found = {Head(*address): category(measure) for *address, measure in rows}
    counts = Counter(found.values()).most_common()
    hues = {
        name: Style(bgcolor=HUES[i % len(HUES)], color=DARK["on-high"])
        for i, (name, _) in enumerate(counts)
    }
    blocks = {head: (f" {NOTHING} ", Style()) for head in heads}
    blocks |= {head: (f" {name[:2]}", hues[name]) for head, name in found.items()}
    return Map(
        "best role",
        ", ".join(f"{name[:2]}: {name} {count}" for name, count in counts) or "none",
        3,
        blocks,
    )


def kept_map(title: str, mask: HeadMask) -> Map:
    """Which heads a layout keeps."""
    blocks = {
        head: (" ■", KEPT) if head in mask.kept else (f" {NOTHING}", REMOVED) for head in mask.heads
    }
    return Map(title, f"{len(mask)} of {mask.heads.total}", 2, blocks)


def show_kept(console: Console, layouts: Mapping[str, HeadMask | None]) -> None:
    """Print the layouts of pruned models of one model, by name."""
    masks = {name: mask for name, mask in layouts.items() if mask is not None}
    for heads in dict.fromkeys(mask.heads for mask in masks.values()):
        show_maps(
            console,
            heads,
            [kept_map(name, mask) for name, mask in masks.items() if mask.heads == heads],
            REMAIN,
        )


def show_quality(console: Console, table: pd.DataFrame) -> None:
    """Print a table of `evaluate`: measures in rows, models in columns, how each was made below."""
    shown = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    shown.add_column("", overflow="fold")
    for model in table.model.unique():
        shown.add_column(Text(model), justify="right", overflow="fold")
    for measure, rows in table.groupby("measure", sort=False):
        numbers = rows[["model", "value", "low", "high"]].itertuples(index=False, name=None)
        cells = {model: valued(str(measure), *three) for model, *three in numbers}
        shown.add_row(str(measure), *(cells.get(model, Text("")) for model in table.model.unique()))
    console.print(Padding(shown, (0, 0, 0, 2)))
    for made, rows in table[table.made != ""].groupby("made", sort=False):
        console.print(
            f"  {', '.join(rows.measure.unique())}: {made}",
            style="dim",
            markup=False,
            soft_wrap=True,
        )


def valued(measure: str, value: float, low: float, high: float) -> Text:
    """`34.2 [33.1, 35.3]`; a change that its interval separates from 0 is coloured: better or worse."""
    text = plain(value) if math.isnan(low) else f"{plain(value)} [{plain(low)}, {plain(high)}]"
    if not measure.endswith(("_change", "_difference")) or not (low > 0 or high < 0):
        return Text(text)
    return Text(text, KEPT if (low > 0) != (measure == LESS_IS_BETTER) else REMOVED)


def plain(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1e4 else f"{value:.4g}"
