"""The page of two runs: what differs in them, their numbers side by side, scores, roles and kept heads, and curves."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import pandas as pd

from headwise.decoding.bleu import translation_answers
from headwise.errors import HeadwiseError
from headwise.grid import HeadGrid, Scale
from headwise.heads import KINDS, Head, HeadMap
from headwise.qualities import BETTER, WORSE, Number
from headwise.report import charts, models, summary
from headwise.report.after_pruning import head_roles, rank, scatter, score_text, tested_rows
from headwise.report.charts import Figure, HeadChart, Panel, tips
from headwise.report.every_head import every_head_content, heads_of_run
from headwise.report.format import (
    HEADS_OF_KIND,
    KIND_NAMES,
    capital,
    count,
    interval_text,
    kinds_among,
    listed,
    measure_name,
    number,
    signed,
)
from headwise.report.kept_heads import by_layer
from headwise.report.page import Columns, section, table
from headwise.report.run_folder import HEAD_COLUMNS, FinishedRun, read_optional_table, read_run
from headwise.report.run_grid import pairs_figure
from headwise.report.score_maps import drawn_measures, scaled
from headwise.report.summary import plan_of_run
from headwise.roles.role import MATCHES, category, display_name
from headwise.statistics import rank_interval

LONGEST_RUN_NAME = 24  # letters of the name of a run


@dataclass(frozen=True)
class Comparison:
    """Two runs by what a reader calls them, `A · seed-1` and `B · seed-2`."""

    page: ClassVar[str] = "comparison"
    runs: Mapping[str, FinishedRun]
    matches: pd.DataFrame | None = None  # of `headwise match`: their heads, paired

    @property
    def name(self) -> str:
        """The two runs' names."""
        return listed(list(self.runs))

    @property
    def both(self) -> list[FinishedRun]:
        """The two runs."""
        return list(self.runs.values())

    @property
    def split(self) -> str:
        """The text that both runs report: test, or dev."""
        return min(run.split for run in self.both)

    @property
    def heads(self) -> list[Head]:
        """The heads that both runs have and that can be paired; none where `reason` says why."""
        return [] if self.reason else self._shared

    @property
    def reason(self) -> str:
        """Why a head of one run cannot be compared with the head of the same name in the other; empty where it can."""
        one, other = (set(heads_of_run(run)) for run in self.both)
        if not one or not other:
            return f"{listed([name for name, run in self.runs.items() if not heads_of_run(run)])} names no head yet."
        if not self._shared:
            return f"The two have other heads: {_counted(one)}, and {_counted(other)}."
        given = [isinstance(plan_of_run(run).get("model"), str) for run in self.both]
        if not self.same_model and not all(given):
            return (
                "Their models were trained apart, so that head 3 of a layer in one has nothing to do with head 3 of "
                "that layer in the other; headwise match pairs such heads, for --matches."
            )
        return ""

    @property
    def same_model(self) -> bool:
        """Whether both runs began with one model, as their signatures say."""
        known = []
        for run in self.both:
            known.append((run.facts.get("signature") or {}).get("model"))
        return known[0] is not None and known[0] == known[1]

    @property
    def _shared(self) -> list[Head]:
        """The heads of every kind that has the same heads in both."""
        one, other = (heads_of_run(run) for run in self.both)
        shared: list[Head] = []
        for kind in KINDS:
            heads = [head for head in one if head.kind == kind]
            if heads == [head for head in other if head.kind == kind]:
                shared += heads
        return shared


def _counted(heads: set[Head]) -> str:
    kinds = kinds_among(head.kind for head in heads)
    counts = Counter(head.kind for head in heads)
    return listed([f"{counts[kind]} of {KIND_NAMES[kind]}" for kind in kinds])


