"""The models of a study: what each sweep makes, the controls beside them, and which are compared."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import get_args

from headwise.heads import HeadMap
from headwise.options import FROM_RANDOM_WEIGHTS, OF_A_SWEEP, WITHOUT_TEXT, Control, Keep, keep_name
from headwise.study.plan import GateSweep, GreedySweep, Sweep, TopKSweep
from headwise.units import left_by_step

COMPARISONS = (
    "pruned",
    "fine-tuned",
    "random",
    "uncompensated",
)  # models beside the full one that differences are to


@dataclass(frozen=True)
class Order:
    """A greedy order. score: the measure behind it, or `random`; turn: the number of a random order."""

    name: str
    score: str
    turn: int = 0


@dataclass(frozen=True)
class Variant:
    """One model of a study, made from the full one.

    method: as pruning.csv has it. penalty or keep: λ or target count of gates. order, kept: the greedy order, and how
    many heads it leaves. control: which control this is; reference: the variant it belongs to, None for a sweep's own.
    """

    name: str
    sweep_index: int
    method: str
    penalty: float | None = None
    keep: Keep | None = None
    order: Order | None = None
    kept: int | None = None
    control: Control | None = None
    reference: Variant | None = None

    def __hash__(self) -> int:
        return hash(self.name)


FULL = Variant("full", -1, "none")


def orders_of(sweep: Sweep) -> list[Order]:
    """The greedy orders of a sweep."""
    found: list[Order] = []
    if not isinstance(sweep, GreedySweep):
        return found
    for score in sweep.score:
        if score == "random":
            turns = range(1, sweep.orders + 1)
            found += [Order(sweep.titled(f"greedy-random.{turn}"), score, turn) for turn in turns]
        else:
            found.append(Order(sweep.titled(f"greedy-{score}"), score))
    return found


def own_models(
    sweep: Sweep, index: int, heads: HeadMap | None, filled: Sequence[float] = ()
) -> list[Variant]:
    """The models of a sweep that are no controls. heads: of the full model; without them no step of a greedy order is
    known. filled: λ that `refine` filled in."""
    if isinstance(sweep, GateSweep):
        penalties = [*sweep.penalty, *filled]
        gated = [
            Variant(sweep.titled(f"lambda-{value:g}"), index, "gates", penalty=value)
            for value in penalties
        ]
        kept = [
            Variant(sweep.titled(f"keep-{keep_name(keep)}"), index, "gates", keep=keep)
            for keep in sweep.keep
        ]
        return gated + kept
    if isinstance(sweep, TopKSweep):
        return [
            Variant(sweep.titled(f"top-{keep_name(keep)}"), index, "top-k", keep=keep)
            for keep in sweep.keep
        ]
    assert isinstance(sweep, GreedySweep)
    counts = left_by_step(heads, sweep) if heads else []
    return [
        Variant(f"{order.name}-{kept}", index, greedy_method(sweep, order), order=order, kept=kept)
        for order in orders_of(sweep)
        for kept in (counts[-1:] if sweep.keep else counts)
    ]


def greedy_method(sweep: GreedySweep, order: Order) -> str:
    return f"greedy.{order.score}{'.rescored' if sweep.rescore and order.score not in WITHOUT_TEXT else ''}"


def sweep_controls(sweep: Sweep, index: int) -> list[Variant]:
    """The controls that a whole sweep has once."""
    return [
        Variant(sweep.titled(control), index, f"control.{control}", control=control)
        for control in OF_A_SWEEP
        if control in sweep.controls
    ]


def model_controls(sweep: Sweep, variant: Variant) -> list[Variant]:
    """The controls of one model: as many heads, or as many parameters, obtained another way."""
    return [
        Variant(
            f"{variant.name}.{control}",
            variant.sweep_index,
            f"control.{control}",
            control=control,
            reference=variant,
        )
        for control in get_args(Control)
        if control in sweep.controls and control not in OF_A_SWEEP
    ]


def comparisons(sweeps: Sequence[Sweep], variant: Variant) -> dict[str, str]:
    """The models beside the full one that a model is compared with: names by the words that tables have for them.

    pruned: of a control the model it belongs to. fine-tuned: the full model, fine-tuned as long. random: of the best
    head of each layer a random one of each. uncompensated: the same removal without mean outputs of removed heads.
    """
    own = sweeps[variant.sweep_index]

    def control(name: Control) -> str | None:
        """That of the sweep, or of one that trains alike."""
        having = [sweep for sweep in (own, *sweeps) if name in sweep.controls]
        return next(
            (
                sweep.titled(name)
                for sweep in having
                if sweep.weight_training == own.weight_training
            ),
            None,
        )

    untuned = variant.order is not None and isinstance(own, GreedySweep) and not own.tune
    unfair = variant.control in ("fine-tuned", *FROM_RANDOM_WEIGHTS) or untuned
    found: Mapping[str, str | None] = {
        "pruned": variant.reference.name if variant.reference else None,
        "fine-tuned": None if unfair else control("fine-tuned"),
        "random": control("one-per-layer-random") if variant.control == "one-per-layer" else None,
        "uncompensated": uncompensated(sweeps, variant),
    }
    return {word: name for word, name in found.items() if name}


def uncompensated(sweeps: Sequence[Sweep], variant: Variant) -> str | None:
    """The same heads removed in the same order, without mean outputs, where a sweep has it."""
    own = sweeps[variant.sweep_index]
    if not (variant.order and isinstance(own, GreedySweep) and own.compensate):
        return None
    for sweep in (sweep for sweep in sweeps if isinstance(sweep, GreedySweep) and not sweep.tune):
        same = all(
            getattr(sweep, name) == getattr(own, name) for name in ("step", "rescore", "unit")
        )
        same = same and {*sweep.kinds} == {*own.kinds}
        alike = [
            o
            for o in orders_of(sweep)
            if (o.score, o.turn) == (variant.order.score, variant.order.turn)
        ]
        if same and alike and not sweep.compensate:
            return f"{alike[0].name}-{variant.kept}"
    return None
