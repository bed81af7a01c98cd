"""Translation models at work: `evaluate`, `translate`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from headwise.cli.options import (
    Beam,
    Device,
    Dtype,
    EngineName,
    LabelledFile,
    ModelName,
    OneSided,
    Out,
    Quiet,
    Source,
    Target,
    folder,
    known,
    read_text,
)
from headwise.devices import memory_line
from headwise.errors import HeadwiseError

MANY = 100  # sentences: fewer are translated before a bar says anything


def evaluate(
    models: Annotated[
        list[str],
        typer.Argument(
            callback=known, help="models; the first is what the others are compared with"
        ),
    ],
    source: Source = None,
    target: Target = None,
    text: OneSided = None,
    labelled: LabelledFile = None,
    out: Out = Path("runs/evaluate"),
    device: Device = "cpu",
    dtype: Dtype = None,
    quiet: Quiet = False,
    beam: Beam = 5,
    engine: EngineName = "transformers",
) -> None:
    """What models are worth: BLEU and chrF on parallel text, perplexity on one-sided text, accuracy on labelled text,
    with intervals and the difference to the first. The first may be the folder of a study: without a text, its test
    text is taken, or else its dev text."""
    import headwise as hw
    from headwise.cli.tables import show_quality
    from headwise.options import checked
    from headwise.progress import Progress

    given = read_text(source, target, text, models[0], "test", labelled)
    progress = Progress(quiet)
    place = folder(out)
    with progress.bar("evaluate"):
        loaded = [hw.load(name, device, dtype=dtype) for name in models]
        search = checked(hw.Search, {"beam": beam, "engine": engine}, "evaluate")
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


def translate(
    model: ModelName,
    source: Annotated[
        Path, typer.Option("--source", help="a sentence a line; standard input by default")
    ] = Path("-"),
    out: Annotated[
        Path | None, typer.Option("--out", help="file to write; standard output by default")
    ] = None,
    beam: Beam = 5,
    device: Device = "cpu",
    quiet: Quiet = False,
    engine: EngineName = "transformers",
) -> None:
    """Translate sentences, one a line, with any translation model or a pruned one."""
    import headwise as hw
    from headwise.data.text import read_lines
    from headwise.heads import write_text
    from headwise.progress import Progress

    lines = list(read_lines(source)) if source != Path("-") else standard_input()
    loaded, progress = hw.load(model, device), Progress(quiet or len(lines) < MANY)
    with progress.bar("translate"):
        text = "".join(
            f"{line}\n"
            for line in (
                loaded.translate(lines, progress, beam=beam, engine=engine) if lines else []
            )
        )
    if out:
        write_text(out, text)
    else:
        sys.stdout.write(text)


def standard_input() -> list[str]:
    """The lines that came in."""
    try:
        text = sys.stdin.buffer.read().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise HeadwiseError(
            f"Standard input is not UTF-8 ({error.reason} at byte {error.start + 1})."
        ) from None
    return [line.strip() for line in text.removesuffix("\n").split("\n")] if text else []
