"""Files of engines compared with the model that they should have been written from.

Files of llama.cpp and CTranslate2 are compared number by number with what the model is written as, programs of
torch.export by the weights in their archive, which is not run, ONNX files by tables that have nearly all numbers of a
weight, and by what ONNX Runtime computes.
"""

from __future__ import annotations

import filecmp
import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from zipfile import ZipFile

import numpy as np
import torch
from torch import nn

from headwise.core.errors import HeadwiseError
from headwise.models.engines.ct2 import write_ct2
from headwise.models.engines.engine import engine
from headwise.models.engines.gguf_file import FILE, TYPES, write_gguf
from headwise.models.engines.graph_files import SIZES, TOLERANCE, Graph, graphs, resized, traceable
from headwise.models.engines.native import EngineFailed, asked_apart
from headwise.models.model import Model

# Its name in a GGUF file: a model has another where it was loaded from another folder.
NAME = "general.name"
FEW = 0.1  # of a table's numbers: with so few others it was a weight and was changed
# What CTranslate2 itself reads of its folder.
CT2_FILES = ("model.bin", "config.json", "*vocabulary.json")


def difference(name: str, file: Path, model: Model) -> str | None:
    """What differs between a file or folder of an engine and what a model is written as there; None where nothing does.

    name: of the engine, such as `gguf`. Raises HeadwiseError where a package that this needs is not installed, or where
    the model cannot be written, with the reason.
    """
    entry = engine[name]
    entry.refuse_missing()
    if entry.why_not(model):
        return "the kind of model"
    try:
        return COMPARISONS[name](file, model)
    except HeadwiseError:
        raise
    except EngineFailed as error:
        return f"what it computes ({error})"
    except Exception as error:  # of readers, about a damaged file
        return f"its form ({type(error).__name__}: {' '.join(str(error).split())[:100]})"


def gguf_difference(file: Path, model: Model) -> str | None:
    """The first key or tensor of a GGUF file that is another."""
    import gguf

    found = gguf.GGUFReader(file)
    stored = found.fields["general.file_type"].contents()
    kinds = {each: TYPES.get(each, each).upper() for each in engine["gguf"].types}
    numbers = {
        gguf.LlamaFileType[f"{'ALL' if each == 'float32' else 'MOSTLY'}_{kind}"]: each
        for each, kind in kinds.items()
    }
    if stored not in numbers:
        return "the type of its weights"
    with tempfile.TemporaryDirectory() as scratch:
        write_gguf(model, Path(scratch), numbers[stored])
        wanted = gguf.GGUFReader(Path(scratch) / FILE)
        for key in dict.fromkeys([*wanted.fields, *found.fields]):
            values = [each.fields[key].contents() for each in (wanted, found) if key in each.fields]
            if key != NAME and (len(values) < 2 or values[0] != values[1]):
                return str(key)
        theirs = {tensor.name: tensor for tensor in found.tensors}
        for ours in wanted.tensors:
            other = theirs.pop(ours.name, None)
            if (
                other is None
                or other.tensor_type != ours.tensor_type
                or not np.array_equal(other.data, ours.data)
            ):
                return str(ours.name)
    return next(iter(theirs), None)


def ct2_difference(folder: Path, model: Model) -> str | None:
    """The file of a folder of CTranslate2 that is another. The type of its weights is not said, so all are tried."""
    differs = ""
    for dtype in engine["ct2"].types:
        with tempfile.TemporaryDirectory() as scratch:
            write_ct2(model, Path(scratch), dtype)
            names = [file.name for each in CT2_FILES for file in Path(scratch).glob(each)]
            if (Path(scratch) / names[0]).stat().st_size != (folder / names[0]).stat().st_size:
                continue
            _, others, missing = filecmp.cmpfiles(scratch, folder, names, shallow=False)
            if not others + missing:
                return None
            differs = differs or (others + missing)[0]
    return differs or CT2_FILES[0]


def graph_called(name: str, model: Model) -> Graph | None:
    return next((each for each in graphs(model) if each.name == name), None)


