"""Which heads stay: the head map, and layers and kinds, with the paper's models (Voita et al. 2019, figures 9, 10)."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from headwise.grid import HeadGrid
from headwise.heads import KINDS, Head, HeadMap, HeadMask, Kind, Site
from headwise.report import charts, models, score_faithfulness
from headwise.report.charts import Figure, HeadChart, Panel, axis, colour, field, tips
from headwise.report.format import KIND_NAMES, capital, kinds_among, listed, measure_name, percent
from headwise.report.page import section
from headwise.report.run_folder import FinishedRun

PAPERS = Path(__file__).parent / "papers"
MAPPED = ("ablation.zero", "gradient", "confidence")  # measures that colour the map, the best first
THIRDS = ("lowest third", "middle third", "highest third")
PAPER_KIND, PAPER_THIRD = (
    48,
    16,
)  # heads of a kind, and of a third of its layers, in the paper's models
Left = Mapping[str, tuple[int, int]]  # of each kind or layer: heads left, and heads there were
Lines = list[tuple[str, list[dict[str, Any]]]]


@section(
    "layers",
    heading="Which layers keep their heads",
    question="Which layers and kinds of attention keep their heads?",
    order=100,
    files=("layouts/",),
    papers={"heads-by-kind": "Voita fig. 9", "decoder-layers": "Voita fig. 10"},
    brought_by="pruned models: a plan with [pruning], or headwise prune",
)
def kept_heads_section(run: FinishedRun) -> dict[str, Any] | None:
    """The charts of layers and kinds; the section is left out where nothing was pruned."""
    if run.models.empty:
        return None
    joint = _joint(run)
    return {
        "by_layer": heads_by_layer(run),
        "by_kind": heads_by_kind(run, joint),
        "decoder": decoder_layers(run, joint),
    }


def head_map(run: FinishedRun, model: models.ModelRow | None) -> Figure | None:
    """Layers × heads, coloured by the most faithful measure; of a pruned model, what it keeps (squares) and removes
    (dots). None where a run has neither a model with a layout nor scores."""
    measure = map_measure(run)
    values = values_by_head(run, measure)
    removed = False
    if model is not None and model["setting"] in run.layouts:
        mask = run.layouts[model["setting"]]
        heads = mask.heads.only(run.pruned_kinds(model))
        name = models.heads_name(model["kinds"])
        title = f"{model['kept']} of {model['total']} {name} kept ({model['label']})"
        removed = True
        values = {head: value for head, value in values.items() if head in heads}
    elif values:
        heads = HeadMap.smallest(values)
        mask = HeadMask.full(heads)
        title = f"{heads.total} heads"
    else:
        return None
    note = "filled: kept · dot: removed" if removed else ""
    facts = ""
    if values:
        shade = f"colour: {measure_name(measure)}"
        note = f"{note} · {shade}" if note else shade
        facts = f"Colour: {measure_name(measure)} in the full model."
    grid = HeadGrid(heads, values=values or None, kept=mask.kept)
    panels = []
    for kind in heads.kinds:
        panels.append(_map_panel(grid, kind, run.attention(kind), measure_name(measure), removed))
    return Figure("head-map", title, note, panels, columns=min(3, len(panels)), facts=facts)


def map_measure(run: FinishedRun) -> str:
    """The measure that colours the map: the most faithful one, else the first of MAPPED that the run has."""
    there = set() if run.heads is None else set(run.heads["measure"])
    statistics = score_faithfulness.faithfulness_statistics(run)
    best = None if statistics is None else score_faithfulness.most_faithful(statistics)
    for measure in (best, *MAPPED):
        if measure in there:
            return str(measure)
    return MAPPED[-1]


def values_by_head(run: FinishedRun, measure: str) -> dict[Head, float]:
    """The value of each head that a measure has one for."""
    if run.heads is None:
        return {}
    rows = run.heads[run.heads["measure"] == measure].dropna(subset=["value"])
    addresses = rows[["kind", "layer", "head", "value"]].itertuples(index=False, name=None)
    values: dict[Head, float] = {}
    for kind, layer, head, value in addresses:
        values[Head(kind, layer, head)] = value
    return values


def _map_panel(
    grid: HeadGrid, kind: Kind, attention: list[str], measure: str, removed: bool
) -> Panel:
    chart = HeadChart(grid, kind, attention=attention)
    tip = tips("address:N|head")
    if removed:
        tip += tips("kept:N|in the pruned model")
    colours = None
    if "value" in chart.heads:
        top = float(f"{chart.heads['value'].max():.2g}")
        legend: charts.Spec = {"orient": "bottom", "title": measure}
        legend |= {"gradientLength": min(180, 30 * chart.columns), "values": [0, top]}
        legend["format"] = ".2g"
        colours = colour("value:Q", [0, top], "heatmap", **legend)
        colours["scale"]["clamp"] = True
        tip += tips(f"value:Q|{measure}|.3g")
    kept = chart.heads["kept"].eq("kept").groupby(chart.heads["layer"]).agg(["sum", "size"])
    counts = []
    for layer, n, total in kept.itertuples():
        if removed:
            counts.append({"layer": layer, "text": f"{n} of {total}"})

    dots = {"size": 110, "opacity": 1}
    place: charts.Spec = {"x": chart.x, "y": chart.y, "tooltip": tip}
    place["color"] = colours and {**colours, "legend": None}
    marks = [
        chart.squares(colours, tip, "datum.kept == 'kept'", cornerRadius=5),
        charts.mark("circle", chart.cells, dots, "datum.kept == 'removed'", **place),
    ]
    if removed:
        marks.append(charts.beside(counts, chart.y, "text:N"))
    description = f"Head map, {KIND_NAMES[kind]}"
    beyond = 60 if removed else 0
    return chart.panel(marks, KIND_NAMES[kind], description, narrow=12, wide=50, beyond=beyond)


def heads_by_layer(run: FinishedRun) -> Figure | None:
    """Stacked bars: how many heads every layer keeps, model by model; None without layouts. Where gates found the heads
    of some models, the others (greedy removal) are left out.
    """
    known = []
    for model in run.pruned:
        if model["setting"] in run.layouts:
            known.append(model)

    known = [model for model in known if model["learned"]] or known
    if not known:
        return None
    pruned = {}
    for model in known:
        pruned[model["setting"]] = run.pruned_kinds(model)

    kinds = kinds_among(itertools.chain(*pruned.values()))
    empty = []
    for model in known:
        mask = run.layouts[model["setting"]]
        sites = []
        for site in mask.heads.sites:
            if site.kind in pruned[model["setting"]] and not mask.of(site):
                sites.append(site)

        if sites:
            empty.append(
                f"{listed([f'{KIND_NAMES[site.kind]} {site.layer}' for site in sites])} ({model['label']})"
            )

    panels = []
    for kind in kinds:
        with_kind = [model for model in known if kind in pruned[model["setting"]]]
        panels.append(_bars(run, with_kind, kind))
    return Figure(
        name="heads-by-layer",
        title="Heads kept by layer",
        note="the number in a bar is the number of heads that the layer keeps",
        panels=panels,
        facts=f"Layers without a head: {'; '.join(empty)}." if empty else "",
    )


def _bars(run: FinishedRun, known: list[dict[str, Any]], kind: Kind) -> Panel:
    known = sorted(known, key=lambda model: -run.layouts[model["setting"]].count(kind))
    counts = run.layouts[known[0]["setting"]].heads.query[kind]
    cells = [("full model", layer, count) for layer, count in enumerate(counts)] if run.full else []
    for model in known:
        mask = run.layouts[model["setting"]]
        for layer, (left, _) in enumerate(by_layer(mask, kind)):
            cells.append((model["label"], layer, left))

    table = pd.DataFrame(cells, columns=["model", "layer", "kept"])
    order = list(dict.fromkeys(table["model"]))
    half = (len(counts) - 1) / 2
    colours = field(
        "layer:O", scale={"range": "ordinal"}, legend={"orient": "top", "title": "layer"}
    )
    marks = charts.stacked_bars(
        table,
        axis("model:N", None, sort=order),
        "kept:Q",
        colours,
        "layer:Q",
        title="heads kept",
        tip=tips("model:N", "layer:O", "kept:Q|heads kept"),
        texts=[(f"datum.layer < {half}", "on-low"), (f"datum.layer >= {half}", "on-high")],
    )
    chart = charts.layered(marks, 34 * len(order), f"Heads kept by layer, {KIND_NAMES[kind]}")
    return Panel(chart, KIND_NAMES[kind], width=560)


def by_layer(mask: HeadMask, kind: Kind) -> list[tuple[int, int]]:
    """For each layer of a kind the heads left and the heads there were."""
    counts: list[tuple[int, int]] = []
    for layer, count in enumerate(mask.heads.query[kind]):
        counts.append((len(mask.of(Site(kind, layer))), count))
    return counts


def _joint(run: FinishedRun) -> Lines:
    """Lines of models with layouts that several kinds had a part in: of gates, or without any of greedy orders.

    A target count for each kind decides what is left of it, so such models are no finding and left out.
    """
    free = []
    for name, kinds, keep in zip(
        run.models.index, run.models["kinds"], run.models["keep"], strict=True
    ):
        free.append(len(kinds) > 1 and not isinstance(keep, Mapping) and name in run.layouts)

    found = []
    for name, line in models.lines(run.models[free]):
        if not models.is_random(line):
            found.append((name, line))

    gates = []
    for name, line in found:
        if line["learned"].all():
            gates.append((name, line))

    joint: Lines = []
    for name, line in gates or found:
        joint.append((name, models.model_rows(line)))
    return joint


def heads_by_kind(run: FinishedRun, joint: Lines) -> Figure | None:
    """Share of each kind's heads left against the share of all heads pruned; None where no two kinds were pruned."""
    if not joint:
        return None
    ours = {}
    for name, line in joint:
        ours[name] = [_kinds_left(run, model) for model in line]

    paper: dict[str, list[Left]] = {}
    for row in pd.read_csv(PAPERS / "voita2019_kinds.csv").to_dict("records"):
        left: dict[str, tuple[int, int]] = {}
        for kind in KINDS:
            left[kind] = (int(row[kind]), PAPER_KIND)

        paper.setdefault(f"Voita et al. 2019, EN-RU {row['model']}", []).append(left)
    return Figure(
        name="heads-by-kind",
        title="Heads left by kind of attention",
        note="share of the heads of each kind that is left · also the paper's two models of 48 heads a kind",
        panels=[_shares(found, title, "kind") for title, found in (ours | paper).items()],
        columns=3,
        facts=" ".join(
            f"{capital(name)}, mean over {len(found)}: {_mean(found)}."
            for name, found in ours.items()
        ),
    )


