"""How it was pruned: the animation of gates, a curve for every head, how far they had settled; and the model's training.

One rule says whether a gate is shut: its P(open) is below the decision line, as of the gates that are decided at the
end. So the gates that are shut in the end are the heads that were removed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from headwise.core.heads import Head, HeadMap, head_of
from headwise.faces.report import charts, models
from headwise.faces.report.charts import Figure, Panel, axis, colour, tips
from headwise.faces.report.format import KIND_NAMES, kinds_among, listed
from headwise.faces.report.head_rows import model_order, of_kind
from headwise.faces.report.models import measured
from headwise.faces.report.page import PageTable, chosen_badge, section, table
from headwise.faces.report.run_folder import RunContents

FRAMES, RATE = 60, 8  # of the animation; frames a second
VALUES = 150_000  # numbers in the animation of all models together: about 400 kB of page
POINTS = 20_000  # points in all gate curves together: about 1 MB of page
CURVE_POINTS = 400  # points in a curve of training
LOSS_NAMES = {"dev_loss": "dev loss", "loss": "training loss"}
SURE = 0.1  # a gate is undecided between SURE and 1 − SURE
LOWEST, HIGHEST = -0.1, 1.1  # the stretch of the gates, γ and ζ in pruning/gates.py
MOST_MODELS_NAMED = 4


@dataclass(frozen=True)
class GateHistory:
    """A model's gates through training.

    opened: P(open), a row a logged step, a column for each of `heads`. kept: the heads that stay; None without a
    layout. lines: by kind, the P(open) below which a gate is shut.
    """

    model: Mapping[str, Any]
    heads: list[Head]
    opened: pd.DataFrame
    kept: frozenset[Head] | None
    lines: Mapping[str, float]

    @property
    def grids(self) -> list[tuple[str, tuple[int, ...]]]:
        """The kinds of heads, each with the number of heads in its layers; the order is that of `heads`."""
        return [*HeadMap.smallest(self.heads).query.items()]

    @property
    def shut(self) -> np.ndarray:
        """Which gates are shut at each logged step (steps × heads). The last is the decision, where it is known."""
        lines = np.array([self.lines[head.kind] for head in self.heads])
        # Steps × heads against one line a head.
        below = self.opened.to_numpy() <= lines
        if self.kept is not None:
            # By the line alone, 9 gates may be shut where 10 heads were removed.
            below[-1] = [head not in self.kept for head in self.heads]
        return np.asarray(below)

    @property
    def closed_at(self) -> list[int | None]:
        """The step from which each gate is shut for good, head by head; None where it stays open."""
        # From the end back: a gate that opened again is shut for good from its last closing only.
        stays = np.logical_and.accumulate(self.shut[::-1])[::-1]
        # argmax finds the first True; for a gate that is open in the end it says 0, dropped below.
        steps = self.opened.index[stays.argmax(axis=0)]
        return [int(step) if shut else None for shut, step in zip(stays[-1], steps, strict=True)]

    @property
    def closed(self) -> list[int]:
        """The steps from which gates are shut for good, in order."""
        return sorted(step for step in self.closed_at if step is not None)

    @property
    def undecided(self) -> int:
        """The gates that were neither open nor shut when they were decided."""
        share = measured(self.model, "undecided_gates").value
        last = self.opened.to_numpy()[-1]
        if share is None:
            share = float(((last > SURE) & (last < 1 - SURE)).mean())
        return round(share * len(self.heads))

    def at(self, steps: list[int]) -> np.ndarray:
        """P(open) at some steps, as it was last logged before each (steps × heads)."""
        # Models share the frames' steps: one logged later stands at its first P(open) until then.
        return np.asarray(self.opened.reindex(steps, method="ffill").bfill())

    def open_at(self, steps: list[int]) -> list[int]:
        """How many gates are open at some steps."""
        shut = pd.DataFrame(self.shut, self.opened.index).sum(axis=1)
        found = shut.reindex(steps, method="ffill").bfill().astype(int)
        return [len(self.heads) - count for count in found]


@section(
    "gates",
    heading="How it was pruned",
    question="When did each gate shut, and had the gates settled?",
    story=True,
    order=70,
    files=("gates/", "pruning.csv"),
    brought_by="pruning.method = 'gates'",
    qualities=("bleu", "perplexity", "accuracy", "wer"),
)
def gate_history_section(run: RunContents) -> dict[str, Any] | None:
    """The section is left out where nothing was pruned."""
    if run.model_table.empty:
        return None
    shown = gate_histories(run)
    return {
        "animation": animation(shown) if shown else None,
        "closing": closing_table(shown),
        "curves": gate_curves(run, shown),
        "lines": {history.model["line"] for history in shown},
        "notes": pruning_notes(run),
    }


def gate_histories(run: RunContents) -> list[GateHistory]:
    """One history for every model whose gates were logged, from many heads to few."""
    found = []
    for model in run.pruned:
        log = run.gates.get(model["setting"])
        if log is None or (log := log.dropna(subset=["p_open"])).empty:
            continue
        opened = log.pivot_table(
            index="step", columns=["kind", "layer", "head"], values="p_open", aggfunc="last"
        )
        heads = sorted((Head(*column) for column in opened.columns), key=model_order)
        # A head that was not logged at a step is as it was before; before its first, as at that.
        opened = opened[heads].ffill().bfill()
        mask = run.layouts.get(model["setting"])
        kept = None if mask is None else mask.kept
        lines = decision_lines(run, model, opened, kept)
        found.append(GateHistory(model, heads, opened, kept, lines))
    return found


def decision_lines(
    run: RunContents, model: Mapping[str, Any], opened: pd.DataFrame, kept: frozenset[Head] | None
) -> dict[str, float]:
    """By kind, the P(open) below which a gate is shut.

    Under a penalty the rule of the plan has it for all (`penalty_line`). With a target count the gates that are most
    open stay: it lies half-way between the least open head that stays and the most open one that does not.
    """
    kinds = kinds_among(opened.columns.get_level_values("kind"))
    if kept is None or pd.notna(model["penalty"]):
        return dict.fromkeys(kinds, penalty_line(**pruning_options(run, model["sweep"])))
    lines = dict[str, float]()
    last: Any = opened.iloc[-1].to_dict()
    for kind in kinds:
        own = {Head(*column): p_open for column, p_open in last.items() if column[0] == kind}
        stay = [p_open for head, p_open in own.items() if head in kept]
        go = [p_open for head, p_open in own.items() if head not in kept]
        # Where all stay, or all go, it lies half-way to the end.
        lines[kind] = (min(stay, default=1.0) + max(go, default=0.0)) / 2
    return lines


def penalty_line(temperature: float = 0.33, rule: str = "sign") -> float:
    """P(open) where a gate under a penalty turns from removed to kept, 0.69 at the usual temperature of 0.33.

    By `sign` that is log α = 0 (P(z = 1) = P(z = 0); Voita et al. 2019, footnote 7); by `deterministic` the log α at
    which the gate without noise reaches 0, σ(log α)(ζ − γ) + γ = 0. For either, P(open) = σ(log α − β ln(−γ/ζ)).
    """
    # σ(log α) = −γ / (ζ − γ), so α = −γ / ζ
    log_alpha = 0.0 if rule == "sign" else math.log(-LOWEST / HIGHEST)
    return 1 / (1 + math.exp(temperature * math.log(-LOWEST / HIGHEST) - log_alpha))


def pruning_options(run: RunContents, sweep: str | None) -> dict[str, Any]:
    """What the plan says of the decision of a sweep's gates: `temperature` and `rule`, where it has them."""
    pruning = run.planned.get("pruning")
    known = {}
    for options in pruning if isinstance(pruning, list) else [pruning]:
        if isinstance(options, Mapping) and options.get("name", "") == (sweep or ""):
            # The plan was not checked when it was read: a wrong value must not break the page.
            temperature = options.get("temperature")
            if isinstance(temperature, int | float) and 0 < temperature < 100:
                known["temperature"] = temperature
            if options.get("rule") in ("sign", "deterministic"):
                known["rule"] = options["rule"]
    return known


