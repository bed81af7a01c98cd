"""The steps that look at heads: how important each head of the full model is, what it does, and both again for pruned
models."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd
from accelerate.utils import gather_object

from headwise.core.errors import HeadwiseError
from headwise.core.folders import Folder, below, write_text
from headwise.core.heads import Site
from headwise.core.layout import HeadMask
from headwise.core.tables import (
    CURVES,
    FAITHFULNESS,
    INTERACTIONS,
    LRP,
    SCORES,
    UNTRAINED_SCORES,
    WORDS,
    Table,
)
from headwise.data.text import ParallelText
from headwise.importance.faithfulness import faithfulness, work_of_judge
from headwise.importance.finished_passes import read_sums, write_sums
from headwise.importance.interactions import (
    FEWEST_SENTENCES,
    Interactions,
    interactions,
    work_of_pairs,
)
from headwise.importance.measurement import Measurement
from headwise.importance.measures import facts, passes
from headwise.importance.passes import refuse_unscorable, run_pass, run_passes
from headwise.importance.scores import collect_scores, relevance_line, relevance_table
from headwise.importance.untrained import score_untrained, work_of_controls
from headwise.models.attention.offload import is_offloaded
from headwise.models.environment import signature_of
from headwise.models.model import Model
from headwise.models.processes import failing_together
from headwise.models.tasks.batches import Batches
from headwise.models.tasks.objective import vocabulary_of
from headwise.roles.lost_words import (
    FEWEST,
    SENTENCES,
    LostWords,
    Said,
    lost_words,
    said_words,
    words_lost,
    work_of_words,
)
from headwise.roles.observation import subject_of
from headwise.roles.role import UNTRAINED, fingerprints
from headwise.roles.role_data import token_counts
from headwise.roles.role_tests import Roles, find_roles, role_data, roles, share_of_words
from headwise.study.model_steps import OneModelStep, full_model, model_of
from headwise.study.records import STAGING, StepResult
from headwise.study.run_context import RunContext
from headwise.study.step import Step
from headwise.study.variants import Variant

SILENT = "ablation.zero"  # the measure whose forwards say the words that are lost, too
SAID = "said.jsonl"  # of such a pass: what each sentence loses without each head
TESTED = 3.0  # forwards over the dev text that tests of roles take as long as


@dataclass(frozen=True)
class ScorePass(
    OneModelStep,
    stage="score",
    name_format="scores/{0.label}",
    distributed=True,
    late_in_other_runs=True,
    writes=["{0.name}"],
):
    """The measures of one pass, sentence by sentence, in scores/LABEL/."""

    label: str
    measures: tuple[str, ...]
    VERSION = 4  # the mean at a position is that of other sentences; hidden tokens by content

    def inputs(self, run: RunContext) -> dict[str, Any]:
        inputs = {"measures": self.measures, **run.seed_and("dev")}
        # Only where it is above 1, so that results of measures that never changed keep their key.
        versions = {name: facts(name).version for name in self.measures if facts(name).version > 1}
        return {**inputs, "versions": versions} if versions else inputs

    def forwards(self, run: RunContext) -> float:
        work = run.workload
        return work.sentences * work.of_measures(self.measures)

    def make(self, run: RunContext, work: Path) -> StepResult:
        model, folder = full_model(run), below(work / STAGING, self.name)
        text = model.task.batches(run.text("dev"), run.progress)
        refuse_unscorable(model, self.measures, text)
        with failing_together():
            scores, said = self.measured(run, model, text)
            scores.gather(text)
        # Processes with different measures would wait for each other for ever, or mix measures.
        every = gather_object([[*scores.sums]])
        if any(names != every[0] for names in every):
            raise HeadwiseError(
                f"{self.name}: the processes left out different measures: run it in one process."
            )
        if run.main:
            write_sums(folder, scores.sums)
            if said:
                lines = [json.dumps(one.to_json()) + "\n" for one in said]
                write_text(below(folder, SAID), "".join(lines))
        for label, balance in scores.balances.items():
            run.progress.say(relevance_line(label, balance))
        return {"measures": list(scores.sums), "rows": scores.rows, "balances": scores.balances}

    def measured(
        self, run: RunContext, model: Model, text: Batches
    ) -> tuple[Measurement, list[Said]]:
        """The measures; and, where the plan looks for words and the text is as short as they take, what each sentence loses
        without each head, of the forwards of `ablation.zero`."""
        names = list(self.measures)
        few = FEWEST <= len(text.data) <= SENTENCES
        # Without words of its own a model fails in `FindWords`, and keeps its scores.
        says = bool(vocabulary_of(model.hf)) and run.plan.roles.words
        if not (says and few and SILENT in names):
            return run_pass(model, text, names, run.plan.seed), []
        said, silent = said_words(model, text)
        others = [name for name in names if name != SILENT]
        scores = run_pass(model, text, others, run.plan.seed) if others else Measurement()
        every = {**scores.sums, SILENT: silent}
        scores.sums = {name: every[name] for name in names if name in every}
        return scores, said

    def said(self, run: RunContext, model: Model) -> list[Said]:
        """What each sentence loses without each head, where this pass wrote it."""
        file = below(run.folder, f"{self.name}/{SAID}")
        if not (self.is_done(run) and file.exists()):
            return []
        lines = file.read_text(encoding="utf-8").splitlines()
        return [Said.from_json(json.loads(line), model.heads.total) for line in lines]


def score_passes(run: RunContext) -> list[ScorePass]:
    """A step for every pass over the dev text that the measures need."""
    steps = []
    for label, names in passes(run.measures).items():
        steps.append(ScorePass(label, tuple(names)))
    return steps


def read_scores(run: RunContext) -> Measurement:
    """All passes from their files."""
    scores = Measurement()
    heads = run.heads
    assert heads is not None
    for step in score_passes(run):
        # Read from the store; made now where it is not there.
        result = step.get_or_make(run)
        scores.sums |= read_sums(below(run.folder, step.name), result["measures"], heads)
        scores.rows += result["rows"]
        scores.balances |= result["balances"]
        scores.seconds[step.label] = run.store.record(step.name)["seconds"]
    return scores


def write_csv(table: Table, rows: pd.DataFrame, work: Path) -> None:
    """A table as an output of a step."""
    write_text(below(work / STAGING, table.file), table.csv(rows))


@dataclass(frozen=True)
class ScoreUntrained(
    OneModelStep,
    stage="score",
    name_format="untrained",
    distributed=True,
    late_in_other_runs=True,
    writes=["untrained.csv"],
):
    """untrained.csv: the scores of the model's untrained controls."""

    VERSION = 3  # hidden tokens by content

    def inputs(self, run: RunContext) -> dict[str, Any]:
        scoring = run.scoring
        return {
            "measures": run.measures,
            "untrained": scoring.untrained,
            **run.seed_and("dev"),
        }

    def forwards(self, run: RunContext) -> float:
        work = run.workload
        scoring = run.scoring
        return work.sentences * work_of_controls(work, run.measures, scoring.untrained)

    def make(self, run: RunContext, work: Path) -> StepResult:
        scoring = run.scoring
        model = full_model(run)
        offloaded = is_offloaded(model.hf)
        if offloaded:
            run.progress.say(
                "  No untrained control: weights of this model are offloaded, and there is no memory for more."
            )
        count = 0 if offloaded else scoring.untrained
        found = score_untrained(
            model, run.text("dev"), run.measures, count, run.plan.seed, run.progress
        )
        if run.main:
            write_csv(UNTRAINED_SCORES, found, work)
        return {"untrained_models": count}


