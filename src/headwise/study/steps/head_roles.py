"""What every head does, tested on treebanks: of the full model, and again of pruned ones, with their scores."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd

from headwise.attention import is_offloaded
from headwise.data.text import ParallelText
from headwise.files import below
from headwise.heads import HeadMask, Site, save_table
from headwise.importance.measurement import run_passes
from headwise.importance.scores import collect_scores
from headwise.model import Model
from headwise.roles.role import UNTRAINED, fingerprints
from headwise.roles.role_tests import (
    Roles,
    RoleTexts,
    counted,
    find_roles,
    roles,
    sentences_read,
    signature,
    token_counts,
)
from headwise.study.estimate import Estimate
from headwise.study.records import MADE, Result
from headwise.study.run import Run
from headwise.study.step import Step
from headwise.study.steps.full_model import FULL_MODEL, full_model
from headwise.study.steps.smaller_models import model_of, prune_step
from headwise.study.variants import Variant


@dataclass(frozen=True)
class FindRoles(Step, stage="roles", names="roles", once=True):
    """The tables of roles/, where the plan names a treebank or takes the embedded corpus, with their controls."""

    VERSION = 2  # more roles of language models

    def needs(self, run: Run) -> list[Step]:
        return [FULL_MODEL]

    def inputs(self, run: Run) -> dict[str, Any]:
        return {**role_inputs(run), "twins": run.scoring.untrained}

    def outputs(self, run: Run) -> list[str]:
        return ["roles"]

    def make(self, run: Run, work: Path) -> Result:
        assert run.treebanks is not None
        treebank, confirm = run.treebanks
        model = full_model(run)
        found = roles(
            model,
            treebank,
            confirm=confirm,
            pairs=tested_pairs(run),
            training=run.text("train"),
            untrained=0 if is_offloaded(model.hf) else run.scoring.untrained,
            seed=run.plan.seed,
            progress=run.progress,
        )
        found.save(work / MADE / "roles")
        for warning in found.warnings:
            run.progress.say(f"  {warning}")
        held = (
            found.controls[found.controls["found"] == 1] if len(found.controls) else found.controls
        )
        twins = [name for name in held.get("control", []) if name.startswith(UNTRAINED)]
        return {
            "roles": len(found.roles),
            "heads": heads_in(found.roles),
            "tested": len(found.labels),
            "untrained": {
                name: heads_in(held[held["control"] == name]) for name in dict.fromkeys(twins)
            },
            "twins": run.scoring.untrained if len(found.controls) else 0,
        }


def heads_in(table: pd.DataFrame) -> int:
    """How many heads a table is about."""
    return len(table[["kind", "layer", "head"]].drop_duplicates())


def role_inputs(run: Run) -> dict[str, Any]:
    """What roles are made from, beside the model."""
    assert run.treebanks is not None
    treebank, confirm = run.treebanks
    declared = fingerprints()
    return {
        **({"declared": declared} if declared else {}),
        "roles": run.plan.roles.model_dump(),
        "dev": run.fingerprint("dev"),
        "train": run.fingerprint("train"),
        "treebank": treebank.fingerprint,
        "confirm": confirm.fingerprint if confirm else "the other half",
        "seed": run.plan.seed,
    }


def tested_pairs(run: Run) -> ParallelText | None:
    """The dev pairs that cross attention is tested on: as many as the plan says."""
    return run.pairs("dev").head(run.plan.roles.pairs) if run.plan.roles.pairs else None


def tested_again(run: Run, model: Model, mask: HeadMask) -> Roles:
    """The roles of a pruned model, without examples and controls, heads under the numbers of the full model."""
    assert run.treebanks is not None
    treebank, confirm = run.treebanks
    counts = token_counts(full_model(run), run.text("train"))
    texts = RoleTexts.of(model, treebank, confirm, tested_pairs(run), counts)
    total = sentences_read(treebank, confirm, texts.pairs, untrained=0)
    found = find_roles(model, texts, run.plan.seed, counted(total, run.progress))
    made = signature(model, treebank, confirm, run.plan.seed) | {"heads": mask.heads.to_json()}
    return replace(
        found,
        table=numbered(found.table, mask),
        roles=numbered(found.roles, mask),
        labels=numbered(found.labels, mask),
        signature=made,
    )


@dataclass(frozen=True)
class Rescore(Step, stage="evaluate", names="rescored/{0.variant.name}", shared=True):
    """Scores and roles of a pruned model, in rescored/SETTING/: functions may have moved to other heads. Heads have the
    numbers of the full model."""

    variant: Variant
    VERSION = 2

    def needs(self, run: Run) -> list[Step]:
        return [prune_step(self.variant)]

    def inputs(self, run: Run) -> dict[str, Any]:
        return {
            "measures": run.scoring.pruned,
            "dev": run.fingerprint("dev"),
            "seed": run.plan.seed,
            "roles": role_inputs(run) if run.treebanks else None,
        }

    def outputs(self, run: Run) -> list[str]:
        return [self.name]

    def make(self, run: Run, work: Path) -> Result:
        measures, seed = run.scoring.pruned, run.plan.seed
        model = model_of(run, self.variant)
        mask = run.mask(self.variant)
        folder = below(work / MADE, self.name)
        folder.mkdir(parents=True, exist_ok=True)
        if measures and len(mask):
            text = model.task.batches(run.text("dev"))
            passes = run_passes(model, text, measures, seed, run.progress)
            scores = collect_scores(model, text, measures, passes, seed)
            signature = scores.signature | {"heads": mask.heads.to_json()}
            if run.main:
                save_table(numbered(scores.table, mask), signature, folder / "heads.csv")
        if run.main and run.treebanks and mask.count("encoder-self"):
            tested_again(run, model, mask).save(folder / "roles")
        return {"heads": len(mask)}

    def seconds(self, run: Run, estimate: Estimate) -> float:
        return estimate.scoring(run.scoring.pruned)


def numbered(table: pd.DataFrame, mask: HeadMask) -> pd.DataFrame:
    """The table with the heads of a pruned model under the numbers they had in the whole one."""
    places = zip(table["kind"], table["layer"], table["head"], strict=True)
    return table.assign(head=[mask.of(Site(kind, layer))[head] for kind, layer, head in places])
