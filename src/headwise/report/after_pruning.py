"""How the heads that stay change: their roles and scores in pruned models compared with the full model's.

Voita et al. 2019, section 6.2 and figure 8: which functions survive, and which move to other heads.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import pandas as pd

from headwise.heads import KINDS, Head
from headwise.report import charts, models
from headwise.report.charts import Figure, Panel, axis, tips
from headwise.report.format import (
    HEADS_OF_KIND,
    KIND_NAMES,
    NONE,
    capital,
    count,
    listed,
    measure_name,
    signed,
)
from headwise.report.page import Columns, Table, chosen_badge, section, table
from headwise.report.role_charts import FAINT, category_colours, faint, of_kind, role_categories
from headwise.report.run_folder import FinishedRun, RolesFolder
from headwise.report.score_maps import drawn_measures
from headwise.roles.role import NO_ROLE, category, display_name, expected_roles

ROW, LINE = 30, 24  # pixels of height: of a model, of a role
SPACE = 0.08  # between the squares of two heads, in heads
MOST_DRAWN_ROLES = 40  # roles that are drawn one by one; those that changed come first
FEWEST_RANKED_HEADS = 4  # heads below which no rank correlation is given
Role = tuple[Head, str]  # a head and the measure of a role it has
ScoresBeforeAndAfter = tuple[
    models.ModelRow, str, pd.DataFrame
]  # a model, a measure, a row a head: kind, layer, head, before, after


@dataclass(frozen=True)
class Change:
    """A pruned model's roles of one kind compared with the full model's, whose numbers its heads have.

    kept: in both; lost: the head is there without the role; new: not in the full model; removed: with its head.
    """

    model: models.ModelRow
    found: RolesFolder
    heads: list[Head]
    kept: list[Role]
    lost: list[Role]
    new: list[Role]
    removed: list[Role]

    @property
    def now(self) -> list[Role]:
        """The roles in the pruned model."""
        return [*self.kept, *self.new]

    def moved(self) -> str:
        """The roles that the full model's heads lost and that another head has now."""
        left_heads = {measure for _, measure in [*self.lost, *self.removed]}
        gained = {measure for _, measure in self.new}
        return listed([display_name(measure) for measure in sorted(left_heads & gained)])

    def missing(self) -> str:
        """The categories that the full model's heads had and that no head has now."""
        before = set()
        for _, measure in [*self.kept, *self.lost, *self.removed]:
            before.add(category(measure))
        return listed(sorted(before - {category(measure) for _, measure in self.now}))

    def became(self, role: Role) -> str:
        """What a role of the full or of the pruned model is now."""
        parts = {"kept": self.kept, "lost": self.lost, "new": self.new}
        word = next((word for word, part in parts.items() if role in part), "no role")
        return word if role[0] in self.heads else "head removed"


@section(
    "after_pruning",
    heading="How the heads that stay change",
    question="Which roles and scores of the kept heads change?",
    order=110,
    files=("rescored/", "roles/", "heads.csv"),
    papers={"functions-left-encoder-self": "Voita fig. 8"},
    brought_by="scoring.pruned, for models pruned by gates",
    qualities=("bleu", "perplexity", "accuracy", "wer"),
)
def after_pruning_section(run: FinishedRun) -> dict[str, Any] | None:
    """Figures and tables, kind by kind; None where no pruned model was scored or tested for roles again."""
    kinds = []
    for kind in KINDS:
        if changes(run, kind):
            kinds.append(kind)

    ranks = rank_table(run)
    if not kinds and ranks is None:
        return None
    return {
        "parts": [_of_kind(run, kind) for kind in kinds],
        "scores": scores_figure(run),
        "ranks": ranks,
    }


def _of_kind(run: FinishedRun, kind: str) -> dict[str, Any]:
    assert run.roles is not None
    found = changes(run, kind)
    before = head_roles(run.roles, kind)
    drawn = before or any(change.now for change in found)
    return {
        "heads": HEADS_OF_KIND[kind],
        "paper": kind == "encoder-self",
        "had_roles": bool(before),
        "figures": [functions_left(run.roles, kind, found), role_by_role(run.roles, kind, found)]
        if drawn
        else [],
        "counts": role_changes_table(run, kind),
        "changed": changed_table(run, kind),
        "best": best_table(run, kind),
    }


