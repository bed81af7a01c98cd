"""The animation of gates: P(open) of every head through training, all settings side by side (Voita's post of 2019).

In the page it is played by a few lines of script (gate_animation.html.j2); gate_pictures.py writes it as a file.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from headwise.heads import KINDS, Head
from headwise.report.run import Run
from headwise.report.setting import Setting
from headwise.report.wording import KIND_NAMES, listed, percent

FRAMES = 60
VALUES = 150_000  # numbers in all films together: about 400 kB of page
RATE = 8  # frames a second
SAME_LOSS = 5e-5  # nats a token: further apart, two losses are of different weights
HALF, SURE = 0.5, 0.1  # a gate counts as shut below HALF, as undecided between SURE and 1 − SURE


@dataclass(frozen=True)
class Film:
    """A setting's gates through training. opened: P(open), a row a logged step, a column for each of `heads`."""

    setting: Setting
    heads: list[Head]
    opened: pd.DataFrame
    kept: frozenset[Head]

    @property
    def forced(self) -> bool:
        """Whether gates were decided before the end of the run, and brought to 0 and 1 in the rest of it.

        Then the dev loss right after deciding is not that of the pruned model, or, where it was not measured then, all
        gates to a wanted number end at the same two values.
        """
        then, last = self.setting.value("decided_dev_loss"), self.setting.value("dev_loss")
        if then is not None and last is not None and abs(then - last) > SAME_LOSS:
            return True
        return self.setting.method != "hard-concrete" and len(set(self.opened.iloc[-1])) <= 2

    @property
    def undecided(self) -> int:
        """How many gates were between SURE and 1 − SURE when they were decided."""
        share, last = self.setting.value("undecided_gates"), self.opened.to_numpy()[-1]
        return int(((last > SURE) & (last < 1 - SURE)).sum()) if share is None else round(share * len(self.heads))

    @property
    def grids(self) -> list[tuple[str, list[int]]]:
        """The kinds of heads, and of each how many heads its layers have; the order is that of `heads`."""
        layers: dict[str, dict[int, int]] = {}
        for head in self.heads:
            of_kind = layers.setdefault(head.kind, {})
            of_kind[head.layer] = of_kind.get(head.layer, 0) + 1
        return [(kind, list(counts.values())) for kind, counts in layers.items()]

    def at(self, steps: list[int]) -> np.ndarray:
        """P(open) at some steps, as it was last logged before each (steps × heads)."""
        return np.asarray(self.opened.reindex(steps, method="ffill").bfill())


@dataclass(frozen=True)
class Closing:
    """How a setting's gates shut. steps: those, in order, from which on each gate that shuts is below HALF."""

    steps: list[int]
    reopened: int


def films(run: Run) -> list[Film]:
    """One film for every setting whose gates were logged, from many heads to few."""
    found = []
    for setting in run.pruned:
        table = run.gates.get(setting.name)
        if table is None or (table := table.dropna(subset=["p_open"])).empty:
            continue
        opened = table.pivot_table(index="step", columns=["kind", "layer", "head"], values="p_open", aggfunc="last")
        known = table[["kind", "layer", "head"]].drop_duplicates().itertuples(index=False, name=None)
        heads = sorted((Head(*row) for row in known), key=lambda head: (KINDS.index(head.kind), head.layer, head.head))
        mask = run.layouts.get(setting.name)
        found.append(Film(setting, heads, opened[heads].ffill().bfill(), frozenset() if mask is None else mask.kept))
    return found


