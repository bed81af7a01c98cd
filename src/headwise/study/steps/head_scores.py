"""What every head of the full model is worth: a step for every pass over the dev text, the control, the table, pairs
of heads, the judge."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
from accelerate.utils import gather_object

from headwise.attention import is_offloaded
from headwise.errors import HeadwiseError
from headwise.heads import save_table, write_text
from headwise.importance.faithfulness import faithfulness
from headwise.importance.interactions import COLUMNS as PAIR_COLUMNS
from headwise.importance.interactions import LEAST, interactions
from headwise.importance.interactions import Interactions as Pairs
from headwise.importance.measurement import (
    Measurement,
    refuse_unscorable,
    run_pass,
)
from headwise.importance.measures import facts, passes
from headwise.importance.processes import failing_together
from headwise.importance.scores import collect_scores, relevance_line, relevance_table
from headwise.importance.sums import SCALES, SentenceSums
from headwise.importance.untrained import SENTENCES, score_untrained
from headwise.study.estimate import Estimate
from headwise.study.records import MADE, Result
from headwise.study.run import Run
from headwise.study.step import Step
from headwise.study.steps.full_model import FULL_MODEL, full_model


@dataclass(frozen=True)
class ScorePass(Step, stage="score", names="scores/{0.label}", shared=True, once=True):
    """The measures of one pass, sentence by sentence, in scores/LABEL/."""

    label: str
    measures: tuple[str, ...]
    VERSION = 2

    def needs(self, run: Run) -> list[Step]:
        return [FULL_MODEL]

    def inputs(self, run: Run) -> dict[str, Any]:
        inputs = {"measures": self.measures, "dev": run.fingerprint("dev"), "seed": run.plan.seed}
        versions = {name: facts(name).version for name in self.measures if facts(name).version > 1}
        return {**inputs, "versions": versions} if versions else inputs

    def outputs(self, run: Run) -> list[str]:
        return [self.name]

    def make(self, run: Run, work: Path) -> Result:
        model, folder = full_model(run), work / MADE / self.name
        text = model.task.batches(run.text("dev"), run.progress)
        refuse_unscorable(model, self.measures, text)
        with failing_together():
            scores = run_pass(model, text, list(self.measures), run.plan.seed, run.progress)
            for sums in scores.sums.values():
                sums.gather()
        folder.mkdir(parents=True, exist_ok=True)
        every = gather_object([[*scores.sums]])
        if any(
            names != every[0] for names in every
        ):  # else they would wait for each other for ever, or mix measures
            raise HeadwiseError(
                f"{self.name}: the processes left out different measures: run it in one process."
            )
        for name, sums in scores.sums.items():
            if run.main:
                sums.save(folder / f"{name}.npz")
        for label, balance in scores.balances.items():
            run.progress.say(relevance_line(label, balance))
        return {"measures": list(scores.sums), "rows": scores.rows, "balances": scores.balances}

    def seconds(self, run: Run, estimate: Estimate) -> float:
        return estimate.scoring(self.measures)


def score_passes(run: Run) -> list[ScorePass]:
    return [ScorePass(label, tuple(names)) for label, names in passes(run.scoring.measures).items()]


def read_scores(run: Run) -> Measurement:
    """All passes from their files."""
    scores, heads = Measurement(), run.heads
    assert heads is not None
    for step in score_passes(run):
        result = run.get_or_make(step)
        for name in result["measures"]:
            scores.sums[name] = SentenceSums.read(
                run.folder / step.name / f"{name}.npz", heads, SCALES.get(facts(name).scale)
            )
        scores.rows += result["rows"]
        scores.balances |= result["balances"]
        scores.seconds[step.label] = run.store.record(step.name)["seconds"]
    return scores


@dataclass(frozen=True)
class ScoreUntrained(Step, stage="score", names="untrained", shared=True, once=True):
    """untrained.csv: the scores of the model's untrained controls."""

    def needs(self, run: Run) -> list[Step]:
        return [FULL_MODEL]

    def inputs(self, run: Run) -> dict[str, Any]:
        scoring = run.scoring
        return {
            "measures": scoring.measures,
            "twins": scoring.untrained,
            "dev": run.fingerprint("dev"),
            "seed": run.plan.seed,
        }

    def outputs(self, run: Run) -> list[str]:
        return ["untrained.csv"]

    def make(self, run: Run, work: Path) -> Result:
        scoring, model = run.scoring, full_model(run)
        offloaded = is_offloaded(model.hf)
        if offloaded:
            run.progress.say(
                "  No untrained control: weights of this model are offloaded, and there is no memory for more."
            )
        count = 0 if offloaded else scoring.untrained
        found = score_untrained(
            model, run.text("dev"), scoring.measures, count, run.plan.seed, run.progress
        )
        if run.main:
            write_text(
                work / MADE / "untrained.csv", found.to_csv(index=False, float_format="%.6g")
            )
        return {"twins": count}

    def seconds(self, run: Run, estimate: Estimate) -> float:
        names = [name for name in run.scoring.measures if not facts(name).expensive]
        share = min(1.0, SENTENCES / max(1, estimate.dev.pairs))
        return run.scoring.untrained * share * estimate.scoring(names)


