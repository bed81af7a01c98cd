"""The section "cost": quality against the heads kept, for gates (Voita et al. 2019, figure 7) and for removal without
training (Michel et al. 2019, figures 3, 4): BLEU, or the perplexity of language models.

The table of models is that of a run, or the means of a grid with the models of single seeds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from headwise.core.measured import FINE_TUNED, SPLITS, UNPRUNED
from headwise.core.qualities import QualityMeasure
from headwise.faces.report import charts, models
from headwise.faces.report.charts import PHONE, Figure, Panel, Spec, axis, tips
from headwise.faces.report.format import NONE, capital
from headwise.faces.report.models import RANDOM_LINE, ModelRow, change_text, measured, tested_text
from headwise.pruning.controls import control_facts

PANEL_TITLES = {"test": "test", "dev": "dev (where the model is chosen)"}
TUNED_NAME = models.OTHERS[FINE_TUNED]
DASHES = {"full model": [1, 0], TUNED_NAME: [2, 3], "allowed loss": [6, 4]}
FEWEST_OF_LINE = 3  # points, the full model too
MARKS_APART = 0.2  # heads: how far marks of other lines stand from their number, at most
Line = tuple[str, pd.DataFrame]  # the name of a line, and its models


def quality_figures(
    frame: pd.DataFrame, facts: Mapping[str, Any], seeds: pd.DataFrame | None = None
) -> list[Figure]:
    """Quality against the heads kept, a figure for every set of kinds that was pruned together: of the models with gates
    and their controls, or of all where no gates were trained.

    seeds: the models of single seeds (a grid's), drawn as small marks around the means in `frame`.
    """
    figures = []
    for kinds, lines in _groups(frame).items():
        learned = [line for line in lines if line[1]["learned"].all()]
        figures += _curves(frame, facts, kinds, learned or lines, seeds, with_controls=True)
    return figures


def greedy_figures(frame: pd.DataFrame, facts: Mapping[str, Any]) -> list[Figure]:
    """Quality while heads are removed without training, beside the models with gates; and by kinds, for the score that
    most sets of kinds share. Where no gates were trained, `quality_figures` has the first."""
    figures = []
    shared: dict[str, list[Line]] = {}
    for kinds, lines in _groups(frame).items():
        greedy_lines = [line for line in lines if not line[1]["learned"].all()]
        if 0 < len(greedy_lines) < len(lines):
            figures += _curves(frame, facts, kinds, lines)
        for name, line in greedy_lines:
            if not models.is_random(line):
                shared.setdefault(name, []).append((models.heads_name(kinds), line))

    # One score for all kinds, or their curves would differ by the score.
    most = max(shared, key=lambda name: len(shared[name]), default="")
    if len(shared.get(most, ())) > 1:
        greedy_models = pd.concat([line for _, line in shared[most]])
        split = models.split_of_all(greedy_models)
        quality = models.quality_on(frame, split)
        full = models.unpruned_model(frame)
        points = pd.DataFrame(_points(shared[most], full, quality, split, {}))
        x = axis("removed:Q", "heads removed (%)", domain=[0, 100], grid=False)
        colours = _line_colour(points["line"])
        chart = _panel(points, x, colours, quality, split, bands=True)
        figures.append(
            Figure(
                "greedy-by-kind",
                f"{capital(quality.title)} while heads are removed, by kind of heads: {most}",
                f"each kind against the share of its own heads, on {split}",
                [Panel(chart, "", width=430, narrowest=270, widest=620)],
            )
        )
    return figures


def _groups(frame: pd.DataFrame) -> dict[tuple[str, ...], list[Line]]:
    """The lines of every set of kinds that was pruned together."""
    groups = {kinds: models.lines(models.of_kinds(frame, kinds)) for kinds in models.groups(frame)}
    return {kinds: lines for kinds, lines in groups.items() if lines}


def _curves(
    frame: pd.DataFrame,
    facts: Mapping[str, Any],
    kinds: tuple[str, ...],
    lines: Sequence[Line],
    seeds: pd.DataFrame | None = None,
    with_controls: bool = False,
) -> list[Figure]:
    """The figure of some lines, on test and on dev; none without two points on a text."""
    models_of_kinds = models.of_kinds(frame, kinds)
    full = models.unpruned_model(frame)
    controls = models.model_rows(models.control_models(models_of_kinds))
    tuned = {str(one["setting"]): one for one in controls if one["control"] == "fine-tuned"}
    # Gates are points with bars; an order of removal is a curve with a band.
    learned = all(line["learned"].all() for _, line in lines)
    points: dict[str, pd.DataFrame] = {}
    for split in SPLITS:
        quality = models.quality_on(frame, split)
        # Means of a grid are drawn at their difference to the full model: see means_over_seeds.
        references = tuned if seeds is None else {}
        rows = _points(lines, full, quality, split, references)
        if with_controls:
            rows += _control_points(models_of_kinds, controls, full, quality, split, references)
        table = pd.DataFrame([one for one in rows if one["value"] is not None])
        # The full model alone would be a panel with one point.
        if len(table) and (table["sort"] != "full").sum():
            points[split] = table

    panels = []
    names = [name for found in points.values() for name in found["line"]]
    for split, found in points.items():
        quality = models.quality_on(frame, split)
        scale = {"zero": False, "nice": False, "padding": 12}
        x = axis("x:Q", "heads kept", grid=False, tickMinStep=1, **scale)
        levels = _levels(full, [*tuned.values()], quality, facts.get("max_drop"), split)
        marks = _seed_points(seeds, full, quality, kinds, split)
        colours = _line_colour(names)
        chart = _panel(found, x, colours, quality, split, levels, marks, bands=not learned)
        panel = Panel(chart, PANEL_TITLES[split], width=430, narrowest=270, printed_height=0.62)
        panels.append(panel)
    if not panels:
        return []
    title = models.quality(frame).title
    reference = "the full model"
    if tuned:
        reference = f"{TUNED_NAME}, or else to {reference}"
    what = f"difference to {reference}" if seeds is None else "mean difference over seeds"
    # An order of one or two sizes is points, too.
    banded = not learned and any(is_curve(found).any() for found in points.values())
    note = f"{'bands' if banded else 'bars'}: 95 % interval of the {what}"
    if RANDOM_LINE in names:
        note += " · grey: range and mean of random orders"
    if len(names) > 1:
        note += " · marks of several lines stand a little beside their number of heads"
    several = len(models.groups(frame)) > 1
    name = f"{models.quality(frame).name}-by-heads" if learned else "greedy-curves"
    return [
        Figure(
            name="-".join([name, *(kinds if several else ())]),
            title=f"{capital(title)} {'against the heads kept' if learned else 'while heads are removed'}"
            + (f": {models.group_name(kinds)}" if several else ""),
            note=f"{note} · ring: chosen",
            panels=panels,
            columns=2,
            facts=" ".join(
                f"Chosen: {label}."
                for label in models_of_kinds.loc[models_of_kinds["chosen"], "label"]
            ),
        )
    ]


def _points(
    lines: Sequence[Line],
    full: ModelRow | None,
    quality: QualityMeasure,
    split: str,
    tuned: Mapping[str, ModelRow],
) -> list[dict[str, Any]]:
    """The points of lines, each from the full model on; x is a little beside the number of heads, so that marks of other
    lines are not covered. tuned: the full models after equal further training, with which those of the same training are
    compared."""
    base = measured(full, quality.name, split).value
    points = []
    for line_number, (name, line) in enumerate(lines):
        # Of one set of kinds: all of its models had as many heads before.
        total = int(line["total"].iloc[0])
        start = {"model": "full model", "kept": total, "value": base, "low": base, "high": base}
        shift = (
            MARKS_APART * (2 * line_number / max(1, len(lines) - 1) - 1) if len(lines) > 1 else 0
        )
        line_points: list[dict[str, Any]] = [{**start, "sort": "full", "x": total}]
        if models.is_random(line):
            line_points += _random_points(line, quality, split)
        else:
            for model in models.model_rows(line):
                point = _point(model, full, quality, split, tuned)
                line_points.append(point | {"x": round(point["kept"] + shift, 3)})
        for point in line_points:
            removed = round(100 * (1 - point["kept"] / total), 2)
            points.append(point | {"line": name, "removed": removed})
    return points


def _random_points(line: pd.DataFrame, quality: QualityMeasure, split: str) -> list[dict[str, Any]]:
    """The mean and the range of random orders for every number of heads left."""
    found = models.values(line, quality.name, split).groupby(line["kept"])
    points: list[dict[str, Any]] = []
    for kept, mean, low, high, orders in found.agg(["mean", "min", "max", "count"]).itertuples():
        if orders:
            point = {"kept": kept, "x": kept, "value": mean, "low": low, "high": high}
            text = f"{low:.2f} to {high:.2f} over the orders"
            said = {"model": f"mean of {orders} {RANDOM_LINE}", "sort": "random", "text": text}
            points.append(point | said)
    return points


def _point(
    model: ModelRow,
    full: ModelRow | None,
    quality: QualityMeasure,
    split: str,
    tuned: Mapping[str, ModelRow],
) -> dict[str, Any]:
    """One model; low and high are the interval of its difference, drawn from the quality of the model that it is
    compared with: equal further training where that was measured, else the full model."""
    reference, change = model["numbers"].leading_change(quality.name, split)
    # Drawn from what it is compared with, so that the interval stands around the point.
    other = tuned.get(models.against(model, reference))
    if other is None:
        reference, other = UNPRUNED, full
        change = measured(model, quality.name, split, UNPRUNED)
    base = measured(other, quality.name, split).value
    around = {}
    if base is not None and change.low is not None and change.high is not None:
        ends = [quality.moved(base, end) for end in (change.low, change.high)]
        around = {"low": ends[0], "high": ends[1]}
    difference = tested_text(change, ", ", quality.unit)
    return {
        "model": model["label"],
        "kept": round(model["mean_kept"], 2),
        "value": measured(model, quality.name, split).value,
        "sort": "chosen" if model["chosen"] else "model",
        "text": f"{difference} to {models.OTHERS[reference]}" if difference else NONE,
        **around,
    }


def _control_points(
    own: pd.DataFrame,
    controls: Sequence[ModelRow],
    full: ModelRow | None,
    quality: QualityMeasure,
    split: str,
    tuned: Mapping[str, ModelRow],
) -> list[dict[str, Any]]:
    """Controls, each at the heads of the model that it is a control of; those of all models are levels."""
    kept: dict[Any, Any] = own["mean_kept"].to_dict()
    points = []
    for control in controls:
        facts = control_facts(control["control"])
        if not facts.compared_by_all:
            reference = control["reference"]
            heads = round(kept[reference] if reference in kept else control["kept"], 2)
            point = _point(control, full, quality, split, tuned)
            place = {"line": "", "sort": "control", "kept": heads, "x": heads}
            points.append(point | place | {"control": facts.title, "mark": facts.mark})
    return points


def _levels(
    full: ModelRow | None,
    tuned: Sequence[ModelRow],
    quality: QualityMeasure,
    limit: Any,
    split: str,
) -> pd.DataFrame:
    """The lines across a panel: the full model, the fine-tuned one, and on dev the loss that is allowed."""
    base = measured(full, quality.name, split).value
    found = [("full model", base)]
    found += [(TUNED_NAME, measured(model, quality.name, split).value) for model in tuned]
    if split == "dev" and base is not None and isinstance(limit, int | float):
        # A loss is less BLEU, but more perplexity.
        found.append(("allowed loss", quality.moved(base, -quality.better * limit)))
    return pd.DataFrame(found, columns=["name", "value"]).dropna()


def _line_colour(names: Any) -> Spec:
    """One colour a line, grey for random orders."""
    known = [name for name in dict.fromkeys(names) if name]
    grey = next((name for name in known if name.startswith(RANDOM_LINE)), RANDOM_LINE)
    return charts.categories("line:N", known, grey, symbolType="circle")


def _panel(
    points: pd.DataFrame,
    x: Spec,
    colours: Spec,
    quality: QualityMeasure,
    split: str,
    levels: pd.DataFrame | None = None,
    seeds: pd.DataFrame | None = None,
    bands: bool = False,
) -> Spec:
    """Lines with bands, or points with intervals; controls are hollow marks. levels: lines across."""
    # Without training, perplexity grows by orders of magnitude while heads are removed.
    scale = {"type": "log"} if quality.relative and bands else {"zero": False}
    y = axis("value:Q", f"{quality.axis} on {split}", nice=False, tickCount=5, padding=8, **scale)
    tip = tips("model:N", "kept:Q|heads", f"value:Q|{quality.title}|.2f", "text:N|difference")
    on_line = points[points["line"] != ""]
    marks = [] if levels is None else _level_marks(levels, y)
    marks += _seed_marks(seeds, x, y)
    drawn = is_curve(on_line)
    lines, alone = on_line[drawn], on_line[~drawn]
    if bands:
        marks += charts.curve(lines, x, y, colours, band=0.18, dots=34, tip=tip)
    else:
        marks += charts.curve(lines, x, y, colours, width=1.6, opacity=0.6)
        alone = on_line
    marks += charts.intervals(alone[alone["sort"] != "full"], x, y, colours, tip=tip)
    # Every line starts at the full model, which is drawn once.
    full = points[points["sort"] == "full"].head(1)
    marks += charts.intervals(full, x, y, tip=tip, style="level", size=60)
    controls = points[points["sort"] == "control"]
    if len(controls):
        shapes = dict(zip(controls["control"], controls["mark"], strict=True))
        shape = charts.shape_field("control:N", [*shapes], [*shapes.values()])
        look: Spec = {"style": "level", "size": 75, "filled": False, "strokeWidth": 2}
        rule = {"style": "level", "strokeWidth": 1, "opacity": 0.6}
        marks += charts.intervals(controls, x, y, tip=tip, whisker_look=rule, shape=shape, **look)
    marks.append(charts.ring(points[points["sort"] == "chosen"], x, y))
    description = f"{capital(quality.title)} against the heads that are kept"
    # Controls and seeds both have shapes, which mean other things.
    return charts.layered(marks, 300, description, shape="independent")


def is_curve(points: pd.DataFrame) -> pd.Series:
    """Whether each point is of a line with enough of them: from the full model to a single other one a line would say
    that models lie between them."""
    counts = points.groupby("line")["kept"].transform("nunique")
    return (counts >= FEWEST_OF_LINE) & (points["line"] != "")


def _level_marks(levels: pd.DataFrame, y: Spec) -> list[Spec]:
    """A line for every level; their names stand in a legend, where they cover no marks."""
    names = list(dict.fromkeys(levels["name"]))
    # A short stroke would show too little of a dash to tell it from others.
    stroke = {"symbolType": "stroke", "symbolSize": 500, "symbolStrokeWidth": 1.5}
    legend = {"columns": charts.legend_columns(names), **stroke, **PHONE}
    scale = {"domain": names, "range": [DASHES[name] for name in names]}
    dash = charts.field("name:N", scale=scale, legend=legend)
    return [charts.level_lines(levels, y, dash=dash)] if names else []


def _seed_points(
    seeds: pd.DataFrame | None,
    full: ModelRow | None,
    quality: QualityMeasure,
    kinds: tuple[str, ...],
    split: str,
) -> pd.DataFrame:
    """Single seeds' models, each at its own difference from the quality of the mean full model: those with gates that
    several seeds have, and the chosen ones.
    """
    base = measured(full, quality.name, split).value
    if seeds is None or base is None:
        return pd.DataFrame()
    found = []
    seed_models = models.of_kinds(models.pruned(seeds), kinds)
    # How many seeds have each setting.
    counts = Counter(seed_models.index)
    for model in models.model_rows(seed_models):
        change = measured(model, quality.name, split, UNPRUNED)
        several = counts[model["setting"]] > 1 and model["learned"]
        if change.value is not None and (model["chosen"] or several):
            found.append(
                {
                    "seed": f"seed {model['seed']}",
                    "line": model["line"],
                    "model": model["label"],
                    "x": model["kept"],
                    "value": quality.moved(base, change.value),
                    "chosen": model["chosen"],
                    "text": change_text(change, quality.unit),
                }
            )
    return pd.DataFrame(found)


def _seed_marks(points: pd.DataFrame | None, x: Spec, y: Spec) -> list[Spec]:
    """Small marks, a shape a seed, and a ring around what each chose."""
    if points is None or points.empty:
        return []
    shape = charts.shape_field("seed:N", list(dict.fromkeys(points["seed"])), columns=4)
    tip = tips("model:N", "seed:N", "x:Q|heads", "text:N|to its full model")
    look: Spec = {"style": "level", "size": 46, "strokeWidth": 0, "opacity": 0.6}
    # Without a scale of its own it shares the colours of the lines.
    colours = charts.field("line:N")
    marks = charts.intervals(points, x, y, colours, tip=tip, shape=shape, **look)[1:]
    return [*marks, charts.ring(points[points["chosen"]], x, y)]


def runs_panel(
    points: pd.DataFrame, data: list[str], title: str, quality: QualityMeasure, text: str
) -> Panel:
    """The difference to the full model against the share of heads kept, a line and shape a run or data set."""
    colours = charts.categories("data:N", data, orient="bottom")
    # Vega merges both legends only if domains agree, with the empty name; `values` hides that.
    shape = charts.shape_field("data:N", colours["scale"]["domain"], values=data)
    x = axis("kept:Q", "heads kept (%)", domain=[0, 100], grid=False)
    y = axis("value:Q", f"{quality.title} on {text}, difference to the full model{quality.in_unit}")
    tip = tips("data:N", "model:N", "heads:N", "seeds:Q", f"text:N|{quality.title}")
    marks = [
        charts.level_lines([{"value": 0}], y),
        *charts.curve(points, x, y, colours, width=1.6, opacity=0.6),
        *charts.intervals(points, x, y, colours, tip=tip, size=80, style="", shape=shape),
    ]
    chart = charts.layered(
        marks, 300, f"{capital(quality.title)} difference against the share of heads kept"
    )
    return Panel(chart, title, width=430, narrowest=270)


def run_points(line: pd.DataFrame, quality: QualityMeasure, split: str) -> list[dict[str, Any]]:
    """The points of the models of several runs, or of data sets (means over seeds), which a column `run` names."""
    points: list[dict[str, Any]] = []
    for model in models.model_rows(line):
        change = measured(model, quality.name, split, UNPRUNED)
        if change.value is None:
            continue
        points.append(
            {
                "data": model["run"],
                "model": model["label"],
                "kept": round(100 * model["kept"] / model["total"], 2),
                "seeds": model.get("seeds"),
                "heads": f"{model['kept']} of {model['total']}",
                "text": change_text(change, quality.unit),
                "value": change.value,
                "low": change.low,
                "high": change.high,
            }
        )
    return points
