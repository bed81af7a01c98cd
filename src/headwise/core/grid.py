"""One picture of heads, layers in rows and heads in columns: in a notebook, in the terminal, in a report's charts.

A `HeadGrid` has a value, a name and a state (kept or removed) for each head. `html` and `svg` draw it for notebooks and
films, `side_by_side` for the terminal; the report makes a chart of its `cells`.
"""

from __future__ import annotations

import io
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headwise.core.folders import write_file
from headwise.core.head_panels import picture_bytes, picture_path
from headwise.core.heads import Head, HeadMap, Site, head_of
from headwise.core.theme import DARK, FONT, LIGHT, STATUS, TERMINAL, Scale, ranges

if TYPE_CHECKING:
    import pandas as pd
    from rich.console import RenderableType
    from rich.style import Style
    from rich.table import Table

SQUARE, GAP = 16, 2  # pixels of a head's square in a notebook, and between two of them
SMALL = 6  # pixels of a square where a layer has more than MOST_ACROSS heads
MOST_ACROSS = 40
MOST_TOOLTIPS = 1500  # heads, above which a picture has no tooltips: each takes about 100 bytes
LINE_PIXELS = 18  # pixels of a line of text
NOTHING = "·"
ONE = Scale()  # from 0 to 1


@dataclass(frozen=True)
class HeadGrid:
    """A picture of heads.

    values: a number for each head, coloured by `scale`; a head without one is drawn as not measured. groups: a name for
    each head, such as the category of its role; colours: of every name. kept: the heads that stay; None where
    nothing was pruned. framed: heads with an outline. columns: the place of a head in its layer; by default its number.
    facts: more about each head, which a chart writes into cells or shows at the pointer.
    """

    heads: HeadMap
    title: str = ""
    note: str = ""
    values: Mapping[Head, float] | None = None
    scale: Scale = ONE
    groups: Mapping[Head, str] | None = None
    colours: Mapping[str, str] = field(default_factory=dict)
    kept: frozenset[Head] | None = None
    framed: frozenset[Head] = frozenset()
    columns: Mapping[Head, int] = field(default_factory=dict)
    facts: Mapping[Head, Mapping[str, Any]] = field(default_factory=dict)

    @classmethod
    def of_scores(cls, heads: HeadMap, table: pd.DataFrame, measure: str) -> HeadGrid:
        """One measure of a table of scores, coloured from its lowest value to its highest."""
        rows = table[table["measure"] == measure]
        values = {head_of(row): float(row["value"]) for row in rows.to_dict("records")}
        low, high = float(rows["value"].min()), float(rows["value"].max())
        return cls(heads, measure, f"{low:.3g} … {high:.3g}", values, Scale(low, high))

    @classmethod
    def of_groups(
        cls, heads: HeadMap, groups: Mapping[Head, str], title: str, colours: Mapping[str, str]
    ) -> HeadGrid:
        """A name for some of the heads; the note counts the names by their first two letters, as the terminal has them."""
        counts = Counter(groups.values()).most_common()
        note = ", ".join(f"{name[:2]}: {name} {count}" for name, count in counts) or "none"
        return cls(heads, title, note, groups=groups, colours=colours)

    def cells(self, kind: str) -> list[dict[str, Any]]:
        """A row for each head of a kind that the picture says something about: its address, layer, head and column, its
        value, group, whether it is kept (`kept`, `removed`) and framed (1 or 0), and its facts."""
        rows = []
        for head in self.heads:
            if head.kind != kind or not self._mentions(head):
                continue
            row: dict[str, Any] = {
                "address": str(head),
                "layer": head.layer,
                "head": head.head,
                "column": self.columns.get(head, head.head),
            }
            if self.values is not None:
                row["value"] = self.values.get(head)
            if self.groups is not None:
                row["group"] = self.groups.get(head)
            if self.kept is not None:
                row["kept"] = "kept" if head in self.kept else "removed"
            if self.framed:
                row["framed"] = int(head in self.framed)
            rows.append(row | dict(self.facts.get(head, {})))
        return rows

    def _mentions(self, head: Head) -> bool:
        if self.kept is not None:
            return True
        said = [table for table in (self.values, self.groups) if table is not None]
        return not said or any(head in table for table in said)

    def tip(self, head: Head) -> str:
        """The tooltip of a head: `cross/0/3: 0.231, kept`."""
        words = []
        if self.values is not None:
            value = self.values.get(head, math.nan)
            words.append("not measured" if math.isnan(value) else f"{value:.4g}")
        if self.groups is not None:
            words.append(self.groups.get(head, "–"))
        if self.kept is not None:
            words.append("kept" if head in self.kept else "removed")
        return f"{head}: {', '.join(words)}" if words else str(head)

    # For notebooks and films.

    def html(self) -> str:
        """The picture with its title, for notebooks."""
        note = escape(self.note)
        if self.groups is not None:
            names = []
            for name, number in Counter(self.groups.values()).most_common():
                square = f'<span style="color: {self.colours[name]}">■</span>'
                names.append(f"{square} {escape(name)} {number}")
            note = " ".join(names)
        caption = f"<figcaption>{escape(self.title)} {note}</figcaption>"
        return f'<figure style="margin: 0">{caption}{self.svg()}</figure>'

    _repr_html_ = html

    def svg(self) -> str:
        """The picture as SVG: the kinds of attention side by side, each under its name."""
        square = SQUARE if self._most_across <= MOST_ACROSS else SMALL
        parts = []
        left = bottom = 0
        for kind in self.heads.kinds:
            layers = self.heads.query[kind]
            numbers = 8 * len(str(len(layers)))  # pixels for the numbers of layers
            parts.append(svg_text(left + numbers, 12, kind, LIGHT["muted"]))
            for layer in range(len(layers)):
                if square == SQUARE:
                    middle = LINE_PIXELS + layer * (square + GAP) + 12
                    parts.append(svg_text(left, middle, str(layer), LIGHT["muted"], size=11))
            parts += self.squares(kind, left + numbers, LINE_PIXELS, square)
            # The kind's name above may be wider than its heads.
            wide = max([*layers, 0]) * (square + GAP)
            left += numbers + max(wide, 7 * len(kind)) + 2 * LINE_PIXELS
            bottom = max(bottom, LINE_PIXELS + len(layers) * (square + GAP))
        size = f'width="{left}" height="{bottom + 16}"'
        box = f'viewBox="-8 -8 {left} {bottom + 16}" {size}'
        named = f'role="img" aria-label="{escape(self.title)}"'
        card = f'<rect x="-8" y="-8" {size} rx="4" fill="{LIGHT["card"]}"/>'
        return f'<svg xmlns="http://www.w3.org/2000/svg" {box} {named}>{card}{"".join(parts)}</svg>'

    def squares(self, kind: str, left: int, top: int, square: int = SQUARE) -> Iterator[str]:
        """The heads of a kind as SVG: large squares, small ones for removed heads. left, top: pixels of the corner."""
        # Heads that look alike are one path where tooltips would make the picture too large.
        shapes: dict[str, list[str]] = {}
        named = self.heads.total <= MOST_TOOLTIPS
        for head in self.heads:
            if head.kind != kind:
                continue
            x: float = left + self.columns.get(head, head.head) * (square + GAP)
            y: float = top + head.layer * (square + GAP)
            small = square // 4 if self.kept is not None and head not in self.kept else 0
            side = square - 2 * small - 1
            x += small + 0.5  # half a pixel, so that the outline is sharp
            y += small + 0.5
            if named:
                box = f'x="{x}" y="{y}" width="{side}" height="{side}" rx="2"'
                tip = f"<title>{escape(self.tip(head))}</title>"
                yield f"<rect {box} {self._look(head)}>{tip}</rect>"
            else:
                shape = f"M{x} {y}h{side}v{side}h{-side}z"
                shapes.setdefault(self._look(head), []).append(shape)
        for look, found in shapes.items():
            yield f'<path d="{"".join(found)}" {look}/>'

    def _look(self, head: Head) -> str:
        """Colour and outline of a head's square."""
        outline = LIGHT["second" if head in self.framed else "line"]
        fill = LIGHT[STATUS["kept"]]
        if self.groups is not None:
            group = self.groups.get(head)
            fill = LIGHT["card"] if group is None else self.colours[group]
        elif self.values is not None:
            fill = self.scale.colour(self.values.get(head, math.nan))
        elif self.kept is not None and head not in self.kept:
            fill = LIGHT[STATUS["removed"]]
        return f'fill="{fill}" stroke="{outline}"'

    @property
    def _most_across(self) -> int:
        return max((self.heads.count(site) for site in self.heads.sites), default=0)

    def save(self, path: str | PathLike[str]) -> Path:
        """Write the picture as .svg, .pdf or .png, in place of a file of that name; returns its path. Raises HeadwiseError
        for another ending, and where the file cannot be written."""
        place = picture_path(path)
        return write_file(place, picture_bytes(self.svg(), place))

    # For the terminal. Each block is readable without colour, so that a log file says the same.

    @property
    def block_width(self) -> int:
        """Characters of a head's block."""
        return 2 if self.groups is None else 3

    def block(self, head: Head) -> tuple[str, Style]:
        """A head's block: a digit (tenths of the way from the low end to the high end), two letters of its group's name,
        or whether it is kept."""
        from rich.style import Style

        if self.groups is not None:
            group = self.groups.get(head)
            if group is None:
                return f" {NOTHING} ", Style()
            return f" {group[:2]}", Style(bgcolor=self.colours[group], color="#000000")
        if self.values is not None:
            value = self.values.get(head, math.nan)
            if math.isnan(value):
                return f" {NOTHING}", Style()
            tenths = min(int(10 * self.scale.share(value)), 9)
            colours = ranges(DARK)[self.scale.colours]
            ground = colours[tenths * len(colours) // 10]
            # The dark range runs from dark to light.
            ink = DARK["on-low" if tenths < 5 else "on-high"]
            return f" {tenths}", Style(bgcolor=ground, color=ink)
        if self.kept is not None and head not in self.kept:
            return f" {NOTHING}", Style(color=TERMINAL["removed"])
        return " ■", Style(color=TERMINAL["kept"])

    def __repr__(self) -> str:
        """The picture in letters, without colours."""
        from rich.console import Console

        file = io.StringIO()
        Console(file=file, width=80, force_jupyter=False).print(self)
        return file.getvalue().rstrip()

    def __rich__(self) -> RenderableType:
        return side_by_side([self])


def side_by_side(grids: Sequence[HeadGrid], width: int = 80) -> RenderableType:
    """Pictures of the same heads for a terminal of `width` characters: as many side by side as there is room for.

    A layer with too many heads for a line continues below.
    """
    from rich.console import Group

    heads = grids[0].heads
    names = {site: f"{site.kind}/{site.layer}" for site in heads.sites}
    longest = max(map(len, names.values()), default=0)
    room = width - 4 - longest  # 2 before the names, 2 between columns
    most = max((heads.count(site) for site in heads.sites), default=0)
    bands: list[list[HeadGrid]] = [[]]
    left = room
    for grid in grids:
        needed = max(len(grid.title), len(grid.note), most * grid.block_width)
        if bands[-1] and needed > left:
            bands.append([])
            left = room
        bands[-1].append(grid)
        left -= needed + 2
    return Group(*(_picture_band(names, band, room) for band in bands))


def _picture_band(
    names: Mapping[Site, str], grids: Sequence[HeadGrid], room: int
) -> RenderableType:
    """Pictures in one line. room: characters for them."""
    from rich.padding import Padding
    from rich.table import Table
    from rich.text import Text

    table: Table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="")
    table.add_column("", no_wrap=True)
    for grid in grids:
        table.add_column(Text(f"{grid.title}\n{grid.note}"))
    for site, name in names.items():
        cells = []
        for grid in grids:
            blocks = [grid.block(head) for head in grid.heads if head[:2] == site]
            across = max(1, room // grid.block_width)
            lines = []
            for start in range(0, len(blocks), across):
                lines.append(Text.assemble(*blocks[start : start + across]))
            cells.append(Text("\n").join(lines))
        table.add_row(name, *cells)
    return Padding(table, (0, 0, 0, 2))


def svg_text(x: int, y: int, words: str, colour: str, size: int = 12, weight: int = 400) -> str:
    """A text in an SVG picture."""
    look = f'font-family="{FONT}" font-size="{size}" font-weight="{weight}" fill="{colour}"'
    return f'<text x="{x}" y="{y}" {look}>{escape(words)}</text>'
