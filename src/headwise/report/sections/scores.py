"""How much each head matters: a map of every kind of score, relevance that was lost, heads switched off one by one."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import altair as alt
import pandas as pd

from headwise.report import charts
from headwise.report.charts import ROOM, Text
from headwise.report.parts import Figure, Panel, Row, Section, Table
from headwise.report.run import Run
from headwise.report.sections import single_heads
from headwise.report.words import KIND_NAMES, NONE, capital, listed, measure_name, number, percent

CELL = 48  # pixels
TURN = 0.55  # the share of the heat scale from which text on it needs the other colour
BESIDE = 12  # heads a layer, up to which two maps stand side by side
FAMILIES = {
    "lrp": "share of the layer's relevance",
    "confidence": "mean of a head's largest attention weight",
    "gradient": "how the loss moves as the head is turned down",
    "ablation": "what the loss gains without the head (nats a token)",
}
FIRST = ("lrp.ding", "gradient", "ablation.zero")  # the measures that stand for their families
RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
RELEVANCE = {
    "started": "went in", "arrived": "arrived at the embeddings", "bias": "biases", "norm": "norms",
    "softmax": "softmax", "other": "other",
}  # fmt: skip
FAR = 0.5  # of a layer's ranks: from here on two scores disagree about a head


def build(run: Run) -> dict[str, Any]:
    """Maps of scores, the tables of relevance, and single heads."""
    drawn = [] if run.heads is None else drawn_measures(run.heads["measure"])
    return {
        "maps": score_maps(run),
        "families": [measure.split(".")[0] for measure in drawn],
        "conserved": conservation_table(run),
        "pooled": pooled_table(run),
        "apart": apart_table(run),
        **single_heads.build(run),
    }


def drawn_measures(measures: Iterable[str]) -> list[str]:
    """One measure of each family, the paper's own where it is there, in the order in which they are drawn."""
    known, found = set(measures), []
    for family in FAMILIES:
        of_family = (name for name in known if name.split(".")[0] == family)
        found += sorted(of_family, key=lambda name: (name not in FIRST, name.count("."), name))[:1]
    return found


def score_maps(run: Run) -> list[Figure]:
    """For each attention kind the heat maps of LRP, confidence, gradient and ablation, as far as they are there.

    All have one order of heads: in every layer, the highest of the first measure first (Voita et al. 2019, figure 1).
    """
    if run.heads is None:
        return []
    table = run.heads[run.heads["measure"].isin(drawn_measures(run.heads["measure"]))].dropna(subset=["value"])
    return [_figure(table[table["kind"] == kind], kind) for kind in KIND_NAMES if kind in set(table["kind"])]


def ranks(table: pd.DataFrame) -> pd.Series[int]:
    """The place of each head in its layer, by layer and head: 1 has the highest value."""
    order = table.set_index(["layer", "head"])["value"].groupby(level="layer")
    return order.rank(method="first", ascending=False).astype(int)


def _figure(table: pd.DataFrame, kind: str) -> Figure:
    measures = drawn_measures(table["measure"])
    lead = measure_name(measures[0])
    places = ranks(table[table["measure"] == measures[0]])
    panels = [_panel(table[table["measure"] == measure], measure, places, not i) for i, measure in enumerate(measures)]
    return Figure(
        name=f"scores-{kind}",
        title=f"{capital(KIND_NAMES[kind])}: {listed([measure_name(measure) for measure in measures])}",
        note=f"layers × heads, in each layer the highest {lead} first",
        panels=panels,
        columns=2 if len(panels) > 1 and places.max() <= BESIDE else 1,
        facts=f"In each layer the head of highest {lead} comes first.",
    )


def _panel(table: pd.DataFrame, measure: str, places: pd.Series[int], lead: bool) -> Panel:
    top = _rounded_up(table["value"].max())
    power = max(0, 3 * math.ceil((-1 - math.floor(math.log10(top) + 1e-9)) / 3))
    unit, size, layers = 10.0**power, int(places.max()), places.index.get_level_values("layer").nunique()
    share = _equal_share(table) if measure.startswith("lrp") else 0
    cells = [
        {
            "address": f"{row['kind']}/{row['layer']}/{row['head']}",
            "layer": row["layer"],
            "head": f"h{row['head']}",
            "rank": places[row["layer"], row["head"]],
            "value": row["value"],
            "text": number(row["value"] * unit, top * unit),
            "exact": number(row["value"], top, 1),
            "interval": "not measured"
            if pd.isna(row["low"])
            else f"{number(row['low'], top, 1)} to {number(row['high'], top, 1)}",
            "n": row["n"],
        }
        for row in table.sort_values(["layer", "head"]).to_dict("records")
        if (row["layer"], row["head"]) in places.index
    ]
    texts = [
        Text(name, f"{small}{style}", f"datum.value {sign} {TURN * top}", {"dy": dy})
        for sign, style in (("<", "on-low"), (">=", "on-high"))
        for name, small, dy in (("text:N", "", -5), ("head:N", "small-", 11))
    ]
    x = alt.X("rank:O", title=None, axis=alt.Axis(orient="top", labels=False, titlePadding=2))
    tip = charts.tips(
        "address:N|head", f"exact:N|{measure_name(measure)}", "interval:N|95 % interval", "n:Q|measured on|,"
    )
    y, heat = alt.Y("layer:O", title="layer"), _heat(top, unit, share)
    marks = charts.grid(cells, x, y, heat, tip=tip, texts=texts if size <= ROOM else ())
    row = 44 if size <= ROOM else 22
    marks += [_edge(cells, 1 / share, row)] if share and lead else []
    times = f" × 10{str(-power).translate(RAISED)}" if power else ""
    narrow, wide = (31, 92) if size <= ROOM else (9, 36)
    return Panel(
        charts.layered(marks, layers * row, measure, color="independent"),
        f"{capital(measure_name(measure))}{times}: {FAMILIES[measure.split('.')[0]]}",
        width=size * (CELL if size <= ROOM else 20),
        narrowest=70 + size * narrow,
        widest=90 + size * wide,
    )


