"""`lab`: a local page on which heads are switched off."""

from __future__ import annotations

from importlib.util import find_spec
from itertools import islice
from typing import Annotated

import typer

from headwise.cli.arguments import Device, ModelName, Quiet
from headwise.data.lines import existing_file, read_lines
from headwise.errors import HeadwiseError

MOST = 500  # sentences to pick


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
        str | None, typer.Option("--text", help="sentences to pick, one a line")
    ] = None,
    device: Device = "auto",
    quiet: Quiet = False,
) -> None:
    """Type a sentence, see every head's attention, switch heads off and watch the output change, in the browser.

    MODEL may be the folder of a study: its scores, roles and pruned model are shown, too.
    """
    if missing := [name for name in ("fastapi", "uvicorn") if find_spec(name) is None]:
        raise HeadwiseError(f"The lab needs {' and '.join(missing)}: pip install 'headwise[lab]'.")
    import headwise as hw
    from headwise.lab.server import serve
    from headwise.lab.session import Session

    trees = hw.Treebank.read(*treebank) if treebank else None
    lines = list(islice(filter(str.strip, read_lines(existing_file(text))), MOST)) if text else []
    session = Session.open(model, device, trees, lines)
    if not quiet:
        typer.echo("The lab is open until Ctrl-C. Everyone with this address can use it:", err=True)
    serve(session, host, port, open_, typer.echo)
