"""The end of a command that prunes: the facts of the report's first screen, what was written, what is next."""

from __future__ import annotations

from pathlib import Path

WRITTEN = ("report.html", "heads.csv", "pruning.csv", "layouts/", "pruned/", "figures/")


def summary(out: Path) -> tuple[list[str], Path]:
    """Lines about the finished study in a folder, and the path of its result."""
    if (out / "grid.json").exists():
        line = f"Wrote {out}/report.html, grid.csv, across.csv, and a folder for each run in it."
        return [line], out / "report.html"
    from headwise.api.prune import too_generous
    from headwise.report.models import difference, value
    from headwise.report.run import read_run
    from headwise.report.sections import opening

    run = read_run(out)
    facts, chosen = opening.build(run), run.facts.get("chosen")
    lines = [f"{facts['headline']}."]
    lines += [f"  {label}: {text}" for _, group in facts["groups"] for label, text, *_ in group]
    for model in run.pruned if len(run.pruned) > 1 else ():
        change = difference(model, "dev_bleu_difference") or difference(model, "dev_perplexity_change")
        unit = "BLEU" if value(model, "dev_bleu") is not None else "% perplexity"
        lines.append(f"  {model['setting']}: {model['kept']} of {model['total']} heads, {change} {unit} on dev")
    limit, whole = facts["limit"], value(run.full, "dev_bleu")
    if limit is not None and whole is not None and limit > whole:
        lines.append(f"Note: {too_generous('--max-drop', limit, whole)}")
    if not chosen and limit is not None and run.pruned:
        lines.append(
            f"No smaller model loses at most {limit:g} {facts['unit']} on dev: allow more (--max-drop), keep more "
            f"heads, or try smaller penalties. The models are in {out}/pruned/."
        )
    lines.append(f"Wrote {out}/{', '.join(name for name in WRITTEN if (out / name).exists())}.")
    place = out / "pruned" / chosen if chosen else out / "report.html"
    if chosen:
        translates = whole is not None
        then = "echo 'A sentence.' | headwise translate" if translates else "headwise score --text FILE"
        lines.append(f"Next: {then} {place}")
    return lines, place
