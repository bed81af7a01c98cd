"""Which scores are faithful: removal curves, and each score compared with exact ablation of single heads."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import pandas as pd

from headwise.faces.report import charts
from headwise.faces.report.charts import Figure, Panel, axis, colour, tips
from headwise.faces.report.format import (
    capital,
    estimate,
    interval_text,
    measure_name,
    number,
    percent,
)
from headwise.faces.report.page import PageTable, section, table
from headwise.faces.report.run_folder import RunContents
from headwise.importance.most_faithful import (
    as_faithful,
    by_measure,
    faithfulness_statistics,
    judged,
    most_faithful,
)

STATISTIC_NAMES = {
    "area": "loss while heads are removed",
    "area.rescored": "scored again",
    "cpr": "CPR",
    "cmd": "CMD",
    "spearman": "rank correlation",
    "spearman.within": "within layers",
    "kendall": "Kendall",
    "precision@25%": "top quarter found",
    "stability": "on another text",
}
MOST_CURVES = 9
CEILINGS = {  # what ablation reaches with itself
    "spearman": "ceiling",
    "spearman.within": "ceiling.within",
}
RANKINGS = {"once": "scored once", "rescored": "scored again after each step"}


@section(
    "faithfulness",
    heading="Which scores are faithful",
    question="Which score predicts what removing heads costs?",
    order=40,
    files=("faithfulness.csv", "curves.csv"),
    brought_by="scoring.judge = true, and ablation.zero among scoring.measures",
    qualities=("bleu", "agreement", "perplexity", "accuracy", "wer"),
)
def faithfulness_section(run: RunContents) -> dict[str, Any]:
    """The figure of removal, and the table of statistics."""
    return {"removal": removal_curves_figure(run), "statistics": faithfulness_table(run)}


def faithfulness_facts(run: RunContents) -> list[tuple[str, str, str]]:
    """The best score and its numbers, for the summary."""
    found = faithfulness_statistics(run.faithfulness)
    best = most_faithful(found)
    if best is None:
        return []
    values = found["value"].to_dict()
    facts = [("Most faithful score", capital(measure_name(best)), "")]

    def add(
        label: str, value: float | None, unit: str, scale: float, what: str, other: Any
    ) -> None:
        if value is not None:
            compared = "" if other is None else f" ({what}: {number(other, scale)})"
            facts.append((label, f"{number(value, scale)}{unit}{compared}", ""))

    area = values.get((best, "area"))
    of_random = values.get(("random", "area"))
    unit = f" nats per {run.quality.each}"
    add("Removal in its order", area, unit, _scale(area or 1), "random orders", of_random)
    ceiling = next(iter(by_measure(found, "ceiling")["value"]), None)
    label = "Rank correlation with exact ablation"
    add(label, values.get((best, "spearman")), "", 0.5, "the ablation with itself", ceiling)
    ceiling = next(iter(by_measure(found, "ceiling.within")["value"]), None)
    label = "The same within layers"
    add(label, values.get((best, "spearman.within")), "", 0.5, "the ablation with itself", ceiling)
    return facts


def _scale(area: float) -> float:
    """The scale of an area under a curve of losses."""
    return min(0.5, abs(area))


def faithfulness_table(run: RunContents) -> PageTable | None:
    """One row per score, the one by which removal costs least first; random orders among them, and at the end what the
    ablation reaches with itself."""
    found = faithfulness_statistics(run.faithfulness)
    values: dict[Any, float] = found["value"].to_dict()
    best = most_faithful(found)
    badges = {**dict.fromkeys(as_faithful(found, best), "as good"), str(best): "best"}
    measures = {str(measure) for measure, statistic in values if statistic in STATISTIC_NAMES}

    def order(measure: str) -> tuple[float, float, str]:
        return (
            values.get((measure, "area"), math.inf),
            -values.get((measure, "spearman"), -1),
            measure,
        )

    rows = [(measure, False) for measure in sorted(measures, key=order)]
    rows += [(str(truth), True) for truth in by_measure(found, "ceiling")["against"][:1]]

    def name(row: tuple[str, bool]) -> str:
        measure, is_ceiling = row
        title = "Random order" if measure == "random" else capital(measure_name(measure))
        return title + ", repeated" * is_ceiling

    def cell(statistic: str, row: tuple[str, bool]) -> str:
        """A value, and its interval on a line of its own (of random orders, their range)."""
        measure, is_ceiling = row
        key = (measure, CEILINGS.get(statistic, "") if is_ceiling else statistic)
        if key not in found.index:
            return ""
        one: Any = found.loc[key]
        if statistic.startswith("precision"):
            return percent(one["value"])
        scale = _scale(one["value"]) if statistic.startswith("area") else 0.5
        return estimate(one, partial(number, scale=scale), "\n")

    def badge(row: tuple[str, bool]) -> str:
        measure, is_ceiling = row
        return "" if is_ceiling else badges.get(measure, "")

    return table(
        "Scores and how faithful they are",
        rows,
        {
            "score": name,
            **{title: partial(cell, one) for one, title in STATISTIC_NAMES.items()},
        },
        badge,
        lambda row: "" if row[1] or row[0] == "random" else row[0].removeprefix("-"),
    )


def agreement_with_ablation(run: RunContents, kind: str, measure: str) -> str:
    """A sentence: the score that orders the heads of a kind most like exact ablation, and how `measure` orders them.

    Empty where the run did not judge scores, or an interval is missing.
    """
    table = judged(run.faithfulness)
    table = table[(table["kinds"] == kind) & table["against"].str.startswith("ablation")]
    inside = table[table["statistic"] == "spearman.within"].drop_duplicates("measure")
    within = inside.set_index("measure").to_dict("index")
    found = table[table["statistic"] == "spearman"]
    found = found[~found["measure"].str.startswith("ablation")].dropna(subset=["low", "high"])
    if found.empty:
        return ""
    rows = found.drop_duplicates("measure").set_index("measure").to_dict("index")
    name, best = max(rows.items(), key=lambda row: row[1]["value"])
    write = partial(estimate, write=partial(number, scale=0.5))
    text = (
        f"{capital(measure_name(str(name)))} orders these {best['n']:.0f} heads most like exact ablation: "
        f"rank correlation {write(best)}"
    )
    if name in within:
        text += f", within layers {write(within[name])}"
    if measure != name and measure in rows:
        surely = "" if rows[measure]["high"] < best["low"] else "not significantly "
        text += f" ({measure_name(measure)}: {write(rows[measure])}, {surely}lower)"
    return f"{text}."


def removal_curves_figure(run: RunContents) -> Figure | None:
    """The loss while heads are removed, a panel a score, the best first; None without curves.csv."""
    if run.curves.empty:
        return None
    table = run.curves.dropna(subset=["loss"])
    areas = curve_areas(table)
    best_first = sorted(areas, key=lambda key: areas[key])
    ordered = [measure for measure, ranking in best_first if ranking == "once"]
    shown = ordered[:MOST_CURVES]
    known = table[(table["ranking"] == "random") | table["measure"].isin(shown)]
    seeds = table.loc[table["ranking"] == "random", "seed"].nunique()
    more = len(ordered) - len(shown)
    return Figure(
        name="removal-curves",
        title="Loss while heads are removed, the least important first",
        note="blue: in the order of the score · orange: scored again after each step · thin: the other scores"
        + (f" · grey: {seeds} random orders" if seeds else ""),
        panels=[_curve_panel(known, measure, areas, run.quality.each) for measure in shown],
        columns=min(3, len(shown)),
        facts=f"Random orders: {seeds}." + (f" Scores in the table only: {more}." if more else ""),
    )


def curve_areas(table: pd.DataFrame) -> dict[tuple[str, str], float]:
    """By measure and order: the mean loss above that of the whole model, over the steps after the first."""
    found: dict[tuple[str, str], float] = {}
    for (measure, ranking), part in table.groupby(["measure", "ranking"]):
        losses = part.groupby("removed")["loss"].mean().sort_index()
        if len(losses) > 1:
            found[str(measure), str(ranking)] = float(losses.iloc[1:].mean() - losses.iloc[0])
    return found


def _curve_panel(
    found: pd.DataFrame, measure: str, areas: dict[tuple[str, str], float], each: str
) -> Panel:
    """The score's own curves with their intervals, over the range of random orders and the other scores' curves."""
    losses = found[["loss", "low", "high"]]
    low = float(losses.min().min())
    high = float(losses.max().max())
    margin = 0.03 * (high - low)
    ends = [round(low - margin, 4), round(high + margin, 4)]  # the same in all panels
    random = found[found["ranking"] == "random"].groupby("removed")["loss"]
    scored = found[found["ranking"] != "random"]
    scored = scored.assign(colour=scored["ranking"])
    own = scored[scored["measure"] == measure]
    intervals = [
        interval_text(*pair, "{:.3f}".format) or "not measured"
        for pair in zip(own["low"], own["high"], strict=True)
    ]
    own = own.assign(interval=intervals, ranking=own["ranking"].map(RANKINGS))
    others = scored[(scored["measure"] != measure) & (scored["colour"] == "once")]
    # Called random to be drawn in grey, not to be counted as such.
    others = others[["measure", "removed", "loss"]].assign(colour="random")
    whole = {"domain": [0, int(found["total"].max())], "grid": False}
    x = axis("removed:Q", "heads removed", tickCount=4, tickMinStep=1, **whole)
    y = axis("loss:Q", f"loss (nats per {each})", domain=ends, zero=False, tickCount=4)
    colours = colour("colour:N", ["once", "random", "rescored"])
    tip = tips("ranking:N", "removed:Q|heads removed", "loss:Q||.3f", "interval:N|95 % interval")
    own = own[["removed", "loss", "low", "high", "colour", "ranking", "interval"]]
    band = random.agg(low="min", high="max").reset_index().assign(colour="random")
    thin: Any = {"width": 1, "opacity": 0.5, "detail": charts.field("measure:N")}
    marks = [
        # The first layer is the band; random orders have no line of their own.
        *charts.curve(band, x, y, colours, band=0.3)[:1],
        *charts.curve(others, x, y, colours, **thin),
        *charts.curve(own, x, y, colours, band=0.2, dots=34, width=2.2, tip=tip),
    ]
    own_areas = [areas[key] for ranking in RANKINGS if (key := (measure, ranking)) in areas]
    text = ", scored again ".join(number(area, _scale(area)) for area in own_areas)
    chart = charts.layered(marks, 190, f"Loss while heads are removed by {measure}")
    return Panel(chart, f"{capital(measure_name(measure))} · area {text}", width=270, narrowest=150)
