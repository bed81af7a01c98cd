"""`align`: which cross heads say what a target word, or a spoken word, belongs to?"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headwise.cli.arguments import Device, Dtype, ModelName, Out, Quiet, Seed, folder, study_in
from headwise.errors import HeadwiseError
from headwise.model_files import written_before

if TYPE_CHECKING:
    from headwise.data.text import ParallelText


def align(
    model: ModelName,
    text: Annotated[
        list[str] | None,
        typer.Option(
            "--text",
            help="sentence pairs: two files, source and target (--text twice), or one .tsv or .jsonl file",
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
        typer.Option("--audio", help="for Whisper: a table of audio, word, start, end"),
    ] = None,
    one_layer: Annotated[
        bool,
        typer.Option("--one-layer", help="only heads of one layer, for CTranslate2 and Marian"),
    ] = False,
    save: Annotated[
        Path | None,
        typer.Option("--save", help="folder for a copy of the model with its alignment heads"),
    ] = None,
    out: Out = Path("runs/align"),
    device: Device = "auto",
    dtype: Dtype = None,
    seed: Seed = 0,
    quiet: Quiet = False,
) -> None:
    """Which cross heads align?

    Ranks them by their alignment error and chooses a set on one half of the text; the other
    half confirms it. Writes alignment.csv, alignment-sets.csv and alignment.json. MODEL may be the folder of a study:
    its dev pairs are taken where no text is named.

    Example: headwise align my-model --text dev.en --text dev.de --links dev.links --save my-model-aligned
    """
    import headwise as hw
    from headwise.progress import Progress

    if audio is not None and (text or links):
        raise HeadwiseError("--audio was given, and text as well: give one of them.")
    given: hw.ParallelText | hw.LinkedText | hw.Speech
    given = pairs_of(model, text) if audio is None else hw.Speech.read(audio)
    if links is not None and isinstance(given, hw.ParallelText):
        given = hw.LinkedText.read(given, links)
    if save is not None:
        written_before(save)  # refuses a folder of another model before the work begins
    progress = Progress(quiet)
    place = folder(out)
    loaded = hw.load(model, device, dtype=dtype)
    with progress.bar("alignment heads"):
        found = hw.align(loaded, given, one_layer=one_layer, seed=seed, progress=progress)
    found.save(place)
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


def pairs_of(model: str, text: list[str] | None) -> ParallelText:
    """The sentence pairs that were named, or the dev pairs of the study that the model is given by."""
    import headwise as hw

    if text:
        return hw.ParallelText.open(text)
    study = study_in(model)
    pairs = None if study is None else study.text("dev")
    if not isinstance(pairs, hw.ParallelText):
        raise HeadwiseError(
            "No sentence pairs were given: name two files with --text FILE --text FILE, or speech with --audio FILE."
        )
    return pairs