def _mean(found: list[Left]) -> str:
    """The mean share that is left of each kind, the least first."""
    rows = []
    for one in found:
        rows.append({kind: left / total for kind, (left, total) in one.items()})

    shares = pd.DataFrame(rows).mean()
    return ", ".join(
        f"{KIND_NAMES[str(kind)]} {percent(share)}" for kind, share in shares.sort_values().items()
    )


def _kinds_left(run: FinishedRun, model: Mapping[str, Any]) -> Left:
    mask = run.layouts[model["setting"]]
    left: dict[str, tuple[int, int]] = {}
    for kind in kinds_among(model["kinds"]):
        left[kind] = (mask.count(kind), sum(mask.heads.query[kind]))
    return left


def decoder_layers(run: FinishedRun, joint: Lines) -> Figure | None:
    """Share of the heads left in each decoder layer or third of them, a panel a kind; None where no two kinds were."""
    kinds: tuple[Kind, ...] = ("decoder-self", "cross")
    drawn = {}
    for name, line in joint:
        for kind in kinds:
            if kind in line[0]["kinds"]:
                drawn[f"{capital(KIND_NAMES[kind])} · {name}"] = [
                    _layers_left(run, model["setting"], kind) for model in line
                ]

    if drawn and {name for found in drawn.values() for name in found[0]} == set(THIRDS):
        for row in pd.read_csv(PAPERS / "voita2019_layers.csv").to_dict("records"):
            title = f"{capital(KIND_NAMES[row['kind']])} · Voita et al. 2019, EN-RU WMT"
            drawn.setdefault(title, []).append(
                {third: (int(row[third]), PAPER_THIRD) for third in THIRDS}
            )
    note = "share of the heads that is left in each layer, against the share of that kind that is pruned"
    panels = [_shares(found, title, "layer") for title, found in drawn.items()]
    return (
        Figure("decoder-layers", "Heads left by decoder layer", note, panels, columns=2)
        if panels
        else None
    )


