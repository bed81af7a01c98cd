"""After pruning: the heads that are left, scored and tested for roles again. Functions may have moved."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pandas as pd

from headwise.api.batches import Batches
from headwise.api.roles import roles_signature, save_roles, token_counts
from headwise.api.scoring import score_all, table_of_scores
from headwise.heads import HeadMask, Site, save_scores
from headwise.study.estimate import Estimate
from headwise.study.run import Run, Task
from headwise.study.store import MADE, Result
from headwise.study.tasks.prune import model_of, prune_task
from headwise.study.tasks.roles import role_inputs, tested
from headwise.study.tasks.train import full_model
from headwise.study.variants import Variant


@dataclass(frozen=True)
class Rescore(Task):
    """Scores and roles of a pruned model, in rescored/SETTING/; heads have the numbers of the full model."""

    stage: ClassVar[str] = "evaluate"
    shared: ClassVar[bool] = True
    variant: Variant

    @property
    def name(self) -> str:
        return f"rescored/{self.variant.name}"

    def needs(self, run: Run) -> Sequence[Task]:
        return [prune_task(self.variant)]

    def inputs(self, run: Run) -> Mapping[str, Any]:
        return {"measures": run.plan.scoring.pruned, "dev": run.fingerprint("dev"), "seed": run.plan.seed,
                "roles": role_inputs(run) if run.treebanks else None}  # fmt: skip

    def outputs(self, run: Run) -> Sequence[str]:
        return [self.name]

    def make(self, run: Run, work: Path) -> Result:
        measures, seed = run.plan.scoring.pruned, run.plan.seed
        model, mask, folder = model_of(run, self.variant), run.mask(self.variant), work / MADE / self.name
        folder.mkdir(parents=True, exist_ok=True)
        if measures and len(mask):
            text = Batches(model, run.dev_text)
            table = table_of_scores(model, text, measures, score_all(model, text, measures, seed, run.progress), seed)
            table.attrs["signature"]["heads"] = mask.heads.to_json()
            if run.main:
                save_scores(numbered(table, mask), folder / "heads.csv")
        if run.main and run.treebanks and mask.count("encoder-self"):
            found = tested(run, model, token_counts(full_model(run), run.train_text))
            signature = roles_signature(model, *run.treebanks, seed) | {"heads": mask.heads.to_json()}
            for name in ("table", "roles", "labels"):
                setattr(found, name, numbered(getattr(found, name), mask))
            save_roles(found, [], signature, folder / "roles")
        return {"heads": len(mask)}

    def seconds(self, run: Run, estimate: Estimate) -> float:
        return estimate.scoring(run.plan.scoring.pruned)


def numbered(table: pd.DataFrame, mask: HeadMask) -> pd.DataFrame:
    """The table with the heads of a pruned model under the numbers they had in the whole one."""
    out = table.copy()
    out["head"] = [
        mask.of(Site(kind, layer))[head]
        for kind, layer, head in zip(table["kind"], table["layer"], table["head"], strict=True)
    ]
    return out
