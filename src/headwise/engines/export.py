"""Which engines can run a model, why others cannot, and writing it for one of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from headwise.attention.capture import refuse_captured
from headwise.attention.offload import refuse_offloaded
from headwise.engines import ct2_folder, gguf_file, graph_files, mlx_folder, refuse_unknown
from headwise.errors import HeadwiseError
from headwise.model import Model
from headwise.model_files import new_folder, seal


@dataclass(frozen=True)
class Engine:
    """One engine. needs: the modules that writing for it imports. types: of the weights, the default first."""

    runs_in: str
    refuse: Callable[[Model], str | None]
    write: Callable[[Model, Path, str], list[str]]
    needs: tuple[str, ...]
    types: tuple[str, ...]


ENGINES = {
    "gguf": Engine(
        "llama.cpp", gguf_file.refuse, gguf_file.write, ("gguf",), ("f16", "f32", "bf16", "q8_0")
    ),
    "ct2": Engine(
        "CTranslate2",
        ct2_folder.refuse,
        ct2_folder.write,
        ("ctranslate2",),
        ("f32", "f16", "bf16", "int8"),
    ),
    "onnx": Engine(
        "ONNX Runtime",
        graph_files.refuse,
        graph_files.write_onnx,
        ("onnxruntime", "onnxscript"),
        ("f32",),
    ),
    "mlx": Engine("MLX", mlx_folder.refuse, mlx_folder.write, (), ("f16", "f32", "bf16")),
    "torch": Engine("PyTorch", graph_files.refuse, graph_files.write_torch, (), ("f32",)),
}


def need(name: str, what: str) -> None:
    """Raise HeadwiseError where a module is missing that an engine's files are written, or read, with."""
    if missing := [module for module in ENGINES[name].needs if find_spec(module) is None]:
        raise HeadwiseError(f"{what} needs {missing[0]}: pip install 'headwise[{name}]'.")


def export(model: Model, to: str, folder: str | Path, dtype: str | None = None) -> list[str]:
    """Write a model, pruned or not, for an engine: `gguf` (llama.cpp), `ct2`, `onnx`, `mlx` or `torch`.

    folder: new or empty; written completely or not at all. dtype: of the weights; each engine has its own types.
    Returns notes: what was checked, and what the engine cannot say. Raises HeadwiseError where the engine cannot run
    the model, with the reason.
    """
    refuse_unknown(to)
    engine, folder = ENGINES[to], Path(folder)
    need(to, f"Exporting to {to}")
    if dtype is not None and dtype not in engine.types:
        raise HeadwiseError(
            f"{dtype} was asked for, but {to} is written as {', '.join(engine.types)}."
        )
    refuse_offloaded(model.hf, "An export")
    refuse_captured(model.hf, "An export")
    if reason := engine.refuse(model):
        raise HeadwiseError(f"{model.name} cannot be exported to {to}: {reason}.")
    with new_folder(folder) as temporary:
        notes = engine.write(model, temporary, dtype or engine.types[0])
        seal(temporary)
    return notes
