"""The models of a run that are known by now, as far as its results reveal them.

`known_models` is their story, in its order: what the plan's sweeps make, with what results add (the λ of `refine`, sizes
where quality passes the limit) and the controls beside them; the choice on dev; the models of other orders that the
result is compared with.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

from headwise.core.options import TEXTLESS_ORDERS
from headwise.data.embedded import Split
from headwise.pruning.greedy import next_size
from headwise.study.evaluation_steps import (
    Answer,
    Choose,
    Evaluate,
    MeasureLosses,
    Translate,
    gain,
)
from headwise.study.model_steps import RankHeads, lost_no_head, prune_step, read_orders
from headwise.study.plan import GateSweep, GreedySweep
from headwise.study.run_context import RunContext
from headwise.study.variants import (
    FULL,
    Variant,
    comparison_names,
    is_baseline,
    model_controls,
    models_for_comparison,
    models_of_order,
    own_models,
    rankings_of,
    sweep_controls,
)


@dataclass(frozen=True)
class Results:
    """What a run has of its models by now. failed: why, by the names of steps that failed."""

    run: RunContext
    failed: Mapping[str, str] = field(default_factory=dict)

    def has_failed(self, variant: Variant) -> bool:
        """Whether a variant, its evaluation, or what it is made from failed."""
        if not self.failed:
            return False
        alone = answer_of(self.run, variant, "dev", (variant,))
        names = [prune_step(variant).name, f"evaluate/dev/{variant.name}", alone.name]
        if variant.ranking:
            names.append(RankHeads(variant.sweep_index, variant.ranking).name)
        if not self.failed.keys().isdisjoint(names):
            return True
        controlled = variant.controlled_variant
        return controlled is not None and self.has_failed(controlled)

    def heads_and_quality(self, variants: Sequence[Variant]) -> dict[Variant, tuple[int, float]]:
        """How many heads variants keep and their quality on dev; empty until all that did not fail are evaluated."""
        results = {}
        for variant in variants:
            if self.has_failed(variant):
                continue
            # By its name, not its key: that would need the answers of all models it is compared with.
            record = self.run.store.record(f"evaluate/dev/{variant.name}")
            if not record or prune_step(variant).result(self.run) is None:
                return {}
            results[variant] = (len(self.run.mask(variant)), gain(self.run, record["result"]))
        return results


@dataclass(frozen=True)
class KnownModels(Results):
    """The variants of a run, those to be trained from random weights last, and the one that was chosen on dev: None before
    the choice, and where none was."""

    variants: Sequence[Variant] = ()
    chosen: Variant | None = None

    # Which of them is what

    def is_candidate(self, variant: Variant) -> bool:
        """Whether a model can be chosen: neither a control, nor one that is only there for comparison."""
        is_other = variant.only_for_comparison or is_baseline(self.run.plan.pruning, variant)
        return variant.control is None and not is_other

    def is_tested(self, variant: Variant) -> bool:
        """Whether the test text is read for a variant: for every model that a plan names by its λ or number of heads. Steps
        of greedy removal are only tried: of these, for those with as many heads as the chosen one."""
        # A control is read for where its model is.
        model = variant.controlled_variant or variant
        if model.ranking is None or self.run.plan.pruning[model.sweep_index].keep:
            return True
        return self.chosen is not None and model.heads_left == self.chosen.heads_left

    def compared_with_other_orders(self, index: int) -> list[Variant]:
        """The models of a greedy sweep that are compared with those of other orders: those of the number of heads that
        was asked for, or else the chosen one."""
        compared = []
        for variant in self.variants:
            if variant.sweep_index != index or not self.is_candidate(variant):
                continue
            if lost_no_head(self.run, variant):
                continue
            if self.run.plan.pruning[index].keep or variant == self.chosen:
                compared.append(variant)
        return compared

    # What they answer, and what that is worth

    def answer_step(self, variant: Variant, split: Split) -> Answer:
        """The step that has a variant's answers on a split."""
        return answer_of(self.run, variant, split, self.measured_together(variant, split))

    def measured_together(self, variant: Variant, split: Split) -> tuple[Variant, ...]:
        """All models of the steps of a variant's greedy order that a split is read for and that did not fail: they are
        measured together. Any other variant is measured alone, the full model with none."""
        if variant == FULL:
            return ()
        if variant.ranking is None or variant.between_steps:
            return (variant,)
        together = []
        for other in self.variants:
            if other.ranking != variant.ranking or other.between_steps:
                continue
            if split == "test" and not self.is_tested(other):
                continue
            if prune_step(other).name not in self.failed:
                together.append(other)
        return tuple(together)

    def evaluation_step(self, variant: Variant, split: Split) -> Evaluate:
        """The step that says how good a variant's answers are, and compares them with those of others."""
        answer = self.answer_step(variant, split)
        if variant == FULL:
            return Evaluate(split, variant, answer)
        answers = [(FULL, answer.of_full)]
        for other in self.compared_with(variant):
            if (split == "dev" or self.is_tested(other)) and not self.has_failed(other):
                answers.append((other, self.answer_step(other, split)))
        return Evaluate(split, variant, answer, tuple(answers))

    def compared_with(self, variant: Variant) -> Iterator[Variant]:
        """The variants, besides the full model, that a variant is compared with by the plan."""
        for name in comparison_names(self.run.sweeps, variant).values():
            yield from (other for other in self.variants if other.name == name)

    def choose_step(self) -> Choose:
        """The choice among the candidates that did not fail."""
        candidates = []
        for variant in self.variants:
            if self.is_candidate(variant) and not self.has_failed(variant):
                candidates.append(self.evaluation_step(variant, "dev"))
        return Choose(tuple(candidates))

    def choice(self) -> Variant | None:
        """The variant that was chosen among these; None before the choice, or where none was."""
        # Before the choice its step is not needed.
        if not self.run.store.record("choose"):
            return None
        name = (self.choose_step().result(self.run) or {}).get("chosen")
        return next((variant for variant in self.variants if variant.name == name), None)


