"""Translation models at work: `evaluate`, `translate`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from headwise.cli.arguments import (
    Beam,
    Device,
    Dtype,
    EngineName,
    ModelName,
    Out,
    Quiet,
    Texts,
    check_text,
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
    from headwise.cli.tables import show_quality
    from headwise.options import checked
    from headwise.progress import Progress

    check_text(models[0], text)
    progress = Progress(quiet)
    place = folder(out)
    with progress.bar("evaluate"):
        loaded = [hw.load(name, device, dtype=dtype) for name in models]
        given = read_text(loaded[0], models[0], text, "test")
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
    text: Annotated[
        Path, typer.Option("--text", help="a sentence a line; standard input by default")
    ] = Path("-"),
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="file to write; standard output by default")
    ] = None,
    beam: Beam = 5,
    device: Device = "auto",
    dtype: Dtype = None,
    quiet: Quiet = False,
    engine: EngineName = "transformers",
) -> None:
    """Translate sentences, one a line, with any translation model or a pruned one."""
    import headwise as hw
    from headwise.data.text import read_lines
    from headwise.heads import write_text
    from headwise.progress import Progress

    lines = list(read_lines(text)) if text != Path("-") else standard_input()
    loaded = hw.load(model, device, dtype=dtype)
    progress = Progress(quiet or len(lines) < MANY)
    translations = []
    if lines:
        with progress.bar("translate"):
            translations = loaded.translate(lines, progress, beam=beam, engine=engine)
    written = "".join(f"{line}\n" for line in translations)
    if out:
        write_text(out, written)
    else:
        sys.stdout.write(written)


def standard_input() -> list[str]:
    """The lines that came in."""
    try:
        text = sys.stdin.buffer.read().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise HeadwiseError(
            f"Standard input is not UTF-8 ({error.reason} at byte {error.start + 1})."
        ) from None
    return [line.strip() for line in text.removesuffix("\n").split("\n")] if text else []
