"""Relevance, confidence and functions of heads in one figure, as in figure 1 of Voita et al. (2019)."""

from __future__ import annotations

from typing import Any

from headwise.report.charts import Figure
from headwise.report.format import HEADS_OF_KIND, KIND_NAMES, capital, listed, measure_name
from headwise.report.page import section
from headwise.report.role_charts import functions_panel, kinds_with_roles
from headwise.report.role_tables import functions_found
from headwise.report.run_folder import FinishedRun
from headwise.report.score_faithfulness import agreement_with_ablation
from headwise.report.score_maps import (
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
def head_functions_section(run: FinishedRun) -> dict[str, Any] | None:
    """A figure for each kind of heads, and the functions that were found; None without scores and roles."""
    figures = head_functions(run)
    if not figures:
        return None
    measures = {measure for kind in KIND_NAMES for measure in leading_measures(run, kind)}
    agreements = {}
    for kind in KIND_NAMES:
        leading = leading_measures(run, kind)
        if leading:
            agreements[kind] = agreement_with_ablation(run, kind, leading[0])
    roles = run.roles
    return {
        "figures": {figure.name.partition("-")[2]: figure for figure in figures},  # by kind
        "families": [name.split(".")[0] for name in sorted(measures)],
        "agreements": agreements,
        "groups": [] if roles is None else functions_found(roles),
        "has_roles": roles is not None,
        "tested": [] if roles is None else kinds_with_roles(roles),
        "only_tested": only_tested(run),
        "sorts": []
        if roles is None
        else sorted({name.split(".")[0] for name in roles.roles["measure"]}),
        "causal": roles is not None and roles.causal is not None,
        "untrained_models": untrained_models(run),
    }


def only_tested(run: FinishedRun) -> str:
    """The kinds of heads that roles were tested for, where the run scored other kinds as well; else nothing."""
    if run.roles is None or run.heads is None:
        return ""
    tested = kinds_with_roles(run.roles)
    if set(run.heads["kind"]) <= set(tested):
        return ""
    return listed([HEADS_OF_KIND[kind] for kind in tested])


def head_functions(run: FinishedRun) -> list[Figure]:
    """For each kind of heads relevance (or the most faithful score), confidence and functions, as far as they are there.

    All have one order: layers are rows, and in each the head of the highest first score comes first.
    """
    tested = [] if run.roles is None else kinds_with_roles(run.roles)
    figures = []
    for kind in KIND_NAMES:
        measures = leading_measures(run, kind)
        if not measures and kind not in tested:
            continue
        panels = score_panels(run, kind, measures) if measures else []
        columns = panel_columns(run, kind, len(panels))
        names = [measure_name(measure) for measure in measures]
        what = "importance"
        if kind in tested:
            what = "functions"
            places: Any = places_of_heads(run, kind).to_dict()
            panels.append(functions_panel(run, kind, places))
            names.append("functions")
        order = "heads by their numbers"
        if measures:
            order = f"in each layer the head of highest {names[0]} first"
        figures.append(
            Figure(
                name=f"{what}-{kind}",
                title=f"{capital(KIND_NAMES[kind])}: {listed(names)}",
                note=f"layers × heads, {order}"
                + UNTRAINED_NOTE * bool(measures and control_ranges(run)),
                panels=panels,
                columns=columns,
                facts=f"Order: {order}.",
            )
        )
    return figures
