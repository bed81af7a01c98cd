"""The models of a study: what each sweep makes, the controls beside them, and which are compared."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from headwise.core.heads import HeadMap
from headwise.core.options import TEXTLESS_ORDERS, Keep, keep_name
from headwise.core.removal_units import kept_counts, left_by_step
from headwise.pruning.controls import Control, control
from headwise.study.plan import GateSweep, GreedySweep, Sweep, TopKSweep


@dataclass(frozen=True)
class Ranking:
    """The order in which greedy removal takes heads away.

    score: the measure behind it, or `random`; replicate: the number of a random order, from 1 on.
    """

    name: str
    score: str
    replicate: int = 0

    @property
    def reference(self) -> str:
        """What tables call it where a model of another order is compared with it."""
        return f"{self.score}.{self.replicate}" if self.replicate else self.score


@dataclass(frozen=True)
class Variant:
    """One model of a study, made from the full one.

    method: as pruning.csv has it. penalty or keep: λ or target count of gates. ranking, heads_left: the order of greedy
    removal, and how many heads it leaves. between_steps: whether that is no step of the order, but between two.
    only_for_comparison: others are compared with it, and it cannot be chosen. control: which control this is.
    controlled_variant: the variant that it is a control of, None for a sweep's own.
    """

    name: str
    sweep_index: int
    method: str
    penalty: float | None = None
    keep: Keep | None = None
    ranking: Ranking | None = None
    heads_left: int | None = None
    between_steps: bool = False
    only_for_comparison: bool = False
    control: str | None = None
    controlled_variant: Variant | None = None

    def __hash__(self) -> int:
        return hash(self.name)

    @property
    def from_random_weights(self) -> bool:
        """Whether it is a control that is trained from random weights."""
        return self.control is not None and control[self.control].random_weights

    @property
    def compared_by_all(self) -> bool:
        """Whether it is a control that all models which were trained as long are compared with."""
        return self.control is not None and control[self.control].compared_by_all


FULL = Variant("full", -1, "none")


def rankings_of(sweep: GreedySweep, scores: Sequence[str] | None = None) -> list[Ranking]:
    """The orders by some scores, or by the sweep's own: one of each, of random ones as many as the sweep says."""
    rankings: list[Ranking] = []
    for score in sweep.measure if scores is None else scores:
        if score != "random":
            rankings.append(Ranking(sweep.titled(f"greedy-{score}"), score))
            continue
        for replicate in range(1, sweep.orders + 1):
            name = sweep.titled(f"greedy-random.{replicate}")
            rankings.append(Ranking(name, score, replicate))
    return rankings


def own_models(
    sweep: Sweep, index: int, heads: HeadMap | None, filled: Sequence[float] = ()
) -> list[Variant]:
    """The models of a sweep that are no controls, at the steps of a greedy order only.

    heads: those of the full model; without them no step of a greedy order is known. filled: λ that `refine` added.
    """
    models: list[Variant] = []
    if isinstance(sweep, GateSweep):
        for penalty in [*sweep.penalty, *filled]:
            name = sweep.titled(f"lambda-{penalty:g}")
            models.append(Variant(name, index, "gates", penalty=penalty))
        for keep in sweep.keep:
            name = sweep.titled(f"keep-{keep_name(keep)}")
            models.append(Variant(name, index, "gates", keep=keep))
        return models

    if isinstance(sweep, TopKSweep):
        for keep in sweep.keep:
            name = sweep.titled(f"top-{keep_name(keep)}")
            models.append(Variant(name, index, "top-k", keep=keep))
        return models

    assert isinstance(sweep, GreedySweep)
    counts = []
    if heads:
        named = kept_counts(heads.only(sweep.kinds), sweep)
        steps = left_by_step(heads, sweep)
        total = heads.only(sweep.kinds).total
        counts = steps
        if named:  # one that keeps all heads is no step
            counts = [count for count in named if steps[-1] < count < total] + steps[-1:]
    for ranking in rankings_of(sweep):
        models += models_of_order(sweep, index, ranking, counts)
    return models


def models_of_order(
    sweep: GreedySweep,
    index: int,
    ranking: Ranking,
    counts: Sequence[int],
    *,
    between_steps: bool = False,
    only_for_comparison: bool = False,
) -> list[Variant]:
    """The models that an order of removal leaves. counts: of the heads that they keep."""
    models = []
    for count in counts:
        models.append(
            Variant(
                f"{ranking.name}-{count}",
                index,
                greedy_method(sweep, ranking),
                ranking=ranking,
                heads_left=count,
                between_steps=between_steps,
                only_for_comparison=only_for_comparison,
            )
        )
    return models


def models_for_comparison(
    sweep: GreedySweep, index: int, scores: Sequence[str], counts: Sequence[int]
) -> list[Variant]:
    """The models that orders by other scores leave. counts: of the heads that they keep."""
    others = [score for score in scores if score not in sweep.measure]
    variants: list[Variant] = []
    for ranking in rankings_of(sweep, others):
        variants += models_of_order(sweep, index, ranking, counts, only_for_comparison=True)
    return variants


