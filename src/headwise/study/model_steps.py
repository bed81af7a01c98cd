"""The steps that make models: the full one, trained or copied, and from it the smaller ones, with gates, by greedy
removal, or as controls."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headwise.core.errors import HeadwiseError
from headwise.core.folders import below, digest, sha256, write_text
from headwise.core.heads import Head
from headwise.core.layout import HeadMask
from headwise.core.options import TEXTLESS_ORDERS, Architecture, smaller_batches, too_few
from headwise.core.removal_units import Together, left_by_step
from headwise.importance.work import UPDATE
from headwise.models.fingerprint import fingerprint
from headwise.models.model import Model
from headwise.models.model_files import folder_of, loaded_files
from headwise.models.training.tokenizer import learn_subwords
from headwise.models.training.trainer import TrainingSetup, converge
from headwise.models.training.translation_model import build_model
from headwise.pruning.control_case import Case, Trained
from headwise.pruning.controls import Control, control
from headwise.pruning.fine_tuning import tune
from headwise.pruning.gate_training import updates_of
from headwise.pruning.greedy import (
    RANKED,
    RemovalScore,
    cut,
    mask_without,
    removal_orders,
    removal_score,
)
from headwise.pruning.repair import SENTENCES, Repairs
from headwise.pruning.with_gates import prune_by_training
from headwise.study.plan import GateSweep, GreedySweep, TopKSweep
from headwise.study.records import STAGING, StepResult
from headwise.study.run_context import RunContext
from headwise.study.step import Step
from headwise.study.variants import FULL, Ranking, Variant

REPAIR_TAKES = 5.0  # forwards over the text that is fitted, trials included
WITHOUT_DECODER = 0.55  # of an update's time: that of the encoders alone
SCORE_OF_BEST_HEAD = "gradient"  # the score that says which head of a layer is best: on Multi30k nearest to exact ablation


@dataclass(frozen=True)
class Train(
    Step,
    stage="train",
    name_format="train",
    distributed=True,
    reproducible=True,
    may_add_steps=True,
):
    """Train the model of the plan, or copy the given one, to model/."""

    VERSION = 3  # a given model is known by the SHA-256 of its files

    def dependencies(self, run: RunContext) -> list[Step]:
        return []

    def inputs(self, run: RunContext) -> dict[str, Any]:
        plan = run.plan
        if run.trained_in_memory is not None:
            return {}  # nothing of it outlives this process
        if run.memory:
            given = run.memory.model
            return {"given": fingerprint(given.hf, given.tokenizer, given.source)}
        if isinstance(plan.model, str):
            return {"given": plan.model, "files": files_of(plan.model)}
        return {**shape_and_recipe(run, plan.model), **run.seed_and("train", "dev")}

    def forwards(self, run: RunContext) -> float:
        is_shape = isinstance(run.plan.model, Architecture)
        return is_shape * forwards_of_training(run)

    def outputs(self, run: RunContext) -> list[str]:
        if run.trained_in_memory is not None:
            return []
        return ["model"] if isinstance(run.plan.model, str) else ["model", "train"]

    def model_outputs(self, run: RunContext) -> list[str]:
        return ["model"]

    def make(self, run: RunContext, work: Path) -> StepResult:
        shape = run.plan.model
        texts = run.fingerprints_of("train", "dev")
        if isinstance(shape, Architecture):
            return {**train_full_model(run, shape, work), **texts}
        model = run.load_given()
        model.task.check(run.text("train"))
        model.task.check_quality(run.text("train"))
        if run.main and run.trained_in_memory is None:
            model.save(work / STAGING / "model")
        return {
            "parameters": model.parameters,
            "heads": model.heads.to_json(),
            "attention": model.discovery.window_names(),
            "dtype": str(model.hf.dtype).removeprefix("torch."),
            **texts,
        }


FULL_MODEL = Train()


def forwards_of_training(
    run: RunContext, epochs: int | None = None, update: float = UPDATE
) -> float:
    """What training takes, as `Step.forwards` counts. epochs: by default those of the plan. update: forwards over a batch
    that its update takes as long as."""
    return update * (epochs or run.training.epochs) * len(run.texts["train"])


def full_model(run: RunContext) -> Model:
    """The full model, made first where it is not there."""
    FULL_MODEL.get_or_make(run, with_weights=True)
    return run.full


def shape_and_recipe(run: RunContext, shape: Architecture) -> dict[str, Any]:
    """What a model that is trained from random weights is made from, beside seed and texts."""
    return {"shape": shape.model_dump(), "recipe": run.training.model_dump()}


def files_of(given: str) -> dict[str, str]:
    """SHA-256 of the files of a local model that loading reads, by name: only a model that changed is taken again."""
    folder = folder_of(given)
    return {name: sha256(below(folder, name)) for name in loaded_files(folder)}


def training(run: RunContext, model: Model, work: Path, limit: int | None = None) -> TrainingSetup:
    """The train and dev texts as a model reads them (pairs of at most `limit` tokens), and how to train on them."""
    recipe = run.training
    data = model.task.training_data(run.text("train"), recipe.batch_tokens, run.cache, limit)
    dev = model.task.training_data(run.dev_of_training, recipe.batch_tokens, limit=limit)
    smaller = smaller_batches(recipe, int(data.longest.sum()))
    if smaller and run.trained_in_memory is not None:  # of a study that is said before it begins
        run.warn(smaller)

    def say(line: str) -> None:
        run.progress.say(f"  {line}")

    return TrainingSetup(data, dev, recipe, work, run.plan.seed, run.progress, say)


def train_full_model(run: RunContext, shape: Architecture, work: Path) -> StepResult:
    """Learn subwords, train, average the last checkpoints if that lowers the dev loss, save."""
    text = run.pairs("train")
    tokenizer = learn_subwords((side for pair in text for side in pair), shape.vocabulary)
    model = Model(
        build_model(shape, tokenizer, run.plan.seed).to(run.device), tokenizer, run.plan.name
    )
    how = training(run, model, work, shape.max_length)
    facts = converge(model.hf, tokenizer, model.discovery, how)
    if run.main:
        model.save(work / STAGING / "model")
        write_text(
            work / STAGING / "train" / "log.csv", (work / "log.csv").read_text(encoding="utf-8")
        )
    return {
        **facts,
        "heads": model.heads.to_json(),
        "dropped": how.data.dropped,
        "pairs": len(how.data),
        "blank": text.blank,
        "dtype": run.number_type,
    }


class OneModelStep(Step):
    """A step that works with one finished model: its variant, or the full model where it has none."""

    def dependencies(self, run: RunContext) -> list[Step]:
        return [model_step(self.variant_or_none or FULL)]


@dataclass(frozen=True)
class RankHeads(
    OneModelStep,
    stage="prune",
    name_format="ranking/{0.ranking.name}",
    distributed=True,
    writes=["rankings/{0.ranking.name}.json"],
):
    """A greedy order: the units of heads that go, the first first, in rankings/; before repair two orders. Heads are ranked
    on the training text, so that dev chooses among models that did not see it, and test is read once."""

    sweep_index: int
    ranking: Ranking
    VERSION = 6  # several orders

    def sweep(self, run: RunContext) -> GreedySweep:
        sweep = run.plan.pruning[self.sweep_index]
        assert isinstance(sweep, GreedySweep)
        return sweep

    def inputs(self, run: RunContext) -> dict[str, Any]:
        options = self.sweep(run).model_dump(
            include={"kinds", "step", "rescore", "keep", "unit", "repair"}
        )
        return {
            "score": self.ranking.score,
            "replicate": self.ranking.replicate,
            **options,
            **run.seed_and("train"),
        }

    def forwards(self, run: RunContext) -> float:
        sweep = self.sweep(run)
        score = self.ranking.score
        if score in TEXTLESS_ORDERS:
            return 0.0
        work = run.workload
        times = len(left_by_step(work.heads, sweep)) if sweep.rescore else 1
        return times * min(RANKED, len(run.texts["train"])) * work.of_measures([score])

    def make(self, run: RunContext, work: Path) -> StepResult:
        sweep = self.sweep(run)
        orders = removal_orders(score_of_ranking(run, self.ranking, sweep.rescore), sweep)
        if run.main:
            written = [[[str(head) for head in together] for together in order] for order in orders]
            (file,) = self.outputs(run)
            write_text(below(work / STAGING, file), json.dumps(written) + "\n")
        return {}


def read_orders(run: RunContext, ranking: Ranking) -> list[list[Together]]:
    """The units of heads that orders of the run take away, as `RankHeads` wrote them."""
    text = below(run.folder / "rankings", f"{ranking.name}.json").read_text(encoding="utf-8")
    return [[tuple(map(Head.parse, together)) for together in order] for order in json.loads(text)]


def score_of_ranking(run: RunContext, ranking: Ranking, rescore: bool) -> RemovalScore:
    """How important the full model's heads are on the training text, by the score of a ranking."""
    text = run.text("train")
    return removal_score(
        full_model(run),
        text,
        ranking.score,
        rescore,
        run.plan.seed,
        ranking.replicate,
        run.progress,
    )


