"""Which score to believe: removal curves, and each score compared with exact ablation of single heads."""

from __future__ import annotations

from typing import Any

import altair as alt
import pandas as pd

from headwise.report import charts
from headwise.report.parts import Figure, Panel, Row, Section, Table
from headwise.report.run import Run
from headwise.report.words import KIND_NAMES, NONE, capital, measure_name, number, percent

STATISTICS = {
    "area": "loss while heads go",
    "area.rescored": "scored again",
    "spearman": "rank correlation",
    "spearman.within": "within layers",
    "kendall": "Kendall",
    "precision@25%": "top quarter found",
    "stability": "on another text",
}
MOST_CURVES = 9
ORDERS = {"once": "scored once", "rescored": "scored again after each step"}


def build(run: Run) -> dict[str, Any]:
    """The figure of removal, the judge's table, and the best score of each kind of heads."""
    return {"removal": removal_curves(run), "judged": judge_table(run), "kinds": kinds_table(run)}


def judged(run: Run) -> pd.DataFrame | None:
    """The judge's statistics over all the kinds of heads it had: columns value, low, high, against; index measure and
    statistic. None without any.
    """
    table = None if run.faithfulness is None else run.faithfulness.dropna(subset=["value"])
    if table is None or table.empty:
        return None
    table = table[~_of_another_truth(table)]
    several = table["kinds"].str.count(r"\+")
    widest = several.groupby([table["statistic"], table["measure"]]).transform("max")
    return table[several == widest].drop_duplicates(["measure", "statistic"]).set_index(["measure", "statistic"])


def _truth(table: pd.DataFrame) -> str:
    """The measure that scores are compared with."""
    ceilings = table.loc[table["statistic"] == "ceiling", "against"]
    compared = table.loc[(table["statistic"] == "spearman") & (table["measure"] != table["against"]), "against"]
    return str(next(iter([*ceilings, *compared, "ablation.zero"])))


def _of_another_truth(table: pd.DataFrame) -> pd.Series[bool]:
    return table["statistic"].str.match("spearman|kendall|precision") & (table["against"] != _truth(table))


def of(found: pd.DataFrame, statistic: str) -> pd.DataFrame:
    """A statistic by measure."""
    here: pd.DataFrame = found[found.index.get_level_values("statistic") == statistic].droplevel("statistic")
    return here


def most_faithful(found: pd.DataFrame) -> str | None:
    """The measure by which removal costs least; without removal curves, that of the highest rank correlation."""
    area = of(found, "area")["value"].drop("random", errors="ignore")
    if len(area):
        return str(area.idxmin())
    rank = of(found, "spearman")["value"]
    rank = rank[~rank.index.str.startswith("ablation")]
    return str(rank.idxmax()) if len(rank) else None


def in_short(run: Run) -> list[tuple[str, str, str]]:
    """The best score and its numbers, for the opening."""
    found = judged(run)
    best = None if found is None else most_faithful(found)
    if found is None or best is None:
        return []
    facts = [("Most faithful score", capital(measure_name(best)), "")]
    for statistic, label, beside, key in (
        ("area", "Removal in its order", "random orders", ("random", "area")),
        ("spearman", "Rank correlation with exact ablation", "the ablation with itself", None),
    ):
        value = _value(found, (best, statistic))
        ceiling = of(found, "ceiling")["value"]
        other = _value(found, key) if key else (ceiling.iloc[0] if len(ceiling) else None)
        if value is not None:
            scale, unit = (min(0.5, abs(value)), " nats a token") if statistic == "area" else (0.5, "")
            beside_text = "" if other is None else f" ({beside}: {number(other, scale)})"
            facts.append((label, f"{number(value, scale)}{unit}{beside_text}", ""))
    return facts


def _value(found: pd.DataFrame, key: tuple[str, str]) -> float | None:
    return float(found["value"].to_dict()[key]) if key in found.index else None


def judge_table(run: Run) -> Table | None:
    """One row a score, the one by which removal costs least first; random orders among them."""
    found = judged(run)
    if found is None:
        return None
    known = [name for name in STATISTICS if len(of(found, name))]
    measures = {measure for measure, name in found.index if name in STATISTICS}
    area, rank = (of(found, name)["value"].to_dict() for name in ("area", "spearman"))
    best = most_faithful(found)
    near = _near(found, best)
    rows = [
        Row(
            ["Random order" if m == "random" else capital(measure_name(m)), *(_cell(found, m, name) for name in known)],
            badge="best" if m == best else "as good" if m in near else "",
            code="" if m == "random" else m.removeprefix("-"),
        )
        for m in sorted(measures, key=lambda m: (area.get(m, float("inf")), -rank.get(m, -1.0), m))
    ]
    if len(of(found, "ceiling")):
        truth = str(of(found, "ceiling")["against"].iloc[0])
        ceilings = {"spearman": "ceiling", "spearman.within": "ceiling.within"}
        cells = [_cell(found, truth, ceilings.get(name, "")) for name in known]
        rows.append(Row([f"{capital(measure_name(truth))}, repeated", *cells]))
    return Table("Scores and how faithful they are", ["score", *(STATISTICS[name] for name in known)], rows)


def _near(found: pd.DataFrame, best: str | None) -> set[str]:
    """The scores whose area has an interval that overlaps that of the best."""
    area = of(found, "area").drop("random", errors="ignore").dropna(subset=["low", "high"])
    if best is None or best not in area.index:
        return set()
    low, high = area.loc[best, "low"], area.loc[best, "high"]
    return set(area.index[(area["low"] <= high) & (area["high"] >= low)]) - {best}


