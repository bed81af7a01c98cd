"""The choice on dev, and the chosen model's weights where it has none of its own yet."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from headwise.study.run import Run, Task
from headwise.study.store import MADE, Result
from headwise.study.tasks.evaluate import Evaluate, EvaluatePerplexity
from headwise.study.tasks.prune import model_of, model_task
from headwise.study.variants import FULL, Variant

DevEvaluation = Evaluate | EvaluatePerplexity


@dataclass(frozen=True)
class Choose(Task):
    """The variant with the fewest heads that loses at most `max_drop` on dev."""

    stage: ClassVar[str] = "evaluate"
    candidates: tuple[DevEvaluation, ...]  # the full model's first

    @property
    def name(self) -> str:
        return "choose"

    def needs(self, run: Run) -> Sequence[Task]:
        return self.candidates

    def inputs(self, run: Run) -> Mapping[str, Any]:
        return run.plan.choice.model_dump()

    def make(self, run: Run, work: Path) -> Result:
        return {"chosen": choice(run, self.candidates), "max_drop": run.plan.choice.limit}


def choice(run: Run, candidates: Sequence[DevEvaluation]) -> str | None:
    """The choice among candidates that are evaluated by now; None without the full model, or when all lose too much."""
    results = {task.variant: found for task in candidates if (found := run.result(task))}
    if FULL not in results:
        return None
    dev = {variant.name: dev_quality(result["rows"]) for variant, result in results.items()}
    return choose(dev, {variant.name: len(run.mask(variant)) for variant in results}, run.plan.choice.limit)


def dev_quality(rows: Sequence[Sequence[Any]]) -> float:
    """What choices compare, the more the better: BLEU, or the change of perplexity in %, negated."""
    values = {row[0]: float(row[1]) for row in rows}
    return values["bleu"] if "bleu" in values else -values.get("perplexity_change", 0.0)


def choose(dev: Mapping[str, float], kept: Mapping[str, int], max_drop: float | None) -> str | None:
    """The name with the fewest heads of those that lose at most `max_drop` on dev (None: any loss); None when all lose
    more."""
    good = [s for s in dev if s != FULL.name and (max_drop is None or dev[s] >= dev[FULL.name] - max_drop)]
    return min(good, key=lambda s: (kept[s], -dev[s]), default=None)


@dataclass(frozen=True)
class SaveChosen(Task):
    """The weights of a chosen model that was cut without training, so it was not saved yet."""

    stage: ClassVar[str] = "evaluate"
    variant: Variant

    @property
    def name(self) -> str:
        return "save"

    def needs(self, run: Run) -> Sequence[Task]:
        return [model_task(self.variant)]

    def outputs(self, run: Run) -> Sequence[str]:
        return [f"pruned/{self.variant.name}"]

    def make(self, run: Run, work: Path) -> Result:
        model_of(run, self.variant).save(work / MADE / "pruned" / self.variant.name)
        return {}