def answer_of(
    run: RunContext, variant: Variant, split: Split, together: tuple[Variant, ...]
) -> Answer:
    """The step that has a variant's answers. together: the variants whose losses are measured with its own."""
    return Translate(split, variant) if run.generates else MeasureLosses(split, together)


def known_models(run: RunContext, failed: Mapping[str, str] | None = None) -> KnownModels:
    """The models of a run that are known by now: what is there whatever is chosen, the choice among these, and what the
    choice adds. failed: why, by the names of steps that failed."""
    results = Results(run, failed or {})
    own: list[Variant] = []
    for index in range(len(run.plan.pruning)):
        own += models_of_sweep(results, index)

    among = KnownModels(run, results.failed, own)
    # Candidates are known by now; the choice is made among these alone.
    found = replace(among, chosen=among.choice())

    variants = [*own, *models_of_other_orders(found)]
    # Stable: False before True, all else in its order.
    variants.sort(key=lambda variant: variant.from_random_weights)
    return replace(found, variants=variants)


def models_of_sweep(results: Results, index: int) -> Iterator[Variant]:
    """The models of a sweep, and its controls: those that all models are compared with first."""
    run = results.run
    sweep = run.plan.pruning[index]
    controls = sweep_controls(sweep, index)
    models = own_models(sweep, index, run.heads, refined_penalties(results, index))
    models += models_between_steps(results, index)
    yield from (control for control in controls if control.compared_by_all)
    yield from models
    yield from (control for control in controls if not control.compared_by_all)
    for model in models:
        if sweep.controls and not lost_no_head(run, model):
            yield from model_controls(sweep, model)


def refined_penalties(results: Results, index: int) -> list[float]:
    """λ between those of the plan, each where quality on dev changes most, as far as results are there."""
    sweep = results.run.plan.pruning[index]
    # The λ of an earlier, smaller plan come first; then one at a time.
    filled = penalties_made_before(results.run, sweep)
    while isinstance(sweep, GateSweep) and len(filled) < sweep.refine:
        models = own_models(sweep, index, None, filled)
        measured = results.heads_and_quality(
            [model for model in models if model.penalty is not None]
        )
        by_penalty = {}
        for model, heads_and_quality in measured.items():
            assert model.penalty is not None
            by_penalty[model.penalty] = heads_and_quality
        penalty = penalty_at_steepest_change(by_penalty, [*sweep.penalty, *filled])
        if penalty is None:
            break
        filled.append(penalty)
    return filled


