"""Figures of how much heads matter: a map of every kind of score, all in one order of heads."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import altair as alt
import pandas as pd

from headwise.report.figure import Figure, Panel, Rows, rows
from headwise.report.relevance import parting
from headwise.report.run import Run
from headwise.report.wording import KIND_NAMES, listed, measure_name, number, sentence

CELL = 48
TURN = 0.55  # the share of the heat scale from which it needs the other text colour
BESIDE = 12  # heads a layer, up to which two maps stand side by side
ROOM = 16  # heads a layer, above which cells have no room for numbers
FAMILIES = ("lrp", "confidence", "gradient", "ablation")
PLAIN = ("lrp.ding", "gradient", "ablation.zero")  # of a family's measures, the one that is drawn
TOLD = {
    "lrp": "share of the layer's relevance",
    "confidence": "mean of a head's largest attention weight",
    "gradient": "how the loss moves as the head is turned down",
    "ablation": "what the loss gains without the head (nats a token)",
}
RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
SAID = {
    "lrp": "Relevance (LRP) is the share of a prediction that came through a head.",
    "confidence": "Confidence is how sharply it points.",
    "gradient": "Gradient is how much the loss would move if it were turned down a little.",
    "ablation": "Ablation is what is lost when it is really switched off.",
}


def drawn_measures(measures: Iterable[str]) -> list[str]:
    """One measure of each family, the paper's own where it is there, in the order in which they are drawn."""
    known, found = set(measures), []
    for family in FAMILIES:
        of_family = sorted(
            (name for name in known if name.split(".")[0] == family),
            key=lambda name: (name not in PLAIN, name.count("."), name),
        )
        found += of_family[:1]
    return found


def score_lede(run: Run) -> str:
    """What the scores that are drawn mean."""
    families = [] if run.heads is None else [m.split(".")[0] for m in drawn_measures(run.heads["measure"])]
    several = ["They are different questions, and need not agree."] if len(families) > 1 else []
    return " ".join([*(SAID[family] for family in families), *several])


def score_maps(run: Run) -> list[Figure]:
    """For each attention kind the heat maps of LRP, confidence, gradient and ablation, as far as they are there.

    All have the same order of heads: in every layer, the highest of the first measure first (Voita et al. 2019,
    figure 1).
    """
    if run.heads is None:
        return []
    table = run.heads[run.heads["measure"].isin(drawn_measures(run.heads["measure"]))].dropna(subset=["value"])
    return [_score_figure(table[table["kind"] == kind], kind) for kind in KIND_NAMES if kind in set(table["kind"])]


def _score_figure(table: pd.DataFrame, kind: str) -> Figure:
    measures = drawn_measures(table["measure"])
    lead, parts = measures[0], {measure: table[table["measure"] == measure] for measure in measures}
    places = _places(parts[lead])
    panels = [_map_panel(parts[measure], measure, places, measure == lead) for measure in measures]
    names = listed([measure_name(measure) for measure in measures])
    return Figure(
        name=f"scores-{kind}",
        title=f"{sentence(KIND_NAMES[kind])}: {names}",
        note=f"layers × heads, in each layer the highest {measure_name(lead)} first"
        + ("; every map in the same order" if len(measures) > 1 else ""),
        caption=_caption(parts, _equal_share(parts[lead]) if lead.startswith("lrp") else None),
        panels=panels,
        columns=2 if len(panels) > 1 and max(places.values()) <= BESIDE else 1,
    )


def _caption(parts: Mapping[str, pd.DataFrame], share: str | None) -> str:
    lead, *others = parts
    first = measure_name(lead)
    told = f"Each row is a layer, the head of highest {first} first; the small label is its number in the model. "
    if others:
        told += "All maps keep that order: a head stands at the same place in each. "
    told += "Colours start at 0. "
    if share:
        told += f"The upright line stands where LRP falls below {share}, an equal share of the layer. "
    told += "Point at a cell to see its 95 % interval."
    return f"{told} {parting(parts[lead], parts['confidence'])}" if share and "confidence" in others else told


def _places(table: pd.DataFrame) -> dict[tuple[int, int], int]:
    """The place of each (layer, head) in its layer: 1 has the highest value."""
    rank = table.groupby("layer")["value"].rank(method="first", ascending=False)
    return {(row["layer"], row["head"]): int(row["rank"]) for row in table.assign(rank=rank).to_dict("records")}


def _equal_share(table: pd.DataFrame) -> str | None:
    """`1/8` where every layer has eight heads; None where layers differ."""
    counts = set(table.groupby("layer").size())
    return f"1/{counts.pop()}" if len(counts) == 1 else None


