"""Figures of pruned models looked at again: functions of the heads that stay, role by role, and their scores."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import altair as alt

from headwise.heads import Head
from headwise.report.drift import BECAME, Change, Place, changes, kinds_looked_at, places, scores_of, sorts_by_head
from headwise.report.figure import Figure, Panel, rows
from headwise.report.role_figures import FAINT, SORTS, sorts_legend, sorts_scale
from headwise.report.run import Run
from headwise.report.wording import HEADS_OF_KIND, KIND_NAMES, NONE
from headwise.roles.label import NO_ROLE, wording, wording_of_sort

ROW, LINE = 30, 24  # pixels of height: of a model, of a role
SPACE = 0.08  # between the squares of two heads, in heads
MOST = 40  # roles that are drawn one by one; those that changed come first


def drift_figures(run: Run) -> list[Figure]:
    """For each kind the functions of the heads that stay (Voita et al. 2019, figure 8), and every role by itself."""
    figures = []
    for kind in kinds_looked_at(run):
        found = changes(run, kind)
        if any(change.now or change.lost or change.removed for change in found):
            figures += [_retained(run, kind, found), _role_by_role(run, kind, found)]
    return figures


def _retained(run: Run, kind: str, found: list[Change]) -> Figure:
    """A line a model, a square a head, coloured by what it does; a head of two sorts has both colours."""
    assert run.roles is not None
    whole = [Head(*row) for row in run.roles.labels[["kind", "layer", "head"]].itertuples(index=False, name=None)]
    models = [("full model", sorted(head for head in whole if head.kind == kind), places(run.roles, kind))]
    models += [(change.setting.label, change.heads, change.now) for change in found]
    cells = [cell for model in models for cell in _squares(*model)]
    total = max(len(heads) for _, heads, _ in models)
    counts = [_count(*model) for model in models]
    order = [name for name, _, _ in models]
    y = alt.Y("model:N", sort=order, title=None)
    base = alt.Chart(rows(cells)).encode(y=y)
    squares = base.mark_rect(cornerRadius=2).encode(
        x=alt.X(
            "left:Q", title="heads left", scale=alt.Scale(domain=[0, total], nice=False),
            axis=alt.Axis(grid=False, tickMinStep=1, tickCount=8),
        ),
        x2="right:Q",
        color=alt.Color("sort:N", scale=sorts_scale(), legend=sorts_legend({cell["sort"] for cell in cells}, 3)),
        opacity=alt.condition(f"datum.sort == '{NO_ROLE}'", alt.value(2 * FAINT), alt.value(1)),
        tooltip=[alt.Tooltip("address:N", title="head"), alt.Tooltip("roles:N", title="does")],
    )  # fmt: skip
    told = (
        alt.Chart(rows(counts))
        .mark_text(style="label", align="left", dx=10)
        .encode(y=y, text="text:N", x=alt.value("width"))
    )
    chart = alt.layer(squares, told).properties(
        height=ROW * len(models), description=f"Functions of the {HEADS_OF_KIND[kind]} left"
    )
    return Figure(
        name=f"functions-left-{kind}",
        title=f"What the {HEADS_OF_KIND[kind]} that stay do",
        note="a square is a head, its colour the sort of its role (two colours: two sorts) · grey: no known role",
        caption=(
            "Each line is a model, from the full one down, each square one of its heads; a head with two sorts of role "
            "has both colours, grey is no known role. Roles are tested anew on every pruned model. Point at a square "
            "for the head and its roles. "
            + (
                "In figure 8 of Voita et al. (2019), with 17 of 48 encoder heads every function is still there while "
                "heads without a known one fell from 34 to 6; with 5 and fewer, heads do two things at once."
                if kind == "encoder-self"
                else ""
            )
        ),
        panels=[Panel(chart, KIND_NAMES[kind], width=720, narrowest=max(300, 190 + 6 * total))],
    )


def _squares(model: str, heads: list[Head], now: list[Place]) -> list[dict[str, Any]]:
    """The squares of one line: heads of the same sorts beside each other, those without a role last."""
    sorts = sorts_by_head(now)
    order = sorted(heads, key=lambda head: ([SORTS.index(s) for s in sorts.get(head, [])] or [len(SORTS)], head))
    cells = []
    for at, head in enumerate(order):
        mine = sorts.get(head, [NO_ROLE])
        width = (1 - SPACE) / len(mine)
        roles = ", ".join(wording(measure) for other, measure in now if other == head) or NO_ROLE
        cells += [
            {
                "model": model,
                "address": str(head),
                "roles": roles,
                "sort": sort,
                "left": round(at + SPACE / 2 + part * width, 4),
                "right": round(at + SPACE / 2 + (part + 1) * width, 4),
            }
            for part, sort in enumerate(mine)
        ]
    return cells


def _count(model: str, heads: list[Head], now: list[Place]) -> dict[str, str]:
    doing = len({head for head, _ in now})
    return {"model": model, "text": f"{doing} of {len(heads)} with a role"}


def _role_by_role(run: Run, kind: str, found: list[Change]) -> Figure:
    """A line a head and role, a column a model: the score, full colour where it is a role, faint where it is none."""
    assert run.roles is not None
    known = sorted({*places(run.roles, kind), *(place for change in found for place in change.now)})
    steady = {place for place in known if all(place in change.kept for change in found)}
    drawn = sorted(sorted(known, key=lambda place: (place in steady, place))[:MOST])
    cells = [cell for place in drawn for cell in _scores(run, kind, found, place)]
    models = [_full(run, kind), *(_column(change) for change in found)]
    x = alt.X(
        "model:N",
        sort=models,
        title=None,
        axis=alt.Axis(orient="top", labelAngle=0, labelExpr=TWO_LINES, labelPadding=20),
    )
    y = alt.Y("role:N", sort=[_line(place) for place in drawn], title=None, axis=alt.Axis(labelLimit=240))
    tooltip = [
        alt.Tooltip("address:N", title="head"), alt.Tooltip("measure:N", title="role"), alt.Tooltip("model:N"),
        alt.Tooltip("told:N", title="score"), alt.Tooltip("became:N", title="in this model"),
    ]  # fmt: skip
    base = alt.Chart(rows(cells)).encode(x=x, y=y, tooltip=tooltip)
    held, there = base.transform_filter("datum.held"), base.transform_filter("datum.there")
    marks = [
        there.mark_rect(cornerRadius=3).encode(
            color=alt.Color("sort:N", scale=sorts_scale(), legend=sorts_legend({cell["sort"] for cell in cells}, 3)),
            opacity=alt.condition("datum.held", alt.value(1), alt.value(FAINT)),
        ),
        held.mark_text(style="small-on-high", fontSize=12, opacity=1).encode(text="score:N"),
        there.transform_filter("!datum.held").mark_text(style="label").encode(text="score:N"),
        base.transform_filter("!datum.there").mark_text(style="label", opacity=0.6).encode(text=alt.value(NONE)),
    ]
    chart = alt.layer(*marks).properties(
        height=LINE * len(drawn), description=f"Roles of {HEADS_OF_KIND[kind]} through pruning"
    )
    left_out = (
        f" Drawn are {len(drawn)} of {len(known)} roles, those that change first." if len(drawn) < len(known) else ""
    )
    return Figure(
        name=f"role-by-role-{kind}",
        title="Role by role: what stays, what goes, what is new",
        note="number: the score · full colour: a role · faint: the head is there, without the role · –: head removed",
        caption=(
            "Each line is a head and a role that it has in one of the models. Full colour: it has the role there. "
            "Faint: the head is there, but its score makes no role. A dash: the head is removed. A line that begins "
            "faint and turns full is a function that moved to this head. Point at a cell for the interval." + left_out
        ),
        panels=[
            Panel(
                chart, KIND_NAMES[kind], width=200 + 84 * len(models), narrowest=160 + 64 * len(models),
                widest=240 + 130 * len(models),
            )
        ],
    )  # fmt: skip


TWO_LINES = "split(datum.label, '|')"


def _full(run: Run, kind: str) -> str:
    assert run.roles is not None
    return f"full model|{(run.roles.labels['kind'] == kind).sum()} heads"


def _column(change: Change) -> str:
    count = len(change.heads)
    return f"{change.setting.label}|{count} {'head' if count == 1 else 'heads'}"


def _line(place: Place) -> str:
    return f"{place[0].layer}/{place[0].head}  {wording(place[1])}"


def _scores(run: Run, kind: str, found: list[Change], place: Place) -> list[dict[str, Any]]:
    """The cells of one line."""
    assert run.roles is not None
    head, measure = place
    full = {"model": _full(run, kind), "there": True, "held": place in places(run.roles, kind)}
    cells = [{**full, **_told(scores_of(run.roles).get(place)), "became": "a role" if full["held"] else "no role"}]
    for change in found:
        after = run.after[change.setting.name].roles
        assert after is not None
        became = next((word for name, word in BECAME.items() if place in getattr(change, name)), "no role")
        there = head in change.heads
        cell = {"model": _column(change), "there": there, "held": place in change.now}
        cells.append({**cell, **_told(scores_of(after).get(place)), "became": became if there else BECAME["removed"]})
    same = {"role": _line(place), "address": str(head), "measure": wording(measure), "sort": wording_of_sort(measure)}
    return [{**same, **cell} for cell in cells]


def _told(row: Mapping[Any, Any] | None) -> dict[str, str]:
    if row is None:
        return {"score": "", "told": "not measured"}
    score = f"{row['value']:.2f}"
    known = row["low"] == row["low"]  # not a number where there is no interval
    return {"score": score, "told": f"{score} [{row['low']:.2f}, {row['high']:.2f}]" if known else score}
