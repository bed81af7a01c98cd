"""The grid of head functions: layers × heads, and what each of them does (Voita et al. 2019, figures 1c, 2b, 2d)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import altair as alt
import pandas as pd

from headwise.heads import KINDS
from headwise.report.figure import Figure, Panel, Rows, rows
from headwise.report.role_figures import FAINT, sorts_legend, sorts_scale
from headwise.report.run import RolesFound, Run
from headwise.report.score_figures import drawn_measures
from headwise.report.wording import KIND_NAMES, measure_name, signed
from headwise.roles.label import NO_ROLE, wording_of_sort

ROOM = 16  # heads a layer, above which cells have no room for words
PARTS = 3  # roles that are written into one cell
PART, LOWEST, SMALL = 31, 36, 20  # pixels of height: of a role in a cell, of a cell, of a cell without words
FOOT = 17  # pixels below a cell for the head's number


def in_cell(measure: str) -> str:
    """A role in very few letters: `−1`, `obj→` (an obj looks at its governor), `→obj`, `rare`."""
    first, *rest = measure.split(".")
    if first == "positional":
        return signed(int(rest[0]), 0)
    if first == "syntactic":
        return f"{rest[0]}→" if rest[1] == "to-governor" else f"→{rest[0]}"
    return {"coreference": "coref", "previous-token": "previous", "duplicate-token": "duplicate"}.get(first, first)


def function_grids(run: Run) -> list[Figure]:
    """For each kind, layers × heads with the roles of every head printed in its cell (Voita et al. 2019, figure 1c)."""
    if run.roles is None:
        return []
    return [_grid(run, run.roles, kind) for kind in KINDS if kind in set(run.roles.labels["kind"])]


def _grid(run: Run, found: RolesFound, kind: str) -> Figure:
    labels = found.labels[found.labels["kind"] == kind]
    by, places = _places(run, labels, kind)
    held = {head: part.to_dict("records") for head, part in _of_kind(found.roles, kind).groupby(["layer", "head"])}
    cells = [cell for head in labels.to_dict("records") for cell in _cells(head, held, places)]
    most = max(cell["parts"] for cell in cells)
    size = max(places.values())
    room = size <= ROOM
    edges = _lay_out(cells, room)
    height = max(bottom for _, bottom in edges.values()) + (FOOT if room else 0)
    marks = _grid_marks(cells, edges, room, height)
    chart = alt.layer(*marks).properties(height=height, description=f"Roles of heads, {KIND_NAMES[kind]}")
    with_role = sum(bool(held.get((row["layer"], row["head"]))) for row in labels.to_dict("records"))
    order = f"in each layer the head of highest {measure_name(by)} first" if by else "heads by their numbers"
    narrow, wide = (62, 130) if room else (9, 36)
    panel = Panel(
        chart, KIND_NAMES[kind], width=size * (84 if room else 20), narrowest=60 + size * narrow,
        widest=90 + size * wide,
    )  # fmt: skip
    return Figure(
        name=f"functions-{kind}",
        title=f"{KIND_NAMES[kind].capitalize()}: {with_role} of {len(labels)} heads have a role",
        note=f"layers × heads, {order}; colour: sort of role; number: its score",
        caption=_grid_caption(order, most, room, cells),
        panels=[panel],
    )


def _grid_caption(order: str, most: int, room: bool, cells: Rows) -> str:
    told = f"Each row is a layer, {order}; the small label is the head's number in the model. "
    if room:
        told += "A cell names what the head does, with its score on the whole text: "
        named = {
            "positional": "−1 is the token before", "rare tokens": "rare: one of the two rarest tokens of the sentence",
            "syntactic": "obj→ is a word looking at the governor whose obj it is, →obj the governor looking at its obj",
        }  # fmt: skip
        present = {cell["sort"] for cell in cells}
        told += "; ".join(text for sort, text in named.items() if sort in present) or "there is none"
        told += ". "
    told += "Grey: no known role. "
    if most > 1:
        told += "Heads with several roles have their cell divided, the highest score on top. "
    return told + "Point at a cell for its evidence."


def _places(run: Run, labels: pd.DataFrame, kind: str) -> tuple[str | None, dict[tuple[int, int], int]]:
    """Where each head stands in its layer, counted from 1, and by which measure (none: by their numbers)."""
    heads = [(row["layer"], row["head"]) for row in labels.to_dict("records")]
    scores = None if run.heads is None else _of_kind(run.heads, kind).dropna(subset=["value"])
    measures = [] if scores is None else drawn_measures(scores["measure"])
    by = next((m for m in measures if m.split(".")[0] in ("lrp", "confidence")), None)
    values: dict[tuple[int, int], float] = {}
    if by is not None and scores is not None:
        chosen = scores[scores["measure"] == by].to_dict("records")
        values = {(row["layer"], row["head"]): row["value"] for row in chosen}
    places: dict[tuple[int, int], int] = {}
    for layer in {layer for layer, _ in heads}:
        inside = sorted(head for head in heads if head[0] == layer)
        inside.sort(key=lambda head: -values.get(head, float("-inf")) if values else 0)
        places |= {head: place for place, head in enumerate(inside, start=1)}
    return by, places


def _cells(
    head: Mapping[Any, Any], held: Mapping[Any, list[dict[Any, Any]]], places: Mapping[tuple[int, int], int]
) -> list[dict[str, Any]]:
    """The parts of one head's cell, one a role."""
    key = head["layer"], head["head"]
    roles = sorted(held.get(key, []), key=lambda role: -role["value"])
    shown = roles[:PARTS]
    base = {
        "address": f"{head['kind']}/{key[0]}/{key[1]}",
        "layer": key[0],
        "head": f"h{key[1]}",
        "rank": places[key],
        "label": head["label"],
        "parts": max(len(shown), 1),
    }
    if not shown:
        return [{**base, "part": 0, "sort": NO_ROLE, "role": "", "score": ""}]
    if len(roles) > PARTS:
        base["head"] += f" · {len(roles) - PARTS} more"
    return [
        {
            **base,
            "part": part,
            "sort": wording_of_sort(role["measure"]),
            "role": in_cell(role["measure"]),
            "score": f"{role['value']:.2f}",
        }
        for part, role in enumerate(shown)
    ]


