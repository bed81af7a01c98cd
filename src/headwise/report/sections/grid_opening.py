"""The first screen of a grid's page: what every run chose, and what is missing."""

from __future__ import annotations

from typing import Any

from headwise.report import models
from headwise.report.models import DIFFERENCE, RANDOM, Model
from headwise.report.parts import Section
from headwise.report.run import Grid, Member
from headwise.report.sections.opening import P_TUNED, TUNED
from headwise.report.words import NONE, listed


def build(grid: Grid) -> dict[str, Any]:
    """Headline and facts."""
    groups = [
        (data or "What was chosen", [_choice(grid, m) for m in grid.members if m.data == data])
        for data in data_of(grid)
    ]
    absent = [f"{name(member)} ({state(member)})" for member in grid.members if member.models.empty]
    failed = [name(member) for member in grid.members if member.facts.get("failed")]
    groups += [("Still missing", [("Runs", listed(absent), "")])] if absent else []
    groups += [("Failed", [("Some tasks of", f"{listed(failed)}: reasons under Runs", "")])] if failed else []
    return {"headline": headline(grid), "groups": groups}


def data_of(grid: Grid) -> list[str]:
    """The data sets, one empty name where there is only one."""
    return list(dict.fromkeys(member.data for member in grid.members))


def headline(grid: Grid) -> str:
    """`2 language pairs, 3 seeds: 5 of 6 runs have results`."""
    seeds, pairs = len({member.seed for member in grid.members}), len(data_of(grid))
    what = [f"{pairs} language pairs"] if pairs > 1 else []
    what += [f"{seeds} seeds"] if seeds > 1 else []
    done, total = sum(not member.models.empty for member in grid.members), len(grid.members)
    return f"{', '.join(what) or 'One run'}: {done} of {total} {'run has' if total == 1 else 'runs have'} results"


def name(member: Member) -> str:
    """`en-de, seed 1`."""
    return ", ".join([*([member.data] if member.data else []), f"seed {member.seed}"])


def chosen(member: Member) -> Model | None:
    """The model that a run chose on dev text."""
    return None if member.models.empty else next((m for m in models.rows(member.models) if m["chosen"]), None)


def state(member: Member) -> str:
    """How far a run has come, in a few words."""
    if member.trouble:
        return member.trouble
    if member.models.empty:
        return "no model measured yet" if member.facts else "not begun"
    missing = set(member.facts.get("settings") or {}) - set(member.models.index)
    text = f"{len(member.models)} {'model' if len(member.models) == 1 else 'models'} measured"
    return text + (f", {len(missing)} pruned and not measured yet" if missing else "")


def _choice(grid: Grid, member: Member) -> tuple[str, str, str]:
    model, part = chosen(member), models.text_prefix(grid.models)
    if model is None:
        return f"seed {member.seed}", NONE if member.models.empty else "nothing chosen yet, or the full model kept", ""
    others = models.pruned(member.models)
    tried = others[others["method"] != RANDOM].get("dev_bleu", others["kept"][:0]).count()
    heads = f"{model['kept']} of {model['total']} {models.heads_name(model['kinds'])}"
    changes = [
        f"{change} {to}"
        for change, to in (
            (models.difference(model, part + TUNED), "to equal further training"),
            (models.difference(model, part + DIFFERENCE), "to the full model"),
        )
        if change
    ]
    text = f"{heads} ({model['label']}, of {tried} models){'; BLEU ' if changes else ''}{', '.join(changes)}"
    return f"seed {member.seed}", text, models.verdict(model, part + TUNED, part + P_TUNED)


SECTION = Section("grid_opening", "", "", build)
