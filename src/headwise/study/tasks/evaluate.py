"""What the models are worth: translations and their quality, or perplexity; size; speed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from headwise.api.batches import Batches, max_tokens
from headwise.api.greedy import Losses
from headwise.api.sweeps import GreedySweep
from headwise.data.lines import read_lines
from headwise.data.text import ParallelText
from headwise.heads import HeadMask, write_text
from headwise.model import WEIGHTS
from headwise.study.estimate import BOOTSTRAP, Estimate
from headwise.study.run import Run, Split, Task
from headwise.study.store import MADE, Result
from headwise.study.tasks.prune import model_of, model_task
from headwise.study.tasks.train import full_model
from headwise.study.variants import FULL, Variant
from headwise.translation.batches import Encoded
from headwise.translation.decode import translate
from headwise.translation.quality import difference, quality
from headwise.translation.train import dev_loss, loss_forward


@dataclass(frozen=True)
class Translate(Task):
    """A split in one model's translation, with sources and references beside it, in translations/."""

    stage: ClassVar[str] = "evaluate"
    split: Split
    variant: Variant

    @property
    def name(self) -> str:
        return f"translate/{self.split}/{self.variant.name}"

    def needs(self, run: Run) -> Sequence[Task]:
        return [model_task(self.variant)]

    def inputs(self, run: Run) -> Mapping[str, Any]:
        return {"text": run.fingerprint(self.split), "search": run.plan.search.model_dump()}

    def outputs(self, run: Run) -> Sequence[str]:
        return [f"translations/{self.split}/{name}.txt" for name in (self.variant.name, "source", "reference")]

    def make(self, run: Run, work: Path) -> Result:
        model, text, folder = (
            model_of(run, self.variant),
            run.text(self.split),
            work / MADE / "translations" / self.split,
        )
        assert isinstance(text, ParallelText)
        lines, cost = translate(model.hf, model.tokenizer, list(text.sources), run.plan.search, run.progress)
        for name, side in ((self.variant.name, lines), ("source", text.sources), ("reference", text.targets)):
            write_lines(folder / f"{name}.txt", side)
        return cost

    def seconds(self, run: Run, estimate: Estimate) -> float:
        return estimate.translating(estimate.dev)


def write_lines(path: Path, lines: Iterable[str]) -> None:
    """A sentence a line; what would end a line inside a sentence becomes a blank."""
    write_text(path, "".join(" ".join(line.splitlines()) + "\n" for line in lines))


@dataclass(frozen=True)
class Evaluate(Task):
    """BLEU and chrF of a model's translations, and its paired BLEU differences to those of `others`.

    The result: `rows` of (measure, value, low, high), `signatures`, and `against`: (value, low, high, p) by name.
    """

    stage: ClassVar[str] = "evaluate"
    split: Split
    variant: Variant
    others: tuple[Variant, ...] = ()

    @property
    def name(self) -> str:
        return f"evaluate/{self.split}/{self.variant.name}"

    def needs(self, run: Run) -> Sequence[Task]:
        return [Translate(self.split, variant) for variant in (self.variant, *self.others)]

    def make(self, run: Run, work: Path) -> Result:
        def lines(name: str) -> list[str]:
            return list(read_lines(run.folder / "translations" / self.split / f"{name}.txt"))

        ours, references = lines(self.variant.name), lines("reference")
        found = quality(ours, references)
        changes = {other.name: difference(ours, lines(other.name), references) for other in self.others}
        return {
            "rows": [(score.name, score.value, score.low, score.high) for score in found],
            "signatures": {f"{score.name}_signature": score.signature for score in found},
            "against": {other: (d.value, d.low, d.high, d.p) for other, d in changes.items()},
        }

    def seconds(self, run: Run, estimate: Estimate) -> float:
        return BOOTSTRAP


@dataclass(frozen=True)
class MeasureLosses(Task):
    """The loss of every sentence under all steps of a greedy order, for models that do not translate."""

    stage: ClassVar[str] = "evaluate"
    split: Split
    variants: tuple[Variant, ...]  # of one order; none: of the full model alone

    @property
    def name(self) -> str:
        order = self.variants[0].order if self.variants else None
        return f"losses/{self.split}/{order.name if order else FULL.name}"

    def needs(self, run: Run) -> Sequence[Task]:
        return [model_task(variant) for variant in (FULL, *self.variants)]

    def inputs(self, run: Run) -> Mapping[str, Any]:
        return {"text": run.fingerprint(self.split)}

    def outputs(self, run: Run) -> Sequence[str]:
        return [f"{self.name}.npz"]

    def make(self, run: Run, work: Path) -> Result:
        model, masks = full_model(run), [run.mask(variant) for variant in self.variants]
        sweep = run.sweep(self.variants[0]) if self.variants else None
        by_mask = dict(zip(masks, self.variants, strict=True))

        def cut(mask: HeadMask) -> Any:
            return model_of(run, by_mask[mask])

        compensated = isinstance(sweep, GreedySweep) and sweep.compensate
        text = Batches(model, run.text(self.split), run.progress)
        losses = Losses.measure(text, masks, cut if compensated else None)
        file = work / MADE / f"{self.name}.npz"
        file.parent.mkdir(parents=True, exist_ok=True)
        np.savez_compressed(file, summed=losses.summed, tokens=losses.tokens)
        return {}

    def seconds(self, run: Run, estimate: Estimate) -> float:
        return (1 + len(self.variants)) * estimate.reading(estimate.dev)


