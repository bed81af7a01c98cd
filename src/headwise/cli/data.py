"""Public text: `data list`, `data get`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def data_list() -> None:
    """What can be fetched."""
    from headwise.data.catalogue import listing

    for row in listing():
        typer.echo("  ".join(str(value) for value in row.values()))


def data_get(
    name: str, out: Annotated[Path | None, typer.Option("--out", help="folder; a cache by default")] = None
) -> None:
    """Fetch one set, check it, and say where it lies."""
    from headwise.data.catalogue import get

    typer.echo(str(get(name, out)))
