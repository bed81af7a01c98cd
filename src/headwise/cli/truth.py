"""`truth`: how often is each score, and each test of roles, right?"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from headwise.cli.arguments import Out, Quiet, folder


def truth(
    measures: Annotated[
        list[str] | None,
        typer.Option("--measure", help="a name, or lrp, ablation, all; repeatable; by default all"),
    ] = None,
    page: Annotated[
        Path | None,
        typer.Option("--page", help="Markdown file with marks that the tables are written between"),
    ] = None,
    seeds: Annotated[
        int, typer.Option("--seeds", min=1, help="how many times each model is built")
    ] = 5,
    out: Out = Path("runs/truth"),
    quiet: Quiet = False,
) -> None:
    """How often is each score, and each test of roles, right?

    Builds models whose heads are known, and writes
    truth-scores.csv, truth-heads.csv (the share of heads on the right side of each planted one), truth-roles.csv, and
    the tables as truth.md."""
    from headwise.heads import write_text
    from headwise.progress import Progress
    from headwise.truth.suite import areas, hits, run, sides
    from headwise.truth.truth_page import fill, role_table, score_table
    from headwise.truth.truth_page import tables as tables_of_page

    progress, place = Progress(quiet), folder(out)
    with progress.bar("truth"):
        found = run(range(seeds), measures or ["all"], progress=progress)
    tables = {"scores": areas(found.heads), "heads": sides(found.heads), "roles": hits(found.roles)}
    made = tables_of_page(*tables.values())
    for name, table in tables.items():
        write_text(place / f"truth-{name}.csv", table.to_csv(index=False, float_format="%.3f"))
    write_text(place / "truth.md", "\n".join(made.values()))
    if page is not None:
        fill(page, made)
    for table in (score_table(tables["scores"]), role_table(tables["roles"])):
        progress.say(table.to_string(index=False))
    progress.say(
        f"Wrote {', '.join([*(f'truth-{name}.csv' for name in tables), 'truth.md'])} to {place}."
    )
    typer.echo(str(place / "truth-scores.csv"))
