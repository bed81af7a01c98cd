"""A grid of runs, read into memory, and its page.

The page shows what every run chose, pairs side by side, means over seeds, and how far runs have come.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import quote

import pandas as pd

from headwise.errors import HeadwiseError
from headwise.folders import below, checked_name
from headwise.pruning.measured import (
    FINE_TUNED,
    MEASURED,
    SPLITS,
    UNPRUNED,
    Measurements,
    read_measurements,
)
from headwise.qualities import Number, QualityMeasure
from headwise.report import models
from headwise.report.charts import Figure
from headwise.report.format import NONE, capital, listed
from headwise.report.models import OTHERS, RANDOM_METHOD, ModelRow, change_text, measured
from headwise.report.page import Columns, Table, section, table
from headwise.report.quality_curves import pair_points, pairs_panel, quality_figures
from headwise.report.run_folder import read_json, read_models, read_optional_table, refuse_damaged

ACROSS = ("data", "setting", *MEASURED)
GridMeans = Mapping[str, pd.DataFrame]  # the models of each data set, as means over seeds


@dataclass(frozen=True)
class Member:
    """One run of a grid, as far as it has come. trouble: why it cannot be read, if so."""

    place: str
    data: str
    seed: int
    facts: Mapping[str, Any]
    models: pd.DataFrame
    trouble: str
    has_page: bool


@dataclass(frozen=True)
class Grid:
    """All runs of a plan. `models`: of all runs, with the columns data and seed; `means`: the rows of across.csv."""

    page: ClassVar[str] = "grid"
    folder: Path
    name: str
    members: tuple[Member, ...]
    models: pd.DataFrame
    means: pd.DataFrame


def read_grid(folder: Path) -> Grid:
    """Read a grid folder. A run that cannot be read, or is not there yet, is kept with the reason."""
    refuse_damaged(folder)
    facts = read_json(folder / "grid.json", dict)
    try:
        runs = []
        for run in facts["runs"]:
            runs.append((str(run["folder"]), str(run["data"]), int(run["seed"])))

        name = str(facts["name"])
    except (KeyError, TypeError, ValueError) as error:
        raise HeadwiseError(
            f"{folder / 'grid.json'} should name the runs of a grid, each with folder, data and seed, but does not "
            f"({type(error).__name__}: {error}): run the study again."
        ) from None
    for place, _, _ in runs:
        for part in place.split("/"):
            checked_name(part, folder / "grid.json")

    members = tuple(_member(folder, *run) for run in runs)
    found = []
    for m in members:
        if len(m.models):
            found.append(m.models.assign(data=m.data, seed=m.seed))

    empty = models.table_of_models(pd.DataFrame(columns=models.MODEL_COLUMNS), {}).assign(
        data="", seed=0
    )
    means = read_optional_table(folder / "across.csv", ACROSS)
    means = pd.DataFrame(columns=ACROSS) if means is None else means.fillna({"data": ""})
    return Grid(folder, name, members, pd.concat(found) if found else empty, means)


def _member(grid: Path, place: str, data: str, seed: int) -> Member:
    folder = below(grid, place)
    facts = dict[str, Any]()
    known = pd.DataFrame()
    trouble = ""
    if (folder / "run.json").is_file():
        try:
            read, known = read_models(folder)
            facts = dict(read)
        except HeadwiseError as error:
            trouble = f"cannot be read: {error}"
    elif folder.is_dir():
        trouble = "begun, nothing measured yet"
    return Member(place, data, seed, facts, known, trouble, (folder / "report.html").is_file())


@section(
    "grid_summary",
    question="What did each run choose?",
    page="grid",
    order=0,
    files=("grid.json",),
)
def grid_summary_section(grid: Grid) -> dict[str, Any]:
    """Headline and facts."""
    groups = []
    for data in data_of(grid):
        groups.append(
            (data or "What was chosen", [_choice(grid, m) for m in grid.members if m.data == data])
        )

    absent = []
    for member in grid.members:
        if member.models.empty:
            absent.append(f"{name(member)} ({state(member)})")

    failed = []
    for member in grid.members:
        if member.facts.get("failed"):
            failed.append(name(member))

    groups += [("Still missing", [("Runs", listed(absent), "")])] if absent else []
    groups += (
        [("Failed", [("Some steps of", f"{listed(failed)}: reasons under Runs", "")])]
        if failed
        else []
    )
    return {"headline": grid_headline(grid), "groups": groups}


def data_of(grid: Grid) -> list[str]:
    """The data sets, one empty name where there is only one."""
    return list(dict.fromkeys(member.data for member in grid.members))


def grid_headline(grid: Grid) -> str:
    """`2 language pairs, 3 seeds: 5 of 6 runs have results`."""
    seeds = len({member.seed for member in grid.members})
    pairs = len(data_of(grid))
    what = [f"{pairs} language pairs"] if pairs > 1 else []
    what += [f"{seeds} seeds"] if seeds > 1 else []
    done = sum(not member.models.empty for member in grid.members)
    total = len(grid.members)
    return f"{', '.join(what) or 'One run'}: {done} of {total} {'run has' if total == 1 else 'runs have'} results"


def name(member: Member) -> str:
    """`en-de, seed 1`."""
    return ", ".join([*([member.data] if member.data else []), f"seed {member.seed}"])


def chosen_model(member: Member) -> ModelRow | None:
    """The model that a run chose on dev text."""
    return (
        None
        if member.models.empty
        else next((m for m in models.model_rows(member.models) if m["chosen"]), None)
    )


def state(member: Member) -> str:
    """How far a run has come, in a few words."""
    if member.trouble:
        return member.trouble
    if member.models.empty:
        return "no model measured yet" if member.facts else "not begun"
    missing = set(member.facts.get("settings") or {}) - set(member.models.index)
    text = f"{len(member.models)} {'model' if len(member.models) == 1 else 'models'} measured"
    return text + (f", {len(missing)} pruned and not measured yet" if missing else "")


def _choice(grid: Grid, member: Member) -> tuple[str, str, str]:
    model = chosen_model(member)
    if model is None:
        return (
            f"seed {member.seed}",
            NONE if member.models.empty else "nothing chosen yet, or the full model kept",
            "",
        )
    others = models.pruned(member.models)
    quality = models.quality(grid.models)
    orders = others["method"] == RANDOM_METHOD
    chosen_by = models.quality_on(grid.models, "dev")
    tried = models.values(others[~orders], chosen_by.name, "dev").count()
    heads = f"{model['kept']} of {model['total']} {models.heads_name(model['kinds'])}"
    split = models.reported_split(grid.models)
    known = []
    for reference in (FINE_TUNED, UNPRUNED):
        change = change_text(measured(model, quality.name, split, reference), quality.unit)
        if change:
            known.append(f"{change} to {OTHERS[reference]}")

    changes = f"; {quality.title} {', '.join(known)}" if known else ""
    text = f"{heads} ({model['label']}, of {tried} models){changes}"
    to_tuned = measured(model, quality.name, split, FINE_TUNED)
    return f"seed {member.seed}", text, to_tuned.verdict(quality)


@section(
    "grid_pairs",
    heading="Language pairs side by side",
    question="How do language pairs differ?",
    page="grid",
    story=True,
    order=10,
    files=("across.csv",),
)
def build_pairs(grid: Grid) -> dict[str, Any] | None:
    """The figure and the table of language pairs; None for one pair."""
    means = {}
    for data in data_of(grid):
        if (found := means_of(grid, data)) is not None:
            means[data] = found

    if len(means) < 2:
        return None
    split = models.reported_split(grid.models)
    return {
        "pairs": pairs_figure(means, split),
        "by_pair": language_pairs_table(means, split),
        "text": split,
        "measured": models.quality(grid.models).title,
    }


def pairs_figure(
    means: GridMeans, split: str, title: str = "Language pairs side by side"
) -> Figure | None:
    """Quality above or below the full model against the share of heads kept, a panel a method: of gates, or without any
    of greedy orders."""
    panels: dict[str, list[dict[str, Any]]] = {}
    quality = models.quality(next(iter(means.values())))
    gates = any(frame["learned"].any() for frame in means.values())
    for data, frame in means.items():
        for kinds in models.groups(frame):
            for line_name, line in models.lines(models.of_kinds(frame, kinds)):
                if line["learned"].all() or not (gates or models.is_random(line)):
                    method = f"{capital(models.group_name(kinds))} · {line_name}"
                    panels.setdefault(method, []).extend(pair_points(data, line, quality, split))

    drawn = {method: pd.DataFrame(points) for method, points in panels.items() if len(points) > 1}
    if not drawn:
        return None
    drawn_panels = []
    for heading, points in drawn.items():
        drawn_panels.append(pairs_panel(points, list(means), heading, quality, split))
    return Figure(
        name="pairs",
        title=title,
        note="zero: the full model of the same line · bars: 95 % interval, over seeds where there are several",
        panels=drawn_panels,
        columns=min(2, len(drawn)),
    )


def language_pairs_table(means: GridMeans, split: str) -> Table | None:
    """A model a row, a language pair a column: difference to the full model, and heads kept."""
    by_name: dict[str, dict[str, ModelRow]] = {}
    for data, frame in means.items():
        by_name[data] = {}
        for model in models.ordered(frame):
            if model["learned"] or model["method"] == "none":
                by_name[data][model["setting"]] = model

    labels = {}
    for known in by_name.values():
        for m in known.values():
            labels[m["setting"]] = m["label"]

    full = set()
    for known in by_name.values():
        for m in known.values():
            if m["method"] == "none":
                full.add(m["setting"])

    quality = models.quality(next(iter(means.values())))

    def cell(data: str, setting: str) -> str:
        model = by_name[data].get(setting)
        if model is None or setting in full:
            return models.quality_column(quality, split)(model)
        seeds = f", {model['seeds']} seeds" if model["seeds"] > 1 else ""
        heads = f"{model['kept']} of {model['total']} heads"
        change = change_text(measured(model, quality.name, split, UNPRUNED), quality.unit)
        return f"{change or NONE}\n{heads}{seeds}"

    columns: Columns = {
        "model": lambda setting: (
            f"full model, {quality.title}" if setting in full else labels[setting]
        )
    }
    columns |= {data: partial(cell, data) for data in means}
    return table(
        "Language pairs side by side",
        labels,
        columns,
        code=lambda setting: "" if setting in full else setting,
    )


@section(
    "grid_seeds",
    heading="Means over seeds",
    question="What are means and intervals over seeds?",
    page="grid",
    story=True,
    order=20,
    files=("across.csv",),
)
def build_seeds(grid: Grid) -> dict[str, Any]:
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
                "untrained": None
                if means is None
                else means_table(grid, data, means, trained=False),
            }
        )
    return {"parts": parts, "measured": models.quality(grid.models).title}


def means_of(grid: Grid, data: str) -> pd.DataFrame | None:
    """The models of one data set, each once, as means over seeds, with the columns seeds, kept_low and kept_high; None
    before a run has results.

    Where two seeds or more have a model, its differences and their intervals are those of across.csv; otherwise its one
    seed's. Its quality is that of the mean full model plus the mean difference: seeds that start higher do not lift the
    models that only they have.
    """
    every = grid.models[grid.models["data"] == data]
    if every.empty:
        return None
    kept = every.groupby(level=0)["kept"].agg(["count", "mean", "min", "max"])
    means = every[~every.index.duplicated()].copy()
    means[["seeds", "mean_kept", "kept_low", "kept_high"]] = kept.loc[means.index]
    means = means.astype({"seeds": int, "kept_low": int, "kept_high": int})
    means["kept"] = [round(number) for number in means["mean_kept"]]
    means["chosen"] = False
    across = read_measurements(grid.means[grid.means["data"] == data])
    quality = models.quality(every)
    full = every[every["method"] == "none"]
    bases = {split: models.values(full, quality.name, split).mean() for split in SPLITS}
    rows = models.model_rows(every)
    numbers = []
    for model in models.model_rows(means):
        seeds = [row for row in rows if row["setting"] == model["setting"]]
        over = across.get(model["setting"], Measurements())
        numbers.append(mean_numbers(model, seeds, over, quality, bases))
    means["numbers"] = pd.Series(numbers, means.index, dtype=object)
    return models.sorted_by_heads(means)


def mean_numbers(
    model: ModelRow,
    seeds: Sequence[ModelRow],
    over: Measurements,
    quality: QualityMeasure,
    bases: Mapping[str, float],
) -> Measurements:
    """The numbers of one model as a mean over seeds. seeds: its rows of single seeds. over: what across.csv has of it.
    bases: the mean quality of the full models, by split; not a number where none was measured."""
    numbers = Measurements()
    for split, base in bases.items():
        for reference in OTHERS:
            change = over.of(quality.name, split, reference)
            own = [measured(seed, quality.name, split, reference) for seed in seeds]
            own = [number for number in own if number.value is not None]
            if change.value is None and len(own) == 1:
                change = replace(own[0], p=None)  # as of the means beside it, which have none
            if change.value is not None:
                numbers[split, quality.name, reference] = change
        change = numbers.of(quality.name, split, UNPRUNED)
        value = base if model["method"] == "none" else None
        if change.value is not None:
            value = quality.moved(base, change.value)
        if value is not None and not math.isnan(value):
            numbers[split, quality.name, ""] = Number(value)
    return numbers


def seed_figures(grid: Grid, data: str, means: pd.DataFrame) -> list[Figure]:
    """Figure 7 of one data set: lines through means, small marks for single seeds, rings around what each chose."""
    limit = next(
        (m.facts.get("max_drop") for m in grid.members if m.data == data and not m.models.empty),
        None,
    )
    slug = re.sub(r"[^\w-]+", "-", data).strip("-")
    found = quality_figures(means, {"max_drop": limit}, grid.models[grid.models["data"] == data])
    figures: list[Figure] = []
    for figure in found:
        figures.append(
            replace(figure, name=f"{figure.name}-{slug}", title=f"{data}: {figure.title}")
            if data
            else figure
        )
    return figures


def means_table(grid: Grid, data: str, means: pd.DataFrame, trained: bool = True) -> Table | None:
    """Every model with gates and every control. Not `trained`: the models without gates, with the full one first; None
    where the first table has them.
    """
    first = (
        means["learned"] | (means["method"] == "none") | means["method"].str.startswith("control.")
    )
    first |= not means["learned"].any()
    shown = models.ordered(means[first if trained else ~first | (means["method"] == "none")])
    if not trained and len(shown) < 2:
        return None
    split = models.reported_split(grid.models)
    quality = models.quality(grid.models)
    columns: Columns = {
        "model": lambda model: model["label"],
        "seeds": lambda model: str(model["seeds"]),
        "heads kept": _kept_text,
        f"{quality.title} on {split}": models.quality_column(quality, split),
        **models.change_columns(quality, split, OTHERS),
    }
    what = "Means over seeds" if trained else "Removal without gates, means over seeds"
    return table(
        f"{what}, {data or grid.name}", shown, columns, code=lambda model: str(model["setting"])
    )


def _kept_text(model: ModelRow) -> str:
    low = model["kept_low"]
    high = model["kept_high"]
    kept = f"{model['mean_kept']:.1f} ({low}–{high})" if low < high else model["kept"]
    return f"{kept} of {model['total']}"


@section(
    "grid_runs",
    heading="Runs",
    question="How far is each run, and what failed?",
    page="grid",
    story=True,
    order=30,
    files=("grid.json",),
)
def build_runs(grid: Grid) -> dict[str, Any]:
    """A row a run, with a link to its page."""
    split = models.reported_split(grid.models)
    quality = models.quality(grid.models)

    def quality_of_full(member: Member) -> str:
        full = None if member.models.empty else models.unpruned_model(member.models)
        return models.quality_column(quality, split)(full)

    columns: Columns = {
        "run": name,
        "state": state,
        f"full model, {quality.title} on {split}": quality_of_full,
        "chosen": lambda member: (
            f"{model['label']}, {model['kept']} of {model['total']} heads"
            if (model := chosen_model(member))
            else ""
        ),
        "heads with a role": _roles_text,
        "pairs that do the same work": _pairs,
        **models.change_columns(quality, split, model_of=chosen_model),
    }
    failed = []
    for m in grid.members:
        for step, why in (m.facts.get("failed") or {}).items():
            failed.append((name(m), step, _last(why)))

    pages = {}
    for m in grid.members:
        if m.has_page:
            pages[name(m)] = quote(f"{m.place}/report.html")
    return {
        "runs": table("Runs of the grid", grid.members, columns),
        "pages": pages,
        "failed": failed,
    }


def _roles_text(member: Member) -> str:
    """How many heads have a role, and how many of an untrained model on average."""
    found = member.facts.get("roles") or {}
    if "heads" not in found:
        return ""
    models_tested = found.get("untrained_models", 0)
    control = ""
    if models_tested:
        control = f"\nuntrained: {sum(found['untrained'].values()) / models_tested:.1f}"
    return f"{found['heads']} of {found['tested']}{control}"


def _pairs(member: Member) -> str:
    """How many measured pairs cost more together than the sum of both alone, with an interval above 0."""
    found = member.facts.get("interactions")
    return (
        f"{found['redundant']} of {found['measured']}\nneed each other: {found['synergistic']}"
        if found
        else ""
    )


def _last(why: str) -> str:
    """The last line of what failed."""
    return (str(why).strip().splitlines() or ["no reason was left"])[-1]
