"""How the gates closed: the animation, a curve for every head, how far they had settled, the gate's distribution."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import altair as alt
import numpy as np
import pandas as pd

from headwise.heads import KINDS, Head
from headwise.report import charts
from headwise.report.models import value
from headwise.report.parts import Figure, Panel, Row, Section, Table
from headwise.report.run import Run
from headwise.report.words import KIND_NAMES, NONE, listed, percent

FRAMES, RATE = 60, 8  # of the animation; frames a second
VALUES = 150_000  # numbers in all films together: about 400 kB of page
POINTS = 20_000  # points in all gate curves together: about 1 MB of page
HALF, SURE = 0.5, 0.1  # a gate is shut below HALF, undecided between SURE and 1 − SURE
MOST_NAMED = 4
HEALTH: dict[str, tuple[str, Callable[[float], str]]] = {
    "undecided_gates": ("undecided", percent),
    "expected_heads": ("expected heads", "{:.1f}".format),
    "settled": ("settled", lambda value: "yes" if value else "no"),
    "soft_dev_loss": ("dev loss before deciding", "{:.4f}".format),
    "decided_dev_loss": ("after deciding", "{:.4f}".format),
    "dev_loss": ("of the pruned model", "{:.4f}".format),
}


@dataclass(frozen=True)
class Film:
    """A model's gates through training. opened: P(open), a row a logged step, a column for each of `heads`."""

    model: Mapping[str, Any]
    heads: list[Head]
    opened: pd.DataFrame
    kept: frozenset[Head]

    @property
    def grids(self) -> list[tuple[str, list[int]]]:
        """The kinds of heads, each with the number of heads in its layers; the order is that of `heads`."""
        sizes = (
            pd.DataFrame(self.heads, columns=["kind", "layer", "head"]).groupby(["kind", "layer"], sort=False).size()
        )
        return [(str(kind), part.tolist()) for kind, part in sizes.groupby(level="kind", sort=False)]

    def at(self, steps: list[int]) -> np.ndarray:
        """P(open) at some steps, as it was last logged before each (steps × heads)."""
        return np.asarray(self.opened.reindex(steps, method="ffill").bfill())


def build(run: Run) -> dict[str, Any] | None:
    """The section is left out where nothing was pruned."""
    if run.models.empty:
        return None
    shown = films(run)
    return {
        "film": animation(shown) if shown else None,
        "closing": closing_table(shown),
        "curves": gate_curves(run),
        "lines": sorted({film.model["line"] for film in shown}),
        "health": health_table(run),
        "notes": notes(run),
        "concrete": any(film.model["method"] == "gates" for film in shown),
    }


def films(run: Run) -> list[Film]:
    """One film for every model whose gates were logged, from many heads to few."""
    found = []
    for model in run.pruned:
        table = run.gates.get(model["setting"])
        if table is None or (table := table.dropna(subset=["p_open"])).empty:
            continue
        opened = table.pivot_table(index="step", columns=["kind", "layer", "head"], values="p_open", aggfunc="last")
        heads = sorted((Head(*column) for column in opened.columns), key=lambda h: (KINDS.index(h.kind), *h[1:]))
        mask = run.layouts.get(model["setting"])
        found.append(Film(model, heads, opened[heads].ffill().bfill(), frozenset() if mask is None else mask.kept))
    return found


