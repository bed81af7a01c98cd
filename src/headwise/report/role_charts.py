"""The charts of roles: grids of head functions, roles by layer, the evidence for positional and rare-token heads.

And attention maps of example sentences, word by word, with the dependency tree drawn above.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import pandas as pd

from headwise.heads import Kind
from headwise.report import charts
from headwise.report.charts import ROOM, Figure, Panel, Spec, axis, colour, tips
from headwise.report.format import KIND_NAMES, kinds_among, measure_name, percent, signed
from headwise.report.run_folder import FinishedRun, RolesFolder
from headwise.report.score_maps import drawn_measures, ranks
from headwise.roles.role import NO_ROLE, UNTRAINED, category, evidence, ordered_roles, role, role_of

FAINT = 0.16  # how strong the grey of heads without a role is
CONFIRMED = " ✓"
PARTS = 3  # roles that are written into one cell
PART, LOWEST, SMALL, FOOT = (
    31,
    36,
    20,
    17,
)  # pixels: a role in a cell, a cell, a cell without words, the label below
HEADS_SHOWN, NEAREST = 9, 3  # heads in figures of evidence; where none has the role
RARE = {"rare.two-rarest": "one of the two rarest", "rare.rarest": "the rarest"}


def _threshold(name: str) -> float:
    """The score from which on a head has a role that is decided by a threshold."""
    threshold = role[name].threshold
    assert threshold is not None
    return threshold


def of_untrained(found: RolesFolder) -> pd.DataFrame:
    """The tests of roles of untrained models; no row without any."""
    controls = found.controls
    empty = pd.DataFrame(columns=["control", "kind", "layer", "head", "measure", "value", "found"])
    return empty if controls is None else controls[controls["control"].str.startswith(UNTRAINED)]


def of_kind(found: pd.DataFrame, kind: str) -> pd.DataFrame:
    """The rows of one kind of heads."""
    return found[found["kind"] == kind]


def kinds_with_roles(found: RolesFolder) -> list[Kind]:
    """The kinds of heads that were tested."""
    return kinds_among(found.labels["kind"])


def role_sorts() -> list[str]:
    """The categories of roles, in the order in which they have the colours of the theme; grey is the second."""
    first, *others = dict.fromkeys(declared.category for declared in ordered_roles())
    return [first, NO_ROLE, *others]


def sorts_colour(present: Collection[str], columns: int) -> Spec:
    """The same colour for a sort of role in every chart. The legend has those there are; grey is no role."""
    domain = list(dict.fromkeys([*role_sorts(), *present]))
    values = []
    for sort in domain:
        if sort in set(present) and sort != NO_ROLE:
            values.append(sort)

    legend: Spec = {
        "orient": "top",
        "title": None,
        "values": values,
        "symbolType": "square",
        "columns": columns,
    }
    return colour("sort:N", domain, **(legend if values else {}))


def faint(strength: float = FAINT) -> Spec:
    """Cells without a role are faint."""
    return charts.when(f"datum.sort == '{NO_ROLE}'", strength, 1)


def function_grids(run: FinishedRun) -> list[Figure]:
    """For each kind, layers × heads with the roles of every head in its cell (Voita et al. 2019, figure 1c)."""
    assert run.roles is not None
    grids: list[Figure] = []
    for kind in kinds_with_roles(run.roles):
        grids.append(_role_grid(run, run.roles, kind))
    return grids


def _role_grid(run: FinishedRun, found: RolesFolder, kind: str) -> Figure:
    labels = of_kind(found.labels, kind)
    by, places = _places(run, labels, kind)
    roles = of_kind(found.roles, kind).sort_values("value", ascending=False, kind="stable")
    confirmed = confirmed_roles(found)
    held = {}
    for number, part in roles.groupby(["layer", "head"]):
        held[number] = part.to_dict("records")

    cells = []
    for head in labels.to_dict("records"):
        cells += _role_cells(head, held, places, confirmed)

    size = max(places.values())
    room = size <= ROOM
    edges = _lay_out(cells, room)
    height = max(bottom for _, bottom in edges.values()) + (FOOT if room else 0)
    order = (
        f"in each layer the head of highest {measure_name(by)} first"
        if by
        else "heads by their numbers"
    )
    narrow, width, wide = (62, 84, 130) if room else (9, 20, 36)
    chart = charts.layered(
        _marks(cells, edges, room, height, run.attention(kind)),
        height,
        f"Roles of heads, {KIND_NAMES[kind]}",
    )
    return Figure(
        name=f"functions-{kind}",
        title=f"{KIND_NAMES[kind].capitalize()}: {len(held)} of {len(labels)} heads have a role",
        note=f"layers × heads, {order}; colour: category of role; number: its score",
        panels=[Panel(chart, KIND_NAMES[kind], size * width, 60 + size * narrow, 90 + size * wide)],
        facts=f"Order: {order}.",
    )


def confirmed_roles(found: RolesFolder) -> set[tuple[Any, ...]]:
    """Kind, layer, head and measure of every role that is confirmed with the head off."""
    if found.causal is None:
        return set()
    rows = found.causal[found.causal["confirmed"] == 1]
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


def _places(
    run: FinishedRun, labels: pd.DataFrame, kind: str
) -> tuple[str | None, dict[tuple[int, int], int]]:
    """The place of each head in its layer, counted from 1, and by which measure (none: by their numbers)."""
    heads = labels[["layer", "head"]].sort_values(["layer", "head"])
    scores = (
        None if run.heads is None else run.heads[run.heads["kind"] == kind].dropna(subset=["value"])
    )
    measures = [] if scores is None else drawn_measures(scores["measure"])
    by = next((m for m in measures if m.split(".")[0] in ("lrp", "confidence")), None)
    values = None if scores is None else scores[scores["measure"] == by][["layer", "head", "value"]]
    if by is None or values is None:
        heads = heads.assign(value=-heads["head"])
    else:
        heads = heads.merge(values, how="left", on=["layer", "head"]).fillna(
            {"value": float("-inf")}
        )
    return by, {key: int(place) for key, place in ranks(heads).items()}  # type: ignore[misc]


def _role_cells(
    head: Mapping[Any, Any],
    held: Mapping[Any, list[dict[Any, Any]]],
    places: Mapping[tuple[int, int], int],
    confirmed: Collection[tuple[Any, ...]],
) -> list[dict[str, Any]]:
    """The parts of one head's cell, one a role. confirmed: roles with a mark, as `confirmed_roles` has them."""
    key = head["layer"], head["head"]
    roles = held.get(key, [])
    more = f" · {len(roles) - PARTS} more" if len(roles) > PARTS else ""
    base = {
        "address": f"{head['kind']}/{key[0]}/{key[1]}",
        "layer": key[0],
        "head": f"h{key[1]}{more}",
        "rank": places[key],
        "label": head["label"],
        "parts": max(len(roles[:PARTS]), 1),
    }
    parts = []
    for row in roles[:PARTS]:
        mark = CONFIRMED if (head["kind"], *key, row["measure"]) in confirmed else ""
        score = f"{row['value']:.2f}{mark}"
        parts.append((category(row["measure"]), in_cell(row["measure"]), score))

    cells = []
    for part, (sort, short, score) in enumerate(parts or [(NO_ROLE, "", "")]):
        cells.append(base | {"part": part, "sort": sort, "role": short, "score": score})
    return cells


