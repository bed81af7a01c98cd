"""Whole studies: `demo`, `run`, `train`, and their pages: `report`, `compare`."""

from __future__ import annotations

import json
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from headwise.core.errors import HeadwiseError
from headwise.core.options import SEED, Architecture, Training
from headwise.core.progress import Progress, write
from headwise.faces.cli.arguments import (
    Device,
    DevTexts,
    DryRun,
    Out,
    Quiet,
    Seed,
    Set,
    Texts,
    dev_spec,
    text_spec,
)
from headwise.faces.cli.fields import (
    field_options,
    given_fields,
    refuse_set_twice,
    takes_fields,
    typed_options,
)
from headwise.faces.cli.outcome import outcome, trained_model_lines
from headwise.faces.cli.signals import resumable
from headwise.models.devices import memory_line

if TYPE_CHECKING:
    from headwise.models.model import Model
    from headwise.study.plan import Plan
    from headwise.study.study import ReportWriter


def run_plan(
    plan: Plan,
    out: Path,
    quiet: bool,
    device: str,
    dry_run: bool,
    only: str | None = None,
    result: str = "report.html",
    given: Model | None = None,
    **workers: Any,
) -> None:
    """Run a plan, print its outcome and the path of the result: the chosen model where `result` is `pruned`.

    dry_run: only print what it would do, and about how long it takes. given: the model that the plan names, where it is
    loaded already. workers: options of `run_study`.
    """
    if dry_run:
        from headwise.study.study import dry_run as cost_of

        # Who wrote no plan knows none of its steps.
        lines = cost_of(plan, out, device, every_step=result != "pruned", given=given)
        write(Console(highlight=False), "\n".join(lines))
        return
    from headwise.study.ownership import refuse_others

    refuse_others(plan, out)  # before the seconds that the rest takes to load
    from accelerate import PartialState

    from headwise.faces.cli.terminal import show_finding, show_kept
    from headwise.faces.hub import write_cards
    from headwise.faces.report import need_drawing
    from headwise.faces.report import report as write_report
    from headwise.study.study import run_study

    progress = Progress(quiet)
    # A study of hours must not fail at its end because a drawing library is missing.
    writer: ReportWriter | None = write_report
    try:
        need_drawing()
    except HeadwiseError as missing:
        writer = None
        if only != "train":
            progress.say(f"No report.html. {missing} Then run `headwise report {out}`.")
    with resumable(out):
        run_study(plan, out, progress, only, device, writer, given=given, **workers)
    # One process of several speaks.
    if PartialState().is_main_process:
        ended = None if only else outcome(out)
        for name in plan.runs:
            if only is None and (out / name / "run.json").is_file():
                write_cards(out / name)
        small = None
        if result == "model" and not quiet:
            for line in trained_model_lines(plan, out, device, progress):
                progress.say(line)
            progress.recommend("Next:", f"headwise score {out} --judge")
        if ended is not None:
            small = ended.model
            show_finding(progress.console, ended.headline, ended.finding)
            for line in [*ended.lines, *ended.changed]:
                progress.say(line)
            show_kept(progress.console, ended.layouts)
            for what, command in ended.next_commands:
                progress.recommend(what, command)
        if small:
            progress.recommend("Where it runs:", f"headwise export {small} --list")
        if result == "pruned":
            progress.say(memory_line())
        path = small if result == "pruned" and small else out / (result if only else "report.html")
        typer.echo(str(path if path.exists() else out))


def demo(
    toy: Annotated[
        bool, typer.Option("--toy", help="train a small model on the embedded corpus instead")
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", metavar="FOLDER", help="by default runs/demo or runs/toy"),
    ] = None,
    dry_run: DryRun = False,
    seed: Seed = SEED,
    device: Device = "auto",
    quiet: Quiet = False,
    set_: Set = None,
) -> None:
    """See all of it in ten minutes, on Firefox's translation model.

    Scores its heads, finds their roles, removes half of the encoder heads and writes a report. It takes about ten minutes
    on two CPU cores, without a download."""
    from headwise.study.plan import read_plan

    name = "toy" if toy else "demo"
    texts = [] if toy else demo_texts()
    settings = [*texts, f"seed={seed}", *(set_ or [])]
    plan = read_plan(Path(str(files("headwise.study") / f"{name}.toml")), settings)
    place = out or Path("runs") / plan.name
    run_plan(plan, place, quiet, device, dry_run)
    if not (toy or quiet or dry_run):
        say_without_best(plan, place)


