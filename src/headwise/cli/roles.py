"""`roles`: what does every head do?"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from headwise.cli.options import Device, Out, Quiet, Seed, Source, Target, folder, refuse_half, spec


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

    refuse_half(source, target)
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
