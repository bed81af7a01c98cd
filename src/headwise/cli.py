"""The command line: thin. Every command calls the function that Python users call, prints what it wrote and the next command to try."""

from __future__ import annotations

import errno
import json
import os
import sys
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any

import typer

os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")

app = typer.Typer(
    help="The story of every attention head in a Transformer.", no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False,
    rich_markup_mode=None,
)  # fmt: skip
data_app = typer.Typer(help="Public text: list it, fetch it with checksums.", no_args_is_help=True)
app.add_typer(data_app, name="data")

Out = Annotated[Path, typer.Option("--out", help="folder to write to")]
Device = Annotated[str, typer.Option("--device", help="cpu, cuda, cuda:1 …")]
Seed = Annotated[int, typer.Option("--seed", help="seed of everything that draws")]
Quiet = Annotated[bool, typer.Option("--quiet", help="print nothing but the result")]
Set = Annotated[list[str] | None, typer.Option("--set", help="change the plan: key=value, for example training.epochs=3; may be repeated")]
Source = Annotated[str | None, typer.Option("--source", help="source side of parallel text, gzip or plain; or one .tsv/.jsonl file")]
Target = Annotated[str | None, typer.Option("--target", help="target side of parallel text")]
DevSource = Annotated[str | None, typer.Option("--dev-source", help="source side of the dev text, on which choices are made")]
DevTarget = Annotated[str | None, typer.Option("--dev-target", help="target side of the dev text")]


def spec(source: str | None, target: str | None, what: str = "text") -> str | list[str]:
    """Parallel text as the options give it."""
    from headwise.errors import HeadwiseError

    if source is None:
        raise HeadwiseError(f"No {what} was given: name it with --source FILE --target FILE (--dev-source, --dev-target for the dev text).")
    return source if target is None else [source, target]


def study(plan: Any, out: Path, quiet: bool, device: str, only: str | None = None, final: str = "report.html") -> None:
    """Run a plan and say what came of it."""
    from headwise.report.page import write as write_report
    from headwise.study import Progress, run_study

    progress = Progress(quiet)
    progress.say(f"headwise: {plan.name} in {out}")
    run_study(plan, out, progress, only, device, write_report)
    if only is None:
        progress.say(summary(out))
    typer.echo(str(out / final))


def summary(out: Path) -> str:
    """The tables that were written, and what to do next."""
    chosen = json.loads((out / "run.json").read_text())["chosen"]
    lines = [f"Wrote {out}/report.html, heads.csv, pruning.csv, layouts/, pruned/, figures/."]
    if chosen:
        lines.append(f"Next: echo 'A sentence.' | headwise translate {out}/pruned/{chosen}")
    else:
        lines.append("No penalty kept BLEU within choice.max_drop on dev: try smaller penalties with --set 'pruning.penalties=[…]'.")
    return "\n".join(lines)


@app.command()
def demo(out: Out = Path("runs/demo"), seed: Seed = 1, device: Device = "cpu", quiet: Quiet = False, set_: Set = None) -> None:
    """The whole story on the embedded corpus: minutes on two CPU cores, no download."""
    from headwise.study import read_plan

    plan = read_plan(Path(str(files("headwise.study") / "demo.toml")), [f"seed={seed}", *(set_ or [])])
    study(plan, out, quiet, device)


@app.command("study")
def study_command(
    plan: Annotated[Path, typer.Argument(help="a TOML plan; examples/ has some")], out: Annotated[Path | None, typer.Option("--out")] = None,
    only: Annotated[str | None, typer.Option("--only", help="stop after this stage: train, score, prune, evaluate")] = None,
    set_: Set = None, seed: Annotated[int | None, typer.Option("--seed")] = None, device: Device = "cpu", quiet: Quiet = False,
) -> None:  # fmt: skip
    """The whole story on your data, as a plan says; resumable."""
    from headwise.study import read_plan

    read = read_plan(plan, [*(set_ or []), *([] if seed is None else [f"seed={seed}"])])
    study(read, out or Path("runs") / read.name, quiet, device, only)


@app.command()
def train(
    source: Source = None, target: Target = None, dev_source: DevSource = None, dev_target: DevTarget = None, out: Out = Path("runs/train"),
    seed: Seed = 1, device: Device = "cpu", quiet: Quiet = False, set_: Set = None,
) -> None:  # fmt: skip
    """Train a translation model; shape and recipe by --set model.… and --set training.…"""
    from headwise.study import make_plan

    data = {"train": spec(source, target), "dev": spec(dev_source, dev_target, "dev text")}
    plan = make_plan({"name": out.name, "seed": seed, "data": data}, set_ or [])
    study(plan, out, quiet, device, only="train", final="model")