def _equal_share(table: pd.DataFrame) -> int:
    """How many heads every layer has; 0 where layers differ."""
    counts = set(table.groupby("layer").size())
    return int(counts.pop()) if len(counts) == 1 else 0


def _heat(top: float, unit: float, share: int) -> alt.Color:
    """The colour scale from 0 to the highest value; an equal share of a layer is marked on it."""
    labels = {0.0: "0", top: number(top * unit, top * unit)}
    if share and 0.1 * top < 1 / share < 0.85 * top:
        labels[1 / share] = f"1/{share}"
    words = "".join(f"abs(datum.value - {value}) < {top / 1000} ? '{word}' : " for value, word in labels.items())
    legend = alt.Legend(orient="bottom", title=None, gradientLength=180, values=sorted(labels), labelExpr=f"{words}''")
    return alt.Color("value:Q", scale=alt.Scale(range="heatmap", domain=[0, top], clamp=True), legend=legend)


def _edge(cells: list[dict[str, Any]], share: float, height: int) -> Any:
    """An upright line in each layer behind the last head that has at least an equal share."""
    table = pd.DataFrame(cells)
    ends = table[table["value"] >= share].groupby("layer")["rank"].max().reset_index()
    mark = alt.Chart(charts.data(ends)).mark_tick(
        style="limit", opacity=1, orient="vertical", size=height, thickness=2.5, xOffset=1.5
    )
    return mark.encode(x=alt.X("rank:O", bandPosition=1), y="layer:O")


def _rounded_up(value: float) -> float:
    """The next number of two digits: the end of a colour scale. 1 where nothing is above 0."""
    if not value > 0:
        return 1.0
    unit = 10.0 ** (math.floor(math.log10(value)) - 1)
    return round(math.ceil(round(value / unit, 6)) * unit, 12)


def apart_table(run: Run) -> Table | None:
    """How far relevance and confidence agree within layers, and the heads that they rank most differently."""
    if run.heads is None:
        return None
    drawn = drawn_measures(run.heads["measure"])
    if len(drawn) < 2 or not drawn[0].startswith("lrp") or drawn[1] != "confidence":
        return None
    found = [run.heads[run.heads["measure"] == measure].dropna(subset=["value"]) for measure in drawn[:2]]
    name, rows = measure_name(drawn[0]), []
    both = found[0].merge(found[1], on=["kind", "layer", "head"], suffixes=("_one", "_other"))
    for kind, part in both.groupby("kind", sort=False):
        layers = part.groupby("layer")
        order = layers[["value_one", "value_other"]].rank(ascending=False)
        inside = [one["value_one"].corr(one["value_other"]) for _, one in order.groupby(part["layer"])]
        agreed, size = pd.Series(inside, dtype=float).mean(), layers["head"].transform("size")
        gap = (order["value_one"] - order["value_other"]).abs() / (size - 1).clip(lower=1)
        far = gap[gap >= FAR].sort_values(ascending=False, kind="stable").index[:3]
        heads = [
            f"{part.loc[i, 'layer']}/{part.loc[i, 'head']} ({order.loc[i, 'value_one']:.0f} · "
            f"{order.loc[i, 'value_other']:.0f} of {size[i]})"
            for i in far
        ]
        if not pd.isna(agreed):
            rows.append(Row([KIND_NAMES[str(kind)], number(agreed, 0.5), ", ".join(heads) or NONE]))
    columns = ["kind", "rank correlation within layers", f"furthest apart (place by {name} · by confidence)"]
    return Table(f"{name} and confidence", columns, rows) if rows else None


def pooled_table(run: Run) -> Table | None:
    """How far relevance of all positions started at once is from that of one position after the other."""
    if run.heads is None:
        return None
    heads = run.heads.dropna(subset=["value"]).set_index(["kind", "layer", "head"])
    rows = []
    for measure in sorted(set(heads["measure"])):
        pooled = heads.loc[heads["measure"] == f"{measure}.pooled", "value"]
        steps = heads.loc[heads["measure"] == measure, "value"].reindex(pooled.index).dropna()
        if measure.startswith("lrp") and len(steps) > 1:
            at: Any = (pooled - steps).abs().dropna().idxmax()
            correlation = number(pooled.rank().corr(steps.rank()), 0.5)
            ends = [number(table[at], steps[at], 1) for table in (steps, pooled)]
            rows.append(Row([measure_name(measure), correlation, "/".join(map(str, at)), *ends], code=measure))
    columns = ["rule", "rank correlation", "furthest apart", "per step", "pooled"]
    return Table("Relevance per step and pooled", columns, rows) if rows else None


def conservation_table(run: Run) -> Table | None:
    """Of the relevance that went in, what arrived and what was absorbed on the way; None without lrp.csv."""
    table = None if run.lrp is None else run.lrp.dropna(subset=["value"])
    if table is None or table.empty:
        return None
    known = [what for what in RELEVANCE if what in set(table["what"])]
    rows = []
    for (measure, mode), part in table.groupby(["measure", "mode"], sort=False):
        shares = part.set_index("what")["value"]
        cells = [percent(shares[what], 1).replace("-", "−") if what in shares else NONE for what in known]
        rows.append(Row([f"{measure_name(str(measure))}, {mode}", *cells], code=str(measure)))
    return Table("Where relevance went", ["rule", *(RELEVANCE[what] for what in known)], rows)


SECTION = Section("scores", "Scores", "How much each head matters", build)