@dataclass(frozen=True)
class Score(Step, stage="score", names="score", once=True):
    """heads.csv, its signature, and lrp.csv."""

    def needs(self, run: Run) -> list[Step]:
        controls = [ScoreUntrained()] if run.scoring.untrained else []
        return [*score_passes(run), *controls]

    def outputs(self, run: Run) -> list[str]:
        return ["heads.csv", "heads.json", "lrp.csv"]

    def make(self, run: Run, work: Path) -> Result:
        model = full_model(run)
        scoring = run.scoring
        controls = pd.read_csv(run.folder / "untrained.csv") if scoring.untrained else None
        text = model.task.batches(run.text("dev"))
        scores = collect_scores(
            model, text, scoring.measures, read_scores(run), run.plan.seed, controls
        )
        save_table(scores.table, scores.signature, work / MADE / "heads.csv")
        relevance = relevance_table(scores.relevance)
        write_text(work / MADE / "lrp.csv", relevance.to_csv(index=False, float_format="%.6g"))
        return {"left_out": text.left_out} if text.left_out else {}


@dataclass(frozen=True)
class MeasureInteractions(Step, stage="score", names="interactions", shared=True, once=True):
    """interactions.csv: what pairs of heads cost together, beyond what they cost alone."""

    def needs(self, run: Run) -> list[Step]:
        return [FULL_MODEL]

    def inputs(self, run: Run) -> dict[str, Any]:
        return {
            "pairs": run.scoring.pairs,
            "dev": run.fingerprint("dev"),
            "seed": run.plan.seed,
        }

    def outputs(self, run: Run) -> list[str]:
        return ["interactions.csv", "interactions.json"]

    def make(self, run: Run, work: Path) -> Result:
        pairs, model, text = run.scoring.pairs, full_model(run), run.text("dev")
        if len(text) < LEAST:
            run.progress.say(f"  No pairs of heads: the dev text has fewer than {LEAST} sentences.")
            found = Pairs(pd.DataFrame(columns=list(PAIR_COLUMNS)), {"sentences": 0})
        else:
            found = interactions(model, text, pairs, seed=run.plan.seed, progress=run.progress)
        if run.main:
            found.save(work / MADE)
        return {
            "screened": len(found.table),
            "measured": len(found.measured),
            "same": int((found.measured["low"] > 0).sum()),
            "together": int((found.measured["high"] < 0).sum()),
        }

    def seconds(self, run: Run, estimate: Estimate) -> float:
        return estimate.pairing(run.scoring.pairs)


@dataclass(frozen=True)
class Judge(Step, stage="score", names="judge", shared=True, once=True):
    """Which score to believe: faithfulness.csv and curves.csv."""

    VERSION = 2  # the areas CPR and CMD

    def needs(self, run: Run) -> list[Step]:
        return [*score_passes(run)]

    def inputs(self, run: Run) -> dict[str, Any]:
        return {"random_orders": run.scoring.random_orders}

    def outputs(self, run: Run) -> list[str]:
        return ["faithfulness.csv", "curves.csv"]

    def make(self, run: Run, work: Path) -> Result:
        model = full_model(run)
        text = model.task.batches(run.text("dev"), run.progress)
        collected = read_scores(run).sums
        judged = faithfulness(model, text, collected, run.scoring.random_orders, run.plan.seed)
        for table, name in ((judged.agreement, "faithfulness"), (judged.curves, "curves")):
            if run.main:
                write_text(
                    work / MADE / f"{name}.csv", table.to_csv(index=False, float_format="%.6g")
                )
        return {}

    def seconds(self, run: Run, estimate: Estimate) -> float:
        return estimate.judging(run.scoring.measures, run.scoring.random_orders)