def read_comparison(one: Path, other: Path, matches: Path | None = None) -> Comparison:
    """Read two run folders, and the table in which `headwise match` paired their heads.

    Raises HeadwiseError for a grid, one folder twice, or runs with no kind of result in common (and as `read_run`).
    """
    for folder in (one, other):
        if (folder / "grid.json").is_file() and not (folder / "run.json").is_file():
            raise HeadwiseError(f"{folder} holds several runs: name one of the run folders in it.")

    if one.resolve() == other.resolve():
        raise HeadwiseError(
            f"A comparison needs two runs, but {one} and {other} are the same folder."
        )
    runs = read_run(one), read_run(other)
    measures = []
    for run in runs:
        measures.append(set() if run.heads is None else set(run.heads["measure"]))

    both = {
        "scores of heads": bool(measures[0] & measures[1]),
        "roles": all(run.roles is not None for run in runs),
        "evaluated models": all(not run.models.empty for run in runs),
    }
    if not any(both.values()):
        raise HeadwiseError(
            f"{one} and {other} have nothing to compare: none of {', '.join(both)} is in both."
        )
    names = [_shorten_name(run.name) for run in runs]
    if names[0] == names[1]:
        names = []
        for run in runs:
            names.append(_shorten_name(f"{run.folder.resolve().parent.name}/{run.name}"))
    named = {f"{letter} · {name}": run for letter, name, run in zip("AB", names, runs, strict=True)}
    return Comparison(named, None if matches is None else read_matches(matches))


def read_matches(file: Path) -> pd.DataFrame:
    """What `headwise match` wrote. Raises HeadwiseError where there is no such table."""
    table = read_optional_table(file, MATCHES)
    if table is None:
        raise HeadwiseError(
            f"{file} was given for the pairs of heads, but there is no such file: `headwise match` writes matches.csv."
        )
    return table


def _shorten_name(name: str) -> str:
    return name if len(name) <= LONGEST_RUN_NAME else f"{name[: LONGEST_RUN_NAME - 1]}…"


LEADS = (
    "What was saved",
    "What it cost",
    "How it was chosen",
    "Which score is faithful",
    "What the heads do",
)
HEADS_IN_A_CELL = 2  # heads that a table names


@section(
    "comparison_summary",
    question="What differs between two runs?",
    page="comparison",
    order=0,
    files=("run.json", "pruning.csv"),
)
def comparison_summary_section(found: Comparison) -> dict[str, Any]:
    """The headline numbers side by side, and which heads can be compared."""
    built = {}
    for name, run in found.runs.items():
        built[name] = summary.summary_section(run)

    known: dict[str, dict[tuple[str, str], str]] = {}
    rows: list[tuple[str, str]] = []
    for name, one in built.items():
        known[name] = {}
        for lead, group in one["groups"]:
            for label, text, _ in group:
                known[name][lead, label] = text
                if lead in LEADS and (lead, label) not in rows:
                    rows.append((lead, label))

    columns: Columns = {"number": lambda key: key[1]}
    for name in known:
        columns[name] = partial(lambda name, key: known[name].get(key, ""), name)

    other_texts = []
    for split in ("train", "dev", "test"):
        if len({_text_name(run, split) for run in found.both}) > 1:
            other_texts.append(split)
    return {
        "headline": difference(found) or "What differs between two runs",
        "runs": {name: one["headline"] for name, one in built.items()},
        "side": table("Side by side", rows, columns),
        "reason": found.reason,
        "same_model": found.same_model,
        "heads": len(found.heads),
        "texts": other_texts,
    }


def difference(found: Comparison) -> str:
    """What differs in one sentence with its interval: the quality of the chosen models, or else how alike both runs rank
    their heads; empty where neither is known."""
    one, other = found.both
    if one.chosen is None or other.chosen is None or one.quality != other.quality:
        return _ranked_alike(found)
    direct = on_same_sentences(found)
    if direct is not None:
        change, sentences = direct
        against = f" on the same {sentences} sentences"
    else:
        changes = difference_of_changes(found)
        if changes is None:
            return _ranked_alike(found)
        change, reference = changes
        against = f", each compared with {reference}"
    heads = []
    for run in found.both:
        assert run.chosen is not None
        name = models.heads_name(run.chosen["kinds"])
        heads.append(f"of {run.chosen['total']} {name}")
    assert change.value is not None
    quality = one.quality
    start = f"B − A: {signed(change.value)}{quality.unit} {quality.title} {interval_text(change.low, change.high)}{against}"
    sure = "" if change.verdict(quality) in (BETTER, WORSE) else ", not distinguishable"
    of_a = "" if heads[0] == heads[1] else f" {heads[0]}"
    return (
        f"{start}{sure}; A keeps {one.chosen['kept']}{of_a} and B {other.chosen['kept']} {heads[1]}"
    )


