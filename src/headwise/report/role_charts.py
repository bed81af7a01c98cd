"""The charts of roles: grids of head functions, roles by layer, the evidence for positional and rare-token heads.

And attention maps of example sentences, word by word, with the dependency tree drawn above.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Literal

import pandas as pd

from headwise.heads import Kind
from headwise.report import charts
from headwise.report.charts import MOST_HEADS_WITH_WORDS, Figure, Panel, Spec, axis, colour, tips
from headwise.report.format import KIND_NAMES, kinds_among, percent, signed
from headwise.report.run_folder import FinishedRun, RolesFolder
from headwise.roles.role import NO_ROLE, UNTRAINED, category, evidence, ordered_roles, role, role_of

FAINT = 0.16  # how strong the grey of heads without a role is
CONFIRMED = " ✓"
MOST_ROLES_SHOWN = 3  # roles that are written into one cell
ROLE_HEIGHT = 31  # pixels of a role in a cell
MIN_CELL_HEIGHT = 36  # pixels of a cell with words
BARE_CELL_HEIGHT = 20  # pixels of a cell without words
LABEL_HEIGHT = 17  # pixels of the label below a cell
HEADS_SHOWN = 9  # heads in figures of evidence
NEAREST_SHOWN = 3  # heads in figures of evidence, where none has the role
RARE = {"rare.two-rarest": "one of the two rarest", "rare.rarest": "the rarest"}


def _threshold(name: str) -> float:
    """The score from which on a head has a role that is decided by a threshold."""
    threshold = role[name].threshold
    assert threshold is not None
    return threshold


def of_untrained(roles_folder: RolesFolder) -> pd.DataFrame:
    """The tests of roles of untrained models; no row without any."""
    controls = roles_folder.controls
    empty = pd.DataFrame(columns=["control", "kind", "layer", "head", "measure", "value", "found"])
    return empty if controls is None else controls[controls["control"].str.startswith(UNTRAINED)]


def of_kind(rows: pd.DataFrame, kind: str) -> pd.DataFrame:
    """The rows of one kind of heads."""
    return rows[rows["kind"] == kind]


def kinds_with_roles(roles_folder: RolesFolder) -> list[Kind]:
    """The kinds of heads that were tested."""
    return kinds_among(roles_folder.labels["kind"])


def role_categories() -> list[str]:
    """The categories of roles, in the order in which they have the colours of the theme; grey is the second."""
    first, *others = dict.fromkeys(declared.category for declared in ordered_roles())
    return [first, NO_ROLE, *others]


def category_colours(present: Collection[str], columns: int) -> Spec:
    """The same colour for a category of role in every chart. The legend has those there are; grey is no role."""
    domain = list(dict.fromkeys([*role_categories(), *present]))
    values = []
    for name in domain:
        if name in set(present) and name != NO_ROLE:
            values.append(name)

    legend: Spec = {
        "orient": "top",
        "title": None,
        "values": values,
        "symbolType": "square",
        "columns": columns,
    }
    return colour("category:N", domain, **(legend if values else {}))


def faint(strength: float = FAINT) -> Spec:
    """Cells without a role are faint."""
    return charts.when(f"datum.category == '{NO_ROLE}'", strength, 1)


def functions_panel(
    run: FinishedRun, kind: str, column_of_head: Mapping[tuple[int, int], int]
) -> Panel:
    """Layers × heads with the roles of every head in its cell (Voita et al. 2019, figure 1c). column_of_head: from 1."""
    assert run.roles is not None
    labels = of_kind(run.roles.labels, kind)
    roles = of_kind(run.roles.roles, kind).sort_values("value", ascending=False, kind="stable")
    confirmed = confirmed_roles(run.roles)
    roles_by_head = {}
    for head, rows in roles.groupby(["layer", "head"]):
        roles_by_head[head] = rows.to_dict("records")

    cells = []
    for label in labels.to_dict("records"):
        cells += _role_cells(label, roles_by_head, column_of_head, confirmed)

    size = max(column_of_head.values())
    fits_words = size <= MOST_HEADS_WITH_WORDS
    edges = _lay_out(cells, fits_words)
    height = max(bottom for _, bottom in edges.values()) + (LABEL_HEIGHT if fits_words else 0)
    narrow, width, wide = (68, 84, 130) if fits_words else (9, 20, 36)
    left = 60 + (charts.ATTENTION_NAME if run.attention(kind) else 0)
    chart = charts.layered(
        _marks(cells, edges, fits_words, height, run.attention(kind)),
        height,
        f"Functions of heads, {KIND_NAMES[kind]}",
    )
    return Panel(
        chart,
        f"Functions: {len(roles_by_head)} of {len(labels)} heads have a role",
        width=size * width,
        narrowest=left + size * narrow,
        widest=left + 30 + size * wide,
        wide=True,
    )


def confirmed_roles(roles_folder: RolesFolder) -> set[tuple[Any, ...]]:
    """Kind, layer, head and measure of every role that is confirmed with the head off."""
    if roles_folder.causal is None:
        return set()
    rows = roles_folder.causal[roles_folder.causal["confirmed"] == 1]
    return set(rows[["kind", "layer", "head", "measure"]].itertuples(index=False, name=None))


def in_cell(measure: str) -> str:
    """A role in very few letters: `−1`, `obj→` (an obj looks at its governor), `→obj`, `rare`."""
    first, *rest = measure.split(".")
    if first == "positional":
        return signed(int(rest[0]), 0)
    if first == "syntactic":
        return f"{rest[0]}→" if rest[1] == "to-governor" else f"→{rest[0]}"
    declared = role_of(measure)
    return first if declared is None else declared.short or first


def _role_cells(
    label: Mapping[Any, Any],
    roles_by_head: Mapping[Any, list[dict[Any, Any]]],
    column_of_head: Mapping[tuple[int, int], int],
    confirmed: Collection[tuple[Any, ...]],
) -> list[dict[str, Any]]:
    """What is drawn of one head: a cell for each of its roles, one below the other; a head without any has one.

    confirmed: roles with a mark, as `confirmed_roles` has them.
    """
    layer = label["layer"]
    number = label["head"]
    roles = roles_by_head.get((layer, number), [])
    shown = roles[:MOST_ROLES_SHOWN]
    more = f" · {len(roles) - len(shown)} more" if len(roles) > len(shown) else ""
    base = {
        "address": f"{label['kind']}/{layer}/{number}",
        "layer": layer,
        "head": f"h{number}{more}",
        "rank": column_of_head[layer, number],
        "label": label["label"],
        "roles_shown": max(len(shown), 1),
    }
    if not shown:
        return [base | {"role_index": 0, "category": NO_ROLE, "role": "", "score": ""}]

    cells = []
    for index, row in enumerate(shown):
        role_of_head = (label["kind"], layer, number, row["measure"])
        mark = CONFIRMED if role_of_head in confirmed else ""
        own = {
            "role_index": index,
            "category": category(row["measure"]),
            "role": in_cell(row["measure"]),
            "score": f"{row['value']:.2f}{mark}",
        }
        cells.append(base | own)
    return cells


def _lay_out(cells: list[dict[str, Any]], fits_words: bool) -> dict[int, tuple[int, int]]:
    """Give every cell its place, in pixels from the top; returns where each layer begins and ends."""
    edges: dict[int, tuple[int, int]] = {}
    top = 0
    for layer in sorted({cell["layer"] for cell in cells}):
        inside = []
        for cell in cells:
            if cell["layer"] == layer:
                inside.append(cell)

        layer_height = BARE_CELL_HEIGHT
        if fits_words:
            most_roles = max(cell["roles_shown"] for cell in inside)
            layer_height = max(most_roles * ROLE_HEIGHT, MIN_CELL_HEIGHT)
        for cell in inside:
            index = cell["role_index"]
            cell["top"] = top + index * layer_height / cell["roles_shown"]
            cell["bottom"] = top + (index + 1) * layer_height / cell["roles_shown"] - 1.5
            cell["middle"] = (cell["top"] + cell["bottom"]) / 2
            cell["foot"] = top + layer_height

        edges[layer] = top, top + layer_height
        top += layer_height + (LABEL_HEIGHT if fits_words else 1)
    return edges


def _marks(
    cells: list[dict[str, Any]],
    edges: Mapping[int, tuple[int, int]],
    fits_words: bool,
    height: int,
    attention: Sequence[str],
) -> list[Spec]:
    """attention: of each layer, as `FinishedRun.attention` has it."""
    # Layers differ in height, so y is in pixels. The label at the middle of a layer is its name, which Vega looks up in
    # a chain of tests: `datum.value == 18 ? '0' : datum.value == 71 ? '1' : ''`.
    middles = []
    layer_label = ""
    for layer, (top, bottom) in edges.items():
        middle = (top + bottom) / 2
        middles.append(middle)
        name = f"{attention[layer]} · {layer}" if layer < len(attention) else layer
        layer_label += f"datum.value == {middle} ? '{name}' : "
    layer_label += "''"

    y = axis("top:Q", "layer", domain=[0, height], reverse=True, nice=False)
    y["axis"] = {
        "values": middles,
        "labelExpr": layer_label,
        "grid": False,
        "ticks": False,
        "domain": False,
    }
    x = axis("rank:O", None, labels=False, orient="top")
    tip = tips("address:N|head", "label:N|does")
    across = max(cell["rank"] for cell in cells)
    names_across = 5 if across > 5 else 2  # of the legend
    rectangles = charts.mark(
        "rect",
        cells,
        {"cornerRadius": 3},
        x=x,
        y=y,
        y2={"field": "bottom"},
        color=category_colours({cell["category"] for cell in cells}, names_across),
        opacity=faint(),
        tooltip=tip,
    )
    if not fits_words:
        return [rectangles]

    middle_y = {**y, "field": "middle"}
    foot_y = {**y, "field": "foot"}
    has_role = f"datum.category != '{NO_ROLE}'"
    is_first = "datum.role_index == 0"
    strong: Spec = {"opacity": 1, "fontSize": 11.5}
    small = "small-on-high"
    return [
        rectangles,
        charts.text(cells, "role:N", small, x, middle_y, has_role, tip, **strong, dy=-5.5),
        charts.text(cells, "score:N", small, x, middle_y, has_role, tip, **strong, dy=7),
        charts.text(cells, "head:N", "label", x, foot_y, is_first, tip, fontSize=10, dy=7),
    ]


def layer_patterns(run: FinishedRun) -> Figure | None:
    """Stacked bars: which category of role is in which layer; None where no head has a role."""
    roles_folder = run.roles
    if roles_folder is None or roles_folder.roles.empty:
        return None
    heads = roles_folder.labels.groupby("kind").size()
    counts = roles_folder.patterns.groupby("kind")["heads"].sum()
    extra_counts = int((counts - heads).clip(lower=0).sum())
    kinds = kinds_among(roles_folder.patterns["kind"])
    return Figure(
        name="layer-patterns",
        title="Which role lives in which layer",
        note="heads of each category of role, layer by layer",
        panels=[_pattern_panel(run, of_kind(roles_folder.patterns, kind), kind) for kind in kinds],
        columns=2,
        facts=f"Counted more than once: {extra_counts}." if extra_counts else "",
    )


def _pattern_panel(run: FinishedRun, patterns: pd.DataFrame, kind: str) -> Panel:
    narrowest = 290 + (charts.ATTENTION_NAME if run.attention(kind) else 0)
    order = [name for name in role_categories() if name != NO_ROLE]
    order.append(NO_ROLE)
    cells = patterns.rename(columns={"role": "category"})[["layer", "category", "heads"]]
    cells = cells.assign(place=[order.index(name) for name in cells["category"]])
    marks = charts.stacked_bars(
        cells,
        charts.layer_axis(run.attention(kind)),
        "heads:Q",
        category_colours(cells["category"], 2),
        "place:Q",
        title="heads",
        tip=tips("layer:O", "category:N|role", "heads:Q"),
        faint=faint(),
        texts=[
            (f"datum.category != '{NO_ROLE}'", "on-high"),
            (f"datum.category == '{NO_ROLE}'", "label"),
        ],
    )
    chart = charts.layered(
        marks, 30 * cells["layer"].nunique(), f"Roles by layer, {KIND_NAMES[kind]}"
    )
    return Panel(chart, KIND_NAMES[kind], width=440, narrowest=narrowest, widest=640)


def _first_heads(table: pd.DataFrame) -> list[tuple[Any, ...]]:
    """Heads from the highest value down, each once."""
    ordered = table.sort_values("value", ascending=False, kind="stable").drop_duplicates(
        ["kind", "layer", "head"]
    )
    return list(ordered[["kind", "layer", "head"]].itertuples(index=False, name=None))


def _evidence(
    cells: pd.DataFrame,
    x: Spec,
    y: Spec,
    colours: Spec,
    threshold: float,
    tip: list[Spec],
    along: Literal["x", "y"],
    **more: Any,
) -> list[Spec]:
    """Bars with whiskers, what a random token would reach, and the share that makes a role.

    along: the channel of the share. more: channels of all marks but the last.
    """
    positions = {"x": x, "y": y}
    share = positions[along]
    whisker_look = {"style": "label-strong", "opacity": 0.8}
    marks = charts.intervals(
        cells, x, y, colours, along=along, tip=tip, bar=True, whisker_look=whisker_look
    )

    positions[along] = {**share, "field": "baseline"}
    tick_look = {"style": "level", "opacity": 1, "thickness": 1.5}
    marks.append(charts.mark("tick", cells, tick_look, "isValid(datum.baseline)", **positions))
    for mark in marks:
        mark["encoding"] |= more

    limit = charts.level_lines(
        [{"bar": threshold}], {**share, "field": "bar"}, style="limit", along=along
    )
    return [*marks, limit]


def _untrained(roles_folder: RolesFolder, kind: str) -> pd.DataFrame:
    """The range over all heads of a kind in untrained models: measure, low, high; no row without any."""
    rows = of_kind(of_untrained(roles_folder), kind).dropna(subset=["value"])
    ranges: pd.DataFrame = rows.groupby("measure")["value"].agg(low="min", high="max").reset_index()
    return ranges


def _untrained_band(rows: pd.DataFrame, range_channels: Spec) -> list[Spec]:
    """What untrained heads reach, behind the bars; nothing without such heads."""
    if rows.empty:
        return []
    tip = tips("low:Q|untrained heads, from|.3f", "high:Q|to|.3f")
    return [charts.mark("rect", rows, {"style": "untrained"}, **range_channels, tooltip=tip)]


def offsets(roles_folder: RolesFolder) -> Figure | None:
    """For every positional head, how often its largest weight lies at each offset from −3 to +3."""
    table = roles_folder.table
    table = table[table["measure"].str.fullmatch(r"positional\.-?\d")].dropna(subset=["value"])
    if table.empty:
        return None
    roles = roles_folder.roles
    confirmed = _first_heads(roles[roles["measure"].str.startswith("positional.")])
    shown = confirmed[:HEADS_SHOWN] or _first_heads(table)[:NEAREST_SHOWN]
    least = percent(_threshold("positional"))
    return Figure(
        name="offsets",
        title="Where positional heads look" if confirmed else "No head is positional; the nearest",
        note="share of tokens whose largest weight lies at each offset · dashed: the threshold of a positional head",
        panels=[_offset_panel(roles_folder, table, head) for head in shown],
        columns=3,
        facts=f"Positional heads: {len(confirmed)}, shown: {len(shown)}. The threshold: {least}.",
    )


def _offset_panel(roles_folder: RolesFolder, table: pd.DataFrame, head: tuple[Any, ...]) -> Panel:
    cells = table[(table[["kind", "layer", "head"]] == list(head)).all(axis=1)]
    untrained = _untrained(roles_folder, str(head[0]))
    best = cells["value"].max()
    cells = cells.assign(
        offset=[signed(int(measure.split(".")[1]), 0) for measure in cells["measure"]],
        which=["highest" if value == best else "other" for value in cells["value"]],
    )[["offset", "value", "low", "high", "baseline", "n", "which"]]
    order = [signed(at, 0) for at in range(-3, 4)]
    x = axis("offset:N", None, sort=order, labelAngle=0, labelFontSize=10, labelOverlap=False)
    y = axis("value:Q", None, domain=[0, 1], values=[0, 0.5, 1])
    tip = tips("offset:N", "value:Q|share|.3f", "low:Q||.3f", "high:Q||.3f", "n:Q||,")
    title = f"{head[0]}/{head[1]}/{head[2]} · {cells.loc[cells['which'] == 'highest', 'offset'].iloc[0]}: {best:.2f}"
    untrained = untrained[untrained["measure"].str.fullmatch(r"positional\.-?\d")]
    untrained = untrained.assign(
        offset=[signed(int(measure.split(".")[1]), 0) for measure in untrained["measure"]]
    )
    range_channels = {"x": x, "y": {**y, "field": "low"}, "y2": {"field": "high"}}
    marks = _untrained_band(untrained, range_channels)
    colours = colour("which:N", ["highest", "other"])
    marks += _evidence(cells, x, y, colours, _threshold("positional"), tip, "y")
    return Panel(
        charts.layered(marks, 110, f"Offsets of {title}"),
        title,
        width=230,
        narrowest=140,
        widest=420,
    )


def rare_tokens(roles_folder: RolesFolder) -> Figure | None:
    """The heads that look most at the rarest tokens of a sentence, and what a random token would reach."""
    table = roles_folder.table
    table = table[table["measure"].isin(RARE)].dropna(subset=["value"])
    shown = _first_heads(table[table["measure"] == "rare.two-rarest"])[:HEADS_SHOWN]
    if not shown:
        return None
    table = table.assign(which=table["measure"].map(RARE))
    table["address"] = (
        table["kind"] + "/" + table["layer"].astype(str) + "/" + table["head"].astype(str)
    )
    order = ["/".join(map(str, head)) for head in shown]
    cells = table.loc[
        table["address"].isin(order), ["address", "which", "value", "low", "high", "baseline", "n"]
    ]
    count = int((roles_folder.roles["measure"] == "rare.two-rarest").sum())
    threshold = _threshold("rare.two-rarest")
    colours = colour("which:N", list(RARE.values()), orient="top", title=None, symbolType="square")
    x = axis("value:Q", "share of tokens", domain=[0, 1], tickCount=5)
    y = axis("address:N", None, sort=order)
    tip = tips(
        "address:N|head", "which:N|looks at", "value:Q|share|.3f", "baseline:Q||.3f", "n:Q||,"
    )
    shift = charts.field("which:N", sort=list(RARE.values()))

    # Untrained heads have one range for each measure: it is drawn behind every head that is shown.
    untrained = _untrained(roles_folder, str(shown[0][0]))
    untrained = untrained[untrained["measure"].isin(RARE)]
    untrained = untrained.assign(which=untrained["measure"].map(RARE))
    untrained = untrained.merge(pd.DataFrame({"address": order}), how="cross")
    range_channels = {"x": {**x, "field": "low"}, "x2": {"field": "high"}, "y": y, "yOffset": shift}
    marks = _untrained_band(untrained, range_channels)
    marks += _evidence(cells, x, y, colours, threshold, tip, "x", yOffset=shift)
    chart = charts.layered(marks, 30 * len(order), "Rare tokens")
    return Figure(
        name="rare-tokens",
        title=f"Heads that look at rare tokens: {count}"
        if count
        else "No head looks at rare tokens; the nearest",
        note="share of tokens that look most at a rare one · line: a random token · dashed: the threshold",
        panels=[Panel(chart, "rare tokens", width=560, widest=620)],
        facts=f"Shown: {len(shown)}. The threshold: {threshold:g}.",
    )


MAP_ROW = 20  # pixels of a row of the map
LETTER = 7.4  # pixels of a letter
LONGEST_WORD = 12  # letters of a word that is written out
LONGEST_HOVER_WORD = 80  # letters of a word that pointing shows
ARC_SPACING = 0.75  # rows between an arc and the one above it
GAP = 0.35  # columns between the words and the rest
CORNER = 7  # points of an arc's rounded end
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
    return {frozenset(cell) for cell in example["cells"]}


def arc_levels(arcs: Sequence[Sequence[Any]]) -> list[Arc]:
    """Dependencies with the height of their arcs: 1, or one more than the highest arc that lies below."""
    with_levels: list[Arc] = []
    spans: list[tuple[int, int, int]] = []
    for governor, dependent, relation in sorted(arcs, key=lambda arc: abs(arc[0] - arc[1])):
        left, right = sorted((governor, dependent))
        below = [level for start, end, level in spans if start < right and end > left]
        level = 1 + max(below, default=0)
        spans.append((left, right, level))
        with_levels.append((governor, dependent, relation, level))
    return with_levels


def _weight_cells(example: Mapping[str, Any], x: Spec, y: Spec) -> Spec:
    """The weights as coloured squares; the rest in a column of its own."""
    words = [_shorten_word(word, LONGEST_HOVER_WORD) for word in example["words"]]
    size = len(words)
    words.append("no word")
    cells = []
    for q, weights in enumerate(example["weights"]):
        for k, weight in enumerate([*weights, example["rest"][q]]):
            column = k if k < size else k + GAP
            cells.append(
                {
                    "row": q,
                    "bottom": q + 0.93,
                    "column": column,
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
    edges = []
    for q, k in cells:
        edges.append({"row": q, "bottom": q + 0.93, "column": k, "right": k + 0.93})

    look = {"style": "ring", "filled": False, "cornerRadius": 1.5, "strokeWidth": 2}
    return charts.mark("rect", edges, look, x=x, y=y, **SQUARE)


def _word_labels(words: Sequence[str], x: Spec, y: Spec) -> list[Spec]:
    """The words above their columns, written upwards."""
    labels = []
    for k, word in enumerate(words):
        labels.append({"word": word, "place": k + MIDDLE, "y": -0.25})

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
        points = arc_points(governor, dependent, level * ARC_SPACING)
        for step, (across, height) in enumerate(points):
            lines.append(
                {
                    "arc": number,
                    "x": across,
                    "y": round(base - height, 4),
                    "step": step,
                    "strong": strong,
                }
            )

        toward = ARC_FOOT if governor < dependent else -ARC_FOOT
        ends.append({"x": dependent + MIDDLE - toward, "y": base, "strong": strong})
        middle = (governor + dependent) / 2 + MIDDLE
        name_fits = abs(governor - dependent) * NARROW >= len(relation) * 5.2
        if strong or name_fits:
            names.append(
                {
                    "x": middle,
                    "y": round(base - level * ARC_SPACING, 4),
                    "name": relation,
                    "strong": strong,
                }
            )

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
        *arc_marks("!datum.strong", "label", faint_line),
        *arc_marks("datum.strong", "limit-label", strong_line),
    ]


def arc_points(governor: int, dependent: int, height: float) -> list[tuple[float, float]]:
    """An arc from over one word to over the other: up, across with round corners, down to the dependent."""
    toward = 1 if governor < dependent else -1
    start = governor + MIDDLE + ARC_FOOT * toward
    end = dependent + MIDDLE - ARC_FOOT * toward

    # A corner is a piece of a parabola: `share` of the way through it, the arc has first risen, upright at its foot, and
    # then bent towards the other word, level at its top. Neither corner takes more than half of the width.
    bend = min(0.35, abs(end - start) / 2) * toward
    rise = []
    fall = []
    for number in range(CORNER):
        share = number / (CORNER - 1)
        up = round(height * (1 - (1 - share) ** 2), 4)
        rise.append((round(start + bend * share**2, 4), up))
        fall.append((round(end - bend * share**2, 4), up))
    return [*rise, *reversed(fall)]
