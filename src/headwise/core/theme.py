"""The colours of all pictures, light and dark: one palette for pages, charts, notebooks and the terminal.

Sequential scales run from the paper's lightness to the ink's: more is always further from the paper, and readable
without colour vision.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, 'Liberation Sans', sans-serif"
COLOURS = {  # on light paper, on dark paper
    "paper": ("#fcfcfa", "#12161b"),
    "card": ("#ffffff", "#191f26"),
    "ink": ("#1c2127", "#e7eaed"),
    "muted": ("#5c6670", "#9aa5b0"),
    "line": ("#dfe3e6", "#2c343d"),
    "accent": ("#0a5c9e", "#6db6f2"),
    "second": ("#b3560b", "#f0a35e"),
    "quiet": ("#8d979f", "#74808b"),
    "changed": ("#ffe3c2", "#5b3a14"),
    "on-low": ("#1c2127", "#e7eaed"),
    "on-high": ("#ffffff", "#12161b"),
    "picked": ("#d6006c", "#ff6bb5"),
}
COLOUR_SCALES = {  # two sequential scales, and what follows accent, quiet and second in charts with many categories
    "heatmap": (
        "#f1f5ea #c5e3c8 #70bdbe #2178a6 #175389 #132f61",
        "#232f3a #1f4565 #1f6283 #329498 #86cba0 #eef4bd",
    ),
    "layers": (
        "#d9eaef #a3cedb #62a8c4 #2b74a3 #1a4478 #111f45",
        "#223b53 #25547a #2c7196 #4f9fb1 #96cec0 #e2f0d0",
    ),
    "categories": (
        "#1f7a4d #7a3fa0 #0f7478 #3b62c9 #8a5a44 #b0306a #6b6a12 #4a5a8a #a3451f #2f6f2f #8b2f8b #7d5a00 #b02a30",
        "#7ccf9a #c79bf0 #5fd0cf #9db4ff #d0a58d #f08fb4 #d3cf6a #aab8e6 #f2a488 #a5d99a #e39be0 #e0b55c #ff9a94",
    ),
}
# Of what heads do, on any paper and under black words. The first seven are colours that people with any colour vision tell
# apart (Okabe and Ito 2008; the seventh is lighter).
FUNCTIONS = (
    *("#56b4e9", "#e69f00", "#cc79a7", "#009e73", "#f0e442", "#d55e00", "#3f7fbf"),
    *("#bbcc33", "#b39ddb", "#bfa98a"),
)
BELOW = 0.1  # of the highest value: from so far below 0 on, a scale shows what is below
# The colours of what a pruned model does with a head, and of the model that was chosen.
STATUS = {"kept": "accent", "removed": "quiet", "chosen": "second"}
# The same on a terminal, by names of its own palette, so that they suit light and dark ones.
TERMINAL = {"kept": "cyan", "removed": "magenta"}
Palette = dict[str, str]
LIGHT, DARK = (
    {name: pair[paper] for name, pair in (COLOURS | COLOUR_SCALES).items()} for paper in (0, 1)
)


def css_variables(palette: Palette) -> str:
    """The colours of a palette as variables of CSS."""
    return " ".join(f"--{name}: {colour};" for name, colour in palette.items())


def ranges(palette: Palette) -> dict[str, list[str]]:
    """The colours of each scale of a palette, from its low end to its high end; `category`: one colour a name."""
    accent = palette["accent"]
    card = palette["card"]
    second = palette["second"]
    status = [palette[STATUS[word]] for word in ("kept", "removed", "chosen")]
    return {
        "category": [*status, *palette["categories"].split()],
        "heatmap": palette["heatmap"].split(),
        "ordinal": palette["layers"].split(),
        "diverging": [second, card, accent],
    }


def blend(colours: list[str], share: float) -> str:
    """The colour at a share of the way (0 to 1) through several, mixed in RGB."""
    place = min(max(share, 0.0), 1.0) * (len(colours) - 1)
    first = min(int(place), len(colours) - 2)
    mixed = "#"
    for digit in (1, 3, 5):
        low = int(colours[first][digit : digit + 2], 16)
        high = int(colours[first + 1][digit : digit + 2], 16)
        mixed += f"{round(low + (place - first) * (high - low)):02x}"
    return mixed


def distinct(place: int) -> str:
    """The colour of a function for each place: after the first ones their pale tints, then tints that are paler."""
    turn, which = divmod(place, len(FUNCTIONS))
    return blend([FUNCTIONS[which], "#ffffff"], 1 - 0.45**turn)


@dataclass(frozen=True)
class Scale:
    """Colours for values from `low` to `high`. colours: a range of the theme, such as `heatmap` or `diverging`."""

    low: float = 0.0
    high: float = 1.0
    colours: str = "heatmap"

    @classmethod
    def of(cls, values: Iterable[float]) -> Scale:
        """From 0 to the highest value, or as far below 0 as above where values reach well below it: a head without which
        a model is better must not look like one without effect. The ends have two digits."""
        known = [value for value in values if math.isfinite(value)]
        highest, lowest = max(known, default=0.0), min(known, default=0.0)
        if lowest < -BELOW * max(highest, 0.0) and lowest < 0:
            top = rounded_up(max(highest, -lowest))
            return cls(-top, top, "diverging")
        return cls(0.0, rounded_up(highest))

    @property
    def ends(self) -> list[float]:
        """Where its colours stand."""
        return [self.low, self.high] if self.low == 0 else [self.low, 0.0, self.high]

    def share(self, value: float) -> float:
        """How far a value lies from the low end to the high end, 0 to 1."""
        if not self.high > self.low:  # also of NaN
            return 0.0
        return min(max((value - self.low) / (self.high - self.low), 0.0), 1.0)

    def colour(self, value: float) -> str:
        """The colour of a value on light paper; of NaN, that of nothing measured."""
        if math.isnan(value):
            return LIGHT["card"]
        return blend(ranges(LIGHT)[self.colours], self.share(value))


def rounded_up(value: float) -> float:
    """The next number of two digits: the end of a colour scale. 1 where nothing is above 0."""
    if not value > 0:
        return 1.0
    unit = 10.0 ** (math.floor(math.log10(value)) - 1)
    # 0.14 / 0.01 is a little above 14: ceil alone would make 0.15 of 0.14.
    return round(math.ceil(round(value / unit, 6)) * unit, 12)
