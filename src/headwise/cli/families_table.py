"""`families`: what headwise does with each family of models."""

from __future__ import annotations

import csv
import sys
from typing import Annotated

import typer


def families(
    name: Annotated[
        str, typer.Argument(help="part of a family's or a class's name; all without one")
    ] = "",
) -> None:
    """What headwise does with each family of models, and why not more.

    A pipe gets CSV."""
    from headwise.families import COLUMNS, SIGNS
    from headwise.families import families as rows_of

    rows = rows_of(name)
    if not sys.stdout.isatty():
        table = csv.DictWriter(sys.stdout, COLUMNS, lineterminator="\n")
        table.writeheader()
        table.writerows(rows)
        return
    from rich.console import Console
    from rich.table import Table

    shown = COLUMNS[:-1]
    shown_table = Table(*shown, box=None, pad_edge=False)
    for row in rows:
        shown_table.add_row(*(SIGNS.get(row[column], row[column]) for column in shown))
    console = Console(highlight=False, markup=False)
    console.print(shown_table)
    if name:
        for row in rows:
            for reason in filter(None, row["why"].split("; ")):
                console.print(f"  {row['family']}: {reason}")
    else:
        console.print("Why not: headwise families NAME")
