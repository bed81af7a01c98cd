"""Commands around a model: `lab`, `translate`, `data list`, `data get`."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from headwise.core.errors import HeadwiseError
from headwise.core.options import Search
from headwise.core.progress import Progress, write
from headwise.data.plain import LOOKED_AT, refuse_other_formats, sentence_lines
from headwise.faces.cli.arguments import TEXT_OPTIONS, Device, Dtype, ModelName, Quiet
from headwise.faces.cli.fields import SEARCH_OPTIONS, given_search, takes_fields

MANY_SENTENCES = 100  # sentences: fewer are translated before a bar says anything
MOST_SENTENCES_TO_PICK = 500  # sentences to pick


def lab(
    model: ModelName,
    port: Annotated[
        int, typer.Option("--port", min=0, max=65535, help="port to listen on; 0: a free one")
    ] = 0,
    open_: Annotated[bool, typer.Option("--open/--no-open", help="open the browser")] = True,
    host: Annotated[
        str,
        typer.Option(
            "--host",
            metavar="ADDRESS",
            help="address to listen on; 127.0.0.1 is this machine alone",
        ),
    ] = "127.0.0.1",
    treebank: Annotated[
        list[str] | None,
        typer.Option("--treebank", help="CoNLL-U: sentences to pick, with their trees; repeatable"),
    ] = None,
    text: Annotated[
        str | None,
        typer.Option(
            *TEXT_OPTIONS,
            help="sentences to pick, one a line; for a speech model a table of recordings",
        ),
    ] = None,
    device: Device = "auto",
    quiet: Quiet = False,
) -> None:
    """Switch heads off in the browser, and see the output change.

    MODEL may be the folder of a study: the lab then also shows its scores, roles and pruned model. A speech model hears the
    recordings of a table, or those of its study.
    """
    # Before the model is loaded, which may take a minute.
    if missing := [name for name in ("fastapi", "uvicorn") if find_spec(name) is None]:
        raise HeadwiseError(f"The lab needs {' and '.join(missing)}: pip install 'headwise[lab]'.")
    import headwise as hw
    from headwise.faces.lab.server import serve
    from headwise.faces.lab.session import Session
    from headwise.models.loading import task_class

    trees = hw.Treebank.read(*treebank) if treebank else None
    hears = text is not None and task_class(model).reads_audio
    lines: list[str] = []
    if text and not hears:
        every = filter(str.strip, sentence_lines(text))
        lines = list(islice(every, MOST_SENTENCES_TO_PICK))
    session = Session.open(model, device, trees, lines, text if hears else None)
    if not quiet:
        typer.echo("The lab is open until Ctrl-C. Everyone with this address can use it:", err=True)
    serve(session, host, port, open_, typer.echo)


@takes_fields(SEARCH_OPTIONS)
def translate(
    context: typer.Context,
    model: ModelName,
    text: Annotated[
        Path,
        typer.Option(
            "--text", help="a sentence a line; standard input by default", show_default=False
        ),
    ] = Path("-"),
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="file to write; standard output by default")
    ] = None,
    device: Device = "auto",
    dtype: Dtype = None,
    quiet: Quiet = False,
    **fields: Any,
) -> None:
    """Translate sentences, one a line.

    Any translation model can do it, a pruned one too. Of a line longer than the model's positions only the beginning is
    translated, and a warning says so. A file that --out names is replaced."""
    import headwise as hw
    from headwise.core.folders import output_file, write_file

    search = (given_search(context, fields) or Search()).model_dump()
    if out:
        # An --out that is the text itself is refused while the text is still there.
        output_file(out, [text])
    lines = list(sentence_lines(text)) if text != Path("-") else standard_input()
    loaded = hw.load(model, device, dtype=dtype)
    progress = Progress(quiet or len(lines) < MANY_SENTENCES)
    translations = []
    if lines:
        with progress.bar("translate"):
            translations = loaded.translate(lines, progress, **search)
    written = "".join(f"{line}\n" for line in translations)
    if out:
        write_file(out, written)
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
    lines = [line.strip() for line in text.removesuffix("\n").split("\n")] if text else []
    refuse_other_formats("Standard input", lines[:LOOKED_AT])
    return lines


def data_list() -> None:
    """What can be fetched, and how many files of it are here."""
    from headwise.data.catalogue import listing

    console = Console(highlight=False)
    for row in listing():
        write(console, f"{row['name']}: {row['content']}")
        size = f"{row['MiB']} MiB in {row['files']} files, {row['checksums']} with a checksum"
        write(console, f"  {size}; {row['here']} are here")
        write(console, f"  licence: {row['licence']}")


def data_get(
    name: str,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FOLDER", help="a cache by default")
    ] = None,
) -> None:
    """Fetch one set, check it, and say where it lies."""
    from headwise.data.catalogue import get

    typer.echo(str(get(name, out)))
