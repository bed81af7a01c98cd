"""The page of two runs: what differs in them, their numbers side by side, scores, roles and kept heads, and curves."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from functools import partial
from typing import Any

import pandas as pd

from headwise.grid import HeadGrid, Scale
from headwise.heads import KINDS, Head, HeadMap
from headwise.report import charts
from headwise.report.card import plan_of
from headwise.report.charts import tips
from headwise.report.difference import Difference
from headwise.report.parts import Columns, Figure, HeadChart, Panel, Section, table
from headwise.report.run import Run
from headwise.report.sections import difference_layouts as kept
from headwise.report.sections import every_head, opening
from headwise.report.sections.drift import rank, roles_of, scatter, score_text, scores_of
from headwise.report.sections.grid import pairs_figure
from headwise.report.sections.scores import drawn_measures, scaled
from headwise.report.words import (
    HEADS_OF_KIND,
    KIND_NAMES,
    capital,
    count,
    measure_name,
    number,
    signed,
)
from headwise.roles.role import category, display_name
from headwise.statistics import rank_interval

LEADS = (
    "What was saved",
    "What it cost",
    "How it was chosen",
    "Which score to believe",
    "What the heads do",
)
FURTHEST = 2  # heads that a table names


def build_opening(found: Difference) -> dict[str, Any]:
    """The headline numbers side by side, and which heads can be compared."""
    built = {name: opening.build(run) for name, run in found.runs.items()}
    known = {
        name: {(lead, label): text for lead, group in one["groups"] for label, text, _ in group}
        for name, one in built.items()
    }
    rows = [
        key
        for key in dict.fromkeys(key for one in known.values() for key in one)
        if key[0] in LEADS
    ]
    columns: Columns = {"number": lambda key: key[1]}
    columns |= {name: partial(lambda name, key: known[name].get(key, ""), name) for name in known}
    return {
        "headline": "What differs between two runs",
        "runs": {name: one["headline"] for name, one in built.items()},
        "side": table("Side by side", rows, columns),
        "reason": found.reason,
        "same_model": found.same_model,
        "heads": len(found.heads),
        "texts": [
            split
            for split in ("train", "dev", "test")
            if len({_text(run, split) for run in found.both}) > 1
        ],
    }


def _text(run: Run, split: str) -> str:
    """The text of a split: its fingerprint, or what the plan calls it."""
    data: Mapping[str, Any] = plan_of(run).get("data") or {}
    return str(
        (run.facts.get("signature") or {}).get(split) or data.get(split) or data.get("embedded")
    )


def build_plan(found: Difference) -> dict[str, Any]:
    """Every setting that differs: of the plans, of signature and versions."""
    known = [_settings(run) for run in found.both]
    rows = [
        key
        for key in dict.fromkeys([*known[0], *known[1]])
        if known[0].get(key) != known[1].get(key)
    ]
    columns: Columns = {"setting": str}
    columns |= {
        name: partial(lambda at, key: known[at].get(key, ""), at)
        for at, name in enumerate(found.runs)
    }
    same = len(set(known[0]) | set(known[1])) - len(rows)
    return {"settings": table("Settings that differ", rows, columns), "same": same}


def _settings(run: Run) -> dict[str, str]:
    parts = {
        "": plan_of(run),
        "signature": run.facts.get("signature"),
        "versions": run.facts.get("versions"),
    }
    return {key: text for name, part in parts.items() for key, text in _flat(part, name).items()}


def _flat(value: Any, name: str) -> dict[str, str]:
    """Nested settings as names with dots; tables of a list by their own name, or their number."""
    if isinstance(value, list) and value and all(isinstance(one, Mapping) for one in value):
        value = {f"{one.get('name', at)}": one for at, one in enumerate(value)}
    if isinstance(value, Mapping):
        parts = (
            _flat(below, f"{name}.{key}" if name else str(key)) for key, below in value.items()
        )
        return {key: text for part in parts for key, text in part.items()}
    return (
        {}
        if value is None
        else {name: value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)}
    )


def build_scores(found: Difference) -> dict[str, Any] | None:
    """Each score of both runs head by head; None where no head can be paired, or no score is in both."""
    pairs = {measure: joined(found, measure) for measure in _measures(found)}
    pairs = {measure: table for measure, table in pairs.items() if len(table)}
    if not pairs:
        return None
    names = list(found.runs)
    rows = [
        (measure, str(kind), part)
        for measure, both in pairs.items()
        for kind, part in both.groupby("kind", sort=False)
    ]
    columns: Columns = {
        "score": lambda row: capital(measure_name(row[0])),
        "heads": lambda row: f"{len(row[2])} {HEADS_OF_KIND[row[1]]}",
        "rank correlation [95 %]": lambda row: _rank_text(row[2]),
        "furthest apart (A → B)": lambda row: _furthest(row[2]),
    }
    drawn = {measure: pairs[measure] for measure in drawn_measures(pairs)}
    panels = [scatter(measure, both, *names) for measure, both in drawn.items()]
    kinds = [kind for kind in KINDS if any(kind in set(both["kind"]) for both in drawn.values())]
    return {
        "points": Figure(
            "scores-of-both",
            "Each head's score in both runs",
            "a point is a head · on the line: the same in both",
            panels,
            columns=min(3, len(panels)),
        ),
        "maps": [_maps(drawn, kind) for kind in kinds],
        "ranks": table("Do both runs rank heads alike?", rows, columns, code=lambda row: row[0]),
    }


def _measures(found: Difference) -> list[str]:
    """The measures of heads that both runs have."""
    one, other = (
        [] if run.heads is None else list(run.heads["measure"].unique()) for run in found.both
    )
    return [measure for measure in one if measure in other]


def joined(found: Difference, measure: str) -> pd.DataFrame:
    """A score of every paired head: kind, layer, head, before (of the first run), after (of the second)."""
    parts = [
        run.heads[run.heads["measure"] == measure] for run in found.both if run.heads is not None
    ]
    one, other = (part.dropna(subset=["value"])[[*every_head.HEAD, "value"]] for part in parts)
    both = one.merge(other, on=every_head.HEAD).rename(
        columns={"value_x": "before", "value_y": "after"}
    )
    paired = set(found.heads)
    return both[
        [Head(*row) in paired for row in both[every_head.HEAD].itertuples(index=False, name=None)]
    ]


def _rank_text(both: pd.DataFrame) -> str:
    value = rank(both)
    if math.isnan(value):
        return ""
    low, high = rank_interval(value, len(both))
    return signed(value) + ("" if math.isnan(low) else f" [{signed(low)}, {signed(high)}]")


def _furthest(both: pd.DataFrame) -> str:
    """The heads whose places among all heads differ most."""
    places = both[["before", "after"]].rank(ascending=False, method="first").astype(int)
    gap = (places["before"] - places["after"]).abs().sort_values(ascending=False, kind="stable")
    far = both.assign(one=places["before"], other=places["after"]).loc[
        gap[gap > 0].index[:FURTHEST]
    ]
    return ", ".join(f"{r.kind}/{r.layer}/{r.head} ({r.one} → {r.other})" for r in far.itertuples())


def _maps(drawn: Mapping[str, pd.DataFrame], kind: str) -> Figure:
    panels = [_map(measure, both[both["kind"] == kind]) for measure, both in drawn.items()]
    return Figure(
        f"score-differences-{kind}",
        f"{capital(KIND_NAMES[kind])}: scores of B minus those of A",
        "layers × heads · blue: more in B, orange: more in A",
        panels,
        columns=2 if len(panels) > 1 else 1,
    )


def _map(measure: str, both: pd.DataFrame) -> Panel:
    """How much more each head scores in the second run, by one measure."""
    change = both["after"] - both["before"]
    top = float(change.abs().max()) or 1.0
    power, times = scaled(top)
    unit = 10.0**power
    values, facts = dict[Head, float](), dict[Head, Any]()
    for row in both.itertuples():
        head = Head(row.kind, row.layer, row.head)
        values[head] = row.after - row.before
        text = _signed(number(values[head] * unit, top * unit))
        facts[head] = {"before": row.before, "after": row.after, "text": text}
    scale = Scale(-top, top, "diverging")
    grid = HeadGrid(HeadMap.smallest(values), measure, values=values, scale=scale, facts=facts)
    chart = HeadChart(grid, str(both["kind"].iloc[0]))
    ends = [-top, 0, top]
    legend = {"orient": "bottom", "title": None, "gradientLength": 180, "format": ".2~g"}
    ink = charts.colour("value:Q", ends, "diverging", values=ends, **legend)
    ink["scale"]["interpolate"] = "rgb"
    tip = tips("address:N|head", "before:Q|A|.3~g", "after:Q|B|.3~g", "text:N|B − A")
    dark = f"abs(datum.value) >= {0.6 * top}"
    marks = [chart.squares(ink, tip), *chart.texts(tip, dark, [("text:N", "", 0)])]
    name = capital(measure_name(measure))
    return chart.panel(marks, name + times, f"{name}, B minus A", row=34, wide=80)


def _signed(text: str) -> str:
    """A number with a plus where it is above 0."""
    return text if text.startswith("−") or not text.strip("0.") else f"+{text}"


def build_roles(found: Difference) -> dict[str, Any] | None:
    """Roles that only one of the runs has, head by head or else by category; None where a run has no roles."""
    one, other = (run.roles for run in found.both)
    if one is None or other is None:
        return None
    scored, names, paired = [scores_of(one), scores_of(other)], list(found.runs), set(found.heads)
    held = [{role for kind in KINDS for role in roles_of(roles, kind)} for roles in (one, other)]
    known = sorted(role for role in held[0] | held[1] if role[0] in paired)
    columns: Columns = {
        "head": lambda role: str(role[0]),
        "role": lambda role: display_name(role[1]),
        **{
            name: partial(lambda at, role: score_text(scored[at].get(role)), at)
            for at, name in enumerate(names)
        },
        "role in": lambda role: "only A" if role in held[0] else "only B",
    }
    changed = [role for role in known if (role in held[0]) != (role in held[1])]
    categories = list(
        dict.fromkeys(
            category(measure) for _, measure in sorted(held[0] | held[1], key=lambda r: r[1])
        )
    )
    counts: Columns = {"category": capital}
    for at, name in enumerate(names):
        counts[name] = partial(
            lambda at, one: count(len({h for h, m in held[at] if category(m) == one}), "head"), at
        )
    return {
        "changed": table(
            "Roles that only one run has", changed, columns, code=lambda role: role[1]
        ),
        "kept": len(known) - len(changed),
        "counts": table("Heads of each category of role", categories, counts),
        "paired": bool(paired),
    }


def build_curves(found: Difference) -> dict[str, Any] | None:
    """The quality of both runs' models in one figure; None where a run has pruned nothing."""
    one, other = found.both
    if not one.pruned or not other.pruned:
        return None
    alike = one.quality == other.quality
    curves = {name: run.models for name, run in found.runs.items()}
    figure = pairs_figure(curves, found.part, "Both runs in one figure") if alike else None
    return {"curves": figure, "qualities": [run.quality.name for run in found.both], "alike": alike}


def build_heads(found: Difference) -> dict[str, Any] | None:
    """Every head that can be paired, with what both runs say of it."""
    return every_head.content(found.runs, found.heads) if found.heads else None


SECTIONS = (
    Section("difference_opening", "", "", build_opening),
    Section("difference_plan", "Settings", "What was asked of each", build_plan),
    Section("difference_curves", "Cost", "What fewer heads cost in each", build_curves),
    Section("difference_scores", "Scores", "How much each head matters in each", build_scores),
    Section("difference_roles", "Roles", "Roles gained and lost", build_roles),
    Section("difference_layouts", "Kept heads", "Which heads stay in each", kept.build),
    Section("every_head", "Every head", "Every head", build_heads),
)
