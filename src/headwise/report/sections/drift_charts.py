"""Part of drift: the functions of the heads that stay (Voita et al. 2019, figure 8), and every role by itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import altair as alt

from headwise.heads import Head
from headwise.report import charts
from headwise.report.charts import Text
from headwise.report.parts import Figure, Panel
from headwise.report.run import Roles
from headwise.report.sections.role_charts import FAINT, SORTS, faint, sorts_colour
from headwise.report.words import HEADS_OF_KIND, KIND_NAMES, NONE
from headwise.roles.label import NO_ROLE, category, wording

if TYPE_CHECKING:
    from headwise.report.sections.drift import Change, Role

ROW, LINE = 30, 24  # pixels of height: of a model, of a role
SPACE = 0.08  # between the squares of two heads, in heads
MOST = 40  # roles that are drawn one by one; those that changed come first


def functions_left(kind: str, known: list[tuple[str, list[Head], list[Role]]]) -> Figure:
    """A row a model, a square a head, coloured by what it does; a head of two categories has both colours."""
    cells = [cell for model in known for cell in _squares(*model)]
    total = max(len(heads) for _, heads, _ in known)
    counts = [
        {"model": model, "text": f"{len({head for head, _ in now})} of {len(heads)} with a role"}
        for model, heads, now in known
    ]
    y = alt.Y("model:N", sort=[name for name, _, _ in known], title=None)
    axis = alt.Axis(grid=False, tickMinStep=1, tickCount=8)
    x = alt.X("left:Q", title="heads left", scale=alt.Scale(domain=[0, total], nice=False), axis=axis)
    marks = charts.grid(
        cells, x, y, sorts_colour({cell["sort"] for cell in cells}, 3),
        tip=charts.tips("address:N|head", "roles:N|does"), faint=faint(2 * FAINT), radius=2, x2="right:Q",
    )  # fmt: skip
    chart = charts.layered(
        [*marks, charts.beside(counts, y, "text:N")], ROW * len(known), f"Functions of the {HEADS_OF_KIND[kind]} left"
    )
    return Figure(
        name=f"functions-left-{kind}",
        title=f"What the {HEADS_OF_KIND[kind]} that stay do",
        note="a square is a head, its colour the category of its role (two colours: two) · grey: no known role",
        panels=[Panel(chart, KIND_NAMES[kind], width=720, narrowest=max(300, 190 + 6 * total))],
    )


def _squares(model: str, heads: list[Head], now: list[Role]) -> list[dict[str, Any]]:
    """The squares of one row: heads of the same categories beside each other, those without a role last."""
    sorts: dict[Head, list[str]] = {}
    for sort in SORTS:
        for head in dict.fromkeys(head for head, measure in now if category(measure) == sort):
            sorts.setdefault(head, []).append(sort)
    order = sorted(heads, key=lambda head: ([SORTS.index(s) for s in sorts.get(head, [])] or [len(SORTS)], head))
    cells = []
    for at, head in enumerate(order):
        mine = sorts.get(head, [NO_ROLE])
        width = (1 - SPACE) / len(mine)
        roles = ", ".join(wording(measure) for other, measure in now if other == head) or NO_ROLE
        for part, sort in enumerate(mine):
            left = at + SPACE / 2 + part * width
            ends = {"left": round(left, 4), "right": round(left + width, 4)}
            cells.append({"model": model, "address": str(head), "roles": roles, "sort": sort, **ends})
    return cells


def role_by_role(full: Roles, kind: str, before: list[Role], found: list[Change]) -> Figure:
    """A row a head and role, a column a model: the score, full colour where it is a role, faint where it is none."""
    known = sorted({*before, *(role for change in found for role in change.now)})
    steady = {role for role in known if all(role in change.kept for change in found)}
    drawn = sorted(sorted(known, key=lambda role: (role in steady, role))[:MOST])
    full_heads = int((full.labels["kind"] == kind).sum())
    columns = [f"full model|{full_heads} heads"]
    columns += [
        f"{change.model['label']}|{len(change.heads)} {'head' if len(change.heads) == 1 else 'heads'}"
        for change in found
    ]
    cells = [cell for role in drawn for cell in _scores(full, before, found, role, columns)]
    axis = alt.Axis(orient="top", labelAngle=0, labelExpr="split(datum.label, '|')", labelPadding=20)
    x = alt.X("model:N", sort=columns, title=None, axis=axis)
    y = alt.Y("role:N", sort=[_name(role) for role in drawn], title=None, axis=alt.Axis(labelLimit=240))
    tip = charts.tips("address:N|head", "measure:N|role", "model:N", "text:N|score", "became:N|in this model")
    texts = [
        Text("score:N", "small-on-high", "datum.held", {"fontSize": 12, "opacity": 1}),
        Text("score:N", "label", "datum.there && !datum.held"),
        Text("dash:N", "label", "!datum.there", {"opacity": 0.6}),
    ]
    opacity = alt.condition("datum.held", alt.value(1), alt.value(FAINT))
    colour = sorts_colour({cell["sort"] for cell in cells}, 3)
    marks = charts.grid(cells, x, y, colour, tip=tip, texts=texts, where="datum.there", faint=opacity)
    width = len(columns)
    return Figure(
        name=f"role-by-role-{kind}",
        title="Role by role: what stays, what goes, what is new",
        note="number: the score · full colour: a role · faint: the head is there, without the role · –: head removed",
        panels=[
            Panel(
                charts.layered(marks, LINE * len(drawn), f"Roles of {HEADS_OF_KIND[kind]} through pruning"),
                KIND_NAMES[kind], width=200 + 84 * width, narrowest=160 + 64 * width, widest=240 + 130 * width,
            )
        ],
        facts=f"Drawn: {len(drawn)} of {len(known)} roles, those that change first." if len(drawn) < len(known) else "",
    )  # fmt: skip


def _name(role: Role) -> str:
    return f"{role[0].layer}/{role[0].head}  {wording(role[1])}"


def _scores(
    full: Roles, before: list[Role], found: list[Change], role: Role, columns: list[str]
) -> list[dict[str, Any]]:
    """The cells of one row."""
    from headwise.report.sections.drift import score_text, scores_of

    held = role in before
    cells = [(scores_of(full).get(role), True, held, "a role" if held else "no role")]
    for change in found:
        parts = {"kept": change.kept, "lost": change.lost, "new": change.new}
        became = next((word for word, part in parts.items() if role in part), "no role")
        there = role[0] in change.heads
        cells.append(
            (scores_of(change.found).get(role), there, role in change.now, became if there else "head removed")
        )
    same = {"role": _name(role), "address": str(role[0]), "measure": wording(role[1]), "sort": category(role[1])}
    return [
        {
            **same, "model": column, "there": there, "held": now, "became": became, "dash": NONE,
            "score": "" if row is None else f"{row['value']:.2f}",
            "text": "not measured" if row is None else score_text(row),
        }
        for column, (row, there, now, became) in zip(columns, cells, strict=True)
    ]  # fmt: skip
