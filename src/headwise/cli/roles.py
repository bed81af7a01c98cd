"""`roles`: what does every head do?"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from headwise.cli.options import (
    Device,
    Dtype,
    ModelName,
    Out,
    Quiet,
    Seed,
    Source,
    Target,
    folder,
    read_text,
    study_in,
    text_spec,
)
from headwise.devices import memory_line
from headwise.errors import HeadwiseError
from headwise.model_files import written_before


def roles(
    model: ModelName,
    treebank: Annotated[
        list[Path] | None, typer.Option("--treebank", help="CoNLL-U file with trees; repeatable")
    ] = None,
    confirm: Annotated[
        list[Path] | None,
        typer.Option("--confirm", help="treebank to confirm roles on, instead of the other half"),
    ] = None,
    source: Source = None,
    target: Target = None,
    training: Annotated[
        Path | None,
        typer.Option("--training", help="source side of the training text, for rare-token heads"),
    ] = None,
    role: Annotated[
        str | None,
        typer.Option(
            "--role", help="alignment: rank cross heads by alignment error, and choose a set"
        ),
    ] = None,
    links: Annotated[
        Path | None,
        typer.Option(
            "--links", help="reference links of the pairs, such as 0-0 1-2 1p3; else eflomal's"
        ),
    ] = None,
    audio: Annotated[
        Path | None,
        typer.Option("--audio", help="alignment, for Whisper: table of audio, word, start, end"),
    ] = None,
    one_layer: Annotated[
        bool,
        typer.Option(
            "--one-layer", help="alignment: heads of one layer, for CTranslate2 and Marian"
        ),
    ] = False,
    save: Annotated[
        Path | None,
        typer.Option("--save", help="alignment: folder for the model with its alignment heads"),
    ] = None,
    untrained: Annotated[
        int,
        typer.Option(
            min=0,
            help="so many untrained twins as a control, with random words and shuffled sentences",
        ),
    ] = 0,
    out: Out = Path("runs/roles"),
    device: Device = "cpu",
    dtype: Dtype = None,
    seed: Seed = 0,
    quiet: Quiet = False,
) -> None:
    """What does every head do? Writes labels.csv, roles.csv and the table of all tests; --source and --target are
    sentence pairs that cross attention is tested on. MODEL may be the folder of a study: its trees and training text
    are taken where none are named. With --role alignment, only cross heads are tested, in more depth."""
    import headwise as hw

    if role is not None:
        others = {
            "--treebank": treebank,
            "--confirm": confirm,
            "--training": training,
            "--untrained": untrained,
        }
        refuse_options(role, others)
        alignment(
            model, source, target, links, audio, one_layer, save, out, device, dtype, seed, quiet
        )
        return
    refuse_options(None, {"--audio": audio, "--one-layer": one_layer, "--save": save})
    spec = text_spec(source, target)
    if links is not None and spec is None:
        raise HeadwiseError(
            f"--links {links} was given without sentence pairs: name them with --source and --target."
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
    pairs = None if spec is None else hw.ParallelText.open(spec)
    from headwise.cli.tables import HEADS, role_grid, show_heads
    from headwise.progress import Progress
    from headwise.roles.find import (
        role_examples,
        roles_signature,
        save_roles,
        sentences_read,
        token_counts,
    )

    progress, place, done = Progress(quiet), folder(out), [0]
    loaded = hw.load(model, device, dtype=dtype)

    def forward(sentences: int) -> None:
        done[0] += sentences
        whole = sentences_read(trees, again, untrained) + (1 + untrained) * len(pairs or ())
        progress(min(1.0, done[0] / whole), "")

    with progress.bar("roles"):
        counts = token_counts(loaded, counted)
        found = hw.roles(
            loaded, trees, again, pairs, counts, seed, forward, links=links, untrained=untrained
        )
        save_roles(
            found,
            role_examples(loaded, trees, found, counts),
            roles_signature(loaded, trees, again, seed),
            place,
        )
    for line in [*found.warnings, *found.absent]:
        progress.say(f"  {line}")
    for row in found.labels.to_dict("records"):
        progress.say(f"  {row['kind']}/{row['layer']}/{row['head']}: {row['label']}")
    show_heads(progress.console, [role_grid(loaded.heads, found.roles)], HEADS)
    progress.say(memory_line())
    typer.echo(str(place / "labels.csv"))


def refuse_options(role: str | None, others: Mapping[str, Any]) -> None:
    """Refuse an unknown role, and options that do not go with --role alignment, or not without it."""
    if role not in (None, "alignment"):
        raise HeadwiseError(
            f"--role {role} was given: there is --role alignment; leave it out to test every role."
        )
    if given := next((name for name, value in others.items() if value), None):
        needed = "is only for --role alignment" if role is None else "is not for --role alignment"
        raise HeadwiseError(f"{given} was given, which {needed}: leave it out.")


def alignment(
    model: str,
    source: str | None,
    target: str | None,
    links: Path | None,
    audio: Path | None,
    one_layer: bool,
    save: Path | None,
    out: Path,
    device: str,
    dtype: str | None,
    seed: int,
    quiet: bool,
) -> None:
    """Rank cross heads, choose those that align, and write a model that names them."""
    import headwise as hw
    from headwise.progress import Progress
    from headwise.roles.align import save_alignment

    if audio is not None and (source or target or links):
        raise HeadwiseError("--audio was given, and text as well: give one of them.")
    text = read_text(source, target, None, model) if audio is None else hw.Speech.read(audio)
    if not isinstance(text, hw.ParallelText | hw.Speech):
        raise HeadwiseError(
            "One-sided text was given: alignment needs pairs, --source FILE --target FILE."
        )
    if save is not None:
        written_before(save)  # refuses a folder of another model before the work begins
    progress, place = Progress(quiet), folder(out)
    loaded = hw.load(model, device, dtype=dtype)
    with progress.bar("alignment heads"):
        found = hw.alignment_heads(loaded, text, links, one_layer, seed, progress)
    save_alignment(found, place)
    for row in found.sets.to_dict("records"):
        interval = f"{row['value']:.3f} ({row['low']:.3f} to {row['high']:.3f})"
        progress.say(
            f"  {row['set']}: {row['measure']} {interval}, without attention {row['baseline']:.3f}"
        )
        progress.say(f"    {row['heads']}")
    typer.echo(str(place / "alignment.csv"))
    if save is None:
        return
    if not found.confirmed:
        raise HeadwiseError(
            f"No model was written to {save}: on the other half of the text, the chosen heads align no better than a "
            "rule without attention. Give more text, or a model whose heads align."
        )
    loaded.alignment_heads = found.heads
    typer.echo(str(loaded.save(save)))
