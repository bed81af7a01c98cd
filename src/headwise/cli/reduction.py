"""Commands that make smaller models, say what they are worth, and give them away: `prune`, `evaluate`, `export`, `push`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from headwise.cli.arguments import (
    NO_TEXT,
    Beam,
    Device,
    DevTexts,
    DryRun,
    Dtype,
    EngineName,
    ModelName,
    Out,
    Quiet,
    Seed,
    Set,
    TestTexts,
    Texts,
    check_text,
    folder,
    known,
    option_description,
    read_text,
    refuse_twice,
    study_in,
    text_spec,
)
from headwise.cli.studies import run_plan, say_cost, where_it_runs
from headwise.devices import memory_line
from headwise.engines.engine import engine
from headwise.errors import HeadwiseError
from headwise.options import Gates, Greedy, Unit, keep_name, validated

if TYPE_CHECKING:
    from headwise.model import Model
    from headwise.study import Plan
    from headwise.tasks import Task


Method = Literal["gates", "top-k", "greedy"]
MAX_DROP = 0.5  # on dev, where nothing says how far to prune


def prune(
    model: ModelName,
    text: Texts = None,
    dev: DevTexts = None,
    test: TestTexts = None,
    penalty: Annotated[
        list[float] | None,
        typer.Option("--penalty", help=f"{option_description(Gates, 'penalty')}; repeatable"),
    ] = None,
    keep: Annotated[
        list[str] | None,
        typer.Option("--keep", help="how many heads stay: N, or KIND=N for each kind; repeatable"),
    ] = None,
    max_drop: Annotated[
        float | None,
        typer.Option("--max-drop", help=f"{option_description(Greedy, 'max_drop')} ({MAX_DROP})"),
    ] = None,
    kinds: Annotated[
        str | None,
        typer.Option("--kinds", help="heads that may be removed: encoder-self,decoder-self,cross"),
    ] = None,
    unit: Annotated[
        Unit | None, typer.Option("--unit", help="heads that are removed together")
    ] = None,
    method: Annotated[
        Method | None,
        typer.Option(
            "--method",
            help="gates and top-k train; greedy removes heads in the order of a measure, without training. By default "
            "gates for translation models and where --penalty is given, else greedy",
        ),
    ] = None,
    measure: Annotated[
        str | None, typer.Option("--measure", help=f"greedy: {option_description(Greedy, 'score')}")
    ] = None,
    rescore: Annotated[
        bool, typer.Option("--rescore", help=f"greedy: {option_description(Greedy, 'rescore')}")
    ] = False,
    compensate: Annotated[
        bool,
        typer.Option("--compensate", help=f"greedy: {option_description(Greedy, 'compensate')}"),
    ] = False,
    out: Out = Path("runs/prune"),
    seed: Seed = 1,
    device: Device = "auto",
    dtype: Dtype = None,
    dry_run: DryRun = False,
    quiet: Quiet = False,
    set_: Set = None,
) -> None:
    """Prune heads: with gates to a penalty or a number of heads, or greedily without training.

    Chooses on the dev text
    (by default every tenth sentence); writes smaller models, tables and a report. MODEL may be the folder of a study:
    without a text, its texts are taken."""
    from headwise.study import make_plan
    from headwise.study.ownership import refuse_foreign_files

    texts = {
        "train": text_spec(text),
        "dev": text_spec(dev, "--dev"),
        "test": text_spec(test, "--test"),
    }
    named: dict[str, Any] = {split: spec for split, spec in texts.items() if spec}
    counts = parse_target_counts(keep or [])
    refuse_twice(
        {"pruning.penalty": penalty, "pruning.keep": counts, "choice.max_drop": max_drop},
        set_ or [],
    )
    if texts["train"] is None:
        study = study_in(model)
        if study is None:
            raise HeadwiseError(NO_TEXT)
        named = {**study.plan.data.model_dump(exclude_none=True), **named}

    def plan_of(method: str, kinds: list[str] | None) -> Plan:
        """The plan that these words stand for."""
        sweep = {
            "method": method,
            "kinds": kinds,
            "unit": unit,
            "penalty": penalty,
            "keep": counts,
            "score": [measure or "gradient"] if method == "greedy" or measure else None,
            "rescore": rescore,
            "compensate": compensate,
        }
        # One model was asked for: then it is the choice, whatever it costs.
        one = bool(counts) if method == "greedy" else len(penalty or []) + len(counts) == 1
        limit: float | str = "any" if one else MAX_DROP
        given: dict[str, Any] = {
            "name": "prune",
            "seed": seed,
            "model": model,
            "data": named,
            "pruning": {key: value for key, value in sweep.items() if value},
            "choice": {"max_drop": limit if max_drop is None else max_drop},
            "scoring": {"measures": [], "pruned": []},
        }
        return make_plan(given, set_ or [], "headwise prune")

    chosen = chosen_kinds(kinds, counts)
    if method or penalty:  # wrong words are refused before torch is loaded
        plan_of(method or "gates", chosen)
        refuse_foreign_files(out)
        if not dry_run:
            folder(out)
    from headwise.loading import load, task_class

    task = task_class(model)
    if task.quality is None:
        refuse_goals_without_loss(model, task, method, counts, bool(max_drop or penalty or set_))
        options = {
            "keep": counts[0],
            "kinds": chosen,
            "score": measure or task.usual_score,
            "rescore": rescore,
            "compensate": compensate,
            "unit": unit,
        }
        greedy = validated(Greedy, options, "headwise prune")
        prune_without_loss(model, named, greedy, seed, device, dtype, out, quiet)
        return
    if dtype is not None:
        raise HeadwiseError(
            f"--dtype {dtype} was given, but {model} is pruned with the type of its weights as saved: leave it out."
        )
    method = method or ("gates" if task.trains_gates_by_default or penalty else "greedy")
    plan = plan_of(method, chosen)
    if chosen is None and not task.trains_gates_by_default:
        plan = plan_of(method, list(load(model).task.usual_kinds))
    if dry_run:
        say_cost(plan, out, device)
        return
    run_plan(plan, out, quiet, device, result="pruned")


def refuse_goals_without_loss(
    model: str, task: type[Task], method: str | None, counts: list[Any], others: bool
) -> None:
    """Refuse what a model without a loss cannot be pruned to."""
    if method not in (None, "greedy"):
        raise HeadwiseError(
            f"{model} is {task.noun}, so gates have no loss to train by: give --method greedy --keep N."
        )
    if len(counts) != 1 or others:
        raise HeadwiseError(
            f"{model} is {task.noun}, so models cannot be compared by a loss: give one number of heads with --keep N, "
            "without --max-drop, --penalty and --set."
        )


def prune_without_loss(
    name: str,
    texts: dict[str, Any],
    options: Greedy,
    seed: int,
    device: str,
    dtype: str | None,
    out: Path,
    quiet: bool,
) -> None:
    """Prune a model that predicts nothing, such as one of sentence embeddings, by a measure that needs no loss.

    There is no loss that a study could compare models by, so this writes one smaller model and no report.
    """
    import headwise as hw
    from headwise.cli.terminal import show_kept
    from headwise.progress import Progress

    progress = Progress(quiet)
    model = hw.load(name, device, dtype=dtype)
    text = model.task.read(texts["train"])
    dev = model.task.read(texts["dev"]) if "dev" in texts else None
    with progress.bar("prune"):
        small = hw.prune(model, text, options, dev=dev, seed=seed, progress=progress)
    keep: Any = options.keep
    place = small.save(folder(out) / "pruned" / f"{options.score}-{keep_name(keep)}")
    progress.say(
        f"{small.heads.total} of {model.heads.total} heads left, {small.parameters:,} of {model.parameters:,} "
        f"parameters, {small.weight_bytes:,} of {model.weight_bytes:,} bytes of weights. "
        "No loss was measured: the model predicts nothing, so judge it on the task it is for."
    )
    show_kept(progress.console, {place.name: small.layout})
    progress.say(where_it_runs(small, place))
    progress.say(memory_line())
    typer.echo(str(place))


def parse_target_counts(keep: list[str]) -> list[int | dict[str, int]]:
    """Target counts: `10`, each a model of its own; or one model with a number for every kind named."""
    parts = []
    for word in keep:
        kind, equals, number = word.rpartition("=")
        kind, number = kind.strip(), number.strip()
        if not number.isdecimal() or (equals and not kind) or len(number) > 6:
            raise HeadwiseError(
                f"--keep {word[:100]} was given: write a number of heads, or KIND=NUMBER."
            )
        parts.append((kind, int(number)))
    kinds = [kind for kind, _ in parts if kind]
    if not kinds:
        return [number for _, number in parts]
    if len(kinds) < len(parts) or len(set(kinds)) < len(kinds):
        raise HeadwiseError(
            f"--keep {' --keep '.join(keep)} was given: give each kind one number, or all heads one."
        )
    return [dict(parts)]


def chosen_kinds(kinds: str | None, counts: list[int | dict[str, int]]) -> list[str] | None:
    """The kinds that are named, by --kinds or by target counts."""
    if kinds is not None:
        return list(dict.fromkeys(kind.strip() for kind in kinds.split(",")))
    named = [kind for keep in counts if isinstance(keep, dict) for kind in keep]
    return named or None


def evaluate(
    models: Annotated[
        list[str],
        typer.Argument(
            callback=known, help="models; the first is what the others are compared with"
        ),
    ],
    text: Texts = None,
    out: Out = Path("runs/evaluate"),
    device: Device = "auto",
    dtype: Dtype = None,
    quiet: Quiet = False,
    beam: Beam = 5,
    engine: EngineName = "transformers",
) -> None:
    """What models are worth, with intervals, and the difference to the first.

    BLEU and chrF on parallel text, perplexity on one-sided text, accuracy on labelled text. The first may be the folder
    of a study: without a text, its test text is taken, or else its dev text."""
    import headwise as hw
    from headwise.cli.terminal import show_quality
    from headwise.options import validated
    from headwise.progress import Progress

    check_text(models[0], text)
    progress = Progress(quiet)
    place = folder(out)
    with progress.bar("evaluate"):
        loaded = [hw.load(name, device, dtype=dtype) for name in models]
        given = read_text(loaded[0], models[0], text, "test")
        search = validated(hw.Search, {"beam": beam, "engine": engine}, "evaluate")
        quality = hw.evaluate(
            loaded,
            given,
            search=search if loaded[0].task.generates or engine != "transformers" else None,
            progress=progress,
        )
    place = quality.save(place)
    show_quality(progress.console, quality.table)
    progress.say(memory_line())
    typer.echo(str(place))


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


def engine_lines(model: Model) -> list[str]:
    """The table of engines, a line each."""
    lines = []
    for name, entry in engine.items():
        reason = entry.why_not(model)
        lines.append(f"  {name:6}{entry.title:14}{f'no: {reason}' if reason else 'yes'}")
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