def changes(run: FinishedRun, kind: str) -> list[Change]:
    """For every model that pruned heads of a kind and was tested for roles again, from many heads to few."""
    if run.roles is None or kind not in set(run.roles.labels["kind"]):
        return []
    before = head_roles(run.roles, kind)
    found = []
    for model in run.pruned:
        again = run.rescored.get(model["setting"])
        if again is None or again.roles is None or kind not in model["kinds"]:
            continue
        mask = run.layouts.get(model["setting"])
        heads = (
            heads_in_table(again.roles.labels, kind)
            if mask is None
            else sorted(h for h in mask.kept if h.kind == kind)
        )
        now = set(head_roles(again.roles, kind))
        left = set(heads)

        kept = []
        lost = []
        removed = []
        for role in before:
            if role in now:
                kept.append(role)
            elif role[0] in left:
                lost.append(role)
            if role[0] not in left:
                removed.append(role)

        new = sorted(now - set(before))
        found.append(Change(model, again.roles, heads, kept, lost, new, removed))
    return sorted(found, key=lambda change: -len(change.heads))


def heads_in_table(found: pd.DataFrame, kind: str) -> list[Head]:
    """The heads of a kind in a table."""
    rows = of_kind(found, kind)[["kind", "layer", "head"]].drop_duplicates()
    return sorted(Head(*row) for row in rows.itertuples(index=False, name=None))


def head_roles(found: RolesFolder, kind: str) -> list[Role]:
    """Every head of a kind with every role it has."""
    rows = of_kind(found.roles, kind)[["kind", "layer", "head", "measure"]]
    return sorted((Head(*row[:3]), row[3]) for row in rows.itertuples(index=False, name=None))


def tested_rows(found: RolesFolder) -> Mapping[Role, Mapping[Any, Any]]:
    """The row of every head and measure that was tested."""
    rows = found.table.dropna(subset=["value"]).to_dict("records")
    tested: dict[Role, Mapping[Any, Any]] = {}
    for row in rows:
        head = Head(row["kind"], row["layer"], row["head"])
        tested[head, row["measure"]] = row
    return tested


def score_text(row: Mapping[Any, Any] | None) -> str:
    """`0.84 [0.81, 0.87]`."""
    if row is None:
        return NONE
    text = f"{row['value']:.2f}"
    return text if pd.isna(row["low"]) else f"{text} [{row['low']:.2f}, {row['high']:.2f}]"


def role_changes_table(run: FinishedRun, kind: str) -> Table | None:
    """Model by model, how many roles were kept, lost, new, and which another head has now; None without any role."""
    shown = []
    for one in changes(run, kind):
        if one.kept or one.lost or one.new or one.removed:
            shown.append(one)

    columns: Columns = {
        "model": lambda change: change.model["label"],
        "heads": lambda change: str(len(change.heads)),
        "roles before": lambda change: str(len(change.kept) + len(change.lost)),
        "kept": lambda change: str(len(change.kept)),
        "lost": lambda change: str(len(change.lost)),
        "new": lambda change: str(len(change.new)),
        "removed with their heads": lambda change: str(len(change.removed)),
        "now in another head": Change.moved,
        "categories without a head": Change.missing,
    }
    return table(
        f"Roles of the {HEADS_OF_KIND[kind]} that stay",
        shown,
        columns,
        lambda one: chosen_badge(one.model),
    )


def changed_table(run: FinishedRun, kind: str) -> Table | None:
    """Every role that the heads of pruned models lost or gained, with its score before and after."""
    assert run.roles is not None
    before = tested_rows(run.roles)
    rows = []
    for change in changes(run, kind):
        after = tested_rows(change.found)
        for role in (*change.lost, *change.new):
            rows.append((change, role, before.get(role), after.get(role)))

    def baseline(row: Any) -> str:
        found = (row[3] or row[2] or {}).get("baseline")
        return "" if found is None or pd.isna(found) else f"{found:.2f}"

    columns: Columns = {
        "model": lambda row: row[0].model["label"],
        "head": lambda row: str(row[1][0]),
        "role": lambda row: display_name(row[1][1]),
        "full model [95 %]": lambda row: score_text(row[2]),
        "pruned model [95 %]": lambda row: score_text(row[3]),
        "baseline": baseline,
        "now": lambda row: row[0].became(row[1]),
    }
    return table("Roles that changed", rows, columns, code=lambda row: row[1][1])