def _lay_out(cells: list[dict[str, Any]], room: bool) -> dict[int, tuple[int, int]]:
    """Give every part of a cell its place, in pixels from the top; returns where each layer begins and ends."""
    edges: dict[int, tuple[int, int]] = {}
    top = 0
    for layer in sorted({cell["layer"] for cell in cells}):
        inside = []
        for cell in cells:
            if cell["layer"] == layer:
                inside.append(cell)

        filled = max(max(cell["parts"] for cell in inside) * PART, LOWEST) if room else SMALL
        for cell in inside:
            cell["top"] = top + cell["part"] * filled / cell["parts"]
            cell["bottom"] = top + (cell["part"] + 1) * filled / cell["parts"] - 1.5
            cell["middle"] = (cell["top"] + cell["bottom"]) / 2
            cell["foot"] = top + filled

        edges[layer] = top, top + filled
        top += filled + (FOOT if room else 1)
    return edges


def _marks(
    cells: list[dict[str, Any]],
    edges: Mapping[int, tuple[int, int]],
    room: bool,
    height: int,
    attention: Sequence[str],
) -> list[Spec]:
    middles = {}
    for layer, (top, bottom) in edges.items():
        name = f"{attention[layer]} · {layer}" if layer < len(attention) else layer
        middles[(top + bottom) / 2] = name

    names = "".join(f"datum.value == {middle} ? '{name}' : " for middle, name in middles.items())
    look: Spec = {"labelExpr": f"{names}''", "grid": False, "ticks": False, "domain": False}
    y = axis("top:Q", "layer", domain=[0, height], reverse=True, nice=False)
    y["axis"] = {"values": list(middles), **look}
    x = axis("rank:O", None, labels=False, orient="top")
    tip = tips("address:N|head", "label:N|does")
    ink = sorts_colour({cell["sort"] for cell in cells}, 5)
    marks = [
        charts.mark(
            "rect",
            cells,
            {"cornerRadius": 3},
            x=x,
            y=y,
            y2={"field": "bottom"},
            color=ink,
            opacity=faint(),
            tooltip=tip,
        )
    ]
    has_role = f"datum.sort != '{NO_ROLE}'"
    for name, style, at, test, look in (
        (
            "role:N",
            "small-on-high",
            "middle",
            has_role,
            {"opacity": 1, "fontSize": 11.5, "dy": -5.5},
        ),
        ("score:N", "small-on-high", "middle", has_role, {"opacity": 1, "fontSize": 11.5, "dy": 7}),
        ("head:N", "label", "foot", "datum.part == 0", {"fontSize": 10, "dy": 7}),
    ):
        marks += (
            [charts.text(cells, name, style, x, {**y, "field": at}, test, tip, **look)]
            if room
            else []
        )
    return marks


