"""How it was made: signature, versions, time taken, the plan."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from headwise.report.parts import Section
from headwise.report.run import Run
from headwise.report.words import duration

MANY = 25  # tasks whose times are listed one by one


def build(run: Run) -> dict[str, Any]:
    """Groups of names and values from run.json, and the plan."""
    facts = {
        name: value
        for name, value in run.facts.items()
        if name not in ("settings", "notes", "doubts")
    }
    groups = [
        ("Signature", _flat(facts.pop("signature", None))),
        ("Versions", _flat(facts.pop("versions", None))),
        ("Time taken", _flat(_summed(facts.pop("seconds", None)), number=duration)),
        ("Evaluation and run", _flat(facts)),
    ]
    return {"facts": [(title, pairs) for title, pairs in groups if pairs], "plan": run.plan}


def _summed(seconds: Mapping[str, float] | None) -> Mapping[str, float] | None:
    """The time of all tasks; with many models, the sum of the tasks of one name: `prune (9)`."""
    if seconds is None or len(seconds) <= MANY:
        return seconds
    tasks: dict[str, list[float]] = {}
    for name, value in seconds.items():
        tasks.setdefault(name.partition("/")[0], []).append(value)
    return {
        f"{task} ({len(part)})" if len(part) > 1 else task: sum(part)
        for task, part in tasks.items()
    }


def _flat(
    value: Any, name: str = "", number: Callable[[float], str] = json.dumps
) -> list[tuple[str, str]]:
    """Nested settings as names with dots; `number` writes the numbers."""
    if value is None:
        return []
    if isinstance(value, Mapping):
        inner = [(f"{name}.{key}" if name else str(key), below) for key, below in value.items()]
        return [pair for key, below in inner for pair in _flat(below, key, number)]
    if isinstance(value, str):
        return [(name, value)]
    return [
        (
            name,
            number(value)
            if isinstance(value, int | float)
            else json.dumps(value, ensure_ascii=False),
        )
    ]


SECTION = Section("made", "How it was made", "How it was made", build)
