"""Several runs, read into memory: the grid of a plan, or two that are compared (`comparison.py`); and their page.

Its first screen says what each run chose and how far it is. One section has the models of all runs side by side: in a
grid those of each data set, as means over its seeds.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from operator import itemgetter
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pandas as pd

from headwise.core.errors import HeadwiseError
from headwise.core.folders import below, checked_name, read_json
from headwise.core.heads import Head
from headwise.core.measured import SPLITS, UNPRUNED, ModelNumbers, numbers_by_setting
from headwise.core.qualities import Number
from headwise.core.tables import ACROSS
from headwise.faces.report import models
from headwise.faces.report.charts import Figure
from headwise.faces.report.cost import models_table
from headwise.faces.report.format import capital, count, listed
from headwise.faces.report.models import OTHERS
from headwise.faces.report.page import Columns, section, table
from headwise.faces.report.quality_curves import quality_figures, run_points, runs_panel
from headwise.faces.report.role_tables import role_facts
from headwise.faces.report.run_folder import RunContents, read_run, table_or_empty
from headwise.faces.report.summary import lead_sentences
from headwise.study.records import refuse_damaged

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
class Runs:
    """Several runs by name, and what is said of them together.

    page: `grid` or `comparison`. parts: the tables of models that stand side by side, by name: of two runs theirs, of a
    grid the means over seeds of each data set. split: the text that is reported, test or dev. notes: what a reader should
    know before the numbers.
    For a grid, absent: why a run is not there, or cannot be read; pages: where a run's own page is; seeds: by data set the
    models of all its seeds, with a column `seed`.
    For two runs, heads: those that can be paired.
    """

    page: str
    name: str
    headline: str
    runs: Mapping[str, RunContents]
    parts: Mapping[str, pd.DataFrame]
    split: str
    notes: Sequence[str] = ()
    absent: Mapping[str, str] = field(default_factory=dict)
    pages: Mapping[str, str] = field(default_factory=dict)
    seeds: Mapping[str, pd.DataFrame] = field(default_factory=dict)
    heads: list[Head] = field(default_factory=list)


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
    read = {}
    absent = {}
    pages = {}
    measured: dict[str, list[pd.DataFrame]] = {}
    for place, data, seed in runs:
        for part in place.split("/"):
            checked_name(part, folder / "grid.json")
        own = below(folder, place)
        called = f"{data}, seed {seed}" if data else f"seed {seed}"
        if (own / "report.html").is_file():
            # A `#` or `?` in the name of a folder would end the path of a link.
            pages[called] = quote(f"{place}/report.html")
        if not (own / "run.json").is_file():
            absent[called] = "begun, nothing measured yet" if own.is_dir() else "not begun"
            continue
        try:
            run = read[called] = read_run(own)
        except HeadwiseError as error:
            absent[called] = f"cannot be read: {error}"
            continue
        if not run.model_table.empty:
            measured.setdefault(data, []).append(run.model_table.assign(seed=seed))

    across = table_or_empty(below(folder, ACROSS.file), ACROSS)
    seeds = {data: pd.concat(frames) for data, frames in measured.items()}
    sets = count(len({data for _, data, _ in runs}), "data set")
    trained = count(len({seed for _, _, seed in runs}), "seed")
    done = sum(map(len, measured.values()))
    splits = {models.reported_split(part) for part in seeds.values()}
    return Runs(
        page="grid",
        name=name,
        headline=f"{sets}, {trained}: {done} of {count(len(runs), 'run')} with results",
        runs=read,
        parts={
            data: means_over_seeds(own, across[across["data"] == data])
            for data, own in seeds.items()
        },
        split="test" if "test" in splits or not splits else "dev",
        absent=absent,
        pages=pages,
        seeds=seeds,
    )


def means_over_seeds(every: pd.DataFrame, across: pd.DataFrame) -> pd.DataFrame:
    """The models of one data set, each once, as means over seeds, with the columns seeds, kept_low and kept_high.

    Where two seeds or more have a model, its differences and their intervals are those of across.csv; otherwise its one
    seed's. Its quality is that of the mean full model plus the mean difference: seeds that start higher do not lift the
    models that only they have.
    """
    kept = every.groupby(level=0)["kept"].agg(
        seeds="count", mean_kept="mean", kept_low="min", kept_high="max"
    )
    first = every[~every.index.duplicated()]
    means = first.drop(columns="mean_kept").join(kept)
    means["kept"] = means["mean_kept"].round().astype(int)
    # Each seed has chosen for itself; rings mark these (seed_figures).
    means["chosen"] = False
    quality = models.quality(every)
    full = every[every["method"] == "none"]
    known = numbers_by_setting(across)
    numbers = []
    for setting in means.index:
        found = ModelNumbers(known.get(setting, {}))
        for split, reference in product(SPLITS, OTHERS):
            key = (split, quality.name, reference)
            # The seeds that have measured it.
            own = [one[key] for one in every.loc[[setting], "numbers"] if key in one]
            if len(own) == 1:
                found.setdefault(key, replace(own[0], p=None))  # as the means beside it, without p
        for split in SPLITS:
            base = models.values(full, quality.name, split).mean()
            # What it is from the full model, on average over seeds.
            change = found.of(quality.name, split, UNPRUNED).value
            if setting in full.index:
                change = 0
            if change is not None and not math.isnan(base):
                found[split, quality.name, ""] = Number(quality.moved(base, change))
        numbers.append(found)
    means["numbers"] = pd.Series(numbers, means.index, dtype=object)
    return models.sorted_by_heads(means)


@section(
    "runs",
    question="What did each run choose, and how far is it?",
    pages=("grid", "comparison"),
    order=0,
    files=("run.json", "pruning.csv"),
)
def runs_section(found: Runs) -> dict[str, Any]:
    """The headline, a row a run with a link to its page, and why steps failed."""
    blank = dict.fromkeys(OF_A_RUN, "")
    rows = [blank | {"run": name} | cells_of_run(run) for name, run in found.runs.items()]
    rows += [blank | {"run": name, "state": why} for name, why in found.absent.items()]
    columns: Columns = {title: itemgetter(title) for title in OF_A_RUN}
    failed = []
    for name, run in found.runs.items():
        for step, why in run.facts["failed"].items():
            lines = str(why).strip().splitlines() or ["no reason was left"]
            # A traceback says what happened in its last line.
            failed.append((name, step, lines[-1]))
    return {
        "headline": found.headline,
        "notes": found.notes,
        "runs": table("Runs", rows, columns),
        "pages": found.pages,
        "failed": failed,
    }


def cells_of_run(run: RunContents) -> dict[str, str]:
    """What the first table says of a run, by the titles of its columns."""
    cells = {}
    if run.chosen:
        cells["chosen"] = str(run.chosen["label"])
        headline, *more = lead_sentences(run)
        cells["result"] = f"{headline}\n{' '.join(more)}"
    quality = run.quality_of(run.full).value
    if quality is not None:
        cells["full model"] = f"{quality:.2f} {run.quality.title} on {run.split}"
    roles = [f"{label}: {text}" for label, text, _ in role_facts(run)]
    cells["heads with a role"] = "; ".join(roles)
    pairs = run.facts.get("interactions")
    if pairs:
        same = f"{pairs['redundant']} of {pairs['measured']}"
        cells["pairs that do the same work"] = f"{same}\nneed each other: {pairs['synergistic']}"
    missing = len(run.facts["settings"].keys() - set(run.model_table.index))
    cells["state"] = f"{count(len(run.model_table), 'model')} measured"
    if missing:
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
    if not found.parts:
        return None
    measured = {models.quality_on(part, found.split).title for part in found.parts.values()}
    if len(measured) > 1:
        return {
            "unlike": f"No common curve and table: one run is measured in {', another in '.join(sorted(measured))}."
        }
    joined = pd.concat([part.assign(run=name) for name, part in found.parts.items()])
    removed = ~joined["learned"] & joined.index.isin(models.pruned(joined).index)
    # Without any gates, removal is the result, and stands in the first table.
    if not joined["learned"].any():
        removed[:] = False
    return {
        "unlike": "",
        "curves": curves_side_by_side(joined, found.split),
        "seeds": seed_figures(found),
        "models": models_table(joined[~removed], found.split, OTHERS),
        "others": models_table(joined[removed], found.split, OTHERS, "Removal without gates"),
        "measured": measured.pop(),
        "text": found.split,
    }


def curves_side_by_side(joined: pd.DataFrame, split: str) -> Figure | None:
    """Quality above or below the full model against the share of heads kept, a line for each run or data set and method:
    of gates, or without any of greedy orders. None where no two have pruned the same kinds of heads."""
    names = list(dict.fromkeys(joined["run"]))
    quality = models.quality_on(joined, split)
    pruned = models.pruned(joined)
    is_random = pruned["method"] == models.RANDOM_METHOD
    drawn = pruned[pruned["learned"] if pruned["learned"].any() else ~is_random]
    panels = []
    for kinds in models.groups(drawn):
        part = models.of_kinds(drawn, kinds)
        if len(set(part["run"])) < 2:
            continue
        if len(set(part["line"])) > 1:
            part = part.assign(run=part["run"] + " · " + part["line"])
        points = pd.DataFrame(run_points(part, quality, split))
        if len(points) > 1:
            lines = list(dict.fromkeys(part["run"]))
            title = capital(models.group_name(kinds))
            panels.append(runs_panel(points, lines, title, quality, split))
    if not panels:
        return None
    return Figure(
        name="side-by-side",
        title=f"{listed(names)} side by side",
        note="zero: the full model of the same line · bars: 95 % interval, over seeds where there are several",
        panels=panels,
        columns=min(2, len(panels)),
    )


def seed_figures(found: Runs) -> list[Figure]:
    """Figure 7 of each data set: lines through means, small marks for single seeds, rings around what each chose."""
    limit = next((run.limit for run in found.runs.values()), None)  # all runs have one plan
    figures = []
    slugs: list[str] = []
    for data, seeds in found.seeds.items():
        # A figure's name is also a file name, and a data set may be called anything.
        slug = re.sub(r"[^\w-]+", "-", f"-{data}").rstrip("-")
        while slug.lower() in slugs:
            slug += "-2"
        slugs.append(slug.lower())
        for figure in quality_figures(found.parts[data], {"max_drop": limit}, seeds):
            title = f"{data}: {figure.title}" if data else figure.title
            figures.append(replace(figure, name=f"{figure.name}{slug}", title=title))
    return figures
