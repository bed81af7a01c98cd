"""Figures of the evidence for roles: where positional heads look, rare tokens, which role lives in which layer."""

from __future__ import annotations

from typing import Any

import altair as alt
import pandas as pd

from headwise.heads import KINDS
from headwise.report.figure import Figure, Panel, Rows, rows
from headwise.report.run import RolesFound, Run
from headwise.report.wording import KIND_NAMES, percent, signed
from headwise.roles.label import AT_LEAST, NO_ROLE

# In this order they have the colours of the theme's categories; grey is the second.
SORTS = (
    "positional", NO_ROLE, "syntactic", "rare tokens", "coreference", "alignment", "previous token", "duplicate token",
    "induction", "sink",
)  # fmt: skip
FAINT = 0.16  # how strong the grey of heads without a role is
OFFSETS = range(-3, 4)
HEADS_SHOWN = 9  # panels of offsets, and rows of rare tokens
NEAREST = 3  # heads that are shown when none is positional


def sorts_scale() -> Any:
    """The same colour for a sort of role in every chart."""
    return alt.Scale(domain=list(SORTS), range="category")


def sorts_legend(present: set[str], columns: int) -> Any:
    """The sorts that are there; that grey is no role stands in the captions. Nothing where no head has a role."""
    values = [sort for sort in SORTS if sort in present and sort != NO_ROLE]
    if not values:
        return None
    return alt.Legend(orient="top", title=None, values=values, symbolType="square", columns=columns)


def offsets(run: Run) -> Figure | None:
    """For every positional head, how often its largest weight lies at each offset from −3 to +3."""
    if run.roles is None:
        return None
    table = run.roles.table[run.roles.table["measure"].str.fullmatch(r"positional\.-?\d")].dropna(subset=["value"])
    if table.empty:
        return None
    confirmed = _first_heads(run.roles.roles[run.roles.roles["measure"].str.startswith("positional.")])
    chosen = confirmed[:HEADS_SHOWN] or _first_heads(table)[:NEAREST]
    panels = [_offset_panel(table, head) for head in chosen]
    bar = AT_LEAST["positional"]
    line = f"takes {percent(bar)} or more of their tokens (the dashed line)"
    if confirmed:
        shown = "all" if len(chosen) == len(confirmed) else f"the first {len(chosen)} of"
        told = f"Heads of which one offset {line}, {shown} {len(confirmed)}."
    else:
        told = f"No head has an offset that {line}; these come nearest."
    return Figure(
        name="offsets",
        title="Where positional heads look" if confirmed else "No head is positional; the nearest",
        note="share of tokens whose largest weight lies at each offset · dashed: the bar for a positional head",
        caption=(
            f"{told} The short grey lines are what a token drawn at random would reach. Each offset is counted over "
            "the tokens that have a token there, so the bars need not sum to 1. Tokens are the model's pieces; "
            "whiskers: 95 % intervals."
        ),
        panels=panels,
        columns=3,
    )


def _first_heads(table: pd.DataFrame) -> list[tuple[str, int, int]]:
    """Heads from the highest value down, each once."""
    ordered = table.sort_values("value", ascending=False, kind="stable")
    return list(dict.fromkeys((row["kind"], row["layer"], row["head"]) for row in ordered.to_dict("records")))