def layer_patterns(run: FinishedRun) -> Figure | None:
    """Stacked bars: which category of role is in which layer; None where no head has a role."""
    found = run.roles
    if found is None or found.roles.empty:
        return None
    heads = found.labels.groupby("kind").size()
    twice = int((found.patterns.groupby("kind")["heads"].sum() - heads).clip(lower=0).sum())
    kinds = kinds_among(found.patterns["kind"])
    return Figure(
        name="layer-patterns",
        title="Which role lives in which layer",
        note="heads of each category of role, layer by layer",
        panels=[_pattern_panel(run, of_kind(found.patterns, kind), kind) for kind in kinds],
        columns=2,
        facts=f"Counted more than once: {twice}." if twice else "",
    )


def _pattern_panel(run: FinishedRun, patterns: pd.DataFrame, kind: str) -> Panel:
    order = [*(sort for sort in role_sorts() if sort != NO_ROLE), NO_ROLE]
    cells = patterns.rename(columns={"role": "sort"})[["layer", "sort", "heads"]]
    cells = cells.assign(place=[order.index(sort) for sort in cells["sort"]])
    marks = charts.stacked_bars(
        cells,
        charts.layer_axis(run.attention(kind)),
        "heads:Q",
        sorts_colour(cells["sort"], 2),
        "place:Q",
        title="heads",
        tip=tips("layer:O", "sort:N|role", "heads:Q"),
        faint=faint(),
        texts=[(f"datum.sort != '{NO_ROLE}'", "on-high"), (f"datum.sort == '{NO_ROLE}'", "label")],
    )
    chart = charts.layered(
        marks, 30 * cells["layer"].nunique(), f"Roles by layer, {KIND_NAMES[kind]}"
    )
    return Panel(chart, KIND_NAMES[kind], width=440, widest=640)


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
    ink: Spec,
    threshold: float,
    tip: list[Spec],
    along: str,
    **more: Any,
) -> list[Spec]:
    """Bars with whiskers, what a random token would reach, and the share that makes a role."""
    places = {"x": x, "y": y}
    rule = {"style": "label-strong", "opacity": 0.8}
    marks = charts.intervals(cells, x, y, ink, along=along, tip=tip, bar=True, rule=rule)
    ends = places | {along: {**places[along], "field": "baseline"}}
    marks.append(
        charts.mark(
            "tick",
            cells,
            {"style": "level", "opacity": 1, "thickness": 1.5},
            "isValid(datum.baseline)",
            **ends,
        )
    )
    for layer in marks:
        layer["encoding"] |= more
    return [
        *marks,
        charts.level_lines(
            [{"bar": threshold}], {**places[along], "field": "bar"}, style="limit", along=along
        ),
    ]


