"""Part of roles: grids of head functions, roles by layer, and the evidence for positional and rare-token heads."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import altair as alt
import pandas as pd

from headwise.heads import KINDS
from headwise.report import charts
from headwise.report.charts import ROOM, Text
from headwise.report.parts import Figure, Panel
from headwise.report.run import Roles, Run
from headwise.report.sections.scores import drawn_measures, ranks
from headwise.report.words import KIND_NAMES, measure_name, percent, signed
from headwise.roles.label import AT_LEAST, NO_ROLE, category

# In this order they have the colours of the theme's categories; grey is the second.
SORTS = (
    "positional", NO_ROLE, "syntactic", "rare tokens", "coreference", "alignment", "previous token", "duplicate token",
    "induction", "sink",
)  # fmt: skip
SHORT = {"coreference": "coref", "previous-token": "previous", "duplicate-token": "duplicate"}
FAINT = 0.16  # how strong the grey of heads without a role is
PARTS = 3  # roles that are written into one cell
PART, LOWEST, SMALL, FOOT = 31, 36, 20, 17  # pixels: a role in a cell, a cell, a cell without words, the label below
HEADS_SHOWN, NEAREST = 9, 3  # heads in figures of evidence; where none has the role
RARE = {"rare.two-rarest": "one of the two rarest", "rare.rarest": "the rarest"}


def sorts_colour(present: Iterable[str], columns: int) -> alt.Color:
    """The same colour for a sort of role in every chart. The legend has those there are; grey is no role."""
    values = [sort for sort in SORTS if sort in set(present) and sort != NO_ROLE]
    legend = alt.Legend(orient="top", title=None, values=values, symbolType="square", columns=columns)
    scale = alt.Scale(domain=list(SORTS), range="category")
    return alt.Color("sort:N", scale=scale, legend=legend if values else None)


def faint(strength: float = FAINT) -> Any:
    """Cells without a role are faint."""
    return alt.condition(f"datum.sort == '{NO_ROLE}'", alt.value(strength), alt.value(1))


def function_grids(run: Run) -> list[Figure]:
    """For each kind, layers × heads with the roles of every head in its cell (Voita et al. 2019, figure 1c)."""
    assert run.roles is not None
    return [_grid(run, run.roles, kind) for kind in KINDS if kind in set(run.roles.labels["kind"])]


def _grid(run: Run, found: Roles, kind: str) -> Figure:
    labels = found.labels[found.labels["kind"] == kind]
    by, places = _places(run, labels, kind)
    roles = found.roles[found.roles["kind"] == kind].sort_values("value", ascending=False, kind="stable")
    held = {head: part.to_dict("records") for head, part in roles.groupby(["layer", "head"])}
    cells = [cell for head in labels.to_dict("records") for cell in _cells(head, held, places)]
    size = max(places.values())
    room = size <= ROOM
    edges = _lay_out(cells, room)
    height = max(bottom for _, bottom in edges.values()) + (FOOT if room else 0)
    order = f"in each layer the head of highest {measure_name(by)} first" if by else "heads by their numbers"
    narrow, wide = (62, 130) if room else (9, 36)
    chart = charts.layered(_marks(cells, edges, room, height), height, f"Roles of heads, {KIND_NAMES[kind]}")
    return Figure(
        name=f"functions-{kind}",
        title=f"{KIND_NAMES[kind].capitalize()}: {len(held)} of {len(labels)} heads have a role",
        note=f"layers × heads, {order}; colour: category of role; number: its score",
        panels=[Panel(chart, KIND_NAMES[kind], size * (84 if room else 20), 60 + size * narrow, 90 + size * wide)],
        facts=f"Order: {order}.",
    )


def in_cell(measure: str) -> str:
    """A role in very few letters: `−1`, `obj→` (an obj looks at its governor), `→obj`, `rare`."""
    first, *rest = measure.split(".")
    if first == "positional":
        return signed(int(rest[0]), 0)
    if first == "syntactic":
        return f"{rest[0]}→" if rest[1] == "to-governor" else f"→{rest[0]}"
    return SHORT.get(first, first)


def _places(run: Run, labels: pd.DataFrame, kind: str) -> tuple[str | None, dict[tuple[int, int], int]]:
    """The place of each head in its layer, counted from 1, and by which measure (none: by their numbers)."""
    heads = labels[["layer", "head"]].sort_values(["layer", "head"])
    scores = None if run.heads is None else run.heads[run.heads["kind"] == kind].dropna(subset=["value"])
    measures = [] if scores is None else drawn_measures(scores["measure"])
    by = next((m for m in measures if m.split(".")[0] in ("lrp", "confidence")), None)
    values = None if scores is None else scores[scores["measure"] == by][["layer", "head", "value"]]
    if by is None or values is None:
        heads = heads.assign(value=-heads["head"])
    else:
        heads = heads.merge(values, how="left", on=["layer", "head"]).fillna({"value": float("-inf")})
    return by, {key: int(place) for key, place in ranks(heads).items()}  # type: ignore[misc]


def _cells(
    head: Mapping[Any, Any], held: Mapping[Any, list[dict[Any, Any]]], places: Mapping[tuple[int, int], int]
) -> list[dict[str, Any]]:
    """The parts of one head's cell, one a role."""
    key = head["layer"], head["head"]
    roles = held.get(key, [])
    more = f" · {len(roles) - PARTS} more" if len(roles) > PARTS else ""
    base = {
        "address": f"{head['kind']}/{key[0]}/{key[1]}", "layer": key[0], "head": f"h{key[1]}{more}",
        "rank": places[key], "label": head["label"], "parts": max(len(roles[:PARTS]), 1),
    }  # fmt: skip
    if not roles:
        return [{**base, "part": 0, "sort": NO_ROLE, "role": "", "score": ""}]
    return [
        {
            **base, "part": part, "sort": category(role["measure"]), "role": in_cell(role["measure"]),
            "score": f"{role['value']:.2f}",
        }
        for part, role in enumerate(roles[:PARTS])
    ]  # fmt: skip


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
            cell["middle"], cell["foot"] = (cell["top"] + cell["bottom"]) / 2, top + filled
        edges[layer] = top, top + filled
        top += filled + (FOOT if room else 1)
    return edges


