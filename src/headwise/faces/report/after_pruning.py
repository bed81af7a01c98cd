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

from headwise.core.heads import KINDS, Head, head_of
from headwise.core.tables import HEAD_COLUMNS
from headwise.faces.report import charts, models
from headwise.faces.report.charts import Figure, Panel, axis, tips
from headwise.faces.report.format import (
    HEADS_OF_KIND,
    KIND_NAMES,
    NONE,
    capital,
    count,
    estimate,
    kinds_among,
    listed,
    measure_name,
    signed,
    two_decimals,
)
from headwise.faces.report.head_rows import heads_in, of_kind, of_measure
from headwise.faces.report.page import Columns, PageTable, chosen_badge, section, table
from headwise.faces.report.role_charts import FAINT, category_colours, faint
from headwise.faces.report.run_folder import RolesFolder, RunContents
from headwise.faces.report.score_maps import drawn_measures
from headwise.roles.role import NO_ROLE, category, display_name, role_categories

MODEL_HEIGHT = 30  # pixels of height of a model
SPACE = 0.08  # between the squares of two heads, in heads
FEWEST_RANKED_HEADS = 4  # heads below which no rank correlation is given
Role = tuple[Head, str]  # a head and the measure of a role it has
ScoresBeforeAndAfter = tuple[
    models.ModelRow, str, pd.DataFrame
]  # a model, a measure, a row a head: kind, layer, head, before, after


@dataclass(frozen=True)
class RoleChange:
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
        # Whether its head went or stopped doing it.
        left_heads = {measure for _, measure in [*self.lost, *self.removed]}
        gained = {measure for _, measure in self.new}
        return listed([display_name(measure) for measure in sorted(left_heads & gained)])

    def missing(self) -> str:
        """The categories that the full model's heads had and that no head has now."""
        before = {category(measure) for _, measure in [*self.kept, *self.lost, *self.removed]}
        return listed(sorted(before - {category(measure) for _, measure in self.now}))


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
def after_pruning_section(run: RunContents) -> dict[str, Any] | None:
    """Figures and tables, kind by kind; None where no pruned model was scored or tested for roles again."""
    parts = []
    for kind in KINDS:
        found = changes(run, kind)
        if found:
            before = head_roles(run.roles, kind)
            drawn = before or any(change.now for change in found)
            parts.append(
                {
                    "heads": HEADS_OF_KIND[kind],
                    "had_roles": bool(before),
                    "figure": functions_left(run.roles, kind, found) if drawn else None,
                    "counts": role_changes_table(found, kind),
                    "changed": changed_table(run.roles, found),
                }
            )

    ranks = rank_table(run)
    if not parts and ranks is None:
        return None
    return {"parts": parts, "scores": scores_figure(run), "ranks": ranks}


def changes(run: RunContents, kind: str) -> list[RoleChange]:
    """For every model that pruned heads of a kind and was tested for roles again, from many heads to few."""
    if kind not in set(run.roles.labels["kind"]):
        return []
    before = head_roles(run.roles, kind)
    found = []
    for model in run.pruned:
        again = run.rescored.get(model["setting"])
        if again is None or not again.roles or kind not in model["kinds"]:
            continue
        mask = run.layouts.get(model["setting"])
        heads = heads_in(of_kind(again.roles.labels, kind))
        if mask is not None:
            heads = sorted(head for head in mask.kept if head.kind == kind)
        now = set(head_roles(again.roles, kind))
        kept = [role for role in before if role in now]
        # Gone with their heads: no head could show them.
        removed = [role for role in before if role[0] not in heads]
        lost = [role for role in before if role not in kept and role not in removed]
        new = sorted(now - set(before))
        found.append(RoleChange(model, again.roles, heads, kept, lost, new, removed))
    return sorted(found, key=lambda change: -len(change.heads))


def head_roles(found: RolesFolder, kind: str) -> list[Role]:
    """Every head of a kind with every role it has."""
    rows = of_kind(found.roles, kind).to_dict("records")
    return sorted((head_of(row), str(row["measure"])) for row in rows)


def tested_rows(found: RolesFolder) -> Mapping[Role, Mapping[Any, Any]]:
    """The row of every head and measure that was tested."""
    rows = found.table.dropna(subset=["value"]).to_dict("records")
    return {(head_of(row), row["measure"]): row for row in rows}


def score_text(row: Mapping[Any, Any] | None) -> str:
    """`0.84 [0.81, 0.87]`."""
    return NONE if row is None else estimate(row, two_decimals)


