"""What the models are worth: what they answer and its quality, their size, their speed."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headwise.data.lines import read_lines
from headwise.decoding.translator import speeds, translate
from headwise.evaluation.answers import Answers, LossesOfOne, Translations
from headwise.evaluation.losses import Losses
from headwise.heads import HeadMask, write_text
from headwise.model import Model
from headwise.model_files import WEIGHTS
from headwise.study.estimate import BOOTSTRAP, Estimate
from headwise.study.records import MADE, Result
from headwise.study.run import Run, Split
from headwise.study.step import Step
from headwise.study.steps.full_model import full_model
from headwise.study.steps.smaller_models import model_of, model_step, prune_step
from headwise.study.variants import FULL, Variant
from headwise.training.loss_forward import dev_loss, loss_forward
from headwise.training.token_batches import Encoded


@dataclass(frozen=True)
class Answer(Step, ABC, stage="evaluate", names=""):
    """What models answer on a split: translations, or the losses of sentences."""

    split: Split

    @property
    def follows(self) -> tuple[str, ...]:
        return ("choose",) if self.split == "test" else ()

    @property
    def last(self) -> bool:
        return self.split == "test" or super().last

    @abstractmethod
    def read(self, run: Run, variant: Variant) -> Answers:
        """The answers of one model, from the files."""


@dataclass(frozen=True)
class Translate(Answer, names="translate/{0.split}/{0.variant.name}"):
    """A split in one model's translation, with sources and references beside it, in translations/."""

    variant: Variant

    def needs(self, run: Run) -> list[Step]:
        return [model_step(self.variant)]

    def inputs(self, run: Run) -> dict[str, Any]:
        return {"text": run.fingerprint(self.split), "search": run.plan.search.model_dump()}

    def outputs(self, run: Run) -> list[str]:
        return [self.file(name) for name in (self.variant.name, "source", "reference")]

    def file(self, name: str) -> str:
        return f"translations/{self.split}/{name}.txt"

    def make(self, run: Run, work: Path) -> Result:
        model = model_of(run, self.variant)
        text = run.pairs(self.split)
        search = run.plan.search
        translator = model.translator(search.engine)
        lines, cost = translate(translator, list(text.sources), search, run.progress)
        sides = {self.variant.name: lines, "source": text.sources, "reference": text.targets}
        for name, side in sides.items():
            one_a_line = (" ".join(line.splitlines()) for line in side)
            content = "".join(f"{line}\n" for line in one_a_line)
            write_text(work / MADE / self.file(name), content)
        return cost

    def read(self, run: Run, variant: Variant) -> Translations:
        lines = list(read_lines(run.folder / self.file(variant.name)))
        references = list(read_lines(run.folder / self.file("reference")))
        return Translations(lines, references)

    def seconds(self, run: Run, estimate: Estimate) -> float:
        return estimate.translating(estimate.dev)


@dataclass(frozen=True)
class MeasureLosses(Answer, names="losses/{0.split}/{0.order}"):
    """The loss of every sentence under all models of a greedy order, or under one model, in losses/."""

    VERSION = 2  # long documents are read in windows

    variants: tuple[Variant, ...]  # of one order, or one without; none: the full model alone

    @property
    def order(self) -> str:
        first = self.variants[0] if self.variants else FULL
        return first.order.name if first.order else first.name

    def needs(self, run: Run) -> list[Step]:
        return [model_step(variant) for variant in (FULL, *self.variants)]

    def inputs(self, run: Run) -> dict[str, Any]:
        return {"text": run.fingerprint(self.split)}

    def outputs(self, run: Run) -> list[str]:
        return [f"{self.name}.npz"]

    def make(self, run: Run, work: Path) -> Result:
        masks = [run.mask(variant) for variant in self.variants]

        def cut(mask: HeadMask) -> Model:
            return model_of(run, self.variants[masks.index(mask)])

        own = any(prune_step(variant).has_weights(run) for variant in self.variants)
        text = full_model(run).task.quality_batches(run.text(self.split), run.progress)
        losses = Losses.measure(text, masks, cut if own else None)
        losses.save(work / MADE / f"{self.name}.npz")
        return {}

    def read(self, run: Run, variant: Variant) -> LossesOfOne:
        losses = Losses.read(run.folder / f"{self.name}.npz")
        return LossesOfOne(losses, (FULL, *self.variants).index(variant))

    def seconds(self, run: Run, estimate: Estimate) -> float:
        return (1 + len(self.variants)) * estimate.reading(estimate.dev)


@dataclass(frozen=True)
class Evaluate(Step, stage="evaluate", names="evaluate/{0.split}/{0.variant.name}"):
    """The quality of a model's answers, and its paired differences to those of others.

    others: the models that it is compared with, and the steps that have their answers. The result: `rows` of (measure,
    value, low, high), `signatures`, and `against`: (value, low, high, p) by name.
    """

    split: Split
    variant: Variant
    answer: Answer
    others: tuple[tuple[Variant, Answer], ...] = ()

    @property
    def last(self) -> bool:
        return self.split == "test" or super().last

    def needs(self, run: Run) -> list[Step]:
        return [self.answer, *(answer for _, answer in self.others)]

    def inputs(self, run: Run) -> dict[str, Any]:
        return {"seed": run.plan.seed}

    def make(self, run: Run, work: Path) -> Result:
        seed = run.plan.seed
        own = self.answer.read(run, self.variant)
        against = {}
        for other, answer in self.others:
            against[other.name] = own.difference(answer.read(run, other), seed)
        return {"rows": own.rows(seed), "signatures": own.signatures(), "against": against}

    def seconds(self, run: Run, estimate: Estimate) -> float:
        return BOOTSTRAP if run.generates else 0.0


@dataclass(frozen=True)
class MeasureSavings(Step, stage="evaluate", names="measure/{0.variant.name}"):
    """What removal saves in weights, on disk (where saved), in memory and key/value cache, and its dev loss."""

    VERSION = 3  # the bytes of the key/value cache

    variant: Variant

    def needs(self, run: Run) -> list[Step]:
        return [model_step(self.variant)]

    def inputs(self, run: Run) -> dict[str, Any]:
        return {"dev": run.fingerprint("dev")}

    def make(self, run: Run, work: Path) -> Result:
        model = model_of(run, self.variant)
        facts: dict[str, Any] = {}
        if run.generates:
            dev = Encoded(run.pairs("dev"), model.tokenizer, model.task.longest)
            with loss_forward(model.hf):
                facts["dev_loss"] = dev_loss(model.hf, dev, model.tokenizer, 4096)
        facts["parameters"] = model.parameters

        folder = "model" if self.variant == FULL else f"pruned/{self.variant.name}"
        weights = run.folder / folder / WEIGHTS
        if weights.exists():
            facts["bytes"] = weights.stat().st_size
        return {**facts, "memory": model.weight_bytes, "cache_bytes": model.cache_bytes}

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
        search, speed = run.plan.search, run.plan.speed
        sentences = list(run.pairs("dev").sources)[: speed.sentences]
        translators = {}
        for variant in self.variants:
            translators[variant.name] = model_of(run, variant).translator(search.engine)
        rates = speeds(translators, sentences, search, speed.tokens, speed.rounds, run.progress)
        return {**rates}
