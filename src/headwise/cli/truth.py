"""`truth`: how often is each score, and each test of roles, right?"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from headwise.cli.options import Out, Quiet, folder


def truth(
    measures: Annotated[
        list[str] | None, typer.Option("--measure", help="a name, or lrp, ablation, all; repeatable; by default all")
    ] = None,
    seeds: Annotated[int, typer.Option("--seeds", min=1, help="how many times each model is built")] = 5,
    out: Out = Path("runs/truth"), quiet: Quiet = False,
) -> None:  # fmt: skip
    """How often is each score, and each test of roles, right? Builds models whose heads are known, and writes
    truth-scores.csv, truth-heads.csv and truth-roles.csv."""
    from headwise.heads import write_text
    from headwise.study.progress import Progress
    from headwise.truth.suite import areas, hits, run, sides

    progress, place = Progress(quiet), folder(out)
    with progress.task("truth"):
        found = run(range(seeds), measures or ["all"], progress=progress)
    tables = {"scores": areas(found.heads), "heads": sides(found.heads), "roles": hits(found.roles)}
    for name, table in tables.items():
        write_text(place / f"truth-{name}.csv", table.to_csv(index=False, float_format="%.3f"))
    for name in ("scores", "roles"):
        progress.say(tables[name].to_string(index=False, float_format="%.2f", na_rep=""))
    typer.echo(str(place / "truth-scores.csv"))
