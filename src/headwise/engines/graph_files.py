"""Graph files: ONNX for ONNX Runtime, programs of torch.export for PyTorch (`.pt2`). Every graph is checked against the
model with texts of other sizes than the one it was traced with.

Whether a model's code can be traced shows when it is: the engines here refuse no model before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from headwise.engines.engine import engine
from headwise.engines.graphs import Graph, graphs
from headwise.errors import HeadwiseError
from headwise.model import Model

TOLERANCE = 1e-4  # of the largest number that the model gives
SIZES = (
    {"batch": 1, "tokens": 4, "past": 0, "source": 7},
    {"batch": 3, "tokens": 1, "past": 9, "source": 1},
)

Run = Callable[[dict[str, Tensor]], list[Tensor]]


@engine(
    "onnx",
    title="ONNX Runtime",
    modules=("onnxruntime", "onnxscript"),
    extra="onnx",
    models="any model of text",
)
def write_onnx(model: Model, folder: Path, dtype: str) -> list[str]:
    """Write ONNX files to a folder, in float32. Returns notes for the user."""
    import onnxruntime

    with traceable(model, "eager"):
        for graph in graphs(model):
            path = folder / f"{graph.name}.onnx"
            program = graph.program()
            try:
                made = torch.onnx.export(
                    program,
                    (),
                    kwargs={"inputs": graph.inputs},
                    dynamo=True,
                    verbose=False,
                    optimize=True,
                    input_names=list(graph.inputs),
                    output_names=list(graph.outputs),
                )
            except Exception as error:  # of the converter, about an operation that ONNX lacks
                message = " ".join(str(error.__cause__ or error).split())
                reason, _, _ = message.partition(" : [")  # without the node's whole entry
                raise HeadwiseError(
                    f"This model's graph cannot be written as ONNX ({reason[:200]})."
                ) from error
            assert made is not None
            made.save(str(path))
            session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
            check_engine(graph, partial(run_onnx, session), "ONNX Runtime")
    save_tokenizer(model, folder)
    return [f"checked in ONNX Runtime: within {TOLERANCE:g} of the largest number"]


def run_onnx(session: Any, inputs: Mapping[str, Tensor]) -> list[Tensor]:
    """The outputs of an ONNX Runtime session. Inputs that the graph does not read are not among its own."""
    names = [own.name for own in session.get_inputs()]
    arrays = {name: inputs[name].numpy() for name in names}
    outputs = session.run(None, arrays)
    return [torch.from_numpy(output) for output in outputs]


@engine("torch", title="PyTorch", models="any model of text, without transformers (`.pt2`)")
def write_torch(model: Model, folder: Path, dtype: str) -> list[str]:
    """Write programs of torch.export to a folder. Returns notes for the user."""
    with traceable(model, "sdpa" if getattr(model.hf, "_supports_sdpa", True) else "eager"):
        for graph in graphs(model):
            path = folder / f"{graph.name}.pt2"
            torch.export.save(graph.program(), path)
            program = torch.export.load(path).module()
            check_engine(graph, partial(run_program, program), "torch.export")
    save_tokenizer(model, folder)
    return [f"checked in PyTorch: within {TOLERANCE:g} of the largest number"]


def run_program(program: Any, inputs: dict[str, Tensor]) -> list[Tensor]:
    return list(program(inputs=inputs))


def save_tokenizer(model: Model, folder: Path) -> None:
    if model.tokenizer is not None:
        model.tokenizer.save_pretrained(folder)


@contextmanager
def traceable(model: Model, attention: str) -> Iterator[None]:
    """Plain attention of transformers, evaluation, no gradients. ONNX has no operator for the fused attention of T5."""
    before = model.hf.config._attn_implementation
    try:
        model.hf.set_attn_implementation(attention)
        with torch.no_grad():
            yield
    finally:
        model.hf.set_attn_implementation(before)


def check_engine(graph: Graph, run: Run, engine: str) -> None:
    """Compare an engine with the model. Raises HeadwiseError for a difference, or where the engine stops at other sizes
    than those it was traced with."""
    for sizes in SIZES:
        inputs = resized(graph, sizes)
        expected_outputs = graph.module(inputs)
        try:
            outputs = run(inputs)
        except Exception as error:  # the model's code asks for sizes that it was traced with
            reason = " ".join(str(error).split())[:200]
            raise HeadwiseError(
                f"{engine} cannot run the graph '{graph.name}' with texts of another length ({reason}). Nothing was "
                "written."
            ) from error
        for name, expected, got in zip(graph.outputs, expected_outputs, outputs, strict=True):
            if not expected.numel():
                continue
            difference = float((got - expected).abs().max())
            if not difference <= TOLERANCE * max(float(expected.abs().max()), 1.0):
                raise HeadwiseError(
                    f"{engine} computes something else than the model: {name} of the graph '{graph.name}' differs by "
                    f"{difference:.2g}. Nothing was written."
                )


def resized(graph: Graph, sizes: Mapping[str, int]) -> dict[str, Tensor]:
    """Inputs of other sizes: drawn ids and states, masks of ones."""
    random = torch.Generator().manual_seed(1)
    sizes = {**sizes, "total": sizes["past"] + sizes["tokens"]}
    inputs = {}
    for name, example in graph.inputs.items():
        shape = list(example.shape)
        for dimension, size in graph.dynamic[name].items():
            shape[dimension] = sizes[size]
        if name.endswith("ids"):
            inputs[name] = torch.randint(int(example.max()) + 1, shape, generator=random)
        elif name.endswith("mask"):
            inputs[name] = torch.ones(shape, dtype=example.dtype)
        else:
            inputs[name] = torch.randn(shape, generator=random).to(example.dtype)
    return inputs