@dataclass(frozen=True)
class EvaluatePerplexity(Task):
    """Loss, perplexity and its change against the full model. The result has the form of `Evaluate`'s."""

    stage: ClassVar[str] = "evaluate"
    split: Split
    variant: Variant
    order: tuple[Variant, ...] = ()  # all steps of the variant's order

    @property
    def name(self) -> str:
        return f"evaluate/{self.split}/{self.variant.name}"

    def needs(self, run: Run) -> Sequence[Task]:
        return [MeasureLosses(self.split, self.order)]

    def inputs(self, run: Run) -> Mapping[str, Any]:
        return {"seed": run.plan.seed}

    def make(self, run: Run, work: Path) -> Result:
        (needed,) = self.needs(run)
        with np.load(run.folder / f"{needed.name}.npz") as arrays:
            losses = Losses(arrays["summed"], arrays["tokens"])
        column = (FULL, *self.order).index(self.variant)
        return {"rows": losses.rows(column, run.plan.seed), "signatures": {}, "against": {}}


@dataclass(frozen=True)
class Measure(Task):
    """What removal saves in weights, on disk (where the model is saved) and memory, and what it costs in dev loss."""

    stage: ClassVar[str] = "evaluate"
    variant: Variant

    @property
    def name(self) -> str:
        return f"measure/{self.variant.name}"

    def needs(self, run: Run) -> Sequence[Task]:
        return [model_task(self.variant)]

    def inputs(self, run: Run) -> Mapping[str, Any]:
        return {"dev": run.fingerprint("dev")}

    def make(self, run: Run, work: Path) -> Result:
        model = model_of(run, self.variant)
        found: Result = {}
        if isinstance(run.dev_text, ParallelText):
            dev = Encoded(run.dev_text, model.tokenizer, max_tokens(model))
            with loss_forward(model.hf):
                found["dev_loss"] = dev_loss(model.hf, dev, model.tokenizer, 4096)
        found["parameters"] = model.parameters
        saved = run.folder / ("model" if self.variant == FULL else f"pruned/{self.variant.name}") / WEIGHTS
        if saved.exists():
            found["bytes"] = saved.stat().st_size
        return {**found, "memory": sum(p.numel() * p.element_size() for p in model.hf.parameters())}

    def seconds(self, run: Run, estimate: Estimate) -> float:
        return estimate.reading(estimate.dev)


@dataclass(frozen=True)
class MeasureSpeed(Task):
    """Tokens per second of decoding (median, least, most), by name: all models write equally many tokens for the same
    sentences, in turn, a few rounds, so that a noisy machine and longer translations affect all alike."""

    stage: ClassVar[str] = "evaluate"
    exclusive: ClassVar[bool] = True
    variants: tuple[Variant, ...]

    @property
    def name(self) -> str:
        return "speed"

    def needs(self, run: Run) -> Sequence[Task]:
        return [model_task(variant) for variant in self.variants]

    def inputs(self, run: Run) -> Mapping[str, Any]:
        plan = run.plan
        return {"dev": run.fingerprint("dev"), "speed": plan.speed.model_dump(), "search": plan.search.model_dump()}

    def make(self, run: Run, work: Path) -> Result:
        plan = run.plan
        assert isinstance(run.dev_text, ParallelText)
        sentences = list(run.dev_text.sources)[: plan.speed.sentences]
        models = {variant.name: model_of(run, variant) for variant in self.variants}
        rates: dict[str, list[float]] = {name: [] for name in models}
        for turn in range(plan.speed.rounds):
            in_turn = list(models.items())[:: -1 if turn % 2 else 1]  # no model always goes first
            for i, (name, model) in enumerate(in_turn):
                cost = translate(model.hf, model.tokenizer, sentences, plan.search, exactly=plan.speed.tokens)[1]
                rates[name].append(cost["tokens_per_second"])
                run.progress((turn + (i + 1) / len(models)) / plan.speed.rounds, name)
        return {name: [float(np.median(values)), min(values), max(values)] for name, values in rates.items()}
