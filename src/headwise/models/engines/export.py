"""Writing a model for an engine that runs it elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from os import PathLike
from pathlib import Path

from headwise.core.errors import HeadwiseError, called_as
from headwise.core.folders import EXPORT, Folder, as_path
from headwise.core.heads import Named
from headwise.models.attention.capture import refuse_captured
from headwise.models.attention.offload import refuse_offloaded
from headwise.models.engines.engine import engine
from headwise.models.loading import AnyModel, as_model
from headwise.models.model import refuse_reparametrised


@called_as(
    "hw.export(model, 'onnx', 'my-folder')",
    {"format": "write to='onnx'", "path": "write out='my-folder'"},
)
def export(
    model: AnyModel,
    to: str,
    out: str | PathLike[str],
    dtype: str | None = None,
    say: Callable[[str], object] = print,
    attention: Named = (),
) -> Path:
    """Write a model, pruned or not, for an engine: `gguf` (llama.cpp), `ct2`, `onnx`, `torch`, `marian`, `stock`
    (transformers without headwise), or one of yours.

    out: a new or empty folder; it is written completely or not at all, and returned. dtype: of the weights; each
    engine has its own types. say: is called with each note, such as what was checked and what the engine cannot
    express. attention: heads, as `HeadMap.named` knows them, whose attention weights the files also give: in ONNX
    the outputs `attention.KIND`, batch × heads in this order × query × key. Raises HeadwiseError where the engine
    cannot run the model, with the reason.
    """
    model = as_model(model)
    target = engine[to]
    target.refuse_missing()
    if dtype is not None and dtype not in target.types:
        raise HeadwiseError(
            f"{dtype} was asked for, but {to} is written as {', '.join(target.types)}: give one of these."
        )
    refuse_reparametrised(model.hf)
    refuse_offloaded(model.hf, "An export")
    refuse_captured(model.hf, "An export")
    reason = target.why_not(model)
    if reason:
        others = [name for name, entry in engine.items() if entry.why_not(model) is None]
        take = f": take {', '.join(others)}" if others else ""
        raise HeadwiseError(f"{model.name} cannot be exported to {to}: {reason}{take}.")

    if attention and not target.attention:
        able = ", ".join(name for name, entry in engine.items() if entry.attention)
        raise HeadwiseError(
            f"Attention weights were asked for, but files of {to} give none: export to {able}."
        )
    # Only where asked for: the functions of other engines do not take it.
    options = {}
    if attention:
        options["attention"] = list(dict.fromkeys(model.heads.named(attention)))

    folder = as_path(out)
    with Folder(folder, EXPORT).new() as unfinished:
        notes = target.function(model, unfinished, dtype or target.types[0], **options)
    for note in notes:
        say(note)
    return folder
