"""Whole studies: `demo`, `study`, `train`, and their page, `report`."""

from __future__ import annotations

import json
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headwise.cli.options import Device, DevSource, DevTarget, Out, Quiet, Seed, Set, Source, Target, spec
from headwise.errors import HeadwiseError

if TYPE_CHECKING:
    from headwise.study import Plan


def run_plan(
    plan: Plan, out: Path, quiet: bool, device: str, only: str | None = None, final: str = "", **hands: Any
) -> None:
    """Run a plan and say what came of it. hands: options of `run_study` that say who works."""
    from accelerate import PartialState

    from headwise.report import write
    from headwise.study import Progress, run_study

    progress = Progress(quiet)
    try:
        run_study(plan, out, progress, only, device, write, **hands)
    except KeyboardInterrupt:
        raise HeadwiseError("Stopped. Run the same command again to go on where it was.") from None
    if PartialState().is_main_process:
        if only is None:
            progress.say(summary(out))
        typer.echo(str(out / final))


def summary(out: Path) -> str:
    """The tables that were written, and what to do next."""
    if (out / "grid.json").exists():
        return f"Wrote {out}/report.html, grid.csv, across.csv, and a folder for each study in it."
    chosen = json.loads((out / "run.json").read_text())["chosen"]
    lines = [f"Wrote {out}/report.html, heads.csv, pruning.csv, layouts/, pruned/, figures/."]
    if chosen:
        lines.append(f"Next: echo 'A sentence.' | headwise translate {out}/pruned/{chosen}")
    else:
        lines.append(
            "No pruned model kept BLEU within choice.max_drop on dev: keep more heads, or try smaller penalties "
            "(--set 'pruning.penalties=[…]')."
        )
    return "\n".join(lines)


def demo(
    out: Out = Path("runs/demo"), seed: Seed = 1, device: Device = "cpu", quiet: Quiet = False, set_: Set = None
) -> None:
    """The whole story on the embedded corpus: minutes on two CPU cores, no download."""
    from headwise.study import read_plan

    plan = read_plan(Path(str(files("headwise.study") / "demo.toml")), [f"seed={seed}", *(set_ or [])])
    run_plan(plan, out, quiet, device, final="report.html")


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
    run_plan(read, place, quiet, device, only, "" if only else "report.html", workers=workers, threads=threads)


def train(
    source: Source = None, target: Target = None, dev_source: DevSource = None, dev_target: DevTarget = None,
    out: Out = Path("runs/train"), seed: Seed = 1, device: Device = "cpu", quiet: Quiet = False, set_: Set = None,
) -> None:  # fmt: skip
    """Train a translation model; shape and recipe by --set model.… and --set training.…"""
    from headwise.study import make_plan

    data = {"train": spec(source, target), "dev": spec(dev_source, dev_target, dev=True)}
    run_plan(make_plan({"name": "train", "seed": seed, "data": data}, set_ or []), out, quiet, device, "train", "model")


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