def _untrained(found: RolesFolder, kind: str) -> pd.DataFrame:
    """The range over all heads of a kind in untrained models: measure, low, high; no row without any."""
    rows = of_kind(of_untrained(found), kind).dropna(subset=["value"])
    ends: pd.DataFrame = rows.groupby("measure")["value"].agg(low="min", high="max").reset_index()
    return ends


def _untrained_band(rows: pd.DataFrame, ends: Spec) -> list[Spec]:
    """What untrained heads reach, behind the bars."""
    tip = tips("low:Q|untrained heads, from|.3f", "high:Q|to|.3f")
    return (
        [charts.mark("rect", rows, {"style": "untrained"}, **ends, tooltip=tip)]
        if len(rows)
        else []
    )


def offsets(found: RolesFolder) -> Figure | None:
    """For every positional head, how often its largest weight lies at each offset from −3 to +3."""
    table = found.table[found.table["measure"].str.fullmatch(r"positional\.-?\d")].dropna(
        subset=["value"]
    )
    if table.empty:
        return None
    confirmed = _first_heads(found.roles[found.roles["measure"].str.startswith("positional.")])
    shown = confirmed[:HEADS_SHOWN] or _first_heads(table)[:NEAREST]
    least = percent(_threshold("positional"))
    return Figure(
        name="offsets",
        title="Where positional heads look" if confirmed else "No head is positional; the nearest",
        note="share of tokens whose largest weight lies at each offset · dashed: the threshold of a positional head",
        panels=[_offset_panel(found, table, head) for head in shown],
        columns=3,
        facts=f"Positional heads: {len(confirmed)}, shown: {len(shown)}. The threshold: {least}.",
    )


def _offset_panel(found: RolesFolder, table: pd.DataFrame, head: tuple[Any, ...]) -> Panel:
    cells = table[(table[["kind", "layer", "head"]] == list(head)).all(axis=1)]
    untrained = _untrained(found, str(head[0]))
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
    marks = _evidence(
        cells, x, y, colour("which:N", ["highest", "other"]), _threshold("positional"), tip, "y"
    )
    marks[:0] = _untrained_band(
        untrained, {"x": x, "y": {**y, "field": "low"}, "y2": {"field": "high"}}
    )
    return Panel(
        charts.layered(marks, 110, f"Offsets of {title}"),
        title,
        width=230,
        narrowest=140,
        widest=420,
    )


