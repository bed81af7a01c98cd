"""Which heads stay: the head map, and layers and kinds (Voita et al. 2019, figure 9)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

from headwise.core.grid import HeadGrid
from headwise.core.heads import KINDS, HeadMap, Kind, Site
from headwise.core.layout import HeadMask
from headwise.core.theme import Scale
from headwise.faces.report import charts, models
from headwise.faces.report.charts import Figure, HeadChart, Panel, axis, colour, field, tips
from headwise.faces.report.format import KIND_NAMES, capital, kinds_among, measure_name, percent
from headwise.faces.report.head_rows import values_by_head
from headwise.faces.report.page import section
from headwise.faces.report.run_folder import RunContents
from headwise.importance.most_faithful import faithfulness_statistics, most_faithful

# Measures that colour the map, the best first.
MAPPED = ("ablation.zero", "gradient", "attribution.zero", "confidence")
Left = Mapping[str, tuple[int, int]]  # of each kind: heads left, and heads there were
Lines = list[tuple[str, list[dict[str, Any]]]]


@section(
    "layers",
    heading="Which layers keep their heads",
    question="Which layers and kinds of attention keep their heads?",
    order=100,
    files=("layouts/",),
    papers={"heads-by-kind": "Voita fig. 9", "heads-by-layer": "Voita fig. 10"},
    brought_by="pruned models: a plan with [pruning], or headwise prune",
)
def kept_heads_section(run: RunContents) -> dict[str, Any] | None:
    """The charts of layers and kinds; the section is left out where nothing was pruned."""
    if run.model_table.empty:
        return None
    return {"by_layer": heads_by_layer(run), "by_kind": heads_by_kind(run)}


def head_map(run: RunContents, model: models.ModelRow | None) -> Figure | None:
    """Layers × heads, coloured by the most faithful measure; of a pruned model, what it keeps (squares) and removes
    (dots). None where a run has neither a model with a layout nor scores."""
    measure = map_measure(run)
    values = values_by_head(run, measure)
    # Without a layout nobody knows which heads are gone.
    removed = model is not None and model["setting"] in run.layouts
    if model is not None and removed:
        mask = run.layouts[model["setting"]]
        heads = mask.heads.only(run.pruned_kinds(model))
        name = models.heads_name(model["kinds"])
        title = f"{model['kept']} of {model['total']} {name} kept ({model['label']})"
        values = {head: value for head, value in values.items() if head in heads}
    elif values:
        heads = HeadMap.smallest(values)
        mask = HeadMask.full(heads)
        title = f"{heads.total} heads"
    else:
        return None
    notes = ["filled: kept · dot: removed"] * removed
    notes += [f"colour: {measure_name(measure)} in the full model"] * bool(values)
    grid = HeadGrid(heads, values=values or None, kept=mask.kept)
    panels = []
    for kind in heads.kinds:
        panels.append(_map_panel(grid, kind, run.attention(kind), measure_name(measure), removed))
    return Figure("head-map", title, " · ".join(notes), panels, columns=min(3, len(panels)))


def map_measure(run: RunContents) -> str:
    """The measure that colours the map: the most faithful one, else the first of MAPPED that the run has."""
    there = set(run.heads["measure"])
    best = most_faithful(faithfulness_statistics(run.faithfulness))
    return next((str(name) for name in (best, *MAPPED) if name in there), MAPPED[-1])


def _map_panel(
    grid: HeadGrid, kind: Kind, attention: list[str], measure: str, removed: bool
) -> Panel:
    chart = HeadChart(grid, kind, attention=attention)
    tip = tips("address:N|head")
    if removed:
        tip += tips("kept:N|in the pruned model")
    colours = None
    if "value" in chart.heads:
        scale = Scale.of(chart.heads["value"])
        legend: charts.Spec = {"orient": "bottom", "title": measure, "format": ".2g"}
        legend |= {"gradientLength": min(180, 30 * chart.columns), "values": scale.ends}
        colours = charts.heat("value:Q", scale.ends, scale.colours, **legend)
        tip += tips(f"value:Q|{measure}|.3g")
    dots = {"size": 110, "opacity": 1}
    place: charts.Spec = {"x": chart.x, "y": chart.y, "tooltip": tip}
    # The squares have the legend; dots would bring it a second time.
    place["color"] = colours and {**colours, "legend": None}
    marks = [
        chart.squares(colours, tip, "datum.kept == 'kept'", cornerRadius=5),
        charts.mark("circle", chart.cells, dots, "datum.kept == 'removed'", **place),
    ]
    if removed:
        kept = chart.heads["kept"].eq("kept").groupby(chart.heads["layer"]).agg(["sum", "size"])
        counts = [{"layer": at, "text": f"{n} of {total}"} for at, n, total in kept.itertuples()]
        marks.append(charts.beside(counts, chart.y, "text:N"))
    description = f"Head map, {KIND_NAMES[kind]}"
    beyond = 60 if removed else 0
    return chart.panel(marks, KIND_NAMES[kind], description, narrow=12, wide=50, beyond=beyond)


def heads_by_layer(run: RunContents) -> Figure | None:
    """Stacked bars: how many heads every layer keeps, model by model; None without layouts. Where gates found the heads
    of some models, the others (greedy removal) are left out.
    """
    known = [model for model in run.pruned if model["setting"] in run.layouts]
    # Gates are the finding; an order of removal was given.
    known = [model for model in known if model["learned"]] or known
    if not known:
        return None
    panels = []
    for kind in KINDS:
        with_kind = [model for model in known if kind in run.pruned_kinds(model)]
        if with_kind:
            panels.append(_bars(run, with_kind, kind))
    return Figure(
        name="heads-by-layer",
        title="Heads kept by layer",
        note="the number in a bar is the number of heads that the layer keeps",
        panels=panels,
    )


def _bars(run: RunContents, known: list[dict[str, Any]], kind: Kind) -> Panel:
    known = sorted(known, key=lambda model: -run.layouts[model["setting"]].count(kind))
    counts = run.layouts[known[0]["setting"]].heads.query[kind]
    cells = [("full model", layer, count) for layer, count in enumerate(counts)] if run.full else []
    for model in known:
        for layer, (left, _) in enumerate(by_layer(run.layouts[model["setting"]], kind)):
            cells.append((model["label"], layer, left))

    rows = pd.DataFrame(cells, columns=["model", "layer", "kept"])
    order = list(dict.fromkeys(rows["model"]))
    # The scale starts near the paper's lightness: numbers turn from dark to pale half-way.
    half = (len(counts) - 1) / 2
    legend = {"orient": "top", "title": "layer"}
    marks = charts.stacked_bars(
        rows,
        axis("model:N", None, sort=order),
        "kept:Q",
        field("layer:O", scale={"range": "ordinal"}, legend=legend),
        "layer:Q",
        title="heads kept",
        tip=tips("model:N", "layer:O", "kept:Q|heads kept"),
        texts=[(f"datum.layer < {half}", "on-low"), (f"datum.layer >= {half}", "on-high")],
    )
    chart = charts.layered(marks, 34 * len(order), f"Heads kept by layer, {KIND_NAMES[kind]}")
    return Panel(chart, KIND_NAMES[kind], width=560)


def by_layer(mask: HeadMask, kind: Kind) -> list[tuple[int, int]]:
    """For each layer of a kind the heads left and the heads there were."""
    counts = enumerate(mask.heads.query[kind])
    return [(len(mask.of(Site(kind, layer))), count) for layer, count in counts]


def _joint(run: RunContents) -> Lines:
    """Lines of models with layouts that several kinds had a part in: of gates, or without any of greedy orders.

    A target count for each kind decides what is left of it, so such models are no finding and left out.
    """
    free = [
        len(model["kinds"]) > 1
        and not isinstance(model["keep"], Mapping)
        and model["setting"] in run.layouts
        for model in models.model_rows(run.model_table)
    ]
    lines = [line for line in models.lines(run.model_table[free]) if not models.is_random(line[1])]
    gates = [line for line in lines if line[1]["learned"].all()]
    return [(name, models.model_rows(line)) for name, line in gates or lines]


def heads_by_kind(run: RunContents) -> Figure | None:
    """Share of each kind's heads left against the share of all heads pruned; None where no two kinds were pruned."""
    drawn: dict[str, list[Left]] = {}
    for name, line in _joint(run):
        for model in line:
            mask = run.layouts[model["setting"]]
            kinds = kinds_among(model["kinds"])
            left: Left = {kind: (mask.count(kind), sum(mask.heads.query[kind])) for kind in kinds}
            drawn.setdefault(name, []).append(left)

    if not drawn:
        return None
    facts = [
        f"{capital(name)}, mean over {len(rows)}: {_mean(rows)}." for name, rows in drawn.items()
    ]
    return Figure(
        name="heads-by-kind",
        title="Heads left by kind of attention",
        note="share of the heads of each kind that is left",
        panels=[_shares(rows, title) for title, rows in drawn.items()],
        columns=3,
        facts=" ".join(facts),
    )


