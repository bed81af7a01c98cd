"""The command line: thin. Every command calls the function that Python users call, prints what it wrote and the next
command to try. Libraries are imported where they are used: `--help` and a mistyped option answer at once.
"""

from __future__ import annotations

import errno
import json
import os
import sys
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headwise.errors import HeadwiseError

if TYPE_CHECKING:
    from headwise.study import Plan

app = typer.Typer(
    help="The story of every attention head in a Transformer.", no_args_is_help=True, add_completion=False,
    pretty_exceptions_enable=False, rich_markup_mode=None,
)  # fmt: skip
data_app = typer.Typer(help="Public text: list it, fetch it with checksums.", no_args_is_help=True)
app.add_typer(data_app, name="data")


def usable(device: str) -> str:
    """A device that torch can put tensors on."""
    if device != "cpu":
        import torch

        try:
            torch.empty(1, device=device)
        except (RuntimeError, AssertionError) as error:
            reason = str(error).splitlines()[0].rstrip(".")
            raise HeadwiseError(f"--device {device} was asked for, but torch cannot use it ({reason}).") from None
    return device


Out = Annotated[Path, typer.Option("--out", help="folder to write to")]
Device = Annotated[str, typer.Option("--device", help="cpu, cuda, cuda:1 …", callback=usable)]
Seed = Annotated[int, typer.Option("--seed", min=0, help="seed of everything that draws")]
Quiet = Annotated[bool, typer.Option("--quiet", help="print nothing but the result")]
Beam = Annotated[int, typer.Option("--beam", min=1, help="hypotheses that are followed at once")]
Set = Annotated[
    list[str] | None, typer.Option("--set", help="change the plan: key=value, such as training.epochs=3; repeatable")
]
Source = Annotated[str | None, typer.Option("--source", help="source side of parallel text; or one .tsv/.jsonl file")]
Target = Annotated[str | None, typer.Option("--target", help="target side of parallel text")]
DevSource = Annotated[str | None, typer.Option("--dev-source", help="source side of the text that choices are made on")]
DevTarget = Annotated[str | None, typer.Option("--dev-target", help="target side of the dev text")]


def spec(source: str | None, target: str | None, dev: bool = False) -> str | list[str]:
    """Parallel text as the options give it."""
    if source is None:
        what, option = ("dev text", "--dev-") if dev else ("text", "--")
        raise HeadwiseError(f"No {what} was given: name it with {option}source FILE {option}target FILE.")
    return source if target is None else [source, target]


def folder(out: Path) -> Path:
    """The folder to write to, made before the work begins: a place that cannot be written shows at once."""
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise HeadwiseError(f"{out} was to be written to, but that is not possible ({error.strerror}).") from None
    return out


def study(plan: Plan, out: Path, quiet: bool, device: str, only: str | None = None, final: str = "") -> None:
    """Run a plan and say what came of it."""
    from accelerate import PartialState

    from headwise.report import write
    from headwise.study import Progress, run_study

    progress = Progress(quiet)
    try:
        run_study(plan, out, progress, only, device, write)
    except KeyboardInterrupt:
        raise HeadwiseError("Stopped. Run the same command again to go on where it was.") from None
    if PartialState().is_main_process:
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
        lines.append(
            "No penalty kept BLEU within choice.max_drop on dev: try smaller ones, --set 'pruning.penalties=[…]'."
        )
    return "\n".join(lines)


@app.command()
def demo(
    out: Out = Path("runs/demo"), seed: Seed = 1, device: Device = "cpu", quiet: Quiet = False, set_: Set = None
) -> None:
    """The whole story on the embedded corpus: minutes on two CPU cores, no download."""
    from headwise.study import read_plan

    plan = read_plan(Path(str(files("headwise.study") / "demo.toml")), [f"seed={seed}", *(set_ or [])])
    study(plan, out, quiet, device, final="report.html")


@app.command("study")
def study_command(
    plan: Annotated[Path, typer.Argument(help="a TOML plan; examples/ has some")],
    out: Annotated[Path | None, typer.Option("--out", help="folder to write to")] = None,
    only: Annotated[str | None, typer.Option("--only", help="stop after: train, score, prune, evaluate")] = None,
    set_: Set = None, seed: Annotated[int | None, typer.Option("--seed", min=0)] = None, device: Device = "cpu",
    quiet: Quiet = False,
) -> None:  # fmt: skip
    """The whole story on your data, as a plan says; resumable."""
    from headwise.study import read_plan

    read = read_plan(plan, [*(set_ or []), *([] if seed is None else [f"seed={seed}"])])
    study(read, out or Path("runs") / read.name, quiet, device, only, "" if only else "report.html")


