"""Would something simpler have done: each pruned model beside models that were got more simply."""

from __future__ import annotations

from typing import Any

from headwise.report import models
from headwise.report.models import CONTROLS, DIFFERENCE, Model, P, value, verdict
from headwise.report.parts import Row, Section, Table
from headwise.report.run import Run
from headwise.report.words import NONE, capital

PLAIN = "removal without mean outputs"
MEANING = {
    "fine-tuned": ("pruning gains more than training on alone", "training on without pruning does better"),
    "random": ("which heads stay matters", "random heads do better"),
    "from-scratch": ("the trained weights matter", "the trained weights were not needed"),
    "narrower": ("cutting heads beats a narrower model", "a narrower model of as many parameters does better"),
    "one-per-layer": ("the best head of a layer beats a random one", "random heads do better"),
    "uncompensated": ("mean outputs make up for a part of the removed heads", "mean outputs do harm"),
}


def build(run: Run) -> dict[str, Any] | None:
    """Every comparison as a row, and for each kind of control how often it says something; None without any."""
    pairs = comparisons(run)
    if not pairs:
        return None
    return {
        "counts": counts_table(run, pairs),
        "compared": comparison_table(run, pairs),
        "text": "dev" if run.part else "test",
    }


Comparison = tuple[
    str, Model | None, Model, Model, str
]  # what is compared, model, control, who has the numbers, ending


def comparisons(run: Run) -> list[Comparison]:
    """Every pruned model (or the best head of each layer) with everything it was compared with. The ending is that of
    the measure's name; differences are model minus control.
    """
    known = {model["setting"]: model for model in models.rows(run.models)}
    found: list[Comparison] = []
    for model in run.pruned:
        if (control := known.get(models.against(model, "fine-tuned"))) is not None:
            found.append(("fine-tuned", model, control, model, "_to_fine-tuned"))
    for control in models.rows(models.controls(run.models)):
        if (reference := known.get(control["reference"] or "")) is not None:
            found.append((control["control"], reference, control, control, "_to_pruned"))
        elif (other := known.get(models.against(control, "random"))) is not None:
            found.append((control["control"], control, other, control, "_to_random"))
    for model in run.pruned:
        if (control := known.get(models.against(model, "uncompensated"))) is not None:
            found.append(("uncompensated", model, control, model, "_to_uncompensated"))
    shown = {one["setting"] for _, model, control, _, _ in found for one in (model, control) if one is not None}
    rest = [c for c in models.rows(models.controls(run.models)) if c["setting"] not in shown]
    return found + [(control["control"], None, control, control, "") for control in rest]


def counts_table(run: Run, pairs: list[Comparison]) -> Table | None:
    """For each kind of control in how many comparisons the pruned models are better, worse, or not distinguishable."""
    rows = []
    for what in dict.fromkeys(pair[0] for pair in pairs):
        found = [
            verdict(m, f"{run.part}{DIFFERENCE}{end}", f"{run.part}{P}{end}")
            for w, _, _, m, end in pairs
            if w == what and end
        ]
        found = [one for one in found if one]
        counts = [found.count(word) for word in ("better", "worse", "not distinguishable")]
        meaning = [text for text, count in zip(MEANING.get(what, ("", "")), counts, strict=False) if count]
        if found:
            rows.append(Row([capital(_name(what)), *map(str, counts), "; ".join(meaning) or NONE]))
    columns = ["compared with", "better", "worse", "not distinguishable", "so"]
    return Table("How often a comparison says something", columns, rows) if rows else None


def _name(what: str) -> str:
    return {"uncompensated": PLAIN, "one-per-layer": CONTROLS["one-per-layer-random"]}.get(
        what, CONTROLS.get(what, what)
    )


def comparison_table(run: Run, pairs: list[Comparison]) -> Table:
    """A row a comparison."""
    part, rows = run.part, []
    tuned = run.models["control"].eq("fine-tuned").any()
    for what, model, control, holder, end in pairs:
        found = [value(one, f"{part}bleu") for one in (model, control)]
        changes = [
            models.difference(holder, f"{part}{DIFFERENCE}{end}", f"{part}{P}{end}") if end else "",
            models.difference(control, part + DIFFERENCE, part + P),
            models.difference(control, f"{part}{DIFFERENCE}_to_fine-tuned", f"{part}{P}_to_fine-tuned")
            if tuned
            else "",
        ]
        name = control["label"] if model is None or what == "one-per-layer" else _name(what)
        cells = [
            NONE if model is None else model["label"], name, str(control["kept"]),
            *(NONE if number is None else f"{number:.2f}" for number in found), *(change or NONE for change in changes),
        ]  # fmt: skip
        badge = "chosen" if model is not None and model["chosen"] else ""
        rows.append(Row(cells, badge=badge, code=control["setting"]))
    columns = ["pruned model", "control", "heads", "its BLEU", "BLEU of the control", "pruned − control"]
    columns += ["control to the full model", "control to equal further training"]
    return Table("Controls", columns, rows).without_empty(NONE)


SECTION = Section("controls", "Controls", "Would something simpler have done?", build)