def _map_panel(table: pd.DataFrame, measure: str, places: dict[tuple[int, int], int], lead: bool) -> Panel:
    top = _rounded_up(table["value"].max())
    power = max(0, 3 * math.ceil((-1 - math.floor(math.log10(top) + 1e-9)) / 3))
    unit = 10.0**power
    cells = [
        {
            "address": f"{row['kind']}/{row['layer']}/{row['head']}",
            "layer": row["layer"],
            "head": f"h{row['head']}",
            "rank": places[row["layer"], row["head"]],
            "value": round(row["value"], 6),
            "told": number(row["value"] * unit, top * unit),
            "exact": number(row["value"], top, 1),
            "interval": "not measured"
            if pd.isna(row["low"])
            else f"{number(row['low'], top, 1)} to {number(row['high'], top, 1)}",
            "n": None if pd.isna(row["n"]) else int(row["n"]),
        }
        for row in table.sort_values(["layer", "head"]).to_dict("records")
        if (row["layer"], row["head"]) in places
    ]
    size, layers = max(places.values()), len({layer for layer, _ in places})
    share = _equal_share(table) if measure.startswith("lrp") else None
    marks = _cells(cells, measure, _heat(top, unit, share), TURN * top, size <= ROOM)
    if share and lead:
        marks.append(_edge(cells, 1 / int(share[2:]), size <= ROOM))
    height = layers * (44 if size <= ROOM else 22)
    chart = alt.layer(*marks).resolve_scale(color="independent").properties(height=height, description=measure)
    times = f" × 10{str(-power).translate(RAISED)}" if power else ""
    title = f"{sentence(measure_name(measure))}{times}: {TOLD[measure.split('.')[0]]}"
    narrow, wide = (31, 92) if size <= ROOM else (9, 36)
    return Panel(
        chart, title, width=size * (CELL if size <= ROOM else 20), narrowest=70 + size * narrow, widest=90 + size * wide
    )


def _cells(cells: Rows, measure: str, colour: Any, turn: float, room: bool) -> list[Any]:
    """Coloured cells, with their value and the head's number printed in them where there is room."""
    axis = alt.Axis(orient="top", labels=False, titlePadding=2)
    tooltip = [
        alt.Tooltip("address:N", title="head"),
        alt.Tooltip("exact:N", title=measure_name(measure)),
        alt.Tooltip("interval:N", title="95 % interval"),
        alt.Tooltip("n:Q", title="measured on", format=","),
    ]
    base = alt.Chart(rows(cells)).encode(
        x=alt.X("rank:O", title=None, axis=axis), y=alt.Y("layer:O", title="layer"), tooltip=tooltip
    )
    marks = [base.mark_rect(cornerRadius=3).encode(color=colour)]
    if not room:
        return marks
    for test, style in ((f"datum.value < {turn}", "on-low"), (f"datum.value >= {turn}", "on-high")):
        seen = base.transform_filter(test)
        marks.append(seen.mark_text(style=style, dy=-5).encode(text="told:N"))
        marks.append(seen.mark_text(style=f"small-{style}", dy=11).encode(text="head:N"))
    return marks


def _heat(top: float, unit: float, share: str | None) -> Any:
    """The sequential colour scale from 0 to the highest value; an equal share of a layer is marked on it."""
    labels = {0.0: "0", top: number(top * unit, top * unit)}
    if share and 0.1 * top < (equal := 1 / int(share[2:])) < 0.85 * top:
        labels[equal] = share
    words = "".join(f"abs(datum.value - {value}) < {top / 1000} ? '{word}' : " for value, word in labels.items())
    legend = alt.Legend(orient="bottom", title=None, gradientLength=180, values=sorted(labels), labelExpr=f"{words}''")
    scale = alt.Scale(range="heatmap", domain=[0, top], clamp=True)
    return alt.Color("value:Q", scale=scale, legend=legend)


def _edge(cells: Rows, share: float, room: bool) -> Any:
    """An upright line in each layer behind the last head that has at least an equal share."""
    last: dict[int, int] = {}
    for cell in cells:
        if cell["value"] >= share:
            last[cell["layer"]] = max(last.get(cell["layer"], 0), cell["rank"])
    ends = [{"layer": layer, "rank": rank} for layer, rank in last.items()]
    return (
        alt.Chart(rows(ends))
        .mark_tick(style="limit", opacity=1, orient="vertical", size=44 if room else 22, thickness=2.5, xOffset=1.5)
        .encode(x=alt.X("rank:O", bandPosition=1), y="layer:O")
    )


def _rounded_up(value: float) -> float:
    """The next number of two digits: the end of a colour scale. 1 where nothing is above 0."""
    if not value > 0:
        return 1.0
    unit = 10.0 ** (math.floor(math.log10(value)) - 1)
    return round(math.ceil(round(value / unit, 6)) * unit, 12)