def torch_difference(file: Path, model: Model) -> str | None:
    """The first weight in an archive of torch.export that is another. Nothing in it is run."""
    graph = graph_called(file.stem, model)
    if graph is None:
        return "what it is called"
    own = graph.module.state_dict()
    with ZipFile(file) as archive:
        (listed,) = [each for each in archive.namelist() if each.endswith("_weights_config.json")]
        folder, _, _ = listed.rpartition("/")
        for name, entry in json.loads(archive.read(listed))["config"].items():
            tensor = own.pop(name, None)
            if tensor is None or entry["use_pickle"]:
                return str(name)
            # As it lies in the file, whatever its strides.
            sizes, strides = (
                [each["as_int"] for each in entry["tensor_meta"][key]]
                for key in ("sizes", "strides")
            )
            data = bytearray(archive.read(f"{folder}/{entry['path_name']}"))
            stored = torch.frombuffer(data, dtype=tensor.dtype)
            offset = entry["tensor_meta"]["storage_offset"]["as_int"]
            if not torch.equal(stored.as_strided(sizes, strides, offset), tensor.cpu()):
                return str(name)
    return None


def onnx_difference(file: Path, model: Model) -> str | None:
    """The first table of embeddings of an ONNX file that is another, or the first output, for texts of drawn tokens."""
    graph = graph_called(file.stem, model)
    if graph is None:
        return "what it is called"
    # The outputs of a few tokens say nothing about the rows of all others, and little about one number of a matrix.
    if other := changed_numbers(file, graph):
        return other
    with traceable(model, "eager"), tempfile.TemporaryDirectory() as scratch:
        for sizes in SIZES:
            inputs = resized(graph, sizes)
            expected = graph.module(inputs)
            places = [Path(scratch) / each for each in ("inputs.npz", "outputs.npz")]
            np.savez(
                places[0], allow_pickle=False, **{n: t.cpu().numpy() for n, t in inputs.items()}
            )
            asked_apart("onnx_outputs", file, *map(str, places))
            with np.load(places[1], allow_pickle=False) as outputs:
                for name, tensor in zip(graph.outputs, expected, strict=True):
                    wanted = tensor.cpu().numpy()
                    if name not in outputs or outputs[name].shape != wanted.shape:
                        return name
                    gap = np.abs(outputs[name] - wanted).max(initial=0)
                    # In this form NaN is a difference, too.
                    if not gap <= TOLERANCE * max(np.abs(wanted).max(initial=0), 1):
                        return f"{name}, by {gap:.2g}"
    return None


def changed_numbers(file: Path, graph: Graph) -> str | None:
    """The first table of an ONNX file that was a weight of the graph and was changed: one of the shape of an embedding that
    no weight equals, or one that has nearly all numbers of a weight.

    The exporter multiplies some weights into others, which changes all their numbers; what these compute, the outputs tell,
    and what tables of less than ten numbers do, which may be constants.
    """
    import onnx

    embeddings = {
        tuple(part.weight.shape)
        for part in graph.module.modules()
        if isinstance(part, nn.Embedding)
    }
    tables: dict[tuple[int, ...], list[np.ndarray]] = {}
    for weight in graph.module.state_dict().values():
        numbers = weight.detach().float().cpu().numpy()
        # The exporter turns matrices of linear layers.
        for table in (numbers, numbers.T)[: max(1, numbers.ndim)]:
            tables.setdefault(table.shape, []).append(table)
    for stored in onnx.load(file).graph.initializer:
        shape = tuple(stored.dims)
        if shape not in tables or stored.data_type != onnx.TensorProto.FLOAT:
            continue
        found = onnx.numpy_helper.to_array(stored)
        most = found.size if shape in embeddings else FEW * found.size
        if any(np.array_equal(found, table) for table in tables[shape]):
            continue
        if min(np.count_nonzero(found != table) for table in tables[shape]) <= most:
            # The exporter's own names (val_75) say nothing to a reader.
            words = " x ".join(map(str, shape))
            return stored.name if "." in stored.name else f"a table of {words} numbers"
    return None


COMPARISONS: dict[str, Callable[[Path, Model], str | None]] = {
    "ct2": ct2_difference,
    "gguf": gguf_difference,
    "onnx": onnx_difference,
    "torch": torch_difference,
}
