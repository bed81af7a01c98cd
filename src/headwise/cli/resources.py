"""Commands around a model: `lab`, `translate`, `families`, `data list`, `data get`."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

import typer

from headwise.cli.arguments import TEXT_OPTIONS, Device, Dtype, ModelName, Quiet
from headwise.cli.fields import SEARCH_OPTIONS, given_search, takes_fields
from headwise.data.lines import existing_file, is_table, read_lines
from headwise.errors import HeadwiseError
from headwise.options import Search

MANY_SENTENCES = 100  # sentences: fewer are translated before a bar says anything
MOST_SENTENCES_TO_PICK = 500  # sentences to pick
WIDE = 160  # letters of a line of a table in a file or a pipe


def lab(
    model: ModelName,
    port: Annotated[
        int, typer.Option("--port", min=0, max=65535, help="port to listen on; 0: a free one")
    ] = 0,
    open_: Annotated[bool, typer.Option("--open/--no-open", help="open the browser")] = True,
    host: Annotated[
        str,
        typer.Option(
            "--host", help="address to listen on; other machines get in only beyond loopback"
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
    """Type a sentence, see every head's attention, switch heads off and see the output change, in the browser.

    MODEL may be the folder of a study: the lab then also shows its scores, roles and pruned model. A speech model hears the
    recordings of a table, or those of its study.
    """
    # Before the model is loaded, which may take a minute.
    if missing := [name for name in ("fastapi", "uvicorn") if find_spec(name) is None]:
        raise HeadwiseError(f"The lab needs {' and '.join(missing)}: pip install 'headwise[lab]'.")
    import headwise as hw
    from headwise.lab.server import serve
    from headwise.lab.session import Session
    from headwise.loading import task_class

    trees = hw.Treebank.read(*treebank) if treebank else None
    hears = text is not None and task_class(model).reads_audio
    lines: list[str] = []
    if text and not hears:
        every = filter(str.strip, read_lines(existing_file(text)))
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
        Path, typer.Option("--text", help="a sentence a line; standard input by default")
    ] = Path("-"),
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="file to write; standard output by default")
    ] = None,
    device: Device = "auto",
    dtype: Dtype = None,
    quiet: Quiet = False,
    **fields: Any,
) -> None:
    """Translate sentences, one a line, with any translation model or a pruned one. What --out names is replaced."""
    import headwise as hw
    from headwise.folders import output_file, write_file
    from headwise.progress import Progress

    search = (given_search(context, fields) or Search()).model_dump()
    if out:
        # An --out that is the text itself is refused while the text is still there.
        output_file(out, [text])
    if is_table(text):
        raise HeadwiseError(
            f"'{text}' is a table, and translate reads a sentence a line: give a file with sentences alone."
        )
    lines = list(read_lines(text)) if text != Path("-") else standard_input()
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
    return [line.strip() for line in text.removesuffix("\n").split("\n")] if text else []


def families(
    name: Annotated[
        str,
        typer.Argument(
            help="a model's folder or name, or part of a family's or a class's name; all without one"
        ),
    ] = "",
) -> None:
    """What headwise does with each family of models, and why not more."""
    from headwise.families import SIGNS
    from headwise.families import family_rows as rows_of

    rows = rows_of(name)
    from rich.console import Console
    from rich.table import Table

    # The last column holds reasons, too long for a table: they follow below it.
    shown = [*rows[0]][:-1]
    shown_table = Table(*shown, box=None, pad_edge=False)
    for row in rows:
        shown_table.add_row(*(SIGNS.get(row[column], row[column]) for column in shown))
    # Where there is no terminal rich would fold the table at 80 letters.
    width = None if sys.stdout.isatty() else WIDE
    console = Console(highlight=False, markup=False, width=width)
    console.print(shown_table)
    if name:
        for row in rows:
            for reason in filter(None, row["why"].split("; ")):
                console.print(f"  {row['family']}: {reason}", soft_wrap=True)
    else:
        console.print("Why not: headwise families NAME")


def data_list() -> None:
    """What can be fetched, and how many files of it are here."""
    from rich.console import Console
    from rich.table import Table

    from headwise.data.catalogue import listing

    rows = listing()
    table = Table(*rows[0], box=None, pad_edge=False)
    for row in rows:
        table.add_row(*map(str, row.values()))
    Console(highlight=False, markup=False).print(table)


def data_get(
    name: str,
    out: Annotated[Path | None, typer.Option("--out", help="folder; a cache by default")] = None,
) -> None:
    """Fetch one set, check it, and say where it lies."""
    from headwise.data.catalogue import get

    typer.echo(str(get(name, out)))