def role_changes_table(found: list[RoleChange], kind: str) -> PageTable | None:
    """Model by model, how many roles were kept, lost, new, and which another head has now; None without any role."""
    columns: Columns = {
        "model": lambda change: change.model["label"],
        "heads": lambda change: str(len(change.heads)),
        # Roles of removed heads have a column of their own, so before = kept + lost.
        "roles before": lambda change: str(len(change.kept) + len(change.lost)),
        "kept": lambda change: str(len(change.kept)),
        "lost": lambda change: str(len(change.lost)),
        "new": lambda change: str(len(change.new)),
        "removed with their heads": lambda change: str(len(change.removed)),
        "now in another head": RoleChange.moved,
        "categories without a head": RoleChange.missing,
    }
    return table(
        f"Roles of the {HEADS_OF_KIND[kind]} that stay",
        [one for one in found if one.now or one.lost or one.removed],
        columns,
        lambda one: chosen_badge(one.model),
    )


def changed_table(full: RolesFolder, found: list[RoleChange]) -> PageTable | None:
    """Every role that the heads of pruned models lost or gained, with its score before and after."""
    before = tested_rows(full)
    rows = []
    for change in found:
        after = tested_rows(change.found)
        for word, roles in (("lost", change.lost), ("new", change.new)):
            for role in roles:
                rows.append((change, role, before.get(role), after.get(role), word))

    def baseline(row: Any) -> str:
        value = (row[3] or row[2] or {}).get("baseline", math.nan)
        return "" if math.isnan(value) else two_decimals(value)

    columns: Columns = {
        "model": lambda row: row[0].model["label"],
        "head": lambda row: str(row[1][0]),
        "role": lambda row: display_name(row[1][1]),
        "full model [95 %]": lambda row: score_text(row[2]),
        "pruned model [95 %]": lambda row: score_text(row[3]),
        "baseline": baseline,
        "now": lambda row: row[4],
    }
    return table("Roles that changed", rows, columns, code=lambda row: row[1][1])


