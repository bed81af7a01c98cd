"""Options that several commands share, and what they stand for."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from headwise.errors import HeadwiseError


def usable(device: str) -> str:
    """A device that torch can put tensors on."""
    if device != "cpu":
        import torch

        try:
            torch.empty(1, device=device)
        except (RuntimeError, AssertionError) as error:
            reason = str(error).splitlines()[0].rstrip(".")
            raise HeadwiseError(f"--device {device} was asked for, but torch cannot use it ({reason}).") from None
    return device


Out = Annotated[Path, typer.Option("--out", help="folder to write to")]
Device = Annotated[str, typer.Option("--device", help="cpu, cuda, cuda:1 …", callback=usable)]
Seed = Annotated[int, typer.Option("--seed", min=0, help="seed of everything that draws")]
Quiet = Annotated[bool, typer.Option("--quiet", help="print nothing but the result")]
Beam = Annotated[int, typer.Option("--beam", min=1, help="hypotheses that are followed at once")]
Set = Annotated[
    list[str] | None, typer.Option("--set", help="change the plan: key=value, such as training.epochs=3; repeatable")
]
Source = Annotated[str | None, typer.Option("--source", help="source side of parallel text; or one .tsv/.jsonl file")]
Target = Annotated[str | None, typer.Option("--target", help="target side of parallel text")]
DevSource = Annotated[str | None, typer.Option("--dev-source", help="source side of the text that choices are made on")]
DevTarget = Annotated[str | None, typer.Option("--dev-target", help="target side of the dev text")]
OneSided = Annotated[str | None, typer.Option("--text", help="one-sided text, for language models")]


def spec(source: str | None, target: str | None, which: str = "") -> str | list[str]:
    """Parallel text as the options give it. which: the options' names start so, `dev-` or `test-`."""
    refuse_half(source, target, which)
    if source is None:
        what = {"": "text", "dev-": "dev text", "test-": "test text"}[which]
        raise HeadwiseError(f"No {what} was given: name it with --{which}source FILE --{which}target FILE.")
    return source if target is None else [source, target]


def refuse_half(source: str | None, target: str | None, which: str = "") -> None:
    """One side of a text without the other."""
    if target and not source:
        raise HeadwiseError(f"--{which}target was given without --{which}source: name both sides of the text.")
    whole = source is None or source.startswith("datasets:")
    if not whole and not target and not str(source).lower().removesuffix(".gz").endswith((".tsv", ".jsonl")):
        raise HeadwiseError(
            f"--{which}source {source} was given without --{which}target: name both sides of the text, "
            "or one .tsv or .jsonl file with both."
        )


def folder(out: Path) -> Path:
    """The folder to write to, made before the work begins: a place that cannot be written shows at once."""
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise HeadwiseError(f"{out} was to be written to, but that is not possible ({error.strerror}).") from None
    return out


def given_text(source: str | None, target: str | None, text: str | None, which: str = "") -> Any:
    """Text as the options give it: pairs for translation models, one-sided for all others. which: of what options."""
    import headwise as hw

    pairs, alone = f"--{which}source", f"--{which}text"
    if text is None and source is None and target is None:
        told = f"name it with {pairs} FILE --{which}target FILE, or with {alone} FILE for a language model."
        raise HeadwiseError(f"No text was given: {told}")
    if text is not None and (source or target):
        told = "one-sided text, or pairs, not both"
        raise HeadwiseError(f"{alone} was given and {pairs} or --{which}target as well: {told}.")
    return hw.Text.read(text) if text is not None else hw.ParallelText.open(spec(source, target, which))