def _cell(found: pd.DataFrame, measure: str, statistic: str) -> str:
    """A value, and its interval on a line of its own; of random orders, their range."""
    if (measure, statistic) not in found.index:
        return NONE
    row: Any = found.loc[(measure, statistic)]
    scale = min(0.5, abs(row["value"])) if statistic.startswith("area") else 0.5
    if statistic.startswith("precision"):
        return percent(row["value"])
    if pd.isna(row["low"]) or pd.isna(row["high"]):
        return number(row["value"], scale)
    low, high = number(row["low"], scale), number(row["high"], scale)
    return f"{number(row['value'], scale)}\n{f'{low} to {high}' if measure == 'random' else f'[{low}, {high}]'}"


def kinds_table(run: Run) -> Table | None:
    """The score that ranks the heads of each kind most as ablation does; None for one kind."""
    table = None if run.faithfulness is None else run.faithfulness.dropna(subset=["value"])
    if table is None or table.empty:
        return None
    table = table[(table["statistic"] == "spearman") & table["kinds"].isin(KIND_NAMES) & ~_of_another_truth(table)]
    table = table[~table["measure"].str.startswith("ablation")]
    best = table.sort_values("value", ascending=False, kind="stable").drop_duplicates("kinds")
    if len(best) < 2:
        return None
    found = {row["kinds"]: [measure_name(row["measure"]), number(row["value"], 0.5)] for row in best.to_dict("records")}
    rows = [Row([KIND_NAMES[kind], *found[kind]]) for kind in KIND_NAMES if kind in found]
    return Table("Best score kind by kind", ["heads", "score", "rank correlation"], rows)


def removal_curves(run: Run) -> Figure | None:
    """The loss while heads are removed, a panel a score, the best first; None without curves.csv."""
    if run.curves is None or run.curves.empty:
        return None
    table = run.curves.dropna(subset=["loss"])
    areas = curve_areas(table)
    ordered = [measure for measure, order in sorted(areas, key=lambda key: areas[key]) if order == "once"]
    shown = ordered[:MOST_CURVES]
    known = table[(table["order"] == "random") | table["measure"].isin(shown)]
    low, high = (float(getattr(getattr(known[["loss", "low", "high"]], end)(), end)()) for end in ("min", "max"))
    span = [round(low - 0.03 * (high - low), 4), round(high + 0.03 * (high - low), 4)]
    seeds = table.loc[table["order"] == "random", "seed"].nunique()
    return Figure(
        name="removal-curves",
        title="Loss while heads go, the least important first",
        note="blue: in the order of the score · orange: scored again after each step · thin: the other scores"
        + (f" · grey: {seeds} random orders" if seeds else ""),
        panels=[_panel(known, measure, span, areas) for measure in shown],
        columns=3 if len(shown) > 2 else len(shown),
        facts=(f"Random orders: {seeds}. " if seeds else "")
        + (f"Scores in the table only: {len(ordered) - len(shown)}." if len(ordered) > len(shown) else ""),
    )


def curve_areas(table: pd.DataFrame) -> dict[tuple[str, str], float]:
    """By measure and order: the mean loss above that of the whole model, over the steps after the first."""
    found: dict[tuple[str, str], float] = {}
    for (measure, order), part in table.groupby(["measure", "order"]):
        losses = part.groupby("removed")["loss"].mean().sort_index()
        if len(losses) > 1:
            found[str(measure), str(order)] = float(losses.iloc[1:].mean() - losses.iloc[0])
    return found


def _panel(table: pd.DataFrame, measure: str, span: list[float], areas: dict[tuple[str, str], float]) -> Panel:
    """The score's own curves with their intervals, over the range of random orders and the other scores' curves."""
    random = table[table["order"] == "random"].groupby("removed")["loss"].agg(low="min", high="max").reset_index()
    scored = table[table["order"] != "random"]
    scored = scored.assign(colour=scored["order"], order=scored["order"].map(ORDERS))
    own = scored[scored["measure"] == measure]
    ends = zip(own["low"], own["high"], strict=True)
    own = own.assign(interval=[f"{low:.3f} to {high:.3f}" if high >= low else "not measured" for low, high in ends])
    others = scored[(scored["measure"] != measure) & (scored["colour"] == "once")].assign(colour="random")
    x = alt.X(
        "removed:Q", title="heads removed", scale=alt.Scale(domain=[0, int(table["total"].max())]),
        axis=alt.Axis(grid=False, tickCount=4, tickMinStep=1),
    )  # fmt: skip
    y = alt.Y(
        "loss:Q", title="loss (nats a token)", scale=alt.Scale(domain=span, zero=False), axis=alt.Axis(tickCount=4)
    )
    colour = alt.Color(
        "colour:N", scale=alt.Scale(domain=["once", "random", "rescored"], range="category"), legend=None
    )
    tip = charts.tips("order:N", "removed:Q|heads removed", "loss:Q||.3f", "interval:N|95 % interval")
    columns = ["removed", "loss", "low", "high", "colour", "order", "interval"]
    marks = [
        *charts.curve(random.assign(colour="random"), x, y, colour, band=0.3),
        *charts.curve(
            others[["measure", "removed", "loss", "colour"]], x, y, colour, width=1, opacity=0.5, detail="measure:N"
        ),
        *charts.curve(own[columns], x, y, colour, band=0.2, dots=34, width=2.2, tip=tip),
    ]
    own_areas = [areas[measure, order] for order in ORDERS if (measure, order) in areas]
    text = ", scored again ".join(number(area, min(0.5, abs(area))) for area in own_areas)
    chart = charts.layered(marks, 190, f"Loss while heads are removed by {measure}")
    return Panel(chart, f"{capital(measure_name(measure))} · area {text}", width=270, narrowest=150)


SECTION = Section("believe", "Which to believe", "Which score to believe", build)
