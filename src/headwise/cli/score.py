"""`score`: how much does every head matter?"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from headwise.cli.options import Device, OneSided, Out, Quiet, Seed, Source, Target, folder, given_text


def score(
    model: str, source: Source = None, target: Target = None,
    text: OneSided = None,
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
    given = given_text(source, target, text)
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


def after_scoring(model: str, table: Any, pairs: bool) -> str:
    """What to try when a model's heads have their scores."""
    if "faithfulness" not in table.attrs:
        return "the same command with --judge tells which of these scores to believe on this model."
    if pairs:
        return f"headwise prune {model} --source … --target … --dev-source … --dev-target … --penalty 0.01"
    return f"headwise roles {model} --treebank FILE.conllu"