def on_same_sentences(found: Comparison) -> tuple[Number, int] | None:
    """BLEU of B's chosen model minus that of A's, and the number of sentences; None where they did not translate the same
    test sentences."""
    texts = []
    for run in found.both:
        chosen = run.chosen
        if chosen is None or not {"reference", "source", chosen["setting"]} <= set(
            run.translations
        ):
            return None
        names = ("source", "reference", chosen["setting"])
        texts.append([run.translations[name] for name in names])

    (sources, references, ours), (other_sources, other_references, theirs) = texts
    if sources != other_sources or references != other_references or not references:
        return None
    return translation_answers([ours, theirs], references).change(1), len(references)


def difference_of_changes(found: Comparison) -> tuple[Number, str] | None:
    """The change of quality by pruning in B minus that in A, with an interval, and what both changes are to; None where
    they were not measured against the same model.

    The interval is made of both runs' own as if they were independent (Zou and Donner 2008, section 2): with changes a, b
    and their ends l, u, from d − √((b − l_b)² + (u_a − a)²) to d + √((u_b − b)² + (a − l_a)²).
    """
    known = []
    for run in found.both:
        assert run.chosen is not None
        known.append((run.split, *run.leading_change(run.chosen)))

    (split, reference, one), (other_split, other_reference, other) = known
    if (split, reference) != (other_split, other_reference):
        return None
    a, low_a, high_a = one.value, one.low, one.high
    b, low_b, high_b = other.value, other.low, other.high
    if a is None or b is None:
        return None
    if low_a is None or high_a is None or low_b is None or high_b is None:
        return None
    low = b - a - math.hypot(b - low_b, high_a - a)
    high = b - a + math.hypot(high_b - b, a - low_a)
    return Number(b - a, low, high), models.OTHERS[reference]


def _ranked_alike(found: Comparison) -> str:
    """How alike both runs rank their heads, by the measure that leads."""
    for measure in drawn_measures(_measures(found)):
        both = paired_scores(found, measure)
        text = _rank_text(both)
        if text:
            return f"{capital(measure_name(measure))} ranks the {len(both)} heads of A and B with a correlation of {text}"
    return ""


def _text_name(run: FinishedRun, split: str) -> str:
    """The text of a split: its fingerprint, or what the plan calls it."""
    data: Mapping[str, Any] = plan_of_run(run).get("data") or {}
    return str(
        (run.facts.get("signature") or {}).get(split) or data.get(split) or data.get("embedded")
    )


@section(
    "comparison_settings",
    heading="Settings that differ",
    question="Which settings, texts and versions differ?",
    page="comparison",
    order=10,
    files=("plan.toml", "run.json"),
)
def build_settings(found: Comparison) -> dict[str, Any]:
    """Every setting that differs: of the plans, of signature and versions."""
    known = [_settings(run) for run in found.both]
    rows = []
    for key in dict.fromkeys([*known[0], *known[1]]):
        if known[0].get(key) != known[1].get(key):
            rows.append(key)

    columns: Columns = {"setting": str}
    for at, name in enumerate(found.runs):
        columns[name] = partial(lambda at, key: known[at].get(key, ""), at)

    same = len(set(known[0]) | set(known[1])) - len(rows)
    return {"settings": table("Settings that differ", rows, columns), "same": same}


def _settings(run: FinishedRun) -> dict[str, str]:
    parts = {
        "": plan_of_run(run),
        "signature": run.facts.get("signature"),
        "versions": run.facts.get("versions"),
    }
    settings: dict[str, str] = {}
    for name, part in parts.items():
        settings |= _flat_settings(part, name)
    return settings


def _flat_settings(value: Any, name: str) -> dict[str, str]:
    """Nested settings as names with dots; tables of a list by their own name, or their number."""
    if isinstance(value, list) and value and all(isinstance(one, Mapping) for one in value):
        value = {f"{one.get('name', at)}": one for at, one in enumerate(value)}
    if isinstance(value, Mapping):
        flat: dict[str, str] = {}
        for key, below in value.items():
            flat |= _flat_settings(below, f"{name}.{key}" if name else str(key))
        return flat
    return (
        {}
        if value is None
        else {name: value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)}
    )


