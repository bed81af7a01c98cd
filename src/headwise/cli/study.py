"""Whole studies: `demo`, `study`, `train`, and their page, `report`."""

from __future__ import annotations

from collections.abc import Callable
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headwise.cli.ending import Ending, of_study
from headwise.cli.options import Device, DevSource, DevTarget, Out, Quiet, Seed, Set, Source, Target, spec
from headwise.cli.room import resumable
from headwise.cli.stopping import Stopped
from headwise.errors import HeadwiseError

if TYPE_CHECKING:
    from headwise.study import Plan


GO_ON = "Stopped. Run the same command again to go on where it was."


def run_plan(
    plan: Plan, out: Path, quiet: bool, device: str, only: str | None = None,
    ended: Callable[[Path], Ending] = of_study, **hands: Any,
) -> None:  # fmt: skip
    """Run a plan and say what came of it, as `ended` words it. hands: options of `run_study` that say who works."""
    from accelerate import PartialState

    from headwise.report import write
    from headwise.study import Progress, run_study

    progress = Progress(quiet)
    try:
        run_study(plan, out, progress, only, device, write, **hands)
    except Stopped as stop:
        stop.args = (GO_ON,)
        raise
    except Exception as error:
        if kept := resumable(error, out):
            raise kept from error
        raise
    if PartialState().is_main_process:
        ending = ended(out)
        for line in ending.lines:
            progress.say(line)
        typer.echo(str(ending.path))


def demo(
    out: Out = Path("runs/demo"), seed: Seed = 1, device: Device = "cpu", quiet: Quiet = False, set_: Set = None
) -> None:
    """The whole story on the embedded corpus: minutes on two CPU cores, no download."""
    from headwise.study import read_plan

    plan = read_plan(Path(str(files("headwise.study") / "demo.toml")), [f"seed={seed}", *(set_ or [])])
    run_plan(plan, out, quiet, device)


def study(
    plan: Annotated[Path, typer.Argument(help="a TOML plan; examples/ has some")],
    out: Annotated[Path | None, typer.Option("--out", help="folder to write to")] = None,
    only: Annotated[str | None, typer.Option("--only", help="stop after: train, score, roles, prune, evaluate")] = None,
    set_: Set = None, seed: Annotated[int | None, typer.Option("--seed", min=0)] = None, device: Device = "cpu",
    workers: Annotated[str | None, typer.Option("--workers", help="ray: share the work out to Ray's workers")] = None,
    threads: Annotated[int | None, typer.Option("--threads", min=1, help="threads of every part of the work")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="only say what would be done, and its cost")] = False,
    quiet: Quiet = False,
) -> None:  # fmt: skip
    """The whole story on your data, as a plan says; resumable."""
    from headwise.study import read_plan

    read = read_plan(plan, [*(set_ or []), *([] if seed is None else [f"seed={seed}"])])
    if seed is not None and read.seeds:
        raise HeadwiseError(f"--seed {seed} was given, but the plan has seeds = {read.seeds}: --set seeds=[{seed}].")
    place = out or Path("runs") / read.name
    if dry_run:
        from headwise.study.study import dry_run as graph

        typer.echo("\n".join(graph(read, place, device)))
        return
    run_plan(read, place, quiet, device, only, Ending if only else of_study, workers=workers, threads=threads)


def train(
    source: Source = None, target: Target = None, dev_source: DevSource = None, dev_target: DevTarget = None,
    out: Out = Path("runs/train"), seed: Seed = 1, device: Device = "cpu", quiet: Quiet = False, set_: Set = None,
) -> None:  # fmt: skip
    """Train a translation model; shape and recipe by --set model.… and --set training.…"""
    from headwise.study import make_plan

    data = {"train": spec(source, target), "dev": spec(dev_source, dev_target, "dev-")}
    plan = make_plan({"name": "train", "seed": seed, "data": data}, set_ or [])
    run_plan(plan, out, quiet, device, "train", trained)


def trained(out: Path) -> Ending:
    """The end of a training: what may be asked of the model."""
    return Ending(out / "model", [f"Next: headwise score {out / 'model'} --source FILE --target FILE --judge"])


def report(
    run: Annotated[Path, typer.Argument(help="the folder of a finished study")],
    animation: Annotated[
        Path | None, typer.Option("--animation", help="write a film of the gates to this .gif or .mp4 instead")
    ] = None,
) -> None:
    """Write the report page and its figures again."""
    if animation is not None:
        from headwise.report.gate_pictures import animate

        typer.echo(str(animate(run, animation)))
        return
    from headwise.report import write

    typer.echo(str(write(run)))
