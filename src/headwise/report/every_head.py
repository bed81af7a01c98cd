"""The section "Every head": all heads in one table, and what the card of a picked head shows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import pandas as pd

from headwise.heads import KINDS, Head, head_of
from headwise.report.format import KIND_NAMES, kinds_among, listed, measure_name, number, signed
from headwise.report.gate_history import closing_steps
from headwise.report.page import section
from headwise.report.run_folder import HEAD_COLUMNS, FinishedRun, RolesFolder
from headwise.report.score_maps import BLEU_MEASURE, LOSS_MEASURE, control_ranges
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
def every_head_section(run: FinishedRun) -> dict[str, Any] | None:
    """The section of one run; None where no score, role or layout names a head."""
    heads = heads_of_run(run)
    return every_head_content({"": run}, heads) if heads else None


def heads_of_run(run: FinishedRun) -> list[Head]:
    """Every head that a score, a role or a layout is about, kind by kind."""
    tables = []
    if run.heads is not None:
        tables.append(run.heads)
    if run.roles is not None:
        tables.append(run.roles.labels)

    heads = set[Head]()
    for table in tables:
        for row in table[HEAD_COLUMNS].itertuples(index=False, name=None):
            heads.add(Head(*row))
    for mask in run.layouts.values():
        heads |= set(mask.heads)
    return sorted(heads, key=lambda head: (KINDS.index(head.kind), *head[1:]))


def every_head_content(runs: Mapping[str, FinishedRun], heads: list[Head]) -> dict[str, Any]:
    """What the template shows: the columns and rows of the table, and `details`, which the page's
    script reads for the card of a picked head.

    runs: by name, which stands before what a run says; several runs must have the same heads. The
    name of a single run is empty. Shown are the measures that all runs have.
    """
    facts_by_run = {}
    for name, run in runs.items():
        facts_by_run[name] = HeadFacts.of_run(run, heads)
    first = next(iter(facts_by_run.values()))

    # A column for each measure and run.
    columns = []
    measures = []
    titles = []
    for measure in first.scores:
        if not all(measure in run_facts.scores for run_facts in facts_by_run.values()):
            continue
        for name, run_facts in facts_by_run.items():
            title = measure_name(measure) + (f" · {name}" if name else "")
            columns.append(run_facts.scores[measure])
            measures.append((measure, title))
            titles.append(title)

    # The pruned models of all runs. Those with gates: their closing steps, by index in `models`.
    models: list[dict[str, Any]] = []
    steps_by_model = {}
    for name, run_facts in facts_by_run.items():
        for model in run_facts.pruned_models:
            if model["setting"] in run_facts.closing_steps:
                steps_by_model[len(models)] = run_facts.closing_steps[model["setting"]]
            label = _with_run_name(name, model["label"])
            models.append({"label": label, "chosen": bool(model["chosen"])})

    # The table of one run has columns for its chosen model and the gates of it.
    chosen_at = None
    chosen_label = None
    chosen_steps: Mapping[Head, int | None] = {}
    if len(facts_by_run) == 1:
        for index, model in enumerate(first.pruned_models):
            if model["chosen"]:
                chosen_at = index
            if model["chosen"] and model["setting"] in first.closing_steps:
                chosen_label = model["label"]
                chosen_steps = first.closing_steps[model["setting"]]

    rows = []
    details = {}
    for head in heads:
        labels = []
        evidence = []
        cost_alone = []
        statuses = ""
        tested = False
        for name, run_facts in facts_by_run.items():
            if head in run_facts.head_labels:
                tested = True
                labels.append(_with_run_name(name, run_facts.head_labels[head]))
            for text in run_facts.role_evidence.get(head, []):
                evidence.append(_with_run_name(name, text))
            if head in run_facts.costs_alone:
                cost_alone.append(_with_run_name(name, run_facts.costs_alone[head]))
            statuses += run_facts.statuses[head]

        scores = [column.get(head) for column in columns]
        rows.append(
            {
                "kind": head.kind,
                "address": str(head),
                "scores": scores,
                "role": "; ".join(labels),
                "attention": attention_of(next(iter(runs.values())), head),
                "in_chosen": "" if chosen_at is None else FATE_WORDS[statuses[chosen_at]],
                "kept": kept_in(statuses),
                "closed": chosen_steps.get(head),
            }
        )
        details[str(head)] = {
            "scores": scores,
            "roles": evidence if tested else None,
            "alone": "; ".join(cost_alone),
            "statuses": statuses,
            "closed": {index: steps.get(head) for index, steps in steps_by_model.items()},
        }

    kinds = {head.kind for head in heads}
    has_untrained = any(run.untrained is not None for run in runs.values())
    has_layouts = any(run.layouts for run in runs.values())
    has_roles = any(run.roles is not None for run in runs.values())
    absent = []
    if len(runs) == 1 and not measures:
        absent.append("scores")
    if len(runs) == 1 and not has_roles:
        absent.append("roles")
    return {
        "kinds": [(kind, KIND_NAMES[kind]) for kind in kinds_among(kinds)],
        "measures": measures,
        "has_attention": any(row["attention"] for row in rows),
        "has_roles": has_roles,
        "absent": listed(absent),
        "has_untrained": has_untrained,
        "model_count": len(models) if has_layouts else 0,
        "order": order_of_removal(first.pruned_models) if len(facts_by_run) == 1 else "",
        "left_alone": any(not row["kept"] for row in rows),
        "has_chosen": any(row["in_chosen"] for row in rows),
        "chosen_label": chosen_label,
        "rows": rows,
        "details": {
            "measures": titles,
            "untrained": has_untrained,
            "models": models,
            "heads": details,
        },
    }


def order_of_removal(models: list[dict[str, Any]]) -> str:
    """The score in whose order heads were removed, where it is that of all models: then a head that more models keep was
    removed later."""
    lines = {model["line"] for model in models}
    if len(lines) != 1 or models[0]["learned"] or not models[0]["score"]:
        return ""
    return measure_name(str(models[0]["score"]))


def attention_of(run: FinishedRun, head: Head) -> str:
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


@dataclass(frozen=True)
class HeadFacts:
    """What a run says about its heads.

    scores: by measure. pruned_models: the rows of the models that could be chosen. closing_steps: by the setting of each
    model with gates. All others: by head.
    """

    scores: Mapping[str, Mapping[Head, ShownScore]]
    role_evidence: Mapping[Head, list[str]]
    head_labels: Mapping[Head, str]
    pruned_models: list[dict[str, Any]]
    statuses: Mapping[Head, str]
    closing_steps: Mapping[str, Mapping[Head, int | None]]
    costs_alone: Mapping[Head, str]

    @classmethod
    def of_run(cls, run: FinishedRun, heads: list[Head]) -> HeadFacts:
        return cls(
            scores=shown_scores(run),
            role_evidence=role_evidence(run),
            head_labels=head_labels(run),
            pruned_models=run.candidates,
            statuses=statuses_of(run, heads),
            closing_steps=closing_steps(run),
            costs_alone=costs_alone(run),
        )


def _with_run_name(name: str, text: str) -> str:
    """The text after the name of its run; the name is empty where the page has one run."""
    return f"{name}: {text}" if name else text


def shown_scores(run: FinishedRun) -> Mapping[str, Mapping[Head, ShownScore]]:
    """The scores of every measure and head."""
    scores: dict[str, dict[Head, ShownScore]] = {}
    if run.heads is None:
        return scores

    untrained = control_ranges(run)
    with_value = run.heads.dropna(subset=["value"])
    for measure, rows in with_value.groupby("measure", sort=False):
        largest_size = float(rows["value"].abs().max())
        by_head = scores[str(measure)] = {}
        for row in rows.to_dict("records"):
            interval = ""
            if not pd.isna(row["low"]):
                low = number(row["low"], largest_size, 1)
                high = number(row["high"], largest_size, 1)
                interval = f"[{low}, {high}]"

            control = untrained.get((row["kind"], row["layer"], str(measure)))
            by_head[head_of(row)] = ShownScore(
                value=float(f"{row['value']:.6g}"),
                text=number(row["value"], largest_size, 1),
                interval=interval,
                untrained="" if control is None else control.text(largest_size),
                like_untrained=control is not None and control.holds(row["value"]),
            )
    return scores


def role_evidence(run: FinishedRun) -> Mapping[Head, list[str]]:
    """The evidence for every role of a head, with its interval."""
    evidence: dict[Head, list[str]] = {}
    if run.roles is None:
        return evidence
    effects = effect_sentences(run.roles)
    for row in run.roles.roles.to_dict("records"):
        interval = "" if pd.isna(row["low"]) else f" [{row['low']:.2f}, {row['high']:.2f}]"
        text = f"{row['text']}{interval}"
        if (head_of(row), row["measure"]) in effects:
            text += f"; {effects[head_of(row), row['measure']]}"
        evidence.setdefault(head_of(row), []).append(text)
    return evidence


def effect_sentences(found: RolesFolder) -> Mapping[tuple[Head, str], str]:
    """What the model predicts with a head off, in words, by head and measure of the role."""
    sentences: dict[tuple[Head, str], str] = {}
    if found.causal is not None:
        for row in found.causal.dropna(subset=["with_all", "value"]).to_dict("records"):
            sentences[head_of(row), row["measure"]] = effect_sentence(row)
    return sentences


def head_labels(run: FinishedRun) -> Mapping[Head, str]:
    """What each head does, in words."""
    labels: dict[Head, str] = {}
    if run.roles is None:
        return labels
    for row in run.roles.labels.to_dict("records"):
        labels[head_of(row)] = str(row["label"])
    return labels


def statuses_of(run: FinishedRun, heads: list[Head]) -> Mapping[Head, str]:
    """For each head a text of KEPT, REMOVED and LEFT_ALONE: letter n is for candidate n.

    A model without a layout leaves all heads alone.
    """
    statuses = dict.fromkeys(heads, "")
    for model in run.candidates:
        mask = run.layouts.get(model["setting"])
        pruned_kinds = set() if mask is None else set(run.pruned_kinds(model))
        for head in heads:
            if mask is None or head.kind not in pruned_kinds:
                statuses[head] += LEFT_ALONE
            elif head in mask.kept:
                statuses[head] += KEPT
            else:
                statuses[head] += REMOVED
    return statuses


def kept_in(statuses: str) -> str:
    """In how many models a head is kept: `2`, or `2 of 3` where the others left its kind alone; empty where all did."""
    asked = len(statuses) - statuses.count(LEFT_ALONE)
    if not asked:
        return ""
    kept = statuses.count(KEPT)
    return str(kept) if asked == len(statuses) else f"{kept} of {asked}"


def costs_alone(run: FinishedRun) -> Mapping[Head, str]:
    """How BLEU, or else the loss, changes when one head alone is switched off, with its interval.

    BLEU comes first because readers know it; most runs have only the loss, which is cheaper.
    """
    if run.heads is None:
        return {}
    for measure in (BLEU_MEASURE, LOSS_MEASURE):
        rows = run.heads[run.heads["measure"] == measure].dropna(subset=["value"])
        costs: dict[Head, str] = {}
        for row in rows.to_dict("records"):
            costs[head_of(row)] = _bleu_change(row) if measure == BLEU_MEASURE else _loss_rise(row)
        if costs:
            return costs
    return {}


def _bleu_change(row: Mapping[Any, Any]) -> str:
    """The measure counts the points that are lost. The change of BLEU has the other sign, so the
    upper end of the loss is the lower end of the change."""
    change = signed(-1 * row["value"], 2)
    if pd.isna(row["high"]):
        return f"{change} BLEU"
    return f"{change} [{signed(-1 * row['high'], 2)}, {signed(-1 * row['low'], 2)}] BLEU"


def _loss_rise(row: Mapping[Any, Any]) -> str:
    """The rise of the loss, which the measure gives in nats, in thousandths of a nat."""
    unit = "thousandths of a nat of loss a token"
    rise = signed(1000 * row["value"], 1)
    if pd.isna(row["low"]):
        return f"{rise} {unit}"
    return f"{rise} [{signed(1000 * row['low'], 1)}, {signed(1000 * row['high'], 1)}] {unit}"
