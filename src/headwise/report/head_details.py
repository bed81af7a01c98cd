"""The details of single heads and of pairs of heads.

Every head in one table, and all that the page knows of each: what its card shows when it is picked. Pairs of heads
switched off together: which do the same work, and which need each other.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd

from headwise.heads import KINDS, Head
from headwise.report import charts
from headwise.report.charts import Figure, Panel, axis, tips
from headwise.report.format import (
    KIND_NAMES,
    kinds_among,
    measure_name,
    number,
    percent,
    probability,
    signed,
)
from headwise.report.gate_history import gate_histories
from headwise.report.page import Columns, Table, section, table
from headwise.report.run_folder import FinishedRun
from headwise.report.score_maps import BLEU, LOSS, control_ranges

KEPT, REMOVED, LEFT_ALONE = (
    "k",
    "r",
    "-",
)  # a head in a pruned model; the last: its kind was not pruned

HEAD = ["kind", "layer", "head"]


@section(
    "every_head",
    menu="Every head",
    heading="Every head",
    question="What is known about one head?",
    order=20,
    files=("heads.csv", "roles/", "layouts/"),
)
def every_head_section(run: FinishedRun) -> dict[str, Any] | None:
    """The table's columns and rows, and `details`, which the page's script reads; left out where no head is known."""
    heads = heads_of_run(run)
    return content({"": run}, heads) if heads else None


def heads_of_run(run: FinishedRun) -> list[Head]:
    """Every head that a score, a role or a layout is about, kind by kind."""
    heads = set[Head]()
    for known in (run.heads, None if run.roles is None else run.roles.labels):
        if known is not None:
            heads |= {Head(*row) for row in known[HEAD].itertuples(index=False, name=None)}

    for mask in run.layouts.values():
        heads |= set(mask.heads)
    return sorted(heads, key=lambda head: (KINDS.index(head.kind), *head[1:]))


def content(runs: Mapping[str, FinishedRun], heads: list[Head]) -> dict[str, Any]:
    """The content of the section, of one run or of several with the same heads: the measures that all have."""
    facts = {}
    for name, run in runs.items():
        facts[name] = Facts.by(run, heads)

    first = next(iter(facts.values()))

    # A column for each measure and run.
    shared = []
    for name in first.scores:
        if all(name in of.scores for of in facts.values()):
            shared.append(name)

    columns, measures, titles = [], [], []
    for measure in shared:
        for name in runs:
            title = measure_name(measure) + (f" · {name}" if name else "")
            columns.append(facts[name].scores[measure])
            measures.append((measure, title))
            titles.append(title)

    # Every pruned model, and those of them that have gates.
    pruned = []
    for name, of in facts.items():
        pruned += [(name, of, model) for model in of.pruned]

    gated = [place for place, (_, of, model) in enumerate(pruned) if model["setting"] in of.closed]

    details = {}
    for head in heads:
        roles, alone = [], []
        for name, of in facts.items():
            roles += [_with_run_name(name, text) for text in of.roles.get(head, [])]
            if head in of.effects:
                alone.append(_with_run_name(name, of.effects[head]))

        closed = {}
        for place in gated:
            _, of, model = pruned[place]
            closed[place] = of.closed[model["setting"]].get(head)

        details[str(head)] = {
            "scores": [scores.get(head) for scores in columns],
            "roles": roles,
            "alone": "; ".join(alone),
            "statuses": "".join(of.statuses[head] for of in facts.values()),
            "closed": closed,
        }

    # In the table of one run, the step at which the gates of its chosen model shut.
    chosen = None
    if len(facts) == 1:
        for model in first.pruned:
            if model["chosen"] and model["setting"] in first.closed:
                chosen = model
    rows = []
    for head in heads:
        labels = []
        for name, of in facts.items():
            if head in of.labels:
                labels.append(_with_run_name(name, of.labels[head]))

        rows.append(
            {
                "kind": head.kind,
                "address": str(head),
                "scores": details[str(head)]["scores"],
                "role": "; ".join(labels),
                "kept": sum(of.statuses[head].count(KEPT) for of in facts.values()),
                "closed": None if chosen is None else first.closed[chosen["setting"]].get(head),
            }
        )

    kinds = {head.kind for head in heads}
    has_untrained = any(run.untrained is not None for run in runs.values())
    models = []
    for name, _, model in pruned:
        models.append(
            {"label": _with_run_name(name, model["label"]), "chosen": bool(model["chosen"])}
        )
    return {
        "kinds": [(kind, KIND_NAMES[kind]) for kind in kinds_among(kinds)],
        "measures": measures,
        "has_roles": any(run.roles is not None for run in runs.values()),
        "has_untrained": has_untrained,
        "models": len(pruned) if any(run.layouts for run in runs.values()) else 0,
        "gated": chosen and chosen["label"],
        "rows": rows,
        "details": {
            "measures": titles,
            "untrained": has_untrained,
            "models": models,
            "heads": details,
        },
    }


@dataclass(frozen=True)
class Facts:
    """What a run says about its heads."""

    scores: Mapping[str, Mapping[Head, tuple[float, str, str, str, bool]]]
    roles: Mapping[Head, list[str]]
    labels: Mapping[Head, str]
    pruned: list[dict[str, Any]]
    statuses: Mapping[Head, str]
    closed: Mapping[str, Mapping[Head, int | None]]
    effects: Mapping[Head, str]

    @classmethod
    def by(cls, run: FinishedRun, heads: list[Head]) -> Facts:
        statuses = statuses_of(run, heads)
        return cls(
            scores_as_text(run),
            role_evidence(run),
            labels_of(run),
            run.pruned,
            statuses,
            closed_of(run),
            effects_of(run),
        )


def _with_run_name(name: str, text: str) -> str:
    """With the name of its run, where there are several."""
    return f"{name}: {text}" if name else text


def scores_as_text(
    run: FinishedRun,
) -> Mapping[str, Mapping[Head, tuple[float, str, str, str, bool]]]:
    """Of every measure and head the value, the value as text, its 95 % interval as text (empty without), the range of
    untrained heads of its layer as text (empty without), and whether the value is in it."""
    found: dict[str, dict[Head, tuple[float, str, str, str, bool]]] = {}
    untrained = control_ranges(run)
    known = (
        pd.DataFrame(columns=["measure"])
        if run.heads is None
        else run.heads.dropna(subset=["value"])
    )
    for measure, rows in known.groupby("measure", sort=False):
        top = float(rows["value"].abs().max())
        texts = found[str(measure)] = {}
        for row in rows.to_dict("records"):
            interval = ""
            if not pd.isna(row["low"]):
                interval = f"[{number(row['low'], top, 1)}, {number(row['high'], top, 1)}]"
            control = untrained.get((row["kind"], row["layer"], str(measure)))
            texts[Head(row["kind"], row["layer"], row["head"])] = (
                float(f"{row['value']:.6g}"),
                number(row["value"], top, 1),
                interval,
                "" if control is None else control.text(top),
                control is not None and control.holds(row["value"]),
            )
    return found


def role_evidence(run: FinishedRun) -> Mapping[Head, list[str]]:
    """The evidence of every role of a head, with its interval."""
    found: dict[Head, list[str]] = {}
    for row in [] if run.roles is None else run.roles.roles.to_dict("records"):
        ends = "" if pd.isna(row["low"]) else f" [{row['low']:.2f}, {row['high']:.2f}]"
        found.setdefault(Head(row["kind"], row["layer"], row["head"]), []).append(
            f"{row['text']}{ends}"
        )
    return found


def labels_of(run: FinishedRun) -> Mapping[Head, str]:
    """What each head does, in words."""
    rows = [] if run.roles is None else run.roles.labels.to_dict("records")
    labels: dict[Head, str] = {}
    for row in rows:
        labels[Head(row["kind"], row["layer"], row["head"])] = str(row["label"])
    return labels


def statuses_of(run: FinishedRun, heads: list[Head]) -> Mapping[Head, str]:
    """A letter a pruned model: kept, removed, or of a kind that was not pruned (as for models without a layout)."""
    known = []
    for model in run.pruned:
        known.append((run.layouts.get(model["setting"]), model))

    pruned = []
    for mask, model in known:
        pruned.append(set() if mask is None else set(run.pruned_kinds(model)))

    def status(head: Head, at: int) -> str:
        mask = known[at][0]
        if mask is None or head.kind not in pruned[at]:
            return LEFT_ALONE
        return KEPT if head in mask.kept else REMOVED

    statuses: dict[Head, str] = {}
    for head in heads:
        statuses[head] = "".join(status(head, at) for at in range(len(known)))
    return statuses


def closed_of(run: FinishedRun) -> Mapping[str, Mapping[Head, int | None]]:
    """Of every model with gates, the step from which each gate was shut for good; None: it stayed open."""
    closed: dict[str, Mapping[Head, int | None]] = {}
    for history in gate_histories(run):
        closed[history.model["setting"]] = dict(zip(history.heads, history.closed_at, strict=True))
    return closed


def effects_of(run: FinishedRun) -> Mapping[Head, str]:
    """What switching off one head alone costs, with its interval."""
    if run.heads is None:
        return {}
    for measure, scale, digits, ends, what in (
        (BLEU, -1, 2, ("high", "low"), "BLEU"),
        (LOSS, 1000, 1, ("low", "high"), "thousandths of a nat of loss a token"),
    ):
        rows = (
            run.heads[run.heads["measure"] == measure].dropna(subset=["value"]).to_dict("records")
        )
        if rows:
            effects: dict[Head, str] = {}
            for row in rows:
                effects[Head(row["kind"], row["layer"], row["head"])] = _effect(
                    row, scale, digits, ends, what
                )
            return effects
    return {}


def _effect(
    row: Mapping[Any, Any], scale: int, digits: int, ends: tuple[str, str], what: str
) -> str:
    low = scale * row[ends[0]]
    high = scale * row[ends[1]]
    between = "" if pd.isna(low) else f" [{signed(low, digits)}, {signed(high, digits)}]"
    return f"{signed(scale * row['value'], digits)}{between} {what}"


OTHER = ["other_kind", "other_layer", "other_head"]
THOUSAND = 1000  # interactions are shown in thousandths of a nat
KIND_CODES = {"encoder-self": "e", "decoder-self": "d", "cross": "x"}


@section(
    "pairs",
    menu="Pairs",
    heading="Heads that replace each other",
    question="Which heads do the same work, and which need each other?",
    order=50,
    files=("interactions.csv",),
)
def head_pairs_section(run: FinishedRun) -> dict[str, Any] | None:
    """The map of all pairs and the table of the strongest; the section is left out where no pairs were tried."""
    if run.interactions is None or run.interactions.empty:
        return None
    pairs = with_addresses(run.interactions)
    return {
        "map": interaction_map(pairs),
        "table": head_pairs_table(pairs),
        "redundant": int((pairs["low"] > 0).sum()),
        "synergistic": int((pairs["high"] < 0).sum()),
        "measured": int(pairs["value"].notna().sum()),
        "pairs": len(pairs),
        "backups": backup_table(pairs),
    }


def with_addresses(pairs: pd.DataFrame) -> pd.DataFrame:
    """The pairs with the addresses of both heads, in `address` and `other`."""
    first = pairs[HEAD].astype(str).agg("/".join, axis=1)
    second = pairs[OTHER].astype(str).agg("/".join, axis=1)
    return pairs.assign(address=first, other=second)


def _model_order(address: str) -> tuple[int, int, int]:
    """Where a head comes in the model: by kind, layer and number."""
    kind, layer, head = address.split("/")
    return list(KIND_CODES).index(kind), int(layer), int(head)


def interaction_map(pairs: pd.DataFrame) -> Figure:
    """Heads × heads: the interaction of every pair on the screening sentences; frames mark the pairs that were measured
    and whose interval excludes 0."""
    heads = sorted({*pairs["address"], *pairs["other"]}, key=_model_order)
    size = len(heads)
    column = dict(zip(heads, range(size), strict=True))
    # Every pair is drawn twice, on both sides of the diagonal.
    both = pd.concat([pairs, pairs.rename(columns={"address": "other", "other": "address"})])
    significant = (both["low"] > 0) | (both["high"] < 0)
    cells = pd.DataFrame(
        {
            "address": both["address"],
            "other": both["other"],
            "row": both["address"].map(column),
            "column": both["other"].map(column),
            "value": (THOUSAND * both["screening_value"]).round(2),
            "significant": significant.astype(int),
            "measured": [_interval(row) for row in both.to_dict("records")],
        }
    )
    # The strongest hundredth of the pairs would leave all others pale.
    limit = round(THOUSAND * (float(pairs["screening_value"].abs().quantile(0.99)) or 1.0), 3)

    first_of_layers = []
    label = ""
    for at, address in enumerate(heads):
        if address.endswith("/0"):
            first_of_layers.append(at)
            label += f"datum.value == {at} ? '{_layer_code(address)}' : "

    ticks: charts.Spec = {
        "values": first_of_layers,
        "labelExpr": f"{label}''",
        "labelAngle": 0,
        "labelFontSize": 10,
    }
    x = axis("column:O", None, orient="top", domain=[*range(size)], **ticks)
    y = axis("row:O", None, domain=[*range(size)], **ticks)
    ink = charts.field(
        "value:Q",
        scale={
            "range": "diverging",
            "domain": [-limit, limit],
            "clamp": True,
            "interpolate": "rgb",
        },
        legend={
            "orient": "bottom",
            "title": None,
            "gradientLength": 220,
            "values": [-limit, 0, limit],
        },
    )
    tip = tips(
        "address:N|head", "other:N|with", "value:Q|on the screening sentences|+.1f", "measured:N"
    )
    marks = [
        charts.mark("rect", cells, x=x, y=y, color=ink, tooltip=tip),
        charts.mark(
            "rect", cells, {"style": "framed"}, "datum.significant == 1", x=x, y=y, tooltip=tip
        ),
    ]
    cell = max(6, min(18, 760 // size))
    chart = charts.layered(marks, cell * size, "Interaction of pairs of heads")
    return Figure(
        name="interactions",
        title="What two heads cost together, beyond what both cost alone",
        note="thousandths of a nat a token · above 0: they do the same work · below 0: they need each other"
        " · framed: measured, interval excludes 0",
        panels=[
            Panel(
                chart, "pairs", width=cell * size, narrowest=60 + 6 * size, widest=110 + cell * size
            )
        ],
    )


def _layer_code(address: str) -> str:
    """`e0`: encoder self-attention, layer 0."""
    kind, layer, _ = address.split("/")
    return f"{KIND_CODES[kind]}{layer}"


def _interval(row: dict[Any, Any]) -> str:
    """A measured interaction with its interval, in thousandths."""
    if pd.isna(row["value"]):
        return "not measured"
    value = signed(THOUSAND * row["value"], 1)
    low = signed(THOUSAND * row["low"], 1)
    high = signed(THOUSAND * row["high"], 1)
    return f"{value} [{low}, {high}]"


def head_pairs_table(pairs: pd.DataFrame) -> Table | None:
    """The pairs that were measured, the strongest first."""
    columns: Columns = {
        "head": lambda row: row["address"],
        "with": lambda row: row["other"],
        "interaction": lambda row: "\n".join(_interval(row).split(" ", 1)),
        "p": lambda row: probability(row["p"]),
        "both": lambda row: signed(THOUSAND * row["both"], 1),
        "first alone": lambda row: signed(THOUSAND * row["alone"], 1),
        "second alone": lambda row: signed(THOUSAND * row["other_alone"], 1),
        "of both": lambda row: (
            percent(row["value"] / row["both"]) if row["both"] > 0 < row["value"] else ""
        ),
    }
    rows = pairs[pairs["value"].notna()].to_dict("records")
    return table("The strongest pairs", rows, columns, _verdict)


def _verdict(row: dict[Any, Any]) -> str:
    return "same work" if row["low"] > 0 else "need each other" if row["high"] < 0 else ""


def backup_table(pairs: pd.DataFrame) -> Table | None:
    """Backup heads: their ablation score rises when another head is removed, for the pairs whose interval is above 0."""
    rows = []
    for row in pairs[pairs["low"] > 0].to_dict("records"):
        for removed, head, alone in (
            (row["address"], row["other"], row["other_alone"]),
            (row["other"], row["address"], row["alone"]),
        ):
            rows.append((removed, head, alone, alone + row["value"]))

    rows.sort(key=lambda row: row[2] - row[3])
    columns: Columns = {
        "without": lambda row: row[0],
        "backup head": lambda row: row[1],
        "its score before": lambda row: signed(THOUSAND * row[2], 1),
        "after": lambda row: signed(THOUSAND * row[3], 1),
        "times": lambda row: number(row[3] / row[2], 1.0) if row[2] > 0 else "",
    }
    return table("Backup heads", rows[:12], columns)