def _mean(found: list[Left]) -> str:
    """The mean share that is left of each kind, the least first."""
    rows = [{kind: left / total for kind, (left, total) in one.items()} for one in found]
    shares = pd.DataFrame(rows).mean().sort_values()
    return ", ".join(f"{KIND_NAMES[str(kind)]} {percent(share)}" for kind, share in shares.items())


def _shares(found: list[Left], title: str) -> Panel:
    """A line for each kind through the models, from the whole one on."""
    # The curve begins at the model that has all heads.
    whole = {name: (total, total) for name, (_, total) in found[0].items()}
    cells = []
    for one in (whole, *found):
        kept, before = (sum(counts) for counts in zip(*one.values(), strict=True))
        removed = round(100 * (1 - kept / before), 2)
        for name, (left, total) in one.items():
            share = round(100 * left / total, 2)
            text = f"{left} of {total}"
            cells.append({"name": name, "removed": removed, "left": share, "text": text})

    legend: charts.Spec = {"orient": "bottom", "title": None, "columns": 1}
    legend |= {"symbolOpacity": 1, "labelLimit": 0}
    marks = charts.curve(
        cells,
        axis("removed:Q", "heads pruned (%)", domain=[0, 100], grid=False),
        axis("left:Q", "heads left (%)", domain=[0, 100], tickCount=4),
        colour("name:N", KINDS, **legend),
        dots=60,
        shape=charts.shape_field("name:N", KINDS, **legend),
        tip=tips("name:N|kind", "text:N|heads left"),
    )
    chart = charts.layered(marks, 220, f"Heads left, {title}")
    return Panel(chart, title, width=300, narrowest=150)