@section(
    "comparison_scores",
    heading="How much each head matters in each",
    question="Do both runs rank heads alike?",
    page="comparison",
    story=True,
    order=30,
    files=("heads.csv",),
)
def build_scores(found: Comparison) -> dict[str, Any] | None:
    """Each score of both runs head by head; None where no head can be paired, or no score is in both."""
    pairs = {}
    for measure in _measures(found):
        both = paired_scores(found, measure)
        if len(both):
            pairs[measure] = both

    if not pairs:
        return None
    names = list(found.runs)
    rows = []
    for measure, both in pairs.items():
        for kind, part in both.groupby("kind", sort=False):
            rows.append((measure, str(kind), part))

    columns: Columns = {
        "score": lambda row: capital(measure_name(row[0])),
        "heads": lambda row: f"{len(row[2])} {HEADS_OF_KIND[row[1]]}",
        "rank correlation [95 %]": lambda row: _rank_text(row[2]),
        "furthest apart (A → B)": lambda row: _furthest(row[2]),
    }
    drawn = {}
    for measure in drawn_measures(pairs):
        drawn[measure] = pairs[measure]

    panels = []
    for measure, both in drawn.items():
        panels.append(scatter(measure, both, *names))

    kinds = kinds_among(pd.concat(drawn.values())["kind"]) if drawn else []
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


def _measures(found: Comparison) -> list[str]:
    """The measures of heads that both runs have."""
    measures: list[list[str]] = []
    for run in found.both:
        measures.append([] if run.heads is None else list(run.heads["measure"].unique()))
    return [measure for measure in measures[0] if measure in measures[1]]


def paired_scores(found: Comparison, measure: str) -> pd.DataFrame:
    """A score of every paired head: kind, layer, head, before (of the first run), after (of the second)."""
    parts = []
    for run in found.both:
        if run.heads is not None:
            parts.append(run.heads[run.heads["measure"] == measure])

    one, other = (part.dropna(subset=["value"])[[*HEAD_COLUMNS, "value"]] for part in parts)
    both = one.merge(other, on=HEAD_COLUMNS).rename(
        columns={"value_x": "before", "value_y": "after"}
    )
    paired = set(found.heads)
    return both[
        [Head(*row) in paired for row in both[HEAD_COLUMNS].itertuples(index=False, name=None)]
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
        gap[gap > 0].index[:HEADS_IN_A_CELL]
    ]
    return ", ".join(f"{r.kind}/{r.layer}/{r.head} ({r.one} → {r.other})" for r in far.itertuples())


def _maps(drawn: Mapping[str, pd.DataFrame], kind: str) -> Figure:
    panels = []
    for measure, both in drawn.items():
        rows = both[both["kind"] == kind]
        if len(rows):  # a run may have scored other kinds by this measure
            panels.append(_change_map(measure, rows))
    return Figure(
        f"score-differences-{kind}",
        f"{capital(KIND_NAMES[kind])}: scores of B minus those of A",
        "layers × heads · blue: more in B, orange: more in A",
        panels,
        columns=2 if len(panels) > 1 else 1,
    )


def _change_map(measure: str, both: pd.DataFrame) -> Panel:
    """How much more each head scores in the second run, by one measure."""
    change = both["after"] - both["before"]
    top = float(change.abs().max()) or 1.0
    power, times = scaled(top)
    unit = 10.0**power
    values = dict[Head, float]()
    facts = dict[Head, Any]()
    for row in both.to_dict("records"):
        head = Head(row["kind"], row["layer"], row["head"])
        values[head] = row["after"] - row["before"]
        text = _signed(number(values[head] * unit, top * unit))
        facts[head] = {"before": row["before"], "after": row["after"], "text": text}

    scale = Scale(-top, top, "diverging")
    grid = HeadGrid(HeadMap.smallest(values), measure, values=values, scale=scale, facts=facts)
    chart = HeadChart(grid, str(both["kind"].iloc[0]))
    ends = [-top, 0, top]
    legend = {"orient": "bottom", "title": None, "gradientLength": 180, "format": ".2~g"}
    colours = charts.colour("value:Q", ends, "diverging", values=ends, **legend)
    colours["scale"]["interpolate"] = "rgb"
    tip = tips("address:N|head", "before:Q|A|.3~g", "after:Q|B|.3~g", "text:N|B − A")
    dark = f"abs(datum.value) >= {0.6 * top}"
    marks = [chart.squares(colours, tip), *chart.texts(tip, dark, [("text:N", "", 0)])]
    name = capital(measure_name(measure))
    return chart.panel(marks, name + times, f"{name}, B minus A", row=34, wide=80)


