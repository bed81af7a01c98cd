"""The whole story in order: train, score, prune, choose on dev, measure, read test once, write the tables, report."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from headwise.errors import HeadwiseError
from headwise.heads import HeadMask, write_text
from headwise.study import stages
from headwise.study.plan import Plan
from headwise.study.progress import Progress
from headwise.study.stage import RunFolder, opened, surroundings
from headwise.study.stages import FULL, Study

STAGES = ("train", "score", "prune", "evaluate")


def run_study(plan: Plan, out: str | Path, progress: Progress, only: str | None = None, device: str = "cpu", report: Callable[[Path], Path] | None = None) -> Path:
    """Run a plan in a folder; what is already there and unchanged is not made again. Returns the folder.

    only: stop after this stage (train, score, prune, evaluate). report: called at the end with the folder.
    """
    if only is not None and only not in STAGES:
        raise HeadwiseError(f"--only {only} was asked for, but the stages are {', '.join(STAGES)}.")
    with opened(out, progress) as run:
        write_text(run.folder / "plan.toml", to_toml(plan.model_dump(exclude_none=True)))
        study = Study(plan, run, device)
        stages.train(study)
        if only != "train":
            stages.score(study)
        if only in (None, "prune", "evaluate"):
            names = [stages.setting_name(penalty) for penalty in plan.pruning.penalties]
            results = {name: stages.prune(study, penalty) for name, penalty in zip(names, plan.pruning.penalties, strict=True)}
            if only != "prune":
                evaluate(study, results)
        if report and only is None:
            with progress.stage("report"):
                report(run.folder)
    return Path(out)


def evaluate(study: Study, results: dict[str, Any]) -> None:
    """Dev scores, the choice, sizes, speed; then the test text, once; then pruning.csv and run.json."""
    plan, run = study.plan, study.run
    settings = [FULL, *results]
    masks = {name: HeadMask.read(run.folder / "layouts" / f"{name}.json") for name in results}
    masks[FULL] = HeadMask.full(study.full.heads)
    table = stages.Table(study, masks)
    dev = {s: stages.translate_split(study, "dev", s, study.dev_text) for s in settings}
    stages.add_quality(table, dev, list(study.dev_text.targets), "dev_")
    bleu = {row["setting"]: row["value"] for row in table.rows if row["measure"] == "dev_bleu"}
    kept = {s: len(masks[s]) for s in settings}
    chosen = stages.choose(bleu, kept, plan.choice.max_drop)
    for setting in settings:
        table.add(setting, "dev_loss", stages.mean_loss(study, setting))
        if setting != FULL:
            table.add(setting, "soft_dev_loss", results[setting]["soft_loss"])
            table.add(setting, "undecided_gates", results[setting]["undecided"])
        folder = run.folder / "model" if setting == FULL else run.folder / "pruned" / setting
        stages.add_size(table, setting, study.model(setting), folder)
    for setting, (rate, low, high) in stages.measure_speed(study, settings).items():
        table.add(setting, "tokens_per_second", rate, low, high)
    signatures = test(study, settings, table)
    table.save(run.folder / "pruning.csv")
    write_facts(run, study, chosen, {name: result["notes"] for name, result in results.items()}, signatures)


def test(study: Study, settings: list[str], table: stages.Table) -> dict[str, str]:
    """The one place where test text is read; without one, only dev numbers are reported."""
    data = study.plan.data
    if data.embedded is None and data.test is None:
        study.run.progress.say("  [data] names no test text: the report has dev numbers only.")
        return {}
    text = study.text("test")
    outputs = {s: stages.translate_split(study, "test", s, text) for s in settings}
    return stages.add_quality(table, outputs, list(text.targets))


def write_facts(run: RunFolder, study: Study, chosen: str | None, notes: dict[str, Any], signatures: dict[str, str]) -> None:
    """run.json: how every number of the run was made."""
    plan = study.plan
    made = surroundings()
    signature = {
        "plan": plan.name, "seed": plan.seed, "model": stages.upstream(run), "train": study.train_text.fingerprint,
        "dev": study.dev_text.fingerprint, "kinds": list(plan.pruning.kinds), "device": study.device, "machine": made["machine"],
    }  # fmt: skip
    facts = {
        "signature": signature, "versions": made["versions"], "threads": made["threads"], "seconds": run.seconds, "chosen": chosen,
        "max_drop": plan.choice.max_drop, "notes": notes, "bleu_signature": signatures.get("bleu", ""), "chrf_signature": signatures.get("chrf", ""),
    }  # fmt: skip
    write_text(run.folder / "run.json", json.dumps(facts, indent=1) + "\n")


def to_toml(data: dict[str, Any]) -> str:
    """A plan as TOML: plain values first, then tables."""
    lines = [f"{key} = {json.dumps(value, ensure_ascii=False)}" for key, value in data.items() if not isinstance(value, dict)]

    def tables(prefix: str, values: dict[str, Any]) -> None:
        for key, value in values.items():
            if isinstance(value, dict):
                lines.extend(["", f"[{prefix}{key}]"])
                lines.extend(f"{k} = {json.dumps(v, ensure_ascii=False)}" for k, v in value.items() if not isinstance(v, dict))
                tables(f"{prefix}{key}.", value)

    tables("", data)
    return "\n".join(lines) + "\n"
