"""The end of a command that prunes: the headline of the report, the heads that stay, what is next; all facts if asked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from headwise.folders import Folder, below

if TYPE_CHECKING:
    from headwise.layout import HeadMask
    from headwise.progress import Progress
    from headwise.report.models import ModelRow
    from headwise.report.run_folder import FinishedRun
    from headwise.study import Plan

WRITTEN = ("report.html", "heads.csv", "pruning.csv", "layouts/", "pruned/", "figures/")


@dataclass(frozen=True)
class Outcome:
    """What a finished study says at its end.

    headline, and the verdict of its comparison: better, worse, not distinguishable, or none. facts: lines about what was
    saved, what it cost, how it was chosen. doubts: lines that speak against the choice. layouts: of the chosen model by
    its name, of all where none was chosen. model: the folder of the chosen model. next_commands: what to do now, and how.
    """

    headline: str
    verdict: str = ""
    facts: Sequence[str] = ()
    doubts: Sequence[str] = ()
    layouts: Mapping[str, HeadMask] = field(default_factory=dict)
    model: Path | None = None
    next_commands: Sequence[tuple[str, str]] = ()


def written(out: Path, names: Sequence[str]) -> str:
    """Those of the names that are in the folder."""
    return ", ".join(name for name in names if (out / name).exists())


def outcome(out: Path) -> Outcome:
    """The outcome of the finished study in a folder."""
    if (out / "grid.json").exists():
        names = written(out, ["report.html", "grid.csv", "across.csv"])
        return Outcome(f"Wrote {out}/{names}, and a folder for each run in it.")
    from headwise.report import summary as report_summary
    from headwise.report.run_folder import read_run

    run = read_run(out)
    summary = report_summary.summary_section(run)
    chosen = run.facts.get("chosen")
    facts = []
    for title, group in summary["groups"]:
        facts.append(f"  {title}")
        for label, text, *_ in group:
            facts.append(f"    {label}: {text}")
    if run.pruned:
        facts.append("  Pruned models")
        facts += [f"    {outcome_line(run, model)}" for model in run.pruned]
    facts.append(f"Wrote {out}/{written(out, WRITTEN)}.")

    shown = [str(model["setting"]) for model in run.pruned if model["candidate"]]
    if chosen:
        shown = [str(chosen)]
    layouts = {name: run.layouts[name] for name in shown if name in run.layouts}
    next_commands = []
    if (out / "report.html").exists():
        next_commands.append(("Report:", f"{out}/report.html"))
    if (out / "model" / "config.json").exists():
        next_commands.append(("Lab:", f"headwise lab {out}"))
    place = None
    if chosen:
        place = below(out / "pruned", chosen)
        then = f"headwise score {place} --text FILE"
        # Only models that translate have it.
        if "bleu_signature" in run.facts:
            then = f"echo 'A sentence.' | headwise translate {place}"
        next_commands.append(("Next:", then))
    return Outcome(
        f"{summary['headline']}.",
        summary["verdict"],
        facts,
        [*summary["doubts"], *why_this_choice(run)],
        layouts,
        place,
        next_commands,
    )


def trained_model_lines(plan: Plan, out: Path, device: str, progress: Progress) -> list[str]:
    """Lines about a model that was trained: loss and BLEU on dev. Its translations are kept for a later study."""
    from headwise.study.evaluation_steps import Evaluate, Translate
    from headwise.study.model_steps import FULL_MODEL
    from headwise.study.run_context import RunContext
    from headwise.study.variants import FULL

    if list(plan.runs) != ["."]:
        return []
    run = RunContext(plan, out, progress, device)
    # The other processes, if any, are through: to wait for them would never end.
    with Folder(out).lock(), run.store.alone(), progress.bar("evaluate"):
        facts = FULL_MODEL.get_or_make(run)
        translate = Translate("dev", FULL)
        translate.get_or_make(run)
        quality = Evaluate("dev", FULL, translate).get_or_make(run)
    found = []
    for name, (value, low, high, *_) in quality["numbers"].items():
        ends = "" if low is None else f" [{low:.1f}, {high:.1f}]"
        found.append(f"{name} {value:.1f}{ends}")
    # A model that was given, not trained, has no loss on record.
    loss = f"loss {facts['dev_loss']:.3f}, " if "dev_loss" in facts else ""
    return [
        f"  On dev: {loss}{', '.join(found)}",
        f"Wrote {out}/model, train/log.csv.",
    ]


def dev_change(run: FinishedRun, model: ModelRow) -> str:
    """The change of a model from the full one on dev, in words; empty where it was not measured."""
    from headwise.pruning.measured import UNPRUNED
    from headwise.report.models import change_text

    text = change_text(run.quality_of(model, "dev", UNPRUNED))
    return f"{text} {run.quality_on('dev').loss} on dev" if text else ""


def outcome_line(run: FinishedRun, model: ModelRow) -> str:
    """What is left of a model, and what that cost."""
    from headwise.report.format import quantity, size
    from headwise.report.models import measured

    facts = [f"{model['kept']} of {model['total']} heads left"]
    sizes = {"memory": "of weights", "cache_bytes": "of cache per token"}
    for measure, what in {"parameters": "parameters", **sizes}.items():
        if number := measured(model, measure).value:
            write = size if measure in sizes else quantity
            facts.append(f"{write(number)} {what}")
    change = dev_change(run, model)
    if change:
        facts.append(change)
    return f"{model['setting']}: {', '.join(facts)}"


def why_this_choice(run: FinishedRun) -> list[str]:
    """Why no model was chosen, or that no model can exceed the limit."""
    from headwise.pruning.prune import too_generous
    from headwise.qualities import BLEU

    limit = run.limit
    changes = {}
    losses = {}
    for model in run.candidates:
        lost = run.lost(model)
        change = dev_change(run, model)
        if lost is not None and change:
            losses[model["setting"]] = lost
            changes[model["setting"]] = change
    unsettled = run.facts.get("unsettled") or []
    if unsettled and not run.facts.get("chosen"):
        return [
            f"No model was chosen: the gates of {', '.join(unsettled)} had not settled when they were decided, so "
            "other heads might have stayed. Train longer (pruning.epochs), or raise pruning.gate_learning_rate."
        ]
    if limit is None:
        return []
    if not run.facts.get("chosen") and losses:
        nearest = min(losses, key=losses.__getitem__)
        unit = run.quality_on("dev").loss
        return [
            f"No smaller model loses at most {limit:g} {unit} on dev (max_drop); {nearest} comes nearest with "
            f"{changes[nearest]}. Allow more, keep more heads, or try smaller penalties."
        ]
    whole = run.quality_of(run.full, "dev").value
    if (
        run.quality_on("dev") == BLEU
        and whole is not None
        and limit > whole
        and run.facts.get("chosen")
    ):
        return [f"Note: {too_generous('max_drop', limit, whole)}"]
    return []
