"""Writing a model for an engine that runs it elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from headwise.attention.capture import refuse_captured
from headwise.attention.offload import refuse_offloaded
from headwise.engines.engine import engine
from headwise.errors import HeadwiseError
from headwise.folders import EXPORT, new_folder, seal
from headwise.model import Model


def export(
    model: Model,
    to: str,
    out: str | Path,
    dtype: str | None = None,
    say: Callable[[str], object] = print,
) -> Path:
    """Write a model, pruned or not, for an engine: `gguf` (llama.cpp), `ct2`, `onnx`, `mlx`, `torch`, or one of yours.

    out: a new or empty folder; it is written completely or not at all, and returned. dtype: of the weights; each
    engine has its own types. say: is called with each note, such as what was checked and what the engine cannot
    express. Raises HeadwiseError where the engine cannot run the model, with the reason.
    """
    target = engine[to]
    target.refuse_missing()
    if dtype is not None and dtype not in target.types:
        raise HeadwiseError(
            f"{dtype} was asked for, but {to} is written as {', '.join(target.types)}."
        )
    refuse_offloaded(model.hf, "An export")
    refuse_captured(model.hf, "An export")
    reason = target.why_not(model)
    if reason:
        raise HeadwiseError(f"{model.name} cannot be exported to {to}: {reason}.")

    folder = Path(out)
    with new_folder(folder) as unfinished:
        notes = target.function(model, unfinished, dtype or target.types[0])
        seal(unfinished, EXPORT)
    for note in notes:
        say(note)
    return folder
