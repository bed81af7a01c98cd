"""The picture of heads: the same facts for notebooks, the terminal and charts."""

from __future__ import annotations

import io
import math
import re
import subprocess
import sys
from xml.etree import ElementTree

import pandas as pd
import pytest
from rich.console import Console

from headwise.core.grid import MOST_TOOLTIPS, HeadGrid, side_by_side
from headwise.core.heads import Head, HeadMap
from headwise.core.layout import HeadMask
from headwise.core.theme import LIGHT, Scale, blend, ranges

MODEL = HeadMap({"encoder-self": (3, 2), "cross": (4, 0)})
FIRST = Head("encoder-self", 0, 1)
GONE = Head("cross", 0, 2)


def scores() -> pd.DataFrame:
    rows = [(*head, "gradient", place) for place, head in enumerate(MODEL)]
    rows[-1] = (*rows[-1][:4], float("nan"))
    return pd.DataFrame(rows, columns=["kind", "layer", "head", "measure", "value"])


def shapes(grid: HeadGrid) -> dict[str, dict[str, str]]:
    """The look of each head in the picture, by its tooltip."""
    root = ElementTree.fromstring(grid.svg())
    found = {}
    for square in root.iter("{http://www.w3.org/2000/svg}rect"):
        for tip in square:
            found[str(tip.text)] = dict(square.attrib)
    return found


def terminal(grid: HeadGrid) -> str:
    console = Console(file=io.StringIO(), width=80, color_system=None)
    console.print(side_by_side([grid], 80))
    return console.file.getvalue()  # type: ignore[attr-defined, no-any-return]


def test_scores_are_coloured_from_the_lowest_to_the_highest() -> None:
    grid = HeadGrid.of_scores(MODEL, scores(), "gradient")
    assert grid.scale == Scale(0, 7) and grid.note == "0 … 7"
    looks = shapes(grid)
    colours = ranges(LIGHT)["heatmap"]
    assert looks["encoder-self/0/0: 0"]["fill"] == colours[0]
    assert looks["cross/0/2: 7"]["fill"] == colours[-1]
    assert looks["cross/0/3: not measured"]["fill"] == LIGHT["card"]
    assert re.findall(r"cross/0 +(.*)", terminal(grid))[0].split() == ["7", "8", "9", "·"]


def test_removed_heads_are_small() -> None:
    grid = HeadMask.full(MODEL).without([GONE]).grid("keep-8")
    looks = shapes(grid)
    assert len(looks) == MODEL.total and grid.note == "8 of 9"
    sides = {tip: look["width"] for tip, look in looks.items()}
    assert sides.pop("cross/0/2: removed") == "7" and set(sides.values()) == {"15"}
    assert re.findall(r"cross/0 +(.*)", terminal(grid))[0].split() == ["■", "■", "·", "■"]


def test_groups_have_the_colours_that_are_given() -> None:
    groups = {FIRST: "rare tokens", GONE: "positional", Head("cross", 0, 3): "positional"}
    colours = {"rare tokens": "#cc79a7", "positional": "#56b4e9"}
    grid = HeadGrid.of_groups(MODEL, groups, "best role", colours)
    assert grid.note == "po: positional 2, ra: rare tokens 1"
    looks = shapes(grid)
    assert looks["cross/0/2: positional"]["fill"] == "#56b4e9"
    assert looks["cross/0/0: –"]["fill"] == LIGHT["card"]
    assert "ra" in terminal(grid)


def test_cells_are_the_rows_of_a_chart() -> None:
    grid = HeadGrid(
        MODEL,
        values={FIRST: 0.5},
        kept=frozenset({FIRST}),
        framed=frozenset({FIRST}),
        columns={FIRST: 7},
        facts={FIRST: {"n": 12}},
    )
    first, second, *_ = sorted(grid.cells("encoder-self"), key=lambda cell: -cell["column"])
    assert first == {
        "address": "encoder-self/0/1",
        "layer": 0,
        "head": 1,
        "column": 7,
        "value": 0.5,
        "kept": "kept",
        "framed": 1,
        "n": 12,
    }
    assert second["value"] is None and second["kept"] == "removed"
    assert [
        cell["head"] for cell in HeadGrid(MODEL, values={FIRST: 0.5}).cells("encoder-self")
    ] == [1]


def test_text_is_escaped() -> None:
    grid = HeadGrid(MODEL, "<b> & co", "a < b", groups={FIRST: "<i>"}, colours={"<i>": "#e69f00"})
    assert "&lt;b&gt; &amp; co" in grid.html() and "<i>" not in grid.html()
    ElementTree.fromstring(grid.svg())


def test_very_large_models_stay_small() -> None:
    large = HeadMap({"decoder-self": (128,) * 120})
    grid = HeadGrid(large, "large", values={head: head.head / 127 for head in large})
    assert large.total > MOST_TOOLTIPS and len(grid.svg()) < 400_000
    ElementTree.fromstring(grid.svg())


def test_a_map_without_heads_has_a_picture() -> None:
    ElementTree.fromstring(HeadGrid(HeadMap({"cross": (0,)}), "none").svg())
    ElementTree.fromstring(HeadGrid(HeadMap({}), "none").svg())


@pytest.mark.parametrize(("value", "share"), [(-9, 0), (1, 0), (2, 0.5), (3, 1), (9, 1)])
def test_a_scale_ends_at_its_ends(value: float, share: float) -> None:
    assert Scale(1, 3).share(value) == share
    assert Scale(1, 1).share(value) == 0


def test_colours_are_mixed_between_neighbours() -> None:
    assert blend(["#000000", "#ffffff"], 0.5) == "#808080"
    assert blend(["#000000", "#0000ff", "#ffffff"], 0.75) == "#8080ff"
    assert blend(["#000000", "#ffffff"], 3) == "#ffffff"


def test_pictures_need_neither_torch_nor_pandas() -> None:
    code = (
        "import sys\n"
        "from headwise.core.grid import HeadGrid\n"
        "from headwise.core.heads import HeadMap\n"
        "assert '<svg' in HeadGrid(HeadMap({'cross': (2,)})).html()\n"
        "assert not {'torch', 'pandas', 'rich'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_scale_shows_values_well_below_zero() -> None:
    """A head without which a model is better is no head without effect; noise below 0 is."""
    scale = Scale.of([0.5, -2.66, 2.5, math.nan])
    assert scale.ends == [-2.7, 0.0, 2.7]
    low, none, high = (scale.colour(value) for value in (-2.66, 0.0, 2.5))
    assert low != none != high != low
    assert none == LIGHT["card"] and scale.colour(-9) == scale.colour(-2.7)
    assert Scale.of([0.5, -0.01]).ends == [0.0, 0.5]
    assert Scale.of([-0.2, -0.1]).ends == [-0.2, 0.0, 0.2]
    assert Scale.of([]).ends == [0.0, 1.0]
