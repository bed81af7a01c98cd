"""The smaller models: with gates, by greedy removal, or as controls. Each is made from the full model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from headwise.api.batches import Batches
from headwise.api.greedy import Ranking, greedy_masks
from headwise.api.sweeps import FROM_RANDOM_WEIGHTS, WITHOUT_TEXT, GateSweep, GreedySweep, TopKSweep
from headwise.heads import HeadMask, write_text
from headwise.importance.ablation import mean_outputs
from headwise.model import Model, load
from headwise.pruning.controls import at_random, from_scratch, narrower, one_per_layer, tune
from headwise.pruning.greedy import random_scores
from headwise.pruning.hard_concrete import Pruned, prune_by_gates
from headwise.pruning.target_count import prune_to_count
from headwise.pruning.top_k import prune_by_top_k
from headwise.study.estimate import Estimate
from headwise.study.run import Run, Task
from headwise.study.store import MADE, Result, digest
from headwise.study.tasks.train import FULL_MODEL, full_model, training
from headwise.study.variants import FULL, Order, Variant
from headwise.translation.build import Architecture, build
from headwise.translation.train import converge

BEST_HEAD = "gradient"  # the score that says which head of a layer is best: on Multi30k nearest to exact ablation
MEANS = 2000  # training pairs that mean outputs are taken over


@dataclass(frozen=True)
class RankHeads(Task):
    """A greedy order: the masks of its steps, as layouts in orders/."""

    stage: ClassVar[str] = "prune"
    shared: ClassVar[bool] = True
    sweep_index: int
    order: Order

    @property
    def name(self) -> str:
        return f"order/{self.order.name}"

    def sweep(self, run: Run) -> GreedySweep:
        sweep = run.plan.pruning[self.sweep_index]
        assert isinstance(sweep, GreedySweep)
        return sweep

    def needs(self, run: Run) -> Sequence[Task]:
        return [FULL_MODEL]

    def inputs(self, run: Run) -> Mapping[str, Any]:
        sweep = self.sweep(run)
        options = sweep.model_dump(include={"kinds", "step", "rescore", "keep"})
        return {"score": self.order.score, "turn": self.order.turn, "seed": run.plan.seed, **options,
                "dev": run.fingerprint("dev")}  # fmt: skip

    def outputs(self, run: Run) -> Sequence[str]:
        return [f"orders/{self.order.name}"]

    def make(self, run: Run, work: Path) -> Result:
        sweep, model = self.sweep(run), full_model(run)
        for kept, mask in greedy_masks(ranking(run, model, self.order, sweep.rescore), sweep).items():
            if run.main:
                mask.save(work / MADE / "orders" / self.order.name / f"{kept}.json")
        return {}

    def seconds(self, run: Run, estimate: Estimate) -> float:
        sweep = self.sweep(run)
        times = len(sweep.counts(run.heads)) if sweep.rescore and run.heads else 1
        return 0.0 if self.order.score in WITHOUT_TEXT else times * estimate.scoring([self.order.score])


def ranking(run: Run, model: Model, order: Order, rescore: bool) -> Ranking:
    """How important heads are on the dev text, as an order asks."""
    seed = 1000 * run.plan.seed + order.turn
    return Ranking(model, Batches(model, run.dev_text, run.progress), order.score, rescore, seed)


@dataclass(frozen=True)
class Prune(Task):
    """One smaller model: its layout in layouts/, its weights in pruned/."""

    stage: ClassVar[str] = "prune"
    shared: ClassVar[bool] = True
    repeatable: ClassVar[bool] = True
    variant: Variant

    @property
    def name(self) -> str:
        return f"prune/{self.variant.name}"

    @property
    def layout(self) -> str:
        return f"layouts/{self.variant.name}.json"

    @property
    def folder(self) -> str:
        return f"pruned/{self.variant.name}"

    def needs(self, run: Run) -> Sequence[Task]:
        return [FULL_MODEL]

    def outputs(self, run: Run) -> Sequence[str]:
        return [self.layout, self.folder]

    def weights(self, run: Run) -> Sequence[str]:
        return [self.folder] if self.folder in self.outputs(run) else []

    def tuning_inputs(self, run: Run) -> dict[str, Any]:
        """What every model that is fine-tuned from the full one is made from, beside its variant."""
        recipe = run.plan.training.model_dump(
            exclude={"epochs", "learning_rate", "warmup", "schedule", "patience", "average"}
        )
        return {"options": run.sweep(self.variant).training_options, "training": recipe, "seed": run.plan.seed,
                "train": run.fingerprint("train"), "dev": run.fingerprint("dev")}  # fmt: skip

    def save(self, run: Run, mask: HeadMask, model: Model, work: Path) -> None:
        if run.main:
            mask.save(work / MADE / self.layout)
            model.save(work / MADE / self.folder)

    def tuned(self, run: Run, mask: HeadMask, work: Path) -> Result:
        """A layout cut out of the full model and fine-tuned for as long as gates are."""
        model, sweep = fresh_model(run), run.sweep(self.variant)
        made = tune(model, training(run, model, work), sweep, tuple(sweep.kinds), mask)
        self.save(run, made.mask, made.model, work)
        return {**made.cost, "loss_before": made.loss_before, "loss_after": made.loss_after, "notes": made.notes}

    def seconds(self, run: Run, estimate: Estimate) -> float:
        sweep = run.sweep(self.variant)
        return estimate.training(sweep.epochs, sweep.kinds)


def fresh_model(run: Run) -> Model:
    """The full model, to be trained on."""
    run.need(FULL_MODEL, whole=True)
    return run.fresh()


class PruneByGates(Prune):
    """Fine-tune with gates, decide, cut. Leaves gates/, too."""

    def inputs(self, run: Run) -> Mapping[str, Any]:
        variant = self.variant
        return {**self.tuning_inputs(run), "method": variant.method, "penalty": variant.penalty, "keep": variant.keep}

    def outputs(self, run: Run) -> Sequence[str]:
        return [self.layout, self.folder, f"gates/{self.variant.name}.csv"]

    def make(self, run: Run, work: Path) -> Result:
        model, sweep = fresh_model(run), run.sweep(self.variant)
        assert isinstance(sweep, GateSweep | TopKSweep)
        pruned = self.pruned(model, sweep, run, work)
        self.save(run, pruned.mask, pruned.model, work)
        if run.main:
            write_text(work / MADE / "gates" / f"{self.variant.name}.csv", (work / "gates.csv").read_text())
        for note in pruned.notes:
            run.progress.say(f"  {note}")
        return {
            **pruned.cost, "soft_loss": pruned.soft_loss, "decided_loss": pruned.decided_loss,
            "undecided": pruned.undecided, "expected": pruned.expected, "settled": pruned.settled,
            "notes": pruned.notes, "doubts": pruned.doubts, "sweep": sweep.name, "penalty": self.variant.penalty,
        }  # fmt: skip

    def pruned(self, model: Model, sweep: GateSweep | TopKSweep, run: Run, work: Path) -> Pruned:
        common, variant = (model, training(run, model, work), sweep, tuple(sweep.kinds)), self.variant
        if variant.penalty is not None:
            return prune_by_gates(*common, variant.penalty)
        assert variant.keep is not None
        return (prune_by_top_k if isinstance(sweep, TopKSweep) else prune_to_count)(*common, variant.keep)


class GreedyStep(Prune):
    """One step of a greedy order: its layout, and its model where that is more than the full one without heads."""

    def sweep(self, run: Run) -> GreedySweep:
        sweep = run.sweep(self.variant)
        assert isinstance(sweep, GreedySweep)
        return sweep

    def needs(self, run: Run) -> Sequence[Task]:
        assert self.variant.order is not None
        return [RankHeads(self.variant.sweep_index, self.variant.order)]

    def inputs(self, run: Run) -> Mapping[str, Any]:
        sweep = self.sweep(run)
        means = run.fingerprint("train") if sweep.compensate else None
        return {"kept": self.variant.kept, "compensate": means, "tune": self.tuning_inputs(run) if sweep.tune else None}

    def outputs(self, run: Run) -> Sequence[str]:
        sweep = self.sweep(run)
        return [self.layout, *([self.folder] if sweep.tune or sweep.compensate else [])]

    def make(self, run: Run, work: Path) -> Result:
        sweep, order = self.sweep(run), self.variant.order
        assert order is not None
        mask = HeadMask.read(run.folder / "orders" / order.name / f"{self.variant.kept}.json")
        if sweep.tune:
            return self.tuned(run, mask, work)
        if sweep.compensate:
            model = full_model(run)
            means = mean_outputs(model.hf, model.found, Batches(model, run.train_text.head(MEANS)))
            self.save(run, mask, model.remove(mask, means), work)
        elif run.main:
            mask.save(work / MADE / self.layout)
        return {}

    def seconds(self, run: Run, estimate: Estimate) -> float:
        return super().seconds(run, estimate) if self.sweep(run).tune else 0.0


class FineTunedControl(Prune):
    """A control that is fine-tuned from the full model: with all heads, random ones, or one of each layer."""

    def needs(self, run: Run) -> Sequence[Task]:
        return [FULL_MODEL, *([prune_task(self.variant.reference)] if self.variant.reference else [])]

    def inputs(self, run: Run) -> Mapping[str, Any]:
        return {"control": self.variant.control, **self.tuning_inputs(run)}

    def make(self, run: Run, work: Path) -> Result:
        return self.tuned(run, self.mask(run), work)

    def mask(self, run: Run) -> HeadMask:
        """The heads that the control keeps."""
        model, variant = full_model(run), self.variant
        kinds = run.sweep(variant).kinds
        seed = int(digest([variant.name, run.plan.seed]), 16) % 2**32
        if variant.control == "fine-tuned":
            return HeadMask.full(model.heads)
        if variant.reference:
            counts = {kind: run.mask(variant.reference).count(kind) for kind in kinds}
            return at_random(model.heads, kinds, counts, seed)
        if variant.control == "one-per-layer":
            best = ranking(run, model, Order("", BEST_HEAD), rescore=False)
            return one_per_layer(model.heads, kinds, best(HeadMask.full(model.heads)))
        return one_per_layer(model.heads, kinds, random_scores(model.heads, seed))


class TrainedControl(Prune):
    """A control trained from random weights with the whole recipe: the layout of a pruned model, or a dense model with
    as many parameters."""

    @property
    def scratch(self) -> bool:
        return self.variant.control == "from-scratch"

    @property
    def reference(self) -> Variant:
        assert self.variant.reference is not None
        return self.variant.reference

    def needs(self, run: Run) -> Sequence[Task]:
        return [FULL_MODEL, prune_task(self.reference)]

    def inputs(self, run: Run) -> Mapping[str, Any]:
        plan = run.plan
        assert isinstance(plan.model, Architecture)
        return {"control": self.variant.control, "shape": plan.model.model_dump(), "seed": plan.seed,
                "recipe": plan.training.model_dump()}  # fmt: skip

    def outputs(self, run: Run) -> Sequence[str]:
        return [self.folder, *([self.layout] if self.scratch else [])]

    def make(self, run: Run, work: Path) -> Result:
        full, shape = full_model(run), run.plan.model
        assert isinstance(shape, Architecture)
        how = training(run, full, work, shape.max_length)
        if self.scratch:
            mask = run.mask(self.reference)
            model, facts = from_scratch(shape, full.tokenizer, how, mask, run.device)
            self.save(run, mask, model, work)
            return {**facts, "notes": []}
        parameters = model_of(run, self.reference).parameters
        smaller = narrower(shape, len(full.tokenizer), parameters)
        hf = build(smaller, full.tokenizer, run.plan.seed).to(run.device)
        model = Model(hf, full.tokenizer, self.variant.name)
        facts = converge(hf, full.tokenizer, model.found, how)
        if run.main:
            model.save(work / MADE / self.folder)
        return {**facts, "width": smaller.width, "feedforward": smaller.feedforward,
                "parameters_beyond_reference": model.parameters - parameters,
                "notes": shape_notes(smaller, shape)}  # fmt: skip

    def seconds(self, run: Run, estimate: Estimate) -> float:
        return estimate.training()


def shape_notes(smaller: Architecture, shape: Architecture) -> list[str]:
    if smaller == shape:
        return ["No head is gone, so no narrower model is as large: this is the full shape again."]
    if smaller.width == shape.width:
        return ["So few heads are gone that only the feed-forward layers are narrower."]
    return []


def prune_task(variant: Variant) -> Prune:
    """The task that makes a variant."""
    if variant.control:
        return (TrainedControl if variant.control in FROM_RANDOM_WEIGHTS else FineTunedControl)(variant)
    return (GreedyStep if variant.order else PruneByGates)(variant)


def model_task(variant: Variant) -> Task:
    """The task that makes a variant, or the full model."""
    return FULL_MODEL if variant == FULL else prune_task(variant)


def model_of(run: Run, variant: Variant) -> Model:
    """A model of the run, made first where it is not there; one without own weights is cut from the full one."""
    if variant == FULL:
        return full_model(run)
    task = prune_task(variant)
    run.need(task, whole=bool(task.weights(run)))
    if not task.weights(run):
        return full_model(run).remove(run.mask(variant))
    return load(run.folder / task.folder, run.device)


def keeps_all(run: Run, variant: Variant) -> bool:
    """Whether a model is made and lost no head: then there is nothing to compare it with, and no control of it."""
    return run.result(prune_task(variant)) is not None and len(run.mask(variant)) == run.mask(variant).heads.total
