"""`prune`: a smaller model. The command builds a plan of one sweep and runs it, like `study`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headwise.cli.export import runs_in
from headwise.cli.options import (
    NO_TEXT,
    Device,
    DevSource,
    DevTarget,
    LabelledFile,
    ModelName,
    OneSided,
    Out,
    Quiet,
    Seed,
    Set,
    Source,
    Target,
    folder,
    refuse_twice,
    study_in,
    text_spec,
)
from headwise.cli.study import run_plan
from headwise.devices import memory_line
from headwise.errors import HeadwiseError
from headwise.options import Gates, Greedy, TopK, checked, keep_name, several

if TYPE_CHECKING:
    from headwise.model import Model
    from headwise.tasks import AnyText


def prune(
    model: ModelName,
    source: Source = None,
    target: Target = None,
    dev_source: DevSource = None,
    dev_target: DevTarget = None,
    test_source: Annotated[
        str | None, typer.Option("--test-source", help="text for the final numbers")
    ] = None,
    test_target: Annotated[
        str | None, typer.Option("--test-target", help="its target side")
    ] = None,
    text: OneSided = None,
    dev_text: Annotated[
        str | None, typer.Option("--dev-text", help="one-sided text that choices are made on")
    ] = None,
    labelled: LabelledFile = None,
    dev_labelled: Annotated[
        str | None, typer.Option("--dev-labelled", help="labelled text that choices are made on")
    ] = None,
    penalty: Annotated[
        list[float] | None, typer.Option("--penalty", help="λ of the gates, repeatable")
    ] = None,
    keep: Annotated[
        list[str] | None,
        typer.Option("--keep", help="how many heads stay: N, or KIND=N for each kind; repeatable"),
    ] = None,
    max_drop: Annotated[
        float | None,
        typer.Option(
            "--max-drop",
            help="BLEU, % of perplexity or points of accuracy that may be lost on dev (0.5)",
        ),
    ] = None,
    kinds: Annotated[
        str | None, typer.Option("--kinds", help="encoder-self,decoder-self,cross")
    ] = None,
    unit: Annotated[
        str | None,
        typer.Option("--unit", help="what goes at once: head, balanced, group or uniform"),
    ] = None,
    method: Annotated[
        str | None,
        typer.Option("--method", help="gates, top-k or greedy (no training; for any model)"),
    ] = None,
    score: Annotated[
        str | None, typer.Option("--score", help="greedy: a measure, random or weight-norm")
    ] = None,
    rescore: Annotated[
        bool, typer.Option("--rescore", help="greedy: score again after every step")
    ] = False,
    compensate: Annotated[
        bool, typer.Option("--compensate", help="greedy: mean outputs stay in the biases")
    ] = False,
    out: Out = Path("runs/prune"),
    seed: Seed = 1,
    device: Device = "cpu",
    quiet: Quiet = False,
    set_: Set = None,
) -> None:
    """Prune heads: with gates to a penalty or a number of heads (on language models if --method or --penalty says so),
    or greedily without training. Chooses on the dev text (by default every tenth sentence); writes smaller models,
    tables and a report; of a classifier (--labelled) one smaller model and its accuracy. MODEL may be the folder of a
    study: without a text, its texts are taken."""
    import headwise as hw
    from headwise.study import make_plan
    from headwise.study.plan import Data

    data = {
        "train": text_spec(source, target, text),
        "dev": text_spec(dev_source, dev_target, dev_text, "dev-"),
        "test": text_spec(test_source, test_target, None, "test-"),
    }
    named = {key: spec for key, spec in data.items() if spec}
    if labelled is not None or dev_labelled is not None:
        if named or labelled is None:
            raise HeadwiseError(
                "Labelled text is --labelled and perhaps --dev-labelled, without any other text."
            )
        if set_:
            raise HeadwiseError(
                "--set changes a plan, and a classifier is pruned without one: leave it out."
            )
        counts = target_counts(keep or [])
        goals = [
            *(("penalty", value) for value in penalty or []),
            *(("keep", count) for count in counts),
            *(("max_drop", value) for value in [max_drop] if value is not None),
        ]
        if len(goals) != 1:
            raise HeadwiseError(
                f"A classifier is pruned to one goal, but {len(goals) or 'none'} were given: give one --penalty, "
                "--keep or --max-drop."
            )
        options = {
            **dict(goals),
            "score": score,
            "rescore": rescore or None,
            "compensate": compensate or None,
            "unit": unit,
            "kinds": chosen_kinds(kinds, counts),
        }
        made_by = method or ("gates" if "penalty" in options else "greedy")
        classifier(
            model, labelled, dev_labelled, options_of(made_by, options), seed, device, out, quiet
        )
        return
    if data["train"] is None:
        if (study := study_in(model)) is None:
            raise HeadwiseError(NO_TEXT)
        named = {**study.plan.data.model_dump(exclude_none=True), **named}
    one_sided = Data.model_validate(named).one_sided
    method = method or ("greedy" if one_sided and not penalty else "gates")
    counts = target_counts(keep or [])
    chosen = chosen_kinds(kinds, counts)
    if one_sided:
        loaded = hw.load(model, device)
        if not loaded.task.has_loss:
            if method != "greedy":
                raise HeadwiseError(
                    f"{model} is a {type(loaded.hf).__name__}, which predicts no words, so gates have no loss to train "
                    "by: give --method greedy --keep N."
                )
            if len(counts) != 1 or max_drop is not None or penalty or set_:
                raise HeadwiseError(
                    f"{model} is a {type(loaded.hf).__name__}, which predicts no words, so models cannot be compared "
                    "by a loss: give one number of heads with --keep N, without --max-drop, --penalty and --set."
                )
            options = {
                "keep": counts[0],
                "kinds": chosen,
                "score": score or loaded.task.usual_score,
                "rescore": rescore,
                "compensate": compensate,
                "unit": unit,
            }
            cut(
                loaded,
                hw.Text.read(named["train"]),
                hw.Text.read(named["dev"]) if "dev" in named else None,
                checked(Greedy, options, "headwise prune"),
                seed,
                out,
                quiet,
            )
            return
        chosen = chosen or list(loaded.heads.kinds)
    refuse_twice(
        {"pruning.penalty": penalty, "pruning.keep": counts, "choice.max_drop": max_drop},
        set_ or [],
    )
    sweep = {
        "method": method,
        "kinds": chosen,
        "unit": unit,
        "penalty": penalty,
        "keep": counts,
        "score": [score or "gradient"] if method == "greedy" or score else None,
        "rescore": rescore,
        "compensate": compensate,
    }
    one = (method != "greedy" and len(penalty or []) + len(counts) == 1) or (
        method == "greedy" and counts
    )
    given: dict[str, Any] = {
        "name": "prune",
        "seed": seed,
        "model": model,
        "data": named,
        "pruning": {key: value for key, value in sweep.items() if value},
        "choice": {
            "max_drop": "any" if one and max_drop is None else 0.5 if max_drop is None else max_drop
        },
        "scoring": {"measures": [], "pruned": []},
    }
    run_plan(make_plan(given, set_ or [], "headwise prune"), out, quiet, device, result="pruned")


def options_of(method: str, given: dict[str, Any]) -> Gates | TopK | Greedy:
    """The options of a method, of those that were given."""
    classes: dict[str, type[Gates | TopK | Greedy]] = {
        "gates": Gates,
        "top-k": TopK,
        "greedy": Greedy,
    }
    if method not in classes:
        raise HeadwiseError(f"--method {method} was given; there is {', '.join(classes)}.")
    return checked(
        classes[method],
        {name: value for name, value in given.items() if value is not None},
        f"headwise prune --method {method}",
    )


def cut(
    model: Model,
    text: AnyText,
    dev: AnyText | None,
    options: Greedy,
    seed: int,
    out: Path,
    quiet: bool,
) -> None:
    """Prune a model that predicts no words, such as one of sentence embeddings, by a score that needs none.

    There is no loss that a study could compare models by, so this writes one smaller model and no report.
    """
    import headwise as hw
    from headwise.cli.tables import show_kept
    from headwise.progress import Progress

    progress = Progress(quiet)
    with progress.bar("prune"):
        small = hw.prune(model, text, options, dev=dev, seed=seed, progress=progress)
    (keep,) = several(options.keep)
    place = small.save(folder(out) / "pruned" / f"{options.score}-{keep_name(keep)}")
    progress.say(
        f"{small.heads.total} of {model.heads.total} heads left, {small.parameters:,} of {model.parameters:,} "
        f"parameters, {small.weight_bytes:,} of {model.weight_bytes:,} bytes of weights. "
        "No loss was measured: the model predicts no words, so judge it on the task it is for."
    )
    show_kept(progress.console, {place.name: small.layout})
    progress.say(runs_in(small, place))
    progress.say(memory_line())
    typer.echo(str(place))


def classifier(
    name: str,
    labelled: str,
    dev_labelled: str | None,
    options: Gates | TopK | Greedy,
    seed: int,
    device: str,
    out: Path,
    quiet: bool,
) -> None:
    """Prune a classifier to one goal, and measure both models on dev. Writes the model and quality.csv, no report."""
    import headwise as hw
    from headwise.cli.tables import show_kept
    from headwise.heads import write_text
    from headwise.progress import Progress
    from headwise.tasks import held_out

    text: AnyText = hw.LabelledText.open(labelled)
    text, dev = (
        held_out(text) if dev_labelled is None else (text, hw.LabelledText.open(dev_labelled))
    )
    progress = Progress(quiet)
    model = hw.load(name, device)
    with progress.bar("prune"):
        small = hw.prune(model, text, options, dev=dev, seed=seed, progress=progress)
    method = {Gates: "gates", TopK: "top-k", Greedy: "greedy"}[type(options)]
    place = small.save(folder(out) / "pruned" / f"{method}-{goal_name(options)}")
    with progress.bar("evaluate"):
        table = hw.evaluate([model, small], dev, progress=progress).table
    write_text(out / "quality.csv", table.to_csv(index=False, float_format="%.6g"))
    for measure in ("accuracy", "parameters", "memory"):
        before, after = table.loc[table["measure"] == measure, "value"]
        progress.say(
            f"  {measure}: {before:,.10g} before, {after:,.10g} after{' (% on dev)' * (measure == 'accuracy')}"
        )
    show_kept(progress.console, {place.name: small.layout})
    progress.say(runs_in(small, place))
    typer.echo(str(place))


def goal_name(options: Gates | TopK | Greedy) -> str:
    """How far options prune, for the name of a folder: `keep-4`, `penalty-0.1`."""
    for name in ("penalty", "max_drop"):
        value = getattr(options, name, None)
        if value is not None:
            return f"{name.replace('_', '-')}-{value:g}"
    (keep,) = several(options.keep)
    return f"keep-{keep_name(keep)}"


def target_counts(keep: list[str]) -> list[int | dict[str, int]]:
    """Target counts: `10`, each a model of its own; or one model with a number for every kind named."""
    parts = [
        (kind.strip(), number.strip())
        for kind, _, number in (word.rpartition("=") for word in keep)
    ]
    for (kind, number), word in zip(parts, keep, strict=True):
        if not number.isdecimal() or (not kind and "=" in word) or len(number) > 6:
            raise HeadwiseError(
                f"--keep {word[:100]} was given: write a number of heads, or KIND=NUMBER."
            )
    kinds = [kind for kind, _ in parts if kind]
    if not kinds:
        return [int(number) for _, number in parts]
    if len(kinds) < len(parts) or len(set(kinds)) < len(kinds):
        raise HeadwiseError(
            f"--keep {' --keep '.join(keep)} was given: give each kind one number, or all heads one."
        )
    return [{kind: int(number) for kind, number in parts}]


def chosen_kinds(kinds: str | None, counts: list[int | dict[str, int]]) -> list[str] | None:
    """The kinds that are named, by --kinds or by target counts."""
    if kinds is not None:
        return list(dict.fromkeys(kind.strip() for kind in kinds.split(",")))
    return [kind for keep in counts if isinstance(keep, dict) for kind in keep] or None
