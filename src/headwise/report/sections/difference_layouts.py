"""Part of the page of two runs: which heads stay where both keep as many."""

from __future__ import annotations

from functools import partial
from typing import Any

from headwise.grid import HeadGrid
from headwise.heads import KINDS, Head
from headwise.report import charts, models
from headwise.report.charts import tips
from headwise.report.difference import Difference
from headwise.report.parts import Columns, Figure, HeadChart, Panel, table
from headwise.report.run import Run
from headwise.report.sections import layers
from headwise.report.words import KIND_NAMES, listed

WHICH = ("both", "neither", "only A", "only B")
Kept = tuple[models.Model, models.Model]  # a model of each run: of the same kinds and as many heads


def build(found: Difference) -> dict[str, Any] | None:
    """Which heads stay where both runs keep as many; None where a run has pruned nothing."""
    if any(not run.layouts for run in found.both):
        return None
    pairs = equal_counts(found)
    one, other = found.both
    paired = bool(found.heads)
    columns: Columns = {
        "heads kept": lambda pair: (
            f"{pair[0]['kept']} of {pair[0]['total']} {models.heads_name(pair[0]['kinds'])}"
        ),
        **{
            name: partial(lambda at, pair: pair[at]["label"], at)
            for at, name in enumerate(found.runs)
        },
    }
    if paired:
        columns |= {
            "kept by both": lambda pair: str(len(_kept(one, pair[0]) & _kept(other, pair[1]))),
            "expected of two random choices": lambda pair: (
                f"{pair[0]['kept'] ** 2 / pair[0]['total']:.1f}"
            ),
            "only A": lambda pair: listed(
                sorted(map(str, _kept(one, pair[0]) - _kept(other, pair[1])))
            ),
            "only B": lambda pair: listed(
                sorted(map(str, _kept(other, pair[1]) - _kept(one, pair[0])))
            ),
        }
    else:
        columns |= {
            f"layer by layer, {name}": partial(
                lambda at, pair: _by_layer(found.both[at], pair[at]), at
            )
            for at, name in enumerate(found.runs)
        }
    drawn = next(
        (pair for pair in pairs if pair[0]["chosen"] or pair[1]["chosen"]),
        pairs[0] if pairs else None,
    )
    return {
        "layouts": table("Heads kept at equal counts", pairs, columns),
        "map": kept_map(found, drawn) if drawn and paired else None,
        "paired": paired,
    }


def equal_counts(found: Difference) -> list[Kept]:
    """For every number of heads that both runs keep, a model of each: of the same setting, else gates first."""
    one, other = (
        [m for m in run.pruned if m["setting"] in run.layouts and m["method"] != models.RANDOM]
        for run in found.both
    )
    pairs: dict[Any, list[Kept]] = {}
    for model in one:
        for twin in other:
            if (model["kinds"], model["kept"], model["total"]) == (
                twin["kinds"],
                twin["kept"],
                twin["total"],
            ):
                pairs.setdefault((model["kinds"], -model["kept"]), []).append((model, twin))
    order = lambda p: (p[0]["setting"] != p[1]["setting"], not p[0]["learned"], not p[1]["learned"])  # noqa: E731
    return [min(pairs[key], key=order) for key in sorted(pairs)]


def _kept(run: Run, model: models.Model) -> frozenset[Head]:
    return frozenset(
        head for head in run.layouts[model["setting"]].kept if head.kind in model["kinds"]
    )


def _by_layer(run: Run, model: models.Model) -> str:
    mask = run.layouts[model["setting"]]
    kinds = run.pruned_kinds(model)
    return "; ".join(
        " · ".join(str(left) for left, _ in layers.by_layer(mask, kind)) for kind in kinds
    )


def kept_map(found: Difference, pair: Kept) -> Figure:
    """Layers × heads: kept by both models, by one of them, or by neither."""
    (one, other), (model, second) = found.both, pair
    kept = _kept(one, model), _kept(other, second)
    words = {
        (True, True): "both",
        (True, False): "only A",
        (False, True): "only B",
        (False, False): "neither",
    }
    heads = one.layouts[model["setting"]].heads
    groups, facts = dict[Head, str](), dict[Head, Any]()
    for head in heads:
        groups[head] = words[head in kept[0], head in kept[1]]
        facts[head] = {"letter": groups[head].removeprefix("only ") * ("only" in groups[head])}
    names = " and ".join(dict.fromkeys((model["label"], second["label"])))
    grid = HeadGrid(heads, names, groups=groups, facts=facts)
    return Figure(
        "kept-by-both",
        f"{model['kept']} of {model['total']} heads kept in each run ({names})",
        "layers × heads, coloured by who keeps the head",
        [_kept_panel(grid, kind) for kind in KINDS if kind in model["kinds"]],
    )


def _kept_panel(grid: HeadGrid, kind: str) -> Panel:
    chart = HeadChart(grid, kind)
    legend: charts.Spec = {"orient": "bottom", "title": None, "columns": 4}
    legend |= {"symbolType": "square", "symbolOpacity": 1}
    ink = charts.colour("group:N", WHICH, **legend)
    tip = tips("address:N|head", "group:N|kept by")
    faint = charts.when("datum.group == 'neither'", 0.25, 1)
    marks = [chart.squares(ink, tip, opacity=faint, cornerRadius=5)]
    marks += chart.texts(tip, "true", [("letter:N", "", 0)])
    description = f"Heads kept in both runs, {KIND_NAMES[kind]}"
    return chart.panel(marks, KIND_NAMES[kind], description, row=40, wide=50, beyond=60)