def best_table(run: FinishedRun, kind: str) -> Table | None:
    """The best head for each function that the papers name, model by model, whether or not it makes a role."""
    assert run.roles is not None
    known = {"full model": run.roles}
    for change in changes(run, kind):
        known[f"{change.model['label']}\u00a0({len(change.heads)})"] = change.found

    columns: Columns = {
        "function": display_name,
        **{name: partial(_best, found, kind) for name, found in known.items()},
    }
    shown = []
    for measure in expected_roles(kind):
        if any(_best(r, kind, measure) for r in known.values()):
            shown.append(measure)
    return table(
        f"Best of the {HEADS_OF_KIND[kind]}, function by function", shown, columns, code=str
    )


def _best(found: RolesFolder, kind: str, measure: str) -> str:
    """`0.84 ✓` over the head; the tick: it is a confirmed role."""
    rows = found.table[(found.table["kind"] == kind) & (found.table["measure"] == measure)].dropna(
        subset=["value"]
    )
    if rows.empty:
        return ""
    best = rows.sort_values("value", kind="stable").iloc[-1]
    head = Head(best["kind"], int(best["layer"]), int(best["head"]))
    tick = " ✓" if (head, measure) in head_roles(found, kind) else ""
    return f"{best['value']:.2f}{tick}\n{head}"


def functions_left(full: RolesFolder, kind: str, found: list[Change]) -> Figure:
    """A row a model, a square a head, coloured by what it does; a head of two categories has both colours (Voita et al.
    2019, figure 8).
    """
    known = [("full model", heads_in_table(full.labels, kind), head_roles(full, kind))]
    known += [(change.model["label"], change.heads, change.now) for change in found]
    total = max(len(heads) for _, heads, _ in known)
    cells = []
    counts = []
    for model, heads, now in known:
        cells += _squares(model, heads, now)
        with_role = {head for head, _ in now}
        counts.append({"model": model, "text": f"{len(with_role)} of {len(heads)} with a role"})

    y = axis("model:N", None, sort=[name for name, _, _ in known])
    x = axis(
        "left:Q",
        "heads left",
        domain=[0, total],
        nice=False,
        grid=False,
        tickMinStep=1,
        tickCount=8,
    )
    squares = charts.mark(
        "rect",
        cells,
        {"cornerRadius": 2},
        x=x,
        y=y,
        x2={"field": "right"},
        opacity=faint(2 * FAINT),
        color=category_colours({cell["category"] for cell in cells}, 3),
        tooltip=tips("address:N|head", "roles:N|does"),
    )
    layers = [squares, charts.beside(counts, y, "text:N")]
    chart = charts.layered(layers, ROW * len(known), f"Functions of the {HEADS_OF_KIND[kind]} left")
    return Figure(
        name=f"functions-left-{kind}",
        title=f"What the {HEADS_OF_KIND[kind]} that stay do",
        note="a square is a head, its colour the category of its role (two colours: two) · grey: no known role",
        panels=[Panel(chart, KIND_NAMES[kind], width=720, narrowest=max(300, 190 + 6 * total))],
    )


def _squares(model: str, heads: list[Head], now: list[Role]) -> list[dict[str, Any]]:
    """The squares of one row: heads of the same categories next to each other, those without a role last."""
    categories_of_head: dict[Head, list[str]] = {}
    known = role_categories()
    for name in known:
        for head in dict.fromkeys(head for head, measure in now if category(measure) == name):
            categories_of_head.setdefault(head, []).append(name)

    def place(head: Head) -> tuple[list[int], Head]:
        own = [known.index(name) for name in categories_of_head.get(head, [])]
        return own or [len(known)], head

    cells = []
    for at, head in enumerate(sorted(heads, key=place)):
        categories = categories_of_head.get(head, [NO_ROLE])
        width = (1 - SPACE) / len(categories)
        roles = (
            ", ".join(display_name(measure) for other, measure in now if other == head) or NO_ROLE
        )
        for index, name in enumerate(categories):
            left = at + SPACE / 2 + index * width
            ends = {"left": round(left, 4), "right": round(left + width, 4)}
            cells.append(
                {"model": model, "address": str(head), "roles": roles, "category": name, **ends}
            )
    return cells


