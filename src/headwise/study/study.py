"""The whole story in order: train, score, prune, choose on dev, measure, read test once, write the tables, report."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pandas as pd
from accelerate import PartialState

from headwise.errors import HeadwiseError
from headwise.heads import HeadMask, write_text
from headwise.study import roles, stages
from headwise.study.plan import Plan, setting_name
from headwise.study.progress import Progress
from headwise.study.stage import opened, surroundings
from headwise.study.stages import FULL, Study
from headwise.translation.quality import difference, quality

STAGES = ("train", "score", "roles", "prune", "evaluate")
COLUMNS = ("method", "kinds", "setting", "seed", "kept", "total", "measure", "value", "low", "high")


def run_study(
    plan: Plan, out: str | Path, progress: Progress, only: str | None = None, device: str = "cpu",
    report: Callable[[Path], Path] | None = None,
) -> Path:  # fmt: skip
    """Run a plan in a folder; what is already there and unchanged is not made again. Returns the folder.

    only: stop after this stage (one of STAGES). report: called at the end with the folder. Of several processes
    (started by `torchrun` or `accelerate launch`) all train, score and prune; the main one does the rest.
    """
    if only is not None and only not in STAGES:
        raise HeadwiseError(f"--only {only} was asked for, but the stages are {', '.join(STAGES)}.")
    wanted = STAGES if only is None else STAGES[: STAGES.index(only) + 1]
    if not PartialState(cpu=device == "cpu").is_main_process:
        progress = Progress(quiet=True)
    progress.say(f"headwise: {plan.name} in {out}")
    with opened(out, progress) as run:
        study = Study(plan, run, device)
        if run.main:
            write_text(run.folder / "plan.toml", plan.to_toml())
        stages.train(study)
        if "score" in wanted:
            stages.score(study)
        if "roles" in wanted and run.main:
            with run.alone():
                roles.stage(study)
        if "prune" in wanted:
            results = {setting_name(penalty): stages.prune(study, penalty) for penalty in plan.pruning.penalties}
        if "evaluate" in wanted and run.main:
            with run.alone():
                evaluate(study, results)
        if run.main and only is not None:
            write_text(run.folder / "run.json", json.dumps(facts(study, None, {}, {}), indent=1) + "\n")
        if report and only in (None, "score", "roles") and run.main:
            with progress.stage("report"):
                report(run.folder)
    return Path(out)


def evaluate(study: Study, results: Mapping[str, Mapping[str, Any]]) -> None:
    """Dev scores, the choice, sizes, speed; then the test text, once; then pruning.csv and run.json."""
    plan, run = study.plan, study.run
    settings = [FULL, *results]
    masks = {name: HeadMask.read(run.folder / "layouts" / f"{name}.json") for name in results}
    masks[FULL] = HeadMask.full(study.full.heads)
    table = Table(plan, masks)
    dev = {setting: stages.translate_split(study, "dev", setting, study.dev_text) for setting in settings}
    table.add_quality(dev, list(study.dev_text.targets), "dev_")
    bleu = {row["setting"]: row["value"] for row in table.rows if row["measure"] == "dev_bleu"}
    chosen = choose(bleu, {setting: len(masks[setting]) for setting in settings}, plan.choice.max_drop)
    for setting in settings:
        for measure, value in stages.measure(study, setting).items():
            table.add(setting, measure, value)
    for setting, result in results.items():
        table.add(setting, "soft_dev_loss", result["soft_loss"])
        table.add(setting, "undecided_gates", result["undecided"])
    for setting, (rate, low, high) in stages.measure_speed(study, settings).items():
        table.add(setting, "tokens_per_second", rate, low, high)
    signatures = test(study, settings, table)
    write_text(run.folder / "pruning.csv", table.to_csv())
    notes = {setting: result["notes"] for setting, result in results.items()}
    write_text(run.folder / "run.json", json.dumps(facts(study, chosen, notes, signatures), indent=1) + "\n")


def choose(dev: Mapping[str, float], kept: Mapping[str, int], max_drop: float) -> str | None:
    """The setting with the fewest heads of those that lose at most `max_drop` BLEU on dev; None when all lose more."""
    good = [s for s in dev if s != FULL and dev[s] >= dev[FULL] - max_drop]
    return min(good, key=lambda s: (kept[s], -dev[s]), default=None)


def test(study: Study, settings: list[str], table: Table) -> dict[str, str]:
    """The one place where test text is read; without one, only dev numbers are reported."""
    if study.plan.data.embedded is None and study.plan.data.test is None:
        study.run.progress.say("  [data] names no test text: the report has dev numbers only.")
        return {}
    text = study.text("test")
    outputs = {setting: stages.translate_split(study, "test", setting, text) for setting in settings}
    return table.add_quality(outputs, list(text.targets))


class Table:
    """The rows of pruning.csv."""

    def __init__(self, plan: Plan, masks: Mapping[str, HeadMask]) -> None:
        self.plan, self.masks = plan, masks
        self.rows: list[dict[str, Any]] = []

    def add(
        self, setting: str, measure: str, value: float, low: float | None = None, high: float | None = None
    ) -> None:
        kinds, mask = self.plan.pruning.kinds, self.masks[setting]
        self.rows.append({
            "method": "none" if setting == FULL else "hard-concrete", "kinds": "+".join(kinds), "setting": setting,
            "seed": self.plan.seed, "kept": sum(mask.count(kind) for kind in kinds),
            "total": mask.heads.only(kinds).total, "measure": measure, "value": value, "low": low, "high": high,
        })  # fmt: skip

    def add_quality(self, outputs: Mapping[str, list[str]], references: list[str], prefix: str = "") -> dict[str, str]:
        """BLEU, chrF and the paired difference to the full model, for every setting; returns the signatures."""
        signatures = {}
        for setting, lines in outputs.items():
            for score in quality(lines, references):
                self.add(setting, prefix + score.name, score.value, score.low, score.high)
                signatures[f"{score.name}_signature"] = score.signature
            if setting != FULL:
                change = difference(lines, outputs[FULL], references)
                self.add(setting, f"{prefix}bleu_difference", change.value, change.low, change.high)
                self.add(setting, f"{prefix}p_value", change.p)
        return signatures

    def to_csv(self) -> str:
        return pd.DataFrame(self.rows, columns=list(COLUMNS)).to_csv(index=False, float_format="%.8g")


def facts(study: Study, chosen: str | None, notes: Mapping[str, Any], signatures: Mapping[str, str]) -> dict[str, Any]:
    """What run.json says: how every number of the run was made."""
    plan, made = study.plan, surroundings()
    signature = {
        "plan": plan.name, "seed": plan.seed, "model": study.made(FULL), "train": study.train_text.fingerprint,
        "dev": study.dev_text.fingerprint, "kinds": plan.pruning.kinds, "device": study.device,
        "machine": made["machine"],
    }  # fmt: skip
    return {
        "signature": signature, "versions": made["versions"], "threads": made["threads"], "seconds": study.run.seconds,
        "chosen": chosen, "max_drop": plan.choice.max_drop, "notes": notes, **signatures,
    }  # fmt: skip
