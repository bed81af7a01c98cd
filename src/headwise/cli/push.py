"""`push`: a model to the Hugging Face hub."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from headwise.cli.arguments import Quiet
from headwise.errors import HeadwiseError


def push(
    model: Annotated[
        str,
        typer.Argument(help="the folder of a model, or of a finished study, for its chosen model"),
    ],
    repo: Annotated[str, typer.Argument(help="owner/name on the hub")],
    export: Annotated[
        list[Path] | None,
        typer.Option(
            "--export", help="a folder that headwise export wrote, to go along; repeatable"
        ),
    ] = None,
    base_model: Annotated[
        str | None,
        typer.Option("--base-model", help="hub id of the model that this one was made from"),
    ] = None,
    public: Annotated[bool, typer.Option("--public", help="make a new repository public")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="only show what would be sent, and send nothing")
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="with --dry-run: write the files to this new folder"),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="send without asking")] = False,
    quiet: Quiet = False,
) -> None:
    """Show what would be sent to the hub, with the model card; send it when told to."""
    from headwise.hub import push as prepare

    if out is not None and not dry_run:
        raise HeadwiseError(
            f"--out {out} was given without --dry-run: nothing is written where files are sent."
        )
    upload = prepare(model, repo, export or (), base_model, public)
    if not quiet or not yes or dry_run:
        typer.echo(str(upload))
    if out is not None:
        typer.echo(str(upload.write(out)))
    elif dry_run:
        typer.echo("Nothing was sent: leave out --dry-run to send it.")
    elif yes or (sys.stdin.isatty() and typer.confirm(f"Send this to {repo}?")):
        typer.echo(upload.send())
    else:
        typer.echo("Nothing was sent: --yes sends it.")