def greedy_method(sweep: GreedySweep, ranking: Ranking) -> str:
    """The method of a greedy order, as pruning.csv has it."""
    rescored = sweep.rescore and ranking.score not in TEXTLESS_ORDERS
    return f"greedy.{ranking.score}{'.rescored' if rescored else ''}"


def is_baseline(sweeps: Sequence[Sweep], variant: Variant) -> bool:
    """Whether a model is of a random order beside others: a random order alone is what was asked for."""
    if variant.ranking is None or variant.ranking.score != "random":
        return False
    sweep = sweeps[variant.sweep_index]
    return isinstance(sweep, GreedySweep) and sweep.measure != ["random"]


def sweep_controls(sweep: Sweep, index: int) -> list[Variant]:
    """The controls that a whole sweep has once."""
    variants = []
    for name, facts in control.items():
        if name in sweep.controls and facts.of == "sweep":
            variants.append(Variant(sweep.titled(name), index, f"control.{name}", control=name))
    return variants


def model_controls(sweep: Sweep, variant: Variant) -> list[Variant]:
    """The controls of one model: as many heads, or as many parameters, obtained another way."""
    variants = []
    for name, facts in control.items():
        if name in sweep.controls and facts.of == "model":
            variants.append(
                Variant(
                    f"{variant.name}.{name}",
                    variant.sweep_index,
                    f"control.{name}",
                    control=name,
                    controlled_variant=variant,
                )
            )
    return variants


@dataclass(frozen=True)
class Comparison:
    """Another model that models are compared with, besides the full one.

    reference: what tables call it. name: its name, by the sweeps of the plan and the model that is compared; None where
    it has no such other.
    """

    reference: str
    name: Callable[[Sequence[Sweep], Variant], str | None]


def comparisons() -> list[Comparison]:
    """Who is compared with whom, besides the full model. The order is that of the comparisons in tables."""
    of_all = [facts for facts in control.values() if facts.compared_by_all]
    of_one = [facts for facts in control.values() if facts.against]
    return [
        # a control with its model
        Comparison("pruned", controlled),
        # every trained model with all heads, trained as long: what further training alone brings
        *(Comparison(facts.reference, partial(trained_as_long, facts)) for facts in of_all),
        # a control with the other control that its row names
        *(
            Comparison(control[facts.against].reference, partial(counterpart, facts))
            for facts in of_one
        ),
        # a repaired model with the same heads removed, and no repair
        Comparison("unrepaired", unrepaired),
    ]


def comparison_references() -> tuple[str, ...]:
    """What tables call the models, besides the full one, that a model is compared with."""
    return tuple(dict.fromkeys(row.reference for row in comparisons()))


def comparison_names(sweeps: Sequence[Sweep], variant: Variant) -> dict[str, str]:
    """The names of the models besides the full one that a model is compared with, by what tables call them."""
    named = ((row.reference, row.name(sweeps, variant)) for row in comparisons())
    return {reference: name for reference, name in named if name}


def controlled(sweeps: Sequence[Sweep], variant: Variant) -> str | None:
    """For a control, the model that it is a control of."""
    return variant.controlled_variant.name if variant.controlled_variant else None


def trained_as_long(facts: Control, sweeps: Sequence[Sweep], variant: Variant) -> str | None:
    """For models that were trained, on from the full model, the control that was trained as long."""
    own = sweeps[variant.sweep_index]
    # A greedy sweep without `train` removes heads and trains nothing; its controls have no ranking, and may train.
    untrained = isinstance(own, GreedySweep) and variant.ranking is not None and not own.train
    # What began from random weights trained for another time; the control is not compared with itself.
    if untrained or variant.from_random_weights or variant.compared_by_all:
        return None
    return name_in_sweeps(facts, sweeps, own)


def counterpart(facts: Control, sweeps: Sequence[Sweep], variant: Variant) -> str | None:
    """For one control, the other one that its entry in the table names (`against`)."""
    if variant.control != facts.name:
        return None
    return name_in_sweeps(control[facts.against], sweeps, sweeps[variant.sweep_index])


def name_in_sweeps(facts: Control, sweeps: Sequence[Sweep], own: Sweep) -> str | None:
    """The name of a control of a sweep, or of one that trains alike."""
    # Its own sweep first: controls of sweeps that train alike are equal models.
    for sweep in (own, *sweeps):
        if facts.name in sweep.controls and sweep.weight_training == own.weight_training:
            return sweep.titled(facts.name)
    return None


def unrepaired(sweeps: Sequence[Sweep], variant: Variant) -> str | None:
    """The same heads removed in the same order, without repair, where a sweep has it."""
    own = sweeps[variant.sweep_index]
    ranking = variant.ranking
    if not (ranking and isinstance(own, GreedySweep) and own.repair):
        return None
    for sweep in sweeps:
        if not isinstance(sweep, GreedySweep) or sweep.train or sweep.repair:
            continue
        if way_of_removal(sweep) != way_of_removal(own):
            continue
        for other in rankings_of(sweep):
            if other.reference == ranking.reference:
                return f"{other.name}-{variant.heads_left}"
    return None


def way_of_removal(sweep: GreedySweep) -> tuple[Any, ...]:
    """What two sweeps must share to remove the same heads by one score."""
    return sweep.step, sweep.rescore, sweep.unit, {*sweep.kinds}
