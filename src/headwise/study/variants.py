"""The models of a study: what each sweep makes, the controls beside them, and which are compared."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from headwise.heads import HeadMap
from headwise.options import WITHOUT_TEXT, Keep, keep_name
from headwise.pruning.controls import compared_by_all, control
from headwise.study.plan import GateSweep, GreedySweep, Sweep, TopKSweep
from headwise.units import left_by_step


@dataclass(frozen=True)
class Ranking:
    """The order in which greedy removal takes heads away.

    score: the measure behind it, or `random`; replicate: the number of a random order, from 1 on.
    """

    name: str
    score: str
    replicate: int = 0


@dataclass(frozen=True)
class Variant:
    """One model of a study, made from the full one.

    method: as pruning.csv has it. penalty or keep: λ or target count of gates. ranking, kept: the order of greedy
    removal, and how many heads it leaves. control: which control this is; reference: the variant it
    belongs to, None for a sweep's own.
    """

    name: str
    sweep_index: int
    method: str
    penalty: float | None = None
    keep: Keep | None = None
    ranking: Ranking | None = None
    kept: int | None = None
    control: str | None = None
    reference: Variant | None = None

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


def rankings_of(sweep: Sweep) -> list[Ranking]:
    """The orders of a sweep of greedy removal."""
    found: list[Ranking] = []
    if not isinstance(sweep, GreedySweep):
        return found
    for score in sweep.score:
        if score == "random":
            replicates = range(1, sweep.orders + 1)
            found += [
                Ranking(sweep.titled(f"greedy-random.{replicate}"), score, replicate)
                for replicate in replicates
            ]
        else:
            found.append(Ranking(sweep.titled(f"greedy-{score}"), score))
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
        Variant(
            f"{ranking.name}-{kept}",
            index,
            greedy_method(sweep, ranking),
            ranking=ranking,
            kept=kept,
        )
        for ranking in rankings_of(sweep)
        for kept in (counts[-1:] if sweep.keep else counts)
    ]


def greedy_method(sweep: GreedySweep, ranking: Ranking) -> str:
    return f"greedy.{ranking.score}{'.rescored' if sweep.rescore and ranking.score not in WITHOUT_TEXT else ''}"


def sweep_controls(sweep: Sweep, index: int) -> list[Variant]:
    """The controls that a whole sweep has once."""
    return [
        Variant(sweep.titled(name), index, f"control.{name}", control=name)
        for name, facts in control.items()
        if name in sweep.controls and facts.of == "sweep"
    ]


def model_controls(sweep: Sweep, variant: Variant) -> list[Variant]:
    """The controls of one model: as many heads, or as many parameters, obtained another way."""
    return [
        Variant(
            f"{variant.name}.{name}",
            variant.sweep_index,
            f"control.{name}",
            control=name,
            reference=variant,
        )
        for name, facts in control.items()
        if name in sweep.controls and facts.of == "model"
    ]


def comparison_endings() -> tuple[str, ...]:
    """What names of measures end with, after `_to_`, where a model is compared with another than the full one."""
    by_all = [facts.ending for facts in compared_by_all()]
    against = [control[facts.against].ending for facts in control.values() if facts.against]
    return ("pruned", *by_all, *against, "uncompensated")


def compared_variants(sweeps: Sequence[Sweep], variant: Variant) -> dict[str, str]:
    """The models besides the full one that a model is compared with: names by `comparison_endings`.

    pruned: of a control the model it belongs to. uncompensated: the same removal without mean outputs of removed heads.
    """
    own = sweeps[variant.sweep_index]

    def of_sweep(name: str) -> str | None:
        """The control of the sweep, or of one that trains alike."""
        for sweep in (own, *sweeps):
            if name in sweep.controls and sweep.weight_training == own.weight_training:
                return sweep.titled(name)
        return None

    found: dict[str, str | None] = {}
    if variant.reference:
        found["pruned"] = variant.reference.name
    untuned = isinstance(own, GreedySweep) and variant.ranking is not None and not own.tune
    if not (untuned or variant.from_random_weights or variant.compared_by_all):
        for facts in compared_by_all():
            found[facts.ending] = of_sweep(facts.name)
    if variant.control and control[variant.control].against:
        against = control[variant.control].against
        found[control[against].ending] = of_sweep(against)
    found["uncompensated"] = uncompensated(sweeps, variant)
    return {ending: name for ending, name in found.items() if name}


def uncompensated(sweeps: Sequence[Sweep], variant: Variant) -> str | None:
    """The same heads removed in the same order, without mean outputs, where a sweep has it."""
    own = sweeps[variant.sweep_index]
    if not (variant.ranking and isinstance(own, GreedySweep) and own.compensate):
        return None
    for sweep in (sweep for sweep in sweeps if isinstance(sweep, GreedySweep) and not sweep.tune):
        same = all(
            getattr(sweep, name) == getattr(own, name) for name in ("step", "rescore", "unit")
        )
        same = same and {*sweep.kinds} == {*own.kinds}
        wanted = (variant.ranking.score, variant.ranking.replicate)
        alike = [each for each in rankings_of(sweep) if (each.score, each.replicate) == wanted]
        if same and alike and not sweep.compensate:
            return f"{alike[0].name}-{variant.kept}"
    return None
