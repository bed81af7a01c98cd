"""The runs of a grid: how far each has come, what it chose, what failed."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

from headwise.report import models
from headwise.report.models import DIFFERENCE, full_model, value
from headwise.report.parts import Section
from headwise.report.run import Grid, Member
from headwise.report.sections.grid_opening import chosen, name, state
from headwise.report.sections.opening import TUNED
from headwise.report.words import NONE


def build(grid: Grid) -> dict[str, Any]:
    """A row a run, with a link to its page."""
    part = models.text_prefix(grid.models)
    columns = [
        "run",
        "state",
        f"full model, BLEU on {'dev' if part else 'test'}",
        "chosen",
        "to equal further training",
        "to the full model",
    ]
    failed = [(name(m), task, _last(why)) for m in grid.members for task, why in (m.facts.get("failed") or {}).items()]
    return {"columns": columns, "runs": [_row(member, part) for member in grid.members], "failed": failed}


def _row(member: Member, part: str) -> dict[str, Any]:
    model = chosen(member)
    before = None if member.models.empty else value(full_model(member.models), f"{part}bleu")
    cells = [
        state(member),
        NONE if before is None else f"{before:.2f}",
        NONE if model is None else f"{model['label']}, {model['kept']} of {model['total']} heads",
        models.difference(model, part + TUNED) or NONE,
        models.difference(model, part + DIFFERENCE) or NONE,
    ]
    return {"name": name(member), "page": quote(f"{member.place}/report.html") if member.page else "", "cells": cells}


def _last(why: str) -> str:
    """The last line of what failed."""
    return (str(why).strip().splitlines() or ["no reason was left"])[-1]


SECTION = Section("grid_runs", "Runs", "Runs", build)
