"""What every head of the full model does, tested on treebanks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from headwise.api.roles import role_examples, roles, roles_signature, save_roles, token_counts
from headwise.data.text import ParallelText
from headwise.model import Model
from headwise.roles.table import Roles
from headwise.study.run import Run, Task
from headwise.study.store import MADE, Result
from headwise.study.tasks.train import FULL_MODEL, full_model


@dataclass(frozen=True)
class FindRoles(Task):
    """The tables of roles/, where the plan names a treebank or takes the embedded corpus."""

    stage: ClassVar[str] = "roles"

    @property
    def name(self) -> str:
        return "roles"

    def needs(self, run: Run) -> Sequence[Task]:
        return [FULL_MODEL]

    def inputs(self, run: Run) -> Mapping[str, Any]:
        return role_inputs(run)

    def outputs(self, run: Run) -> Sequence[str]:
        return ["roles"]

    def make(self, run: Run, work: Path) -> Result:
        assert run.treebanks is not None
        model, (treebank, confirm) = full_model(run), run.treebanks
        counts = token_counts(model, run.train_text)
        found = tested(run, model, counts)
        signature = roles_signature(model, treebank, confirm, run.plan.seed)
        save_roles(found, role_examples(model, treebank, found, counts), signature, work / MADE / "roles")
        for warning in found.warnings:
            run.progress.say(f"  {warning}")
        return {"roles": len(found.roles)}


def role_inputs(run: Run) -> dict[str, Any]:
    """What roles are made from, beside the model."""
    assert run.treebanks is not None
    treebank, confirm = run.treebanks
    return {
        "roles": run.plan.roles.model_dump(), "dev": run.fingerprint("dev"), "train": run.fingerprint("train"),
        "treebank": treebank.fingerprint, "confirm": confirm.fingerprint if confirm else "the other half",
        "seed": run.plan.seed,
    }  # fmt: skip


def tested(run: Run, model: Model, counts: Mapping[int, int] | None) -> Roles:
    """The roles of a model of the run; cross attention on as many dev pairs as the plan says."""
    assert run.treebanks is not None
    treebank, confirm = run.treebanks
    done, total = 0, len(treebank) + len(confirm or ())

    def progress(sentences: int) -> None:
        nonlocal done
        done += sentences
        run.progress(min(1.0, done / total), "")

    pairs = run.plan.roles.pairs
    some = run.dev_text.head(pairs) if pairs and isinstance(run.dev_text, ParallelText) else None
    return roles(model, treebank, confirm, some, counts, run.plan.seed, progress)