def rare_tokens(found: RolesFolder) -> Figure | None:
    """The heads that look most at the rarest tokens of a sentence, and what a random token would reach."""
    table = found.table[found.table["measure"].isin(RARE)].dropna(subset=["value"])
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
    count = int((found.roles["measure"] == "rare.two-rarest").sum())
    threshold = _threshold("rare.two-rarest")
    ink = colour("which:N", list(RARE.values()), orient="top", title=None, symbolType="square")
    x = axis("value:Q", "share of tokens", domain=[0, 1], tickCount=5)
    y = axis("address:N", None, sort=order)
    tip = tips(
        "address:N|head", "which:N|looks at", "value:Q|share|.3f", "baseline:Q||.3f", "n:Q||,"
    )
    shift = charts.field("which:N", sort=list(RARE.values()))
    untrained = _untrained(found, str(shown[0][0]))
    untrained = untrained[untrained["measure"].isin(RARE)].assign(
        which=lambda rows: rows["measure"].map(RARE)
    )
    untrained = untrained.merge(pd.DataFrame({"address": order}), how="cross")
    marks = _evidence(cells, x, y, ink, threshold, tip, "x", yOffset=shift)
    ends = {"x": {**x, "field": "low"}, "x2": {"field": "high"}, "y": y, "yOffset": shift}
    marks[:0] = _untrained_band(untrained, ends)
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
POINTED = 80  # letters of a word that pointing shows
STEP = 0.75  # rows between an arc and the one above it
GAP = 0.35  # columns between the words and the rest
CORNER = 7  # points of an arc's rounded end
ARC_FOOT = 0.13  # columns between the middle of a word and the end of an arc
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
    head_room = (max(len(word) for word in [*words, "rest"]) * LETTER + 8) / MAP_ROW
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
    height = round((size - top) * MAP_ROW)
    chart = charts.layered(marks, height, f"Attention, {' '.join(words)}", color="independent")
    held = evidence(example["measure"], example["value"], example["baseline"])
    title = f"{example['kind']}/{example['layer']}/{example['head']}: {held}; here {example['right']} of {example['asked']}"
    widest = 110 + (size + 1) * 46
    return Panel(
        chart, title, width=110 + size * 22, narrowest=90 + (size + 1) * NARROW, widest=widest
    )


def _shorten_word(word: str, longest: int = LONGEST_WORD) -> str:
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
    edges = []
    for q, k in cells:
        edges.append({"row": q, "bottom": q + 0.93, "column": k, "right": k + 0.93})

    look = {"style": "ring", "filled": False, "cornerRadius": 1.5, "strokeWidth": 2}
    return charts.mark("rect", edges, look, x=x, y=y, **SQUARE)


def _columns(words: Sequence[str], x: Spec, y: Spec) -> list[Spec]:
    """The words above their columns, written upwards."""
    named = []
    for k, word in enumerate(words):
        named.append({"word": word, "place": k + MIDDLE, "y": -0.25})

    rest = [{"word": "rest", "place": len(words) + GAP + MIDDLE, "y": -0.25}]
    x = x | {"field": "place"}
    y = y | {"field": "y"}
    upwards: Spec = {"angle": 270, "align": "left", "fontWeight": "normal"}
    marks: list[Spec] = []
    for some, style in ((named, "label-strong"), (rest, "label")):
        marks.append(charts.text(some, "word:N", style, x, y, **upwards))
    return marks


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

        toward = ARC_FOOT if governor < dependent else -ARC_FOOT
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
    start = governor + MIDDLE + ARC_FOOT * toward
    end = dependent + MIDDLE - ARC_FOOT * toward
    bend = min(0.35, abs(end - start) / 2) * toward
    turns = [i / (CORNER - 1) for i in range(CORNER)]
    rise = []
    for share in turns:
        rise.append((start + bend * share**2, height * (1 - (1 - share) ** 2)))

    fall = []
    for share in reversed(turns):
        fall.append((end - bend * share**2, height * (1 - (1 - share) ** 2)))

    points: list[tuple[float, float]] = []
    for across, up in (*rise, *fall):
        points.append((round(across, 4), round(up, 4)))
    return points
