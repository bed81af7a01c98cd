"""Writes tables in docs/ from the classes and declarations that they describe (`make tables`)."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from headwise.core.options import Architecture, Choice, FineTuning, GateTraining, Search, Training
from headwise.faces.report.glossary import glossary
from headwise.faces.report.page import sections_of
from headwise.importance.measures import measure
from headwise.models.engines.engine import engine_table
from headwise.models.engines.gguf_families import families_table
from headwise.pruning.controls import control
from headwise.roles.role import RoleTest, role
from headwise.study.plan import (
    DataSection,
    Embedded,
    GateSweep,
    GreedySweep,
    Plan,
    RolesSection,
    ScoringSection,
    Speed,
)

DOCS = Path(__file__).parents[1] / "docs"
VARIANTS = {"offset": ".r", "relation": ".REL.…", "": ""}
OF_ALL = ("method", "name", "kinds", "unit", "controls", "seeds", *FineTuning.model_fields)


def option_table(options: type[BaseModel], names: Iterable[str]) -> str:
    """A row for each option: its key, its default, and what it means."""
    rows = ["| key | default | meaning |", "|---|---|---|"]
    for name in names:
        field = options.model_fields[name]
        default = field.get_default(call_default_factory=True)
        description = field.description or ""
        meaning = f"{description[:1].upper()}{description[1:]}."
        more = field.json_schema_extra
        if isinstance(more, dict) and "page" in more:
            meaning += f" [More]({more['page']})."
        rows.append(f"| `{name}` | {written(default)} | {meaning} |")
    return "\n".join(rows)


def written(default: Any) -> str:
    """A default as a plan has it."""
    if isinstance(default, BaseModel):
        return "a table"
    return "none" if default in (None, {}) else f"`{json.dumps(default)}`"


def control_table() -> str:
    """A row for each control."""
    rows = ["| control | what it is | what it tests |", "|---|---|---|"]
    for name, facts in control.own.items():
        rows.append(f"| `{name}` | {facts.what} | {facts.question} |")
    return "\n".join(rows)


def measure_table() -> str:
    """A row for each measure."""
    rows = ["| measure | a value is | source | passes |", "|---|---|---|---|"]
    for name, facts in measure.own.items():
        rows.append(f"| `{name}` | {facts.caption} | {facts.source} | {facts.price} |")
    return "\n".join(rows)


def needed(test: RoleTest) -> str:
    """From which score on a head has the role; empty for a test that defines none."""
    if test.margin is not None:
        return f"baseline + {test.margin:.2f}"
    return "" if test.threshold is None else f"{test.threshold:g}"


def role_table() -> str:
    """A row for each role test: those that define a role first."""
    rows = [
        "| measure | meaning | baseline | untrained heads | role from |",
        "|---|---|---|---|---|",
    ]
    tests = sorted(role.values(), key=lambda test: (not test.is_role, test.order))
    for test in tests:
        name = f"`{test.name}{VARIANTS[test.variants]}`"
        meaning = f"{test.caption} ({test.source})" if test.source else test.caption
        rows.append(f"| {name} | {meaning} | {test.baseline} | {test.untrained} | {needed(test)} |")
    return "\n".join(rows)


def section_table(page: str) -> str:
    """A row for each section of a page of the report."""
    rows = ["| section | question | made from |", "|---|---|---|"]
    for one in sections_of(page):
        heading = one.heading or "the first screen"
        files = ", ".join(f"`{file}`" for file in one.files)
        rows.append(f"| {heading} | {one.question} | {files} |")
    return "\n".join(rows)


def glossary_table() -> str:
    """A row for each term."""
    rows = ["| word | meaning |", "|---|---|"]
    for term in glossary():
        rows.append(f"| {term.word} | {term.meaning} |")
    return "\n".join(rows)


def tables() -> dict[Path, dict[str, str]]:
    """The tables of each page, by the names of their places."""
    page = DOCS / "plan.md"
    apart = (*OF_ALL, "max_drop", "search")  # of every method; and what a plan says once, for all
    gates = [name for name in GateTraining.model_fields if name not in apart]
    alone = [name for name in GateSweep.model_fields if name not in (*apart, *gates)]
    greedy = [name for name in GreedySweep.model_fields if name not in apart]
    top = [name for name in Plan.model_fields if Plan.model_fields[name].description]
    plan = {
        "top": option_table(Plan, top),
        "data": option_table(DataSection, DataSection.model_fields),
        "embedded": option_table(Embedded, Embedded.model_fields),
        "scoring": option_table(ScoringSection, ScoringSection.model_fields),
        "roles": option_table(RolesSection, RolesSection.model_fields),
        "choice": option_table(Choice, Choice.model_fields),
        "speed": option_table(Speed, Speed.model_fields),
        "model": option_table(Architecture, Architecture.model_fields),
        "training": option_table(Training, Training.model_fields),
        "pruning": option_table(GateSweep, OF_ALL),
        "gates_and_top_k": option_table(GateSweep, gates),
        "gates": option_table(GateSweep, alone),
        "greedy": option_table(GreedySweep, greedy),
        "search": option_table(Search, Search.model_fields),
    }
    report = {name: section_table(name) for name in ("run", "grid", "comparison")}
    export = {"engines": "\n".join(engine_table()), "gguf": "\n".join(families_table())}
    return {
        page: plan,
        DOCS / "glossary.md": {"words": glossary_table()},
        DOCS / "methods/controls.md": {"controls": control_table()},
        DOCS / "methods/roles.md": {"tests": role_table()},
        DOCS / "howto/score.md": {"measures": measure_table()},
        DOCS / "howto/read-the-report.md": report,
        DOCS / "howto/export.md": export,
    }


def filled(text: str, made: dict[str, str]) -> str:
    """A page with its tables."""
    for name, table in made.items():
        start = f"<!-- {name}: made by `make tables` -->"
        pattern = re.compile(rf"{re.escape(start)}\n.*?<!-- end -->", re.DOTALL)
        if not pattern.search(text):
            raise SystemExit(f"There is no '{start}' in the page.")
        block = f"{start}\n\n{table}\n<!-- end -->"
        text = pattern.sub(lambda _, block=block: block, text)  # type: ignore[misc]
    return text


def main() -> None:
    for page, made in tables().items():
        page.write_text(filled(page.read_text(encoding="utf-8"), made), encoding="utf-8")


if __name__ == "__main__":
    main()