def role_by_role(full: RolesFolder, kind: str, found: list[Change]) -> Figure:
    """A row a head and role, a column a model: the score, full colour where it is a role, faint where it is none."""
    before = head_roles(full, kind)
    every = set(before)
    for each in found:
        every.update(each.now)

    known = sorted(every)
    steady = set()
    for role in known:
        if all(role in change.kept for change in found):
            steady.add(role)

    drawn = sorted(sorted(known, key=lambda role: (role in steady, role))[:MOST_DRAWN_ROLES])
    columns = [f"full model|{count(len(of_kind(full.labels, kind)), 'head')}"]
    tables = [tested_rows(full)]
    for each in found:
        columns.append(f"{each.model['label']}|{count(len(each.heads), 'head')}")
        tables.append(tested_rows(each.found))

    cells = list[dict[str, Any]]()
    for role in drawn:
        row: dict[str, Any] = {
            "role": _name(role),
            "address": str(role[0]),
            "measure": display_name(role[1]),
            "category": category(role[1]),
        }
        for column, change, scored in zip(columns, [None, *found], tables, strict=True):
            held = role in (change.now if change else before)
            score = scored.get(role)
            cells.append(
                {
                    **row,
                    "model": column,
                    "there": change is None or role[0] in change.heads,
                    "held": held,
                    "became": change.became(role) if change else "a role" if held else "no role",
                    "dash": NONE,
                    "score": f"{score['value']:.2f}" if score else "",
                    "text": score_text(score) if score else "not measured",
                }
            )

    x = axis(
        "model:N",
        None,
        sort=columns,
        orient="top",
        labelAngle=0,
        labelExpr="split(datum.label, '|')",
        labelPadding=20,
    )
    y = axis("role:N", None, sort=[_name(role) for role in drawn], labelLimit=240)
    tip = tips(
        "address:N|head", "measure:N|role", "model:N", "text:N|score", "became:N|in this model"
    )
    opacity = charts.when("datum.held", 1, FAINT)
    colours = category_colours({cell["category"] for cell in cells}, 3)
    marks = [
        charts.mark(
            "rect",
            cells,
            {"cornerRadius": 3},
            "datum.there",
            x=x,
            y=y,
            color=colours,
            opacity=opacity,
            tooltip=tip,
        ),
        charts.text(
            cells, "score:N", "small-on-high", x, y, "datum.held", tip, fontSize=12, opacity=1
        ),
        charts.text(cells, "score:N", "label", x, y, "datum.there && !datum.held", tip),
        charts.text(cells, "dash:N", "label", x, y, "!datum.there", tip, opacity=0.6),
    ]
    chart = charts.layered(
        marks, LINE * len(drawn), f"Roles of {HEADS_OF_KIND[kind]} through pruning"
    )
    narrow = 160 + 64 * len(columns)
    width = 200 + 84 * len(columns)
    wide = 240 + 130 * len(columns)
    return Figure(
        name=f"role-by-role-{kind}",
        title="Role by role: kept, lost and new",
        note="number: the score · full colour: a role · faint: the head is there, without the role · –: head removed",
        panels=[Panel(chart, KIND_NAMES[kind], width, narrow, wide)],
        facts=f"Drawn: {len(drawn)} of {len(known)} roles, those that change first."
        if len(drawn) < len(known)
        else "",
    )


def _name(role: Role) -> str:
    return f"{role[0].layer}/{role[0].head}  {display_name(role[1])}"


def scores_before_and_after(run: FinishedRun) -> list[ScoresBeforeAndAfter]:
    """Every model that was scored again, with each family's measure that both it and the full model have."""
    found = list[ScoresBeforeAndAfter]()
    for model in run.pruned if run.heads is not None else ():
        again = run.rescored.get(model["setting"])
        if again is None or again.heads is None or run.heads is None:
            continue
        for measure in drawn_measures(set(run.heads["measure"]) & set(again.heads["measure"])):
            joined = _joined(run.heads, again.heads, measure, model)
            found += [(model, measure, joined)] if len(joined) else []
    return found