@dataclass(frozen=True)
class Score(
    Step,
    stage="score",
    name_format="score",
    late_in_other_runs=True,
    writes=["heads.csv", "heads.json", "lrp.csv"],
):
    """heads.csv, its signature, and lrp.csv."""

    VERSION = 2  # units of intervals

    def dependencies(self, run: RunContext) -> list[Step]:
        # Shares of relevance are compared with those of untrained heads.
        controls = [ScoreUntrained()] if run.scoring.untrained else []
        return [*score_passes(run), *controls]

    def make(self, run: RunContext, work: Path) -> StepResult:
        model = full_model(run)
        scoring = run.scoring
        controls = (
            UNTRAINED_SCORES.read(below(run.folder, UNTRAINED_SCORES.file))
            if scoring.untrained
            else None
        )
        text = model.task.batches(run.text("dev"))
        scores = collect_scores(
            model, text, run.measures, read_scores(run), run.plan.seed, controls
        )
        SCORES.save(scores.table, scores.signature, work / STAGING)
        write_csv(LRP, relevance_table(scores.relevance), work)
        return {"left_out": text.left_out} if text.left_out else {}


@dataclass(frozen=True)
class MeasureInteractions(
    OneModelStep,
    stage="score",
    name_format="interactions",
    distributed=True,
    late_in_other_runs=True,
    writes=Interactions.FILES,
):
    """interactions.csv: what pairs of heads cost together, beyond what they cost alone."""

    VERSION = 4  # accelerated percentiles

    def inputs(self, run: RunContext) -> dict[str, Any]:
        return {"pairs": run.scoring.interactions, **run.seed_and("dev")}

    def forwards(self, run: RunContext) -> float:
        work = run.workload
        return work.sentences * work_of_pairs(work, run.scoring.interactions)

    def make(self, run: RunContext, work: Path) -> StepResult:
        pairs = run.scoring.interactions
        model = full_model(run)
        text = run.text("dev")
        if len(text) < FEWEST_SENTENCES:
            run.progress.say(
                f"  No pairs of heads: the dev text has fewer than {FEWEST_SENTENCES} sentences."
            )
            # An empty table, not an error: a study of hours goes on.
            found = Interactions(INTERACTIONS.of(), {"sentences": 0})
        else:
            found = interactions(model, text, pairs, seed=run.plan.seed, progress=run.progress)
        if run.main:
            Folder(work / STAGING).put(found.files())
        return {
            "screened": len(found.table),
            "measured": len(found.measured),
            "redundant": int((found.measured["low"] > 0).sum()),
            "synergistic": int((found.measured["high"] < 0).sum()),
        }


