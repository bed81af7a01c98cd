"""`export`: a model for the engine that will run it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headwise.cli.arguments import ModelName, Quiet
from headwise.engines.engine import engine
from headwise.errors import HeadwiseError

if TYPE_CHECKING:
    from headwise.model import Model

NAMES = ", ".join(engine)


def export(
    model: ModelName,
    to: Annotated[str | None, typer.Option("--to", help=f"the engine: {NAMES}")] = None,
    out: Annotated[Path | None, typer.Option("--out", help="new folder to write to")] = None,
    dtype: Annotated[
        str | None, typer.Option("--dtype", help="type of the weights, such as f16 or q8_0")
    ] = None,
    list_: Annotated[
        bool, typer.Option("--list", help="only say which engines can run this model")
    ] = False,
    quiet: Quiet = False,
) -> None:
    """Write a model, pruned or not, for llama.cpp, CTranslate2, ONNX Runtime, MLX or PyTorch."""
    import headwise as hw

    if not list_ and to is None:
        raise HeadwiseError(f"No engine was named: give --to with {NAMES}, or ask with --list.")
    if to is not None and to not in engine:
        raise HeadwiseError(engine.unknown(to))
    loaded = hw.load(model)
    if list_ or to is None:
        for line in engine_lines(loaded):
            typer.echo(line)
        return

    notes: list[str] = []
    place = out or Path("runs") / f"{Path(loaded.name).name}-{to}"
    hw.export(loaded, to, place, dtype, say=notes.append)
    if not quiet:
        for note in notes:
            typer.echo(f"  {note}")
    typer.echo(str(place))


def runs_in(model: Model, place: Path) -> str:
    """Where a pruned model can run, and the next command to try."""
    names = [
        f"{entry.title} ({name})" for name, entry in engine.items() if not entry.why_not(model)
    ]
    return f"Runs in {', '.join(names)}: headwise export {place} --to … (--list says why not elsewhere)"


def engine_lines(model: Model) -> list[str]:
    """The table of engines, a line each."""
    lines = []
    for name, entry in engine.items():
        reason = entry.why_not(model)
        lines.append(f"  {name:6}{entry.title:14}{f'no: {reason}' if reason else 'yes'}")
    return lines