def _joined(
    before: pd.DataFrame, after: pd.DataFrame, measure: str, model: models.ModelRow
) -> pd.DataFrame:
    """The heads of the pruned kinds that have a score in both.

    LRP is a share of its layer: the shares before are among the heads that stay, so that both sum to 1; a layer of
    which one head is left says nothing.
    """
    key = ["kind", "layer", "head"]
    parts = []
    for scores in (before, after):
        parts.append(scores[scores["measure"] == measure].dropna(subset=["value"]))

    joined = parts[0][[*key, "value"]].merge(parts[1][[*key, "value"]], on=key)
    joined = joined.rename(columns={"value_x": "before", "value_y": "after"})
    joined = joined[joined["kind"].isin(model["kinds"])]
    if measure.startswith("lrp"):
        layers = joined.groupby(key[:2])
        joined = joined.assign(before=joined["before"] / layers["before"].transform("sum"))
        joined = joined[layers["head"].transform("size") > 1]
    return joined


def rank(found: pd.DataFrame) -> float:
    """Spearman's rank correlation of before and after; not a number for very few heads, or equal scores."""
    if (
        len(found) < FEWEST_RANKED_HEADS
        or min(found["before"].nunique(), found["after"].nunique()) < 2
    ):
        return math.nan
    return float(found["before"].rank().corr(found["after"].rank()))


def rank_table(run: FinishedRun) -> Table | None:
    """The rank correlation of each score with itself before pruning, model by model; None where none was scored."""
    known = scores_before_and_after(run)
    shown = {}
    for model, _, _ in known:
        shown[model["setting"]] = model

    texts = {}
    for model, measure, found in known:
        correlation = rank(found)
        text = NONE if math.isnan(correlation) else signed(correlation)
        texts[model["setting"], measure] = f"{text}\nn = {len(found)}"

    columns: Columns = {"model": lambda model: model["label"]}
    for measure in dict.fromkeys(measure for _, measure, _ in known):
        columns[measure_name(measure)] = partial(
            lambda name, model: texts.get((model["setting"], name), ""), measure
        )
    return table(
        "Rank correlation of scores before and after pruning", shown.values(), columns, chosen_badge
    )


def scores_figure(run: FinishedRun) -> Figure | None:
    """Each score after pruning against the same before, a point a head that stays: of the chosen model, or else of the
    one with the most heads. None where nothing was scored again.
    """
    known = scores_before_and_after(run)
    if not known:
        return None
    shown = next((model for model, _, _ in known if model["chosen"]), known[0][0])
    panels = []
    for model, measure, found in known:
        if model["setting"] == shown["setting"]:
            panels.append(scatter(measure, found))
    return Figure(
        name="scores-after",
        title=f"Scores of the heads that stay, before and after pruning ({shown['label']})",
        note="a point is a head · on the line: as before",
        panels=panels,
        columns=min(3, len(panels)),
    )


def scatter(
    measure: str, found: pd.DataFrame, one: str = "full model", other: str = "pruned model"
) -> Panel:
    """A score of each head in two models, `before` and `after`, named `one` and `other`."""
    address = found["kind"] + "/" + found["layer"].astype(str) + "/" + found["head"].astype(str)
    cells = found[["before", "after"]].assign(address=address, kind=found["kind"].map(KIND_NAMES))
    low = min(0, *cells["before"], *cells["after"])
    high = max(*cells["before"], *cells["after"])
    ends = [low, high if high > low else low + 1]
    x = axis("before:Q", one, domain=ends, tickCount=3, grid=False)
    y = axis("after:Q", other, domain=ends, tickCount=3, grid=False)
    present = []
    for kind in KINDS:
        if KIND_NAMES[kind] in set(cells["kind"]):
            present.append(KIND_NAMES[kind])

    shape = charts.shape_field("kind:N", present, orient="top", columns=1)
    shape |= {} if len(present) > 1 else {"legend": None}
    tip = tips("address:N|head", f"before:Q|{one}|.3~g", f"after:Q|{other}|.3~g")
    same = [{"before": end, "after": end} for end in ends]
    line = charts.mark("line", same, {"style": "level", "strokeDash": [4, 4]}, x=x, y=y)
    points = charts.intervals(cells, x, y, tip=tip, size=80, shape=shape)[1:]
    name = capital(measure_name(measure))
    correlation = rank(found)
    heads = count(len(found), "head")
    text = (
        f"{heads}, too few to rank"
        if math.isnan(correlation)
        else f"rank correlation {signed(correlation)}, {heads}"
    )
    chart = charts.layered([line, *points], 230, f"{name}, {one} and {other}")
    return Panel(chart, f"{name}: {text}", width=250, narrowest=140, widest=420)