@app.command()
def score(
    model: str, source: Source = None, target: Target = None, measures: Annotated[list[str] | None, typer.Option("--measure")] = None,
    out: Out = Path("runs/score"), device: Device = "cpu", seed: Seed = 0, quiet: Quiet = False,
) -> None:  # fmt: skip
    """How much does every head matter? Writes heads.csv."""
    import headwise as hw

    text = hw.ParallelText.open(spec(source, target))
    scores = hw.score(hw.load(model, device), text, measures or ["confidence"], seed=seed)
    scores.save(out / "heads.csv")
    if not quiet:
        typer.echo(f"Next: headwise prune {model} --source … --target … --dev-source … --dev-target … --penalty 0.01", err=True)
    typer.echo(str(out / "heads.csv"))


@app.command()
def prune(
    model: str, source: Source = None, target: Target = None, dev_source: DevSource = None, dev_target: DevTarget = None,
    penalty: Annotated[list[float] | None, typer.Option("--penalty", help="λ, may be repeated")] = None,
    max_drop: Annotated[float, typer.Option("--max-drop", help="largest loss in dev BLEU of the model that is chosen")] = 0.5,
    kinds: Annotated[str, typer.Option("--kinds", help="encoder-self,decoder-self,cross")] = "encoder-self",
    out: Out = Path("runs/prune"), seed: Seed = 1, device: Device = "cpu", quiet: Quiet = False, set_: Set = None,
) -> None:  # fmt: skip
    """Prune heads with gates over one or more penalties; choose on the dev text; write the smaller models and a report."""
    from headwise.study import make_plan

    pruning: dict[str, Any] = {"kinds": kinds.split(",")}
    if penalty:
        pruning["penalties"] = penalty
    data = {"train": spec(source, target), "dev": spec(dev_source, dev_target, "dev text")}
    told = {"name": out.name, "seed": seed, "model": model, "data": data, "pruning": pruning, "choice": {"max_drop": max_drop}}
    study(make_plan(told, set_ or []), out, quiet, device)


@app.command()
def evaluate(
    models: Annotated[list[str], typer.Argument(help="models; the first is what the others are held against")],
    source: Source = None, target: Target = None, out: Out = Path("runs/evaluate"), device: Device = "cpu", quiet: Quiet = False,
    beam: Annotated[int, typer.Option("--beam")] = 5,
) -> None:  # fmt: skip
    """BLEU and chrF of models on parallel text, with intervals and the paired difference to the first."""
    import headwise as hw
    from headwise.heads import write_text

    table = hw.evaluate([hw.load(name, device) for name in models], hw.ParallelText.open(spec(source, target)), beam=beam)
    write_text(out / "quality.csv", table.to_csv(index=False, float_format="%.6g"))
    if not quiet:
        typer.echo(table.to_string(index=False), err=True)
    typer.echo(str(out / "quality.csv"))


@app.command()
def translate(
    model: str, source: Annotated[Path | None, typer.Option("--source", help="a sentence a line; standard input by default")] = None,
    out: Annotated[Path | None, typer.Option("--out", help="file to write; standard output by default")] = None,
    beam: Annotated[int, typer.Option("--beam")] = 5, device: Device = "cpu",
) -> None:  # fmt: skip
    """Translate sentences, one a line, with any translation model or a pruned one."""
    import headwise as hw
    from headwise.data.text import read_lines
    from headwise.heads import write_text

    lines = list(read_lines(source)) if source else [line.strip() for line in sys.stdin]
    written = hw.load(model, device).translate(lines, beam=beam) if lines else []
    text = "".join(f"{line}\n" for line in written)
    if out:
        write_text(out, text)
    else:
        sys.stdout.write(text)


@app.command()
def report(run: Annotated[Path, typer.Argument(help="the folder of a finished study")]) -> None:
    """Write the report page and its figures again."""
    from headwise.report.page import write as write_report

    typer.echo(str(write_report(run)))


@data_app.command("list")
def data_list() -> None:
    """What can be fetched."""
    from headwise.data.catalogue import listing

    for row in listing():
        typer.echo("  ".join(str(value) for value in row.values()))


@data_app.command("get")
def data_get(name: str, out: Annotated[Path | None, typer.Option("--out", help="folder; a cache by default")] = None) -> None:
    """Fetch one set, check it, and say where it lies."""
    from headwise.data.catalogue import get

    typer.echo(str(get(name, out)))


def guarded(run: Callable[[], None]) -> int:
    """Run the command line; whatever the user can mend is one sentence on the error stream and an exit status of 1."""
    from headwise.errors import HeadwiseError

    try:
        run()
    except HeadwiseError as error:
        return complain(str(error))
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EROFS, errno.EPERM):
            return complain(f"{error.filename or 'A file'} could not be written ({error.strerror}): make room or choose another --out.")
        raise
    except KeyboardInterrupt:
        return complain("Stopped. Run the same command again to go on where it was.")
    return 0


def complain(text: str) -> int:
    print(f"headwise: {text}", file=sys.stderr)
    return 1


def main() -> None:
    """The `headwise` command."""
    import datasets
    import transformers

    datasets.disable_progress_bars()
    transformers.logging.disable_progress_bar()
    transformers.logging.set_verbosity_error()
    sys.exit(guarded(app))


if __name__ == "__main__":
    main()
