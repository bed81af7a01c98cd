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
        run = self.run
        scoring = run.scoring
        yield FULL_MODEL
        if self.run.measures:
            yield from score_passes(run)
            if scoring.untrained:
                yield ScoreUntrained()
            yield Score()
            if scoring.interactions:
                yield MeasureInteractions()
            if scoring.judge and "ablation.zero" in self.run.measures:
                yield Judge()
        if run.role_texts:
            yield FindRoles()
        if run.plan.roles.words:
            yield FindWords()
        yield from self.measuring_steps(FULL)
        for variant in self.variants:
            if variant.ranking:
                yield RankHeads(variant.sweep_index, variant.ranking)
        for variant in self.variants:
            yield prune_step(variant)
            yield from self.measuring_steps(variant)
            if self.is_analysed_again(variant):
                yield Rescore(variant)
        yield from self.last_steps()

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
        not_failed = [variant for variant in self.variants if not models.has_failed(variant)]
        not_failed = [FULL, *not_failed]
        yield models.choose_step()
        yield from self.order_comparisons("dev")

        chosen = models.chosen
        if chosen is not None and not prune_step(chosen).saves_weights(run):
            yield SaveChosen(chosen)
        if run.plan.data.has_test:
            for variant in not_failed:
                if models.is_tested(variant):
                    yield from self.measuring_steps(variant, "test")
            yield from self.order_comparisons("test")
        if run.generates:
            yield MeasureSpeed(self.variants_to_time(not_failed))

    def order_comparisons(self, split: Split) -> Iterator[CompareOrders]:
        """What compares models of greedy removal with those of other orders that have as many heads."""
        models = self.models
        for index, _ in greedy_sweeps(self.run):
            greedy = []
            for variant in self.variants:
                is_own = variant.sweep_index == index and variant.ranking is not None
                if is_own and not models.has_failed(variant):
                    greedy.append(variant)
            compared = models.compared_with_other_orders(index)
            for variant in greedy:
                others = []
                for other in greedy:
                    if other.heads_left == variant.heads_left and other != variant:
                        others.append((other, models.answer_step(other, split)))
                if others and variant in compared:
                    answer_step = models.answer_step(variant, split)
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
            if variant is None or not self.models.has_failed(variant):
                names.append(earlier.name)
        return names

    def variants_to_time(self, variants: Sequence[Variant]) -> tuple[Variant, ...]:
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
            if timed_anyway or variant == self.models.chosen:
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
