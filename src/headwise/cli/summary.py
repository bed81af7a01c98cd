"""The end of a command that prunes: the facts of the report's first screen, what was written, what is next."""

from __future__ import annotations

from pathlib import Path

WRITTEN = ("report.html", "heads.csv", "pruning.csv", "layouts/", "pruned/", "figures/")


def summary(out: Path) -> tuple[list[str], Path]:
    """Lines about the finished study in a folder, and the path of its result."""
    if (out / "grid.json").exists():
        line = f"Wrote {out}/report.html, grid.csv, across.csv, and a folder for each run in it."
        return [line], out / "report.html"
    from headwise.report.run import read_run
    from headwise.report.sections import opening

    run = read_run(out)
    facts = opening.build(run)
    lines = [f"{facts['headline']}."]
    lines += [f"  {label}: {text}" for _, group in facts["groups"] for label, text, *_ in group]
    lines += [f"  {model_line(model)}" for model in run.pruned]
    lines.append(f"Wrote {out}/{', '.join(name for name in WRITTEN if (out / name).exists())}.")
    chosen = run.facts.get("chosen")
    place = out / "pruned" / chosen if chosen else out / "report.html"
    if chosen:
        then = (
            "echo 'A sentence.' | headwise translate" if "bleu_signature" in run.facts else "headwise score --text FILE"
        )
        lines.append(f"Next: {then} {place}")
    return lines, place


def model_line(model: dict[str, object]) -> str:
    return f"{model['setting']}: {model['kept']} of {model['total']} heads"