def _marks(cells: list[dict[str, Any]], edges: Mapping[int, tuple[int, int]], room: bool, height: int) -> list[Any]:
    middles = {(top + bottom) / 2: layer for layer, (top, bottom) in edges.items()}
    names = "".join(f"datum.value == {middle} ? '{layer}' : " for middle, layer in middles.items())
    axis = alt.Axis(values=list(middles), labelExpr=f"{names}''", grid=False, ticks=False, domain=False)
    y = alt.Y("top:Q", title="layer", scale=alt.Scale(domain=[0, height], reverse=True, nice=False), axis=axis)
    x = alt.X("rank:O", title=None, axis=alt.Axis(labels=False, orient="top"))
    tip = charts.tips("address:N|head", "label:N|does")
    colour = sorts_colour({cell["sort"] for cell in cells}, 5)
    marks = charts.grid(cells, x, y, colour, tip=tip, faint=faint(), y2="bottom:Q")
    if room:
        large: dict[str, Any] = {"opacity": 1, "fontSize": 11.5}
        role = f"datum.sort != '{NO_ROLE}'"
        inside = [Text("role:N", "small-on-high", role, {**large, "dy": -5.5})]
        inside += [Text("score:N", "small-on-high", role, {**large, "dy": 7})]
        below = [Text("head:N", "label", "datum.part == 0", {"fontSize": 10, "dy": 7})]
        marks += charts.written(cells, x, charts.same(y, "middle:Q"), inside, tip)
        marks += charts.written(cells, x, charts.same(y, "foot:Q"), below, tip)
    return marks


def layer_patterns(found: Roles) -> Figure | None:
    """Stacked bars: which category of role is in which layer; None where no head has a role."""
    if found.roles.empty:
        return None
    kinds = [kind for kind in KINDS if kind in set(found.patterns["kind"])]
    heads = found.labels.groupby("kind").size()
    twice = int((found.patterns.groupby("kind")["heads"].sum() - heads).clip(lower=0).sum())
    return Figure(
        name="layer-patterns",
        title="Which role lives in which layer",
        note="heads of each category of role, layer by layer",
        panels=[_pattern_panel(found.patterns[found.patterns["kind"] == kind], kind) for kind in kinds],
        columns=2,
        facts=f"Counted more than once: {twice}." if twice else "",
    )


def _pattern_panel(patterns: pd.DataFrame, kind: str) -> Panel:
    order = [*(sort for sort in SORTS if sort != NO_ROLE), NO_ROLE]
    cells = patterns.rename(columns={"role": "sort"})[["layer", "sort", "heads"]]
    cells = cells.assign(place=[order.index(sort) for sort in cells["sort"]])
    marks = charts.stacked(
        cells, alt.Y("layer:O", title="layer"), "heads:Q", sorts_colour(cells["sort"], 2), "place:Q", title="heads",
        tip=charts.tips("layer:O", "sort:N|role", "heads:Q"), faint=faint(),
        texts=[(f"datum.sort != '{NO_ROLE}'", "on-high"), (f"datum.sort == '{NO_ROLE}'", "label")],
    )  # fmt: skip
    chart = charts.layered(marks, 30 * cells["layer"].nunique(), f"Roles by layer, {KIND_NAMES[kind]}")
    return Panel(chart, KIND_NAMES[kind], width=440, widest=640)


def _first_heads(table: pd.DataFrame) -> list[tuple[Any, ...]]:
    """Heads from the highest value down, each once."""
    ordered = table.sort_values("value", ascending=False, kind="stable").drop_duplicates(["kind", "layer", "head"])
    return list(ordered[["kind", "layer", "head"]].itertuples(index=False, name=None))


