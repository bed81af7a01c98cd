"""All seeds of each data set: BLEU against heads kept over seeds, and the means of every model with intervals."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pandas as pd

from headwise.report import models
from headwise.report.models import DIFFERENCE, Model, value
from headwise.report.parts import Figure, Row, Section, Table
from headwise.report.run import Grid
from headwise.report.sections.cost_charts import quality_figures
from headwise.report.sections.grid_opening import data_of
from headwise.report.words import NONE

ENDINGS = {
    "_to_fine-tuned": "to equal further training", "": "to the full model", "_to_pruned": "to its control",
    "_to_random": "to random heads", "_to_uncompensated": "to removal without mean outputs",
}  # fmt: skip


def build(grid: Grid) -> dict[str, Any]:
    """For every data set its figures and tables of means."""
    parts = []
    for i, data in enumerate(data_of(grid)):
        means = means_of(grid, data)
        parts.append(
            {
                "anchor": f"data-{i}",
                "title": data or "All seeds",
                "seeds": int(grid.models.loc[grid.models["data"] == data, "seed"].nunique()),
                "figures": [] if means is None else seed_figures(grid, data, means),
                "trained": None if means is None else means_table(grid, data, means),
                "untrained": None if means is None else means_table(grid, data, means, trained=False),
            }
        )
    return {"parts": parts}


def means_of(grid: Grid, data: str) -> pd.DataFrame | None:
    """The models of one data set, each once, as means over seeds, with the columns seeds, kept_low and kept_high; None
    before a run has results.

    Where two seeds or more have a model, its differences and their intervals are those of across.csv; otherwise its one
    seed's. Its BLEU is that of the mean full model plus the mean difference: seeds that start higher do not lift the
    models that only they have.
    """
    every = grid.models[grid.models["data"] == data]
    if every.empty:
        return None
    kept = every.groupby(level=0)["kept"].agg(["count", "mean", "min", "max"])
    means = every[~every.index.duplicated()].copy()
    means[["seeds", "mean_kept", "kept_low", "kept_high"]] = kept.loc[means.index]
    means = means.astype({"seeds": int, "kept_low": int, "kept_high": int})
    means["kept"], means["chosen"] = [round(number) for number in means["mean_kept"]], False
    found = grid.means[grid.means["data"] == data].set_index(["setting", "measure"])[["value", "low", "high"]]
    full = every[every["method"] == "none"]
    for part in ("", "dev_"):
        for ending in ENDINGS:
            measure = f"{part}{DIFFERENCE}{ending}"
            alone = every[every[measure].notna()] if measure in every else every[:0]
            alone = alone[~alone.index.duplicated(keep=False)]
            for end, column in (("", "value"), (".low", "low"), (".high", "high")):
                own = alone[measure + end] if len(alone) else pd.Series(dtype=float)
                over = (
                    found[column].xs(measure, level="measure")
                    if measure in set(found.index.get_level_values("measure"))
                    else pd.Series(dtype=float)
                )
                means[measure + end] = over.reindex(means.index).combine_first(own.reindex(means.index))
        base = full[f"{part}bleu"].mean() if f"{part}bleu" in full else float("nan")
        means[f"{part}bleu"] = base + means[f"{part}{DIFFERENCE}"]
        means.loc[means["method"] == "none", f"{part}bleu"] = base
        means = means.drop(columns=[f"{part}p_value"], errors="ignore")
    means = means.copy()
    order = [(model["method"] != "none", -model["kept"]) for model in models.rows(means)]
    return means.iloc[sorted(range(len(means)), key=order.__getitem__)]


def seed_figures(grid: Grid, data: str, means: pd.DataFrame) -> list[Figure]:
    """Figure 7 of one data set: lines through means, small marks for single seeds, rings around what each chose."""
    limit = next((m.facts.get("max_drop") for m in grid.members if m.data == data and not m.models.empty), None)
    slug = re.sub(r"[^\w-]+", "-", data).strip("-")
    found = quality_figures(means, {"max_drop": limit}, grid.models[grid.models["data"] == data])
    return [
        replace(figure, name=f"{figure.name}-{slug}", title=f"{data}: {figure.title}") if data else figure
        for figure in found
    ]


def means_table(grid: Grid, data: str, means: pd.DataFrame, trained: bool = True) -> Table | None:
    """Every model with gates and every control. Not `trained`: the models without gates, with the full one first; None
    where the first table has them.
    """
    first = means["learned"] | (means["method"] == "none") | means["method"].str.startswith("control.")
    first |= not means["learned"].any()
    shown = models.ordered(means[first if trained else ~first | (means["method"] == "none")])
    if len(shown) < (1 if trained else 2):
        return None
    prefix = models.text_prefix(grid.models)
    columns = ["model", "seeds", "heads kept", f"BLEU on {'dev' if prefix else 'test'}", *ENDINGS.values()]
    what = "Means over seeds" if trained else "Removal without gates, means over seeds"
    rows = [Row(_cells(model, prefix), code=model["setting"]) for model in shown]
    return Table(f"{what}, {data or grid.name}", columns, rows).without_empty(NONE)


def _cells(model: Model, prefix: str) -> list[str]:
    low, high, bleu = model["kept_low"], model["kept_high"], value(model, f"{prefix}bleu")
    kept = f"{model['mean_kept']:.1f} ({low}–{high})" if low < high else f"{model['kept']}"
    changes = [models.difference(model, f"{prefix}{DIFFERENCE}{ending}") or NONE for ending in ENDINGS]
    number = NONE if bleu is None else f"{bleu:.2f}"
    return [model["label"], str(model["seeds"]), f"{kept} of {model['total']}", number, *changes]


SECTION = Section("grid_seeds", "Over seeds", "", build)
