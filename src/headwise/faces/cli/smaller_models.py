"""Commands that make smaller models, say what they are worth, and give them away: `prune`, `evaluate`, `export`, `push`."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from headwise.core.errors import HeadwiseError
from headwise.core.folders import Folder
from headwise.core.options import SEED
from headwise.core.progress import write
from headwise.faces.cli.arguments import (
    NO_TEXT,
    Device,
    DevTexts,
    DryRun,
    Dtype,
    Limit,
    Method,
    ModelName,
    Quiet,
    ResultsOut,
    Seed,
    Set,
    TestTexts,
    Texts,
    check_text,
    chosen_in,
    dev_spec,
    known,
    read_text,
    study_in,
    text_spec,
)
from headwise.faces.cli.fields import (
    SEARCH_OPTIONS,
    given_fields,
    given_search,
    pruning_options,
    refuse_set_twice,
    takes_fields,
    typed_options,
)
from headwise.faces.cli.studies import run_plan
from headwise.faces.cli.work import Work, default_folder
from headwise.models.engines.engine import engine

if TYPE_CHECKING:
    from headwise.models.model import Model
    from headwise.study.plan import Plan


PRUNE_OPTIONS = pruning_options(first=["keep", "unit", "max_drop"])


@takes_fields(PRUNE_OPTIONS)
def prune(
    context: typer.Context,
    model: ModelName,
    text: Texts = None,
    dev: DevTexts = None,
    test: TestTexts = None,
    method: Annotated[
        Method | None,
        typer.Option(
            "--method",
            help="greedy, by default; gates and top-k train",
        ),
    ] = None,
    control: Annotated[
        list[str] | None,
        typer.Option(
            "--control",
            help="another model to compare with, such as random (as many random heads) or fine-tuned (all heads, trained as "
            "long; not with --train distil); repeatable",
            hidden=True,
        ),
    ] = None,
    out: ResultsOut = None,
    dry_run: DryRun = False,
    seed: Seed = SEED,
    device: Device = "auto",
    quiet: Quiet = False,
    set_: Set = None,
    **fields: Any,
) -> None:
    """Remove heads that the model can do without.

    Chooses heads on --text, compares on --dev, reads --test at the end, and writes smaller models and a report.
    One --keep gives that model, whatever it loses; without any, several sizes are tried. A study has texts of its own."""
    from headwise.study.ownership import refuse_foreign_files

    out = out or default_folder("prune", model)
    tables = given_fields(context, PRUNE_OPTIONS, fields)
    refuse_set_twice(PRUNE_OPTIONS, tables, set_ or [])
    tables["data"] = prune_texts(model, text, dev, test)
    goals = tables.setdefault("pruning", {})
    if control:
        goals["controls"] = control
    # `--keep encoder-self=4` says which kinds may go.
    if "kinds" not in goals and (named := counted_kinds(goals.get("keep", []))):
        goals["kinds"] = named

    def plan_for(method: str) -> Plan:
        from headwise.study.plan_of_prune import plan_of

        typed = {"pruning.controls": "--control", **typed_options(PRUNE_OPTIONS, tables)}
        return plan_of(model, method, tables, seed, settings=set_ or [], typed=typed)

    from headwise.study.plan import GreedySweep

    # What does not fit together is refused before torch is loaded.
    plan = plan_for(method or ("gates" if "penalty" in goals else "greedy"))
    refuse_foreign_files(out)
    if not dry_run:
        Folder(out).refuse_unwritable()
    from headwise.models.devices import usable
    from headwise.models.loading import load
    from headwise.study.plan_of_prune import completed, too_short_for_repair

    given = None
    left = {"kinds"} | ({"measure"} if isinstance(plan.pruning[0], GreedySweep) else set())
    # Its task says what was left open, so the model is loaded now, once, and handed on.
    if not left <= plan.pruning[0].model_fields_set:
        given = load(model, usable(device))
        plan, note = completed(plan, given)
        if note and not quiet:
            write(Console(highlight=False, stderr=True), note)
        (sweep,) = plan.pruning
        if isinstance(sweep, GreedySweep) and sweep.repair:
            short = too_short_for_repair(plan, given)
            if short:
                raise HeadwiseError(short)
    run_plan(plan, out, quiet, device, dry_run, result="pruned", given=given)


def prune_texts(
    model: str, text: list[str] | None, dev: list[str] | None, test: list[str] | None
) -> dict[str, Any]:
    """The texts that were named, over those of the study in whose folder the model is."""
    texts = {
        "train": text_spec(text),
        **dev_spec(dev),
        "test": text_spec(test, "--test"),
    }
    named: dict[str, Any] = {split: spec for split, spec in texts.items() if spec}
    # The study's dev and test texts may be of another kind than a new train text.
    if "train" in named:
        return named
    study = study_in(model)
    if study is None:
        raise HeadwiseError(NO_TEXT)
    return {**study.plan.data.model_dump(exclude_none=True), **named}


def counted_kinds(counts: list[Any]) -> list[str]:
    """The kinds that target counts name."""
    return [kind for keep in counts if isinstance(keep, dict) for kind in keep]


@takes_fields(SEARCH_OPTIONS)
def evaluate(
    context: typer.Context,
    models: Annotated[
        list[str],
        typer.Argument(
            callback=known, help="models; the first is what the others are compared with"
        ),
    ],
    text: Texts = None,
    limit: Limit = None,
    out: ResultsOut = None,
    dry_run: DryRun = False,
    device: Device = "auto",
    dtype: Dtype = None,
    quiet: Quiet = False,
    **fields: Any,
) -> None:
    """How good are models, and what did pruning cost?

    Translation models: BLEU and chrF on parallel text, agreement with what the first model writes on one-sided text.
    Language models: perplexity. Classifiers: accuracy. Speech: word error rate. Models of embeddings: the rank
    correlation of similarities with the first model's, or with a table's (sentence1, sentence2, score). A study, as
    the first model, has a text of its own: test, or else dev; alone it is its full and its chosen model."""
    import headwise as hw

    search = given_search(context, fields)
    check_text(models[0], text)
    if len(models) == 1 and (chosen := chosen_in(models[0])):
        models = [*models, chosen]
    from headwise.faces.cli.terminal import show_quality
    from headwise.models.evaluation.quality import Quality, evaluation_forecast, refuse_other_tasks

    work = Work("evaluate", models, Quality.FILES, out, quiet, dry_run)
    loaded = [hw.load(name, device, dtype=dtype) for name in models]
    refuse_other_tasks(loaded)
    how: Any = {"limit": limit, "progress": work.progress, "outline": dry_run}
    given = read_text(loaded[0], models[0], text, "test", **how)
    work.do(
        lambda: [hw.evaluate(loaded, given, search=search, progress=work.progress)],
        partial(evaluation_forecast, loaded, given, search),
        show=show_quality,
    )


ENGINE_NAMES = ", ".join(engine)


def export(
    model: ModelName,
    to: Annotated[str | None, typer.Option("--to", help=f"the engine: {ENGINE_NAMES}")] = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", metavar="FOLDER", help="new folder to write to")
    ] = None,
    dtype: Annotated[
        str | None,
        typer.Option("--dtype", help="of the weights: float16, bfloat16, float32, q8_0 or int8"),
    ] = None,
    attention: Annotated[
        list[str] | None,
        typer.Option(
            "--attention",
            metavar="HEAD",
            help="also give the attention weights of a head, such as decoder-self/2/1; repeatable; ONNX only",
        ),
    ] = None,
    list_: Annotated[
        bool, typer.Option("--list", help="say which engines can run this model")
    ] = False,
    quiet: Quiet = False,
) -> None:
    """Write a model, pruned or not, for the engine that runs it; of a finished study its chosen model."""
    import headwise as hw

    if not list_ and to is None:
        raise HeadwiseError(
            f"No engine was named: give --to with {ENGINE_NAMES}, or ask with --list."
        )
    if to is not None and to not in engine:
        raise HeadwiseError(engine.unknown(to))
    if out is not None:
        Folder(out).refuse_used(hidden=True)
    chosen = chosen_in(model)
    if chosen is None and study_in(model) is not None:
        raise HeadwiseError(
            f"The study in {model} chose no smaller model: name one of {model}/pruned/, or {model}/model for the full one."
        )
    loaded = hw.load(chosen or model)
    if list_ or to is None:
        for line in engine_lines(loaded):
            write(Console(highlight=False), line)
        return

    notes: list[str] = []
    place = out or Path("runs") / f"{Path(loaded.name).name}-{to}"
    hw.export(loaded, to, place, dtype, say=notes.append, attention=attention or ())
    if not quiet:
        for note in [heads_note(loaded), *notes]:
            write(Console(highlight=False), f"  {note}")
    typer.echo(str(place))


def check(
    path: Annotated[
        Path,
        typer.Argument(help="a model's folder, or a GGUF, ONNX or .pt2 file that export wrote"),
    ],
    original: Annotated[
        str | None,
        typer.Option(
            "--original",
            metavar="MODEL",
            help="the model that heads were removed from, or that was exported",
        ),
    ] = None,
) -> None:
    """Are the files of a smaller or exported model right?

    Reads them back: their sums, their outputs compared with the original's, and whether the engine takes them. The exit
    status is 1 where something is wrong."""
    from headwise.models.engines.check import check as read_back
    from headwise.models.loading import load

    found = read_back(path, load(original) if original else None)
    write(Console(highlight=False), str(found))
    if not found.good:
        wrong = [finding.what for finding in found.findings if finding.good is False]
        raise HeadwiseError(f"{path} is not as it should be: {', '.join(wrong)}.")


def heads_note(model: Model) -> str:
    """`greedy-repair-2: 2 of 8 heads`."""
    left = model.heads_left
    return f"{Path(model.name).name}: {len(left)} of {left.heads.total} heads"


def engine_lines(model: Model) -> list[str]:
    """The table of engines, a line each."""
    lines = []
    for name, entry in engine.items():
        reason = entry.why_not(model)
        filled = name == "stock" and not model.is_stock
        answer = "yes, with heads of zeros, which may save nothing" if filled else "yes"
        lines.append(f"  {name:7}{entry.title:14}{f'no: {reason}' if reason else answer}")
    return lines


def push(
    model: Annotated[
        str,
        typer.Argument(help="the folder of a model, or of a finished study, for its chosen model"),
    ],
    repo: Annotated[str, typer.Argument(help="owner/name on the hub")],
    export: Annotated[
        list[Path] | None,
        typer.Option(
            "--export",
            metavar="FOLDER",
            help="a folder that headwise export wrote, to go along; repeatable",
        ),
    ] = None,
    base_model: Annotated[
        str | None,
        typer.Option(
            "--base-model",
            metavar="OWNER/NAME",
            help="hub id of the model that this one was made from",
        ),
    ] = None,
    public: Annotated[bool, typer.Option("--public", help="make a new repository public")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="only show what would be sent, and send nothing")
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            "-o",
            metavar="FOLDER",
            help="with --dry-run: write the files to this new folder",
        ),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="send without asking")] = False,
    quiet: Quiet = False,
) -> None:
    """Send a model, with its card, to the Hugging Face hub.

    Shows first what would be sent, and asks."""
    from headwise.faces.hub import push as prepare

    if out is not None and not dry_run:
        raise HeadwiseError(
            f"--out {out} was given without --dry-run: nothing is written where files are sent."
        )
    if out is not None:
        Folder(out).refuse_used(hidden=True)
    upload = prepare(model, repo, export or (), base_model, public)
    # Nobody agrees to what was not shown.
    if not quiet or not yes or dry_run:
        write(Console(highlight=False), str(upload))
    if out is not None:
        typer.echo(str(upload.write(out)))
    elif dry_run:
        typer.echo("Nothing was sent: leave out --dry-run to send it.")
    # A script has nobody to ask, and must not hang.
    elif yes or (sys.stdin.isatty() and typer.confirm(f"Send this to {repo}?")):
        typer.echo(upload.send())
    else:
        typer.echo("Nothing was sent: --yes sends it.")