def frame_steps(shown: list[Film]) -> list[int]:
    """The steps of the frames, the same for all films: at most FRAMES, fewer where there are very many heads."""
    known = sorted({int(step) for film in shown for step in film.opened.index})
    most = max(10, min(FRAMES, VALUES // max(1, sum(len(film.heads) for film in shown))))
    if len(known) <= most:
        return known
    return [known[round(i * (len(known) - 1) / (most - 1))] for i in range(most)]


def animation(run: Run) -> dict[str, Any] | None:
    """What the page plays, and what it says of it; None without gates.

    frames: for each step one text of P(open) in per cent, 0 to 100, head by head, with blanks between.
    """
    shown = films(run)
    if not shown:
        return None
    steps = frame_steps(shown)
    return {
        "told": sentences(shown),
        "outlined": any(film.kept for film in shown),
        "played": {
            "rate": RATE,
            "steps": steps,
            "films": [
                {
                    "label": film.setting.label,
                    "total": len(film.heads),
                    "grids": [{"kind": kind, "name": KIND_NAMES[kind], "layers": rows} for kind, rows in film.grids],
                    "stays": [int(head in film.kept) for head in film.heads],
                    "frames": [" ".join(map(str, row)) for row in per_cent(film, steps)],
                }
                for film in shown
            ],
        },
    }


def per_cent(film: Film, steps: list[int]) -> list[list[int]]:
    """P(open) as whole per cent, frame by frame."""
    rounded: list[list[int]] = np.rint(100 * film.at(steps)).astype(int).tolist()
    return rounded


def closing(film: Film) -> Closing:
    """When the gates of a film shut, and which of them had been shut before."""
    shut = film.opened.to_numpy() < HALF
    stays_shut = np.logical_and.accumulate(shut[::-1])[::-1]
    goes = stays_shut[-1]
    steps = film.opened.index.to_numpy()
    first = stays_shut.argmax(axis=0)
    reopened = (shut[:-1] & ~shut[1:]).any(axis=0)
    return Closing(steps=sorted(int(steps[row]) for row in first[goes]), reopened=int(reopened.sum()))


def sentences(shown: list[Film]) -> str:
    """What to look at: how many gates shut and when, under the mildest and under the hardest setting."""
    ends = [shown[0], shown[-1]] if len(shown) > 1 else shown
    told = ["A gate is shut from the step on from which its P(open) stays below ½."]
    told += [_course(film, closing(film)) for film in ends]
    reopened = [(film, closing(film).reopened) for film in shown]
    back = [f"{count} with {film.setting.label}" for film, count in reopened if count]
    if back:
        told.append(f"Gates that opened again after they had been shut: {listed(back)}.")
    return " ".join([*told, *_decided(shown)])


def _decided(shown: list[Film]) -> list[str]:
    """How far the gates had come when they were decided, which force does not hide."""
    forced = [film.setting.label for film in shown if film.forced]
    undecided, gates = sum(film.undecided for film in shown), sum(len(film.heads) for film in shown)
    told = []
    if forced:
        which = "" if len(forced) == len(shown) else f" with {listed(forced)}"
        told.append(
            f"Gates{which} were decided before the end of the run and then brought to 0 and 1, so what is seen of them "
            "at the end is force."
        )
    if undecided:
        return [
            *told,
            f"When they were decided, {undecided} of all {gates} gates ({percent(undecided / gates)}) were neither "
            f"open nor shut: their P(open) lay between {SURE:g} and {1 - SURE:g}.",
        ]
    as_paper = all(film.setting.method == "hard-concrete" and not film.forced for film in shown)
    observed = ", as Voita et al. (2019) observed" if as_paper else ""
    return [*told, f"When they were decided, all {gates} gates were within {SURE:g} of open or of shut{observed}."]


def lede(run: Run) -> str:
    """What moves gates, for the methods that there are."""
    methods = {film.setting.method for film in films(run)}
    told = "While the model is tuned for pruning, every head stands behind a gate."
    if "hard-concrete" in methods:
        told += " The penalty λ pushes gates shut, the translation loss holds open those it needs."
    if "wanted-count" in methods:
        told += (
            " Where a number of heads is wanted, what an open gate costs follows how many are open, until as many are."
        )
    if "top-k" in methods:
        told += (
            " Of top-k gates the wanted number is open, at first softly, then sharply; P(open) is the chance to be one."
        )
    return told


def _course(film: Film, found: Closing) -> str:
    label, total = film.setting.label, len(film.heads)
    removed = film.setting.removed if film.setting.total == total else len(found.steps)
    other = "" if removed == len(found.steps) else f"; deciding removed {removed}"
    if not found.steps:
        return f"With {label}, no gate of {total} shuts{other}."
    if len(found.steps) == 1:
        return f"With {label}, one gate of {total} shuts, at step {found.steps[0]:,}{other}."
    half = found.steps[(len(found.steps) - 1) // 2]
    return (
        f"With {label}, {len(found.steps)} of {total} gates shut: the first at step "
        f"{found.steps[0]:,}, half of them by step {half:,}, the last at step {found.steps[-1]:,}{other}."
    )
