"""The schedule of a run: its steps, the most informative first: the encoder curve at the beginning, what is trained from
random weights last. A model is evaluated as soon as it is made, so an unfinished study is already a result.

Finished steps may reveal more (the next λ of `refine`, the choice), so the executor asks again after every step.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import pairwise

from headwise.core.options import TEXTLESS_ORDERS
from headwise.data.embedded import Split
from headwise.pruning.controls import control
from headwise.pruning.greedy import next_size
from headwise.study.evaluation_steps import (
    Answer,
    Choose,
    CompareOrders,
    Evaluate,
    MeasureLosses,
    MeasureSavings,
    MeasureSpeed,
    SaveChosen,
    Translate,
    gain,
)
from headwise.study.head_steps import (
    FindRoles,
    FindWords,
    Judge,
    MeasureInteractions,
    Rescore,
    Score,
    ScoreUntrained,
    score_passes,
)
from headwise.study.model_steps import FULL_MODEL, RankHeads, lost_no_head, prune_step, read_order
from headwise.study.plan import GateSweep, GreedySweep
from headwise.study.run_context import RunContext
from headwise.study.step import Step
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

STAGES = ("train", "score", "roles", "prune", "evaluate")


class Schedule:
    """The variants and steps of one run, as far as results reveal them. failed: why, by the names of steps that
    failed."""

    def __init__(self, run: RunContext, failed: Mapping[str, str] | None = None) -> None:
        self.run = run
        self.failed = failed or {}
        # λ that `refine` added, by the index of the sweep.
        self.refined_penalties: dict[int, list[float]] = {}
        for index, sweep in enumerate(run.plan.pruning):
            self.refined_penalties[index] = penalties_made_before(run, sweep)
        self.variants_so_far: list[Variant] = []  # `find_variants` fills it
        self.chosen_size: int | None = None  # heads that a chosen model of greedy removal has left

    @property
    def greedy_sweeps(self) -> list[tuple[int, GreedySweep]]:
        """The sweeps of greedy removal, with their index."""
        sweeps = enumerate(self.run.plan.pruning)
        return [(index, sweep) for index, sweep in sweeps if isinstance(sweep, GreedySweep)]

    # Variants

    def find_variants(self) -> list[Variant]:
        """Every variant that is known by now, those to be trained from random weights last."""
        # In two steps: what the choice adds is only known by the variants that it chooses among.
        self.variants_so_far = self.variants_before_choice()
        self.variants_so_far += self.variants_of_other_orders()
        self.variants_so_far.sort(key=lambda variant: variant.from_random_weights)
        chosen = self.chosen()
        self.chosen_size = None
        for variant in self.variants_so_far:
            if variant.name == chosen:
                self.chosen_size = variant.heads_left
        return self.variants_so_far

    def variants_of_other_orders(self) -> list[Variant]:
        """The models of other greedy orders, with as many heads as those that they are compared with.

        Where a sweep asks for no number of heads, there are none before the choice.
        """
        others: list[Variant] = []
        for index, sweep in self.greedy_sweeps:
            counts = []
            for variant in self.compared_with_other_orders(index):
                if variant.heads_left is not None and variant.heads_left not in counts:
                    counts.append(variant.heads_left)
            # Without counts the task is not asked for: that would read the configuration of a given model.
            if counts:
                others += models_for_comparison(sweep, index, self.other_scores(sweep), counts)
        return others

    def models_after_choice(self) -> int:
        """How many models of other greedy orders the choice will ask for: as yet nobody knows their number of heads."""
        if self.run.store.record("choose"):
            return 0
        models = 0
        for index, sweep in self.greedy_sweeps:
            if not sweep.keep:
                models += len(models_for_comparison(sweep, index, self.other_scores(sweep), [1]))
        return models

    def other_scores(self, sweep: GreedySweep) -> list[str]:
        """The scores of other orders that can rank heads in models of this task."""
        allows = self.run.allows
        return [score for score in sweep.compare if score in TEXTLESS_ORDERS or allows(score)]

    def compared_with_other_orders(self, index: int) -> list[Variant]:
        """The models of a greedy sweep that are compared with those of other orders: those of the number of heads that
        was asked for, or else the chosen one."""
        chosen = self.chosen()
        compared = []
        for variant in self.variants_so_far:
            if variant.sweep_index != index or not self.is_candidate(variant):
                continue
            if lost_no_head(self.run, variant):
                continue
            if self.run.plan.pruning[index].keep or variant.name == chosen:
                compared.append(variant)
        return compared

    def chosen(self) -> str | None:
        """The name of the variant that was chosen on dev; None before the choice, or where none was."""
        # Before the choice its step is not needed.
        if not self.run.store.record("choose"):
            return None
        result = self.choose_step().result(self.run) or {}
        chosen: str | None = result.get("chosen")
        return chosen

    def is_candidate(self, variant: Variant) -> bool:
        """Whether a model can be chosen: neither a control, nor one that is only there for comparison."""
        is_other = variant.only_for_comparison or is_baseline(self.run.plan.pruning, variant)
        return variant.control is None and not is_other

    def is_tested(self, variant: Variant) -> bool:
        """Whether the test text is read for a variant: for every model that a plan names by its λ or number of heads. Steps
        of greedy removal are only tried: of these, for those with as many heads as the chosen one."""
        model = variant.controlled_variant or variant
        if model.ranking is None or self.run.plan.pruning[model.sweep_index].keep:
            return True
        return model.heads_left == self.chosen_size

    def variants_before_choice(self) -> list[Variant]:
        """The variants that are known whatever is chosen."""
        variants: list[Variant] = []
        for index, sweep in enumerate(self.run.plan.pruning):
            controls = sweep_controls(sweep, index)
            models = own_models(sweep, index, self.run.heads, self.refine_penalties(index))
            models += self.models_between_steps(index)
            variants += [variant for variant in controls if variant.compared_by_all]
            variants += models
            variants += [variant for variant in controls if not variant.compared_by_all]
            for variant in models:
                if sweep.controls and not lost_no_head(self.run, variant):
                    variants += model_controls(sweep, variant)
        return variants

    def refine_penalties(self, index: int) -> list[float]:
        """λ between those of the plan, each where quality on dev changes most, as far as results are there."""
        sweep = self.run.plan.pruning[index]
        refined_penalties = self.refined_penalties[index]
        if not isinstance(sweep, GateSweep):
            return refined_penalties
        while len(refined_penalties) < sweep.refine:
            tried = [*sweep.penalty, *refined_penalties]
            models = own_models(sweep, index, None, refined_penalties)
            results = self.heads_and_quality(
                [model for model in models if model.penalty is not None]
            )
            by_penalty = {}
            for model, heads_and_quality in results.items():
                assert model.penalty is not None
                by_penalty[model.penalty] = heads_and_quality
            next_penalty = penalty_at_steepest_change(by_penalty, tried)
            if next_penalty is None:
                break
            refined_penalties.append(next_penalty)
        return refined_penalties

    def models_between_steps(self, index: int) -> list[Variant]:
        """Models of greedy orders between two steps, where quality passes the limit of the choice, as far as results are
        there."""
        sweep = self.run.plan.pruning[index]
        limit = self.run.plan.choice.limit
        heads = self.run.heads
        if not isinstance(sweep, GreedySweep) or limit is None or sweep.keep or heads is None:
            return []
        total = heads.only(sweep.kinds).total
        models: list[Variant] = []
        models_at_steps = own_models(sweep, index, heads)
        for ranking in rankings_of(sweep):
            of_order = [variant for variant in models_at_steps if variant.ranking == ranking]
            is_ranked = RankHeads(index, ranking).done(self.run)
            is_candidate = bool(of_order) and not is_baseline(self.run.plan.pruning, of_order[0])
            while is_ranked and is_candidate:
                results = self.heads_and_quality(of_order)
                if not results:
                    break
                lost = {0: 0.0}
                for variant, (_, quality) in results.items():
                    assert variant.heads_left is not None
                    lost[total - variant.heads_left] = -quality
                removed = next_size(lost, read_order(self.run, ranking), limit)
                tried = {variant.heads_left for variant in of_order}
                if removed is None or total - removed in tried:  # tried, and failed
                    break
                count = [total - removed]
                of_order += models_of_order(sweep, index, ranking, count, between_steps=True)
            models += [variant for variant in of_order if variant.between_steps]
        return models

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

    def refine_shortfall_notes(self) -> list[str]:
        """Sweeps that have fewer λ than `refine` asks for, though all they have are evaluated."""
        lines = []
        for index, sweep in enumerate(self.run.plan.pruning):
            if not isinstance(sweep, GateSweep):
                continue
            count = len(self.refine_penalties(index))
            if count < sweep.refine:
                sweep_suffix = f" ({sweep.name})" if sweep.name else ""
                lines.append(
                    f"refine = {sweep.refine} was asked for{sweep_suffix}, and {count} λ filled in: no other two neighbours "
                    "differ by more than one head, or the λ between them was tried."
                )
        return lines

    def has_failed(self, variant: Variant) -> bool:
        """Whether a variant, its evaluation, or what it is made from failed."""
        if not self.failed:
            return False
        names = [prune_step(variant).name, f"evaluate/dev/{variant.name}"]
        if variant.ranking:
            names.append(RankHeads(variant.sweep_index, variant.ranking).name)
        if self.run.generates:
            names.append(Translate("dev", variant).name)
        else:
            names.append(MeasureLosses("dev", (variant,)).name)
        if not self.failed.keys().isdisjoint(names):
            return True
        controlled = variant.controlled_variant
        return controlled is not None and self.has_failed(controlled)

    # Steps

    def steps(self, stages: Collection[str] = STAGES) -> list[Step]:
        """The steps of some STAGES that are known by now."""
        steps = [step for step in self.every_step() if step.stage in stages]
        # The models of one greedy order share the step of their losses: each step once.
        return list(dict.fromkeys(steps))

    def every_step(self) -> Iterator[Step]:
        """The steps of all stages in their order; some more than once."""
        run = self.run
        scoring = run.scoring
        yield FULL_MODEL
        if scoring.measures:
            yield from score_passes(run)
            if scoring.untrained:
                yield ScoreUntrained()
            yield Score()
            if scoring.interactions:
                yield MeasureInteractions()
            if scoring.judge and "ablation.zero" in scoring.measures:
                yield Judge()
        if run.role_texts:
            yield FindRoles()
        if run.plan.roles.words:
            yield FindWords()
        variants = self.find_variants()
        yield from self.measuring_steps(FULL)
        for variant in variants:
            if variant.ranking:
                yield RankHeads(variant.sweep_index, variant.ranking)
        for variant in variants:
            yield prune_step(variant)
            yield from self.measuring_steps(variant)
            if self.is_analysed_again(variant):
                yield Rescore(variant)
        yield from self.last_steps()

    def measuring_steps(self, variant: Variant, split: Split = "dev") -> Iterator[Step]:
        """What measures one variant on a split."""
        yield self.answer_step(variant, split)
        yield self.evaluation_step(variant, split)
        if split == "dev":
            yield MeasureSavings(variant)

    def answer_step(self, variant: Variant, split: Split) -> Answer:
        """The step that has a variant's answers on a split."""
        if self.run.generates:
            return Translate(split, variant)
        return MeasureLosses(split, self.measured_together(variant, split))

    def evaluation_step(self, variant: Variant, split: Split) -> Evaluate:
        """The step that says how good a variant's answers are, and compares them with those of others."""
        answer_step = self.answer_step(variant, split)
        if variant == FULL:
            return Evaluate(split, variant, answer_step)

        others = []
        for name in comparison_names(self.run.sweeps, variant).values():
            others += [other for other in self.variants_so_far if other.name == name]
        if split == "test":
            others = [other for other in others if self.is_tested(other)]

        # All but translations are measured together with the full model's.
        of_full = self.answer_step(FULL, split) if self.run.generates else answer_step
        answers = [(FULL, of_full)]
        for other in others:
            if not self.has_failed(other):
                answers.append((other, self.answer_step(other, split)))
        return Evaluate(split, variant, answer_step, tuple(answers))

    def measured_together(self, variant: Variant, split: Split) -> tuple[Variant, ...]:
        """All models of the steps of a variant's greedy order that a split is read for and that did not fail: they are
        measured together. Any other variant is measured alone, the full model with none."""
        if variant == FULL:
            return ()
        if variant.ranking is None or variant.between_steps:
            return (variant,)
        together = []
        for other in self.variants_so_far:
            if other.ranking != variant.ranking or other.between_steps:
                continue
            if split == "test" and not self.is_tested(other):
                continue
            if prune_step(other).name not in self.failed:
                together.append(other)
        return tuple(together)

    def is_analysed_again(self, variant: Variant) -> bool:
        """Whether heads are scored and tested for roles again: those that gates chose, where anything asks for it."""
        wanted = bool(self.run.scoring.pruned) or self.run.treebanks is not None
        return wanted and variant.control is None and variant.ranking is None

    def last_steps(self) -> Iterator[Step]:
        """The choice on dev, then the test text and speed."""
        run = self.run
        not_failed = [variant for variant in self.variants_so_far if not self.has_failed(variant)]
        not_failed = [FULL, *not_failed]
        yield self.choose_step()
        yield from self.order_comparisons("dev")

        chosen = self.chosen()
        for variant in self.variants_so_far:
            if variant.name == chosen and not prune_step(variant).saves_weights(run):
                yield SaveChosen(variant)
        if run.plan.data.has_test:
            for variant in not_failed:
                if self.is_tested(variant):
                    yield from self.measuring_steps(variant, "test")
            yield from self.order_comparisons("test")
        if run.generates:
            yield MeasureSpeed(self.variants_to_time(not_failed, chosen))

    def choose_step(self) -> Choose:
        """The choice among the candidates that did not fail."""
        candidates = []
        for variant in self.variants_so_far:
            if self.is_candidate(variant) and not self.has_failed(variant):
                candidates.append(self.evaluation_step(variant, "dev"))
        return Choose(tuple(candidates))

    def order_comparisons(self, split: Split) -> Iterator[CompareOrders]:
        """What compares models of greedy removal with those of other orders that have as many heads."""
        for index, _ in self.greedy_sweeps:
            greedy = []
            for variant in self.variants_so_far:
                is_own = variant.sweep_index == index and variant.ranking is not None
                if is_own and not self.has_failed(variant):
                    greedy.append(variant)
            compared = self.compared_with_other_orders(index)
            for variant in greedy:
                others = []
                for other in greedy:
                    if other.heads_left == variant.heads_left and other != variant:
                        others.append((other, self.answer_step(other, split)))
                if others and variant in compared:
                    answer_step = self.answer_step(variant, split)
                    yield CompareOrders(split, variant, answer_step, tuple(others))

    def steps_before(self, step: Step, steps: Sequence[Step]) -> list[str]:
        """The names of the steps that a step only comes after: the choice waits for all dev evaluations that are still
        possible, test text for the choice."""
        names: list[str] = []
        if not step.after_prefixes:
            return names
        for earlier in steps:
            if not earlier.name.startswith(step.after_prefixes):
                continue
            variant = earlier.variant_or_none
            if variant is None or not self.has_failed(variant):
                names.append(earlier.name)
        return names

    def variants_to_time(
        self, variants: Sequence[Variant], chosen: str | None
    ) -> tuple[Variant, ...]:
        """The models whose speed is measured: the full one, those with gates, controls that say so, and the chosen one.

        Where the plan keeps only the chosen weights, none is trained again to be timed.
        """
        run = self.run
        wanted = []
        for variant in variants:
            if variant.control is not None:
                timed_anyway = control[variant.control].timed and variant.ranking is None
            else:
                timed_anyway = variant.ranking is None
            if timed_anyway or variant.name == chosen:
                wanted.append(variant)
        if run.plan.weights == "all":
            return tuple(wanted)

        # What was measured stays, though the weights are gone by now.
        earlier_speeds = run.store.record("speed").get("result", {})
        recorded = tuple(variant for variant in wanted if variant.name in earlier_speeds)
        all_are_wanted = {variant.name for variant in recorded} == {*earlier_speeds}
        if recorded and all_are_wanted and MeasureSpeed(recorded).done(run):
            return recorded

        available = []
        for variant in wanted:
            saves_weights = variant != FULL and prune_step(variant).saves_weights(run)
            if not saves_weights or prune_step(variant).done(run, with_weights=True):
                available.append(variant)
        return tuple(available)


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
