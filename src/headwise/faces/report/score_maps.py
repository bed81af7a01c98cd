"""How much each head matters: maps of scores, heads switched off one by one, relevance that was lost."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Any

import pandas as pd

import headwise.importance.measures as measure_table
from headwise.core.grid import HeadGrid
from headwise.core.heads import KINDS, Head, HeadMap, head_of
from headwise.core.theme import Scale
from headwise.faces.report import charts, kept_heads
from headwise.faces.report.charts import MOST_HEADS_WITH_WORDS, Figure, HeadChart, Panel, tips
from headwise.faces.report.format import (
    KIND_NAMES,
    NONE,
    capital,
    estimate,
    interval_text,
    listed,
    measure_name,
    number,
    percent,
    signed,
)
from headwise.faces.report.head_rows import heads_in, of_kind, of_measure, values_by_head
from headwise.faces.report.page import Columns, PageTable, section, table
from headwise.faces.report.run_folder import RunContents

TURN = 0.55  # the share of the heat scale from which text on it needs the other colour
BESIDE = 12  # heads a layer, up to which two maps stand side by side
MEASURE_FAMILIES = ("lrp", "confidence", "gradient", "ablation")  # of measures, each drawn once
FAMILY_LEADERS = (
    "lrp.ding",
    "gradient",
    "ablation.zero",
)  # the measures that stand for their families
RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
RELEVANCE = {
    "started": "went in",
    "arrived": "arrived at the embeddings",
    "bias": "biases",
    "norm": "norms",
    "softmax": "softmax",
    "other": "other",
}
BLEU_MEASURE = "ablation.bleu"
LOSS_MEASURE = "ablation.zero"
ALONE = "ablation.all-but-one"
UNTRAINED_NOTE = " · last column: untrained models; dashed: a head within their range"
FALSE_RATE = 0.05  # how often a 95 % interval excludes 0 when nothing differs

Layer = tuple[str, int, str]  # kind, layer, measure


@dataclass(frozen=True)
class ControlRange:
    """One measure of the heads of a layer in all untrained models, which are randomly initialised controls: mean, lowest,
    highest, standard deviation.
    """

    mean: float
    low: float
    high: float
    spread: float

    def holds(self, value: float) -> bool:
        """Whether a head with this value is like one of an untrained model."""
        return self.low <= value <= self.high

    def effect(self, value: float) -> float:
        """How far a value is above the mean of untrained heads, in their standard deviations (Glass's Δ)."""
        # pandas gives NaN as the deviation of a single head, which is not above 0 either.
        return (value - self.mean) / self.spread if self.spread > 0 else float("nan")

    def text(self, scale: float) -> str:
        """`0.12 to 0.15`."""
        return f"{number(self.low, scale, 1)} to {number(self.high, scale, 1)}"


def control_ranges(run: RunContents) -> Mapping[Layer, ControlRange]:
    """The range of every layer and measure that untrained models were scored by; empty without any."""
    groups = run.untrained.dropna(subset=["value"]).groupby(["kind", "layer", "measure"])["value"]
    found: pd.DataFrame = groups.agg(["mean", "min", "max", "std"])
    ranges: dict[Layer, ControlRange] = {}
    for key, row in zip(found.index, found.to_numpy(), strict=True):
        ranges[key] = ControlRange(*map(float, row))
    return ranges


def untrained_models(run: RunContents) -> int:
    """How many untrained models there are."""
    return int(run.untrained["seed"].nunique())


def untrained_table(run: RunContents) -> PageTable | None:
    """Every measure and kind compared with untrained models: how many heads are outside their range, and how far."""
    known = control_ranges(run)
    pairs: dict[tuple[str, str], list[tuple[float, ControlRange]]] = {}
    for row in run.heads.dropna(subset=["value"]).to_dict("records"):
        control = known.get((row["kind"], row["layer"], row["measure"]))
        if control is not None:
            pairs.setdefault((row["measure"], row["kind"]), []).append((row["value"], control))

    columns: Columns = {
        "score": lambda row: measure_name(row[0][0]),
        "heads": lambda row: KIND_NAMES[row[0][1]],
        "above": lambda row: f"{sum(v > b.high for v, b in row[1])} of {len(row[1])}",
        "within": lambda row: str(sum(b.holds(v) for v, b in row[1])),
        "below": lambda row: str(sum(v < b.low for v, b in row[1])),
        "median effect": lambda row: signed(median(b.effect(v) for v, b in row[1]), 1),
    }
    return table(
        "Compared with untrained models", pairs.items(), columns, code=lambda row: row[0][0]
    )


@section(
    "scores",
    heading="How much each head matters",
    question="Which heads matter, by each measure?",
    order=25,
    files=("heads.csv", "lrp.csv", "untrained.csv"),
    papers={"one-head-off-*": "Michel table 1", "With one head alone": "Michel table 2"},
    brought_by="scoring.measures",
)
def score_maps_section(run: RunContents) -> dict[str, Any] | None:
    """Maps of scores, and tables of relevance and of heads alone; left out without scores."""
    if run.heads.empty:
        return None
    return {
        "maps": score_maps(run),
        "untrained": untrained_table(run),
        "untrained_models": untrained_models(run),
        "conserved": conservation_table(run),
        "alone": alone_table(run),
    }


def drawn_measures(names: Iterable[str]) -> list[str]:
    """The measures that are drawn, in their order: one of each family, the paper's own where it is there; then those
    that users declared.
    """
    families: dict[str, list[str]] = {}
    for name in sorted(set(names)):
        families.setdefault(name.split(".")[0], []).append(name)

    drawn = []
    for family in MEASURE_FAMILIES:
        members = families.pop(family, [])
        # More dots in a name make a variant: lrp.ding.signed after lrp.ding.
        members.sort(key=lambda name: (name not in FAMILY_LEADERS, name.count("."), name))
        drawn += members[:1]
    # Where a report is made again, the script that declared a measure may not be there: so no table has its name.
    for members in families.values():
        for name in members:
            if measure_table.facts(name).name not in measure_table.measure.own:
                drawn.append(name)
    return drawn


def measures_with_values(run: RunContents, kind: str) -> set[str]:
    """The measures by which heads of a kind were scored."""
    return set(of_kind(run.heads, kind).dropna(subset=["value"])["measure"])


def measures_of(run: RunContents, kind: str) -> list[str]:
    """The measures of a kind of heads that are drawn. The first orders the heads: relevance, else the most faithful one."""
    names = measures_with_values(run, kind)
    drawn = drawn_measures(names)
    # The map on the first screen is coloured by it: both order heads alike.
    best = kept_heads.map_measure(run)
    if drawn and not drawn[0].startswith("lrp") and best in names:
        drawn = list(dict.fromkeys([best, *drawn]))
    return drawn


def leading_measures(run: RunContents, kind: str) -> list[str]:
    """The measures of the figure with functions: the first one that is drawn, and confidence."""
    drawn = measures_of(run, kind)
    return drawn[:1] + [measure for measure in drawn[1:] if measure == "confidence"]


def places_of_heads(run: RunContents, kind: str) -> dict[Head, int]:
    """The place of each head in its layer, from 0, the same in all maps: the highest of the first measure comes first
    (Voita et al. 2019, figure 1), heads without a value last; without scores, heads by their numbers."""
    heads = heads_in(pd.concat([of_kind(run.heads, kind), of_kind(run.roles.labels, kind)]))
    drawn = measures_of(run, kind)
    values = values_by_head(run, drawn[0]) if drawn else {}
    # −(−∞) = ∞: those without a value come last.
    heads.sort(key=lambda head: (head.layer, -values.get(head, -math.inf), head.head))
    # Backwards, so that the first place of a layer is written last and stays.
    first = {head.layer: at for at, head in reversed(list(enumerate(heads)))}
    return {head: at - first[head.layer] for at, head in enumerate(heads)}


def score_maps(run: RunContents) -> list[Figure]:
    """For each kind of heads the maps of the measures that do not stand with the functions of heads, and those of heads
    switched off one by one (Michel et al. 2019, table 1)."""
    figures: list[Figure] = []
    for kind in KIND_NAMES:
        drawn = measures_of(run, kind)
        if not drawn:
            continue
        there = measures_with_values(run, kind)
        off = [name for name in (BLEU_MEASURE, LOSS_MEASURE) if name in there]
        others = [name for name in drawn if name not in (*leading_measures(run, kind), *off)]
        lead = measure_name(drawn[0])
        for name, measures in (("scores", others), ("one-head-off", off)):
            facts = f"In each layer the head of highest {lead} comes first."
            if measures == off:
                facts += "".join(
                    _off_sentence(of_kind(of_measure(run.heads, one), kind), one) for one in off
                )
            if measures:
                figures.append(
                    Figure(
                        name=f"{name}-{kind}",
                        title=f"{capital(KIND_NAMES[kind])}: {listed([*map(measure_name, measures)])}",
                        note="layers × heads" + UNTRAINED_NOTE * bool(control_ranges(run)),
                        panels=score_panels(run, kind, measures),
                        columns=panel_columns(run, kind, len(measures)),
                        facts=facts,
                    )
                )
    return figures


def is_sure(row: Mapping[Any, Any]) -> bool:
    """Whether the interval of a change excludes 0."""
    return bool(row["low"] > 0 or row["high"] < 0)


def _off_sentence(rows: pd.DataFrame, measure: str) -> str:
    """How many heads significantly matter when they alone are switched off, and how many would at random."""
    rows = rows.dropna(subset=["low", "high"])
    if rows.empty:
        return " Too few sentences were read for intervals."
    sure = rows[[is_sure(row) for row in rows.to_dict("records")]]
    better = int((sure["value"] < 0).sum())
    name = capital(measure_name(measure))
    by_chance = FALSE_RATE * len(rows)
    about = f"about {by_chance:.0f}" if by_chance >= 1 else "fewer than one"
    return (
        f" {name}: {len(sure)} of {len(rows)} intervals exclude 0, {better} of them below 0: better without the head. "
        f"If no head mattered, {about} would."
    )


def score_panels(run: RunContents, kind: str, measures: list[str]) -> list[Panel]:
    """A map for each of some measures of a kind of heads."""
    return [_score_panel(run, kind, measure) for measure in measures]


def panel_columns(run: RunContents, kind: str, panels: int) -> int:
    """How many maps of a kind stand side by side."""
    # The untrained heads need room behind the others.
    room = BESIDE - 2 * bool(control_ranges(run))
    return 2 if panels > 1 and max(places_of_heads(run, kind).values()) < room else 1


def _score_panel(run: RunContents, kind: str, measure: str) -> Panel:
    """One measure of one kind of heads, and the mean of untrained heads of each layer behind them."""
    rows = of_kind(of_measure(run.heads, measure), kind).to_dict("records")
    places = places_of_heads(run, kind)
    known = control_ranges(run)
    scale = Scale.of(row["value"] for row in rows)
    top = scale.high
    power, times = scaled(top)
    unit = 10.0**power
    exact = partial(number, scale=top, more=1)

    def short(value: float) -> str:
        return number(value * unit, top * unit)

    values = dict[Head, float]()
    facts = dict[Head, Any]()
    like = set[Head]()
    for row in rows:
        head = head_of(row)
        control = known.get((kind, head.layer, measure))
        # Only for an ablation is 0 what a head without any effect has.
        star = "*" if measure.startswith("ablation") and is_sure(row) else ""
        values[head] = row["value"]
        facts[head] = {
            "label": f"h{head.head}",
            "text": short(row["value"]) + star,
            "exact": exact(row["value"]),
            "interval": interval_text(row["low"], row["high"], exact) or "not measured",
            "low": row["low"],
            "high": row["high"],
            "n": row["n"],
            "untrained": control and control.text(top),
        }
        if control and control.holds(row["value"]):
            like.add(head)

    behind = max(places.values()) + 1
    if behind > MOST_HEADS_WITH_WORDS:
        behind += 1  # small cells need a gap between heads and the untrained
    untrained = []
    for layer in sorted({head.layer for head in values}):
        if control := known.get((kind, layer, measure)):
            cell = {"layer": layer, "column": behind, "label": "mean", "value": control.mean}
            said = {"text": short(control.mean), "exact": exact(control.mean)}
            untrained.append({**cell, **said, "untrained": control.text(top)})

    grid = HeadGrid(
        HeadMap.smallest(values),
        measure,
        values=values,
        scale=scale,
        framed=frozenset(like),
        columns=places,
        facts=facts,
    )
    chart = HeadChart(grid, kind, untrained, run.attention(kind))
    tip = tips("address:N|head", f"exact:N|{measure_name(measure)}")
    tip += tips("interval:N|95 % interval", "n:Q|measured on|,")
    tip += tips("untrained:N|untrained heads") * bool(untrained)

    # Relevance is a share of its layer: an equal share is marked, on the scale where there is room.
    sizes = set(pd.Series([head.layer for head in values]).value_counts())
    share = 1 / sizes.pop() if measure.startswith("lrp") and len(sizes) == 1 else 0.0
    labels = {end: short(end) if end else "0" for end in scale.ends}
    if 0.1 * top < share < 0.85 * top:
        labels[share] = f"1/{round(1 / share)}"
    legend: charts.Spec = {"orient": "bottom", "title": None, "gradientLength": 180}
    legend["values"] = sorted(labels)
    heat = charts.heat(
        "value:Q", scale.ends, scale.colours, **legend, labelExpr=charts.label_of(labels)
    )
    marks = [chart.squares(heat, tip)]
    if like:
        frame = {"style": "framed", "strokeDash": [2, 2], "strokeWidth": 1}
        marks.append(chart.squares(None, tip, "datum.framed == 1", **frame))
    lines = [("text:N", "", -5), ("label:N", "small-", 11)]
    marks += chart.texts(tip, f"abs(datum.value) >= {TURN * top}", lines)
    if share and measure == measures_of(run, kind)[0]:
        marks.append(_edge(chart, share))
    title = capital(measure_name(measure)) + times
    caption = measure_table.facts(measure).caption.replace("per token", f"per {run.quality.each}")
    return chart.panel(marks, f"{title}: {caption}" if caption else title, measure)


def scaled(top: float) -> tuple[int, str]:
    """The power of ten that values up to `top` are multiplied by to be short, and what a title then ends with."""
    # Thousands, as engineers count: 0.0004 is 0.4 × 10⁻³.
    power = max(0, 3 * math.ceil((-1 - math.floor(math.log10(top) + 1e-9)) / 3))
    return power, f" × 10{str(-power).translate(RAISED)}" if power else ""


def _edge(chart: HeadChart, share: float) -> charts.Spec:
    """An upright line in each layer behind the last head that has at least an equal share."""
    # Heads stand by their relevance, so these are the first ones of each layer.
    above = chart.heads[chart.heads["value"] >= share]
    ends = above.groupby("layer")["column"].max().reset_index()
    look = {"style": "limit", "opacity": 1, "orient": "vertical", "thickness": 2.5, "xOffset": 1.5}
    # The height of a row, as in HeadChart.panel.
    look["size"] = 44 if chart.fits_words else 22
    return charts.mark("tick", ends, look, x={**chart.x, "bandPosition": 1}, y=chart.y)


def conservation_table(run: RunContents) -> PageTable | None:
    """Which relevance arrived and which was absorbed on the way; None without lrp.csv."""
    parts = run.lrp.dropna(subset=["value"]).groupby(["measure", "mode"], sort=False)
    rows = []
    for (measure, mode), part in parts:
        rows.append((measure, mode, part.set_index("what")["value"]))

    def went(what: str, row: Any) -> str:
        return percent(row[2][what], 1).replace("-", "−") if what in row[2] else NONE

    columns: Columns = {"rule": lambda row: f"{measure_name(str(row[0]))}, {row[1]}"}
    columns |= {title: partial(went, what) for what, title in RELEVANCE.items()}
    return table("Where relevance went", rows, columns, code=lambda row: str(row[0]))


def alone_table(run: RunContents) -> PageTable | None:
    """For every layer of several heads the head that does best alone, and what the loss gains (Michel et al. 2019,
    table 2); None without.
    """
    found = of_measure(run.heads, ALONE).sort_values("value", kind="stable")
    # In a layer of one head, leaving one alone removes nothing.
    found = found[found.groupby(["kind", "layer"])["head"].transform("size") > 1]
    best: dict[int, dict[str, Any]] = {}
    for row in found.to_dict("records"):
        best.setdefault(row["layer"], {}).setdefault(row["kind"], row)

    def alone(kind: str, layer: int) -> str:
        if (row := best[layer].get(kind)) is None:
            return NONE
        # The interval reaches 0: no loss that is sure.
        enough = " · one head is enough" if row["low"] <= 0 else ""
        return f"{estimate(row, partial(signed, digits=3))}\n{head_of(row)}{enough}"

    columns: Columns = {"layer": str, **{KIND_NAMES[kind]: partial(alone, kind) for kind in KINDS}}
    return table("With one head alone", sorted(best), columns)