def _offset_panel(table: pd.DataFrame, head: tuple[str, int, int]) -> Panel:
    cells = _offset_cells(table, head)
    best = next(cell for cell in cells if cell["which"] == "highest")
    x = alt.X(
        "offset:N",
        sort=[signed(r, 0) for r in OFFSETS],
        title=None,
        axis=alt.Axis(labelAngle=0, labelFontSize=10, labelOverlap=False),
    )
    scale = alt.Scale(domain=[0, 1])
    y = alt.Y("value:Q", title=None, scale=scale, axis=alt.Axis(values=[0, 0.5, 1]))
    tooltip = [
        alt.Tooltip("offset:N"), alt.Tooltip("value:Q", title="share", format=".3f"),
        alt.Tooltip("low:Q", format=".3f"), alt.Tooltip("high:Q", format=".3f"), alt.Tooltip("n:Q", format=","),
    ]  # fmt: skip
    base = alt.Chart(rows(cells)).encode(x=x, tooltip=tooltip)
    colour = alt.Color("which:N", scale=alt.Scale(domain=["highest", "other"], range="category"), legend=None)
    chart = alt.layer(
        base.mark_bar(cornerRadiusEnd=2, opacity=0.85).encode(y=y, color=colour),
        base.transform_filter("isValid(datum.baseline)")
        .mark_tick(style="level", opacity=1, thickness=1.5)
        .encode(y=alt.Y("baseline:Q", scale=scale)),
        base.transform_filter("isValid(datum.low)")
        .mark_rule(style="label-strong", opacity=0.8)
        .encode(y=alt.Y("low:Q", scale=scale), y2="high:Q"),
        alt.Chart(rows([{"bar": AT_LEAST["positional"]}]))
        .mark_rule(style="limit")
        .encode(y=alt.Y("bar:Q", scale=scale)),
    )
    title = f"{head[0]}/{head[1]}/{head[2]} · {best['offset']}: {best['value']:.2f}"
    return Panel(
        chart.properties(height=110, description=f"Offsets of {title}"), title, width=230, narrowest=140, widest=420
    )


def _offset_cells(table: pd.DataFrame, head: tuple[str, int, int]) -> list[dict[str, Any]]:
    """A bar for each offset; the highest is told apart."""
    here = table[(table["kind"] == head[0]) & (table["layer"] == head[1]) & (table["head"] == head[2])]
    return [
        {
            "offset": signed(int(row["measure"].split(".")[1]), 0),
            "value": round(row["value"], 4),
            "low": row["low"],
            "high": row["high"],
            "baseline": row["baseline"],
            "n": row["n"],
            "which": "highest" if row["value"] == here["value"].max() else "other",
        }
        for row in here.to_dict("records")
    ]


def rare_tokens(run: Run) -> Figure | None:
    """The heads that look most at the rarest tokens of a sentence, against a token drawn at random."""
    if run.roles is None:
        return None
    names = {"rare.two-rarest": "one of the two rarest", "rare.rarest": "the rarest"}
    table = run.roles.table[run.roles.table["measure"].isin(names)].dropna(subset=["value"])
    chosen = _first_heads(table[table["measure"] == "rare.two-rarest"])[:HEADS_SHOWN]
    if not chosen:
        return None
    bar, cells = AT_LEAST["rare.two-rarest"], []
    for row in table.to_dict("records"):
        if (row["kind"], row["layer"], row["head"]) in chosen:
            address = f"{row['kind']}/{row['layer']}/{row['head']}"
            cells.append({"address": address, "which": names[row["measure"]]}
                         | {name: row[name] for name in ("value", "low", "high", "baseline", "n")})  # fmt: skip
    count = int((run.roles.roles["measure"] == "rare.two-rarest").sum())
    looks = "head looks" if count < 2 else "heads look"
    return Figure(
        name="rare-tokens",
        title=f"{count or 'No'} {looks} at rare tokens" + ("" if count else "; the nearest"),
        note="share of tokens that look most at a rare one · line: a token drawn at random · dashed: the bar",
        caption=(
            f"The {len(chosen)} heads that look most at one of the two rarest tokens of a sentence, in sentences whose "
            "rarest token is not a frequent one of the training text. Short lines: what a token drawn at random would "
            f"reach. From the dashed line ({bar:g}) on, looking at one of the two rarest is a role. Whiskers: 95 % "
            "intervals."
        ),
        panels=[_rare_panel(cells, ["/".join(map(str, head)) for head in chosen], list(names.values()), bar)],
    )


