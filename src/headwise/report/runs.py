"""Several runs, read into memory: the grid of a plan, or two that are compared (`comparison.py`); and their page.

Its first screen says what each run chose and how far it is. One section has the models of all runs side by side: in a
grid those of each data set, as means over its seeds.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Any
from urllib.parse import quote

import pandas as pd

from headwise.errors import HeadwiseError
from headwise.folders import below, checked_name
from headwise.heads import Head
from headwise.pruning.measured import (
    MEASURED,
    SPLITS,
    UNPRUNED,
    Measurements,
    read_measurements,
)
from headwise.qualities import Number
from headwise.report import models
from headwise.report.charts import Figure
from headwise.report.cost import models_table
from headwise.report.format import capital, count, listed
from headwise.report.models import OTHERS
from headwise.report.page import Columns, section, table
from headwise.report.quality_curves import pair_points, pairs_panel, quality_figures
from headwise.report.role_tables import role_facts
from headwise.report.run_folder import (
    FinishedRun,
    read_json,
    read_optional_table,
    read_run,
    refuse_damaged,
)
from headwise.report.summary import run_headline

ACROSS = ("data", "setting", *MEASURED)
OF_A_RUN = (  # columns of the first table
    "run",
    "chosen",
    "result",
    "full model",
    "heads with a role",
    "pairs that do the same work",
    "state",
)


@dataclass(frozen=True)
class Member:
    """One of several runs. run: None where it has not come so far, or cannot be read; trouble says which. page: where
    its own page is; empty without one."""

    name: str
    run: FinishedRun | None
    trouble: str = ""
    page: str = ""


@dataclass(frozen=True)
class Runs:
    """Several runs, and what is said of them together.

    page: `grid` or `comparison`. parts: the tables of models that stand side by side, by name: of two runs theirs, of a
    grid the means over seeds of each data set. split: the text that is reported, test or dev. notes: what a reader should
    know before the numbers. seeds: of a grid, by data set the models of all its seeds, with a column `seed`. heads: of two
    runs, those that can be paired. matches: of two runs, the heads that `headwise match` paired.
    """

    page: str
    name: str
    headline: str
    members: Sequence[Member]
    parts: Mapping[str, pd.DataFrame]
    split: str
    notes: Sequence[str] = ()
    seeds: Mapping[str, pd.DataFrame] = field(default_factory=dict)
    heads: Sequence[Head] = ()
    matches: pd.DataFrame | None = None

    @property
    def runs(self) -> dict[str, FinishedRun]:
        """Those that could be read, by name."""
        return {member.name: member.run for member in self.members if member.run is not None}


def read_grid(folder: Path) -> Runs:
    """Read a grid folder. A run that cannot be read, or is not there yet, is kept with the reason."""
    refuse_damaged(folder)
    facts = read_json(folder / "grid.json", dict)
    try:
        name = str(facts["name"])
        runs = [(str(run["folder"]), str(run["data"]), int(run["seed"])) for run in facts["runs"]]
    except (KeyError, TypeError, ValueError) as error:
        raise HeadwiseError(
            f"{folder / 'grid.json'} should name the runs of a grid, each with folder, data and seed, but does not "
            f"({type(error).__name__}: {error}): run the study again."
        ) from None
    members = []
    measured: dict[str, list[pd.DataFrame]] = {}
    for place, data, seed in runs:
        for part in place.split("/"):
            checked_name(part, folder / "grid.json")
        own = below(folder, place)
        run = None
        trouble = "begun, nothing measured yet" if own.is_dir() else "not begun"
        if (own / "run.json").is_file():
            try:
                run = read_run(own)
            except HeadwiseError as error:
                trouble = f"cannot be read: {error}"
        if run is not None and not run.models.empty:
            measured.setdefault(data, []).append(run.models.assign(seed=seed))
        called = f"{data}, seed {seed}" if data else f"seed {seed}"
        page = quote(f"{place}/report.html") if (own / "report.html").is_file() else ""
        members.append(Member(called, run, trouble, page))

    across = read_optional_table(folder / "across.csv", ACROSS)
    across = pd.DataFrame(columns=ACROSS) if across is None else across.fillna({"data": ""})
    seeds = {data: pd.concat(frames) for data, frames in measured.items()}
    means = {data: over_seeds(own, across[across["data"] == data]) for data, own in seeds.items()}
    pairs = len({data for _, data, _ in runs})
    numbers = len({seed for _, _, seed in runs})
    what = [f"{pairs} language pairs"] * (pairs > 1) + [f"{numbers} seeds"] * (numbers > 1)
    done = sum(map(len, measured.values()))
    have = "run has" if len(runs) == 1 else "runs have"
    return Runs(
        page="grid",
        name=name,
        headline=f"{', '.join(what) or 'One run'}: {done} of {len(runs)} {have} results",
        members=members,
        parts=means,
        split=max(map(models.reported_split, seeds.values()), default="test"),
        seeds=seeds,
    )


def over_seeds(every: pd.DataFrame, across: pd.DataFrame) -> pd.DataFrame:
    """The models of one data set, each once, as means over seeds, with the columns seeds, kept_low and kept_high.

    Where two seeds or more have a model, its differences and their intervals are those of across.csv; otherwise its one
    seed's. Its quality is that of the mean full model plus the mean difference: seeds that start higher do not lift the
    models that only they have.
    """
    means = every[~every.index.duplicated()].copy()
    kept = every.groupby(level=0)["kept"].agg(["count", "mean", "min", "max"]).loc[means.index]
    means[["seeds", "kept_low", "kept_high"]] = kept[["count", "min", "max"]]
    means["mean_kept"] = kept["mean"]
    means["kept"] = kept["mean"].round().astype(int)
    means["chosen"] = False
    quality = models.quality(every)
    known = read_measurements(across)
    numbers = []
    for setting in means.index:
        own = list(every.loc[[setting], "numbers"])
        numbers.append(mean_changes(own, known.get(setting, Measurements()), quality.name))
    full = every["method"] == "none"
    for split in SPLITS:
        base = models.values(every[full], quality.name, split).mean()
        for setting, of_model in zip(means.index, numbers, strict=True):
            change = of_model.of(quality.name, split, UNPRUNED).value
            if means.loc[setting, "method"] == "none":
                change = 0
            if change is not None and not math.isnan(base):
                of_model[split, quality.name, ""] = Number(quality.moved(base, change))
    means["numbers"] = pd.Series(numbers, means.index, dtype=object)
    return models.sorted_by_heads(means)


def mean_changes(seeds: Sequence[Measurements], across: Measurements, measure: str) -> Measurements:
    """The changes of one model from others, as means over seeds. seeds: its numbers with each seed. across: what
    across.csv has of it, with intervals; other means have none."""
    found = Measurements()
    for split, reference in product(SPLITS, OTHERS):
        change = across.of(measure, split, reference)
        own = [numbers.of(measure, split, reference) for numbers in seeds]
        values = [number.value for number in own if number.value is not None]
        if change.value is None and len(values) == 1:
            change = next(replace(number, p=None) for number in own if number.value is not None)
        elif change.value is None and values:
            change = Number(fmean(values))
        if change.value is not None:
            found[split, measure, reference] = change
    return found


@section(
    "runs",
    question="What did each run choose, and how far is it?",
    pages=("grid", "comparison"),
    order=0,
    files=("run.json", "pruning.csv"),
)
def runs_section(found: Runs) -> dict[str, Any]:
    """The headline, a row a run with a link to its page, and why steps failed."""

    rows = []
    failed = []
    for member in found.members:
        row = {"run": member.name, "state": member.trouble}
        if member.run is not None:
            row |= said_of(member.run)
            for step, why in (member.run.facts.get("failed") or {}).items():
                lines = str(why).strip().splitlines() or ["no reason was left"]
                failed.append((member.name, step, lines[-1]))
        rows.append(row)
    columns: Columns = {}
    for title in OF_A_RUN:
        columns[title] = partial(lambda title, row: row.get(title, ""), title)
    return {
        "headline": found.headline,
        "notes": found.notes,
        "runs": table("Runs", rows, columns),
        "pages": {member.name: member.page for member in found.members if member.page},
        "failed": failed,
    }


def said_of(run: FinishedRun) -> dict[str, str]:
    """The cells of a run, by the titles of their columns."""
    cells = {}
    if run.chosen:
        cells["chosen"] = str(run.chosen["label"])
        cells["result"] = run_headline(run, run.chosen)
    quality = run.quality_of(run.full).value
    if quality is not None:
        cells["full model"] = f"{quality:.2f} {run.quality.title} on {run.split}"
    roles = [f"{label}: {text}" for label, text, _ in role_facts(run)]
    cells["heads with a role"] = "; ".join(roles)
    pairs = run.facts.get("interactions")
    if pairs:
        same = f"{pairs['redundant']} of {pairs['measured']}"
        cells["pairs that do the same work"] = f"{same}\nneed each other: {pairs['synergistic']}"
    done = len(run.models)
    missing = len(set(run.facts.get("settings") or {}) - set(run.models.index))
    cells["state"] = f"{count(done, 'model')} measured" if done else "no model measured yet"
    if done and missing:
        cells["state"] += f", {missing} pruned and not measured yet"
    return cells


@section(
    "runs_models",
    heading="What fewer heads cost",
    question="How much quality does each number of heads cost, run by run?",
    pages=("grid", "comparison"),
    story=True,
    order=20,
    files=("pruning.csv", "across.csv"),
)
def runs_models_section(found: Runs) -> dict[str, Any] | None:
    """Curves, and the table of all models; None without any. Runs that are measured in different things have neither."""
    qualities = {}
    for name, part in found.parts.items():
        qualities[name] = models.quality_on(part, found.split).title
    if not qualities:
        return None
    if len(set(qualities.values())) > 1:
        named = listed([f"{name} is measured in {title}" for name, title in qualities.items()])
        return {"unlike": f"No common curve and table: {named}."}
    joined = pd.concat([part.assign(run=name) for name, part in found.parts.items()])
    removed = ~joined["learned"] & joined.index.isin(models.pruned(joined).index)
    if removed.all() or not joined["learned"].any():
        removed[:] = False
    return {
        "unlike": "",
        "curves": curves_side_by_side(joined, found.split),
        "seeds": seed_figures(found),
        "models": models_table(joined[~removed], found.split, OTHERS),
        "others": models_table(joined[removed], found.split, OTHERS, "Removal without gates"),
        "measured": models.quality_on(joined, found.split).title,
        "text": found.split,
    }


def curves_side_by_side(joined: pd.DataFrame, split: str) -> Figure | None:
    """Quality above or below the full model against the share of heads kept, a panel a method: of gates, or without any
    of greedy orders. None for a single run or data set."""
    names = list(dict.fromkeys(joined["run"]))
    quality = models.quality_on(joined, split)
    gates = joined["learned"].any()
    panels = []
    for kinds in models.groups(joined):
        for name, line in models.lines(models.of_kinds(joined, kinds)):
            points = pd.DataFrame(pair_points(line, quality, split))
            drawn = line["learned"].all() or not (gates or models.is_random(line))
            if drawn and len(points) > 1 < len(names):
                heading = f"{capital(models.group_name(kinds))} · {name}"
                panels.append(pairs_panel(points, names, heading, quality, split))
    if not panels:
        return None
    return Figure(
        name="side-by-side",
        title=f"{listed(names)} side by side",
        note="zero: the full model of the same line · bars: 95 % interval, over seeds where there are several",
        panels=panels,
        columns=min(2, len(panels)),
    )


def seed_figures(found: Runs) -> dict[str, list[Figure]]:
    """Figure 7 of each data set: lines through means, small marks for single seeds, rings around what each chose."""
    limits = [run.limit for run in found.runs.values() if not run.models.empty]
    figures = {}
    for data, seeds in found.seeds.items():
        slug = re.sub(r"[^\w-]+", "-", data).strip("-")
        figures[data] = []
        for figure in quality_figures(found.parts[data], {"max_drop": limits[0]}, seeds):
            title = f"{data}: {figure.title}" if data else figure.title
            figures[data].append(replace(figure, name=f"{figure.name}-{slug}", title=title))
    return figures