def _evidence(
    cells: pd.DataFrame, at: Any, value: Any, colour: Any, bar: float, tip: list[Any], **more: Any
) -> list[Any]:
    """Bars with whiskers, what a random token would reach, and the share that makes a role."""
    along = "y" if isinstance(value, alt.Y) else "x"
    rule = {"style": "label-strong", "opacity": 0.8}
    marks = charts.intervals(cells, at, value, colour, tip=tip, bar=True, rule=rule)
    base = alt.Chart(charts.data(cells)).transform_filter("isValid(datum.baseline)")
    tick = base.mark_tick(style="level", opacity=1, thickness=1.5)
    marks.append(tick.encode(**{("x" if along == "y" else "y"): at, along: charts.same(value, "baseline:Q")}))
    if more:
        marks = [mark.encode(**more) for mark in marks]
    return [*marks, charts.levels([{"bar": bar}], charts.same(value, "bar:Q"), style="limit")]


def offsets(found: Roles) -> Figure | None:
    """For every positional head, how often its largest weight lies at each offset from −3 to +3."""
    table = found.table[found.table["measure"].str.fullmatch(r"positional\.-?\d")].dropna(subset=["value"])
    if table.empty:
        return None
    confirmed = _first_heads(found.roles[found.roles["measure"].str.startswith("positional.")])
    shown = confirmed[:HEADS_SHOWN] or _first_heads(table)[:NEAREST]
    return Figure(
        name="offsets",
        title="Where positional heads look" if confirmed else "No head is positional; the nearest",
        note="share of tokens whose largest weight lies at each offset · dashed: the bar for a positional head",
        panels=[_offset_panel(table, head) for head in shown],
        columns=3,
        facts=f"Positional heads: {len(confirmed)}, shown: {len(shown)}. The bar: {percent(AT_LEAST['positional'])}.",
    )


def _offset_panel(table: pd.DataFrame, head: tuple[Any, ...]) -> Panel:
    cells = table[(table[["kind", "layer", "head"]] == list(head)).all(axis=1)]
    best = cells["value"].max()
    cells = cells.assign(
        offset=[signed(int(measure.split(".")[1]), 0) for measure in cells["measure"]],
        which=["highest" if value == best else "other" for value in cells["value"]],
    )[["offset", "value", "low", "high", "baseline", "n", "which"]]
    axis = alt.Axis(labelAngle=0, labelFontSize=10, labelOverlap=False)
    x = alt.X("offset:N", sort=[signed(at, 0) for at in range(-3, 4)], title=None, axis=axis)
    y = alt.Y("value:Q", title=None, scale=alt.Scale(domain=[0, 1]), axis=alt.Axis(values=[0, 0.5, 1]))
    colour = alt.Color("which:N", scale=alt.Scale(domain=["highest", "other"], range="category"), legend=None)
    tip = charts.tips("offset:N", "value:Q|share|.3f", "low:Q||.3f", "high:Q||.3f", "n:Q||,")
    title = f"{head[0]}/{head[1]}/{head[2]} · {cells.loc[cells['which'] == 'highest', 'offset'].iloc[0]}: {best:.2f}"
    chart = charts.layered(_evidence(cells, x, y, colour, AT_LEAST["positional"], tip), 110, f"Offsets of {title}")
    return Panel(chart, title, width=230, narrowest=140, widest=420)


def rare_tokens(found: Roles) -> Figure | None:
    """The heads that look most at the rarest tokens of a sentence, beside a random token."""
    table = found.table[found.table["measure"].isin(RARE)].dropna(subset=["value"])
    shown = _first_heads(table[table["measure"] == "rare.two-rarest"])[:HEADS_SHOWN]
    if not shown:
        return None
    table = table.assign(which=table["measure"].map(RARE))
    table["address"] = table["kind"] + "/" + table["layer"].astype(str) + "/" + table["head"].astype(str)
    order = ["/".join(map(str, head)) for head in shown]
    cells = table.loc[table["address"].isin(order), ["address", "which", "value", "low", "high", "baseline", "n"]]
    count, bar = int((found.roles["measure"] == "rare.two-rarest").sum()), AT_LEAST["rare.two-rarest"]
    legend = alt.Legend(orient="top", title=None, symbolType="square")
    colour = alt.Color("which:N", scale=alt.Scale(domain=list(RARE.values()), range="category"), legend=legend)
    x = alt.X("value:Q", title="share of tokens", scale=alt.Scale(domain=[0, 1]), axis=alt.Axis(tickCount=5))
    tip = charts.tips("address:N|head", "which:N|looks at", "value:Q|share|.3f", "baseline:Q||.3f", "n:Q||,")
    shift = alt.YOffset("which:N", sort=list(RARE.values()))
    marks = _evidence(cells, alt.Y("address:N", sort=order, title=None), x, colour, bar, tip, yOffset=shift)
    chart = charts.layered(marks, 30 * len(order), "Rare tokens")
    return Figure(
        name="rare-tokens",
        title=f"Heads that look at rare tokens: {count}" if count else "No head looks at rare tokens; the nearest",
        note="share of tokens that look most at a rare one · line: a random token · dashed: the bar",
        panels=[Panel(chart, "rare tokens", width=560, widest=620)],
        facts=f"Shown: {len(shown)}. The bar: {bar:g}.",
    )