def _rare_panel(cells: Rows, order: list[str], names: list[str], bar: float) -> Panel:
    scale = alt.Scale(domain=[0, 1])
    y, shift = alt.Y("address:N", sort=order, title=None), alt.YOffset("which:N", sort=names)
    legend = alt.Legend(orient="top", title=None, symbolType="square")
    tooltip = [
        alt.Tooltip("address:N", title="head"), alt.Tooltip("which:N", title="looks at"),
        alt.Tooltip("value:Q", title="share", format=".3f"), alt.Tooltip("baseline:Q", format=".3f"),
        alt.Tooltip("n:Q", format=","),
    ]  # fmt: skip
    base = alt.Chart(rows(cells)).encode(y=y, yOffset=shift, tooltip=tooltip)
    chart = alt.layer(
        base.mark_bar(cornerRadiusEnd=2, opacity=0.85).encode(
            x=alt.X("value:Q", title="share of tokens", scale=scale, axis=alt.Axis(tickCount=5)),
            color=alt.Color("which:N", scale=alt.Scale(domain=names, range="category"), legend=legend),
        ),
        base.transform_filter("isValid(datum.baseline)")
        .mark_tick(style="level", opacity=1, thickness=2)
        .encode(x=alt.X("baseline:Q", scale=scale)),
        base.transform_filter("isValid(datum.low)")
        .mark_rule(style="label-strong", opacity=0.8)
        .encode(x=alt.X("low:Q", scale=scale), x2="high:Q"),
        alt.Chart(rows([{"bar": bar}])).mark_rule(style="limit").encode(x=alt.X("bar:Q", scale=scale)),
    )
    return Panel(
        chart.properties(height=30 * len(order), description="Rare tokens"), "rare tokens", width=560, widest=620
    )


def layer_patterns(run: Run) -> Figure | None:
    """Stacked bars: which sort of role lives in which layer; None where no head has a role."""
    if run.roles is None or run.roles.roles.empty:
        return None
    kinds = [kind for kind in KINDS if kind in set(run.roles.patterns["kind"])]
    twice = _several_sorts(run.roles)
    return Figure(
        name="layer-patterns",
        title="Which role lives in which layer",
        note="heads of each sort of role, layer by layer",
        caption="One bar a layer, the first on top; the number is the number of heads. Grey: no known role."
        + (f" Heads of several sorts count for each: {twice}." if twice else ""),
        panels=[_pattern_panel(run.roles.patterns, kind) for kind in kinds],
        columns=2,
    )


def _several_sorts(found: RolesFound) -> int:
    """How many heads have roles of more than one sort."""
    heads = found.labels.groupby("kind").size()
    return int((found.patterns.groupby("kind")["heads"].sum() - heads).clip(lower=0).sum())


def _pattern_panel(patterns: pd.DataFrame, kind: str) -> Panel:
    here = patterns[patterns["kind"] == kind]
    order = [*(sort for sort in SORTS if sort != NO_ROLE), NO_ROLE]
    cells = [
        {"layer": row["layer"], "sort": row["role"], "heads": row["heads"], "place": order.index(row["role"])}
        for row in here.to_dict("records")
    ]
    base = alt.Chart(rows(cells)).encode(
        y=alt.Y("layer:O", title="layer"),
        x=alt.X("heads:Q", stack="zero", title="heads", axis=alt.Axis(tickMinStep=1, tickCount=6, grid=False)),
        order=alt.Order("place:Q"),
        tooltip=[alt.Tooltip("layer:O"), alt.Tooltip("sort:N", title="role"), alt.Tooltip("heads:Q")],
    )
    present = {cell["sort"] for cell in cells}
    bars = base.mark_bar(cornerRadius=2).encode(
        color=alt.Color("sort:N", scale=sorts_scale(), legend=sorts_legend(present, 2)),
        opacity=alt.condition(f"datum.sort == '{NO_ROLE}'", alt.value(FAINT), alt.value(1)),
    )
    numbers = base.encode(x=alt.X("heads:Q", stack="zero", bandPosition=0.5))
    marks = [bars]
    for test, style in ((f"datum.sort != '{NO_ROLE}'", "on-high"), (f"datum.sort == '{NO_ROLE}'", "label")):
        marks.append(
            numbers.mark_text(style=style).encode(text=alt.condition(test, alt.Text("heads:Q"), alt.value("")))
        )
    chart = alt.layer(*marks).properties(
        height=30 * here["layer"].nunique(), description=f"Roles by layer, {KIND_NAMES[kind]}"
    )
    return Panel(chart, KIND_NAMES[kind], width=440, widest=640)