@dataclass(frozen=True)
class Prune(
    Step,
    stage="prune",
    name_format="prune/{0.variant.name}",
    distributed=True,
    reproducible=True,
    may_add_steps=True,
):
    """One smaller model: its layout in layouts/, its weights in pruned/."""

    VERSION = 5  # the folder knows the train text again

    variant: Variant

    @property
    def layout(self) -> str:
        return f"layouts/{self.variant.name}.json"

    @property
    def folder(self) -> str:
        return f"pruned/{self.variant.name}"

    def has_own_weights(self, run: RunContext) -> bool:
        """Whether its weights are more than the full model's without some heads."""
        return True

    def saves_weights(self, run: RunContext) -> bool:
        """Whether its weights are written to a file of their own."""
        return self.has_own_weights(run) and run.trained_in_memory is None

    def dependencies(self, run: RunContext) -> list[Step]:
        return [FULL_MODEL]

    def forwards(self, run: RunContext) -> float:
        options = run.sweep(self.variant)
        update = UPDATE * (WITHOUT_DECODER if options.train == "distil" else 1.0)
        return forwards_of_training(run, options.epochs, update)

    def outputs(self, run: RunContext) -> list[str]:
        return [self.layout, *self.model_outputs(run)]

    def model_outputs(self, run: RunContext) -> list[str]:
        return [self.folder] if self.saves_weights(run) else []

    def tuning_inputs(self, run: RunContext) -> dict[str, Any]:
        """What every model that is fine-tuned from the full one is made from, beside its variant."""
        # A sweep says these for itself, in its options.
        unused = {"epochs", "learning_rate", "warmup", "schedule", "patience", "average"}
        return {
            "options": run.sweep(self.variant).training_options,
            "training": run.training.model_dump(exclude=unused),
            **run.seed_and("train", "dev"),
        }

    def save(self, run: RunContext, mask: HeadMask, model: Model, work: Path) -> None:
        self.note_text(run, model)
        if run.main:
            mask.save(below(work / STAGING, self.layout))
        if run.trained_in_memory is not None:
            run.trained_in_memory[self.variant.name] = model
        elif run.main:
            model.save(below(work / STAGING, self.folder))

    def reads_text(self, run: RunContext) -> bool:
        """Whether the train text says which heads stay, or fits weights."""
        return True

    def note_text(self, run: RunContext, model: Model) -> None:
        """Note in a model that it was made on the train text."""
        if self.reads_text(run) and run.known_train is not None:
            model.known_texts = (*full_model(run).known_texts, run.known_train)

    def model(self, run: RunContext) -> Model:
        """The model, once it is made, of a run that has it in memory, or that has no own weights."""
        assert run.trained_in_memory is not None
        return run.trained_in_memory[self.variant.name]

    def tuned(
        self, run: RunContext, mask: HeadMask, work: Path, start: Model | None = None
    ) -> StepResult:
        """A layout cut out of the full model (or that model, repaired) and fine-tuned for as long as gates are."""
        model = full_model(run)  # a copy of it is trained
        sweep = run.sweep(self.variant)
        assert isinstance(sweep, GateSweep | TopKSweep | GreedySweep)
        tuned = tune(model, training(run, model, work), sweep, tuple(sweep.kinds), mask, start)
        self.save(run, mask, tuned.model, work)
        return {
            **tuned.cost,
            "loss_before": tuned.loss_before,
            "loss_after": tuned.loss_after,
            "notes": tuned.notes,
        }


