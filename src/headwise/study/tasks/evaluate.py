"""What the models are worth: translations and their quality, or perplexity; size; speed; and the choice on dev."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from headwise.data.lines import read_lines
from headwise.decoding.bleu import corpus_scores, paired_difference
from headwise.decoding.translator import speeds, translate
from headwise.engines.ct2_writer import writer_of
from headwise.evaluation.losses import Losses
from headwise.heads import HeadMask, write_text
from headwise.model import Model
from headwise.model_files import WEIGHTS
from headwise.study.estimate import BOOTSTRAP, Estimate
from headwise.study.run import Run, Spec, Split, Task
from headwise.study.store import MADE, Result
from headwise.study.tasks.prune import model_of, model_task, prune_task
from headwise.study.tasks.train import full_model
from headwise.study.variants import FULL, Variant
from headwise.training.batches import Encoded
from headwise.training.loss_forward import dev_loss, loss_forward


@dataclass(frozen=True)
class Translate(Task, stage="evaluate", names="translate/{0.split}/{0.variant.name}"):
    """A split in one model's translation, with sources and references beside it, in translations/."""

    split: Split
    variant: Variant

    def spec(self, run: Run) -> Spec:
        inputs = {
            "text": partial(run.fingerprint, self.split),
            "search": run.plan.search.model_dump(),
        }
        outputs = [
            f"translations/{self.split}/{name}.txt"
            for name in (self.variant.name, "source", "reference")
        ]
        return Spec([model_task(self.variant)], inputs, outputs)

    def make(self, run: Run, work: Path) -> Result:
        model, text, folder = (
            model_of(run, self.variant),
            run.pairs(self.split),
            work / MADE / "translations",
        )
        search = run.plan.search
        lines, cost = translate(
            writer_of(model, search.engine), list(text.sources), search, run.progress
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
class Evaluate(Task, stage="evaluate", names="evaluate/{0.split}/{0.variant.name}"):
    """BLEU and chrF of a model's translations, and its paired BLEU differences to those of `others`.

    The result: `rows` of (measure, value, low, high), `signatures`, and `against`: (value, low, high, p) by name.
    """

    split: Split
    variant: Variant
    others: tuple[Variant, ...] = ()

    def spec(self, run: Run) -> Spec:
        return Spec([Translate(self.split, variant) for variant in (self.variant, *self.others)])

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
class MeasureLosses(Task, stage="evaluate", names="losses/{0.split}/{0.order}"):
    """The loss of every sentence under all steps of a greedy order, or one model, for those that do not translate."""

    split: Split
    steps: tuple[
        Variant, ...
    ]  # of one order, or one variant without; none: of the full model alone

    @property
    def order(self) -> str:
        first = self.steps[0] if self.steps else FULL
        return first.order.name if first.order else first.name

    def spec(self, run: Run) -> Spec:
        needs = [model_task(variant) for variant in (FULL, *self.steps)]
        return Spec(needs, {"text": partial(run.fingerprint, self.split)}, [f"{self.name}.npz"])

    def make(self, run: Run, work: Path) -> Result:
        masks = [run.mask(variant) for variant in self.steps]

        def cut(mask: HeadMask) -> Model:
            return model_of(run, self.steps[masks.index(mask)])

        own = any(prune_task(variant).has_weights(run) for variant in self.steps)
        text = full_model(run).task.batches(run.text(self.split), run.progress)
        losses = Losses.measure(text, masks, cut if own else None)
        file = work / MADE / f"{self.name}.npz"
        file.parent.mkdir(parents=True, exist_ok=True)
        np.savez_compressed(file, summed=losses.summed, tokens=losses.tokens)
        return {}

    def seconds(self, run: Run, estimate: Estimate) -> float:
        return (1 + len(self.steps)) * estimate.reading(estimate.dev)


@dataclass(frozen=True)
class EvaluatePerplexity(Task, stage="evaluate", names="evaluate/{0.split}/{0.variant.name}"):
    """Loss, perplexity, its change against the full model, and against `others`. The result has the form of
    `Evaluate`'s; changes are in %."""

    split: Split
    variant: Variant
    steps: tuple[Variant, ...] = ()  # of the variant's order, or it alone
    others: tuple[tuple[Variant, tuple[Variant, ...]], ...] = ()  # each with its own steps

    def spec(self, run: Run) -> Spec:
        measured = [
            MeasureLosses(self.split, steps)
            for steps in (self.steps, *(steps for _, steps in self.others))
        ]
        return Spec([*measured, model_task(self.variant)], {"seed": run.plan.seed})

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
class Measure(Task, stage="evaluate", names="measure/{0.variant.name}"):
    """What removal saves in weights, on disk (where saved), in memory and key/value cache, and its dev loss."""

    VERSION = 3  # the bytes of the key/value cache

    variant: Variant

    def spec(self, run: Run) -> Spec:
        return Spec([model_task(self.variant)], {"dev": run.fingerprint("dev")})

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
class MeasureSpeed(Task, stage="evaluate", names="speed", exclusive=True):
    """Tokens per second of decoding (median, least, most), by name."""

    variants: tuple[Variant, ...]

    def spec(self, run: Run) -> Spec:
        plan = run.plan
        inputs = {
            "dev": run.fingerprint("dev"),
            "speed": plan.speed.model_dump(),
            "search": plan.search.model_dump(),
        }
        return Spec([model_task(variant) for variant in self.variants], inputs)

    def make(self, run: Run, work: Path) -> Result:
        plan = run.plan
        sentences = list(run.pairs("dev").sources)[: plan.speed.sentences]
        engine = plan.search.engine
        writers = {
            variant.name: writer_of(model_of(run, variant), engine) for variant in self.variants
        }
        return {
            **speeds(
                writers, sentences, plan.search, plan.speed.tokens, plan.speed.rounds, run.progress
            )
        }


HALF = 0.5  # share of undecided gates from which on a model is no result


@dataclass(frozen=True)
class Choose(Task, stage="evaluate", names="choose"):
    """The variant with the fewest heads that loses at most `max_drop` on dev.

    A model of whose gates at least half were undecided is never chosen: other heads might have stayed, had it trained
    longer. The exception is a target count without a limit: that model was asked for. `unsettled`: names left out.
    """

    VERSION = 3

    candidates: tuple[Evaluate | EvaluatePerplexity, ...]  # the full model's first

    def spec(self, run: Run) -> Spec:
        return Spec(self.candidates, run.plan.choice.model_dump())

    def make(self, run: Run, work: Path) -> Result:
        return self.choice(run)

    def choice(self, run: Run) -> Result:
        """The choice among the candidates that are evaluated by now."""
        limit, results = (
            run.plan.choice.limit,
            {task.variant: run.result(task) for task in self.candidates},
        )
        dev = {
            variant.name: dev_quality(result["rows"])
            for variant, result in results.items()
            if result
        }
        kept = {variant.name: len(run.mask(variant)) for variant in results if variant.name in dev}
        made = {
            variant.name: run.result(model_task(variant)) or {}
            for variant in results
            if variant.name in dev
        }
        wanted = {variant.name for variant in results if limit is None and variant.keep is not None}
        unsettled = [
            name for name in dev if made[name].get("undecided", 0.0) >= HALF and name not in wanted
        ]
        candidates = {name: value for name, value in dev.items() if name not in unsettled}
        chosen = choose(candidates, kept, limit) if FULL.name in dev else None
        return {"chosen": chosen, "max_drop": limit, "unsettled": unsettled}


def dev_quality(rows: Sequence[Sequence[Any]]) -> float:
    """What choices compare, the more the better: BLEU, or the change of perplexity in %, negated."""
    values = {row[0]: float(row[1]) for row in rows}
    return values["bleu"] if "bleu" in values else -values.get("perplexity_change", 0.0)


def choose(dev: Mapping[str, float], kept: Mapping[str, int], max_drop: float | None) -> str | None:
    """The name with the fewest heads of those that lose at most `max_drop` on dev (None: any loss); None when all lose
    more."""
    good = [
        s
        for s in dev
        if s != FULL.name and (max_drop is None or dev[s] >= dev[FULL.name] - max_drop)
    ]
    return min(good, key=lambda s: (kept[s], -dev[s]), default=None)


@dataclass(frozen=True)
class SaveChosen(Task, stage="evaluate", names="save"):
    """The weights of a chosen model that was cut without training, so it was not saved yet."""

    variant: Variant

    def spec(self, run: Run) -> Spec:
        return Spec([model_task(self.variant)], outputs=[f"pruned/{self.variant.name}"])

    def make(self, run: Run, work: Path) -> Result:
        model_of(run, self.variant).save(work / MADE / "pruned" / self.variant.name)
        return {}
