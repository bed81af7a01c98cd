"""The schedule of a run: its steps, the most informative first: the encoder curve at the beginning, what is trained from
random weights last. A model is evaluated as soon as it is made, so an unfinished study is already a result.

Finished steps may reveal more models (`known_models.py`), so the executor asks for a new schedule after every step.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

from headwise.data.embedded import Split
from headwise.pruning.controls import control
from headwise.study.evaluation_steps import CompareOrders, MeasureSavings, MeasureSpeed, SaveChosen
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
from headwise.study.known_models import Results, greedy_sweeps, known_models, refined_penalties
from headwise.study.model_steps import FULL_MODEL, RankHeads, prune_step
from headwise.study.plan import GateSweep
from headwise.study.run_context import RunContext
from headwise.study.step import Step
from headwise.study.variants import FULL, Variant

STAGES = ("train", "score", "roles", "prune", "evaluate")


class Schedule:
    """The steps of one run, with the models that are known when it is made. failed: why, by the names of steps that
    failed."""

    def __init__(self, run: RunContext, failed: Mapping[str, str] | None = None) -> None:
        self.run = run
        self.failed = failed or {}
        self.models = known_models(run, self.failed)
        self.variants = self.models.variants

    def steps(self, stages: Collection[str] = STAGES) -> list[Step]:
        """The steps of some STAGES that are known by now."""
        steps = [step for step in self.every_step() if step.stage in stages]
        # The models of one greedy order share the step of their losses: each step once.
        return list(dict.fromkeys(steps))

    def every_step(self) -> Iterator[Step]:
        """The steps of all stages in their order; some more than once."""
        yield FULL_MODEL
        yield from self.head_steps()
        yield from self.measuring_steps(FULL)
        # All orders first: many models are cut by each.
        for variant in self.variants:
            if variant.ranking:
                yield RankHeads(variant.sweep_index, variant.ranking)
        for variant in self.variants:
            yield prune_step(variant)
            yield from self.measuring_steps(variant)
            if self.is_analysed_again(variant):
                yield Rescore(variant)
        yield from self.last_steps()

    def head_steps(self) -> Iterator[Step]:
        """What the heads of the full model matter, and what they do."""
        run = self.run
        if run.measures:
            yield from score_passes(run)
            if run.scoring.untrained:
                yield ScoreUntrained()
            yield Score()
            if run.scoring.interactions:
                yield MeasureInteractions()
            # The judge is exact ablation: without it nothing says which measure is right.
            if run.scoring.judge and "ablation.zero" in run.measures:
                yield Judge()
        if run.role_texts:
            yield FindRoles()
        if run.plan.roles.words:
            yield FindWords()

    def measuring_steps(self, variant: Variant, split: Split = "dev") -> Iterator[Step]:
        """What measures one variant on a split."""
        yield self.models.answer_step(variant, split)
        yield self.models.evaluation_step(variant, split)
        if split == "dev":
            yield MeasureSavings(variant)

    def is_analysed_again(self, variant: Variant) -> bool:
        """Whether heads are scored and tested for roles again: those that gates chose, where anything asks for it."""
        wanted = bool(self.run.scoring.pruned) or self.run.treebanks is not None
        return wanted and variant.control is None and variant.ranking is None

    def last_steps(self) -> Iterator[Step]:
        """The choice on dev, then the test text and speed."""
        run = self.run
        models = self.models
        usable = [FULL, *(one for one in self.variants if not models.has_failed(one))]
        yield models.choose_step()
        yield from self.order_comparisons("dev")

        chosen = models.chosen
        # What was cut without training has no file of weights yet.
        if chosen is not None and not prune_step(chosen).saves_weights(run):
            yield SaveChosen(chosen)
        if run.plan.data.has_test:
            for variant in usable:
                if models.is_tested(variant):
                    yield from self.measuring_steps(variant, "test")
            yield from self.order_comparisons("test")
        if run.generates:
            yield MeasureSpeed(self.variants_to_time(usable))

    def order_comparisons(self, split: Split) -> Iterator[CompareOrders]:
        """What compares models of greedy removal with those of other orders that have as many heads."""
        models = self.models
        for index, _ in greedy_sweeps(self.run):
            compared = models.compared_with_other_orders(index)
            greedy = self.made_in_order(index)
            for variant in greedy:
                rivals = [
                    (other, models.answer_step(other, split))
                    for other in greedy
                    if other.heads_left == variant.heads_left and other != variant
                ]
                if rivals and variant in compared:
                    answers = models.answer_step(variant, split)
                    yield CompareOrders(split, variant, answers, tuple(rivals))

    def made_in_order(self, index: int) -> list[Variant]:
        """The models that a greedy sweep makes by some order of removal, without those that failed."""
        return [
            variant
            for variant in self.variants
            if variant.sweep_index == index
            and variant.ranking is not None
            and not self.models.has_failed(variant)
        ]

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
            if variant is None or not self.models.has_failed(variant):
                names.append(earlier.name)
        return names

    def variants_to_time(self, variants: Sequence[Variant]) -> tuple[Variant, ...]:
        """The models whose speed is measured.

        Where the plan keeps only the chosen weights, none is trained again to be timed.
        """
        wanted = tuple(variant for variant in variants if self.is_timed(variant))
        if self.run.plan.weights == "all":
            return wanted
        return self.timed_before(wanted) or tuple(filter(self.has_weights, wanted))

    def is_timed(self, variant: Variant) -> bool:
        """Whether the speed of a model is worth measuring: of the full one, those with gates, controls that say so, and the
        chosen one."""
        if variant == self.models.chosen:
            return True
        # An order of removal leaves many models.
        if variant.ranking is not None:
            return False
        return variant.control is None or control[variant.control].timed

    def timed_before(self, wanted: Sequence[Variant]) -> tuple[Variant, ...]:
        """Those of some models whose speed was measured, where that measurement still holds; else none."""
        names = self.run.store.record("speed").get("result", {}).keys()
        timed = tuple(variant for variant in wanted if variant.name in names)
        # What was measured stays, though the weights are gone by now; but not beside models that nobody wants any more.
        all_are_wanted = {variant.name for variant in timed} == {*names}
        return timed if timed and all_are_wanted and MeasureSpeed(timed).is_done(self.run) else ()

    def has_weights(self, variant: Variant) -> bool:
        """Whether the weights of a model can be read: those that its step does not save are cut from the full model."""
        if variant == FULL or not prune_step(variant).saves_weights(self.run):
            return True
        return prune_step(variant).is_done(self.run, with_weights=True)

    def refine_shortfall_notes(self) -> list[str]:
        """Sweeps that have fewer λ than `refine` asks for, though all they have are evaluated."""
        lines = []
        for index, sweep in enumerate(self.run.plan.pruning):
            if not isinstance(sweep, GateSweep):
                continue
            count = len(refined_penalties(Results(self.run, self.failed), index))
            if count < sweep.refine:
                sweep_suffix = f" ({sweep.name})" if sweep.name else ""
                lines.append(
                    f"refine = {sweep.refine} was asked for{sweep_suffix}, and {count} λ filled in: no other two neighbours "
                    "differ by more than one head, or the λ between them was tried."
                )
        return lines
