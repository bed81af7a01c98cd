"""What the models are worth: translations and their quality, or perplexity; size; speed."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from headwise.data.lines import read_lines
from headwise.decoding.bleu import corpus_scores, paired_difference
from headwise.decoding.translator import speeds, translate
from headwise.evaluation.losses import Losses
from headwise.heads import HeadMask, write_text
from headwise.model import Model
from headwise.model_files import WEIGHTS
from headwise.study.estimate import BOOTSTRAP, Estimate
from headwise.study.run import Run, Split
from headwise.study.step import Step
from headwise.study.steps.full_model import full_model
from headwise.study.steps.smaller_models import model_of, model_step, prune_step
from headwise.study.store import MADE, Result
from headwise.study.variants import FULL, Variant
from headwise.training.batches import Encoded
from headwise.training.loss_forward import dev_loss, loss_forward

# Test text is opened once the choice is made.
AFTER_CHOICE: dict[Split, tuple[str, ...]] = {"train": (), "dev": (), "test": ("choose",)}


@dataclass(frozen=True)
class Translate(Step, stage="evaluate", names="translate/{0.split}/{0.variant.name}"):
    """A split in one model's translation, with sources and references beside it, in translations/."""

    split: Split
    variant: Variant

    @property
    def follows(self) -> tuple[str, ...]:
        return AFTER_CHOICE[self.split]

    @property
    def last(self) -> bool:
        return self.split == "test" or super().last

    def needs(self, run: Run) -> list[Step]:
        return [model_step(self.variant)]

    def inputs(self, run: Run) -> dict[str, Any]:
        return {"text": run.fingerprint(self.split), "search": run.plan.search.model_dump()}

    def outputs(self, run: Run) -> list[str]:
        names = (self.variant.name, "source", "reference")
        return [f"translations/{self.split}/{name}.txt" for name in names]

    def make(self, run: Run, work: Path) -> Result:
        model = model_of(run, self.variant)
        text = run.pairs(self.split)
        folder = work / MADE / "translations"
        search = run.plan.search
        lines, cost = translate(
            model.translator(search.engine), list(text.sources), search, run.progress
        )
        for name, side in (
            (self.variant.name, lines),
            ("source", text.sources),
            ("reference", text.targets),
        ):
            one_a_line = (" ".join(line.splitlines()) for line in side)
            write_text(
                folder / self.split / f"{name}.txt", "".join(f"{line}\n" for line in one_a_line)
            )
        return cost

    def seconds(self, run: Run, estimate: Estimate) -> float:
        return estimate.translating(estimate.dev)


@dataclass(frozen=True)
class Evaluate(Step, stage="evaluate", names="evaluate/{0.split}/{0.variant.name}"):
    """BLEU and chrF of a model's translations, and its paired BLEU differences to those of `others`.

    The result: `rows` of (measure, value, low, high), `signatures`, and `against`: (value, low, high, p) by name.
    """

    split: Split
    variant: Variant
    others: tuple[Variant, ...] = ()

    @property
    def last(self) -> bool:
        return self.split == "test" or super().last

    def needs(self, run: Run) -> list[Step]:
        return [Translate(self.split, variant) for variant in (self.variant, *self.others)]

    def make(self, run: Run, work: Path) -> Result:
        def lines(name: str) -> list[str]:
            return list(read_lines(run.folder / "translations" / self.split / f"{name}.txt"))

        ours, references = lines(self.variant.name), lines("reference")
        found = corpus_scores(ours, references)
        changes = {
            other.name: paired_difference(ours, lines(other.name), references)
            for other in self.others
        }
        return {
            "rows": [(score.name, score.value, score.low, score.high) for score in found],
            "signatures": {f"{score.name}_signature": score.signature for score in found},
            "against": {other: (d.value, d.low, d.high, d.p) for other, d in changes.items()},
        }

    def seconds(self, run: Run, estimate: Estimate) -> float:
        return BOOTSTRAP


