"""Relevance, confidence and functions of heads in one figure, as in figure 1 of Voita et al. (2019)."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from headwise.core.statistics import marked_in_groups
from headwise.faces.report.charts import Figure
from headwise.faces.report.format import (
    HEADS_OF_KIND,
    KIND_NAMES,
    capital,
    count,
    listed,
    measure_name,
    probability_fact,
    two_decimals,
)
from headwise.faces.report.head_rows import (
    heads_in,
    of_kind,
    of_measure,
    values_by_head,
    with_function,
)
from headwise.faces.report.page import section
from headwise.faces.report.role_charts import attention_maps, functions_panel, kinds_with_roles
from headwise.faces.report.run_folder import RunContents
from headwise.faces.report.score_faithfulness import agreement_with_ablation
from headwise.faces.report.score_maps import (
    UNTRAINED_NOTE,
    control_ranges,
    leading_measures,
    panel_columns,
    places_of_heads,
    score_panels,
    untrained_models,
)


@section(
    "functions",
    heading="Which heads matter, and what they do",
    question="Do the heads that matter have a function?",
    story=True,
    order=30,
    files=("heads.csv", "roles/", "untrained.csv"),
    papers={"functions-encoder-self": "Voita fig. 1"},
    brought_by="scores and roles: scoring.measures and roles.treebank",
)
def head_functions_section(run: RunContents) -> dict[str, Any] | None:
    """A figure for each kind of heads; None without scores and roles."""
    figures = head_functions(run)
    if not figures:
        return None
    leading = {kind: leading_measures(run, kind) for kind in KIND_NAMES}
    roles = run.roles
    tested = kinds_with_roles(roles)
    scored = set(run.heads["kind"])
    return {
        "figures": {figure.name.partition("-")[2]: figure for figure in figures},  # by kind
        "families": {name.split(".")[0] for names in leading.values() for name in names},
        "agreements": {
            kind: agreement_with_ablation(run, kind, names[0])
            for kind, names in leading.items()
            if names
        },
        "first_layer": first_layer(run),
        "within_layers": within_layers(run),
        "has_roles": bool(roles),
        "maps": attention_maps(roles),
        "tested": tested,
        "only_tested": listed([HEADS_OF_KIND[kind] for kind in tested])
        if scored - set(tested)
        else "",
        "sorts": {name.split(".")[0] for name in roles.roles["measure"]},
        "causal": not roles.causal.empty,
        "untrained_models": untrained_models(run),
    }


def first_layer(run: RunContents) -> str:
    """A sentence: the place by confidence of the most relevant encoder head of the first layer, where Voita et al. 2019
    (section 4) found that the two disagree. Empty where one of the two was not measured."""
    kind = "encoder-self"
    measures = leading_measures(run, kind)
    if measures[1:] != ["confidence"] or not measures[0].startswith("lrp"):
        return ""
    first = of_kind(run.heads, kind)
    first = first[first["layer"] == 0].dropna(subset=["value"])
    rows = [of_measure(first, name) for name in measures]
    relevance, confidence = (dict(zip(one["head"], one["value"], strict=True)) for one in rows)
    top = max(relevance, key=relevance.__getitem__, default=None)
    if top not in confidence:
        return ""
    place = 1 + sum(value > confidence[top] for value in confidence.values())
    return (
        f"The most relevant head of the first layer, {kind}/0/{top}, is number {place} of {len(confidence)} there by "
        f"confidence ({two_decimals(confidence[top])}); in their models Voita et al. (2019, section 4) found that head not "
        "confident."
    )


def within_layers(run: RunContents) -> str:
    """A sentence: whether encoder heads with a function of Voita et al. 2019 have more relevance and confidence than the
    others of their layer, with the p of shuffled functions. Empty without scores or roles of both sorts of heads."""
    kind = "encoder-self"
    labels = of_kind(run.roles.labels, kind)
    functions = set(heads_in(with_function(labels)))
    parts = []
    for measure in leading_measures(run, kind):
        values = values_by_head(run, measure)
        heads = [head for head in heads_in(labels) if not math.isnan(values.get(head, math.nan))]
        found = marked_in_groups(
            np.array([values[head] for head in heads]),
            np.array([head in functions for head in heads]),
            np.array([head.layer for head in heads]),
        )
        if found.pairs:
            parts.append(
                f"by {measure_name(measure)} in {found.won:g} of {found.pairs} pairs ({probability_fact(found.p)})"
            )
    if not parts:
        return ""
    return (
        f"Of {count(len(functions), 'head')} with a function (sinks not counted) and the others of the same layers, the one "
        f"with the function is higher {listed(parts)}; p is one-sided, from shuffling the functions within each layer."
    )


def head_functions(run: RunContents) -> list[Figure]:
    """For each kind of heads relevance (or the most faithful score), confidence and functions, as far as they are there.

    All have one order: layers are rows, and in each the head of the highest first score comes first.
    """
    tested = kinds_with_roles(run.roles)
    figures = []
    for kind in KIND_NAMES:
        measures = leading_measures(run, kind)
        if not measures and kind not in tested:
            continue
        panels = score_panels(run, kind, measures)
        columns = panel_columns(run, kind, len(panels))
        names = [measure_name(measure) for measure in measures]
        order = "heads by their numbers"
        if measures:
            order = f"in each layer the head of highest {names[0]} first"
        what = "importance"
        if kind in tested:
            what = "functions"
            panels.append(functions_panel(run, kind, places_of_heads(run, kind)))
            names.append("functions")
        figures.append(
            Figure(
                name=f"{what}-{kind}",
                title=f"{capital(KIND_NAMES[kind])}: {listed(names)}",
                note="layers × heads" + UNTRAINED_NOTE * bool(measures and control_ranges(run)),
                panels=panels,
                columns=columns,
                facts=f"Order: {order}.",
            )
        )
    return figures