@dataclass(frozen=True)
class Judge(
    Step,
    stage="score",
    name_format="judge",
    distributed=True,
    late_in_other_runs=True,
    writes=["faithfulness.csv", "curves.csv"],
):
    """Which score to believe: faithfulness.csv and curves.csv."""

    VERSION = 3  # accelerated percentiles

    def dependencies(self, run: RunContext) -> list[ScorePass]:
        return score_passes(run)

    def inputs(self, run: RunContext) -> dict[str, Any]:
        return {"random_orders": run.scoring.random_orders}

    def forwards(self, run: RunContext) -> float:
        work = run.workload
        scoring = run.scoring
        judged = work_of_judge(work, run.measures, scoring.random_orders)
        return work.sentences * sum(judged.values())

    def make(self, run: RunContext, work: Path) -> StepResult:
        model = full_model(run)
        text = model.task.batches(run.text("dev"), run.progress)
        collected = read_scores(run).sums
        judged = faithfulness(model, text, collected, run.scoring.random_orders, run.plan.seed)
        if run.main:
            for table, rows in zip((FAITHFULNESS, CURVES), judged, strict=True):
                write_csv(table, rows, work)
        return {}


@dataclass(frozen=True)
class FindRoles(
    OneModelStep, stage="roles", name_format="roles", late_in_other_runs=True, writes=["roles"]
):
    """The tables of roles/, where the plan names a treebank or recordings or takes the embedded corpus, with their
    controls."""

    VERSION = 5  # copy suppression, weight on words, exact shares

    def inputs(self, run: RunContext) -> dict[str, Any]:
        return {**role_inputs(run), "untrained": run.scoring.untrained}

    def forwards(self, run: RunContext) -> float:
        return run.workload.sentences * TESTED * (1 + run.scoring.untrained)

    def make(self, run: RunContext, work: Path) -> StepResult:
        assert run.role_texts is not None
        text, confirm = run.role_texts
        model = full_model(run)
        found = roles(
            model,
            text,
            confirm=confirm,
            pairs=tested_pairs(run),
            # Rare tokens are counted in text, and recordings have none.
            training=None if run.task.reads_audio else run.text("train"),
            untrained=0 if is_offloaded(model.hf) else run.scoring.untrained,
            seed=run.plan.seed,
            progress=run.progress,
        )
        Folder(work / STAGING / "roles").put(found.files())
        for warning in found.warnings:
            run.progress.say(f"  {warning}")
        return {
            "roles": len(found.roles),
            "heads": heads_of_table(found.roles),
            "tested": len(found.labels),
            "untrained": heads_in_untrained(found.controls),
            "untrained_models": run.scoring.untrained if len(found.controls) else 0,
        }


@dataclass(frozen=True)
class FindWords(
    OneModelStep,
    stage="roles",
    name_format="words",
    distributed=True,
    late_in_other_runs=True,
    writes=LostWords.FILES,
):
    """words.csv: the words that the model no longer says without a head. A pass of `ablation.zero` may have found them."""

    def inputs(self, run: RunContext) -> dict[str, Any]:
        return run.seed_and("dev")

    def forwards(self, run: RunContext) -> float:
        work = run.workload
        # Else the pass that silences each head finds the words.
        apart = SILENT not in run.measures or work.sentences > SENTENCES
        return work_of_words(work.heads, work.sentences) if apart else 0.0

    def make(self, run: RunContext, work: Path) -> StepResult:
        text = run.text("dev")
        model = full_model(run)
        if len(text) < FEWEST:
            run.progress.say(
                f"  No words of heads: the dev text has fewer than {FEWEST} sentences."
            )
            found = LostWords(WORDS.of(), {"sentences": 0})
        else:
            said = [one for step in score_passes(run) for one in step.said(run, model)]
            if said:
                documents = model.task.batches(text).documents
                found = words_lost(model, text, said, documents, run.plan.seed, run.progress)
            else:
                found = lost_words(model, text, seed=run.plan.seed, progress=run.progress)
            for line in found.lines():
                run.progress.say(line)
        if run.main:
            Folder(work / STAGING).put(found.files())
        return {"words": len(found.confirmed), "heads": heads_of_table(found.confirmed)}


