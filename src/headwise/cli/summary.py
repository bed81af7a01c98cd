"""The end of a command that prunes: the facts of the report's first screen, what was written, what is next."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headwise.report.models import Model
    from headwise.report.run import Run

WRITTEN = ("report.html", "heads.csv", "pruning.csv", "layouts/", "pruned/", "figures/")


def summary(out: Path) -> tuple[list[str], Path | None]:
    """Lines about the finished study in a folder, and the folder of the chosen model."""
    if (out / "grid.json").exists():
        line = f"Wrote {out}/report.html, grid.csv, across.csv, and a folder for each run in it."
        return [line], None
    from headwise.report.run import read_run
    from headwise.report.sections import opening

    run = read_run(out)
    facts, chosen = opening.build(run), run.facts.get("chosen")
    lines = [f"{facts['headline']}."]
    for title, group in facts["groups"]:
        lines += [f"  {title}", *(f"    {label}: {text}" for label, text, *_ in group)]
    lines += ["  Pruned models", *(f"    {model_line(model)}" for model in run.pruned)] if run.pruned else []
    lines += doubts(run)
    lines.append(f"Wrote {out}/{', '.join(name for name in WRITTEN if (out / name).exists())}.")
    if not chosen:
        return lines, None
    place = out / "pruned" / chosen
    translates = "bleu_signature" in run.facts
    then = f"echo 'A sentence.' | headwise translate {place}" if translates else f"headwise score {place} --text FILE"
    return [*lines, f"Next: {then}"], place


def dev_change(model: Model) -> tuple[float, str] | None:
    """What a model loses on dev, and its difference to the full model in words."""
    from headwise.report.models import bounds, value
    from headwise.report.words import interval, signed

    for measure, unit, sign in (("dev_bleu_difference", "BLEU", -1), ("dev_perplexity_change", "% perplexity", 1)):
        if (found := value(model, measure)) is not None:
            words = (signed(found), interval(*bounds(model, measure)), f"{unit} on dev")
            return sign * found, " ".join(word for word in words if word)
    return None


def model_line(model: Model) -> str:
    change = dev_change(model)
    return f"{model['setting']}: {model['kept']} of {model['total']} heads left{f', {change[1]}' if change else ''}"


def doubts(run: Run) -> list[str]:
    """What speaks against the choice: that there is none, or a limit that no model can exceed."""
    from headwise.api.prune import too_generous
    from headwise.report.models import RANDOM, value

    limit, whole = run.facts.get("max_drop"), value(run.full, "dev_bleu")
    losses = {str(m["setting"]): lost for m in run.pruned if m["method"] != RANDOM and (lost := dev_change(m))}
    if limit is None:
        return []
    if not run.facts.get("chosen") and losses:
        nearest = min(losses, key=lambda name: losses[name][0])
        unit = "% of perplexity" if whole is None else "BLEU"
        return [
            f"No smaller model loses at most {limit:g} {unit} on dev (max_drop); {nearest} comes nearest with "
            f"{losses[nearest][1]}. Allow more, keep more heads, or try smaller penalties."
        ]
    generous = whole is not None and limit > whole and run.facts.get("chosen")
    return [f"Note: {too_generous('max_drop', limit, whole)}"] if generous and whole is not None else []
