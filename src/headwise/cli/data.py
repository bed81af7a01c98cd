"""Public text: `data list`, `data get`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def data_list() -> None:
    """What can be fetched, and how many files of it are here."""
    from rich.console import Console
    from rich.table import Table

    from headwise.data.catalogue import listing

    rows = listing()
    table = Table(*rows[0], box=None, pad_edge=False)
    for row in rows:
        table.add_row(*map(str, row.values()))
    Console(highlight=False, markup=False).print(table)


def data_get(
    name: str,
    out: Annotated[Path | None, typer.Option("--out", help="folder; a cache by default")] = None,
) -> None:
    """Fetch one set, check it, and say where it lies."""
    from headwise.data.catalogue import get

    typer.echo(str(get(name, out)))
