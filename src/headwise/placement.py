"""Where the weights of a model are that is larger than the device: on several devices, in memory, in its files.

A whole model is spread by transformers and Accelerate. For a pruned one, which transformers cannot load, the same hooks
of Accelerate read the weights of each layer from the model's files when the layer runs.
"""

from __future__ import annotations

import atexit
import shutil
import tempfile
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from accelerate import cpu_offload, init_empty_weights
from accelerate.utils import OffloadedWeightsLoader, PrefixedDataset, get_max_memory
from safetensors import SafetensorError, safe_open
from torch import Tensor

from headwise.attention.offload import hook_of
from headwise.errors import HeadwiseError
from headwise.model_files import weight_files
from headwise.training.build import drop_unused

DeviceMap = str | Mapping[str, int | str]
FILLED = 0.9  # of a device's memory, at most
TYPE_OF = {
    "F32": torch.float32,
    "BF16": torch.bfloat16,
    "F16": torch.float16,
    "F64": torch.float64,
}  # of safetensors


def places(device_map: DeviceMap | None, device: str, config: Any, model_class: Any) -> Any:
    """A map of devices as transformers takes it. `disk`: all weights in their files, but for those that no file has,
    and the last small ones, from which Accelerate knows where to compute."""
    if isinstance(device_map, str) and device_map not in ("auto", "disk"):
        raise HeadwiseError(
            f"The device map {device_map} was asked for: give auto, disk, or a device for each module."
        )
    if device_map != "disk":
        return device_map
    with init_empty_weights():
        made = model_class._from_config(config)
    known, owners = (
        made.state_dict(),
        dict[str, str](),
    )  # by the module that has it, or by its own name at the top
    for name in known:
        owners[name] = name.rpartition(".")[0] or name
    small = [name for name, weight in made.named_parameters() if weight.dim() == 1][-1:]
    here = {
        owners[name] for name in (*small, *(made._keys_to_ignore_on_save or ())) if name in known
    }
    return {
        owner: device if owner in here or owner in known else "disk" for owner in owners.values()
    }


def refuge(path: Path, device: str, dtype: torch.dtype | None) -> str | None:
    """The map of devices for a model whose weights do not fit on the device that was asked for; None where they do."""
    try:
        size = stored(weight_files(path), dtype)
    except (OSError, SafetensorError):  # no or other files of weights, which loading will see
        return None
    room = get_max_memory()
    index = (torch.device(device).index or 0) if device.startswith("cuda") else device
    if size <= FILLED * room.get(index, room.get("cpu", 0)):
        return None
    map_to = "auto" if device != "cpu" else "disk"
    warnings.warn(
        f"{path} has {size / 1e9:.1f} GB of weights, more than fit on {device}: they are loaded as they are needed "
        f"(device_map='{map_to}'), which is slow.",
        stacklevel=3,
    )
    return map_to


def stored(files: Sequence[Path], dtype: torch.dtype | None) -> int:
    """The bytes of the weights in some files, in a type."""
    size = 0
    for path in files:
        with safe_open(path, "pt") as file:
            for name in file.keys():  # noqa: SIM118
                part = file.get_slice(name)
                each = (dtype or TYPE_OF.get(part.get_dtype(), torch.float32)).itemsize
                size += torch.Size(part.get_shape()).numel() * each
    return size


def scratch() -> str:
    """A folder for offloaded weights that are not in the checkpoint as the model has them; it goes with the process."""
    folder = tempfile.mkdtemp(prefix="headwise-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


class Zeros(Mapping[str, Tensor]):
    """Weights of 0 for a model that has none, without memory."""

    def __init__(self, model: torch.nn.Module) -> None:
        self.weights = dict(model.named_parameters(remove_duplicate=False))

    def __getitem__(self, name: str) -> Tensor:
        return torch.zeros((), dtype=self.weights[name].dtype).expand(self.weights[name].shape)

    def __iter__(self) -> Iterator[str]:
        return iter(self.weights)

    def __len__(self) -> int:
        return len(self.weights)


def hollow(config: Any, model_class: Any, device: str) -> Any:
    """The stock model without weights, which runs as if all were 0."""
    with init_empty_weights():
        stock = drop_unused(model_class._from_config(config)).eval()
    if stock._keys_to_ignore_on_save:
        raise HeadwiseError(
            f"A {type(stock).__name__} computes some weights itself, which no file has: load it without device_map."
        )
    return cpu_offload(stock, torch.device(device), state_dict=Zeros(stock))


def read_from(model: Any, files: Sequence[Path], dtype: torch.dtype | None) -> list[str]:
    """Let an offloaded model read its weights from files whenever it needs them; returns names that do not fit."""
    own, index = dict(model.named_parameters(remove_duplicate=False)), {}
    for path in files:
        with safe_open(path, "pt") as file:
            for name in file.keys():  # noqa: SIM118
                part = file.get_slice(name)
                if name in own and [*own[name].shape] != part.get_shape():
                    raise HeadwiseError(
                        f"{name} has the shape {part.get_shape()}, not {[*own[name].shape]}."
                    )
                kind = dtype or TYPE_OF.get(
                    part.get_dtype(), own[name].dtype if name in own else None
                )
                index[name] = {
                    "safetensors_file": str(path),
                    "weight_name": name,
                    "dtype": str(kind).removeprefix("torch."),
                }
    for name, source in (model.all_tied_weights_keys or {}).items():
        if source in index:
            index.setdefault(name, index[source])
    weights_map = OffloadedWeightsLoader(index=index)
    for path, module in model.named_modules():
        if (hook := hook_of(module)) is not None:
            hook.weights_map = PrefixedDataset(weights_map, f"{path}." if path else "")
            for name, parameter in module.named_parameters(recurse=False):
                kind = (
                    getattr(torch, index[f"{path}.{name}"]["dtype"])
                    if f"{path}.{name}" in index
                    else None
                )
                setattr(
                    module,
                    name,
                    torch.nn.Parameter(parameter.to(kind), requires_grad=parameter.requires_grad),
                )
    return sorted(index.keys() ^ own.keys())