def _signed(text: str) -> str:
    """A number with a plus where it is above 0."""
    return text if text.startswith("−") or not text.strip("0.") else f"+{text}"


@section(
    "comparison_roles",
    heading="Roles gained and lost",
    question="Which roles are in one run only?",
    page="comparison",
    story=True,
    order=40,
    files=("roles/",),
)
def build_roles(found: Comparison) -> dict[str, Any] | None:
    """Roles that only one of the runs has, head by head or else by category; None where a run has no roles."""
    one, other = (run.roles for run in found.both)
    if one is None or other is None:
        return None
    scored = [tested_rows(one), tested_rows(other)]
    names = list(found.runs)
    paired = set(found.heads)
    held = []
    for roles in (one, other):
        of_run: set[tuple[Head, str]] = set()
        for kind in KINDS:
            of_run.update(head_roles(roles, kind))
        held.append(of_run)

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
    changed = []
    for role in known:
        if (role in held[0]) != (role in held[1]):
            changed.append(role)

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


@section(
    "comparison_cost",
    heading="What fewer heads cost in each",
    question="How much quality does each run lose?",
    page="comparison",
    story=True,
    order=20,
    files=("pruning.csv",),
)
def build_cost(found: Comparison) -> dict[str, Any] | None:
    """The quality of both runs' models in one figure; None where a run has pruned nothing."""
    one, other = found.both
    if not one.pruned or not other.pruned:
        return None
    alike = one.quality == other.quality
    curves = {}
    for name, run in found.runs.items():
        curves[name] = run.models

    figure = pairs_figure(curves, found.split, "Both runs in one figure") if alike else None
    return {
        "curves": figure,
        "qualities": [run.quality.title for run in found.both],
        "alike": alike,
    }


@section(
    "comparison_heads",
    heading="Every head",
    question="What do both runs say about one head?",
    page="comparison",
    order=60,
    files=("heads.csv", "roles/", "layouts/"),
    template="every_head",
)
def build_heads(found: Comparison) -> dict[str, Any] | None:
    """Every head that can be paired, with what both runs say of it."""
    return every_head_content(found.runs, found.heads) if found.heads else None


WHICH = ("both", "neither", "only A", "only B")
Kept = tuple[
    models.ModelRow, models.ModelRow
]  # a model of each run: of the same kinds and as many heads


@section(
    "comparison_layouts",
    heading="Which heads stay in each",
    question="Do both runs keep the same heads?",
    page="comparison",
    story=True,
    order=50,
    files=("layouts/",),
)
def build_layouts(found: Comparison) -> dict[str, Any] | None:
    """Which heads stay where both runs keep as many; None where a run has pruned nothing."""
    if any(not run.layouts for run in found.both):
        return None
    pairs = equal_counts(found)
    one, other = found.both
    paired = bool(found.heads)
    columns: Columns = {
        "heads kept": lambda pair: (
            f"{pair[0]['kept']} of {pair[0]['total']} {models.heads_name(pair[0]['kinds'])}"
        ),
        **{
            name: partial(lambda at, pair: pair[at]["label"], at)
            for at, name in enumerate(found.runs)
        },
    }
    if paired:
        columns |= {
            "kept by both": lambda pair: str(
                len(_kept_heads(one, pair[0]) & _kept_heads(other, pair[1]))
            ),
            "expected of two random choices": lambda pair: (
                f"{pair[0]['kept'] ** 2 / pair[0]['total']:.1f}"
            ),
            "only A": lambda pair: listed(
                sorted(map(str, _kept_heads(one, pair[0]) - _kept_heads(other, pair[1])))
            ),
            "only B": lambda pair: listed(
                sorted(map(str, _kept_heads(other, pair[1]) - _kept_heads(one, pair[0])))
            ),
        }
    else:
        for at, name in enumerate(found.runs):
            columns[f"layer by layer, {name}"] = partial(
                lambda at, pair: _by_layer(found.both[at], pair[at]), at
            )
    drawn = next(
        (pair for pair in pairs if pair[0]["chosen"] or pair[1]["chosen"]),
        pairs[0] if pairs else None,
    )
    return {
        "layouts": table("Heads kept at equal counts", pairs, columns),
        "map": kept_map(found, drawn) if drawn and paired else None,
        "paired": paired,
    }


