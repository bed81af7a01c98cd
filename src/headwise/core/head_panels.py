"""Panels of the same heads beside each other, at the size of a printed page: figure 1 of Voita et al. (2019).

Every panel has layers in rows and heads in columns, all in one order, so that a head stands at the same place in each.
Lengths are points (72 an inch).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from os import PathLike
from pathlib import Path

from headwise.core.errors import HeadwiseError
from headwise.core.folders import as_path, write_file
from headwise.core.heads import Head
from headwise.core.theme import DARK, LIGHT, Palette, Scale, blend, ranges

COLUMN = 3.3 * 72  # of a page of two columns
PAGE = 7.0 * 72  # both of them
FONT = (
    "Arial, Helvetica, 'Liberation Sans', sans-serif"  # metrics alike, so that words fit anywhere
)
WORDS = 6.0  # of the text in cells
TITLE = 8.0  # of a panel
SMALLEST = 6.0  # text that is read in print
SMALLEST_NAME = 4.6  # of heads, and of titles that are long
ROW = 20.0  # the height of a layer
FUNCTION_ROW = 27.0  # the same with functions
TALLEST = 360.0  # of all layers
NUMBER_LINE = 7.5  # of a cell with functions, for the number of its head
BAND = 8.0  # of a function in words
NARROWEST = 26.0  # cell with functions beside other panels
BETWEEN = 16.0  # panels
LAYERS = 22.0  # for the numbers of layers
BOLD = 0.6  # the width of a bold letter, in parts of its height
# The same of letters that are narrower or wider than most, in Arial.
WIDTHS = {
    **dict.fromkeys("ijl", 0.222),
    **dict.fromkeys("ft.,:/I ", 0.278),
    **dict.fromkeys("r-()", 0.333),
    **dict.fromkeys("cksvxyz", 0.5),
    **dict.fromkeys("mM", 0.833),
    **dict.fromkeys("→✓…", 1.0),
}
LETTER = 0.56
ENDINGS = (".pdf", ".svg", ".png")


@dataclass(frozen=True)
class Function:
    """What a head does. group: what it is called in the legend, colour: which one that has. text: in few letters. value: how
    often. sure: whether every draw of the text confirms it. confirmed: whether it is confirmed with the head off."""

    group: str
    colour: str
    text: str
    value: float
    sure: bool = True
    confirmed: bool = False


@dataclass(frozen=True)
class HeadPanel:
    """A panel: a value of each head, or its functions.

    unit: what a value is, in a few words. share: a value that is marked on the scale, such as an equal share.
    """

    title: str
    unit: str = ""
    values: Mapping[Head, float] | None = None
    share: float | None = None
    functions: Mapping[Head, Sequence[Function]] | None = None

    @property
    def scale(self) -> Scale:
        """The colours of its values."""
        return Scale.of((self.values or {}).values())


@dataclass(frozen=True)
class HeadPanels:
    """Panels of some heads. heads: of one kind, in the order in which they stand. caption: what is drawn, in sentences
    that stand below the picture."""

    heads: Sequence[Head]
    panels: Sequence[HeadPanel]
    caption: str = ""
    layers: str = "layer"

    def save(
        self, path: str | PathLike[str], width: float = PAGE / 72, *, dark: bool = False
    ) -> Path:
        """Write the picture as .pdf, .svg or .png, in place of a file of that name; returns its path. width: in inches.
        dark: for dark slides. Raises HeadwiseError for another ending, and where the file cannot be written."""
        place = picture_path(path)
        return write_file(place, picture_bytes(self.svg(width, dark=dark), place))

    def svg(self, width: float = PAGE / 72, *, dark: bool = False) -> str:
        """The picture; width: in inches."""
        return Drawing(self, 72 * width, DARK if dark else LIGHT).svg()

    def html(self) -> str:
        """The picture, for notebooks."""
        caption = f"<figcaption>{escape(self.caption)}</figcaption>" if self.caption else ""
        return f'<figure style="margin: 0">{self.svg()}{caption}</figure>'

    _repr_html_ = html

    def __repr__(self) -> str:
        titles = ", ".join(panel.title for panel in self.panels)
        return f"HeadPanels({len(self.heads)} heads: {titles}); .save('heads.pdf') writes it"


class Drawing:
    """`HeadPanels` as SVG of a width in points."""

    def __init__(self, picture: HeadPanels, width: float, palette: Palette) -> None:
        self.picture = picture
        self.width = width
        self.palette = palette
        self.parts: list[str] = []
        self.rows = list(dict.fromkeys(head.layer for head in picture.heads))
        self.column: dict[Head, int] = {}
        counts: dict[int, int] = {}
        for head in picture.heads:
            self.column[head] = counts.get(head.layer, 0)
            counts[head.layer] = self.column[head] + 1
        self.columns = max(counts.values(), default=1)
        functions = [panel.functions for panel in picture.panels if panel.functions is not None]
        self.row = ROW  # of the band that is drawn
        self.colours = {
            one.group: one.colour
            for table in functions
            for found in table.values()
            for one in found
        }

    def svg(self) -> str:
        """All panels: those with functions below the others in a narrow picture, else beside them."""
        every = list(self.picture.panels)
        values = [panel for panel in every if panel.functions is None]
        functions = [panel for panel in every if panel.functions is not None]
        needed = self.columns * (NARROWEST * len(functions) + 10 * len(values))
        bands = [every]
        if self.width < 1.5 * COLUMN or self.room(every) < needed:
            beside = 2 if self.room(values[:2]) >= 16 * self.columns else 1
            bands = [values[at : at + beside] for at in range(0, len(values), beside)]
            bands += [[panel] for panel in functions]
        top = 0.0
        letter = 0
        for band in filter(None, bands):
            top = self.band(band, top, letter) + 8
            letter += len(band)
        top -= 3
        size = (
            f'width="{self.width:.1f}" height="{top:.1f}" viewBox="0 0 {self.width:.1f} {top:.1f}"'
        )
        label = escape(", ".join(panel.title for panel in self.picture.panels))
        ground = f'<rect width="100%" height="100%" fill="{self.palette["card"]}"/>'
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-label="{label}">'
            f"{ground}{''.join(self.parts)}</svg>"
        )

    def room(self, band: Sequence[HeadPanel]) -> float:
        """The width that panels beside each other have for their cells."""
        return self.width - LAYERS - BETWEEN * (len(band) - 1) - 1

    def band(self, band: Sequence[HeadPanel], top: float, letter: int) -> float:
        """Panels beside each other; returns where they end."""
        # A cell with functions has words in it.
        shares = [2.6 if panel.functions is not None and len(band) > 1 else 1.0 for panel in band]
        usual = FUNCTION_ROW if any(panel.functions is not None for panel in band) else ROW
        # Of a very deep model the picture becomes taller than TALLEST: rows that are thinner are not seen.
        self.row = max(4.0, min(usual, TALLEST / max(1, len(self.rows))))
        room = self.room(band)
        left = LAYERS
        end = top
        for at, (panel, share) in enumerate(zip(band, shares, strict=True)):
            wide = room * share / sum(shares)
            name = chr(ord("a") + letter + at) if len(self.picture.panels) > 1 else ""
            end = max(end, self.panel(panel, name, left, top, wide, first=at == 0))
            left += wide + BETWEEN
        return end

    def panel(
        self, panel: HeadPanel, name: str, left: float, top: float, wide: float, first: bool
    ) -> float:
        """One panel with its title, cells and scale or legend; returns where it ends."""
        titles = (panel.title, panel.title.partition(" (")[0])
        title, short = (f"{name}  {words}".strip() for words in titles)
        # What stands in brackets is in the caption, too.
        title = title if BOLD * TITLE * len(title) <= wide + BETWEEN / 2 else short
        size = min(TITLE, (wide + BETWEEN / 2) / (BOLD * len(title)))
        self.text(left, top + 8, title, "ink", max(SMALLEST_NAME, size), bold=True)
        if panel.unit:
            size = fitting(panel.unit, wide + BETWEEN / 2, 6.5) or SMALLEST
            self.text(left, top + 16.5, panel.unit, "muted", size)
        cells = top + 21
        if first:
            middle = cells + len(self.rows) * self.row / 2
            turn = f'transform="rotate(-90 6 {middle:.1f})"'
            self.text(6, middle, self.picture.layers, "muted", 6.5, "middle", more=turn)
            for place, layer in enumerate(self.rows):
                y = cells + (place + 0.5) * self.row + 2.2
                if self.row >= 7 or layer % 4 == 0:
                    self.text(LAYERS - 4, y, str(layer), "muted", min(6.5, self.row), "end")
        across = wide / self.columns
        draw = self.value_cell if panel.functions is None else self.function_cell
        for head in self.picture.heads:
            x = left + self.column[head] * across
            y = cells + self.rows.index(head.layer) * self.row
            draw(panel, head, x, y, across)
        below = cells + len(self.rows) * self.row + 5
        if panel.functions is None:
            return self.scale(panel, left, below, wide)
        return self.legend(panel, left, below, wide)

    def value_cell(self, panel: HeadPanel, head: Head, x: float, y: float, across: float) -> None:
        """A head's value as a colour, and the head's number."""
        value = (panel.values or {}).get(head, math.nan)
        scale = panel.scale
        colours = ranges(self.palette)[scale.colours]
        colour = self.palette["card"]
        if not math.isnan(value):
            colour = blend(colours, scale.share(value))
        said = "not measured" if math.isnan(value) else f"{value:.3g}"
        self.box(x, y, across, self.row, colour, f"{head}: {said}")
        size = fitting(str(head.head), across - 1, WORDS, SMALLEST_NAME)
        if size and self.row >= size + 1:
            ink = readable_on(colour, self.palette)
            self.text(
                x + across / 2,
                y + self.row / 2 + 0.36 * size,
                str(head.head),
                ink,
                size,
                "middle",
            )

    def function_cell(
        self, panel: HeadPanel, head: Head, x: float, y: float, across: float
    ) -> None:
        """A head's number, and below it its functions, a band of colour each; of those that there is no room for, the
        colours and how many they are."""
        found = list((panel.functions or {}).get(head, ()))
        marks = {True: " ✓", False: ""}
        said = (
            ", ".join(f"{one.text} {one.value:.2f}{marks[one.confirmed]}" for one in found)
            or "no known function"
        )
        self.box(x, y, across, self.row, self.palette["line"], f"{head}: {said}")
        name = str(head.head)
        size = fitting(name, across - 1, WORDS, SMALLEST_NAME)
        if size and self.row >= NUMBER_LINE:
            self.text(x + 1.5, y + NUMBER_LINE - 1.5, name, "muted", size)
        if not found:
            return
        top = y + NUMBER_LINE if self.row >= 2 * NUMBER_LINE else y + 0.3
        room = y + self.row - 0.6 - top
        lines = max(1, int(room / BAND))
        shown = found if len(found) <= lines else found[: lines - 1]
        left = found[len(shown) :]
        high = room / (len(shown) + bool(left))
        wide = across - 0.9
        for place, one in enumerate(shown):
            at = top + place * high
            self.band_of([one], x + 0.2, at, wide, high)
            self.function_words(one, x + 0.2, at, wide, high)
        if left:
            at = top + len(shown) * high
            self.band_of(left, x + 0.2, at, wide, high)
            words = f"+{len(left)}" * bool(shown)
            if size := fitting(words, wide - 2, min(WORDS, high - 0.5)):
                self.text(x + 1.5, at + high / 2 + 0.36 * size, words, "#000000", size)

    def band_of(
        self, functions: Sequence[Function], x: float, y: float, wide: float, high: float
    ) -> None:
        """A band in the colours of some functions."""
        colours = list(dict.fromkeys(one.colour for one in functions))
        for place, colour in enumerate(colours):
            part = wide / len(colours)
            self.parts.append(
                f'<rect x="{x + place * part:.2f}" y="{y:.2f}" width="{part:.2f}" height="{high - 0.3:.2f}" '
                f'fill="{colour}"/>'
            )

    def function_words(self, one: Function, x: float, y: float, wide: float, high: float) -> None:
        """What a function is and how often, as far as there is room; a dot where not every draw confirms it, a tick where
        it is confirmed with the head off."""
        room = wide - 2.5
        if one.confirmed:
            self.tick(x + wide - 5.5, y + 1, "#000000")
            room -= 5.5
        if not one.sure:
            place = x + wide - 1.8 - 5.5 * one.confirmed
            self.parts.append(
                f'<circle cx="{place:.2f}" cy="{y + 2.4:.2f}" r="1.2" fill="#000000"/>'
            )
            room -= 3
        value = f"{one.value:.2f}".removeprefix("0")
        both = f"{one.text} {value}"
        name = shortened(one.text, room)
        if high >= 2 * BAND - 2:
            lines = [name, value if width_of(value) * WORDS <= wide - 2.5 else ""]
        else:
            lines = [both if width_of(both) * WORDS <= room else name]
        # A band that is too thin for words has its colour alone; the tooltip has all.
        if high / len(lines) < WORDS:
            return
        for line, words in enumerate(lines):
            middle = y + (line + 0.5) * (high - 0.3) / len(lines)
            self.text(x + 1.3, middle + 0.36 * WORDS, words, "#000000", WORDS)

    def scale(self, panel: HeadPanel, left: float, top: float, wide: float) -> float:
        """The colours of a panel's values with their ends; returns where it ends."""
        scale = panel.scale
        colours = ranges(self.palette)[scale.colours]
        steps = 32
        long = min(wide, 90.0)
        # Each a hair wider than its place: else viewers draw a light seam between two.
        for step in range(steps):
            self.parts.append(
                f'<rect x="{left + step * long / steps:.2f}" y="{top:.2f}" width="{long / steps + 0.2:.2f}" '
                f'height="5" fill="{blend(colours, step / (steps - 1))}"/>'
            )
        anchors = ("start", *["middle"] * (len(scale.ends) - 2), "end")
        for end, anchor in zip(scale.ends, anchors, strict=True):
            self.text(
                left + long * scale.share(end),
                top + 12,
                f"{end:g}".replace("-", "−"),
                "muted",
                6,
                anchor,
            )
        # Nearer to an end its words would lie on those of 0 or of the highest value.
        if panel.share is not None and 0.15 < scale.share(panel.share) < 0.75:
            at = left + long * scale.share(panel.share)
            self.parts.append(
                f'<path d="M{at:.2f} {top - 1:.2f}v7.5" stroke="{self.palette["ink"]}" stroke-width="0.7"/>'
            )
            self.text(at, top + 12, f"1/{round(1 / panel.share)} (equal)", "muted", 5.5, "middle")
        return top + 14

    def legend(self, panel: HeadPanel, left: float, top: float, wide: float) -> float:
        """The colours of functions, what a dot and a tick say; returns where it ends."""
        found = [one for functions in (panel.functions or {}).values() for one in functions]
        names = [(group, colour, "box") for group, colour in self.colours.items()]
        without = sum(not (panel.functions or {}).get(head) for head in self.picture.heads)
        names.append((f"none known ({without})", self.palette["line"], "box"))
        if any(one.confirmed for one in found):
            names.append(("confirmed with the head off", "", "tick"))
        if not all(one.sure for one in found):
            names.append(("not in every draw of the text", "#000000", "dot"))
        x, y = left, top
        for name, colour, shape in names:
            start = 8.5
            needed = start + width_of(name) * 6.3 + 7
            if x + needed > left + wide and x > left:
                x, y = left, y + 9
            if shape == "dot":
                self.parts.append(
                    f'<circle cx="{x + 3:.2f}" cy="{y + 3:.2f}" r="1.6" fill="{self.palette["ink"]}"/>'
                )
            elif shape == "tick":
                self.tick(x + 0.5, y + 0.5, self.palette["ink"])
            else:
                self.parts.append(
                    f'<rect x="{x:.2f}" y="{y:.2f}" width="6" height="6" fill="{colour}"/>'
                )
            self.text(x + start, y + 5.4, name, "muted", 6.3)
            x += needed
        return y + 9

    def tick(self, x: float, y: float, colour: str) -> None:
        """A tick of 5 points; drawn, as not every font has one."""
        self.parts.append(
            f'<path d="M{x:.2f} {y + 2.5:.2f}l1.6 2l3 -4.2" stroke="{colour}" stroke-width="0.9" fill="none"/>'
        )

    def box(self, x: float, y: float, wide: float, high: float, colour: str, tip: str) -> None:
        gap = 0.5 if min(wide, high) > 5 else 0.0
        self.parts.append(
            f'<rect x="{x:.2f}" y="{y:.2f}" width="{wide - gap:.2f}" height="{high - gap:.2f}" fill="{colour}">'
            f"<title>{escape(tip)}</title></rect>"
        )

    def text(
        self,
        x: float,
        y: float,
        words: str,
        ink: str,
        size: float,
        anchor: str = "start",
        bold: bool = False,
        more: str = "",
    ) -> None:
        colour = self.palette.get(ink, ink)
        weight = ' font-weight="700"' if bold else ""
        self.parts.append(
            f'<text x="{x:.2f}" y="{y:.2f}" font-family="{FONT}" font-size="{size:.2f}" fill="{colour}" '
            f'text-anchor="{anchor}"{weight} {more}>{escape(words)}</text>'
        )