@app.command()
def train(
    source: Source = None, target: Target = None, dev_source: DevSource = None, dev_target: DevTarget = None,
    out: Out = Path("runs/train"), seed: Seed = 1, device: Device = "cpu", quiet: Quiet = False, set_: Set = None,
) -> None:  # fmt: skip
    """Train a translation model; shape and recipe by --set model.… and --set training.…"""
    from headwise.study import make_plan

    data = {"train": spec(source, target), "dev": spec(dev_source, dev_target, dev=True)}
    study(make_plan({"name": "train", "seed": seed, "data": data}, set_ or []), out, quiet, device, "train", "model")


@app.command()
def score(
    model: str, source: Source = None, target: Target = None,
    text: Annotated[str | None, typer.Option("--text", help="one-sided text, for language models")] = None,
    measures: Annotated[
        list[str] | None, typer.Option("--measure", help="a name, or lrp, ablation, all; repeatable")
    ] = None,
    judged: Annotated[bool, typer.Option("--judge", help="hold the scores against exact ablation")] = False,
    out: Out = Path("runs/score"), device: Device = "cpu", seed: Seed = 0, quiet: Quiet = False,
) -> None:  # fmt: skip
    """How much does every head matter? Writes heads.csv, and with --judge which score to believe."""
    from accelerate import PartialState

    import headwise as hw
    from headwise.study.progress import Progress
    from headwise.study.scoring import USUAL, chosen, save_tables

    names = chosen(measures or USUAL)
    given = scored_text(source, target, text)
    main = PartialState(cpu=device == "cpu").is_main_process
    progress = Progress(quiet or not main)
    place = folder(out) / "heads.csv"
    with progress.stage("score"):
        table = hw.score(hw.load(model, device), given, names, seed, judged, progress)
    if main:
        for line in save_tables(table, place):
            progress.say(line)
        progress.say(f"Next: {after_scoring(model, table, text is None)}")
        typer.echo(str(place))


def scored_text(source: str | None, target: str | None, text: str | None) -> Any:
    """The text to score on, as the options give it: pairs for translation models, one-sided for all others."""
    import headwise as hw

    if text is None and source is None:
        told = "name it with --source FILE --target FILE, or with --text FILE for a language model."
        raise HeadwiseError(f"No text was given: {told}")
    if text is not None and (source or target):
        raise HeadwiseError("--text was given and --source or --target as well: one-sided text, or pairs, not both.")
    return hw.Text.read(text) if text is not None else hw.ParallelText.open(spec(source, target))


def after_scoring(model: str, table: Any, pairs: bool) -> str:
    """What to try when a model's heads have their scores."""
    if "faithfulness" not in table.attrs:
        return "the same command with --judge tells which of these scores to believe on this model."
    if pairs:
        return f"headwise prune {model} --source … --target … --dev-source … --dev-target … --penalty 0.01"
    return f"headwise roles {model} --treebank FILE.conllu"


@app.command()
def roles(
    model: str,
    treebank: Annotated[list[Path], typer.Option("--treebank", help="CoNLL-U file with trees; repeatable")],
    confirm: Annotated[
        list[Path] | None, typer.Option("--confirm", help="treebank to confirm roles on, instead of the other half")
    ] = None,
    source: Source = None, target: Target = None,
    training: Annotated[
        Path | None, typer.Option("--training", help="source side of the training text, for rare-token heads")
    ] = None,
    out: Out = Path("runs/roles"), device: Device = "cpu", seed: Seed = 0, quiet: Quiet = False,
) -> None:  # fmt: skip
    """What does every head do? Writes labels.csv, roles.csv and the table of all tests; --source and --target are
    sentence pairs that cross attention is tested on."""
    import headwise as hw
    from headwise.study.progress import Progress
    from headwise.study.roles import counted, save_roles, shown, signature

    trees, again = hw.Treebank.read(*treebank), hw.Treebank.read(*confirm) if confirm else None
    pairs = None if source is None else hw.ParallelText.open(spec(source, target))
    progress, place, done = Progress(quiet), folder(out), [0]
    loaded = hw.load(model, device)

    def forward(sentences: int) -> None:
        done[0] += sentences
        progress(min(1.0, done[0] / (len(trees) + len(again or ()) + len(pairs or ()))), "")

    with progress.stage("roles"):
        counts = counted(loaded, hw.Text.read(training) if training else None)
        found = hw.roles(loaded, trees, again, pairs, counts, seed, forward)
        save_roles(found, shown(loaded, trees, found, counts), signature(loaded, trees, again, seed), place)
    for line in [*found.warnings, *found.absent]:
        progress.say(f"  {line}")
    for row in found.labels.to_dict("records"):
        progress.say(f"  {row['kind']}/{row['layer']}/{row['head']}: {row['label']}")
    typer.echo(str(place / "labels.csv"))