class PruneByGates(Prune):
    """Fine-tune with gates, decide, cut. Leaves gates/, too."""

    def inputs(self, run: RunContext) -> dict[str, Any]:
        return {
            **self.tuning_inputs(run),
            "method": self.variant.method,
            "penalty": self.variant.penalty,
            "keep": self.variant.keep,
        }

    def outputs(self, run: RunContext) -> list[str]:
        return [*super().outputs(run), f"gates/{self.variant.name}.csv"]

    def make(self, run: RunContext, work: Path) -> StepResult:
        full_model(run)
        _ = run.dev_of_training  # asks the full model, which leaves the memory next
        model = run.fresh()
        variant = self.variant
        sweep = run.sweep(variant)
        assert isinstance(sweep, GateSweep | TopKSweep)
        goal: dict[str, Any] = {"keep": variant.keep}
        if isinstance(sweep, GateSweep):
            goal["penalty"] = variant.penalty
        options = sweep.model_copy(update=goal)
        how = training(run, model, work)
        if run.trained_in_memory is not None and isinstance(options, GateSweep) and variant.penalty:
            few = too_few(options, updates_of(how, options.of_gates))
            if few:  # of a study that is said before it begins
                run.warn(few)
        pruned = prune_by_training(model, how, options)
        self.save(run, pruned.mask, pruned.model, work)
        if run.main:
            write_text(
                below(work / STAGING / "gates", f"{variant.name}.csv"),
                (work / "gates.csv").read_text(encoding="utf-8"),
            )
        for note in pruned.notes:
            run.progress.say(f"  {variant.name}: {note}")
        facts = ("soft_loss", "decided_loss", "undecided", "expected", "settled", "notes", "doubts")
        return {
            **pruned.cost,
            **{name: getattr(pruned, name) for name in facts},
            "sweep": sweep.name,
            "penalty": variant.penalty,
        }