def _layers_left(run: FinishedRun, name: str, kind: Kind) -> Left:
    """By thirds of the layers, lowest first, where three divides their number; else layer by layer."""
    layers = by_layer(run.layouts[name], kind)
    if len(layers) % 3:
        left = {}
        for layer, pair in enumerate(layers):
            left[f"layer {layer}"] = pair
        return left
    size = len(layers) // 3
    parts = [layers[i * size : (i + 1) * size] for i in range(3)]
    left = {}
    for third, part in zip(THIRDS, parts, strict=True):
        in_third = 0
        before = 0
        for count, whole in part:
            in_third += count
            before += whole
        left[third] = (in_third, before)
    return left


def _shares(found: list[Left], title: str, what: str) -> Panel:
    """A line for each kind or layer through the models, from the whole one on."""
    names = list(found[0])
    cells = []
    for one in ({name: (total, total) for name, (_, total) in found[0].items()}, *found):
        there = 0
        before = 0
        for left, total in one.values():
            there += left
            before += total

        removed = 1 - there / before
        for name, (left, total) in one.items():
            cells.append(
                {
                    "name": name,
                    "removed": round(100 * removed, 2),
                    "left": round(100 * left / total, 2),
                    "text": f"{left} of {total}",
                }
            )

    by_kind = what == "kind"
    domain = list(KINDS) if by_kind else names
    legend = {
        "orient": "bottom",
        "title": None,
        "columns": 1 if by_kind else 3,
        "symbolOpacity": 1,
        "labelLimit": 0,
    }
    colours = colour(
        "name:N" if by_kind else "name:O", domain, "category" if by_kind else "ordinal", **legend
    )
    marks = charts.curve(
        cells,
        axis("removed:Q", "heads pruned (%)", domain=[0, 100], grid=False),
        axis("left:Q", "heads left (%)", domain=[0, 100], tickCount=4),
        colours | {"sort": domain},
        dots=60,
        shape=charts.shape_field("name:N", domain, charts.SHAPES[:4], **legend) | {"sort": domain},
        tip=tips(f"name:N|{what}", "text:N|heads left"),
    )
    chart = charts.layered(marks, 220, f"Heads left, {title}")
    return Panel(chart, title, width=300 if by_kind else 400, narrowest=150 if by_kind else 230)
