"""Part of cost: quality against the heads kept (Voita et al. 2019, figure 7), greedy removal (Michel et al. 2019,
figures 3, 4): BLEU, or the perplexity of language models.
The table of models is that of a run, or the means of a grid with the models of single seeds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import pandas as pd

from headwise.pruning.controls import control_facts
from headwise.pruning.measured import FINE_TUNED, SPLITS, UNPRUNED
from headwise.qualities import QualityMeasure
from headwise.report import charts, models
from headwise.report.charts import PHONE, Figure, Panel, Spec, axis, tips
from headwise.report.format import NONE, capital, count, listed
from headwise.report.models import RANDOM_LINE, ModelRow, change_text, measured, tested_text

PANEL_TITLES = {"test": "test", "dev": "dev (where the model is chosen)"}
INTERVAL = "95 % interval of the difference to the full model"
TUNED_NAME = models.OTHERS[FINE_TUNED]
DASHES = {"full model": [1, 0], TUNED_NAME: [2, 3], "allowed loss": [6, 4]}
LOWER_PART = 0.3  # of the heads: a panel without a point there leaves it out
MARKS_APART = 0.2  # heads, or 0.6 % of them where that is more: how far marks of as many heads move from their number


def quality_figures(
    frame: pd.DataFrame, facts: Mapping[str, Any], seeds: pd.DataFrame | None = None
) -> list[Figure]:
    """Quality against the heads kept, on test and on dev: a figure for every set of kinds that was pruned together.

    seeds: the models of single seeds (a grid's), drawn as small marks around the means in `frame`.
    """
    groups = []
    for kinds in models.groups(frame):
        if len(models.of_kinds(models.pruned(frame), kinds)):
            groups.append(kinds)

    figures = []
    for kinds in groups:
        figure = _quality_figure(frame, facts, seeds, kinds, len(groups) > 1)
        if figure is not None:
            figures.append(figure)
    return figures


def _quality_figure(
    frame: pd.DataFrame,
    facts: Mapping[str, Any],
    seeds: pd.DataFrame | None,
    kinds: tuple[str, ...],
    several: bool,
) -> Figure | None:
    own = models.of_kinds(frame, kinds)
    full = models.unpruned_model(frame)
    quality = models.quality(frame)
    points = {}
    tuned = {} if seeds is not None else _tuned(own)
    qualities = {split: models.quality_on(frame, split) for split in SPLITS}
    for split in SPLITS:
        found = _points(own, full, qualities[split], split, tuned)
        if len(found) > 1:
            points[split] = found

    if not points:
        return None
    levels = {}
    spans = {}
    for split, found in points.items():
        levels[split] = _levels(own, full, qualities[split], facts.get("max_drop"), split)
        spans[split] = _span(found, levels[split], qualities[split])

    height = max(high - low for low, high in spans.values()) * 1.12
    domains = {}
    for split, found in points.items():
        middle = sum(spans[split]) / 2
        low = round(middle - height / 2, 2)
        high = round(middle + height / 2, 2)
        domains[split] = [low, high]
        points[split] = found.assign(inside=found["value"].between(low, high))

    every = pd.concat(points.values())
    inside = every[every["inside"]]
    panels = []
    for split, found in points.items():
        marks = pd.DataFrame()
        if seeds is not None:
            marks = _seed_points(seeds, full, qualities[split], kinds, split)
        drawn = found[found["line"].isin(inside["line"])]
        chart = _quality_panel(
            drawn,
            levels[split],
            _heads_domain(inside),
            domains[split],
            _line_colour(every["line"], list(inside["line"])),
            qualities[split],
            split,
            marks,
        )
        panels.append(Panel(chart, PANEL_TITLES[split], width=430, narrowest=270))

    chosen = own[own["chosen"]]
    facts_shown = [f"Chosen: {label}." for label in chosen["label"]]
    facts_shown += _outside_sentences(every, seeds is None)
    if len(panels) > 1:
        facts_shown.append("The vertical scale is the same in both panels.")
    note = _note(tuned, seeds is not None)
    if (inside["sort"] == "random").any():
        note = f"{note} · grey: range and mean of random orders"
    ringed = len(chosen) or (seeds is not None and seeds["chosen"].any())
    return Figure(
        name="-".join([f"{quality.name}-by-heads", *(kinds if several else ())]),
        title=capital(quality.title)
        + ("" if len(panels) > 1 else f" on {next(iter(points))}")
        + " against the heads kept"
        + (f": {models.group_name(kinds)}" if several else ""),
        note=note + (" · ring: chosen" if ringed else ""),
        panels=panels,
        columns=2,
        facts=" ".join(facts_shown),
    )


def _heads_domain(inside: pd.DataFrame) -> list[float]:
    """The numbers of heads that the panels reach from and to: from 0, unless all points are in the upper part."""
    total = float(inside["total"].max())
    fewest = float(inside["kept"].min())
    start = fewest if fewest > LOWER_PART * total else 0.0
    margin = 0.02 * (total - start) + MARKS_APART
    return [round(start - margin, 2), round(total + margin, 2)]


def _outside_sentences(points: pd.DataFrame, has_removal: bool) -> list[str]:
    """Which lines have points that the panels do not reach, how many, and where they are.

    has_removal: whether the page has the figure of greedy removal too.
    """
    outside = points[~points["inside"] & (points["line"] != "")].drop_duplicates(
        ["line", "model", "kept"]
    )
    if outside.empty:
        return []
    counts = outside["line"].value_counts(sort=False)
    lines = [f"{count(number, 'point')} of “{line}”" for line, number in counts.items()]
    found = [f"Not in these panels, as they lose more: {listed(lines)}."]
    if has_removal:
        found.append("The figure of heads removed, folded below, has them.")
    return found


def _tuned(own: pd.DataFrame) -> dict[str, ModelRow]:
    """The full models after equal further training, by the names of their settings."""
    trained = models.model_rows(own[own["control"] == "fine-tuned"])
    return {str(model["setting"]): model for model in trained}


def _note(tuned: Mapping[str, ModelRow], over_seeds: bool) -> str:
    if over_seeds:
        return "solid line: the mean of the full models · bars: 95 % interval of the mean difference over seeds"
    if tuned:
        return "dotted line: equal further training · solid line: the full model · bars: 95 % interval to the dotted line"
    return "solid line: the full model · bars: 95 % interval of the difference to it"


def _points(
    own: pd.DataFrame,
    full: ModelRow | None,
    quality: QualityMeasure,
    split: str,
    tuned: Mapping[str, ModelRow],
) -> pd.DataFrame:
    """A point for every model: its quality, the interval of its difference around it, and where it is drawn. tuned: the
    full models after equal further training, with which the models of the same training are compared."""
    total = int(own["total"].iloc[0])
    base = measured(full, quality.name, split).value
    found: list[dict[str, Any]] = [
        {"line": "", "model": "full model", "kept": total, "value": base, "sort": "full"}
    ]
    for name, line in models.lines(own):
        found += [one | {"line": name} for one in _line_points(line, full, quality, split, tuned)]

    kept = own["mean_kept"].to_dict()
    for control in models.model_rows(models.control_models(own)):
        facts = control_facts(control["control"])
        if not facts.compared_by_all:
            at = round(kept.get(control["reference"] or "", control["kept"]), 2)
            found.append(
                _point(control, full, quality, split, tuned)
                | {"line": "", "control": facts.title, "mark": facts.mark, "kept": at}
            )

    table = pd.DataFrame([one for one in found if one["value"] is not None])
    return table if table.empty else table.assign(total=total, x=_mark_places(table, total))


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
        "sort": "chosen" if model["chosen"] else "learned" if model["learned"] else "other",
        "text": f"{difference} to {models.OTHERS[reference]}" if difference else NONE,
        **around,
    }


def _line_points(
    line: pd.DataFrame,
    full: ModelRow | None,
    quality: QualityMeasure,
    split: str,
    tuned: Mapping[str, ModelRow],
) -> list[dict[str, Any]]:
    """The points of a line; for random orders the mean and the range for every number of heads left."""
    points: list[dict[str, Any]] = []
    if not models.is_random(line):
        for model in models.model_rows(line):
            points.append(_point(model, full, quality, split, tuned))
        return points
    values = models.values(line, quality.name, split)
    found = values.groupby(line["kept"]).agg(["mean", "min", "max", "count"])
    for kept, mean, low, high, orders in found[found["count"] > 0].itertuples():
        points.append(
            {
                "model": f"mean of {orders} {RANDOM_LINE}",
                "kept": kept,
                "value": mean,
                "low": low,
                "high": high,
                "sort": "random",
                "text": f"{low:.2f} to {high:.2f} over the orders",
            }
        )
    return points


def _mark_places(table: pd.DataFrame, total: int) -> list[float]:
    """Where marks are drawn: those of as many heads move a little to the left and right of the first."""
    single = ~table["sort"].isin(["full", "random"])
    marks = Counter(table.loc[single, "kept"])
    seen = Counter[float]()
    furthest = max(MARKS_APART, 0.006 * total)
    places = []
    for kept, moves in zip(table["kept"], single, strict=True):
        step = (seen[kept] + 1) // 2 * (1 if seen[kept] % 2 else -1) if moves else 0
        places.append(round(kept + step * furthest / max(1, marks[kept] // 2), 3))
        seen[kept] += bool(moves)
    return places


def _levels(
    own: pd.DataFrame, full: ModelRow | None, quality: QualityMeasure, limit: Any, split: str
) -> pd.DataFrame:
    """The lines across a panel: the full model, the fine-tuned one, and on dev the loss that is allowed."""
    base = measured(full, quality.name, split).value
    tuned = models.model_rows(own[own["control"] == "fine-tuned"])
    found = [
        ("full model", base),
        *((TUNED_NAME, measured(model, quality.name, split).value) for model in tuned),
    ]
    if split == "dev" and base is not None and isinstance(limit, int | float):
        found.append(("allowed loss", quality.moved(base, -quality.better * limit)))
    return pd.DataFrame(found, columns=["name", "value"]).dropna()


def _span(
    points: pd.DataFrame, levels: pd.DataFrame, quality: QualityMeasure
) -> tuple[float, float]:
    """The lowest and the highest number that a panel must show: gates and controls whole, other curves cut. Where heads
    were only removed: the chosen model, and what other orders leave with as many heads."""
    shown = points
    alike = []
    ringed = points.loc[points["sort"] == "chosen", "kept"]
    if len(ringed) and not points["sort"].eq("learned").any():
        alike.append(points.loc[points["kept"].isin(ringed), "value"])
    if points["sort"].isin(["learned", "chosen"]).any():
        trained = points["sort"].isin(["learned", "chosen", "full"])
        shown = (
            points[trained | points["control"].notna()] if "control" in points else points[trained]
        )
    numbers = [shown[end].dropna() for end in ("value", "low", "high") if end in shown]
    numbers += [levels["value"], *alike]
    low = min(part.min() for part in numbers if len(part))
    high = max(part.max() for part in numbers if len(part))
    least = 0.01 * high if quality.relative else 0.5
    return (low, high) if high - low > least else (low - least, high + least)


def _line_colour(names: Any, shown: Any = None) -> Spec:
    """One colour a line, grey for random orders. shown: the lines that the legend names; None: all."""
    known = []
    for name in dict.fromkeys(names):
        if name:
            known.append(name)

    grey = next((name for name in known if name.startswith(RANDOM_LINE)), RANDOM_LINE)
    legend: Spec = {"symbolType": "circle"}
    if shown is not None:
        named = [name for name in known if name in shown]
        legend |= {"values": named, "columns": charts.legend_columns(named)}
    return charts.categories("line:N", known, grey, **legend)


def _quality_panel(
    points: pd.DataFrame,
    levels: pd.DataFrame,
    ends: list[float],
    domain: list[float],
    colours: Spec,
    quality: QualityMeasure,
    split: str,
    seeds: pd.DataFrame,
) -> Spec:
    """ends, domain: of the axes of heads and of quality."""
    counts = {0, *(round(kept) for kept in points["kept"])}
    ticks = sorted(kept for kept in counts if kept >= ends[0])
    few = {"values": ticks} if len(ticks) <= 7 else {}
    x = axis(
        "x:Q",
        "heads kept",
        domain=ends,
        nice=False,
        grid=False,
        tickMinStep=1,
        labelOverlap="greedy",
        **few,
    )
    y = axis(
        "value:Q",
        f"{quality.axis} on {split}",
        domain=domain,
        zero=False,
        nice=False,
        tickCount=5,
    )
    tip = _tip(quality)
    on_line = points[points["line"] != ""]
    sort = points["sort"]
    random = on_line[on_line["sort"] == "random"]
    single = on_line[on_line["inside"] & (on_line["sort"] != "random")]
    one_range = random[random["inside"]] if len(set(random["kept"])) == 1 else random[:0]
    learned = single["sort"].isin(["learned", "chosen"])
    thin = {"strokeWidth": 1, "opacity": 0.3}
    wide = {"strokeWidth": 7, "opacity": 0.25}  # as a band, which needs two points
    marks = [
        *(charts.curve(random, x, y, colours, band=0.2, clip=True)[:1] if len(random) else []),
        *_level_marks(levels, y),
        *(_seed_marks(seeds[seeds["several"]], x, y) if len(seeds) else []),
        *charts.curve(on_line, x, y, colours, dots=34, width=1.6, opacity=0.6, tip=tip, clip=True),
        *charts.intervals(one_range, x, y, colours, whisker_look=wide, clip=True)[:1],
        *charts.intervals(
            single[~learned],
            x,
            y,
            colours,
            tip=tip,
            size=34,
            style="",
            whisker_look=thin,
            clip=True,
        ),
        *charts.intervals(points[sort == "full"], x, y, tip=tip, style="level", size=60),
        *charts.intervals(single[learned], x, y, colours, tip=tip, clip=True),
        charts.ring(points[sort == "chosen"], x, y),
        *(
            _control_marks(points[points["control"].notna()], x, y, tip)
            if "control" in points
            else []
        ),
        *([charts.ring(seeds[seeds["chosen"]], x, y)] if len(seeds) else []),
    ]
    return charts.layered(
        marks,
        300,
        f"{capital(quality.title)} against the number of heads kept",
        shape="independent",
    )


def _tip(quality: QualityMeasure) -> list[Spec]:
    return tips("model:N", "kept:Q|heads", f"value:Q|{quality.title}|.2f", "text:N|difference")


def _control_marks(points: pd.DataFrame, x: Spec, y: Spec, tip: list[Spec]) -> list[Spec]:
    """Hollow marks for controls."""
    shapes = dict(zip(points["control"], points["mark"], strict=True))
    shape = charts.shape_field("control:N", list(shapes), list(shapes.values()))
    look: Spec = {"style": "level", "size": 75, "filled": False, "strokeWidth": 2, "clip": True}
    rule = {"style": "level", "strokeWidth": 1, "opacity": 0.6}
    return charts.intervals(points, x, y, tip=tip, whisker_look=rule, shape=shape, **look)


def _level_marks(levels: pd.DataFrame, y: Spec) -> list[Spec]:
    """A line for every level; their names stand in a legend, where they cover no marks."""
    names = list(dict.fromkeys(levels["name"]))
    stroke = {"symbolType": "stroke", "symbolSize": 500, "symbolStrokeWidth": 1.5}
    legend = {"columns": charts.legend_columns(names), **stroke, **PHONE}
    dash = charts.field(
        "name:N", scale={"domain": names, "range": [DASHES[name] for name in names]}, legend=legend
    )
    return [charts.level_lines(levels, y, dash=dash)] if names else []


def _seed_points(
    seeds: pd.DataFrame,
    full: ModelRow | None,
    quality: QualityMeasure,
    kinds: tuple[str, ...],
    split: str,
) -> pd.DataFrame:
    """Single seeds' models, each at its own difference from the quality of the mean full model: those with gates that
    several seeds have, and the chosen ones.
    """
    base = measured(full, quality.name, split).value
    found = []
    own = models.of_kinds(models.pruned(seeds), kinds)
    counts = Counter(own.index)
    for model in models.model_rows(own):
        change = measured(model, quality.name, split, UNPRUNED)
        several = counts[model["setting"]] > 1 and model["learned"]
        if base is not None and change.value is not None and (model["chosen"] or several):
            found.append(
                {
                    "seed": f"seed {model['seed']}",
                    "line": model["line"],
                    "model": model["label"],
                    "x": model["kept"],
                    "value": quality.moved(base, change.value),
                    "several": several,
                    "chosen": model["chosen"],
                    "text": change_text(change, quality.unit),
                }
            )
    return pd.DataFrame(found)


def _seed_marks(points: pd.DataFrame, x: Spec, y: Spec) -> list[Spec]:
    """Small marks, a shape a seed."""
    if points.empty:
        return []
    shape = charts.shape_field("seed:N", list(dict.fromkeys(points["seed"])), columns=4)
    tip = tips("model:N", "seed:N", "x:Q|heads", "text:N|to its full model")
    look: Spec = {
        "style": "level",
        "size": 46,
        "shape": shape,
        "strokeWidth": 0,
        "opacity": 0.6,
        "clip": True,
    }
    return charts.intervals(points, x, y, charts.field("line:N"), tip=tip, **look)[1:]


def greedy_figures(frame: pd.DataFrame) -> list[Figure]:
    """Quality against the share of heads removed: by score, a panel for every set of kinds, and by kinds for the score
    that most of them share; none without greedy removal.
    """
    groups = {}
    for kinds in models.groups(frame):
        lines = models.lines(models.of_kinds(frame, kinds))
        if any(not line["learned"].all() for _, line in lines):
            groups[kinds] = lines

    every = []
    for lines in groups.values():
        for _, line in lines:
            if not line["learned"].all():
                every.append(line)

    if not every:
        return []
    full = models.unpruned_model(frame)
    quality = models.quality(frame)
    split = max(
        SPLITS,
        key=lambda split: sum(models.values(line, quality.name, split).count() for line in every),
    )
    by_score = {}
    for kinds, lines in groups.items():
        by_score[capital(models.group_name(kinds))] = _removal_points(full, lines, quality, split)

    panels = []
    for heading, points in by_score.items():
        if len(points) > 1:
            panels.append(_greedy_panel(points, heading, quality, split))

    drawn = [points for points in by_score.values() if len(points) > 1]
    note = f"on {split}{_bands(drawn)}"
    title = f"{capital(quality.title)} on {split} while heads are removed"
    first = Figure(
        "greedy-curves",
        f"{title}, the least important first",
        note,
        panels,
        columns=min(2, len(panels)),
    )
    shared: dict[str, list[tuple[str, pd.DataFrame]]] = {}
    for kinds, lines in groups.items():
        for name, line in lines:
            if not line["learned"].all() and not models.is_random(line):
                shared.setdefault(name, []).append((models.heads_name(kinds), line))

    most = max(shared, key=lambda name: len(shared[name]), default="")
    if len(shared.get(most, ())) < 2:
        return [first] if panels else []
    points = _removal_points(full, shared[most], quality, split)
    panels = [_greedy_panel(points, "", quality, split)]
    note = "share of the heads of these kinds that is removed"
    return [first, Figure("greedy-by-kind", f"{title}, by kind of heads: {most}", note, panels)]


def _bands(panels: list[pd.DataFrame]) -> str:
    """What the bands of panels are, where some are drawn: a band needs two points with an interval."""
    found = set[str]()
    for points in panels:
        for name, line in points.groupby("line"):
            if line.get("low", pd.Series()).count() > 1:
                is_random = str(name).startswith(RANDOM_LINE)
                found.add("range of random orders" if is_random else INTERVAL)
    return f" · bands: {', '.join(sorted(found))}" if found else ""


def _removal_points(
    full: ModelRow | None,
    lines: list[tuple[str, pd.DataFrame]],
    quality: QualityMeasure,
    split: str,
) -> pd.DataFrame:
    """The points of a panel: every line starts at the full model; `removed` is the share removed in per cent."""
    base = measured(full, quality.name, split).value
    found = []
    for name, line in lines:
        total = int(line["total"].iloc[0])
        start = {
            "model": "full model",
            "kept": total,
            "value": base,
            "low": base,
            "high": base,
            "sort": "full",
        }
        for one in [start, *_line_points(line, full, quality, split, {})]:
            found.append(
                one
                | {
                    "line": name,
                    "removed": round(100 * (1 - one["kept"] / total), 2),
                    "total": total,
                }
            )
    return pd.DataFrame([one for one in found if one["value"] is not None])


def _greedy_panel(points: pd.DataFrame, title: str, quality: QualityMeasure, split: str) -> Panel:
    x = axis("removed:Q", "heads removed (%)", domain=[0, 100], grid=False)
    scale: dict[str, Any] = {"type": "log", "nice": False} if quality.relative else {"zero": False}
    y = axis("value:Q", f"{quality.axis} on {split}", **scale)
    marks = charts.curve(
        points, x, y, _line_colour(points["line"]), band=0.18, dots=34, tip=_tip(quality)
    )
    chart = charts.layered(
        marks, 300, f"{capital(quality.title)} against the share of heads removed"
    )
    return Panel(chart, title, width=430, narrowest=270, widest=2000 if title else 620)


def pairs_panel(
    points: pd.DataFrame, data: list[str], title: str, quality: QualityMeasure, text: str
) -> Panel:
    """The difference to the full model against the share of heads kept, a line and shape a run or data set."""
    colours = charts.categories("data:N", data, orient="bottom")
    shape = charts.shape_field("data:N", colours["scale"]["domain"], values=data)
    x = axis("kept:Q", "heads kept (%)", domain=[0, 100], grid=False)
    y = axis("value:Q", f"{quality.title} on {text}, difference to the full model{quality.in_unit}")
    tip = tips("data:N", "model:N", "heads:N", "seeds:Q", f"text:N|{quality.title}")
    marks = [
        charts.level_lines([{"value": 0}], y),
        *charts.curve(points, x, y, colours, width=1.6, opacity=0.6),
        *charts.intervals(
            points,
            x,
            y,
            colours,
            tip=tip,
            size=80,
            style="",
            shape=shape,
            whisker_look={"strokeWidth": 2},
        ),
    ]
    chart = charts.layered(
        marks, 300, f"{capital(quality.title)} difference against the share of heads kept"
    )
    return Panel(chart, title, width=430, narrowest=270)


def pair_points(line: pd.DataFrame, quality: QualityMeasure, split: str) -> list[dict[str, Any]]:
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