class PruneGreedily(Prune):
    """One step of a greedy order: its layout, and its model where it is fine-tuned or repaired."""

    VERSION = 7  # as of Prune

    def sweep(self, run: RunContext) -> GreedySweep:
        sweep = run.sweep(self.variant)
        assert isinstance(sweep, GreedySweep)
        return sweep

    def has_own_weights(self, run: RunContext) -> bool:
        sweep = self.sweep(run)
        return bool(sweep.train or sweep.repair)

    def reads_text(self, run: RunContext) -> bool:
        ranking = self.variant.ranking
        assert ranking is not None
        return self.has_own_weights(run) or ranking.score not in TEXTLESS_ORDERS

    def forwards(self, run: RunContext) -> float:
        sweep = self.sweep(run)
        repair = REPAIR_TAKES * min(SENTENCES, len(run.texts["train"])) if sweep.repair else 0.0
        return repair + (super().forwards(run) if sweep.train else 0.0)

    def model(self, run: RunContext) -> Model:
        if self.sweep(run).train:
            return super().model(run)
        mask = run.mask(self.variant)
        if not self.sweep(run).repair:
            return self.cut(run, mask)  # a copy, in no time
        return run.kept((self.variant.name, mask), lambda: self.cut(run, mask))

    def nearest(self, run: RunContext, masks: Sequence[HeadMask]) -> HeadMask:
        """The mask whose model repair brings nearest to the full one on dev."""
        # Where the orders agree, there is nothing to fit and compare.
        if len({*masks}) == 1:
            return masks[0]
        return self.repairs(run).nearest(masks)

    def repairs(self, run: RunContext) -> Repairs:
        """The repairs of the run's full model, which all smaller models share."""
        full = full_model(run)
        if run.repairs is None or run.repairs.model is not full:
            run.repairs = Repairs.on(full, run.text("train"), run.text("dev"))
        return run.repairs

    def cut(self, run: RunContext, mask: HeadMask) -> Model:
        """The smaller model of a mask, before any training."""
        # Without progress: this may be a part of another step.
        return cut(full_model(run), mask, self.sweep(run), lambda: self.repairs(run))

    def dependencies(self, run: RunContext) -> list[Step]:
        assert self.variant.ranking is not None
        # The order needs the full model, so that is made before it.
        return [RankHeads(self.variant.sweep_index, self.variant.ranking)]

    def inputs(self, run: RunContext) -> dict[str, Any]:
        sweep = self.sweep(run)
        return {
            "kept": self.variant.heads_left,
            "train": self.tuning_inputs(run) if sweep.train else None,
            "repair": run.fingerprints_of("train", "dev") if sweep.repair else None,
        }

    def make(self, run: RunContext, work: Path) -> StepResult:
        sweep = self.sweep(run)
        ranking = self.variant.ranking
        assert ranking is not None
        heads = run.heads
        assert heads is not None and self.variant.heads_left is not None
        removed = heads.only(sweep.kinds).total - self.variant.heads_left
        masks = [mask_without(heads, order, removed) for order in read_orders(run, ranking)]
        mask = self.nearest(run, masks)
        if sweep.train:
            return self.tuned(run, mask, work, self.cut(run, mask) if sweep.repair else None)
        if run.main:
            mask.save(below(work / STAGING, self.layout))
        if self.saves_weights(run):
            self.save(run, mask, self.cut(run, mask), work)
        return {}


