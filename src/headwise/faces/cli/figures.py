"""`headwise figure`: figures of the papers as files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from headwise.core.errors import HeadwiseError


def figure(
    name: Annotated[
        str,
        typer.Argument(
            help="what it shows, with its number in Voita et al.: importance (1), roles (2), quality (7), kept (8), kinds "
            "(9), layers (10), gates (the blog's film)"
        ),
    ],
    folders: Annotated[
        list[Path],
        typer.Argument(
            metavar="FOLDER…", help="of one model: what score, roles, prune or run wrote"
        ),
    ],
    out: Annotated[
        Path, typer.Option("--out", "-o", metavar="FILE", help="a name in .pdf, .svg or .png")
    ],
    width: Annotated[
        str, typer.Option("--width", help="column (3.3 inches), page (7 inches), or inches")
    ] = "page",
    kind: Annotated[
        str, typer.Option("--kind", help="of heads, such as cross; by default the encoder's")
    ] = "",
    measure: Annotated[
        list[str] | None,
        typer.Option(
            "--measure",
            help="a score to show; repeatable; by default relevance and confidence",
        ),
    ] = None,
    sort: Annotated[
        str,
        typer.Option("--sort", help="the score that orders the heads of a layer; else the first"),
    ] = "",
    dark: Annotated[bool, typer.Option("--dark", help="for dark slides")] = False,
) -> None:
    """Draw a figure for a paper.

    From any folders of one model, such as its scores and its roles. In PDF, fonts are embedded. The caption is printed, and
    written beside it."""
    import headwise as hw

    inches: str | float = width
    if width not in ("column", "page"):
        try:
            inches = float(width)
        except ValueError:
            raise HeadwiseError(
                f"--width {width}: give column, page, or a number of inches."
            ) from None
    place = hw.figure(
        name,
        *folders,
        out=out,
        width=inches,
        kind=kind,
        measures=measure or (),
        sort=sort,
        dark=dark,
    )
    from headwise.faces.report.paper_figures import caption_of

    typer.echo(str(place))
    typer.echo(f"\n{caption_of(place).read_text(encoding='utf-8')}", nl=False)
