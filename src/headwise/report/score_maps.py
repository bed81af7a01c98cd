"""How much each head matters: a map of every kind of score, relevance that was lost, heads switched off one by one."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from statistics import fmean, median
from typing import Any

import pandas as pd

import headwise.importance.measures as measure_table
from headwise.grid import HeadGrid, Scale
from headwise.heads import KINDS, Head, HeadMap
from headwise.qualities import BLEU
from headwise.report import charts, kept_heads
from headwise.report.charts import MOST_HEADS_WITH_WORDS, Figure, HeadChart, Panel, tips
from headwise.report.format import (
    KIND_NAMES,
    NONE,
    capital,
    kinds_among,
    listed,
    measure_name,
    number,
    percent,
    signed,
)
from headwise.report.page import Columns, Table, section, table
from headwise.report.run_folder import FinishedRun

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
RANKS_APART = 0.5  # of a layer's ranks: from here on two scores disagree about a head
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
        return (value - self.mean) / self.spread if self.spread > 0 else float("nan")

    def text(self, scale: float) -> str:
        """`0.12 to 0.15`."""
        return f"{number(self.low, scale, 1)} to {number(self.high, scale, 1)}"


def control_ranges(run: FinishedRun) -> Mapping[Layer, ControlRange]:
    """The range of every layer and measure that untrained models were scored by; empty without any."""
    if run.untrained is None:
        return {}
    groups = run.untrained.dropna(subset=["value"]).groupby(["kind", "layer", "measure"])["value"]
    found: pd.DataFrame = groups.agg(["mean", "min", "max", "std"])
    ranges: dict[Layer, ControlRange] = {}
    for key, row in zip(found.index, found.to_numpy(), strict=True):
        ranges[key] = ControlRange(*map(float, row))
    return ranges


def untrained_models(run: FinishedRun) -> int:
    """How many untrained models there are."""
    return 0 if run.untrained is None else int(run.untrained["seed"].nunique())


def untrained_table(run: FinishedRun) -> Table | None:
    """Every measure and kind compared with untrained models: how many heads are outside their range, and how far."""
    known = control_ranges(run)
    if run.heads is None or not known:
        return None
    rows = []
    for (measure, kind), part in run.heads.dropna(subset=["value"]).groupby(
        ["measure", "kind"], sort=False
    ):
        both = []
        for row in part.to_dict("records"):
            control = known.get((str(kind), row["layer"], str(measure)))
            if control is not None:
                both.append((row["value"], control))

        if both:
            rows.append((str(measure), str(kind), both))

    columns: Columns = {
        "score": lambda row: measure_name(row[0]),
        "heads": lambda row: KIND_NAMES[row[1]],
        "mean": lambda row: number(fmean(v for v, _ in row[2]), _scale(row), 1),
        "untrained": lambda row: number(fmean(b.mean for _, b in row[2]), _scale(row), 1),
        "above": lambda row: f"{sum(v > b.high for v, b in row[2])} of {len(row[2])}",
        "within": lambda row: str(sum(b.holds(v) for v, b in row[2])),
        "below": lambda row: str(sum(v < b.low for v, b in row[2])),
        "median effect": lambda row: signed(median(b.effect(v) for v, b in row[2]), 1),
    }
    return table("Compared with untrained models", rows, columns, code=lambda row: row[0])


def _scale(row: tuple[str, str, list[tuple[float, ControlRange]]]) -> float:
    return max(abs(value) for value, _ in row[2])


@section(
    "scores",
    heading="How much each head matters",
    question="Which heads matter, by each measure?",
    order=25,
    files=("heads.csv", "lrp.csv", "untrained.csv"),
    papers={"Without one head": "Michel table 1", "With one head alone": "Michel table 2"},
    brought_by="scoring.measures",
)
def score_maps_section(run: FinishedRun) -> dict[str, Any] | None:
    """Maps of scores, tables of relevance, and single heads; left out without scores. `effects`: for each kind the change
    without each head, in BLEU or else in loss.
    """
    if run.heads is None:
        return None
    maps = score_maps(run)
    measures = [name for name in (BLEU_MEASURE, LOSS_MEASURE) if len(of_measure(run, name))]
    measure = measures[0] if measures else BLEU_MEASURE
    effects = of_measure(run, measure)
    return {
        "maps": maps,
        "untrained": untrained_table(run),
        "untrained_models": untrained_models(run),
        "conserved": conservation_table(run),
        "pooled": pooled_table(run),
        "apart": apart_table(run),
        "effects": [
            _effects(effects[effects["kind"] == kind], measure, control_ranges(run))
            | {"attention": run.attention(kind)}
            for kind in kinds_among(effects["kind"])
        ],
        "in_bleu": measure == BLEU_MEASURE,
        "translates": run.quality == BLEU,
        "alone": alone_table(run),
    }


def of_measure(run: FinishedRun, measure: str) -> pd.DataFrame:
    """The heads that have a value of a measure."""
    if run.heads is None:
        return pd.DataFrame(columns=["kind"])
    return run.heads[run.heads["measure"] == measure].dropna(subset=["value"])


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
        members.sort(key=lambda name: (name not in FAMILY_LEADERS, name.count("."), name))
        drawn += members[:1]
    # Where a report is made again, the script that declared a measure may not be there: so no table has its name.
    for members in families.values():
        for name in members:
            if measure_table.facts(name).name not in measure_table.measure.own:
                drawn.append(name)
    return drawn


def measures_of(run: FinishedRun, kind: str) -> list[str]:
    """The measures of a kind of heads that are drawn. The first orders the heads: relevance, else the most faithful one."""
    if run.heads is None:
        return []
    found = run.heads[run.heads["kind"] == kind].dropna(subset=["value"])
    drawn = drawn_measures(found["measure"])
    best = kept_heads.map_measure(run)
    if drawn and not drawn[0].startswith("lrp") and best in set(found["measure"]):
        return [best, *(measure for measure in drawn if measure != best)]
    return drawn


def leading_measures(run: FinishedRun, kind: str) -> list[str]:
    """Of the measures that are drawn, the first and confidence: those of the figure with functions."""
    drawn = measures_of(run, kind)
    return drawn[:1] + [measure for measure in drawn[1:] if measure == "confidence"]


def places_of_heads(run: FinishedRun, kind: str) -> pd.Series[int]:
    """The place of each head in its layer, by layer and head, the same in all maps: the highest of the first measure
    has 1 (Voita et al. 2019, figure 1), heads without a value come last; without scores, heads by their numbers."""
    parts = []
    for known in (run.heads, None if run.roles is None else run.roles.labels):
        if known is not None:
            parts.append(known.loc[known["kind"] == kind, ["layer", "head"]])

    heads = pd.concat(parts).drop_duplicates().sort_values(["layer", "head"])
    drawn = measures_of(run, kind)
    if not drawn:
        return ranks(heads.assign(value=-heads["head"]))
    found = of_measure(run, drawn[0])
    values = found.loc[found["kind"] == kind, ["layer", "head", "value"]]
    heads = heads.merge(values, how="left", on=["layer", "head"])
    return ranks(heads.fillna({"value": float("-inf")}))


def score_maps(run: FinishedRun) -> list[Figure]:
    """For each attention kind the maps of the measures that do not stand with the functions of heads, in their order."""
    figures: list[Figure] = []
    for kind in KIND_NAMES:
        leading = leading_measures(run, kind)
        others = [measure for measure in measures_of(run, kind) if measure not in leading]
        if others:
            panels = score_panels(run, kind, others)
            figures.append(_figure(run, kind, others, panels))
    return figures


def score_panels(run: FinishedRun, kind: str, measures: list[str]) -> list[Panel]:
    """A map for each of some measures of a kind of heads."""
    assert run.heads is not None
    known = control_ranges(run)
    places = places_of_heads(run, kind)
    panels = []
    for i, measure in enumerate(measures):
        found = of_measure(run, measure)
        of_kind = found[found["kind"] == kind]
        panels.append(_score_panel(of_kind, measure, places, not i, known, run.attention(kind)))
    return panels


def panel_columns(run: FinishedRun, kind: str, panels: int) -> int:
    """How many maps of a kind stand side by side."""
    room = BESIDE - 2 * bool(control_ranges(run))
    return 2 if panels > 1 and places_of_heads(run, kind).max() <= room else 1


def ranks(table: pd.DataFrame) -> pd.Series[int]:
    """The place of each head in its layer, by layer and head: 1 has the highest value."""
    order = table.set_index(["layer", "head"])["value"].groupby(level="layer")
    return order.rank(method="first", ascending=False).astype(int)


def _figure(run: FinishedRun, kind: str, measures: list[str], panels: list[Panel]) -> Figure:
    lead = measure_name(measures_of(run, kind)[0])
    return Figure(
        name=f"scores-{kind}",
        title=f"{capital(KIND_NAMES[kind])}: {listed([measure_name(measure) for measure in measures])}",
        note=f"layers × heads, in each layer the highest {lead} first"
        + UNTRAINED_NOTE * bool(control_ranges(run)),
        panels=panels,
        columns=panel_columns(run, kind, len(panels)),
        facts=f"In each layer the head of highest {lead} comes first.",
    )


def _score_panel(
    found: pd.DataFrame,
    measure: str,
    places: pd.Series[int],
    lead: bool,
    known: Mapping[Layer, ControlRange],
    attention: list[str],
) -> Panel:
    kind = str(found["kind"].iloc[0])
    top = _rounded_up(found["value"].max())
    power, times = scaled(top)
    unit = 10.0**power
    grid = _score_grid(found, measure, places, known, top)
    column = int(places.max())
    if column > MOST_HEADS_WITH_WORDS:
        column += 1  # small cells need a gap between heads and the untrained
    controls = _untrained_cells(found, measure, known, top, column)
    chart = HeadChart(grid, kind, controls, attention)

    tip = tips("address:N|head", f"exact:N|{measure_name(measure)}")
    tip += tips("interval:N|95 % interval", "n:Q|measured on|,")
    tip += tips("untrained:N|untrained heads") * bool(controls)
    # Relevance is a share of its layer: an equal share is marked.
    counts = set(found.groupby("layer").size())
    share = int(counts.pop()) if measure.startswith("lrp") and len(counts) == 1 else 0
    heat = _heat(top, unit, share)
    marks = [chart.squares(heat, tip)]
    if controls:
        frame = {"style": "framed", "strokeDash": [2, 2], "strokeWidth": 1}
        marks.append(chart.squares(None, tip, "datum.framed == 1", **frame))
    lines = [("text:N", "", -5), ("label:N", "small-", 11)]
    marks += chart.texts(tip, f"datum.value >= {TURN * top}", lines)
    if share and lead:
        marks.append(_edge(chart, 1 / share))
    title = capital(measure_name(measure)) + times
    caption = measure_table.facts(measure).caption
    return chart.panel(marks, f"{title}: {caption}" if caption else title, measure)


def _score_grid(
    found: pd.DataFrame,
    measure: str,
    places: pd.Series[int],
    known: Mapping[Layer, ControlRange],
    top: float,
) -> HeadGrid:
    """One measure of one kind of heads, with what cells and tooltips say."""
    unit = 10.0 ** scaled(top)[0]
    values = dict[Head, float]()
    columns = dict[Head, int]()
    facts = dict[Head, Any]()
    like = set[Head]()
    for row in found.sort_values(["layer", "head"]).to_dict("records"):
        if (row["layer"], row["head"]) not in places.index:
            continue
        head = Head(row["kind"], row["layer"], row["head"])
        values[head] = row["value"]
        columns[head] = int(places[row["layer"], row["head"]]) - 1
        interval = "not measured"
        if not pd.isna(row["low"]):
            interval = f"{number(row['low'], top, 1)} to {number(row['high'], top, 1)}"
        facts[head] = {
            "label": f"h{head.head}",
            "text": number(row["value"] * unit, top * unit),
            "exact": number(row["value"], top, 1),
            "interval": interval,
            "low": row["low"],
            "high": row["high"],
            "n": row["n"],
        }
        control = known.get((head.kind, head.layer, measure))
        if control is not None:
            facts[head]["untrained"] = control.text(top)
            if control.holds(row["value"]):
                like.add(head)

    heads = HeadMap.smallest(values)
    scale = Scale(0, top)
    framed = frozenset(like)
    return HeadGrid(
        heads, measure, values=values, scale=scale, framed=framed, columns=columns, facts=facts
    )


def _untrained_cells(
    found: pd.DataFrame, measure: str, known: Mapping[Layer, ControlRange], top: float, column: int
) -> list[dict[str, Any]]:
    """For each layer a cell with the mean of untrained heads."""
    kind = str(found["kind"].iloc[0])
    unit = 10.0 ** scaled(top)[0]
    cells = []
    for layer in sorted(set(found["layer"])):
        control = known.get((kind, layer, measure))
        if control is not None:
            cells.append(
                {
                    "layer": layer,
                    "column": column,
                    "label": "mean",
                    "value": control.mean,
                    "text": number(control.mean * unit, top * unit),
                    "exact": number(control.mean, top, 1),
                    "untrained": control.text(top),
                }
            )
    return cells


def scaled(top: float) -> tuple[int, str]:
    """The power of ten that values up to `top` are multiplied by to be short, and what a title then ends with."""
    power = max(0, 3 * math.ceil((-1 - math.floor(math.log10(top) + 1e-9)) / 3))
    return power, f" × 10{str(-power).translate(RAISED)}" if power else ""


def _heat(top: float, unit: float, share: int) -> charts.Spec:
    """The colour scale from 0 to the highest value; an equal share of a layer is marked on it."""
    labels = {0.0: "0", top: number(top * unit, top * unit)}
    if share and 0.1 * top < 1 / share < 0.85 * top:
        labels[1 / share] = f"1/{share}"
    words = "".join(
        f"abs(datum.value - {value}) < {top / 1000} ? '{word}' : " for value, word in labels.items()
    )
    legend = {"orient": "bottom", "title": None, "gradientLength": 180, "values": sorted(labels)}
    return charts.field(
        "value:Q",
        scale={"range": "heatmap", "domain": [0, top], "clamp": True},
        legend=legend | {"labelExpr": f"{words}''"},
    )


def _edge(chart: HeadChart, share: float) -> charts.Spec:
    """An upright line in each layer behind the last head that has at least an equal share."""
    above = chart.heads[chart.heads["value"] >= share]
    ends = above.groupby("layer")["column"].max().reset_index()
    look = {"style": "limit", "opacity": 1, "orient": "vertical", "thickness": 2.5, "xOffset": 1.5}
    look["size"] = 44 if chart.fits_words else 22
    return charts.mark("tick", ends, look, x={**chart.x, "bandPosition": 1}, y=chart.y)


def _rounded_up(value: float) -> float:
    """The next number of two digits: the end of a colour scale. 1 where nothing is above 0."""
    if not value > 0:
        return 1.0
    unit = 10.0 ** (math.floor(math.log10(value)) - 1)
    return round(math.ceil(round(value / unit, 6)) * unit, 12)


def apart_table(run: FinishedRun) -> Table | None:
    """How far relevance and confidence agree within layers, and the heads that they rank most differently."""
    drawn = [] if run.heads is None else drawn_measures(run.heads["measure"])[:2]
    if len(drawn) < 2 or not drawn[0].startswith("lrp") or drawn[1] != "confidence":
        return None
    both = of_measure(run, drawn[0]).merge(
        of_measure(run, drawn[1]), on=["kind", "layer", "head"], suffixes=("_one", "_other")
    )
    rows = []
    for kind, part in both.groupby("kind", sort=False):
        rows.append((KIND_NAMES[str(kind)], *_apart(part)))

    columns: Columns = {
        "kind": lambda row: row[0],
        "rank correlation within layers": lambda row: number(row[1], 0.5),
        f"furthest apart (place by {measure_name(drawn[0])} · by confidence)": lambda row: row[2],
    }
    return table(
        f"{measure_name(drawn[0])} and confidence", (r for r in rows if not pd.isna(r[1])), columns
    )


def _apart(part: pd.DataFrame) -> tuple[float, str]:
    """The mean rank correlation within layers of two scores, and the heads with the most different ranks."""
    layers = part.groupby("layer")
    order = layers[["value_one", "value_other"]].rank(ascending=False)
    size = layers["head"].transform("size")
    inside = []
    for _, one in order.groupby(part["layer"]):
        inside.append(one["value_one"].corr(one["value_other"]))

    gap = (order["value_one"] - order["value_other"]).abs() / (size - 1).clip(lower=1)
    far = part.assign(one=order["value_one"], other=order["value_other"], size=size)
    far = far.loc[gap[gap >= RANKS_APART].sort_values(ascending=False, kind="stable").index[:3]]
    heads = []
    for r in far.itertuples():
        heads.append(f"{r.kind}/{r.layer}/{r.head} ({r.one:.0f} · {r.other:.0f} of {r.size})")
    return pd.Series(inside, dtype=float).mean(), ", ".join(heads)


def pooled_table(run: FinishedRun) -> Table | None:
    """How far relevance of all positions started at once is from that of one position after the other."""
    known = [] if run.heads is None else sorted(set(run.heads["measure"]))
    rows = []
    for measure in (name for name in known if name.startswith("lrp") and f"{name}.pooled" in known):
        found = []
        for name in (measure, f"{measure}.pooled"):
            found.append(of_measure(run, name).set_index(["kind", "layer", "head"]))

        steps, pooled = (part["value"] for part in found)
        steps = steps.reindex(pooled.index).dropna()
        if len(steps) > 1:
            rows.append((measure, steps, pooled, (pooled - steps).abs().dropna().idxmax()))

    columns: Columns = {
        "rule": lambda row: measure_name(row[0]),
        "rank correlation": lambda row: number(row[2].rank().corr(row[1].rank()), 0.5),
        "furthest apart": lambda row: "/".join(map(str, row[3])),
        "per step": lambda row: number(row[1][row[3]], row[1][row[3]], 1),
        "pooled": lambda row: number(row[2][row[3]], row[1][row[3]], 1),
    }
    return table("Relevance per step and pooled", rows, columns, code=lambda row: row[0])


def conservation_table(run: FinishedRun) -> Table | None:
    """Of the relevance that went in, what arrived and what was absorbed on the way; None without lrp.csv."""
    if run.lrp is None:
        return None
    parts = run.lrp.dropna(subset=["value"]).groupby(["measure", "mode"], sort=False)
    rows = []
    for (measure, mode), part in parts:
        rows.append((measure, mode, part.set_index("what")["value"]))

    columns: Columns = {"rule": lambda row: f"{measure_name(str(row[0]))}, {row[1]}"}
    columns |= {title: partial(_went, what) for what, title in RELEVANCE.items()}
    return table("Where relevance went", rows, columns, code=lambda row: str(row[0]))


def _went(what: str, row: Any) -> str:
    return percent(row[2][what], 1).replace("-", "−") if what in row[2] else NONE


def _effects(
    found: pd.DataFrame, measure: str, known: Mapping[Layer, ControlRange]
) -> dict[str, Any]:
    """A kind's change without each head, layer by layer (Michel et al. 2019, table 1). `ablation.bleu` counts points
    lost: its change is negative.
    """
    scale, digits, ends = (
        (-1, 2, ["high", "low"]) if measure == BLEU_MEASURE else (1000, 1, ["low", "high"])
    )
    found = found.sort_values(["layer", "head"])
    found[["change", "low", "high"]] = scale * found[["value", *ends]]
    found["sure"] = (found["low"] > 0) | (found["high"] < 0)
    found["gain"] = found["change"] * scale < 0
    layers: dict[int, dict[int, dict[str, Any]]] = {}
    for row in found.to_dict("records"):
        text = signed(row["change"], digits)
        between = (
            ""
            if pd.isna(row["low"])
            else f" [{signed(row['low'], digits)}, {signed(row['high'], digits)}]"
        )
        address = f"{row['kind']}/{row['layer']}/{row['head']}"
        cell = {"text": text, "address": address, "tip": f"{address}: {text}{between}"}
        layers.setdefault(row["layer"], {})[row["head"]] = cell | {
            "sure": row["sure"],
            "gain": row["gain"],
        }

    kind = str(found["kind"].iloc[0])
    low = signed(found["change"].min(), digits)
    high = signed(found["change"].max(), digits)
    untrained = {}
    for layer in layers:
        control = known.get((kind, layer, measure))
        if control is not None:
            lowest = signed(scale * control.low, digits)
            untrained[layer] = f"{lowest} to {signed(scale * control.high, digits)}"
    return {
        "kind": kind,
        "title": capital(KIND_NAMES[kind]),
        "heads": sorted(set(found["head"])),
        "layers": list(layers.items()),
        "untrained": untrained,
        "facts": f"{found['sure'].sum()} of {len(found)} intervals exclude 0, "
        f"{(found['sure'] & found['gain']).sum()} of them for the better; "
        f"about {FALSE_RATE * len(found):.0f} would if no head mattered. From {low} to {high}.",
    }


def alone_table(run: FinishedRun) -> Table | None:
    """For every layer of several heads the head that does best alone, and what the loss gains (Michel et al. 2019,
    table 2); None without.
    """
    found = of_measure(run, ALONE)
    if len(found):
        found = found[found.groupby(["kind", "layer"])["head"].transform("size") > 1].sort_values(
            "value", kind="stable"
        )
    best: dict[int, dict[str, Any]] = {}
    for row in found.to_dict("records"):
        best.setdefault(row["layer"], {}).setdefault(row["kind"], row)

    columns: Columns = {
        "layer": str,
        **{KIND_NAMES[kind]: partial(_alone, best, kind) for kind in KINDS},
    }
    return table("With one head alone", sorted(best), columns)


def _alone(best: dict[int, dict[str, Any]], kind: str, layer: int) -> str:
    if (row := best[layer].get(kind)) is None:
        return NONE
    known = not pd.isna(row["low"])
    ends = f" [{signed(row['low'], 3)}, {signed(row['high'], 3)}]" if known else ""
    enough = " · one head is enough" if known and row["low"] <= 0 else ""
    return f"{signed(row['value'], 3)}{ends}\n{row['kind']}/{row['layer']}/{row['head']}{enough}"
