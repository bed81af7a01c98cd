"""What the model card says about a model of a run: what was kept, saved and lost, and how it was made. In Markdown."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import Any
from urllib.parse import parse_qs

from headwise.heads import HeadMask, Site
from headwise.report import summary
from headwise.report.format import interval_text
from headwise.report.models import Model, bounds, value
from headwise.report.run_folder import FinishedRun

Rows = Sequence[tuple[str, str]]
MADE = (
    "method",
    "kinds",
    "unit",
    "penalty",
    "keep",
    "score",
    "tune",
    "compensate",
)  # of the facts of a setting
DATASETS = "datasets:"  # how a plan names a text of the hub


def kept_table(mask: HeadMask) -> str:
    """How many heads of every layer are left, a row a layer and a column a kind of attention."""
    kinds = mask.heads.kinds
    lines = [["layer", *kinds], ["---"] * (1 + len(kinds))]
    for layer in range(max(len(mask.heads.query[kind]) for kind in kinds)):
        line = [str(layer)]
        for kind in kinds:
            site = Site(kind, layer)
            is_there = site in mask.heads.sites
            line.append(f"{len(mask.of(site))} of {mask.heads.count(site)}" if is_there else "")
        lines.append(line)
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def sections(run: FinishedRun, model: Model) -> list[tuple[str, str]]:
    """Title and text of every section about a model of a run."""
    full = run.full
    groups = list[tuple[str, Rows]]()
    if full is not None:
        groups += [("What was saved", fact_rows(summary.saved(full, model)))]
        groups += [("What it cost (95 % intervals)", fact_rows(summary.cost(run, full, model)))]
        if model["chosen"]:
            groups += [("How it was chosen", fact_rows(summary.choice(run, full, model)))]
    groups.append(("How it was made", made(run, model)))
    doubts = (run.facts.get("doubts") or {}).get(model["setting"]) or []
    found = [(title, card_table(rows)) for title, rows in groups if rows]
    return [*found, ("Doubts", "\n".join(f"- {line}" for line in doubts))] if doubts else found


def card_headline(run: FinishedRun, model: Model) -> str:
    """The heads removed, and what that cost."""
    return summary.run_headline(run, model)


def fact_rows(facts: Sequence[summary.Fact]) -> Rows:
    return [(label, f"{text} ({verdict})" if verdict else text) for label, text, verdict in facts]


def made(run: FinishedRun, model: Model) -> Rows:
    """Method, texts by name, seed, signature and versions."""
    settings = (run.facts.get("settings") or {}).get(model["setting"]) or {}
    signature: Mapping[str, Any] = run.facts.get("signature") or {}
    rows = [
        (name, words(settings[name]))
        for name in MADE
        if settings.get(name) not in (None, False, [])
    ]
    rows += [(f"{split} text", name) for split, name in texts(run).items()]
    rows += [
        (f"signature: {name}", words(known))
        for name, known in signature.items()
        if known not in (None, [])
    ]
    for name in ("bleu_signature", "chrf_signature"):
        rows += (
            [(name.replace("_signature", " (sacreBLEU)"), str(run.facts[name]))]
            if run.facts.get(name)
            else []
        )
    versions: Mapping[str, Any] = run.facts.get("versions") or {}
    return [
        *rows,
        ("versions", ", ".join(f"{name} {version}" for name, version in versions.items())),
    ]


def words(known: Any) -> str:
    if isinstance(known, Mapping):
        return ", ".join(f"{name} {number}" for name, number in known.items())
    return ", ".join(map(str, known)) if isinstance(known, list | tuple) else str(known)


def plan_of_run(run: FinishedRun) -> dict[str, Any]:
    """The plan of a run; empty where it is none."""
    try:
        return tomllib.loads(run.plan or "")
    except tomllib.TOMLDecodeError:
        return {}


def texts(run: FinishedRun) -> dict[str, str]:
    """The text of each split by name: files without their folders, which are nobody's business."""
    data = plan_of_run(run).get("data") or {}
    found = dict[str, str]()
    for split in ("train", "dev", "test"):
        spec = data.get(split) or ("embedded corpus of headwise" if data.get("embedded") else None)
        files = [spec] if isinstance(spec, str) else spec or []
        if files:
            found[split] = ", ".join(
                name if name.startswith(DATASETS) else PurePath(name).name for name in files
            )
    return found


def results(run: FinishedRun, model: Model) -> list[dict[str, Any]]:
    """What was measured on a test text that is a data set of the hub: its id, its task, value and notes; else nothing.

    The task is named after the data set's configuration: there is no better name.
    """
    spec = (plan_of_run(run).get("data") or {}).get("test")
    if not isinstance(spec, str) or not spec.startswith(DATASETS):
        return []
    name, _, query = spec.removeprefix(DATASETS).partition("?")
    task = parse_qs(query).get("config", ["default"])[0]
    for measure in ("bleu", "perplexity"):
        if (found := value(model, measure)) is not None:
            ends = interval_text(*bounds(model, measure)).replace("+", "")
            notes = [
                measure,
                f"95 % interval {ends}" if ends else "",
                str(run.facts.get(f"{measure}_signature") or ""),
            ]
            text = "; ".join(note for note in notes if note)
            return [{"dataset_id": name, "task_id": task, "value": round(found, 4), "notes": text}]
    return []


def card_table(rows: Rows) -> str:
    """Two columns without a heading."""
    cells = []
    for row in rows:
        cells.append(tuple(" ".join(text.split()).replace("|", "\\|") for text in row))
    return "\n".join(["| | |", "|---|---|", *(f"| {label} | {text} |" for label, text in cells)])