def closing_steps(run: RunContents) -> Mapping[str, Mapping[Head, int | None]]:
    """By the setting of each model with gates and by head: the step from which its gate is shut for
    good; None for a gate that stayed open."""
    return {
        history.model["setting"]: dict(zip(history.heads, history.closed_at, strict=True))
        for history in gate_histories(run)
    }


def frame_steps(shown: list[GateHistory]) -> list[int]:
    """The steps of the frames, the same for all models: at most FRAMES, fewer where there are very many heads."""
    known = {int(step) for history in shown for step in history.opened.index}
    heads = sum(len(history.heads) for history in shown)
    # The page holds a number for each head and frame.
    return thinned(known, max(10, min(FRAMES, VALUES // max(1, heads))))


def thinned(steps: Iterable[int], most: int) -> list[int]:
    """At most so many of the steps, evenly spread, the first and the last among them."""
    known = sorted(set(steps))
    if len(known) <= most:
        return known
    return [known[round(i * (len(known) - 1) / (most - 1))] for i in range(most)]


def animation(shown: list[GateHistory]) -> dict[str, Any]:
    """What the page plays. frames: for each step one text of P(open) in per cent, head by head, with blanks between."""
    steps = frame_steps(shown)
    drawn = []
    for history in shown:
        frames = np.rint(100 * history.at(steps)).astype(int).tolist()
        kept = history.kept or frozenset()
        drawn.append(
            {
                "label": history.model["label"],
                "total": len(history.heads),
                "grids": [
                    {"kind": kind, "name": KIND_NAMES[kind], "layers": layers}
                    for kind, layers in history.grids
                ],
                "kept": [int(head in kept) for head in history.heads],
                "open": history.open_at(steps),
                "frames": [" ".join(map(str, frame)) for frame in frames],
            }
        )
    return {"rate": RATE, "steps": steps, "models": drawn}


def closing_table(shown: list[GateHistory]) -> PageTable | None:
    """Model by model, when gates shut for good, how far they had settled, and what deciding them did to the dev loss."""

    def number(
        measure: str, split: str = "", write: Callable[[float], str] = "{:.4f}".format
    ) -> Any:
        column = models.number_column(write, measure, split)
        return lambda history: column(history.model)

    columns = {
        "model": lambda history: history.model["label"],
        "gates": lambda history: str(len(history.heads)),
        "shut": lambda history: str(len(history.closed)),
        # The first step at which no fewer than half of these gates are shut.
        "half by step": lambda history: (
            f"{history.closed[(len(history.closed) - 1) // 2]:,}" if history.closed else ""
        ),
        "last at step": lambda history: f"{history.closed[-1]:,}" if history.closed else "",
        "opened again": lambda history: str(
            int((history.shut[:-1] & ~history.shut[1:]).any(axis=0).sum())
        ),
        "decided before the end": lambda history: (
            "yes" if (history.model["settle"] or 0) > 0 else "no"
        ),
        "undecided": lambda history: str(history.undecided),
        "settled": number("settled", write=lambda value: "yes" if value else "no"),
        "dev loss before deciding": number("soft_loss", "dev"),
        "dev loss after deciding": number("decided_loss", "dev"),
        "dev loss of the pruned model": number("loss", "dev"),
    }
    return table(
        "When gates shut", shown, columns, badge=lambda history: chosen_badge(history.model)
    )


def gate_curves(run: RunContents, shown: list[GateHistory]) -> list[Figure]:
    """For every model with a gate log: P(open) of each gate through training, a panel a layer."""
    lines = sum(len(history.heads) for history in shown)
    points = max(20, min(120, POINTS // max(lines, 1)))
    return [_gate_figure(run, history, points) for history in shown]


def _gate_figure(run: RunContents, history: GateHistory, points: int) -> Figure:
    model = history.model
    log = run.gates[model["setting"]].dropna(subset=["p_open"])
    log = log[log["step"].isin(thinned(log["step"], points))]
    kept = history.kept or frozenset()
    status = ["kept" if head_of(row) in kept else "removed" for row in log.to_dict("records")]
    log = log.assign(p=log["p_open"], status=status)
    panels = []
    for kind in kinds_among(log["kind"]):
        for layer, part in of_kind(log, kind).groupby("layer"):
            title = f"{kind} layer {layer}" if len(history.grids) > 1 else f"layer {layer}"
            chart = _gate_panel(part, f"{kind}/{layer}", history.lines[kind])
            panels.append(Panel(chart, title, width=230, narrowest=150))
    return Figure(
        name=f"gates-{model['setting']}",
        title=f"{model['label']}: {model['kept']} of {model['total']} heads stay open",
        note="probability that each gate is open, through pruning · dashed: the decision line"
        + ("" if history.kept is None else " · blue: kept · grey: removed"),
        panels=panels,
        columns=3,
    )


def _gate_panel(part: pd.DataFrame, layer: str, decision: float) -> charts.Spec:
    """The gates of one layer, `kind/number`. decision: the decision line."""
    # Vega makes a variable of this name, so it may not have `/` or `-`.
    hover = f"at_{layer.replace('/', '_').replace('-', '_')}"
    x = axis("step:Q", "step", tickCount=3, format=",d", grid=False)
    ticks = [0, round(decision, 2), 1]
    y = axis("p:Q", None, domain=[0, 1], values=ticks, format=".2~f", grid=False)
    rows = part[["step", "head", "p", "status"]]
    colours = colour("status:N", ["kept", "removed"])
    (line,) = charts.curve(rows, x, y, colours, detail=charts.field("head:N"), width=1.6)
    # By default an empty selection selects everything: all lines would be thick.
    thick = {"condition": {"param": hover, "value": 4, "empty": False}, "value": 1.6}
    line["encoding"] |= {"strokeWidth": thick, "tooltip": tips("head:N", "status:N")}
    # heads.js finds the head of a mark by its `address`, to mark it everywhere.
    line["transform"].append({"calculate": f"'{layer}/' + datum.head", "as": "address"})
    line["params"] = [
        {"name": hover, "select": {"type": "point", "fields": ["head"], "on": "pointerover"}}
    ]
    rule = charts.level_lines([{"p": decision}], y, style="limit")
    return charts.layered([rule, line], 120, f"Gate probabilities, {layer}")


def pruning_notes(run: RunContents) -> list[str]:
    """What pruning noted, each note once, with the models it is about unless it is about all of them."""
    known = run.facts["notes"]
    noted = [model for model in run.pruned if model["setting"] in known]
    about: dict[str, list[str]] = {}
    for model in noted:
        for note in known[model["setting"]]:
            about.setdefault(note, []).append(model["label"])

    written: list[str] = []
    for note, labels in about.items():
        names = listed(labels) if len(labels) <= MOST_MODELS_NAMED else f"{len(labels)} models"
        written.append(note if len(labels) == len(noted) else f"{names}: {note}")
    return written


@section(
    "training",
    heading="The full model's training",
    question="Had the full model converged?",
    order=130,
    files=("train/log.csv",),
    brought_by="a plan that trains the model itself ([model])",
    qualities=("bleu", "perplexity"),
)
def build_training(run: RunContents) -> dict[str, Any]:
    """The curve of the full model's training."""
    return {"curve": training_curve(run)}


def training_curve(run: RunContents) -> Figure | None:
    """The loss on the training text and on dev through training; None without a log."""
    points = list[Any]()
    for measure, name in LOSS_NAMES.items():
        found = run.training[run.training["measure"] == measure].dropna(subset=["value"])
        found = found[found["step"].isin(thinned(found["step"], CURVE_POINTS))]
        points += found[["step", "value"]].assign(curve=name).to_dict("records")

    if not points:
        return None
    x = axis("step:Q", "step", format=",d", grid=False, tickCount=8)
    y = axis("value:Q", "loss (nats per token)", zero=False)
    legend: charts.Spec = {"orient": "top", "title": None, "symbolType": "stroke"}
    colours = colour("curve:N", [*LOSS_NAMES.values()], **legend)
    (line,) = charts.curve(points, x, y, colours, width=1.8)
    line["encoding"]["tooltip"] = tips("curve:N", "step:Q", "value:Q||.3f")
    return Figure(
        name="training",
        title="Loss through training",
        note="cross-entropy on the training text and on dev",
        panels=[Panel(charts.layered([line], 240, "Loss through training"), "loss", width=640)],
    )
