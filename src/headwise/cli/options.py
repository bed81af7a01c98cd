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


def spec(source: str | None, target: str | None, dev: bool = False) -> str | list[str]:
    """Parallel text as the options give it."""
    if source is None:
        what, option = ("dev text", "--dev-") if dev else ("text", "--")
        raise HeadwiseError(f"No {what} was given: name it with {option}source FILE {option}target FILE.")
    return source if target is None else [source, target]


def folder(out: Path) -> Path:
    """The folder to write to, made before the work begins: a place that cannot be written shows at once."""
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise HeadwiseError(f"{out} was to be written to, but that is not possible ({error.strerror}).") from None
    return out


def given_text(source: str | None, target: str | None, text: str | None) -> Any:
    """Text as the options give it: pairs for translation models, one-sided for all others."""
    import headwise as hw

    if text is None and source is None:
        told = "name it with --source FILE --target FILE, or with --text FILE for a language model."
        raise HeadwiseError(f"No text was given: {told}")
    if text is not None and (source or target):
        raise HeadwiseError("--text was given and --source or --target as well: one-sided text, or pairs, not both.")
    return hw.Text.read(text) if text is not None else hw.ParallelText.open(spec(source, target))
