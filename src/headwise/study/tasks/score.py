"""What every head of the full model is worth: a task for every pass over the dev text, the table, the judge."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from headwise.api.batches import Batches
from headwise.api.scoring import (
    SCALES,
    Scores,
    balance_line,
    balance_table,
    judge,
    passes,
    refuse_unscorable,
    run_pass,
    table_of_scores,
)
from headwise.heads import save_scores, write_text
from headwise.importance.tally import Tally
from headwise.study.estimate import Estimate
from headwise.study.run import Run, Task
from headwise.study.store import MADE, Result
from headwise.study.tasks.train import FULL_MODEL, full_model


@dataclass(frozen=True)
class ScorePass(Task):
    """The measures of one pass, sentence by sentence, in scores/LABEL/."""

    stage: ClassVar[str] = "score"
    shared: ClassVar[bool] = True
    label: str
    measures: tuple[str, ...]

    @property
    def name(self) -> str:
        return f"scores/{self.label}"

    def needs(self, run: Run) -> Sequence[Task]:
        return [FULL_MODEL]

    def inputs(self, run: Run) -> Mapping[str, Any]:
        return {"measures": self.measures, "dev": run.fingerprint("dev"), "seed": run.plan.seed}

    def outputs(self, run: Run) -> Sequence[str]:
        return [self.name]

    def make(self, run: Run, work: Path) -> Result:
        model, folder = full_model(run), work / MADE / self.name
        refuse_unscorable(model, [self.label])
        text = Batches(model, run.dev_text, run.progress)
        scores = run_pass(model, text, self.label, list(self.measures), run.plan.seed)
        folder.mkdir(parents=True, exist_ok=True)
        for name, tally in scores.tallies.items():
            tally.gather()
            if run.main:
                tally.save(folder / f"{name}.npz")
        for label, balance in scores.balances.items():
            run.progress.say(balance_line(label, balance))
        return {"measures": list(scores.tallies), "rows": scores.rows, "balances": scores.balances}

    def seconds(self, run: Run, estimate: Estimate) -> float:
        return estimate.scoring(self.measures)


def score_passes(run: Run) -> list[ScorePass]:
    return [ScorePass(label, tuple(names)) for label, names in passes(run.plan.scoring.measures).items()]


def read_scores(run: Run) -> Scores:
    """All passes from their files."""
    scores, heads = Scores(), run.heads
    for task in score_passes(run):
        result = run.need(task)
        for name in result["measures"]:
            assert heads is not None
            scores.tallies[name] = Tally.read(run.folder / task.name / f"{name}.npz", heads, SCALES.get(name))
        scores.rows += result["rows"]
        scores.balances |= result["balances"]
        scores.seconds[task.label] = run.store.record(task.name)["seconds"]
    return scores


@dataclass(frozen=True)
class Score(Task):
    """heads.csv, its signature, and lrp.csv."""

    stage: ClassVar[str] = "score"

    @property
    def name(self) -> str:
        return "score"

    def needs(self, run: Run) -> Sequence[Task]:
        return score_passes(run)

    def outputs(self, run: Run) -> Sequence[str]:
        return ["heads.csv", "heads.json", "lrp.csv"]

    def make(self, run: Run, work: Path) -> Result:
        model, scores = full_model(run), read_scores(run)
        table = table_of_scores(
            model, Batches(model, run.dev_text), run.plan.scoring.measures, scores, run.plan.seed
        )  # fmt: skip
        save_scores(table, work / MADE / "heads.csv")
        write_text(work / MADE / "lrp.csv", balance_table(scores.balances).to_csv(index=False, float_format="%.6g"))
        return {}


@dataclass(frozen=True)
class Judge(Task):
    """Which score to believe: faithfulness.csv and curves.csv."""

    stage: ClassVar[str] = "score"
    shared: ClassVar[bool] = True

    @property
    def name(self) -> str:
        return "judge"

    def needs(self, run: Run) -> Sequence[Task]:
        return score_passes(run)

    def inputs(self, run: Run) -> Mapping[str, Any]:
        return {"random_orders": run.plan.scoring.random_orders}

    def outputs(self, run: Run) -> Sequence[str]:
        return ["faithfulness.csv", "curves.csv"]

    def make(self, run: Run, work: Path) -> Result:
        model = full_model(run)
        text, tallies = Batches(model, run.dev_text, run.progress), read_scores(run).tallies
        verdict = judge(model, text, tallies, run.plan.scoring.random_orders, run.plan.seed)
        if run.main:
            for table, name in ((verdict.faithfulness, "faithfulness"), (verdict.curves, "curves")):
                write_text(work / MADE / f"{name}.csv", table.to_csv(index=False, float_format="%.6g"))
        return {}

    def seconds(self, run: Run, estimate: Estimate) -> float:
        return estimate.judging(run.plan.scoring.measures, run.plan.scoring.random_orders)