@app.command()
def prune(
    model: str, source: Source = None, target: Target = None, dev_source: DevSource = None,
    dev_target: DevTarget = None,
    penalty: Annotated[list[float] | None, typer.Option("--penalty", help="λ, repeatable")] = None,
    max_drop: Annotated[float, typer.Option("--max-drop", help="dev BLEU that the chosen model may lose")] = 0.5,
    kinds: Annotated[str, typer.Option("--kinds", help="encoder-self,decoder-self,cross")] = "encoder-self",
    out: Out = Path("runs/prune"), seed: Seed = 1, device: Device = "cpu", quiet: Quiet = False, set_: Set = None,
) -> None:  # fmt: skip
    """Prune heads with gates over one or more penalties; choose on the dev text; write smaller models and a report."""
    from headwise.study import make_plan

    pruning: dict[str, Any] = {"kinds": kinds.split(",")}
    if penalty:
        pruning["penalties"] = penalty
    data = {"train": spec(source, target), "dev": spec(dev_source, dev_target, dev=True)}
    told = {"name": "prune", "seed": seed, "model": model, "data": data, "pruning": pruning}
    plan = make_plan({**told, "choice": {"max_drop": max_drop}}, set_ or [])
    study(plan, out, quiet, device, final="report.html")


@app.command()
def evaluate(
    models: Annotated[list[str], typer.Argument(help="models; the first is what the others are held against")],
    source: Source = None, target: Target = None, out: Out = Path("runs/evaluate"), device: Device = "cpu",
    quiet: Quiet = False, beam: Beam = 5,
) -> None:  # fmt: skip
    """BLEU and chrF of models on parallel text, with intervals and the paired difference to the first."""
    import headwise as hw
    from headwise.heads import write_text

    text = hw.ParallelText.open(spec(source, target))
    place = folder(out) / "quality.csv"
    table = hw.evaluate([hw.load(name, device) for name in models], text, beam=beam)
    write_text(place, table.to_csv(index=False, float_format="%.6g"))
    if not quiet:
        typer.echo(table.to_string(index=False), err=True)
    typer.echo(str(place))


@app.command()
def translate(
    model: str,
    source: Annotated[Path, typer.Option("--source", help="a sentence a line; standard input by default")] = Path("-"),
    out: Annotated[Path | None, typer.Option("--out", help="file to write; standard output by default")] = None,
    beam: Beam = 5, device: Device = "cpu",
) -> None:  # fmt: skip
    """Translate sentences, one a line, with any translation model or a pruned one."""
    import headwise as hw
    from headwise.data.text import read_lines
    from headwise.heads import write_text

    lines = list(read_lines(source)) if source != Path("-") else standard_input()
    loaded = hw.load(model, device)
    text = "".join(f"{line}\n" for line in (loaded.translate(lines, beam=beam) if lines else []))
    if out:
        write_text(out, text)
    else:
        sys.stdout.write(text)


def standard_input() -> list[str]:
    """The lines that came in."""
    try:
        text = sys.stdin.buffer.read().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise HeadwiseError(f"Standard input is not UTF-8 ({error.reason} at byte {error.start + 1}).") from None
    return [line.strip() for line in text.removesuffix("\n").split("\n")] if text else []


@app.command()
def report(run: Annotated[Path, typer.Argument(help="the folder of a finished study")]) -> None:
    """Write the report page and its figures again."""
    from headwise.report import write

    typer.echo(str(write(run)))


@data_app.command("list")
def data_list() -> None:
    """What can be fetched."""
    from headwise.data.catalogue import listing

    for row in listing():
        typer.echo("  ".join(str(value) for value in row.values()))


@data_app.command("get")
def data_get(
    name: str, out: Annotated[Path | None, typer.Option("--out", help="folder; a cache by default")] = None
) -> None:
    """Fetch one set, check it, and say where it lies."""
    from headwise.data.catalogue import get

    typer.echo(str(get(name, out)))


def guarded(run: Callable[[], None]) -> int:
    """Run the command line; what the user can mend is one sentence on the error stream and an exit status of 1."""
    from safetensors import SafetensorError

    try:
        run()
    except HeadwiseError as error:
        return complain(str(error))
    except SafetensorError as error:
        return complain(f"A file of weights could not be read or written ({error}): make room, or save it again.")
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EACCES, errno.EROFS, errno.EPERM):
            file = error.filename or "A file"
            return complain(f"{file} could not be written ({error.strerror}): make room or choose another --out.")
        raise
    return 0


def complain(text: str) -> int:
    print(f"headwise: {text}", file=sys.stderr)
    return 1


def main() -> None:
    """The `headwise` command."""
    quiet = {"TRANSFORMERS_VERBOSITY": "error", "HF_HUB_DISABLE_PROGRESS_BARS": "1"}
    for name, value in {**quiet, "HF_DATASETS_DISABLE_PROGRESS_BARS": "1", "TOKENIZERS_PARALLELISM": "true"}.items():
        os.environ.setdefault(name, value)
    sys.exit(guarded(lambda: app(prog_name="headwise")))


if __name__ == "__main__":
    main()
