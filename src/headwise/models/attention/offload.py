"""Weights that are loaded only while they are used: models that Accelerate has spread over devices, memory and files.

Its hooks load the weights of a layer for the time of the layer's forward. Outside of it such a weight is on the `meta`
device, where it has a shape and no numbers; here is the rest of headwise's access to it.
"""

from __future__ import annotations

import copy
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from accelerate.hooks import AlignDevicesHook, add_hook_to_module
from torch import Tensor, nn

from headwise.core.errors import HeadwiseError

# Methods that Accelerate replaces on a model that it has spread.
MOVES = ("to", "cuda", "npu", "xpu", "mlu", "sdaa", "musa")


def hook_of(module: nn.Module) -> AlignDevicesHook | None:
    """The hook that loads a module's own weights, where they are offloaded."""
    hook: Any = getattr(module, "_hf_hook", None)
    # Accelerate chains several hooks of one module in a SequentialHook.
    parts = getattr(hook, "hooks", (hook,))
    return next(
        (part for part in parts if isinstance(part, AlignDevicesHook) and part.offload), None
    )


def is_offloaded(model: nn.Module) -> bool:
    """Whether some weights are not on the device that computes."""
    return any(parameter.is_meta for parameter in model.parameters())


def device_of(model: nn.Module) -> torch.device:
    """The device for a model's inputs: where its first weights are, or where they are loaded to."""
    # The first layer reads the inputs, so they go to its device.
    first = next(model.parameters())
    if not first.is_meta:
        return first.device
    hooks = (hook_of(module) for module in model.modules())
    return next(
        (torch.device(hook.execution_device) for hook in hooks if hook is not None), first.device
    )


def loaded(module: nn.Module, name: str = "weight") -> Any:
    """A weight of a module, loaded where it is offloaded; None where the module has none."""
    weight, hook = getattr(module, name), hook_of(module)
    if hook is None or weight is None or not weight.is_meta:
        return weight
    # Not through a mode such as `Float32`, which would widen it.
    with torch._C.DisableTorchFunction():
        return hook.weights_map[name]


