"""`roles`: what does every head do?"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from headwise.cli.options import Device, Dtype, ModelName, Out, Quiet, Seed, Source, Target, folder, study_in, text_spec
from headwise.devices import memory_line
from headwise.errors import HeadwiseError


def roles(
    model: ModelName,
    treebank: Annotated[
        list[Path] | None, typer.Option("--treebank", help="CoNLL-U file with trees; repeatable")
    ] = None,
    confirm: Annotated[
        list[Path] | None, typer.Option("--confirm", help="treebank to confirm roles on, instead of the other half")
    ] = None,
    source: Source = None, target: Target = None,
    training: Annotated[
        Path | None, typer.Option("--training", help="source side of the training text, for rare-token heads")
    ] = None,
    out: Out = Path("runs/roles"), device: Device = "cpu", dtype: Dtype = None, seed: Seed = 0, quiet: Quiet = False,
) -> None:  # fmt: skip
    """What does every head do? Writes labels.csv, roles.csv and the table of all tests; --source and --target are
    sentence pairs that cross attention is tested on. MODEL may be the folder of a study: its trees and training text
    are taken where none are named."""
    import headwise as hw
    from headwise.api.roles import role_examples, roles_signature, save_roles, token_counts
    from headwise.study.progress import Progress

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
    spec = text_spec(source, target)
    pairs = None if spec is None else hw.ParallelText.open(spec)
    progress, place, done = Progress(quiet), folder(out), [0]
    loaded = hw.load(model, device, dtype=dtype)

    def forward(sentences: int) -> None:
        done[0] += sentences
        progress(min(1.0, done[0] / (len(trees) + len(again or ()) + len(pairs or ()))), "")

    with progress.task("roles"):
        counts = token_counts(loaded, counted)
        found = hw.roles(loaded, trees, again, pairs, counts, seed, forward)
        save_roles(
            found, role_examples(loaded, trees, found, counts), roles_signature(loaded, trees, again, seed), place
        )
    for line in [*found.warnings, *found.absent]:
        progress.say(f"  {line}")
    for row in found.labels.to_dict("records"):
        progress.say(f"  {row['kind']}/{row['layer']}/{row['head']}: {row['label']}")
    progress.say(memory_line())
    typer.echo(str(place / "labels.csv"))
