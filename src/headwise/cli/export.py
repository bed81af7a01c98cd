"""`export`: a model for the engine that will run it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headwise.cli.options import ModelName, Quiet
from headwise.engines import refuse_unknown
from headwise.errors import HeadwiseError

if TYPE_CHECKING:
    from headwise.model import Model


def export(
    model: ModelName,
    to: Annotated[str | None, typer.Option("--to", help="gguf, ct2, onnx, mlx or torch")] = None,
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
        raise HeadwiseError(
            "No engine was named: give --to gguf, ct2, onnx, mlx or torch, or ask with --list."
        )
    if to is not None:
        refuse_unknown(to)
    loaded = hw.load(model)
    if list_ or to is None:
        for line in engine_lines(loaded):
            typer.echo(line)
        return
    place = out or Path("runs") / f"{Path(loaded.name).name}-{to}"
    notes = hw.export(loaded, to, place, dtype)
    if not quiet:
        for note in notes:
            typer.echo(f"  {note}")
    typer.echo(str(place))


def runs_in(model: Model, place: Path) -> str:
    """Where a pruned model can run, and the next command to try."""
    from headwise.engines.export import ENGINES

    taken = [
        f"{engine.runs_in} ({name})"
        for name, engine in ENGINES.items()
        if engine.refuse(model) is None
    ]
    return f"Runs in {', '.join(taken)}: headwise export {place} --to … (--list says why not elsewhere)"


def engine_lines(model: Model) -> list[str]:
    """The table of engines, a line each."""
    from headwise.engines.export import ENGINES

    reasons = {name: engine.refuse(model) for name, engine in ENGINES.items()}
    return [
        f"  {name:6}{engine.runs_in:14}{f'no: {reasons[name]}' if reasons[name] else 'yes'}"
        for name, engine in ENGINES.items()
    ]