def named_weights(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Every weight of a model with its name, one in memory at a time where they are offloaded."""
    for path, module in model.named_modules():
        for name, _ in module.named_parameters(recurse=False):
            yield f"{path}.{name}".removeprefix("."), loaded(module, name)


class Parts(Mapping[str, Any]):
    """Offloaded weights of a new module, each made when it is asked for: functions by name."""

    def __init__(self, makers: Mapping[str, Callable[[], Tensor]]) -> None:
        self.makers = makers

    def __getitem__(self, name: str) -> Tensor:
        return self.makers[name]()

    def __iter__(self) -> Iterator[str]:
        return iter(self.makers)

    def __len__(self) -> int:
        return len(self.makers)


def offload_like(
    new: nn.Module, old: nn.Module, makers: Mapping[str, Callable[[], Tensor]]
) -> None:
    """Load the weights of a new module (on `meta`) only for its forward, as an offloaded module does."""
    hook = hook_of(old)
    assert hook is not None
    # Accelerate's own hook does the loading: here it only gets another source.
    loads = AlignDevicesHook(
        hook.execution_device, offload=True, weights_map=Parts(makers), skip_keys=hook.skip_keys
    )
    add_hook_to_module(new, loads)


def set_bias(linear: nn.Linear, bias: Tensor) -> None:
    """Give a linear layer another bias, on its device and in its type."""
    weight, hook = linear.weight, hook_of(linear)
    value = bias.detach().to(device="cpu" if weight.is_meta else weight.device, dtype=weight.dtype)
    if hook is not None and weight.is_meta:
        hook.weights_map = Parts(
            {"weight": partial(hook.weights_map.__getitem__, "weight"), "bias": lambda: value}
        )
    shown = value.to(weight.device)
    linear.bias = nn.Parameter(
        shown, requires_grad=(weight if linear.bias is None else linear.bias).requires_grad
    )


def separate_copy(model: nn.Module) -> nn.Module:
    """A copy of a model with weights of its own. Offloaded weights have no numbers in memory: both models load them
    from the same files, which nothing writes into."""
    known: dict[int, Any] = {}
    for module in model.modules():
        # Half of a copy's time goes into a module's dozen tables of hooks, nearly all of them empty.
        tables = (table for table in vars(module).values() if type(table) is OrderedDict)
        known |= {id(table): OrderedDict() for table in tables if not table}
        if (hook := hook_of(module)) is not None:
            # Shared by both models: a deep copy would load every weight into memory.
            known |= {id(each): each for each in (hook.weights_map, hook.tied_params_map)}
    copied = copy.deepcopy(model, known)
    # Accelerate's are bound to the first model, which they would move.
    for name in MOVES:
        copied.__dict__.pop(name, None)
    return copied


@contextmanager
def undisturbed(model: nn.Module) -> Iterator[None]:
    """In the block offloaded weights are loaded in their own types, whatever a TorchFunctionMode makes of others."""
    hooks = [hook for module in model.modules() if (hook := hook_of(module)) is not None]

    def run(usual: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        with torch._C.DisableTorchFunction():
            return usual(*args, **kwargs)

    for hook in hooks:
        hook.pre_forward, hook.post_forward = (
            partial(run, hook.pre_forward),
            partial(run, hook.post_forward),
        )
    try:
        yield
    finally:
        for hook in hooks:
            del hook.pre_forward, hook.post_forward


def refuse_offloaded(model: nn.Module, what: str) -> None:
    """Raise HeadwiseError for what needs all weights of a model in memory at once."""
    if is_offloaded(model):
        raise HeadwiseError(
            f"{what} needs all weights of this {type(model).__name__} in memory, but some are offloaded: load it "
            "without device_map, or in half precision (dtype='bfloat16')."
        )


@contextmanager
def reloading(model: nn.Module) -> Iterator[None]:
    """In the block, autograd keeps no offloaded weight from the forward to the backward pass: it loads it again. So
    memory holds one layer, not all."""
    if not is_offloaded(model):
        yield
        return
    # The weights that are loaded now, by the place of their numbers in memory.
    there: dict[int, tuple[nn.Module, str]] = {}

    def run(module: nn.Module, usual: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        own = {
            p.untyped_storage().data_ptr(): (module, name)
            for name, p in module.named_parameters(recurse=False)
        }
        # While this layer runs, a saved tensor at these addresses is one of its weights.
        there.update(own)
        try:
            return usual(*args, **kwargs)
        finally:
            for place in own:
                there.pop(place, None)

    def keep(tensor: Tensor) -> Any:
        # An activation: autograd keeps it, as always.
        if (known := there.get(tensor.untyped_storage().data_ptr())) is None:
            return tensor
        # Of a weight only where it is from; `fetch` loads it again.
        return *known, tensor.device, tensor.shape, tensor.stride(), tensor.storage_offset()

    def fetch(kept: Any) -> Tensor:
        if isinstance(kept, Tensor):
            return kept
        module, name, device, shape, stride, offset = kept
        weight: Tensor = loaded(module, name).to(device)
        # Autograd may have kept a view of the weight, such as its transpose.
        return weight.as_strided(shape, stride, weight.storage_offset() + offset)

    # Inside of Accelerate's forward, where the weights are loaded.
    offloaded = [module for module in model.modules() if hook_of(module) is not None]
    before: dict[nn.Module, Any] = {module: module._old_forward for module in offloaded}
    for module, usual in before.items():
        module._old_forward = partial(run, module, usual)  # type: ignore[assignment]
    try:
        with torch.autograd.graph.saved_tensors_hooks(keep, fetch):
            yield
    finally:
        for module, usual in before.items():
            module._old_forward = usual