def functions_left(full: RolesFolder, kind: str, found: list[RoleChange]) -> Figure:
    """A row per model, a square per head, coloured by what it does; a head of two categories has both colours (Voita et al.
    2019, figure 8).
    """
    known = [("full model", heads_in(of_kind(full.labels, kind)), head_roles(full, kind))]
    known += [(change.model["label"], change.heads, change.now) for change in found]
    total = max(len(heads) for _, heads, _ in known)
    cells = []
    counts = []
    for model, heads, now in known:
        cells += _squares(model, heads, now)
        with_role = {head for head, _ in now}
        counts.append({"model": model, "text": f"{len(with_role)} of {len(heads)} with a role"})

    y = axis("model:N", None, sort=[name for name, _, _ in known])
    whole = {"domain": [0, total], "nice": False, "grid": False}
    x = axis("left:Q", "heads left", tickMinStep=1, tickCount=8, **whole)
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
    several = [cell for cell in cells if cell["functions"] > 1 and cell["first"]]
    numbers = charts.text(
        [cell | {"count": str(cell["functions"]), "middle": cell["at"]} for cell in several],
        "count:N",
        "small-on-function",
        x | {"field": "middle"},
        y,
        tip=tips("address:N|head", "roles:N|does"),
    )
    layers = [squares, numbers, charts.beside(counts, y, "text:N")]
    chart = charts.layered(
        layers, MODEL_HEIGHT * len(known), f"Functions of the {HEADS_OF_KIND[kind]} left"
    )
    return Figure(
        name=f"functions-left-{kind}",
        title=f"What the {HEADS_OF_KIND[kind]} that stay do",
        note="a square is a head, its colour the category of its role · 2: two roles · grey: no known role",
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
        # A head with two roles shares its square between them.
        width = (1 - SPACE) / len(categories)
        own = [display_name(measure) for other, measure in now if other == head]
        roles, functions = ", ".join(own), len(own)
        for index, name in enumerate(categories):
            left = at + SPACE / 2 + index * width
            ends = {"left": round(left, 4), "right": round(left + width, 4)}
            said = {"model": model, "address": str(head), "roles": roles or NO_ROLE}
            number = {"functions": functions, "first": index == 0, "at": at + 0.5}
            cells.append({**said, **number, "category": name, **ends})
    return cells


def scores_before_and_after(run: RunContents) -> list[ScoresBeforeAndAfter]:
    """Every model that was scored again, with each family's measure that both it and the full model have."""
    found = list[ScoresBeforeAndAfter]()
    for model in run.pruned:
        again = run.rescored.get(model["setting"])
        if again is None:
            continue
        for measure in drawn_measures(set(run.heads["measure"]) & set(again.heads["measure"])):
            joined = _joined(run.heads, again.heads, measure, model)
            if len(joined):
                found.append((model, measure, joined))
    return found


def _joined(
    before: pd.DataFrame, after: pd.DataFrame, measure: str, model: models.ModelRow
) -> pd.DataFrame:
    """The heads of the pruned kinds that have a score in both.

    LRP is a share of its layer: the shares before are among the heads that stay, so that both sum to 1; a layer of
    which one head is left says nothing.
    """
    one, other = (
        of_measure(scores, measure)[[*HEAD_COLUMNS, "value"]] for scores in (before, after)
    )
    joined = one.merge(other, on=HEAD_COLUMNS)
    joined = joined.rename(columns={"value_x": "before", "value_y": "after"})
    joined = joined[joined["kind"].isin(model["kinds"])]
    if measure.startswith("lrp"):
        layers = joined.groupby(["kind", "layer"])
        # Shares of what stays: without this every head would seem to have gained.
        joined = joined.assign(before=joined["before"] / layers["before"].transform("sum"))
        joined = joined[layers["head"].transform("size") > 1]
    return joined


def rank(found: pd.DataFrame) -> float:
    """Spearman's rank correlation of before and after; not a number for very few heads, or equal scores."""
    if len(found) < FEWEST_RANKED_HEADS or found[["before", "after"]].nunique().min() < 2:
        return math.nan
    return float(found["before"].rank().corr(found["after"].rank()))


def rank_table(run: RunContents) -> PageTable | None:
    """The rank correlation of each score with itself before pruning, model by model; None where none was scored."""
    shown = {}
    texts = {}
    for model, measure, found in scores_before_and_after(run):
        shown[model["setting"]] = model
        correlation = rank(found)
        text = NONE if math.isnan(correlation) else signed(correlation)
        texts[model["setting"], measure] = f"{text}\nn = {len(found)}"

    columns: Columns = {"model": lambda model: model["label"]}
    for measure in dict.fromkeys(measure for _, measure in texts):
        # A closure would know the last measure only: it reads the name when it is called.
        columns[measure_name(measure)] = partial(
            lambda name, model: texts.get((model["setting"], name), ""), measure
        )
    return table(
        "Rank correlation of scores before and after pruning", shown.values(), columns, chosen_badge
    )


def scores_figure(run: RunContents) -> Figure | None:
    """Each score after pruning against the same before, a point a head that stays: of the chosen model, or else of the
    one with the most heads. None where nothing was scored again.
    """
    known = scores_before_and_after(run)
    if not known:
        return None
    # The first one has the most heads: `run.pruned` goes from many heads to few.
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
    address = [str(head_of(row)) for row in found.to_dict("records")]
    cells = found[["before", "after"]].assign(address=address, kind=found["kind"].map(KIND_NAMES))
    # Both axes have the same ends, so that equal scores lie on the diagonal.
    low = min(0, *cells["before"], *cells["after"])
    high = max(*cells["before"], *cells["after"])
    # Where all scores are 0, a scale from 0 to 0 would have no length.
    ends = [low, high if high > low else low + 1]
    x = axis("before:Q", one, domain=ends, tickCount=3, grid=False)
    y = axis("after:Q", other, domain=ends, tickCount=3, grid=False)
    present = [KIND_NAMES[kind] for kind in kinds_among(found["kind"])]
    shape = charts.shape_field("kind:N", present, orient="top", columns=1)
    shape |= {} if len(present) > 1 else {"legend": None}
    tip = tips("address:N|head", f"before:Q|{one}|.3~g", f"after:Q|{other}|.3~g")
    same = [{"before": end, "after": end} for end in ends]
    line = charts.mark("line", same, {"style": "level", "strokeDash": [4, 4]}, x=x, y=y)
    points = charts.intervals(cells, x, y, tip=tip, size=80, shape=shape)[1:]
    name = capital(measure_name(measure))
    correlation = rank(found)
    text = "too few heads to rank"
    if not math.isnan(correlation):
        text = f"rank correlation {signed(correlation)}, {count(len(found), 'head')}"
    chart = charts.layered([line, *points], 230, f"{name}, {one} and {other}")
    return Panel(chart, f"{name}: {text}", width=250, narrowest=140, widest=420)
