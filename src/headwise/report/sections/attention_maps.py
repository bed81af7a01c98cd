"""Part of roles: attention maps of example sentences, word by word, with the dependency tree drawn above."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import altair as alt

from headwise.report import charts
from headwise.report.charts import Text, data
from headwise.report.parts import Figure, Panel
from headwise.report.run import Roles
from headwise.roles.label import evidence

ROW = 20  # pixels of a row of the map
LETTER = 7.4  # pixels of a letter
LONGEST = 12  # letters of a word that is written out
STEP = 0.75  # rows between an arc and the one above it
GAP = 0.35  # columns between the words and the rest
CORNER = 7  # points of an arc's rounded end
FOOT = 0.13  # columns between the middle of a word and the end of an arc
MIDDLE = 0.47  # of a cell
NARROW = 18  # pixels of a column on a small screen

Arc = tuple[int, int, str, int]  # governor, dependent, relation, level


def attention_maps(found: Roles) -> Figure | None:
    """A map for every example sentence; None where there is none."""
    if not found.examples:
        return None
    looked_at = max(example["sentences"] for example in found.examples)
    return Figure(
        name="attention-maps",
        title="Roles at work",
        note="from the word of the row to the word of the column; outlined: where the role wants the weight",
        panels=[_map(example) for example in found.examples],
        columns=2,
        facts=f"Sentences searched: {looked_at:,}.",
    )


def _map(example: Mapping[str, Any]) -> Panel:
    words: list[str] = [_short(word) for word in example["words"]]
    arcs = levels(example["arcs"])
    head_room = (max(len(word) for word in [*words, "rest"]) * LETTER + 8) / ROW
    tree_room = STEP * (max((level for *_, level in arcs), default=0) + 0.9)
    size = len(words)
    top = -(head_room + tree_room)
    x = partial(alt.X, scale=alt.Scale(domain=[0, size + GAP + 1], nice=False), axis=None)
    names = json.dumps(words)
    axis = alt.Axis(
        values=[row + MIDDLE for row in range(size)], labelExpr=f"{names}[floor(datum.value)]", grid=False, ticks=False,
        domain=False, labelOverlap=False, labelPadding=4, title=None,
    )  # fmt: skip
    y = partial(alt.Y, scale=alt.Scale(domain=[top, size], reverse=True, nice=False), axis=axis)
    marks = [*_cells(example, x, y), _outlines(example["cells"], x, y), *_columns(words, x, y)]
    if arcs:
        marks += _tree(arcs, _own(example), -head_room, x, y)
    height = round((size - top) * ROW)
    chart = charts.layered(marks, height, f"Attention, {' '.join(words)}", color="independent")
    held = evidence(example["measure"], example["value"], example["baseline"])
    title = (
        f"{example['kind']}/{example['layer']}/{example['head']}: {held}; here {example['right']} of {example['asked']}"
    )
    widest = 110 + (size + 1) * 46
    return Panel(chart, title, width=110 + size * 22, narrowest=90 + (size + 1) * NARROW, widest=widest)


def _short(word: str) -> str:
    return word if len(word) <= LONGEST else f"{word[: LONGEST - 1]}…"


def _own(example: Mapping[str, Any]) -> set[frozenset[int]]:
    """The pairs of words whose arcs the role is about."""
    return {frozenset(cell) for cell in example["cells"]} if example["measure"].startswith("syntactic.") else set()


def levels(arcs: Sequence[Sequence[Any]]) -> list[Arc]:
    """Dependencies with the height of their arcs: 1, or one more than the highest arc that lies below."""
    found: list[Arc] = []
    spans: list[tuple[int, int, int]] = []
    for governor, dependent, relation in sorted(arcs, key=lambda arc: abs(arc[0] - arc[1])):
        left, right = sorted((governor, dependent))
        below = [level for start, end, level in spans if start < right and end > left]
        level = 1 + max(below, default=0)
        spans.append((left, right, level))
        found.append((governor, dependent, relation, level))
    return found


def _cells(example: Mapping[str, Any], x: Any, y: Any) -> list[Any]:
    """The weights as coloured squares; the rest in a column of its own."""
    words, size = example["words"], len(example["words"])
    cells = [
        {"row": q, "column": k, "from": words[q], "to": words[k], "weight": weight}
        for q, weights in enumerate(example["weights"])
        for k, weight in enumerate(weights)
    ]
    cells += [
        {"row": q, "column": size + GAP, "from": words[q], "to": "no word", "weight": weight}
        for q, weight in enumerate(example["rest"])
    ]
    for cell in cells:
        cell |= {"bottom": cell["row"] + 0.93, "right": round(cell["column"] + 0.93, 3)}
    colour = alt.Color("weight:Q", scale=alt.Scale(range="heatmap", domain=[0, 1]), legend=None)
    tip = charts.tips("from:N", "to:N", "weight:Q||.2f")
    return charts.grid(cells, x("column:Q"), y("row:Q"), colour, tip=tip, radius=1.5, x2="right:Q", y2="bottom:Q")


def _outlines(cells: Sequence[Sequence[int]], x: Any, y: Any) -> Any:
    edges = [{"row": q, "bottom": q + 0.93, "column": k, "right": k + 0.93} for q, k in cells]
    return (
        alt.Chart(data(edges))
        .mark_rect(style="ring", filled=False, cornerRadius=1.5, strokeWidth=2)
        .encode(x=x("column:Q"), x2="right:Q", y=y("row:Q"), y2="bottom:Q")
    )


def _columns(words: Sequence[str], x: Any, y: Any) -> list[Any]:
    """The words above their columns, written upwards."""
    named = [{"word": word, "place": k + MIDDLE, "y": -0.25} for k, word in enumerate(words)]
    rest = [{"word": "rest", "place": len(words) + GAP + MIDDLE, "y": -0.25}]
    upwards = {"angle": 270, "align": "left", "fontWeight": "normal"}
    return [
        mark
        for some, style in ((named, "label-strong"), (rest, "label"))
        for mark in charts.written(some, x("place:Q"), y("y:Q"), [Text("word:N", style, options=upwards)])
    ]


def _tree(arcs: Sequence[Arc], own: set[frozenset[int]], base: float, x: Any, y: Any) -> list[Any]:
    """Arcs above the words: the role's own strong and with an end at the dependent, the others faint."""
    lines, ends, names = [], [], []
    for number, (governor, dependent, relation, level) in enumerate(arcs):
        strong = frozenset((governor, dependent)) in own
        lines += [
            {"arc": number, "x": across, "y": round(base - height, 4), "step": step, "strong": strong}
            for step, (across, height) in enumerate(curve(governor, dependent, level * STEP))
        ]
        toward = FOOT if governor < dependent else -FOOT
        ends.append({"x": dependent + MIDDLE - toward, "y": base, "strong": strong})
        middle = (governor + dependent) / 2 + MIDDLE
        room = abs(governor - dependent) * NARROW >= len(relation) * 5.2
        if strong or room:
            names.append({"x": middle, "y": round(base - level * STEP, 4), "name": relation, "strong": strong})
    marks = []
    for strong, line, label in ((False, "level", "label"), (True, "limit", "limit-label")):
        test = "datum.strong" if strong else "!datum.strong"
        path = alt.Chart(data(lines)).transform_filter(test)
        marks.append(
            path.mark_line(style=line, strokeDash=[1, 0], strokeWidth=2 if strong else 1, opacity=1 if strong else 0.55)
            .encode(x=x("x:Q"), y=y("y:Q"), detail="arc:N", order=alt.Order("step:Q"))
        )  # fmt: skip
        end = alt.Chart(data(ends)).transform_filter(test).encode(x=x("x:Q"), y=y("y:Q"))
        marks.append(end.mark_point(style=label, shape="triangle-down", size=42, filled=True, opacity=1))
        halo = {"fillOpacity": 0, "strokeWidth": 4, "strokeOpacity": 1}  # so that no line runs through a name
        text = alt.Chart(data(names)).transform_filter(test).encode(x=x("x:Q"), y=y("y:Q"))
        marks.append(text.mark_text(style="point", fontSize=10, dy=-6, **halo).encode(text="name:N"))
        marks.append(text.mark_text(style=label, fontSize=10, dy=-6).encode(text="name:N"))
    return marks


def curve(governor: int, dependent: int, height: float) -> list[tuple[float, float]]:
    """An arc from over one word to over the other: up, across with round corners, down to the dependent."""
    toward = 1 if governor < dependent else -1
    start, end = governor + MIDDLE + FOOT * toward, dependent + MIDDLE - FOOT * toward
    bend = min(0.35, abs(end - start) / 2) * toward
    turns = [i / (CORNER - 1) for i in range(CORNER)]
    rise = [(start + bend * share**2, height * (1 - (1 - share) ** 2)) for share in turns]
    fall = [(end - bend * share**2, height * (1 - (1 - share) ** 2)) for share in reversed(turns)]
    return [(round(across, 4), round(up, 4)) for across, up in (*rise, *fall)]
