"""How the heads that stay change: their roles and scores in pruned models beside the full model's.

Voita et al. 2019, section 6.2 and figure 8: which functions survive, and which move to other heads.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd

from headwise.heads import KINDS, Head
from headwise.report import models
from headwise.report.parts import Figure, Row, Section, Table
from headwise.report.run import Roles, Run
from headwise.report.sections import drift_charts, drift_scores
from headwise.report.words import HEADS_OF_KIND, NONE, listed
from headwise.roles.label import EXPECTED, category, wording

Role = tuple[Head, str]  # a head and the measure of a role it has


@dataclass(frozen=True)
class Change:
    """A pruned model's roles of one kind beside the full model's, whose numbers its heads have.

    kept: in both; lost: the head is there without the role; new: not in the full model; removed: with its head.
    """

    model: models.Model
    found: Roles
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
        gone = {measure for _, measure in [*self.lost, *self.removed]}
        return listed([wording(measure) for measure in sorted(gone & {measure for _, measure in self.new})]) or NONE


def build(run: Run) -> dict[str, Any] | None:
    """Figures and tables, kind by kind; None where no pruned model was scored or tested for roles again."""
    kinds = [kind for kind in KINDS if changes(run, kind)]
    ranks = drift_scores.rank_table(run)
    if not kinds and ranks is None:
        return None
    parts = [_of_kind(run, kind) for kind in kinds]
    return {"parts": parts, "scores": drift_scores.figure(run), "ranks": ranks}


def _of_kind(run: Run, kind: str) -> dict[str, Any]:
    assert run.roles is not None
    found, before = changes(run, kind), roles_of(run.roles, kind)
    figures = list[Figure]()
    if before or any(change.now for change in found):
        models_ = [("full model", heads_of(run.roles.labels, kind), before)]
        models_ += [(change.model["label"], change.heads, change.now) for change in found]
        figures = [
            drift_charts.functions_left(kind, models_),
            drift_charts.role_by_role(run.roles, kind, before, found),
        ]
    return {
        "heads": HEADS_OF_KIND[kind], "paper": kind == "encoder-self", "had_roles": bool(before), "figures": figures,
        "counts": counts_table(run, kind), "changed": changed_table(run, kind), "best": best_table(run, kind),
    }  # fmt: skip


def changes(run: Run, kind: str) -> list[Change]:
    """For every model that pruned heads of a kind and was tested for roles again, from many heads to few."""
    if run.roles is None or kind not in set(run.roles.labels["kind"]):
        return []
    before, found = roles_of(run.roles, kind), []
    for model in run.pruned:
        again = run.rescored.get(model["setting"])
        if again is None or again.roles is None or kind not in model["kinds"]:
            continue
        mask = run.layouts.get(model["setting"])
        heads = heads_of(again.roles.labels, kind) if mask is None else sorted(h for h in mask.kept if h.kind == kind)
        now, left = set(roles_of(again.roles, kind)), set(heads)
        found.append(
            Change(
                model,
                again.roles,
                heads,
                kept=[role for role in before if role in now],
                lost=[role for role in before if role not in now and role[0] in left],
                new=sorted(now - set(before)),
                removed=[role for role in before if role[0] not in left],
            )
        )
    return sorted(found, key=lambda change: -len(change.heads))


def heads_of(table: pd.DataFrame, kind: str) -> list[Head]:
    """The heads of a kind in a table."""
    rows = table.loc[table["kind"] == kind, ["kind", "layer", "head"]].drop_duplicates()
    return sorted(Head(*row) for row in rows.itertuples(index=False, name=None))


def roles_of(found: Roles, kind: str) -> list[Role]:
    """Every head of a kind with every role it has."""
    rows = found.roles.loc[found.roles["kind"] == kind, ["kind", "layer", "head", "measure"]]
    return sorted((Head(*row[:3]), row[3]) for row in rows.itertuples(index=False, name=None))


def scores_of(found: Roles) -> Mapping[Role, Mapping[Any, Any]]:
    """The row of every head and measure that was tested."""
    rows = found.table.dropna(subset=["value"]).to_dict("records")
    return {(Head(row["kind"], row["layer"], row["head"]), row["measure"]): row for row in rows}


def score_text(row: Mapping[Any, Any] | None) -> str:
    """`0.84 [0.81, 0.87]`."""
    if row is None:
        return NONE
    text = f"{row['value']:.2f}"
    return text if pd.isna(row["low"]) else f"{text} [{row['low']:.2f}, {row['high']:.2f}]"


def counts_table(run: Run, kind: str) -> Table | None:
    """Model by model, how many roles were kept, lost, new, and which another head has now; None without any role."""
    rows = []
    for change in changes(run, kind):
        parts = (change.kept, change.lost, change.new, change.removed)
        counts = [str(len(part)) for part in (change.heads, [*change.kept, *change.lost], *parts)]
        sorts = {category(m) for _, m in [*change.kept, *change.lost, *change.removed]}
        missing = listed(sorted(sorts - {category(measure) for _, measure in change.now})) or NONE
        if any(parts):
            badge = "chosen" if change.model["chosen"] else ""
            rows.append(Row([change.model["label"], *counts, change.moved(), missing], badge=badge))
    columns = [
        "model", "heads", "roles before", "kept", "lost", "new", "gone with heads", "now in another head",
        "categories without a head",
    ]  # fmt: skip
    return Table(f"Roles of the {HEADS_OF_KIND[kind]} that stay", columns, rows) if rows else None


def changed_table(run: Run, kind: str) -> Table | None:
    """Every role that the heads of pruned models lost or gained, with its score before and after."""
    assert run.roles is not None
    before, rows = scores_of(run.roles), []
    for change in changes(run, kind):
        after = scores_of(change.found)
        for became, roles in (("lost", change.lost), ("new", change.new)):
            for role in roles:
                baseline = (after.get(role) or before.get(role) or {}).get("baseline")
                text = NONE if baseline is None or pd.isna(baseline) else f"{baseline:.2f}"
                scores = [score_text(table.get(role)) for table in (before, after)]
                cells = [change.model["label"], str(role[0]), wording(role[1]), *scores, text, became]
                rows.append(Row(cells, code=role[1]))
    columns = ["model", "head", "role", "full model [95 %]", "pruned model [95 %]", "baseline", "now"]
    return Table("Roles that changed", columns, rows) if rows else None


def best_table(run: Run, kind: str) -> Table | None:
    """The best head for each function that the papers name, model by model, whether or not it makes a role."""
    assert run.roles is not None
    known = [("full model", run.roles)]
    known += [(f"{change.model['label']}\u00a0({len(change.heads)})", change.found) for change in changes(run, kind)]
    rows = []
    for measure in EXPECTED.get(kind, []):
        cells = [_best(found, kind, measure) for _, found in known]
        if any(cell != NONE for cell in cells):
            rows.append(Row([wording(measure), *cells], code=measure))
    columns = ["function", *(name for name, _ in known)]
    return Table(f"Best of the {HEADS_OF_KIND[kind]}, function by function", columns, rows) if rows else None


def _best(found: Roles, kind: str, measure: str) -> str:
    """`0.84 ✓` over the head's layer and number; the tick: it is a confirmed role."""
    rows = found.table[(found.table["kind"] == kind) & (found.table["measure"] == measure)].dropna(subset=["value"])
    if rows.empty:
        return NONE
    best = rows.sort_values("value", kind="stable").iloc[-1]
    head = Head(best["kind"], int(best["layer"]), int(best["head"]))
    tick = " ✓" if (head, measure) in roles_of(found, kind) else ""
    return f"{best['value']:.2f}{tick}\n{head.layer}/{head.head}"


SECTION = Section("drift", "Drift", "How the heads that stay change", build)
