"""Part of roles: attention maps of example sentences, word by word, with the dependency tree drawn above."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from headwise.report import charts
from headwise.report.charts import Spec, axis, tips
from headwise.report.components import Figure, Panel
from headwise.report.run_folder import RolesFolder
from headwise.roles.role import evidence

ROW = 20  # pixels of a row of the map
LETTER = 7.4  # pixels of a letter
LONGEST = 12  # letters of a word that is written out
POINTED = 80  # letters of a word that pointing shows
STEP = 0.75  # rows between an arc and the one above it
GAP = 0.35  # columns between the words and the rest
CORNER = 7  # points of an arc's rounded end
FOOT = 0.13  # columns between the middle of a word and the end of an arc
MIDDLE = 0.47  # of a cell
NARROW = 18  # pixels of a column on a small screen

SQUARE: Spec = {"x2": {"field": "right"}, "y2": {"field": "bottom"}}  # the ends of a cell

Arc = tuple[int, int, str, int]  # governor, dependent, relation, level


def attention_maps(found: RolesFolder) -> Figure | None:
    """A map for every example sentence; None where there is none."""
    if not found.examples:
        return None
    looked_at = max(example["sentences"] for example in found.examples)
    return Figure(
        name="attention-maps",
        title="Roles at work",
        note="from the word of the row to the word of the column; outlined: where the role wants the weight",
        panels=[_attention_map(example) for example in found.examples],
        columns=2,
        facts=f"Sentences searched: {looked_at:,}.",
    )


def _attention_map(example: Mapping[str, Any]) -> Panel:
    words: list[str] = [_shorten_word(word) for word in example["words"]]
    arcs = arc_levels(example["arcs"])
    head_room = (max(len(word) for word in [*words, "rest"]) * LETTER + 8) / ROW
    tree_room = STEP * (max((level for *_, level in arcs), default=0) + 0.9)
    size = len(words)
    top = -(head_room + tree_room)
    x = axis("column:Q", None, domain=[0, size + GAP + 1], nice=False) | {"axis": None}
    y = axis(
        "row:Q",
        None,
        domain=[top, size],
        reverse=True,
        nice=False,
        values=[row + MIDDLE for row in range(size)],
        labelExpr=f"{json.dumps(words)}[floor(datum.value)]",
        grid=False,
        ticks=False,
        labelOverlap=False,
        labelPadding=4,
    )
    y["axis"] |= {"domain": False, "title": None}
    marks = [
        _weight_cells(example, x, y),
        _outlines(example["cells"], x, y),
        *_columns(words, x, y),
    ]
    if arcs:
        marks += _tree(arcs, _own(example), -head_room, x, y)
    height = round((size - top) * ROW)
    chart = charts.layered(marks, height, f"Attention, {' '.join(words)}", color="independent")
    held = evidence(example["measure"], example["value"], example["baseline"])
    title = f"{example['kind']}/{example['layer']}/{example['head']}: {held}; here {example['right']} of {example['asked']}"
    widest = 110 + (size + 1) * 46
    return Panel(
        chart, title, width=110 + size * 22, narrowest=90 + (size + 1) * NARROW, widest=widest
    )


def _shorten_word(word: str, longest: int = LONGEST) -> str:
    return word if len(word) <= longest else f"{word[: longest - 1]}…"


def _own(example: Mapping[str, Any]) -> set[frozenset[int]]:
    """The pairs of words whose arcs the role is about."""
    return (
        {frozenset(cell) for cell in example["cells"]}
        if example["measure"].startswith("syntactic.")
        else set()
    )


def arc_levels(arcs: Sequence[Sequence[Any]]) -> list[Arc]:
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


def _weight_cells(example: Mapping[str, Any], x: Spec, y: Spec) -> Spec:
    """The weights as coloured squares; the rest in a column of its own."""
    words = [*(_shorten_word(word, POINTED) for word in example["words"]), "no word"]
    size = len(example["words"])
    cells = []
    for q, weights in enumerate(example["weights"]):
        for k, weight in enumerate([*weights, example["rest"][q]]):
            cells.append(
                {
                    "row": q,
                    "bottom": q + 0.93,
                    "column": (column := k if k < size else k + GAP),
                    "right": round(column + 0.93, 3),
                    "from": words[q],
                    "to": words[k],
                    "weight": weight,
                }
            )
    heat = charts.colour("weight:Q", [0, 1], "heatmap")
    tip = tips("from:N", "to:N", "weight:Q||.2f")
    return charts.mark(
        "rect", cells, {"cornerRadius": 1.5}, x=x, y=y, **SQUARE, color=heat, tooltip=tip
    )


def _outlines(cells: Sequence[Sequence[int]], x: Spec, y: Spec) -> Spec:
    edges = [{"row": q, "bottom": q + 0.93, "column": k, "right": k + 0.93} for q, k in cells]
    look = {"style": "ring", "filled": False, "cornerRadius": 1.5, "strokeWidth": 2}
    return charts.mark("rect", edges, look, x=x, y=y, **SQUARE)


def _columns(words: Sequence[str], x: Spec, y: Spec) -> list[Spec]:
    """The words above their columns, written upwards."""
    named = [{"word": word, "place": k + MIDDLE, "y": -0.25} for k, word in enumerate(words)]
    rest = [{"word": "rest", "place": len(words) + GAP + MIDDLE, "y": -0.25}]
    x = x | {"field": "place"}
    y = y | {"field": "y"}
    upwards: Spec = {"angle": 270, "align": "left", "fontWeight": "normal"}
    return [
        charts.text(some, "word:N", style, x, y, **upwards)
        for some, style in ((named, "label-strong"), (rest, "label"))
    ]


def _tree(
    arcs: Sequence[Arc], own: set[frozenset[int]], base: float, x: Spec, y: Spec
) -> list[Spec]:
    """Arcs above the words: the role's own strong and with an end at the dependent, the others faint."""
    lines = []
    ends = []
    names = []
    for number, (governor, dependent, relation, level) in enumerate(arcs):
        strong = frozenset((governor, dependent)) in own
        for step, (across, height) in enumerate(arc_points(governor, dependent, level * STEP)):
            lines.append(
                {
                    "arc": number,
                    "x": across,
                    "y": round(base - height, 4),
                    "step": step,
                    "strong": strong,
                }
            )
        toward = FOOT if governor < dependent else -FOOT
        ends.append({"x": dependent + MIDDLE - toward, "y": base, "strong": strong})
        middle = (governor + dependent) / 2 + MIDDLE
        room = abs(governor - dependent) * NARROW >= len(relation) * 5.2
        if strong or room:
            names.append(
                {
                    "x": middle,
                    "y": round(base - level * STEP, 4),
                    "name": relation,
                    "strong": strong,
                }
            )
    marks = []
    at = {"x": x | {"field": "x"}, "y": y | {"field": "y"}}
    small: Spec = {"fontSize": 10, "dy": -6}
    halo = {
        "fillOpacity": 0,
        "strokeWidth": 4,
        "strokeOpacity": 1,
    }  # so that no line runs through a name
    for test, line, label, width, opacity in (
        ("!datum.strong", "level", "label", 1, 0.55),
        ("datum.strong", "limit", "limit-label", 2, 1),
    ):
        look = {"style": line, "strokeDash": [1, 0], "strokeWidth": width, "opacity": opacity}
        detail = charts.field("arc:N")
        order = charts.field("step:Q")
        end = {"style": label, "shape": "triangle-down", "size": 42, "filled": True, "opacity": 1}
        marks += [
            charts.mark("line", lines, look, test, **at, detail=detail, order=order),
            charts.mark("point", ends, end, test, **at),
            charts.text(names, "name:N", "point", where=test, **at, **small, **halo),
            charts.text(names, "name:N", label, where=test, **at, **small),
        ]
    return marks


def arc_points(governor: int, dependent: int, height: float) -> list[tuple[float, float]]:
    """An arc from over one word to over the other: up, across with round corners, down to the dependent."""
    toward = 1 if governor < dependent else -1
    start = governor + MIDDLE + FOOT * toward
    end = dependent + MIDDLE - FOOT * toward
    bend = min(0.35, abs(end - start) / 2) * toward
    turns = [i / (CORNER - 1) for i in range(CORNER)]
    rise = [(start + bend * share**2, height * (1 - (1 - share) ** 2)) for share in turns]
    fall = [(end - bend * share**2, height * (1 - (1 - share) ** 2)) for share in reversed(turns)]
    return [(round(across, 4), round(up, 4)) for across, up in (*rise, *fall)]