def _lay_out(cells: list[dict[str, Any]], room: bool) -> dict[int, tuple[int, int]]:
    """Put every part of a cell at its place, in pixels from the top; where each layer begins and ends."""
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


def _grid_marks(
    cells: list[dict[str, Any]], edges: Mapping[int, tuple[int, int]], room: bool, height: int
) -> list[Any]:
    """Coloured parts of cells, what is written in them, and the heads' numbers below."""
    middles = {(top + bottom) / 2: layer for layer, (top, bottom) in edges.items()}
    names = "".join(f"datum.value == {middle} ? '{layer}' : " for middle, layer in middles.items())
    axis = alt.Axis(values=list(middles), labelExpr=f"{names}''", grid=False, ticks=False, domain=False)
    scale = alt.Scale(domain=[0, height], reverse=True, nice=False)
    x = alt.X("rank:O", title=None, axis=alt.Axis(labels=False, orient="top"))
    tooltip = [alt.Tooltip("address:N", title="head"), alt.Tooltip("label:N", title="does")]
    base = alt.Chart(rows(cells)).encode(x=x, tooltip=tooltip)
    present = {cell["sort"] for cell in cells}
    marks = [
        base.mark_rect(cornerRadius=3).encode(
            y=alt.Y("top:Q", title="layer", scale=scale, axis=axis),
            y2="bottom:Q",
            color=alt.Color("sort:N", scale=sorts_scale(), legend=sorts_legend(present, 5)),
            opacity=alt.condition(f"datum.sort == '{NO_ROLE}'", alt.value(FAINT), alt.value(1)),
        )
    ]
    if not room:
        return marks
    written = base.transform_filter(f"datum.sort != '{NO_ROLE}'").encode(y=alt.Y("middle:Q", scale=scale))
    marks.append(written.mark_text(style="small-on-high", opacity=1, fontSize=11.5, dy=-5.5).encode(text="role:N"))
    marks.append(written.mark_text(style="small-on-high", opacity=1, fontSize=11.5, dy=7).encode(text="score:N"))
    feet = base.transform_filter("datum.part == 0").encode(y=alt.Y("foot:Q", scale=scale), text="head:N")
    marks.append(feet.mark_text(style="label", fontSize=10, dy=7))
    return marks


def _of_kind(table: pd.DataFrame, kind: str) -> pd.DataFrame:
    return table[table["kind"] == kind]
