"""What becomes of the heads that stay: their functions and scores in pruned models, held against the full model's.

Voita et al. 2019, section 6.2 and figure 8: which functions survive, and which move to other heads.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd

from headwise.heads import KINDS, Head
from headwise.report.role_figures import SORTS
from headwise.report.run import RolesFound, Run
from headwise.report.score_drift import rank_sentence, rank_table
from headwise.report.setting import Setting
from headwise.report.table import Line, Table
from headwise.report.wording import HEADS_OF_KIND, NONE, listed
from headwise.roles.label import EXPECTED, wording, wording_of_sort

Place = tuple[Head, str]  # a head and the measure of a role it has
BECAME = {"kept": "kept", "lost": "lost", "gained": "new", "removed": "head removed"}


@dataclass(frozen=True)
class Change:
    """A pruned model's roles of one attention kind beside the full model's, whose numbers its heads have.

    kept: in both; lost: the head is there, but no longer in the role; gained: not in the full model; removed: went with
    its head.
    """

    setting: Setting
    heads: list[Head]
    kept: list[Place]
    lost: list[Place]
    gained: list[Place]
    removed: list[Place]

    @property
    def now(self) -> list[Place]:
        return [*self.kept, *self.gained]

    @property
    def moved(self) -> list[str]:
        """The roles of which the full model's heads were lost or removed, and that another head has taken up."""
        gone = {measure for _, measure in [*self.lost, *self.removed]}
        return sorted(gone & {measure for _, measure in self.gained})


def kinds_looked_at(run: Run) -> list[str]:
    """The kinds of heads of which roles are known before and after some pruning of that kind."""
    return [kind for kind in KINDS if run.roles is not None and changes(run, kind)]


def changes(run: Run, kind: str) -> list[Change]:
    """For every setting that pruned heads of a kind and was tested for roles again, from many heads to few."""
    if run.roles is None or kind not in set(run.roles.labels["kind"]):
        return []
    before = places(run.roles, kind)
    found = []
    for setting in run.pruned:
        after = run.after.get(setting.name)
        if after is None or after.roles is None or (setting.kinds and kind not in setting.kinds):
            continue
        heads = heads_left(run, setting, after.roles, kind)
        now, left = places(after.roles, kind), set(heads)
        found.append(
            Change(
                setting,
                heads,
                kept=[place for place in before if place in now],
                lost=[place for place in before if place not in now and place[0] in left],
                gained=[place for place in now if place not in before],
                removed=[place for place in before if place[0] not in left],
            )
        )
    return sorted(found, key=lambda change: -len(change.heads))


def heads_left(run: Run, setting: Setting, found: RolesFound, kind: str) -> list[Head]:
    """The heads of a kind that a pruned model has: by its layout, or else those that were tested."""
    mask = run.layouts.get(setting.name)
    known = addresses(found.labels) if mask is None else mask.kept
    return sorted(head for head in known if head.kind == kind)


def places(found: RolesFound, kind: str) -> list[Place]:
    """Every head of a kind with every role it has."""
    roles = found.roles[found.roles["kind"] == kind]
    return sorted(zip(addresses(roles), roles["measure"], strict=True))


def addresses(table: pd.DataFrame) -> list[Head]:
    rows = table[["kind", "layer", "head"]].itertuples(index=False, name=None)
    return [Head(kind, int(layer), int(head)) for kind, layer, head in rows]


def sorts_by_head(found: list[Place]) -> dict[Head, list[str]]:
    """The sorts of roles of each head, in the order of the report."""
    sorts: dict[Head, set[str]] = {}
    for head, measure in found:
        sorts.setdefault(head, set()).add(wording_of_sort(measure))
    return {head: sorted(names, key=SORTS.index) for head, names in sorts.items()}


def drift(run: Run) -> dict[str, Any] | None:
    """What the page tells beside its figures; None where no pruned model was looked at again.

    told: sentences; courses: roles kept, lost and new, model by model; best: the best head of each function; changed:
    all roles that changed; ranks: of the scores.
    """
    kinds, ranks = kinds_looked_at(run), rank_table(run)
    if not kinds and ranks is None:
        return None
    importance = [("How much they matter", rank_sentence(run))] if rank_sentence(run) else []
    return {
        "told": [pair for kind in kinds for pair in sentences(run, kind)] + importance,
        "best": [table for kind in kinds for table in [best_table(run, kind)] if table is not None],
        "courses": [table for kind in kinds for table in [course_table(run, kind)] if table is not None],
        "changed": [table for kind in kinds for table in [changed_table(run, kind)] if table is not None],
        "ranks": ranks,
    }


def sentences(run: Run, kind: str) -> list[tuple[str, str]]:
    """Which functions survive pruning and where they go, each under its lead."""
    assert run.roles is not None
    found, heads = changes(run, kind), HEADS_OF_KIND[kind]
    before = places(run.roles, kind)
    total = int((run.roles.labels["kind"] == kind).sum())
    if not before:
        told = (
            f"None of the full model's {total} {heads} has a role by these tests, so there is no function that could "
            "survive or move. "
        )
        new = [change for change in found if change.gained]
        if not new:
            return [("Functions", f"{told}No head of a pruned model has one either.")]
        names = [f"{_roles_of(change.gained)} ({_model(change)})" for change in new]
        return [("Functions", f"{told}What heads of pruned models do is new: {'; '.join(names)}.")]
    held = sorts_by_head(before)
    sorts = {sort for names in held.values() for sort in names}
    lead = f"{len(held)} of the full model's {total} {heads} have a role ({listed(sorted(sorts, key=SORTS.index))})."
    told = f"{lead} {_survival(found, sorts)}"
    shown = next((change for change in found if change.setting is run.chosen), found[-1])
    return [("Which functions survive", told), ("Where they go", _course(shown))]


