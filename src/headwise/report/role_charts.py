"""Part of roles: grids of head functions, roles by layer, and the evidence for positional and rare-token heads."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import pandas as pd

from headwise.heads import KINDS
from headwise.report import charts
from headwise.report.charts import ROOM, Spec, axis, colour, tips
from headwise.report.components import Figure, Panel
from headwise.report.format import KIND_NAMES, measure_name, percent, signed
from headwise.report.run_folder import FinishedRun, RolesFolder
from headwise.report.score_maps import drawn_measures, ranks
from headwise.roles.role import NO_ROLE, UNTRAINED, category, ordered_roles, role, role_of

FAINT = 0.16  # how strong the grey of heads without a role is
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


def kinds_of(found: RolesFolder) -> list[str]:
    """The kinds of heads that were tested."""
    return [kind for kind in KINDS if kind in set(found.labels["kind"])]


def role_sorts() -> list[str]:
    """The categories of roles, in the order in which they have the colours of the theme; grey is the second."""
    first, *others = dict.fromkeys(declared.category for declared in ordered_roles())
    return [first, NO_ROLE, *others]


def sorts_colour(present: Collection[str], columns: int) -> Spec:
    """The same colour for a sort of role in every chart. The legend has those there are; grey is no role."""
    domain = list(dict.fromkeys([*role_sorts(), *present]))
    values = [sort for sort in domain if sort in set(present) and sort != NO_ROLE]
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
    return [_role_grid(run, run.roles, kind) for kind in kinds_of(run.roles)]


def _role_grid(run: FinishedRun, found: RolesFolder, kind: str) -> Figure:
    labels = of_kind(found.labels, kind)
    by, places = _places(run, labels, kind)
    roles = of_kind(found.roles, kind).sort_values("value", ascending=False, kind="stable")
    held = {head: part.to_dict("records") for head, part in roles.groupby(["layer", "head"])}
    cells = []
    for head in labels.to_dict("records"):
        cells += _role_cells(head, held, places)
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
        _marks(cells, edges, room, height), height, f"Roles of heads, {KIND_NAMES[kind]}"
    )
    return Figure(
        name=f"functions-{kind}",
        title=f"{KIND_NAMES[kind].capitalize()}: {len(held)} of {len(labels)} heads have a role",
        note=f"layers × heads, {order}; colour: category of role; number: its score",
        panels=[Panel(chart, KIND_NAMES[kind], size * width, 60 + size * narrow, 90 + size * wide)],
        facts=f"Order: {order}.",
    )


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
) -> list[dict[str, Any]]:
    """The parts of one head's cell, one a role."""
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
        parts.append((category(row["measure"]), in_cell(row["measure"]), f"{row['value']:.2f}"))
    return [
        base | {"part": part, "sort": sort, "role": role, "score": score}
        for part, (sort, role, score) in enumerate(parts or [(NO_ROLE, "", "")])
    ]


def _lay_out(cells: list[dict[str, Any]], room: bool) -> dict[int, tuple[int, int]]:
    """Give every part of a cell its place, in pixels from the top; returns where each layer begins and ends."""
    edges: dict[int, tuple[int, int]] = {}
    top = 0
    for layer in sorted({cell["layer"] for cell in cells}):
        inside = [cell for cell in cells if cell["layer"] == layer]
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
    cells: list[dict[str, Any]], edges: Mapping[int, tuple[int, int]], room: bool, height: int
) -> list[Spec]:
    middles = {(top + bottom) / 2: layer for layer, (top, bottom) in edges.items()}
    names = "".join(f"datum.value == {middle} ? '{layer}' : " for middle, layer in middles.items())
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


def layer_patterns(found: RolesFolder) -> Figure | None:
    """Stacked bars: which category of role is in which layer; None where no head has a role."""
    if found.roles.empty:
        return None
    heads = found.labels.groupby("kind").size()
    twice = int((found.patterns.groupby("kind")["heads"].sum() - heads).clip(lower=0).sum())
    kinds = [kind for kind in KINDS if kind in set(found.patterns["kind"])]
    return Figure(
        name="layer-patterns",
        title="Which role lives in which layer",
        note="heads of each category of role, layer by layer",
        panels=[_pattern_panel(of_kind(found.patterns, kind), kind) for kind in kinds],
        columns=2,
        facts=f"Counted more than once: {twice}." if twice else "",
    )


def _pattern_panel(patterns: pd.DataFrame, kind: str) -> Panel:
    order = [*(sort for sort in role_sorts() if sort != NO_ROLE), NO_ROLE]
    cells = patterns.rename(columns={"role": "sort"})[["layer", "sort", "heads"]]
    cells = cells.assign(place=[order.index(sort) for sort in cells["sort"]])
    marks = charts.stacked_bars(
        cells,
        axis("layer:O", "layer"),
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
