"""Scores before and after pruning, on the heads that stay: whether the heads that mattered still do."""

from __future__ import annotations

import math
from dataclasses import dataclass

import altair as alt
import pandas as pd
from scipy.stats import spearmanr

from headwise.heads import KINDS, Head
from headwise.report.figure import Figure, Panel, rows
from headwise.report.run import Run
from headwise.report.score_figures import drawn_measures
from headwise.report.setting import Setting
from headwise.report.table import Line, Table
from headwise.report.wording import KIND_NAMES, NONE, listed, measure_name, sentence, signed

FEWEST = 4  # heads below which no rank correlation is told


@dataclass(frozen=True)
class Pairs:
    """One score of the heads that stay, with a row a head: kind, layer, head, before, after."""

    setting: Setting
    measure: str
    table: pd.DataFrame

    @property
    def rank(self) -> float:
        """Spearman's rank correlation of before and after; not a number for very few heads, or equal scores."""
        if len(self.table) < FEWEST or min(self.table["before"].nunique(), self.table["after"].nunique()) < 2:
            return math.nan
        return float(spearmanr(self.table["before"], self.table["after"]).statistic)


def pairs(run: Run) -> list[Pairs]:
    """Every setting that was scored again, and each family's measure that was made before and after."""
    found: list[Pairs] = []
    if run.heads is None:
        return found
    for setting in run.pruned:
        after = run.after.get(setting.name)
        if after is None or after.heads is None:
            continue
        common = set(run.heads["measure"]) & set(after.heads["measure"])
        for measure in drawn_measures(common):
            table = _joined(run.heads, after.heads, measure, setting)
            if len(table):
                found.append(Pairs(setting, measure, table))
    return found


def _joined(before: pd.DataFrame, after: pd.DataFrame, measure: str, setting: Setting) -> pd.DataFrame:
    """The heads of the pruned kinds that have a score in both.

    LRP is a share of its layer: the shares before are taken of the heads that stay, so that both add up to 1; a layer
    of which one head is left tells nothing.
    """
    key = ["kind", "layer", "head"]
    parts = [table[table["measure"] == measure].dropna(subset=["value"])[[*key, "value"]] for table in (before, after)]
    joined = parts[0].merge(parts[1], on=key, suffixes=("_before", "_after"))
    joined = joined.rename(columns={"value_before": "before", "value_after": "after"})
    if setting.kinds:
        joined = joined[joined["kind"].isin(setting.kinds)]
    if measure.startswith("lrp"):
        layers = joined.groupby(key[:2])
        joined = joined.assign(before=joined["before"] / layers["before"].transform("sum"))
        joined = joined[layers["head"].transform("size") > 1]
    return joined


def score_drift(run: Run) -> Figure | None:
    """Each score after pruning against the same before, a point a head that stays; None where nothing was scored again.

    Of the chosen setting, or else of the one with the most heads.
    """
    known = pairs(run)
    if not known:
        return None
    shown = next((p.setting for p in known if p.setting is run.chosen), known[0].setting)
    panels = [_panel(found) for found in known if found.setting is shown]
    lrp = any(p.measure.startswith("lrp") for p in known)
    return Figure(
        name="scores-after",
        title=f"Scores of the heads that stay, before and after pruning ({shown.label})",
        note="a point is a head · on the line: as before",
        caption="A point is a head that stays; on the line it has the score it had in the full model."
        + (
            " LRP is a share of its layer; before pruning, the share of the heads that stay; layers with one head left "
            "are not drawn."
            if lrp
            else ""
        ),
        panels=panels,
        columns=min(3, len(panels)),
    )


def _panel(found: Pairs) -> Panel:
    cells = [
        {
            "address": str(Head(row["kind"], row["layer"], row["head"])),
            "kind": KIND_NAMES[row["kind"]],
            "before": round(row["before"], 6),
            "after": round(row["after"], 6),
        }
        for row in found.table.to_dict("records")
    ]
    values = [cell[end] for cell in cells for end in ("before", "after")]
    low, high = min(0, *values), max(values)
    scale = alt.Scale(domain=[low, high if high > low else low + 1])
    axis = alt.Axis(tickCount=3, grid=False)
    x = alt.X("before:Q", title="full model", scale=scale, axis=axis)
    y = alt.Y("after:Q", title="pruned model", scale=scale, axis=axis)
    present = [KIND_NAMES[kind] for kind in KINDS if KIND_NAMES[kind] in {cell["kind"] for cell in cells}]
    legend = alt.Legend(orient="top", title=None, columns=1) if len(present) > 1 else None
    shapes = alt.Scale(domain=present, range=["circle", "square", "triangle-up"])
    tooltip = [
        alt.Tooltip("address:N", title="head"), alt.Tooltip("before:Q", title="full model", format=".3~g"),
        alt.Tooltip("after:Q", title="pruned model", format=".3~g"),
    ]  # fmt: skip
    points = (
        alt.Chart(rows(cells))
        .mark_point(style="point", filled=True, opacity=1, size=80)
        .encode(x=x, y=y, tooltip=tooltip, shape=alt.Shape("kind:N", scale=shapes, legend=legend))
    )
    ends = [{"before": end, "after": end} for end in scale["domain"]]
    line = alt.Chart(rows(ends)).mark_line(style="level", strokeDash=[4, 4]).encode(x=x, y=y)
    name = sentence(measure_name(found.measure))
    chart = alt.layer(line, points).properties(height=230, description=f"{name} before and after pruning")
    return Panel(chart, f"{name}: {_told(found)}", width=250, narrowest=140, widest=420)


def _told(found: Pairs) -> str:
    count = len(found.table)
    heads = f"{count} {'head' if count == 1 else 'heads'}"
    return f"{heads}, too few to rank" if math.isnan(found.rank) else f"rank correlation {signed(found.rank)}, {heads}"


def rank_table(run: Run) -> Table | None:
    """The rank correlation of each score with itself before pruning, setting by setting, with the number of heads."""
    known = pairs(run)
    if not known:
        return None
    measures = list(dict.fromkeys(found.measure for found in known))
    cells = {(found.setting.name, found.measure): found for found in known}
    lines = []
    for setting in dict.fromkeys(found.setting for found in known):
        told = [_cell(cells.get((setting.name, measure))) for measure in measures]
        lines.append(Line([setting.label, *told], badge="chosen" if setting is run.chosen else ""))
    columns = ["model", *(measure_name(measure) for measure in measures)]
    return Table("Rank correlation of scores before and after pruning", columns, lines)


def _cell(found: Pairs | None) -> str:
    if found is None:
        return NONE
    return f"{NONE if math.isnan(found.rank) else signed(found.rank)}\nn = {len(found.table)}"


def rank_sentence(run: Run) -> str:
    """Which score keeps its order of heads best, in the chosen setting, or else in the one with the most heads."""
    told = [found for found in pairs(run) if not math.isnan(found.rank)]
    if not told:
        return ""
    shown = next((found.setting for found in told if found.setting is run.chosen), told[0].setting)
    of = sorted((found for found in told if found.setting is shown), key=lambda found: -found.rank)
    names = listed([f"{measure_name(found.measure)} {signed(found.rank)} (n = {len(found.table)})" for found in of])
    return (
        f"Rank correlation between a score in the full model and in the pruned one, over the heads that stay, with "
        f"{shown.label}: {names}. With few heads it can be anything; n is the number of heads."
    )