@dataclass(frozen=True)
class MeasureLosses(Step, stage="evaluate", names="losses/{0.split}/{0.order}"):
    """The loss of every sentence under all steps of a greedy order, or one model, for those that do not translate."""

    split: Split
    steps: tuple[
        Variant, ...
    ]  # of one order, or one variant without; none: of the full model alone

    @property
    def order(self) -> str:
        first = self.steps[0] if self.steps else FULL
        return first.order.name if first.order else first.name

    @property
    def follows(self) -> tuple[str, ...]:
        return AFTER_CHOICE[self.split]

    @property
    def last(self) -> bool:
        return self.split == "test"

    def needs(self, run: Run) -> list[Step]:
        return [model_step(variant) for variant in (FULL, *self.steps)]

    def inputs(self, run: Run) -> dict[str, Any]:
        return {"text": run.fingerprint(self.split)}

    def outputs(self, run: Run) -> list[str]:
        return [f"{self.name}.npz"]

    def make(self, run: Run, work: Path) -> Result:
        masks = [run.mask(variant) for variant in self.steps]

        def cut(mask: HeadMask) -> Model:
            return model_of(run, self.steps[masks.index(mask)])

        own = any(prune_step(variant).has_weights(run) for variant in self.steps)
        text = full_model(run).task.batches(run.text(self.split), run.progress)
        losses = Losses.measure(text, masks, cut if own else None)
        file = work / MADE / f"{self.name}.npz"
        file.parent.mkdir(parents=True, exist_ok=True)
        np.savez_compressed(file, summed=losses.summed, tokens=losses.tokens)
        return {}

    def seconds(self, run: Run, estimate: Estimate) -> float:
        return (1 + len(self.steps)) * estimate.reading(estimate.dev)


@dataclass(frozen=True)
class EvaluatePerplexity(Step, stage="evaluate", names="evaluate/{0.split}/{0.variant.name}"):
    """Loss, perplexity, its change against the full model, and against `others`. The result has the form of
    `Evaluate`'s; changes are in %."""

    split: Split
    variant: Variant
    steps: tuple[Variant, ...] = ()  # of the variant's order, or it alone
    others: tuple[tuple[Variant, tuple[Variant, ...]], ...] = ()  # each with its own steps

    @property
    def last(self) -> bool:
        return self.split == "test" or super().last

    def needs(self, run: Run) -> list[Step]:
        orders = [self.steps, *(steps for _, steps in self.others)]
        measured = [MeasureLosses(self.split, steps) for steps in orders]
        return [*measured, model_step(self.variant)]

    def inputs(self, run: Run) -> dict[str, Any]:
        return {"seed": run.plan.seed}

    def make(self, run: Run, work: Path) -> Result:
        def losses(variant: Variant, steps: tuple[Variant, ...]) -> tuple[Losses, int]:
            with np.load(run.folder / f"{MeasureLosses(self.split, steps).name}.npz") as arrays:
                return Losses(arrays["summed"], arrays["tokens"]), (FULL, *steps).index(variant)

        (own, column), seed = losses(self.variant, self.steps), run.plan.seed
        against = {
            other.name: own.change(column, *losses(other, steps), seed)
            for other, steps in self.others
        }
        return {"rows": own.rows(column, seed), "signatures": {}, "against": against}


@dataclass(frozen=True)
class Measure(Step, stage="evaluate", names="measure/{0.variant.name}"):
    """What removal saves in weights, on disk (where saved), in memory and key/value cache, and its dev loss."""

    VERSION = 3  # the bytes of the key/value cache

    variant: Variant

    def needs(self, run: Run) -> list[Step]:
        return [model_step(self.variant)]

    def inputs(self, run: Run) -> dict[str, Any]:
        return {"dev": run.fingerprint("dev")}

    def make(self, run: Run, work: Path) -> Result:
        model, found = model_of(run, self.variant), dict[str, Any]()
        if run.translates:
            dev = Encoded(run.pairs("dev"), model.tokenizer, model.task.longest)
            with loss_forward(model.hf):
                found["dev_loss"] = dev_loss(model.hf, dev, model.tokenizer, 4096)
        found["parameters"] = model.parameters
        saved = (
            run.folder
            / ("model" if self.variant == FULL else f"pruned/{self.variant.name}")
            / WEIGHTS
        )
        if saved.exists():
            found["bytes"] = saved.stat().st_size
        return {**found, "memory": model.weight_bytes, "cache_bytes": model.cache_bytes}

    def seconds(self, run: Run, estimate: Estimate) -> float:
        return estimate.reading(estimate.dev)


@dataclass(frozen=True)
class MeasureSpeed(Step, stage="evaluate", names="speed", exclusive=True):
    """Tokens per second of decoding (median, least, most), by name."""

    variants: tuple[Variant, ...]

    last = True
    follows = ("choose", "save")

    def needs(self, run: Run) -> list[Step]:
        return [model_step(variant) for variant in self.variants]

    def inputs(self, run: Run) -> dict[str, Any]:
        plan = run.plan
        return {
            "dev": run.fingerprint("dev"),
            "speed": plan.speed.model_dump(),
            "search": plan.search.model_dump(),
        }

    def make(self, run: Run, work: Path) -> Result:
        plan = run.plan
        sentences = list(run.pairs("dev").sources)[: plan.speed.sentences]
        engine = plan.search.engine
        writers = {
            variant.name: model_of(run, variant).translator(engine) for variant in self.variants
        }
        return {
            **speeds(
                writers, sentences, plan.search, plan.speed.tokens, plan.speed.rounds, run.progress
            )
        }