def equal_counts(found: Comparison) -> list[Kept]:
    """For every number of heads that both runs keep, a model of each: of the same setting, else gates first."""
    candidates = []
    for run in found.both:
        own = []
        for model in run.pruned:
            if model["setting"] in run.layouts and model["method"] != models.RANDOM_METHOD:
                own.append(model)
        candidates.append(own)

    one, other = candidates
    pairs: dict[Any, list[Kept]] = {}
    for model in one:
        for second in other:
            if (model["kinds"], model["kept"], model["total"]) == (
                second["kinds"],
                second["kept"],
                second["total"],
            ):
                pairs.setdefault((model["kinds"], -model["kept"]), []).append((model, second))

    order = lambda p: (p[0]["setting"] != p[1]["setting"], not p[0]["learned"], not p[1]["learned"])  # noqa: E731
    return [min(pairs[key], key=order) for key in sorted(pairs)]


def _kept_heads(run: FinishedRun, model: models.ModelRow) -> frozenset[Head]:
    return frozenset(
        head for head in run.layouts[model["setting"]].kept if head.kind in model["kinds"]
    )


def _by_layer(run: FinishedRun, model: models.ModelRow) -> str:
    mask = run.layouts[model["setting"]]
    kinds = run.pruned_kinds(model)
    texts = []
    for kind in kinds:
        texts.append(" · ".join(str(left) for left, _ in by_layer(mask, kind)))
    return "; ".join(texts)


def kept_map(found: Comparison, pair: Kept) -> Figure:
    """Layers × heads: kept by both models, by one of them, or by neither."""
    (one, other) = found.both
    (model, second) = pair
    kept = _kept_heads(one, model), _kept_heads(other, second)
    words = {
        (True, True): "both",
        (True, False): "only A",
        (False, True): "only B",
        (False, False): "neither",
    }
    heads = one.layouts[model["setting"]].heads
    groups = dict[Head, str]()
    facts = dict[Head, Any]()
    for head in heads:
        groups[head] = words[head in kept[0], head in kept[1]]
        facts[head] = {"letter": groups[head].removeprefix("only ") * ("only" in groups[head])}

    names = " and ".join(dict.fromkeys((model["label"], second["label"])))
    grid = HeadGrid(heads, names, groups=groups, facts=facts)
    return Figure(
        "kept-by-both",
        f"{model['kept']} of {model['total']} heads kept in each run ({names})",
        "layers × heads, coloured by who keeps the head",
        [_kept_panel(grid, kind) for kind in kinds_among(model["kinds"])],
    )


def _kept_panel(grid: HeadGrid, kind: str) -> Panel:
    chart = HeadChart(grid, kind)
    legend: charts.Spec = {"orient": "bottom", "title": None, "columns": 4}
    legend |= {"symbolType": "square", "symbolOpacity": 1}
    colours = charts.colour("group:N", WHICH, **legend)
    tip = tips("address:N|head", "group:N|kept by")
    faint = charts.when("datum.group == 'neither'", 0.25, 1)
    marks = [chart.squares(colours, tip, opacity=faint, cornerRadius=5)]
    marks += chart.texts(tip, "true", [("letter:N", "", 0)])
    description = f"Heads kept in both runs, {KIND_NAMES[kind]}"
    return chart.panel(marks, KIND_NAMES[kind], description, row=40, narrow=22, wide=50, beyond=60)