def models_between_steps(results: Results, index: int) -> list[Variant]:
    """Models of greedy orders between two steps, where quality passes the limit of the choice, as far as results are
    there."""
    run = results.run
    sweep = run.plan.pruning[index]
    limit = run.plan.choice.limit
    heads = run.heads
    if not isinstance(sweep, GreedySweep) or limit is None or sweep.keep or heads is None:
        return []
    total = heads.only(sweep.kinds).total
    models: list[Variant] = []
    at_steps = own_models(sweep, index, heads)
    for ranking in rankings_of(sweep):
        of_order = [variant for variant in at_steps if variant.ranking == ranking]
        if not of_order or is_baseline(run.plan.pruning, of_order[0]):
            continue
        if not RankHeads(index, ranking).is_done(run):
            continue
        while measured := results.heads_and_quality(of_order):
            # With no head removed nothing is lost.
            lost = {0: 0.0}
            for variant, (_, quality) in measured.items():
                assert variant.heads_left is not None
                # `gain` counts from the full model, so its negative is the loss.
                lost[total - variant.heads_left] = -quality
            removed = next_size(lost, read_orders(run, ranking)[0], limit)
            tried = {variant.heads_left for variant in of_order}
            if removed is None or total - removed in tried:  # tried, and failed
                break
            of_order += models_of_order(
                sweep, index, ranking, [total - removed], between_steps=True
            )
        models += [variant for variant in of_order if variant.between_steps]
    return models


def models_of_other_orders(known: KnownModels) -> Iterator[Variant]:
    """The models of other greedy orders, with as many heads as those that they are compared with.

    Where a sweep asks for no number of heads, there are none before the choice.
    """
    for index, sweep in greedy_sweeps(known.run):
        counts = []
        for variant in known.compared_with_other_orders(index):
            if variant.heads_left is not None and variant.heads_left not in counts:
                counts.append(variant.heads_left)
        # Without counts the task is not asked for: that would read the configuration of a given model.
        if counts:
            scores = other_scores(known.run, sweep)
            yield from models_for_comparison(sweep, index, scores, counts)


def models_after_choice(run: RunContext) -> int:
    """How many models of other greedy orders the choice will ask for: as yet nobody knows their number of heads."""
    if run.store.record("choose"):
        return 0
    models = 0
    for index, sweep in greedy_sweeps(run):
        if not sweep.keep:
            models += len(models_for_comparison(sweep, index, other_scores(run, sweep), [1]))
    return models


def greedy_sweeps(run: RunContext) -> list[tuple[int, GreedySweep]]:
    """The sweeps of greedy removal, with their index."""
    sweeps = enumerate(run.plan.pruning)
    return [(index, sweep) for index, sweep in sweeps if isinstance(sweep, GreedySweep)]


def other_scores(run: RunContext, sweep: GreedySweep) -> list[str]:
    """The scores of other orders that can rank heads in models of this task."""
    return [score for score in sweep.compare if score in TEXTLESS_ORDERS or run.allows(score)]


def penalties_made_before(run: RunContext, sweep: object) -> list[float]:
    """λ that this run has made and the plan does not name, in ascending order: they stay when the plan grows."""
    if not isinstance(sweep, GateSweep) or not sweep.refine:
        return []
    named = {f"{penalty:g}" for penalty in sweep.penalty}
    penalties = set()
    for record in run.store.records().values():
        result = record["result"]
        penalty = result.get("penalty")
        if (
            result.get("sweep") == sweep.name
            and penalty is not None
            and f"{penalty:g}" not in named
        ):
            penalties.add(penalty)
    return sorted(penalties)


def penalty_at_steepest_change(
    heads_and_quality_by_penalty: Mapping[float, tuple[int, float]], taken: Sequence[float] = ()
) -> float | None:
    """The λ in the middle (of the logarithms) of the two neighbours between which quality changes most.

    heads_and_quality_by_penalty: how many heads each λ keeps, and the quality on dev. taken: λ that were tried.
    Neighbours with no number of heads between them are left alone.
    """
    changes: dict[tuple[float, float], float] = {}
    for lower_penalty, higher_penalty in pairwise(sorted(heads_and_quality_by_penalty)):
        heads, quality = heads_and_quality_by_penalty[lower_penalty]
        other_heads, other_quality = heads_and_quality_by_penalty[higher_penalty]
        if abs(other_heads - heads) > 1:
            changes[lower_penalty, higher_penalty] = abs(other_quality - quality)

    # As names are written: two λ of one name would be one model.
    tried = {f"{penalty:g}" for penalty in taken}
    for lower_penalty, higher_penalty in sorted(changes, key=lambda pair: -changes[pair]):
        # The logarithm of 0 has no middle: below the first λ above 0, half of it.
        middle = higher_penalty / 2
        if lower_penalty > 0:
            middle = math.sqrt(lower_penalty * higher_penalty)
        rounded = float(f"{middle:.3g}")
        if f"{rounded:g}" not in tried:
            return rounded
    return None
