"""The weights of a model that is larger than the device: on several devices, in memory, or in its files.

A whole model is spread by transformers and Accelerate. For a pruned one, which transformers cannot load, the same hooks
of Accelerate read the weights of each layer from the model's files when the layer runs.
"""

from __future__ import annotations

import atexit
import shutil
import tempfile
import warnings
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from accelerate import cpu_offload, init_empty_weights
from accelerate.utils import OffloadedWeightsLoader, PrefixedDataset, get_max_memory
from safetensors import SafetensorError, safe_open
from torch import Tensor

from headwise.core.errors import HeadwiseError
from headwise.models.attention.offload import Parts, hook_of
from headwise.models.attention.rebuilt import drop_unused
from headwise.models.model_files import weight_files

DeviceMap = str | Mapping[str, int | str]
FILLED = 0.9  # of a device's memory, at most

# The types of numbers in safetensors files.
NUMBER_TYPES = {
    "F32": torch.float32,
    "BF16": torch.bfloat16,
    "F16": torch.float16,
    "F64": torch.float64,
}


def full_device_map(
    device_map: DeviceMap | None, device: str, config: Any, model_class: Any
) -> Any:
    """A map of devices as transformers takes it.

    `disk`: all weights stay in their files, except for those that no file has, and one small one, from which Accelerate
    knows the device that computes.
    """
    named = isinstance(device_map, str) and device_map in ("auto", "disk")
    if device_map is not None and not named and not isinstance(device_map, Mapping):
        raise HeadwiseError(
            f"The device map {device_map} was asked for: give auto, disk, or a device for each module."
        )
    if device_map != "disk":
        return device_map

    with init_empty_weights():
        model = model_class._from_config(config)
    tensors = model.state_dict()
    # The module that has each tensor; a tensor at the top goes by its own name.
    owners = {name: name.rpartition(".")[0] or name for name in tensors}
    # A norm or a bias: small enough to stay on the device.
    vectors = [name for name, weight in model.named_parameters() if weight.dim() == 1]
    stay = [*vectors[-1:], *(model._keys_to_ignore_on_save or ())]
    resident = {owners[name] for name in stay if name in tensors}

    devices = {}
    for owner in owners.values():
        devices[owner] = device if owner in resident or owner in tensors else "disk"
    return devices


def fallback_device_map(path: Path, device: str, dtype: torch.dtype | None) -> str | None:
    """The map of devices for a model that does not fit on the device that was asked for; None for one that fits."""
    try:
        stored = stored_weights(weight_files(path), dtype)
        size = sum(shape.numel() * kind.itemsize for _, _, shape, kind in stored)
    except (OSError, SafetensorError):
        return None  # weights of another sort, or damaged ones: loading says which
    # By device number, and `cpu`.
    memory = get_max_memory()
    index = (torch.device(device).index or 0) if device.startswith("cuda") else device
    if size <= FILLED * memory.get(index, memory.get("cpu", 0)):
        return None
    device_map = "auto" if device != "cpu" else "disk"
    warnings.warn(
        f"{path} has {size / 1e9:.1f} GB of weights, more than fit on {device}: they are loaded as they are needed "
        f"(device_map='{device_map}'), which is slow.",
        stacklevel=3,
    )
    return device_map


def stored_weights(
    files: Sequence[Path], dtype: torch.dtype | None = None
) -> Iterator[tuple[Path, str, torch.Size, torch.dtype]]:
    """The file, name, shape and type of every weight in some files, from their headers alone. dtype: in place of their
    own."""
    for path in files:
        with safe_open(path, "pt") as file:
            for name in file.keys():  # noqa: SIM118
                stored = file.get_slice(name)
                number_type = dtype or NUMBER_TYPES.get(stored.get_dtype(), torch.float32)
                yield path, name, torch.Size(stored.get_shape()), number_type


def scratch() -> str:
    """A folder for offloaded weights that are not in the checkpoint as the model has them; removed at exit."""
    folder = tempfile.mkdtemp(prefix="headwise-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def meta_model(config: Any, model_class: Any, device: str) -> Any:
    """The stock model without its weights; it runs on a device as if all were 0, so that heads can be discovered."""
    with init_empty_weights():
        stock = drop_unused(model_class._from_config(config)).eval()
    if stock._keys_to_ignore_on_save:
        raise HeadwiseError(
            f"A {type(stock).__name__} computes some weights itself, which no file has: load it without device_map."
        )
    weights = stock.named_parameters(remove_duplicate=False)
    zeros = Parts({name: partial(without_memory, weight) for name, weight in weights})
    return cpu_offload(stock, torch.device(device), state_dict=zeros)


def without_memory(weight: Tensor) -> Tensor:
    """As many zeros as a weight has numbers."""
    return torch.zeros((), dtype=weight.dtype).expand(weight.shape)


def read_from(model: Any, files: Sequence[Path], dtype: torch.dtype | None) -> list[str]:
    """Let an offloaded model read its weights from files when it needs them; returns the names that do not fit."""
    parameters = dict(model.named_parameters(remove_duplicate=False))
    index: dict[str, dict[str, str]] = {}
    for path, name, shape, number_type in stored_weights(files, dtype):
        own = parameters.get(name)
        if own is not None and own.shape != shape:
            raise HeadwiseError(f"{name} has the shape {[*shape]}, not {[*own.shape]}.")
        index[name] = {
            "safetensors_file": str(path),
            "weight_name": name,
            "dtype": str(number_type).removeprefix("torch."),
        }
    # A tied weight is in the file once, and offloaded it is several parameters.
    for name, source in (model.all_tied_weights_keys or {}).items():
        if source in index:
            index.setdefault(name, index[source])

    loader = OffloadedWeightsLoader(index=index)
    for path, module in model.named_modules():
        hook = hook_of(module)
        if hook is None:
            continue
        prefix = f"{path}." if path else ""
        # The zeros of `meta_model` give way to the numbers in the files.
        hook.weights_map = PrefixedDataset(loader, prefix)
        for name, parameter in module.named_parameters(recurse=False):
            entry = index.get(f"{path}.{name}")
            # On the meta device this costs nothing, and the hook takes the type from here.
            tensor = parameter.to(getattr(torch, entry["dtype"]) if entry else None)
            setattr(module, name, torch.nn.Parameter(tensor, requires_grad=parameter.requires_grad))
    # In the files alone, or in the model alone.
    return sorted(index.keys() ^ parameters.keys())
