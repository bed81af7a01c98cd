"""The section "Every head": all heads in one table, and what the card of a picked head shows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from headwise.core.heads import Head, head_of
from headwise.faces.report.format import (
    KIND_NAMES,
    estimate,
    interval_text,
    kinds_among,
    listed,
    measure_name,
    number,
    thousandths,
    two_decimals,
)
from headwise.faces.report.gate_history import closing_steps
from headwise.faces.report.head_rows import heads_in, model_order, of_measure
from headwise.faces.report.page import section
from headwise.faces.report.run_folder import RolesFolder, RunContents
from headwise.faces.report.score_maps import BLEU_MEASURE, LOSS_MEASURE, control_ranges
from headwise.roles.behaviour import effect_sentence

# What a pruned model did with a head.
KEPT = "k"
REMOVED = "r"
LEFT_ALONE = "-"  # heads of its kind were not pruned
FATE_WORDS = {KEPT: "kept", REMOVED: "removed", LEFT_ALONE: ""}


@section(
    "every_head",
    heading="Every head",
    question="What was measured of each head?",
    order=20,
    files=("heads.csv", "roles/", "layouts/"),
    brought_by="scores, roles or pruned models",
)
def every_head_section(run: RunContents) -> dict[str, Any] | None:
    """The section of one run; None where no score, role or layout names a head."""
    heads = heads_of_run(run)
    return every_head_content({"": run}, heads) if heads else None


def heads_of_run(run: RunContents) -> list[Head]:
    """Every head that a score, a role or a layout is about, kind by kind."""
    heads = {*heads_in(run.heads), *heads_in(run.roles.labels)}
    return sorted(heads.union(*(mask.heads for mask in run.layouts.values())), key=model_order)


def every_head_content(runs: Mapping[str, RunContents], heads: Sequence[Head]) -> dict[str, Any]:
    """What the template shows: the columns and rows of the table, and `details`, which the page's
    script reads for the card of a picked head.

    runs: by name, which stands before what a run says; several runs must have the same heads. The
    name of a single run is empty. Shown are the measures that all runs have.
    """
    scores = {name: shown_scores(run) for name, run in runs.items()}
    # In the order of the first run.
    shared = [one for one in scores[next(iter(runs))] if all(one in own for own in scores.values())]
    columns = [(measure, name) for measure in shared for name in runs]
    titles = [measure_name(measure) + (f" · {name}" if name else "") for measure, name in columns]

    # What each pruned model did with every head and, if it has gates, when each was shut.
    models: list[dict[str, Any]] = []
    statuses = dict.fromkeys(heads, "")
    closed: dict[int, Mapping[Head, int | None]] = {}
    for name, run in runs.items():
        steps = closing_steps(run)
        for model in run.candidates:
            if model["setting"] in steps:
                closed[len(models)] = steps[model["setting"]]
            label = with_run_name(name, model["label"])
            models.append({"label": label, "chosen": bool(model["chosen"])})
            for head in heads:
                # One letter a model: the page holds this text for every head.
                statuses[head] += status_of(run, model, head)

    # The table of one run has columns for its chosen model and the gates of it.
    # Numbers of models: none where the page has several runs, or none was chosen.
    chosen = [at for at, model in enumerate(models) if model["chosen"] and len(runs) == 1]
    gates = [at for at in chosen if at in closed]
    labels = said_by(runs, head_labels)
    evidence = said_by(runs, role_evidence)
    alone = said_by(runs, costs_alone)
    first = next(iter(runs.values()))
    rows = []
    details = {}
    for head in heads:
        own = [scores[name][measure].get(head) for measure, name in columns]
        rows.append(
            {
                "kind": head.kind,
                "address": str(head),
                "scores": own,
                "role": "; ".join(labels.get(head, [])),
                "attention": attention_of(first, head),
                "in_chosen": "".join(FATE_WORDS[statuses[head][at]] for at in chosen),
                "kept": kept_in(statuses[head]),
                "closed": next((closed[at].get(head) for at in gates), None),
            }
        )
        details[str(head)] = {
            "scores": own,
            # The card tells a head that was tested and has no role ([]) from one not tested (None).
            "roles": evidence.get(head, []) if head in labels else None,
            "alone": "; ".join(alone.get(head, [])),
            "statuses": statuses[head],
            "closed": {at: steps.get(head) for at, steps in closed.items()},
        }

    untrained = any(len(run.untrained) for run in runs.values())
    has_roles = any(run.roles for run in runs.values())
    absent = ["scores"] * (not columns) + ["roles"] * (not has_roles)
    return {
        "kinds": [(kind, KIND_NAMES[kind]) for kind in kinds_among(head.kind for head in heads)],
        "measures": [(measure, title) for (measure, _), title in zip(columns, titles, strict=True)],
        "has_attention": any(row["attention"] for row in rows),
        "has_roles": has_roles,
        "absent": listed(absent) if len(runs) == 1 else "",
        "has_untrained": untrained,
        "model_count": len(models) if any(run.layouts for run in runs.values()) else 0,
        "order": order_of_removal(first.candidates) if len(runs) == 1 else "",
        "left_alone": not all(row["kept"] for row in rows),
        "has_chosen": any(row["in_chosen"] for row in rows),
        "chosen_label": next((models[at]["label"] for at in gates), None),
        "rows": rows,
        "details": {"measures": titles, "untrained": untrained, "models": models, "heads": details},
    }


def said_by(
    runs: Mapping[str, RunContents], say: Callable[[RunContents], Mapping[Head, list[str]]]
) -> Mapping[Head, list[str]]:
    """What all runs say of each head, one after the other."""
    said: dict[Head, list[str]] = {}
    for name, run in runs.items():
        for head, texts in say(run).items():
            said.setdefault(head, []).extend(with_run_name(name, text) for text in texts)
    return said


def with_run_name(name: str, text: str) -> str:
    """The text after the name of its run; the name is empty where the page has one run."""
    return f"{name}: {text}" if name else text


def order_of_removal(models: list[dict[str, Any]]) -> str:
    """The score in whose order heads were removed, where it is that of all models: then a head that more models keep was
    removed later."""
    lines = {model["line"] for model in models}
    if len(lines) != 1 or models[0]["learned"] or not models[0]["score"]:
        return ""
    return measure_name(str(models[0]["score"]))


def attention_of(run: RunContents, head: Head) -> str:
    """`full` or `sliding 512`, of a model that has both; else empty."""
    names = run.attention(head.kind)
    return names[head.layer] if head.layer < len(names) else ""


class ShownScore(NamedTuple):
    """A score of a head as the page shows it. The page's script gets it as a list in this order.

    interval: at 95 %, empty without one. untrained: the range of the untrained heads of the same
    layer, empty without any. like_untrained: whether the value is in that range.
    """

    value: float
    text: str
    interval: str
    untrained: str
    like_untrained: bool


def shown_scores(run: RunContents) -> Mapping[str, Mapping[Head, ShownScore]]:
    """The scores of every measure and head."""
    scores: dict[str, dict[Head, ShownScore]] = {}
    untrained = control_ranges(run)
    for measure, rows in run.heads.dropna(subset=["value"]).groupby("measure", sort=False):
        largest = float(rows["value"].abs().max())
        write = partial(number, scale=largest, more=1)
        by_head = scores[str(measure)] = {}
        for row in rows.to_dict("records"):
            control = untrained.get((row["kind"], row["layer"], str(measure)))
            by_head[head_of(row)] = ShownScore(
                value=float(f"{row['value']:.6g}"),
                text=write(row["value"]),
                interval=interval_text(row["low"], row["high"], write),
                untrained="" if control is None else control.text(largest),
                like_untrained=control is not None and control.holds(row["value"]),
            )
    return scores


def role_evidence(run: RunContents) -> Mapping[Head, list[str]]:
    """The evidence for every role of a head, with its interval, and what the model predicts with the head off."""
    evidence: dict[Head, list[str]] = {}
    effects = effect_sentences(run.roles)
    for row in run.roles.roles.to_dict("records"):
        ends = interval_text(row["low"], row["high"], two_decimals)
        text = f"{row['text']} {ends}".strip()
        effect = effects.get((head_of(row), row["measure"]), "")
        evidence.setdefault(head_of(row), []).append("; ".join(filter(None, [text, effect])))
    return evidence


def effect_sentences(found: RolesFolder) -> Mapping[tuple[Head, str], str]:
    """What the model predicts with a head off, in words, by head and measure of the role."""
    sentences: dict[tuple[Head, str], str] = {}
    for row in found.causal.dropna(subset=["with_all", "value"]).to_dict("records"):
        sentences[head_of(row), row["measure"]] = effect_sentence(row)
    return sentences


def head_labels(run: RunContents) -> Mapping[Head, list[str]]:
    """What each head does, in words."""
    rows = run.roles.labels.to_dict("records")
    return {head_of(row): [str(row["label"])] for row in rows}


def status_of(run: RunContents, model: Mapping[str, Any], head: Head) -> str:
    """KEPT, REMOVED or LEFT_ALONE. A model without a layout leaves all heads alone."""
    mask = run.layouts.get(model["setting"])
    if mask is None or head.kind not in run.pruned_kinds(model):
        return LEFT_ALONE
    return KEPT if head in mask.kept else REMOVED


def kept_in(statuses: str) -> str:
    """In how many models a head is kept: `2`, or `2 of 3` where the others left its kind alone; empty where all did."""
    asked = len(statuses) - statuses.count(LEFT_ALONE)
    if not asked:
        return ""
    # A letter a model.
    kept = statuses.count(KEPT)
    return str(kept) if asked == len(statuses) else f"{kept} of {asked}"


def costs_alone(run: RunContents) -> Mapping[Head, list[str]]:
    """How BLEU, or else the loss (in thousandths of a nat), changes when one head alone is switched off, with its interval.

    BLEU comes first because readers know it; most runs have only the loss, which is cheaper.
    """
    lost = of_measure(run.heads, BLEU_MEASURE)
    if len(lost):
        # The measure counts the points that are lost, so the upper end of the loss is the lower end of the change.
        changes = lost.assign(value=-lost["value"], low=-lost["high"], high=-lost["low"])
        rows = changes.to_dict("records")
        return {head_of(row): [f"{estimate(row)} BLEU"] for row in rows}
    unit = "thousandths of a nat of loss per token"
    rows = of_measure(run.heads, LOSS_MEASURE).to_dict("records")
    return {head_of(row): [f"{estimate(row, thousandths)} {unit}"] for row in rows}
