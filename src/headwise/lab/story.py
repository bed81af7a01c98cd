"""What a run folder knows of its heads: scores, roles, the layouts of its pruned models, and sentences to try."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from headwise.heads import Head
from headwise.model_files import folder_of
from headwise.report.every_head import closed_of
from headwise.report.format import measure_name
from headwise.report.models import value
from headwise.report.run_folder import Run, read_run

SENTENCES = 12


def run_of(spec: str) -> Run | None:
    """The finished study in a folder, or None for any other model."""
    folder = Path(spec)
    known = (folder / "run.json").is_file() and folder_of(folder) != folder
    return read_run(folder) if known else None


def pruned_model(run: Run) -> Path | None:
    """The folder of the model that the run chose, where its weights were kept."""
    place = run.folder / "pruned" / str(run.facts.get("chosen"))
    return place if (place / "config.json").is_file() else None


def story(run: Run | None) -> dict[str, Any]:
    """The run's knowledge, ready for JSON: `scores` by measure and head, `roles` by head, `pruned` models with
    the step of training from which each gate is shut.

    Each is empty where the run did not make it.
    """
    if run is None:
        return {"scores": [], "roles": {}, "pruned": []}
    known, closed = {model["setting"]: model for model in run.pruned}, closed_of(run)
    return {
        "scores": scores(run),
        "roles": roles(run),
        "pruned": [
            {
                "setting": setting,
                "label": str(known[setting]["label"]),
                "chosen": setting == run.facts.get("chosen"),
                "bleu": value(known[setting], f"{run.part}bleu"),
                "kept": sorted(map(str, mask.kept)),
                "closed": {str(head): step for head, step in closed.get(setting, {}).items()},
            }
            for setting, mask in run.layouts.items()
            if setting in known
        ],
    }


def sentences(run: Run) -> list[str]:
    """A few short source sentences of its dev text."""
    file = run.folder / "translations" / "dev" / "source.txt"
    lines = (
        file.read_text(encoding="utf-8").splitlines()
        if file.is_file()
        else run.translations.get("source", [])
    )
    return [line for line in lines if 4 <= len(line.split()) <= 16][:SENTENCES]


def scores(run: Run) -> list[dict[str, Any]]:
    """Every measure of heads.csv: its name, and for each head value, low and high."""
    if run.heads is None:
        return []
    return [
        {
            "measure": str(measure),
            "name": measure_name(str(measure)),
            "heads": {
                str(Head(row["kind"], row["layer"], row["head"])): [
                    number(row[name]) for name in ("value", "low", "high")
                ]
                for row in rows.to_dict("records")
            },
        }
        for measure, rows in run.heads.groupby("measure", sort=False)
    ]


def roles(run: Run) -> dict[str, list[dict[str, Any]]]:
    """The roles found, by head: name, value, interval, number of words asked, and baseline."""
    found: dict[str, list[dict[str, Any]]] = {}
    if run.roles is not None:
        for row in run.roles.roles.to_dict("records"):
            head = str(Head(row["kind"], row["layer"], row["head"]))
            numbers = {
                name: number(row[name]) for name in ("value", "low", "high", "n", "baseline")
            }
            found.setdefault(head, []).append(
                {"role": row["role"], "measure": row["measure"], **numbers}
            )
    return found


def number(found: Any) -> float | None:
    """A number for JSON, which knows no NaN."""
    return None if found is None or not math.isfinite(found) else float(found)