class MakeControl(Prune):
    """A control: heads that its function chose, fine-tuned, or a model that it trained itself."""

    @property
    def facts(self) -> Control:
        assert self.variant.control is not None
        return control[self.variant.control]

    def dependencies(self, run: RunContext) -> list[Step]:
        controlled = self.variant.controlled_variant
        return [FULL_MODEL, prune_step(controlled)] if controlled else [FULL_MODEL]

    def forwards(self, run: RunContext) -> float:
        if self.facts.random_weights:
            return forwards_of_training(run)
        return super().forwards(run)

    def inputs(self, run: RunContext) -> dict[str, Any]:
        shape = run.plan.model
        if self.facts.random_weights:
            assert isinstance(shape, Architecture)
            made_from = {**shape_and_recipe(run, shape), **run.seed_and()}
        else:
            made_from = self.tuning_inputs(run)
        return {"control": self.variant.control, "version": self.facts.version, **made_from}

    def outputs(self, run: RunContext) -> list[str]:
        return super().outputs(run) if self.facts.layout else [self.folder]

    def make(self, run: RunContext, work: Path) -> StepResult:
        full = full_model(run)
        given = self.facts.function(self.case(run, full, work))
        if isinstance(given, HeadMask) and not self.facts.random_weights:
            return self.tuned(run, given, work)
        if isinstance(given, Model):
            given = Trained(given)
        if not isinstance(given, Trained):
            raise HeadwiseError(
                f"The control '{self.variant.control}' gave {given!r:.80}: its function must return the heads to keep "
                "(hw.HeadMask), or a model."
            )
        if run.main:
            if self.facts.layout:
                layout = given.model.layout
                # A model of another shape lost none of the full model's heads.
                if layout is None or layout.heads != full.heads:
                    layout = HeadMask.full(full.heads)
                layout.save(below(work / STAGING, self.layout))
            self.note_text(run, given.model)
            given.model.save(below(work / STAGING, self.folder))
        return {"notes": [], **given.facts}

    def case(self, run: RunContext, full: Model, work: Path) -> Case:
        """What the function of the control is given."""
        variant = self.variant
        sweep = run.sweep(variant)
        shape = run.plan.model
        controlled = variant.controlled_variant

        def importance() -> Mapping[Head, float]:
            return score_of_ranking(run, Ranking("", SCORE_OF_BEST_HEAD), rescore=False)(
                HeadMask.full(full.heads)
            )

        def pruned() -> Model:
            assert controlled is not None
            model = model_of(run, controlled)
            run.last_pruned = ((), None)  # the control may train it
            return model

        def untrained(shape: Architecture) -> Model:
            hf = build_model(shape, full.tokenizer, run.plan.seed).to(run.device)
            return Model(hf, full.tokenizer, variant.name)

        def train(model: Model) -> dict[str, Any]:
            limit = shape.max_length if isinstance(shape, Architecture) else None
            facts = converge(
                model.hf, model.tokenizer, model.discovery, training(run, full, work, limit)
            )
            model.hf.eval()
            return facts

        return Case(
            full=full,
            mask=run.mask(controlled) if controlled else None,
            kinds=sweep.kinds,
            unit=sweep.unit,
            seed=int(digest([variant.name, run.plan.seed]), 16) % 2**32,
            importance=importance,
            pruned=pruned,
            untrained=untrained,
            shape=shape if isinstance(shape, Architecture) else None,
            train=train,
        )


def prune_step(variant: Variant) -> Prune:
    """The step that makes a variant."""
    if variant.control:
        return MakeControl(variant)
    if variant.ranking:
        return PruneGreedily(variant)
    return PruneByGates(variant)


def model_step(variant: Variant) -> Step:
    """The step that makes a variant, or the full model."""
    return FULL_MODEL if variant == FULL else prune_step(variant)


def model_of(run: RunContext, variant: Variant) -> Model:
    """A model of the run, made first where it is not there; one without own weights is cut from the full one."""
    if variant == FULL:
        return full_model(run)
    step = prune_step(variant)
    if not step.saves_weights(run):
        step.get_or_make(run)
        model = step.model(run)
        step.note_text(run, model)
        return model
    step.get_or_make(run, with_weights=True)
    return run.pruned(step.folder, run.store.record(step.name)["files"])


def lost_no_head(run: RunContext, variant: Variant) -> bool:
    """Whether a model is made and lost no head: then there is nothing to compare it with, and no control of it."""
    return (
        prune_step(variant).result(run) is not None
        and len(run.mask(variant)) == run.mask(variant).heads.total
    )
