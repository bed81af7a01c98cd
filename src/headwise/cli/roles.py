"""`roles`: what does every head do?"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from headwise.cli.arguments import (
    Device,
    Dtype,
    ModelName,
    Out,
    Quiet,
    Seed,
    Texts,
    folder,
    study_in,
    text_spec,
)
from headwise.devices import memory_line
from headwise.errors import HeadwiseError


def roles(
    model: ModelName,
    treebank: Annotated[
        list[Path] | None, typer.Option("--treebank", help="CoNLL-U file with trees; repeatable")
    ] = None,
    confirm: Annotated[
        list[Path] | None,
        typer.Option("--confirm", help="treebank to confirm roles on, instead of the other half"),
    ] = None,
    text: Texts = None,
    training: Annotated[
        Path | None,
        typer.Option("--training", help="source side of the training text, for rare-token heads"),
    ] = None,
    links: Annotated[
        Path | None,
        typer.Option(
            "--links", help="reference links of the pairs, such as 0-0 1-2 1p3; else eflomal's"
        ),
    ] = None,
    untrained: Annotated[
        int,
        typer.Option(
            min=0,
            help="so many randomly initialised models as a control, with random words and shuffled sentences",
        ),
    ] = 0,
    out: Out = Path("runs/roles"),
    device: Device = "auto",
    dtype: Dtype = None,
    seed: Seed = 0,
    quiet: Quiet = False,
) -> None:
    """What does every head do?

    Writes labels.csv, roles.csv and the table of all tests; --text names
    sentence pairs that cross attention is tested on. MODEL may be the folder of a study: its trees and training text
    are taken where none are named."""
    import headwise as hw

    spec = text_spec(text)
    if links is not None and spec is None:
        raise HeadwiseError(
            f"--links {links} was given without sentence pairs: name them with --text SOURCE --text TARGET."
        )
    study = None if treebank and training else study_in(model)
    own = study.treebanks if study else None
    if treebank:
        trees, again = hw.Treebank.read(*treebank), None
    elif own:
        trees, again = own
    else:
        raise HeadwiseError("No trees were given: name a CoNLL-U file with --treebank FILE.")
    again = hw.Treebank.read(*confirm) if confirm else again
    counted = hw.Text.read(training) if training else study.text("train") if study else None
    pairs: hw.ParallelText | hw.LinkedText | None = None
    if spec is not None:
        pairs = hw.ParallelText.open(spec)
        if links is not None:
            pairs = hw.LinkedText.read(pairs, links)
    from headwise.cli.tables import HEADS, show_heads
    from headwise.progress import Progress

    progress = Progress(quiet)
    place = folder(out)
    loaded = hw.load(model, device, dtype=dtype)
    with progress.bar("roles"):
        found = hw.roles(
            loaded,
            trees,
            confirm=again,
            pairs=pairs,
            training=counted,
            untrained=untrained,
            seed=seed,
            progress=progress,
        )
    found.save(place)
    for line in [*found.warnings, *found.absent]:
        progress.say(f"  {line}")
    for row in found.labels.to_dict("records"):
        progress.say(f"  {row['kind']}/{row['layer']}/{row['head']}: {row['label']}")
    show_heads(progress.console, [found.plot()], HEADS)
    progress.say(memory_line())
    typer.echo(str(place / "labels.csv"))
