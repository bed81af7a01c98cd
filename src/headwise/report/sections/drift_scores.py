"""Part of drift: scores before and after pruning, on the heads that stay."""

from __future__ import annotations

import math
from typing import Any

import altair as alt
import pandas as pd
from scipy.stats import spearmanr

from headwise.heads import KINDS
from headwise.report import charts
from headwise.report.models import Model
from headwise.report.parts import Figure, Panel, Row, Table
from headwise.report.run import Run
from headwise.report.sections.scores import drawn_measures
from headwise.report.words import KIND_NAMES, NONE, capital, measure_name, signed

FEWEST = 4  # heads below which no rank correlation is given
Pair = tuple[Model, str, pd.DataFrame]  # a model, a measure, and a row a head: kind, layer, head, before, after


def pairs(run: Run) -> list[Pair]:
    """Every model that was scored again, with each family's measure that both it and the full model have."""
    found = list[Pair]()
    for model in run.pruned if run.heads is not None else ():
        again = run.rescored.get(model["setting"])
        if again is None or again.heads is None or run.heads is None:
            continue
        for measure in drawn_measures(set(run.heads["measure"]) & set(again.heads["measure"])):
            table = _joined(run.heads, again.heads, measure, model)
            found += [(model, measure, table)] if len(table) else []
    return found


def _joined(before: pd.DataFrame, after: pd.DataFrame, measure: str, model: Model) -> pd.DataFrame:
    """The heads of the pruned kinds that have a score in both.

    LRP is a share of its layer: the shares before are among the heads that stay, so that both sum to 1; a layer of
    which one head is left says nothing.
    """
    key = ["kind", "layer", "head"]
    parts = [table[table["measure"] == measure].dropna(subset=["value"])[[*key, "value"]] for table in (before, after)]
    joined = parts[0].rename(columns={"value": "before"}).merge(parts[1].rename(columns={"value": "after"}), on=key)
    joined = joined[joined["kind"].isin(model["kinds"])]
    if measure.startswith("lrp"):
        layers = joined.groupby(key[:2])
        joined = joined.assign(before=joined["before"] / layers["before"].transform("sum"))
        joined = joined[layers["head"].transform("size") > 1]
    return joined


def rank(table: pd.DataFrame) -> float:
    """Spearman's rank correlation of before and after; not a number for very few heads, or equal scores."""
    if len(table) < FEWEST or min(table["before"].nunique(), table["after"].nunique()) < 2:
        return math.nan
    return float(spearmanr(table["before"], table["after"]).statistic)


def rank_table(run: Run) -> Table | None:
    """The rank correlation of each score with itself before pruning, model by model; None where none was scored."""
    known = pairs(run)
    measures = list(dict.fromkeys(measure for _, measure, _ in known))
    by_model: dict[str, dict[str, str]] = {}
    labels = {model["setting"]: model for model, _, _ in known}
    for model, measure, table in known:
        found = rank(table)
        text = f"{NONE if math.isnan(found) else signed(found)}\nn = {len(table)}"
        by_model.setdefault(model["setting"], {})[measure] = text
    rows = [
        Row(
            [labels[name]["label"], *(cells.get(m, NONE) for m in measures)],
            badge="chosen" if labels[name]["chosen"] else "",
        )
        for name, cells in by_model.items()
    ]
    columns = ["model", *(measure_name(measure) for measure in measures)]
    return Table("Rank correlation of scores before and after pruning", columns, rows) if rows else None


def figure(run: Run) -> Figure | None:
    """Each score after pruning against the same before, a point a head that stays: of the chosen model, or else of the
    one with the most heads. None where nothing was scored again.
    """
    known = pairs(run)
    if not known:
        return None
    shown = next((model for model, _, _ in known if model["chosen"]), known[0][0])
    panels = [_panel(measure, table) for model, measure, table in known if model["setting"] == shown["setting"]]
    return Figure(
        name="scores-after",
        title=f"Scores of the heads that stay, before and after pruning ({shown['label']})",
        note="a point is a head · on the line: as before",
        panels=panels,
        columns=min(3, len(panels)),
    )


def _panel(measure: str, table: pd.DataFrame) -> Panel:
    address = table["kind"] + "/" + table["layer"].astype(str) + "/" + table["head"].astype(str)
    cells = table[["before", "after"]].assign(address=address, kind=table["kind"].map(KIND_NAMES))
    low, high = min(0, *cells["before"], *cells["after"]), max(*cells["before"], *cells["after"])
    scale = alt.Scale(domain=[low, high if high > low else low + 1])
    axis = alt.Axis(tickCount=3, grid=False)
    x = alt.X("before:Q", title="full model", scale=scale, axis=axis)
    y = alt.Y("after:Q", title="pruned model", scale=scale, axis=axis)
    present = [KIND_NAMES[kind] for kind in KINDS if KIND_NAMES[kind] in set(cells["kind"])]
    legend: dict[str, Any] = {"orient": "top", "columns": 1}
    shape = charts.shapes("kind:N", present, **legend)
    if len(present) < 2:
        shape["legend"] = None
    tip = charts.tips("address:N|head", "before:Q|full model|.3~g", "after:Q|pruned model|.3~g")
    ends = [{"before": end, "after": end} for end in scale["domain"]]
    line = alt.Chart(charts.data(ends)).mark_line(style="level", strokeDash=[4, 4]).encode(x=x, y=y)
    points = charts.intervals(cells, x, y, tip=tip, size=80, shape=shape)[1:]
    name, found, count = capital(measure_name(measure)), rank(table), len(table)
    heads = f"{count} {'head' if count == 1 else 'heads'}"
    text = f"{heads}, too few to rank" if math.isnan(found) else f"rank correlation {signed(found)}, {heads}"
    chart = charts.layered([line, *points], 230, f"{name} before and after pruning")
    return Panel(chart, f"{name}: {text}", width=250, narrowest=140, widest=420)