def frame_steps(shown: list[Film]) -> list[int]:
    """The steps of the frames, the same for all films: at most FRAMES, fewer where there are very many heads."""
    known = {int(step) for film in shown for step in film.opened.index}
    return thinned(known, max(10, min(FRAMES, VALUES // max(1, sum(len(film.heads) for film in shown)))))


def thinned(steps: Any, most: int) -> list[int]:
    """At most so many of the steps, evenly spread, the first and the last among them."""
    known = sorted(set(steps))
    return known if len(known) <= most else [known[round(i * (len(known) - 1) / (most - 1))] for i in range(most)]


def animation(shown: list[Film]) -> dict[str, Any]:
    """What the page plays. frames: for each step one text of P(open) in per cent, head by head, with blanks between."""
    steps = frame_steps(shown)
    return {
        "rate": RATE,
        "steps": steps,
        "films": [
            {
                "label": film.model["label"],
                "total": len(film.heads),
                "grids": [{"kind": kind, "name": KIND_NAMES[kind], "layers": rows} for kind, rows in film.grids],
                "stays": [int(head in film.kept) for head in film.heads],
                "frames": [" ".join(map(str, row)) for row in np.rint(100 * film.at(steps)).astype(int).tolist()],
            }
            for film in shown
        ],
    }


def closing_table(shown: list[Film]) -> Table | None:
    """Model by model, when gates shut for good, how many opened again, and how many were undecided at the end."""
    columns = ["model", "gates", "shut", "first at step", "half by step", "last at step", "opened again", "undecided"]
    rows = []
    for film in shown:
        shut = film.opened.to_numpy() < HALF
        stays_shut = np.logical_and.accumulate(shut[::-1])[::-1]
        first = stays_shut.argmax(axis=0)[stays_shut[-1]]
        steps = sorted(int(film.opened.index[row]) for row in first)
        ends = [f"{steps[i]:,}" for i in (0, (len(steps) - 1) // 2, -1)] if steps else [NONE] * 3
        reopened = int((shut[:-1] & ~shut[1:]).any(axis=0).sum())
        share, last = value(film.model, "undecided_gates"), film.opened.to_numpy()[-1]
        undecided = ((last > SURE) & (last < 1 - SURE)).sum() if share is None else round(share * len(film.heads))
        early = "yes" if (film.model["settle"] or 0) > 0 else "no"
        counts = [str(len(film.heads)), str(len(steps)), *ends, str(reopened), str(undecided), early]
        rows.append(Row([film.model["label"], *counts], badge="chosen" if film.model["chosen"] else ""))
    return Table("When gates shut", [*columns, "decided before the end"], rows) if rows else None


def gate_curves(run: Run) -> list[Figure]:
    """For every model with a gate log: P(open) of each gate through training, a panel a layer."""
    known = [model for model in run.pruned if model["setting"] in run.gates]
    lines = sum(len(run.gates[model["setting"]].drop_duplicates(["kind", "layer", "head"])) for model in known)
    points = max(20, min(120, POINTS // max(lines, 1)))
    return [_gate_figure(run, model, points) for model in known]


def _gate_figure(run: Run, model: dict[str, Any], points: int) -> Figure:
    name = model["setting"]
    table, mask = run.gates[name].dropna(subset=["p_open"]), run.layouts.get(name)
    table = table[table["step"].isin(thinned(table["step"], points))]
    kept = frozenset[Head]() if mask is None else mask.kept
    heads = table[["kind", "layer", "head"]].itertuples(index=False, name=None)
    table = table.assign(p=table["p_open"], fate=["kept" if head in kept else "removed" for head in heads])
    kinds = [kind for kind in KINDS if kind in set(table["kind"])]
    panels = [
        Panel(_gate_panel(part, f"{kind}_{layer}"), f"{f'{kind} ' if len(kinds) > 1 else ''}layer {layer}", 230, 150)
        for kind in kinds
        for layer, part in table[table["kind"] == kind].groupby("layer")
    ]
    return Figure(
        name=f"gates-{name}",
        title=f"{model['label']}: {model['kept']} of {model['total']} heads stay open",
        note="probability that each gate is open, through pruning"
        + ("" if mask is None else " · blue: kept · grey: removed"),
        panels=panels,
        columns=3,
    )


def _gate_panel(table: pd.DataFrame, name: str) -> Any:
    hover = alt.selection_point(name=f"at_{name.replace('-', '_')}", on="pointerover", fields=["head"], empty=False)
    x = alt.X("step:Q", title="step", axis=alt.Axis(tickCount=3, format=",d", grid=False))
    y = alt.Y("p:Q", title=None, scale=alt.Scale(domain=[0, 1]), axis=alt.Axis(values=[0, 0.5, 1]))
    colour = alt.Color("fate:N", scale=alt.Scale(domain=["kept", "removed"], range="category"), legend=None)
    (line,) = charts.curve(table[["step", "head", "p", "fate"]], x, y, colour, detail="head:N", width=1.6)
    line = line.encode(
        strokeWidth=alt.condition(hover, alt.value(4), alt.value(1.6)), tooltip=charts.tips("head:N", "fate:N")
    ).add_params(hover)
    return line.properties(height=120, description=f"Gate probabilities, {name}")


def health_table(run: Run) -> Table | None:
    """How far gates had settled when they were decided, and what deciding them did to the dev loss; None without."""
    rows = []
    for model in run.pruned:
        if any(value(model, measure) is not None for measure in HEALTH if measure != "dev_loss"):
            found = [(write, value(model, measure)) for measure, (_, write) in HEALTH.items()]
            cells = [NONE if number is None else write(number) for write, number in found]
            rows.append(Row([model["label"], f"{model['kept']} of {model['total']}", *cells]))
    columns = ["model", "heads kept", *(name for name, _ in HEALTH.values())]
    return Table("How far they had settled", columns, rows).without_empty(NONE) if rows else None


def notes(run: Run) -> list[str]:
    """What pruning noted, each note once, with the models it is about unless it is about all of them."""
    about: dict[str, list[str]] = {}
    known = [model for model in run.pruned if model["setting"] in (run.facts.get("notes") or {})]
    for model in known:
        for note in run.facts["notes"][model["setting"]]:
            about.setdefault(note, []).append(model["label"])
    names = {note: listed(all_) if len(all_) <= MOST_NAMED else f"{len(all_)} models" for note, all_ in about.items()}
    return [note if len(models) == len(known) else f"{names[note]}: {note}" for note, models in about.items()]


SECTION = Section("gates", "Gates", "How the gates closed", build)