def demo_texts() -> list[str]:
    """The texts of the demo's plan, which are in the package, as settings."""
    folder = str(files("headwise.data") / "demo").replace("$", "$$")  # no variable of a plan
    return [
        f"data.train={json.dumps(f'{folder}/train.en.gz')}",  # a string of JSON is one of TOML
        f"data.dev={json.dumps(f'{folder}/dev.en.gz')}",
        f"data.test={json.dumps([f'{folder}/test.en.gz', f'{folder}/test.pt.gz'])}",
        f"roles.treebank={json.dumps([f'{folder}/trees.conllu.gz'])}",
    ]


def say_without_best(plan: Plan, out: Path) -> None:
    """Print a translation with all heads, and without the head that the loss needs most."""
    from headwise.faces.report.run_folder import read_run
    from headwise.models.loading import load
    from headwise.models.model import masked

    scores = read_run(out).heads
    if not isinstance(plan.model, str):
        return
    losses = scores[scores["measure"] == "ablation.zero"]
    if losses.empty:
        return
    # The loss without a head: the highest value is of the head that is missed most.
    best = losses.sort_values("value").iloc[-1]
    name = f"{best['kind']}/{best['layer']}/{best['head']}"
    model = load(plan.model)
    sentence = "She did not see the old red car."
    (whole,) = model.translate([sentence])
    with masked(model, [name]):
        (broken,) = model.translate([sentence])
    say = Progress().say
    say(f"Without {name}, the head that the loss needs most: {sentence}")
    say(f"  all heads: {whole}")
    say(f"  without:   {broken}")


def run(
    plan: Annotated[Path, typer.Argument(help="a TOML plan; examples/ has some")],
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", metavar="FOLDER", help="by default runs/NAME"),
    ] = None,
    only: Annotated[
        str | None,
        typer.Option(
            "--only",
            metavar="STAGE",
            help="the last stage to do: train, score, roles, prune or evaluate",
        ),
    ] = None,
    dry_run: DryRun = False,
    set_: Set = None,
    seed: Annotated[
        int | None, typer.Option("--seed", min=0, help="in place of the plan's seed", hidden=True)
    ] = None,
    device: Device = "auto",
    workers: Annotated[
        str | None,
        typer.Option("--workers", help="ray: share the work out to Ray's workers", hidden=True),
    ] = None,
    threads: Annotated[
        int | None,
        typer.Option("--threads", min=1, help="threads of every part of the work", hidden=True),
    ] = None,
    quiet: Quiet = False,
) -> None:
    """Do all of it on your data, as a plan says.

    Trains a model or takes yours, scores its heads, finds their roles, prunes them, evaluates what is left and writes a
    report. The same command goes on where it was stopped."""
    from headwise.study.plan import read_plan

    read = read_plan(plan, [*(set_ or []), *([] if seed is None else [f"seed={seed}"])])
    if seed is not None and read.seeds:
        raise HeadwiseError(
            f"--seed {seed} was given, but the plan has seeds = {read.seeds}: --set seeds=[{seed}]."
        )
    place = out or Path("runs") / read.name
    how: dict[str, Any] = {"workers": workers, "threads": threads}
    run_plan(read, place, quiet, device, dry_run, only, **how)


TRAIN_OPTIONS = [
    *field_options("model", {"The model": Architecture}),
    *field_options("training", {"Training": Training}),
]


@takes_fields(TRAIN_OPTIONS)
def train(
    context: typer.Context,
    text: Texts = None,
    dev: DevTexts = None,
    out: Out = Path("runs/train"),
    dry_run: DryRun = False,
    seed: Seed = SEED,
    device: Device = "auto",
    quiet: Quiet = False,
    set_: Set = None,
    **fields: Any,
) -> None:
    """Train a translation model on your sentence pairs."""
    from headwise.study.plan import make_plan

    data = {"train": text_spec(text), **dev_spec(dev)}
    if data["train"] is None:
        raise HeadwiseError("No text was given: name it with --text SOURCE --text TARGET.")
    tables = given_fields(context, TRAIN_OPTIONS, fields)
    refuse_set_twice(TRAIN_OPTIONS, tables, set_ or [])
    given: dict[str, Any] = {
        "name": "train",
        "seed": seed,
        "data": {key: spec for key, spec in data.items() if spec},
        **tables,
    }
    typed = typed_options(TRAIN_OPTIONS, tables)
    plan = make_plan(given, set_ or [], "train", typed)
    run_plan(plan, out, quiet, device, dry_run, "train", "model")


def report(
    folders: Annotated[
        list[Path],
        typer.Argument(
            metavar="FOLDER...",
            help="of a study, of scores or of roles; two studies are compared, others of one model are shown together",
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            "-o",
            metavar="FOLDER",
            help="where to write; by default one folder gets its own page, several runs/report or runs/comparison",
        ),
    ] = None,
) -> None:
    """Write a page of what folders of results show, or of what differs between two studies."""
    from headwise.faces.report import report as write_report

    typer.echo(str(write_report(*folders, out=out)))
