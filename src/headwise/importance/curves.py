"""Removal curves: the loss while heads are removed in the order of a score (Michel et al. 2019, section 4.2).

They show what counts for pruning: a head whose work another head can do looks unimportant alone, but not once both are
gone. Michel et al. found the order by ablation of single heads worse than the order by gradient. Random orders are the
baseline. CPR and CMD are the areas of the benchmark MIB (Mueller et al. 2025), for heads. No model is needed here: the
caller passes `lose` and `rescore`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from headwise.core.errors import HeadwiseError
from headwise.core.heads import Head, HeadMap, Row
from headwise.core.layout import HeadMask
from headwise.core.statistics import bootstrap, effective_units, interval
from headwise.core.tables import CURVES, FAITHFULNESS
from headwise.models.evaluation.sums import check_finite

CURVE_STEPS = 10
CIRCUIT_SIZES = (
    0.001,
    0.002,
    0.005,
    0.01,
    0.02,
    0.05,
    0.1,
    0.2,
    0.5,
    1.0,
)  # the sizes of circuits in MIB
RANDOM = "random"

Ranked = Literal["once", "rescored", "random"]
Lose = Callable[[Sequence[HeadMask]], tuple[np.ndarray, np.ndarray]]
Rescore = Callable[[HeadMask], Mapping[Head, float]]


@dataclass(frozen=True)
class Curve:
    """The loss of every sentence with `removed` of `total` heads removed: in tenths, and in the sizes of MIB.

    losses: sentences x steps, summed over tokens; counts: tokens of each sentence.
    """

    measure: str
    ranking: Ranked
    seed: int | None
    kinds: str
    total: int
    removed: tuple[int, ...]
    losses: np.ndarray
    counts: np.ndarray

    @property
    def loss(self) -> np.ndarray:
        """The loss per token at every step."""
        per_token: np.ndarray = self.losses.sum(0) / self.counts.sum()
        return per_token

    def resampled(self, seed: int) -> np.ndarray:
        """The same in resamples of the sentences: resamples x steps; not numbers with a single sentence."""
        return bootstrap(self.losses, self.counts, seed)

    def columns(self, removed: Sequence[int]) -> list[int]:
        """The columns of the losses with these numbers of heads removed."""
        return [self.removed.index(count) for count in removed]

    def areas(self, loss: np.ndarray) -> dict[str, np.ndarray]:
        """`area`, `cpr` and `cmd` of losses … x steps."""
        sizes = circuit_sizes(self.total)
        circuits = loss[..., self.columns([self.total - kept for kept in sizes])]
        tenths = loss[..., self.columns(removal_steps(self.total))]
        return {"area": curve_area(tenths), **recovery(np.array(sizes) / self.total, circuits)}


def curve_area(loss: np.ndarray) -> np.ndarray:
    """The mean over all later steps of the loss above that of the full model; loss … x steps."""
    area: np.ndarray = loss[..., 1:].mean(-1) - loss[..., 0]
    return area


def recovery(shares: np.ndarray, loss: np.ndarray) -> dict[str, np.ndarray]:
    """CPR and CMD of MIB (Mueller et al. 2025, "MIB: A mechanistic interpretability benchmark"), for heads:

        f(k) = (L(∅) − L(k)) / (L(∅) − L(all)),   cpr = ∫₀¹ f(k) dk,   cmd = ∫₀¹ |1 − f(k)| dk,

    by trapezoids over the sizes of MIB. L(k): nats per token with the share k of the heads kept, the most important
    ones; ∅: none of them. A high CPR (circuit performance ratio) and a CMD (circuit-model distance) of 0 are best. MIB
    has edges, activations of a counterpart text and logit differences of a task; here are heads, with everything else
    left in place, zeros, and the loss of a text. So values compare only with each other. Not numbers where the heads do
    not lower the loss. shares: sizes, ascending from 0 to 1; loss … x sizes.
    """
    # L(∅) − L(all): what all heads together are worth.
    gain = loss[..., :1] - loss[..., -1:]
    with np.errstate(invalid="ignore", divide="ignore"):
        # a model that is better without its heads has nothing to recover
        faithful = np.where(gain > 0, (loss[..., :1] - loss) / gain, np.nan)
    return {
        "cpr": np.trapezoid(faithful, shares),
        "cmd": np.trapezoid(np.abs(1 - faithful), shares),
    }


def circuit_sizes(total: int) -> list[int]:
    """How many heads are kept in each circuit of MIB: CIRCUIT_SIZES of them, rounded down, and none."""
    sizes = {0}
    for share in CIRCUIT_SIZES:
        # in floating point, 0.29 · 100 is 28.999999999999996
        sizes.add(int(total * share + 1e-9))
    return sorted(sizes)


def removal_curves(
    heads: HeadMap,
    values: Mapping[str, Mapping[Head, float]],
    lose: Lose,
    rescore: Mapping[str, Rescore] | None = None,
    seeds: Sequence[int] = tuple(range(10)),
) -> list[Curve]:
    """The curve of each measure, by its `values` and, where given, by `rescore`; and those of random orders.

    values: of each head that may be removed, the same heads in all measures; other heads stay. lose: from masks to
    losses (sentences x masks, summed over tokens) and the tokens of the sentences; it is called once, with each
    necessary mask once. A quality without sentences (such as 100 − BLEU) is one row with count 1. rescore: the values
    of a measure when only the heads of a mask are left.
    """
    if not values:
        raise HeadwiseError("Removal curves need at least one score: score the heads first.")
    first, *others = values
    for measure in others:
        if values[measure].keys() != values[first].keys():
            sizes = f"{first} has {len(values[first])}, {measure} {len(values[measure])}"
            raise HeadwiseError(
                f"Removal curves need the same heads in all scores, but {sizes}: score the same heads."
            )
    chosen = list(values[first])

    orders: dict[tuple[str, Ranked, int | None], list[Head]] = {}
    for measure, by_head in values.items():
        orders[measure, "once", None] = least_first(by_head, direction(measure))
    for measure, score in (rescore or {}).items():
        orders[measure, "rescored", None] = rescored_order(heads, chosen, score, direction(measure))
    for seed in seeds:
        shuffled = np.random.default_rng(seed).permutation(len(chosen))
        orders[RANDOM, "random", seed] = [chosen[number] for number in shuffled]

    total = len(chosen)
    steps = curve_steps(total)

    # many orders have removed the same heads after some step: each mask is measured once
    masks: dict[frozenset[Head], HeadMask] = {}
    for order in orders.values():
        for count in steps:
            removed = frozenset(order[:count])
            if removed not in masks:
                masks[removed] = HeadMask.full(heads).without(removed)
    losses, counts = lose(list(masks.values()))
    if losses.shape != (len(counts), len(masks)):
        shape = f"{len(counts)} sentences x {len(masks)} masks"
        raise HeadwiseError(f"Losses must have the shape {shape}, not {losses.shape}.")
    check_finite("The model with heads removed", losses)

    column_of = {removed: column for column, removed in enumerate(masks)}
    # in the order of the map, as in all tables
    removable_kinds = {head.kind for head in chosen}
    kinds = "+".join(kind for kind in heads.kinds if kind in removable_kinds)
    curves = []
    for (measure, ranking, order_seed), order in orders.items():
        columns = [column_of[frozenset(order[:count])] for count in steps]
        curves.append(
            Curve(
                measure, ranking, order_seed, kinds, total, tuple(steps), losses[:, columns], counts
            )
        )
    return curves


def direction(measure: str) -> int:
    """−1 for a measure with a minus before its name, whose low values mean important; otherwise 1."""
    return -1 if measure.startswith("-") else 1


def least_first(values: Mapping[Head, float], sign: int = 1) -> list[Head]:
    """Heads from the least important on; ties keep their order. sign: −1 where low values mean important."""
    return sorted(values, key=lambda head: sign * values[head])


def removal_steps(total: int) -> list[int]:
    """How many heads are removed at each step: 0, 1/10 … 9/10 of them, rounded up (as in Michel et al.'s program)."""
    return sorted({-(-total * step // CURVE_STEPS) for step in range(CURVE_STEPS)})


def curve_steps(total: int) -> list[int]:
    """How many of so many heads are removed at the steps of a curve: in tenths, and in the sizes of MIB."""
    return sorted({*removal_steps(total), *(total - kept for kept in circuit_sizes(total))})


def rescored_order(
    heads: HeadMap, chosen: Collection[Head], rescore: Rescore, sign: int = 1
) -> list[Head]:
    """The order when the remaining heads are scored again after every step."""
    removed: list[Head] = []
    # the sizes of MIB need an order of all heads, also behind the last tenth
    for count in [*removal_steps(len(chosen))[1:], len(chosen)]:
        values = rescore(HeadMask.full(heads).without(removed))
        # Scores of what is still there: this is what "scored again" means.
        left = {head: values[head] for head in chosen if head not in removed}
        removed += least_first(left, sign)[: count - len(removed)]
    return removed


def curve_rows(curves: Sequence[Curve], seed: int = 0) -> list[Row]:
    """The rows of curves.csv (CURVES): the loss per token in tenths, with its 95 % interval over sentences."""
    rows: list[Row] = []
    for curve in curves:
        steps = removal_steps(curve.total)
        columns = curve.columns(steps)
        losses = curve.loss[columns]
        lows, highs = interval(curve.resampled(seed)[:, columns], effective_units(curve.counts))
        for number, removed in enumerate(steps):
            loss = (float(losses[number]), float(lows[number]), float(highs[number]))
            cells = (curve.measure, curve.ranking, curve.seed, removed, curve.total, *loss)
            rows.append(dict(zip(CURVES.names, cells, strict=True)))
    return rows


def area_rows(curves: Sequence[Curve], seed: int = 0) -> list[Row]:
    """The areas of each curve, as rows of faithfulness.csv: `area` (smaller is better), `cpr` (larger), `cmd`
    (smaller), and the same with `.rescored`.

    Intervals are over sentences, and n is their number. For random orders the row has mean, minimum and maximum, and n
    is the number of orders.
    """
    rows: list[Row] = []
    random = []
    for curve in curves:
        if curve.ranking == "random":
            random.append(curve)
            continue
        # sentences are drawn once for all steps, so that the noise that they share cancels
        # Resamples × steps: each resample has an area of its own.
        drawn = curve.areas(curve.resampled(seed))
        sentences = len(curve.counts)
        for name, value in curve.areas(curve.loss).items():
            low, high = interval(drawn[name], effective_units(curve.counts))
            rows.append(_area_row(curve, name, float(value), float(low), float(high), sentences))
    if random:
        areas = [curve.areas(curve.loss) for curve in random]
        for name in areas[0]:
            each = [float(areas_of_curve[name]) for areas_of_curve in areas]
            mean = float(np.mean(each))
            rows.append(_area_row(random[0], name, mean, min(each), max(each), len(each)))
    return rows


def _area_row(curve: Curve, name: str, value: float, low: float, high: float, n: int) -> Row:
    statistic = f"{name}.rescored" if curve.ranking == "rescored" else name
    return judged_row(curve.measure, "all heads", curve.kinds, statistic, value, low, high, n)


def judged_row(*cells: Any) -> Row:
    """A row of faithfulness.csv: its cells in the order of FAITHFULNESS."""
    return dict(zip(FAITHFULNESS.names, cells, strict=True))