def width_of(words: str) -> float:
    """The width of words, in parts of their height."""
    return sum(WIDTHS.get(letter, LETTER) for letter in words)


def fitting(words: str, room: float, size: float, smallest: float = SMALLEST) -> float:
    """The size at which words fit, at most `size`; 0 where they would be smaller than `smallest`."""
    fits = min(size, room / max(width_of(words), LETTER))
    return fits if fits >= smallest else 0.0


def shortened(words: str, room: float) -> str:
    """A function in words that fit, if need be abbreviated (`comp.→`); empty where fewer than two letters would be left."""
    if width_of(words) * WORDS <= room:
        return words
    before, after = ("→" * words.startswith("→"), "→" * words.endswith("→"))
    name = words.strip("→")
    for letters in range(len(name) - 1, 1, -1):
        short = f"{before}{name[:letters].rstrip('.: -')}.{after}"
        if width_of(short) * WORDS <= room:
            return short
    return ""


def readable_on(colour: str, palette: Palette) -> str:
    """The ink with more contrast to a ground: `on-low` or `on-high`."""
    ground = luminance(colour)

    def contrast(ink: str) -> float:
        low, high = sorted((ground, luminance(palette[ink])))
        return (high + 0.05) / (low + 0.05)

    return max(("on-low", "on-high"), key=contrast)


def luminance(colour: str) -> float:
    """The relative luminance of a colour (WCAG 2.2): 0 black, 1 white."""
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [
        part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts
    ]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def picture_path(path: str | PathLike[str]) -> Path:
    """The file of a picture. Raises HeadwiseError for another ending than those that pictures have."""
    place = as_path(path)
    if place.suffix.lower() not in ENDINGS:
        raise HeadwiseError(
            f"A picture is .pdf, .svg or .png, and '{place}' ends otherwise: name it {place.stem or 'heads'}.pdf."
        )
    return place


def picture_bytes(svg: str, place: Path) -> bytes:
    """A picture as its file has it, by the ending of its name; fonts are embedded in PDF. Raises HeadwiseError where the
    package that converts it is not installed."""
    ending = place.suffix.lower()
    if ending == ".svg":
        return svg.encode()
    try:
        import vl_convert  # of the extra `report`
    except ImportError:
        raise HeadwiseError(
            f"A picture as {ending} is made by vl-convert-python, which is not installed: pip install "
            "'headwise[report]', or name a file .svg."
        ) from None
    if ending == ".pdf":
        return bytes(vl_convert.svg_to_pdf(svg))
    return bytes(vl_convert.svg_to_png(svg, ppi=300))