def heads_of_table(table: pd.DataFrame) -> int:
    """How many heads a table is about."""
    return len(table[["kind", "layer", "head"]].drop_duplicates())


def heads_in_untrained(controls: pd.DataFrame) -> dict[str, int]:
    """In how many heads of each randomly initialised model a role was found, by its name."""
    heads: dict[str, int] = {}
    if not len(controls):
        return heads
    found = controls[controls["found"] == 1]
    for name, table in found.groupby("control", sort=False):
        if str(name).startswith(UNTRAINED):
            heads[str(name)] = heads_of_table(table)
    return heads


def role_inputs(run: RunContext) -> dict[str, Any]:
    """What roles are made from, beside the model."""
    assert run.role_texts is not None
    text, confirm = run.role_texts
    inputs = {
        "roles": run.plan.roles.model_dump(),
        "treebank": text.fingerprint,
        "confirm": confirm.fingerprint if confirm else "the other half",
        **run.seed_and("train", "dev"),
    }
    # Only where there are any: without the user's own roles, results made before there were such stay.
    declared = fingerprints(run.task.reads_audio)
    return {**inputs, "declared": declared} if declared else inputs


def tested_pairs(run: RunContext) -> ParallelText | None:
    """The dev pairs that cross attention is tested on: as many as the plan says."""
    return run.pairs("dev").head(run.plan.roles.pairs) if run.plan.roles.pairs else None


def tested_again(run: RunContext, model: Model, mask: HeadMask) -> Roles:
    """The roles of a pruned model, without examples and controls, heads under the numbers of the full model."""
    assert run.treebanks is not None
    treebank, confirm = run.treebanks
    # Its tokenizer is the full model's. To ask for that model here would be a step, and one process alone would wait.
    # Which words are rare is counted on the training text.
    counts = token_counts(model, run.text("train"))
    data = role_data(model, treebank, confirm, tested_pairs(run), counts)
    total = data.all_words(subject_of(model))
    found = find_roles(model, data, run.plan.seed, share_of_words(total, run.progress))
    signature = signature_of(model, **data.facts(), seed=run.plan.seed, heads=mask.heads.to_json())
    tables: dict[str, Any] = {}
    for name in ("table", "roles", "labels", "causal"):
        # Else head 1 of a layer that lost head 0 would be called head 0.
        tables[name] = numbered(getattr(found, name), mask)
    return replace(found, **tables, signature=signature)


@dataclass(frozen=True)
class Rescore(
    OneModelStep,
    stage="evaluate",
    name_format="rescored/{0.variant.name}",
    distributed=True,
    writes=["{0.name}"],
):
    """Scores and roles of a pruned model, in rescored/SETTING/: functions may have moved to other heads. Heads have the
    numbers of the full model."""

    variant: Variant
    VERSION = 5  # the mean at a position is that of other sentences; hidden tokens by content

    def inputs(self, run: RunContext) -> dict[str, Any]:
        return {
            "measures": run.scoring.pruned,
            **run.seed_and("dev"),
            "roles": role_inputs(run) if run.treebanks else None,
        }

    def forwards(self, run: RunContext) -> float:
        work = run.workload
        return work.sentences * work.of_measures(run.scoring.pruned)

    def make(self, run: RunContext, work: Path) -> StepResult:
        measures = run.scoring.pruned
        seed = run.plan.seed
        model = model_of(run, self.variant)
        mask = run.mask(self.variant)
        folder = below(work / STAGING, self.name)
        folder.mkdir(parents=True, exist_ok=True)
        if measures and len(mask):
            text = model.task.batches(run.text("dev"))
            passes = run_passes(model, text, measures, seed, run.progress)
            scores = collect_scores(model, text, measures, passes, seed)
            signature = scores.signature | {"heads": mask.heads.to_json()}
            if run.main:
                SCORES.save(numbered(scores.table, mask), signature, folder)
        if run.main and run.treebanks and mask.count("encoder-self"):
            Folder(folder / "roles").put(tested_again(run, model, mask).files())
        return {"heads": len(mask)}


def numbered(table: pd.DataFrame, mask: HeadMask) -> pd.DataFrame:
    """The table with the heads of a pruned model under the numbers they had in the whole one."""
    places = zip(table["kind"], table["layer"], table["head"], strict=True)
    return table.assign(head=[mask.of(Site(kind, layer))[head] for kind, layer, head in places])
