"""The end of a command that prunes: the headline of the report, the heads that stay, what is next."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from headwise.core.folders import Folder
from headwise.core.qualities import SIMILARITY

if TYPE_CHECKING:
    from headwise.core.layout import HeadMask
    from headwise.core.progress import Progress
    from headwise.faces.report.run_folder import RunContents
    from headwise.study.plan import Plan


@dataclass(frozen=True)
class Outcome:
    """What a finished study says at its end.

    headline, and the finding of its comparison: better, worse, not distinguishable, or none. lines: what the headline
    rests on, what follows, and what speaks against the choice, or why there is none. layouts: of the chosen model by its
    name, of all where none was chosen. model: the folder of the chosen model. next_commands: what to do now, and
    how. changed: the translations that changed most, side by side.
    """

    headline: str
    finding: str = ""
    lines: Sequence[str] = ()
    layouts: Mapping[str, HeadMask] = field(default_factory=dict)
    model: Path | None = None
    next_commands: Sequence[tuple[str, str]] = ()
    changed: Sequence[str] = ()


def outcome(out: Path) -> Outcome:
    """The outcome of the finished study in a folder."""
    if (out / "grid.json").exists():
        tables = ("report.html", "grid.csv", "across.csv")
        names = ", ".join(name for name in tables if (out / name).exists())
        return Outcome(f"Wrote {out}/{names}, and a folder for each run in it.")
    from headwise.faces.report import summary
    from headwise.faces.report.run_folder import read_run

    run = read_run(out)
    lead = summary.lead_of(run)
    headline, *lines = summary.lead_sentences(run)
    shown = [str(model["setting"]) for model in run.pruned if model["candidate"]]
    if run.chosen:
        shown = [run.chosen["setting"]]
    layouts = {name: run.layouts[name] for name in shown if name in run.layouts}
    next_commands = []
    if (out / "report.html").exists():
        next_commands.append(("Report:", f"{out}/report.html"))
    if (out / "model" / "config.json").exists():
        next_commands.append(("Lab:", f"headwise lab {out}"))
    place = run.chosen_folder
    if place:
        then = f"headwise score {place} --text FILE"
        # Only models that translate have it.
        if "bleu_signature" in run.facts:
            then = f"echo 'A sentence.' | headwise translate {place}"
        next_commands.append(("Next:", then))
    return Outcome(
        headline,
        lead["verdict"],
        [*(lines if run.pruned else []), *summary.doubts(run), *too_high_limit(run)],
        layouts,
        place,
        next_commands,
        changed_translations(run) or worse_texts(run),
    )


def changed_translations(run: RunContents) -> list[str]:
    """The translations that the chosen model changed most, each below that of the full model; nothing without any."""
    from headwise.faces.report.cost import choose_examples

    examples = choose_examples(run)
    changed = [one for one in examples.shown if not one.same] if examples else []
    if not examples or not changed:
        return []
    different = examples.total - examples.same
    lines = [
        f"{different} of {examples.total} {examples.split} translations differ; those that changed most:"
    ]
    for one in changed:
        lines.append(f"  {one.number}. {one.source}")
        for name, pieces in (("full", one.full), ("pruned", one.pruned)):
            lines.append(
                f"     {name}: {''.join(f'{part.text}{part.behind}' for part in pieces).strip()}"
            )
    return lines


def worse_texts(run: RunContents) -> list[str]:
    """Texts on which the chosen model is worse, with what both models make of them; nothing without any."""
    from headwise.faces.report.cost import worse_rows

    rows = worse_rows(run, run.chosen) if run.chosen else []
    if not rows:
        return []
    what = "have another nearest neighbour"
    if run.quality != SIMILARITY:
        what = f"became worse most, with their {run.quality.title}"
    lines = [f"Texts of {run.split} that {what} (full → pruned):"]
    for number, text, before, after in rows:
        lines += [f"  {number}. {text}", f"     {before} → {after}"]
    return lines


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


def too_high_limit(run: RunContents) -> list[str]:
    """That the limit means nothing, where the full model has less BLEU than may be lost."""
    from headwise.core.qualities import BLEU
    from headwise.pruning.greedy import too_generous

    whole = run.quality_of(run.full, "dev").value
    if run.chosen is None or run.limit is None or run.quality_on("dev") != BLEU or whole is None:
        return []
    return [f"Note: {too_generous('max_drop', run.limit, whole)}"] if run.limit > whole else []
