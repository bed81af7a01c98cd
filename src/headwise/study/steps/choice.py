"""The choice on dev of one smaller model, and its weights."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headwise.files import below
from headwise.study.records import MADE, Result
from headwise.study.run import Run
from headwise.study.step import Step
from headwise.study.steps.evaluations import Evaluate
from headwise.study.steps.smaller_models import model_of, model_step
from headwise.study.variants import FULL, Variant

HALF = 0.5  # share of undecided gates from which on a model is no result


@dataclass(frozen=True)
class Choose(Step, stage="evaluate", names="choose"):
    """The variant with the fewest heads that loses at most `max_drop` on dev.

    A model of whose gates at least half were undecided is never chosen: other heads might have stayed, had it trained
    longer. The exception is a target count without a limit: that model was asked for. `unsettled`: names left out.
    """

    VERSION = 3

    candidates: tuple[Evaluate, ...]  # the full model's first

    last = True
    follows = ("evaluate/dev/",)

    def needs(self, run: Run) -> list[Step]:
        return [*self.candidates]

    def inputs(self, run: Run) -> dict[str, Any]:
        return run.plan.choice.model_dump()

    def make(self, run: Run, work: Path) -> Result:
        return self.choice(run)

    def choice(self, run: Run) -> Result:
        """The choice among the candidates that are evaluated by now."""
        limit = run.plan.choice.limit
        quality: dict[str, float] = {}
        kept: dict[str, int] = {}
        unsettled: list[str] = []
        for step in self.candidates:
            variant, result = step.variant, run.result(step)
            if not result:
                continue
            facts = run.result(model_step(variant)) or {}
            asked_for = limit is None and variant.keep is not None
            if facts.get("undecided", 0.0) >= HALF and not asked_for:
                unsettled.append(variant.name)
                continue
            quality[variant.name] = run.quality.worth(result["rows"])
            kept[variant.name] = len(run.mask(variant))
        chosen = choose_smallest(quality, kept, limit) if FULL.name in quality else None
        return {"chosen": chosen, "max_drop": limit, "unsettled": unsettled}


def choose_smallest(
    dev: Mapping[str, float], kept: Mapping[str, int], max_drop: float | None
) -> str | None:
    """The name with the fewest heads of those that lose at most `max_drop` on dev (None: any loss); None when all lose
    more."""
    least = -math.inf if max_drop is None else dev[FULL.name] - max_drop
    good = [name for name in dev if name != FULL.name and dev[name] >= least]
    return min(good, key=lambda name: (kept[name], -dev[name]), default=None)


@dataclass(frozen=True)
class SaveChosen(Step, stage="evaluate", names="save"):
    """The weights of a chosen model that was cut without training, so it was not saved yet."""

    variant: Variant

    def needs(self, run: Run) -> list[Step]:
        return [model_step(self.variant)]

    def outputs(self, run: Run) -> list[str]:
        return [f"pruned/{self.variant.name}"]

    def make(self, run: Run, work: Path) -> Result:
        model_of(run, self.variant).save(below(work / MADE / "pruned", self.variant.name))
        return {}