def _survival(found: list[Change], sorts: set[str]) -> str:
    """Down to how many heads every sort of function is still there, and which are the first to be missing."""
    complete = None
    for change in found:
        missing = sorts - {sort for names in sorts_by_head(change.now).values() for sort in names}
        if missing:
            names = listed(sorted(missing, key=SORTS.index))
            gone = f"With {_model(change)}, none is left for {names}."
            if complete is None:
                return f"Not every sort is still there in the pruned model of most heads. {gone}"
            return f"Every sort is still there with {_model(complete)}. {gone}"
        complete = change
    return "Every sort is still there in every pruned model." if complete else ""


def _course(change: Change) -> str:
    """`λ = 0.05, 9 heads: of 7 roles that its heads had 6 hold and 1 is lost; …`"""
    had = len(change.kept) + len(change.lost)
    lost, removed, gained = len(change.lost), len(change.removed), len(change.gained)
    told = f"{_model(change)}: of {had} roles that these heads had in the full model, {len(change.kept)} hold"
    told += f" and {lost} {'is' if lost == 1 else 'are'} lost" if lost else ""
    told += f"; {removed} went with heads that were removed" if removed else ""
    told += f"; {gained} {'is' if gained == 1 else 'are'} new" if gained else ""
    if change.moved:
        told += f". Another head has taken up {listed([wording(measure) for measure in change.moved])}"
    return f"{told}."


def course_table(run: Run, kind: str) -> Table | None:
    """Model by model, how many roles were kept, lost, new, and taken up by another head; None without any role."""
    lines = []
    for change in changes(run, kind):
        parts = (change.kept, change.lost, change.gained, change.removed)
        counts = [str(len(part)) for part in (change.heads, [*change.kept, *change.lost], *parts)]
        taken = listed([wording(measure) for measure in change.moved]) or NONE
        badge = "chosen" if change.setting is run.chosen else ""
        if any(parts):
            lines.append(Line([change.setting.label, *counts, taken], badge=badge))
    columns = ["model", "heads", "roles before", "kept", "lost", "new", "gone with heads", "taken up by another head"]
    return Table(f"Roles of the {HEADS_OF_KIND[kind]} that stay", columns, lines) if lines else None


def _model(change: Change) -> str:
    count = len(change.heads)
    return f"{change.setting.label}, {count} {'head' if count == 1 else 'heads'}"


def _roles_of(found: list[Place]) -> str:
    return listed([f"{head} {wording(measure)}" for head, measure in found])


def scores_of(found: RolesFound) -> Mapping[Place, dict[Any, Any]]:
    """The row of every head and measure that was tested."""
    rows = found.table.dropna(subset=["value"])
    return dict(zip(zip(addresses(rows), rows["measure"], strict=True), rows.to_dict("records"), strict=True))


def changed_table(run: Run, kind: str) -> Table | None:
    """Every role that the heads of pruned models lost or gained, with its score before and after."""
    assert run.roles is not None
    before = scores_of(run.roles)
    lines = []
    for change in changes(run, kind):
        found = run.after[change.setting.name].roles
        assert found is not None
        after = scores_of(found)
        for became, of in (("lost", change.lost), ("gained", change.gained)):
            for place in of:
                head, measure = place
                cells = [str(head), wording(measure), _score(before.get(place)), _score(after.get(place))]
                baseline = (after.get(place) or before.get(place) or {}).get("baseline")
                told = NONE if baseline is None or pd.isna(baseline) else f"{baseline:.2f}"
                lines.append(Line([change.setting.label, *cells, told, BECAME[became]], code=measure))
    columns = ["model", "head", "role", "full model [95 %]", "pruned model [95 %]", "baseline", "now"]
    return Table("Roles that changed", columns, lines) if lines else None


def _score(row: Mapping[Any, Any] | None) -> str:
    if row is None:
        return NONE
    told = f"{row['value']:.2f}"
    return told if pd.isna(row["low"]) else f"{told} [{row['low']:.2f}, {row['high']:.2f}]"


def best_table(run: Run, kind: str) -> Table | None:
    """The best head for each function that the papers speak of, model by model, whether or not it makes a role."""
    assert run.roles is not None
    found = changes(run, kind)
    models: list[tuple[str, RolesFound]] = [("full model", run.roles)]
    for change in found:
        after = run.after[change.setting.name].roles
        assert after is not None
        models.append((f"{change.setting.label}\u00a0({len(change.heads)})", after))
    lines = []
    for measure in EXPECTED.get(kind, []):
        cells = [_best(model, kind, measure) for _, model in models]
        if any(cell != NONE for cell in cells):
            lines.append(Line([wording(measure), *cells], code=measure))
    return (
        Table(f"Best of the {HEADS_OF_KIND[kind]}", ["function", *(name for name, _ in models)], lines)
        if lines
        else None
    )


def _best(found: RolesFound, kind: str, measure: str) -> str:
    """`0.84 ✓` over the head's layer and number; the tick: it is a confirmed role."""
    rows = found.table[(found.table["kind"] == kind) & (found.table["measure"] == measure)].dropna(subset=["value"])
    if rows.empty:
        return NONE
    best = rows.sort_values("value", kind="stable").iloc[-1]
    place = Head(kind, int(best["layer"]), int(best["head"])), measure  # type: ignore[arg-type]
    return f"{best['value']:.2f}{' ✓' if place in places(found, kind) else ''}\n{place[0].layer}/{place[0].head}"
