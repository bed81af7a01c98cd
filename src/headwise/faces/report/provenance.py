"""How a run was made: its signature, versions, settings, times and plan."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headwise.core.progress import about
from headwise.faces.report.format import flat_settings
from headwise.faces.report.page import section
from headwise.faces.report.run_folder import RunContents

MOST_LISTED_STEPS = 25  # steps whose times are listed one by one
SAID_ELSEWHERE = ("settings", "notes", "doubts")  # facts of run.json that other sections say


@section(
    "provenance",
    heading="How it was made",
    question="With which texts, versions and settings was all this made?",
    order=140,
    files=("run.json", "plan.toml"),
)
def provenance(run: RunContents) -> dict[str, Any]:
    """Groups of names and values from run.json, and the plan."""
    facts = {name: fact for name, fact in run.facts.items() if name not in SAID_ELSEWHERE}
    seconds = _summed(facts.pop("seconds"))
    groups = [
        ("Signature", [*flat_settings(facts.pop("signature")).items()]),
        ("Versions", [*flat_settings(facts.pop("versions")).items()]),
        ("Time taken", [(name, about(taken)) for name, taken in seconds.items()]),
        ("Evaluation and run", [*flat_settings(facts).items()]),
    ]
    return {"facts": [(title, pairs) for title, pairs in groups if pairs], "plan": run.plan}


def _summed(seconds: Mapping[str, float]) -> Mapping[str, float]:
    """The time of all steps; with many models, the sum of the steps of one name: `prune (9)`."""
    if len(seconds) <= MOST_LISTED_STEPS:
        return seconds
    steps: dict[str, list[float]] = {}
    for name, taken in seconds.items():
        steps.setdefault(name.partition("/")[0], []).append(taken)
    return {
        f"{step} ({len(part)})" if len(part) > 1 else step: sum(part)
        for step, part in steps.items()
    }
