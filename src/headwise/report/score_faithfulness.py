"""Which scores are faithful: removal curves, and each score compared with exact ablation of single heads."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import pandas as pd

from headwise.report import charts
from headwise.report.charts import Figure, Panel, axis, colour, tips
from headwise.report.format import KIND_NAMES, capital, measure_name, number, percent
from headwise.report.page import Table, section, table
from headwise.report.run_folder import FinishedRun

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
CEILINGS = {
    "spearman": "ceiling",
    "spearman.within": "ceiling.within",
}  # what ablation reaches with itself
RANKINGS = {"once": "scored once", "rescored": "scored again after each step"}
Judged = tuple[
    str, dict[str, str]
]  # a row of the table: a measure, and the statistics that stand for others


@section(
    "faithfulness",
    heading="Which scores are faithful",
    question="Which score predicts what removing heads costs?",
    order=40,
    files=("faithfulness.csv", "curves.csv"),
    brought_by="scoring.judge = true, and ablation.zero among scoring.measures",
)
def faithfulness_section(run: FinishedRun) -> dict[str, Any]:
    """The figure of removal, the table of statistics, and the best score of each kind of heads."""
    return {
        "removal": removal_curves_figure(run),
        "statistics": faithfulness_table(run),
        "kinds": kinds_table(run),
    }


def faithfulness_statistics(run: FinishedRun) -> pd.DataFrame | None:
    """The statistics over all the kinds of heads it had: columns value, low, high, against; index measure and
    statistic. None without any.
    """
    table = None if run.faithfulness is None else run.faithfulness.dropna(subset=["value"])
    if table is None or table.empty:
        return None
    table = table[~_of_another_truth(table)]
    several = table["kinds"].str.count(r"\+")
    widest = several.groupby([table["statistic"], table["measure"]]).transform("max")
    return (
        table[several == widest]
        .drop_duplicates(["measure", "statistic"])
        .set_index(["measure", "statistic"])
    )


def _truth(table: pd.DataFrame) -> str:
    """The measure that scores are compared with."""
    ceilings = table.loc[table["statistic"] == "ceiling", "against"]
    compared = table.loc[
        (table["statistic"] == "spearman") & (table["measure"] != table["against"]), "against"
    ]
    return str(next(iter([*ceilings, *compared, "ablation.zero"])))


def _of_another_truth(table: pd.DataFrame) -> pd.Series[bool]:
    return table["statistic"].str.match("spearman|kendall|precision") & (
        table["against"] != _truth(table)
    )


def of(found: pd.DataFrame, statistic: str) -> pd.DataFrame:
    """A statistic by measure."""
    here: pd.DataFrame = found[found.index.get_level_values("statistic") == statistic].droplevel(
        "statistic"
    )
    return here


def most_faithful(found: pd.DataFrame) -> str | None:
    """The measure by which removal costs least; without removal curves, that of the highest rank correlation."""
    area = of(found, "area")["value"].drop("random", errors="ignore")
    if len(area):
        return str(area.idxmin())
    rank = of(found, "spearman")["value"]
    rank = rank[~rank.index.str.startswith("ablation")]
    return str(rank.idxmax()) if len(rank) else None


def faithfulness_facts(run: FinishedRun) -> list[tuple[str, str, str]]:
    """The best score and its numbers, for the summary."""
    found = faithfulness_statistics(run)
    best = None if found is None else most_faithful(found)
    if found is None or best is None:
        return []
    facts = [("Most faithful score", capital(measure_name(best)), "")]
    for statistic, label, compared, key in (
        ("area", "Removal in its order", "random orders", ("random", "area")),
        ("spearman", "Rank correlation with exact ablation", "the ablation with itself", None),
    ):
        value = _value(found, (best, statistic))
        ceiling = of(found, "ceiling")["value"]
        other = _value(found, key) if key else (ceiling.iloc[0] if len(ceiling) else None)
        if value is not None:
            scale, unit = (
                (min(0.5, abs(value)), " nats a token") if statistic == "area" else (0.5, "")
            )
            comparison = "" if other is None else f" ({compared}: {number(other, scale)})"
            facts.append((label, f"{number(value, scale)}{unit}{comparison}", ""))
    return facts


def _value(found: pd.DataFrame, key: tuple[str, str]) -> float | None:
    return float(found["value"].to_dict()[key]) if key in found.index else None


def faithfulness_table(run: FinishedRun) -> Table | None:
    """One row a score, the one by which removal costs least first; random orders among them."""
    found = faithfulness_statistics(run)
    if found is None:
        return None
    measures = set()
    for measure, name in found.index:
        if name in STATISTIC_NAMES:
            measures.add(measure)

    area, rank = (of(found, name)["value"].to_dict() for name in ("area", "spearman"))
    best = most_faithful(found)
    near = _near(found, best)
    rows: list[Judged] = []
    for measure in sorted(measures, key=lambda m: (area.get(m, math.inf), -rank.get(m, -1), m)):
        rows.append((measure, {}))

    truth = of(found, "ceiling")["against"]
    rows += [(str(truth.iloc[0]), CEILINGS)] if len(truth) else []
    return table(
        "Scores and how faithful they are",
        rows,
        {
            "score": _score_name,
            **{title: partial(_cell, found, name) for name, title in STATISTIC_NAMES.items()},
        },
        badge=lambda row: (
            "" if row[1] else "best" if row[0] == best else "as good" if row[0] in near else ""
        ),
        code=lambda row: "" if row[1] or row[0] == "random" else row[0].removeprefix("-"),
    )


def _score_name(row: Judged) -> str:
    measure, ceilings = row
    return (
        "Random order"
        if measure == "random"
        else capital(measure_name(measure)) + ", repeated" * bool(ceilings)
    )


def _near(found: pd.DataFrame, best: str | None) -> set[str]:
    """The scores whose area has an interval that overlaps that of the best."""
    area = of(found, "area").drop("random", errors="ignore").dropna(subset=["low", "high"])
    if best is None or best not in area.index:
        return set()
    low = area.loc[best, "low"]
    high = area.loc[best, "high"]
    return set(area.index[(area["low"] <= high) & (area["high"] >= low)]) - {best}


def _cell(found: pd.DataFrame, statistic: str, row: Judged) -> str:
    """A value, and its interval on a line of its own; of random orders, their range."""
    measure, ceilings = row
    key = (measure, ceilings.get(statistic, "") if ceilings else statistic)
    if key not in found.index:
        return ""
    one: Any = found.loc[key]
    scale = min(0.5, abs(one["value"])) if statistic.startswith("area") else 0.5
    if statistic.startswith("precision"):
        return percent(one["value"])
    if pd.isna(one["low"]) or pd.isna(one["high"]):
        return number(one["value"], scale)
    low = number(one["low"], scale)
    high = number(one["high"], scale)
    return f"{number(one['value'], scale)}\n{f'{low} to {high}' if measure == 'random' else f'[{low}, {high}]'}"


def _ranks_by_kind(run: FinishedRun) -> pd.DataFrame | None:
    """The rank correlations with exact ablation among the heads of one kind, the highest first; None without any."""
    found = None if run.faithfulness is None else run.faithfulness.dropna(subset=["value"])
    if found is None or found.empty:
        return None
    found = found[
        (found["statistic"] == "spearman")
        & found["kinds"].isin(KIND_NAMES)
        & ~_of_another_truth(found)
    ]
    return found[~found["measure"].str.startswith("ablation")].sort_values(
        "value", ascending=False, kind="stable"
    )


def agreement_with_ablation(run: FinishedRun, kind: str, measure: str) -> str:
    """A sentence: the score that orders the heads of a kind most like exact ablation, and how `measure` orders them.

    Empty where the run did not judge scores, or an interval is missing.
    """
    found = _ranks_by_kind(run)
    if found is None:
        return ""
    of_kind = found[(found["kinds"] == kind) & found["against"].str.startswith("ablation")]
    rows: dict[str, dict[str, Any]] = {}
    for row in of_kind.dropna(subset=["low", "high"]).to_dict("records"):
        rows.setdefault(str(row["measure"]), {str(name): value for name, value in row.items()})
    if not rows:
        return ""

    def correlation(row: dict[str, Any]) -> str:
        ends = [number(row[end], 0.5) for end in ("low", "high")]
        return f"{number(row['value'], 0.5)} [{', '.join(ends)}]"

    name, best = next(iter(rows.items()))
    text = (
        f"{capital(measure_name(name))} orders these {best['n']:.0f} heads most like exact ablation: "
        f"rank correlation {correlation(best)}"
    )
    if measure != name and measure in rows:
        surely = "" if rows[measure]["high"] < best["low"] else "not surely "
        text += f" ({measure_name(measure)}: {correlation(rows[measure])}, {surely}lower)"
    return f"{text}."


def kinds_table(run: FinishedRun) -> Table | None:
    """The score that ranks the heads of each kind most as ablation does; None for one kind."""
    found = _ranks_by_kind(run)
    if found is None:
        return None
    best = found.drop_duplicates("kinds").set_index("kinds")
    columns = {
        "heads": lambda kind: KIND_NAMES[kind],
        "score": lambda kind: measure_name(best["measure"][kind]),
        "rank correlation": lambda kind: number(best["value"][kind], 0.5),
    }
    return (
        table("Best score kind by kind", [k for k in KIND_NAMES if k in best.index], columns)
        if len(best) > 1
        else None
    )


def removal_curves_figure(run: FinishedRun) -> Figure | None:
    """The loss while heads are removed, a panel a score, the best first; None without curves.csv."""
    if run.curves is None or run.curves.empty:
        return None
    table = run.curves.dropna(subset=["loss"])
    areas = curve_areas(table)
    ordered = []
    for measure, ranking in sorted(areas, key=lambda key: areas[key]):
        if ranking == "once":
            ordered.append(measure)

    shown = ordered[:MOST_CURVES]
    known = table[(table["ranking"] == "random") | table["measure"].isin(shown)]
    losses = known[["loss", "low", "high"]]
    low = float(losses.min().min())
    high = float(losses.max().max())
    span = [round(low - 0.03 * (high - low), 4), round(high + 0.03 * (high - low), 4)]
    seeds = table.loc[table["ranking"] == "random", "seed"].nunique()
    return Figure(
        name="removal-curves",
        title="Loss while heads are removed, the least important first",
        note="blue: in the order of the score · orange: scored again after each step · thin: the other scores"
        + (f" · grey: {seeds} random orders" if seeds else ""),
        panels=[_curve_panel(known, measure, span, areas) for measure in shown],
        columns=3 if len(shown) > 2 else len(shown),
        facts=(f"Random orders: {seeds}. " if seeds else "")
        + (
            f"Scores in the table only: {len(ordered) - len(shown)}."
            if len(ordered) > len(shown)
            else ""
        ),
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
    found: pd.DataFrame, measure: str, span: list[float], areas: dict[tuple[str, str], float]
) -> Panel:
    """The score's own curves with their intervals, over the range of random orders and the other scores' curves."""
    random = (
        found[found["ranking"] == "random"]
        .groupby("removed")["loss"]
        .agg(low="min", high="max")
        .reset_index()
    )
    scored = found[found["ranking"] != "random"]
    scored = scored.assign(colour=scored["ranking"], ranking=scored["ranking"].map(RANKINGS))
    own = scored[scored["measure"] == measure]
    ends = zip(own["low"], own["high"], strict=True)
    intervals = []
    for low, high in ends:
        intervals.append(f"{low:.3f} to {high:.3f}" if high >= low else "not measured")

    own = own.assign(interval=intervals)
    others = scored[(scored["measure"] != measure) & (scored["colour"] == "once")].assign(
        colour="random"
    )
    x = axis(
        "removed:Q",
        "heads removed",
        domain=[0, int(found["total"].max())],
        grid=False,
        tickCount=4,
        tickMinStep=1,
    )
    y = axis("loss:Q", "loss (nats a token)", domain=span, zero=False, tickCount=4)
    colours = colour("colour:N", ["once", "random", "rescored"])
    tip = tips("ranking:N", "removed:Q|heads removed", "loss:Q||.3f", "interval:N|95 % interval")
    own = own[["removed", "loss", "low", "high", "colour", "ranking", "interval"]]
    others = others[["measure", "removed", "loss", "colour"]]
    marks = [
        *charts.curve(random.assign(colour="random"), x, y, colours, band=0.3)[:1],
        *charts.curve(
            others, x, y, colours, width=1, opacity=0.5, detail=charts.field("measure:N")
        ),
        *charts.curve(own, x, y, colours, band=0.2, dots=34, width=2.2, tip=tip),
    ]
    own_areas = []
    for ranking in RANKINGS:
        if (measure, ranking) in areas:
            own_areas.append(areas[measure, ranking])

    text = ", scored again ".join(number(area, min(0.5, abs(area))) for area in own_areas)
    chart = charts.layered(marks, 190, f"Loss while heads are removed by {measure}")
    return Panel(chart, f"{capital(measure_name(measure))} · area {text}", width=270, narrowest=150)
