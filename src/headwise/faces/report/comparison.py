"""Two runs that are compared: what differs in them and, where their heads can be paired, scores, roles and kept heads.

What their page shares with that of a grid, such as the table of all models, is in `runs.py`.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from operator import itemgetter
from pathlib import Path
from typing import Any

import pandas as pd

from headwise.core.errors import HeadwiseError
from headwise.core.heads import KINDS, Head, HeadMap
from headwise.core.qualities import Number
from headwise.core.statistics import rank_interval
from headwise.core.tables import HEAD_COLUMNS
from headwise.faces.report import models
from headwise.faces.report.after_pruning import head_roles, rank, scatter, score_text, tested_rows
from headwise.faces.report.charts import Figure
from headwise.faces.report.every_head import every_head_content, heads_of_run
from headwise.faces.report.format import (
    capital,
    flat_settings,
    interval_text,
    listed,
    measure_name,
    signed,
)
from headwise.faces.report.head_rows import values_by_head
from headwise.faces.report.kept_heads import head_map
from headwise.faces.report.models import ModelRow
from headwise.faces.report.page import Columns, PageTable, chosen_badge, section, table
from headwise.faces.report.run_folder import RunContents, read_run
from headwise.faces.report.runs import Runs
from headwise.faces.report.score_maps import drawn_measures
from headwise.models.decoding.bleu import translation_answers
from headwise.roles.role import display_name

LONGEST_RUN_NAME = 24  # letters of the name of a run
ModelOfRun = tuple[RunContents, ModelRow]


def read_comparison(one: Path, other: Path) -> Runs:
    """Read two run folders.

    Raises HeadwiseError for a grid, one folder twice, or runs with no kind of result in common (and as `read_run`).
    """
    if one.resolve() == other.resolve():
        raise HeadwiseError(
            f"A comparison needs two runs, but {one} and {other} are the same folder."
        )
    a, b = read_run(one), read_run(other)
    evaluated = not a.model_table.empty and not b.model_table.empty
    in_both = {
        "scores of heads": bool(paired_scores(a, b, heads_of_run(a))),
        "roles": bool(a.roles and b.roles),
        "evaluated models": evaluated,
    }
    if not any(in_both.values()):
        raise HeadwiseError(
            f"{one} and {other} have nothing to compare: none of {', '.join(in_both)} is in both."
        )
    runs = {}
    for letter, run in (("A", a), ("B", b)):
        # Two folders of one name need the name of the folder above them.
        name = f"{run.folder.resolve().parent.name}/{run.name}" if a.name == b.name else run.name
        if len(name) > LONGEST_RUN_NAME:
            name = f"{name[: LONGEST_RUN_NAME - 1]}…"
        runs[f"{letter} · {name}"] = run
    heads, note = paired_heads(a, b)
    return Runs(
        page="comparison",
        name=listed(list(runs)),
        headline=difference(a, b) or rank_headline(a, b, heads),
        runs=runs,
        parts={name: run.model_table for name, run in runs.items()} if evaluated else {},
        # `dev` is before `test` in the alphabet: the text that both were measured on.
        split=min(a.split, b.split),
        notes=[note, *other_texts(a, b)],
        heads=heads,
    )


def paired_heads(one: RunContents, other: RunContents) -> tuple[list[Head], str]:
    """The heads that both runs have and that can be compared one by one, and why they can or cannot."""
    of_one = heads_of_run(one)
    of_other = set(heads_of_run(other))
    shared = [head for head in of_one if head in of_other]
    # The hash of the full model: equal only for the same weights.
    began = [run.facts["signature"].get("model") for run in (one, other)]
    same_model = began[0] is not None and began[0] == began[1]
    if not shared or not (same_model or set(of_one) == of_other):
        reason = "the two have other heads."
    elif same_model:
        return (
            shared,
            f"Both runs began with the same model, so its {len(shared)} heads are compared one by one.",
        )
    elif all(isinstance(run.planned.get("model"), str) for run in (one, other)):
        return (
            shared,
            f"The runs were given two models with the same {len(shared)} heads, compared one by one. That has a meaning "
            "where one model was made from the other, or both from a third.",
        )
    else:
        reason = (
            "their models were trained apart, so that head 3 of a layer in one has nothing to do with head 3 of that "
            "layer in the other."
        )
    return [], f"Heads are not compared one by one: {reason}"


def other_texts(one: RunContents, other: RunContents) -> list[str]:
    """A warning where the runs were made from other texts, by their fingerprints or what the plans call them."""
    found = []
    for split in ("train", "dev", "test"):
        names = []
        for run in (one, other):
            data = run.planned.get("data") or {}
            signature = run.facts.get("signature") or {}
            names.append(signature.get(split) or data.get(split) or data.get("embedded"))
        if names[0] != names[1]:
            found.append(split)
    if not found:
        return []
    return [
        f"Their {listed(found)} text is not the same: numbers on different texts cannot be compared."
    ]


def difference(one: RunContents, other: RunContents) -> str:
    """The quality of B's chosen model against that of A's, with an interval; empty where it is not known."""
    a, b = one.chosen, other.chosen
    if a is None or b is None or one.quality != other.quality:
        return ""
    # The paired comparison is far more precise; the other is what is left where texts differ.
    found = on_same_sentences((one, a), (other, b)) or difference_of_changes((one, a), (other, b))
    if found is None:
        return ""
    change, how = found
    assert change.value is not None
    moved = f"{signed(change.value)}{one.quality.unit} {one.quality.title}"
    totals = [f"of {model['total']} {models.heads_name(model['kinds'])}" for model in (a, b)]
    of_a = "" if totals[0] == totals[1] else f" {totals[0]}"
    return (
        f"B − A: {moved} {interval_text(change.low, change.high)}{how}, {change.finding(one.quality)}; "
        f"A keeps {a['kept']}{of_a} and B {b['kept']} {totals[1]}"
    )


def rank_headline(one: RunContents, other: RunContents, heads: Sequence[Head]) -> str:
    """How alike both runs rank their heads, by the first measure that is drawn."""
    scores = paired_scores(one, other, heads)
    for measure in drawn_measures(scores):
        text = rank_text(measure, scores[measure])
        if text:
            return f"Rank correlation of the {len(scores[measure])} heads of A and B by {text}"
    return "What differs between two runs"


def on_same_sentences(one: ModelOfRun, other: ModelOfRun) -> tuple[Number, str] | None:
    """BLEU of B's model minus that of A's, and on what; None where they did not translate the same test sentences."""
    texts = []
    for run, model in (one, other):
        names = ("source", "reference", model["setting"])
        texts.append([run.translations.get(name) for name in names])

    (sources, references, ours), (*given, theirs) = texts
    if not references or ours is None or theirs is None or [sources, references] != given:
        return None
    # Paired: the same sentences, so their difficulty cancels.
    change = translation_answers([ours, theirs], references).change(1)
    return change, f" on the same {len(references)} sentences"


def difference_of_changes(one: ModelOfRun, other: ModelOfRun) -> tuple[Number, str] | None:
    """The change of quality by pruning in B minus that in A, with an interval, and what both changes are to; None where
    they were not measured against the same model.

    The interval is made of both runs' own as if they were independent (Zou and Donner 2008, section 2): with changes a, b
    and their ends l, u, from d − √((b − l_b)² + (u_a − a)²) to d + √((u_b − b)² + (a − l_a)²).
    """
    known = []
    for run, model in (one, other):
        reference, change = run.leading_change(model)
        if change.value is None or change.low is None or change.high is None:
            return None
        known.append((run.split, reference, change.value, change.low, change.high))
    (*compared, a, low_a, high_a), (*other_compared, b, low_b, high_b) = known
    if compared != other_compared:
        return None
    low = b - a - math.hypot(b - low_b, high_a - a)
    high = b - a + math.hypot(high_b - b, a - low_a)
    return Number(b - a, low, high), f", each compared with {models.OTHERS[known[0][1]]}"


@section(
    "settings",
    heading="Settings that differ",
    question="Which settings, texts and versions differ?",
    pages=("comparison",),
    story=True,
    order=10,
    files=("plan.toml", "run.json"),
)
def settings_section(found: Runs) -> dict[str, Any]:
    """Every setting that differs: of the plans, of signature and versions."""
    written = []
    for run in found.runs.values():
        facts = {part: run.facts.get(part) for part in ("signature", "versions")}
        written.append(flat_settings(run.planned | facts))
    # A setting that one run lacks is empty there, so it differs from any value.
    # A row a setting, a column a run.
    known = pd.DataFrame(written, index=[*found.runs]).T.fillna("")
    differing = known[known.iloc[:, 0] != known.iloc[:, 1]]
    columns: Columns = {name: itemgetter(name) for name in ("setting", *found.runs)}
    rows = differing.rename_axis("setting").reset_index().to_dict("records")
    return {
        "settings": table("Settings that differ", rows, columns),
        "same": len(known) - len(differing),
    }


@section(
    "paired_heads",
    heading="Heads side by side",
    question="Do both runs score heads alike, give them the same roles, and keep the same ones?",
    pages=("comparison",),
    story=True,
    order=30,
    files=("heads.csv", "roles/", "layouts/"),
)
def paired_heads_section(found: Runs) -> dict[str, Any]:
    """The heads that both chosen models keep; where heads can be paired, also their scores in both runs, the roles that
    only one run has, and which heads models of one setting keep."""
    one, other = found.runs.values()
    scores = paired_scores(one, other, found.heads)
    panels = [scatter(name, scores[name], *found.runs) for name in drawn_measures(scores)]
    ranks = [rank_text(name, part) for name, part in scores.items()]
    points = Figure(
        "scores-of-both",
        "Each head's score in both runs",
        "a point is a head · on the line: the same in both",
        panels,
        columns=min(3, len(panels)),
        facts=f"Rank correlations: {', '.join(filter(None, ranks))}.",
    )
    maps = []
    for letter, (name, run) in zip("ab", found.runs.items(), strict=True):
        drawn = head_map(run, run.chosen)
        # Without a layout the map would show scores alone, which the points have.
        if drawn and run.chosen and run.chosen["setting"] in run.layouts:
            maps.append(replace(drawn, name=f"head-map-{letter}", title=f"{name}: {drawn.title}"))
    return {
        "points": points if panels else None,
        "roles": changed_roles(found),
        "maps": maps,
        "layouts": kept_in_both(found),
    }


def paired_scores(
    one: RunContents, other: RunContents, heads: Sequence[Head]
) -> dict[str, pd.DataFrame]:
    """By measure a score of every paired head: kind, layer, head, before (of the first run), after (of the second)."""
    found = {}
    for measure in one.heads["measure"].unique():
        a, b = values_by_head(one, measure), values_by_head(other, measure)
        rows = [(*head, a[head], b[head]) for head in heads if head in a and head in b]
        if rows:
            found[measure] = pd.DataFrame(rows, columns=[*HEAD_COLUMNS, "before", "after"])
    return found


def rank_text(measure: str, scores: pd.DataFrame) -> str:
    """`Gradient +0.78 [+0.50, +0.91]`, with the interval of Bonett and Wright (2000): heads are its sample. Empty where
    heads are too few, or equal."""
    value = rank(scores)
    if math.isnan(value):
        return ""
    ends = interval_text(*rank_interval(value, len(scores)))
    return f"{capital(measure_name(measure))} {signed(value)} {ends}".strip()


def changed_roles(found: Runs) -> PageTable | None:
    """The roles of paired heads that only one of the runs has, with their scores in both."""
    held = []
    columns: Columns = {
        "head": lambda role: str(role[0]),
        "role": lambda role: display_name(role[1]),
    }
    for name, run in found.runs.items():
        if not run.roles:
            return None
        held.append({role for kind in KINDS for role in head_roles(run.roles, kind)})
        scored = tested_rows(run.roles)
        columns[name] = partial(lambda scored, role: score_text(scored.get(role)), scored)
    columns["role in"] = lambda role: "only A" if role in held[0] else "only B"
    changed = sorted(role for role in held[0] ^ held[1] if role[0] in found.heads)
    return table("Roles that only one run has", changed, columns, code=lambda role: role[1])


def expected_within_layers(one: set[Head], other: set[Head], heads: HeadMap) -> float:
    """How many heads two draws share that take as many heads of every layer as these two choices."""
    counts = [
        Counter((head.kind, head.layer) for head in heads_kept) for heads_kept in (one, other)
    ]
    return sum(
        count * counts[1][kind, layer] / heads.query[kind][layer]
        for (kind, layer), count in counts[0].items()
    )


def kept_in_both(found: Runs) -> PageTable | None:
    """Which of the paired heads are kept by models of one setting in both runs."""
    one, other = found.runs.values()
    rows = []
    for model in one.pruned if found.heads else ():
        setting = model["setting"]
        layouts = [run.layouts[setting] for run in (one, other) if setting in run.layouts]
        if len(layouts) == 2 and not models.is_random_order(model):
            # Kinds that no one pruned are kept by both, which would look like agreement.
            a, b = ({head for head in mask.kept if head.kind in model["kinds"]} for mask in layouts)
            rows.append((model, a, b, layouts[0].heads))

    columns: Columns = {
        "model": lambda row: row[0]["label"],
        "heads kept by both": lambda row: (
            f"{len(row[1] & row[2])}, of {len(row[1])} by A and {len(row[2])} by B"
        ),
        # The mean of a hypergeometric distribution: two independent draws from one model's heads, or from each layer's.
        "expected at random": lambda row: f"{len(row[1]) * len(row[2]) / row[0]['total']:.1f}",
        "expected within layers": lambda row: f"{expected_within_layers(*row[1:]):.1f}",
        "only by A": lambda row: listed(sorted(map(str, row[1] - row[2]))),
        "only by B": lambda row: listed(sorted(map(str, row[2] - row[1]))),
    }
    return table("Heads kept in both", rows, columns, badge=lambda row: chosen_badge(row[0]))


@section(
    "every_head_of_both",
    heading="Every head",
    question="What do both runs say about one head?",
    pages=("comparison",),
    order=60,
    files=("heads.csv", "roles/", "layouts/"),
    template="every_head",
)
def every_head_of_both(found: Runs) -> dict[str, Any] | None:
    """Every head that can be paired, with what both runs say of it."""
    return every_head_content(found.runs, found.heads) if found.heads else None
