"""The charts of roles: grids of head functions.

And attention maps of example sentences, word by word, with the dependency tree drawn above.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from headwise.core.grid import HeadGrid
from headwise.core.heads import Head, HeadMap, Kind, head_of
from headwise.core.tables import HEAD_COLUMNS
from headwise.faces.report import charts
from headwise.faces.report.charts import Figure, HeadChart, Panel, Spec, axis, colour, tips
from headwise.faces.report.format import KIND_NAMES, kinds_among, signed
from headwise.faces.report.head_rows import of_kind
from headwise.faces.report.run_folder import RolesFolder, RunContents
from headwise.roles.role import (
    NO_ROLE,
    category,
    category_colour,
    evidence,
    role_categories,
    role_of,
)

GREY = "#7f8a93"  # no known role
FAINT = 0.16  # how strong the grey of heads without a role is
CONFIRMED = " ✓"
MOST_ROLES_SHOWN = 3  # roles that are written into one cell


def kinds_with_roles(roles_folder: RolesFolder) -> list[Kind]:
    """The kinds of heads that were tested."""
    return kinds_among(roles_folder.labels["kind"])


def category_colours(present: Collection[str], columns: int) -> Spec:
    """The same colour for a category of role in every chart. The legend has those there are; grey is no role."""
    values = sorted({*present} - {NO_ROLE}, key=[*role_categories(), *present].index)
    colours = [category_colour(name) for name in values]
    legend: Spec = {"orient": "top", "title": None, "values": values, "columns": columns}
    return colour(
        "category:N",
        [*values, NO_ROLE],
        [*colours, GREY],
        **(legend | {"symbolType": "square"} if values else {}),
    )


def faint(strength: float = FAINT) -> Spec:
    """Cells without a role are faint."""
    return charts.when(f"datum.category == '{NO_ROLE}'", strength, 1)


def functions_panel(run: RunContents, kind: str, places: Mapping[Head, int]) -> Panel:
    """Layers × heads with the roles of every head in its cell, coloured by the clearest (Voita et al. 2019, figure 1c).
    places: the column of each head."""
    roles = of_kind(run.roles.roles, kind).sort_values("value", ascending=False, kind="stable")
    confirmed = confirmed_roles(run.roles)
    roles_of: dict[Head, list[dict[Any, Any]]] = {}
    for row in roles.to_dict("records"):
        roles_of.setdefault(head_of(row), []).append(row)

    facts = dict[Head, Any]()
    for row in of_kind(run.roles.labels, kind).to_dict("records"):
        head = head_of(row)
        found = roles_of.get(head, [])
        more = f" · {len(found) - MOST_ROLES_SHOWN} more" if len(found) > MOST_ROLES_SHOWN else ""
        facts[head] = {
            "category": category(found[0]["measure"]) if found else NO_ROLE,
            "label": f"h{head.head}{more}",
            "does": row["label"],
        }
        lines = []
        for one in found[:MOST_ROLES_SHOWN]:
            mark = CONFIRMED if (*head, one["measure"]) in confirmed else ""
            lines.append(f"{in_cell(one['measure'])} {one['value']:.2f}{mark}")
        if len(lines) == 1:
            lines = ["", *lines]  # in the middle
        for at in range(MOST_ROLES_SHOWN):
            facts[head][f"role-{at}"] = lines[at] if at < len(lines) else ""

    grid = HeadGrid(HeadMap.smallest(facts), columns=places, facts=facts)
    chart = HeadChart(grid, kind, attention=run.attention(kind))
    tip = tips("address:N|head", "does:N")
    present = {fact["category"] for fact in facts.values()}
    colours = category_colours(present, 5 if chart.columns > 5 else 2)
    texts = [(f"role-{at}:N", "small-", 11 * at - 16) for at in range(MOST_ROLES_SHOWN)]
    marks = [
        chart.squares(colours, tip, opacity=faint()),
        *chart.texts(
            tip,
            f"datum.category != '{NO_ROLE}'",
            [*texts, ("label:N", "small-", 18)],
            "on-function",
        ),
    ]
    title = f"Functions: {len(roles_of)} of {len(facts)} heads have a role"
    sizes = {"row": 52, "narrow": 68, "usual": 84, "wide": 130}
    return chart.panel(marks, title, f"Functions of heads, {KIND_NAMES[kind]}", alone=True, **sizes)


def confirmed_roles(roles_folder: RolesFolder) -> set[tuple[Any, ...]]:
    """Kind, layer, head and measure of every role that is confirmed with the head off."""
    rows = roles_folder.causal[roles_folder.causal["confirmed"] == 1]
    return set(rows[[*HEAD_COLUMNS, "measure"]].itertuples(index=False, name=None))


def in_cell(measure: str) -> str:
    """A role in very few letters: `−1`, `obj→` (an obj looks at its governor), `→obj`, `rare`."""
    first, *rest = measure.split(".")
    if first == "positional":
        return signed(int(rest[0]), 0)
    if first == "syntactic":
        return f"{rest[0]}→" if rest[1] == "to-governor" else f"→{rest[0]}"
    declared = role_of(measure)
    return first if declared is None else declared.short or first


MAP_ROW = 20  # pixels of a row of the map
LETTER = 7.4  # pixels of a letter
LONGEST_WORD = 12  # letters of a word that is written out
LONGEST_HOVER_WORD = 80  # letters of a word that pointing shows
ARC_SPACING = 0.75  # rows between an arc and the one above it
GAP = 0.35  # columns between the words and the rest
ARC_FOOT = 0.13  # columns between the middle of a word and the end of an arc
MIDDLE = 0.47  # of a cell
NARROW = 18  # pixels of a column on a small screen

SQUARE: Spec = {"x2": {"field": "right"}, "y2": {"field": "bottom"}}  # the ends of a cell

Arc = tuple[int, int, str, int]  # governor, dependent, relation, level


def attention_maps(roles_folder: RolesFolder) -> Figure | None:
    """A map for every example sentence; None where there is none."""
    if not roles_folder.examples:
        return None
    looked_at = max(example["sentences"] for example in roles_folder.examples)
    return Figure(
        name="attention-maps",
        title="Roles at work",
        note="from the word of the row to the word of the column; outlined: where the role wants the weight",
        panels=[_attention_map(example) for example in roles_folder.examples],
        columns=2,
        facts=f"Sentences searched: {looked_at:,}.",
    )


def _attention_map(example: Mapping[str, Any]) -> Panel:
    words: list[str] = [_shorten_word(word) for word in example["words"]]
    arcs = arc_levels(example["arcs"])
    # Rows above the map: the words, written upwards, and above them the arcs of the tree.
    word_rows = (max(len(word) for word in [*words, "rest"]) * LETTER + 8) / MAP_ROW
    tree_rows = ARC_SPACING * (max((level for *_, level in arcs), default=0) + 0.9)
    size = len(words)
    top = -(word_rows + tree_rows)
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
        # Vega would leave out words that come too close.
        labelOverlap=False,
        labelPadding=4,
    )
    y["axis"] |= {"domain": False, "title": None}
    marks = [
        _weight_cells(example, x, y),
        _outlines(example["cells"], x, y),
        *_word_labels(words, x, y),
    ]
    if arcs:
        marks += _tree(arcs, _role_arcs(example), -word_rows, x, y)
    height = round((size - top) * MAP_ROW)
    chart = charts.layered(marks, height, f"Attention, {' '.join(words)}", color="independent")
    evidence_text = evidence(example["measure"], example["value"], example["baseline"])
    address = f"{example['kind']}/{example['layer']}/{example['head']}"
    title = f"{address}: {evidence_text}; here {example['right']} of {example['asked']}"
    widest = 110 + (size + 1) * 46
    return Panel(
        chart, title, width=110 + size * 22, narrowest=90 + (size + 1) * NARROW, widest=widest
    )


def _shorten_word(word: str, longest: int = LONGEST_WORD) -> str:
    return word if len(word) <= longest else f"{word[: longest - 1]}…"


def _role_arcs(example: Mapping[str, Any]) -> set[frozenset[int]]:
    """The pairs of words whose arcs the role is about; none where it is not about dependencies."""
    if not example["measure"].startswith("syntactic."):
        return set()
    # Without direction: a head may look from either end of an arc.
    return {frozenset(cell) for cell in example["cells"]}


def arc_levels(arcs: Sequence[Sequence[Any]]) -> list[Arc]:
    """Dependencies with the height of their arcs: 1, or one more than the highest arc that lies below."""
    with_levels: list[Arc] = []
    spans: list[tuple[int, int, int]] = []
    # Shortest first, so that every arc that lies below another has its level already.
    for governor, dependent, relation in sorted(arcs, key=lambda arc: abs(arc[0] - arc[1])):
        left, right = sorted((governor, dependent))
        below = [level for start, end, level in spans if start < right and end > left]
        level = 1 + max(below, default=0)
        spans.append((left, right, level))
        with_levels.append((governor, dependent, relation, level))
    return with_levels


def _square(row: int, column: float) -> dict[str, float]:
    """The place of a cell."""
    # A gap is left between cells; MIDDLE is half of what they fill.
    ends = {"bottom": row + 0.93, "right": round(column + 0.93, 3)}
    return {"row": row, "column": column, **ends}


def _weight_cells(example: Mapping[str, Any], x: Spec, y: Spec) -> Spec:
    """The weights as coloured squares; the rest in a column of its own."""
    words = [_shorten_word(word, LONGEST_HOVER_WORD) for word in example["words"]]
    size = len(words)
    cells = []
    for q, weights in enumerate(example["weights"]):
        for k, weight in enumerate([*weights, example["rest"][q]]):
            to = words[k] if k < size else "no word"
            place = _square(q, k if k < size else k + GAP)
            cells.append({**place, "from": words[q], "to": to, "weight": weight})

    heat = charts.heat("weight:Q", [0, 1])
    tip = tips("from:N", "to:N", "weight:Q||.2f")
    look = {"cornerRadius": 1.5}
    return charts.mark("rect", cells, look, x=x, y=y, **SQUARE, color=heat, tooltip=tip)


def _outlines(cells: Sequence[Sequence[int]], x: Spec, y: Spec) -> Spec:
    look = {"style": "ring", "filled": False, "cornerRadius": 1.5, "strokeWidth": 2}
    return charts.mark("rect", [_square(q, k) for q, k in cells], look, x=x, y=y, **SQUARE)


def _word_labels(words: Sequence[str], x: Spec, y: Spec) -> list[Spec]:
    """The words above their columns, written upwards."""
    labels = [{"word": word, "place": k + MIDDLE, "y": -0.25} for k, word in enumerate(words)]
    rest = [{"word": "rest", "place": len(words) + GAP + MIDDLE, "y": -0.25}]
    x = x | {"field": "place"}
    y = y | {"field": "y"}
    upwards: Spec = {"angle": 270, "align": "left", "fontWeight": "normal"}
    return [
        charts.text(labels, "word:N", "label-strong", x, y, **upwards),
        charts.text(rest, "word:N", "label", x, y, **upwards),
    ]


def _tree(
    arcs: Sequence[Arc], role_arcs: set[frozenset[int]], base: float, x: Spec, y: Spec
) -> list[Spec]:
    """Arcs above the words, with an end at the dependent: those that the role is about strong, the others faint."""
    lines = []
    ends = []
    names = []
    for number, (governor, dependent, relation, level) in enumerate(arcs):
        strong = frozenset((governor, dependent)) in role_arcs
        toward = ARC_FOOT if governor < dependent else -ARC_FOOT
        start = governor + MIDDLE + toward
        end = dependent + MIDDLE - toward
        top = round(base - level * ARC_SPACING, 4)
        for step, (across, up) in enumerate([(start, base), (start, top), (end, top), (end, base)]):
            lines.append({"arc": number, "x": across, "y": up, "step": step, "strong": strong})
        ends.append({"x": end, "y": base, "strong": strong})
        # 5.2 pixels a letter at size 10, on the narrowest screen.
        name_fits = abs(governor - dependent) * NARROW >= len(relation) * 5.2
        # The relation that the role is about is named, however short its arc.
        if strong or name_fits:
            names.append({"x": (start + end) / 2, "y": top, "name": relation, "strong": strong})

    x = x | {"field": "x"}
    y = y | {"field": "y"}
    detail = charts.field("arc:N")
    order = charts.field("step:Q")
    small: Spec = {"fontSize": 10, "dy": -6}
    # Below each name lies the same name in thick paper colour, so that no line runs through it.
    halo: Spec = {**small, "fillOpacity": 0, "strokeWidth": 4, "strokeOpacity": 1}

    def arc_marks(test: str, label: str, line_look: Spec) -> list[Spec]:
        """The lines, ends and names of the arcs that a test selects."""
        end = {"style": label, "shape": "triangle-down", "size": 42, "filled": True, "opacity": 1}
        return [
            charts.mark("line", lines, line_look, test, x=x, y=y, detail=detail, order=order),
            charts.mark("point", ends, end, test, x=x, y=y),
            charts.text(names, "name:N", "point", x, y, test, **halo),
            charts.text(names, "name:N", label, x, y, test, **small),
        ]

    solid = [1, 0]
    faint_line = {"style": "level", "strokeDash": solid, "strokeWidth": 1, "opacity": 0.55}
    strong_line = {"style": "limit", "strokeDash": solid, "strokeWidth": 2, "opacity": 1}
    return [
        # Faint arcs first, so that the strong ones lie above them.
        *arc_marks("!datum.strong", "label", faint_line),
        *arc_marks("datum.strong", "limit-label", strong_line),
    ]
