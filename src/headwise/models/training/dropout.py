"""Fast dropout on CPU, for any unmodified model.

torch draws one float per element, which on CPU takes longer than the matrix products around it. Here eight elements
share 64 random bits: a byte each, so that p is rounded to 1/256. Kept elements are scaled by the rounded share, so the
mean is right. The bits come from torch's generator: a resumed run draws the same.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from headwise.models.attention.offload import device_of


class FastDropout(TorchFunctionMode):
    """Inside this block `torch.nn.functional.dropout` on CPU tensors draws bytes."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if func is torch.nn.functional.dropout and args[0].device.type == "cpu":
            return dropout(*args, **kwargs)
        return func(*args, **kwargs)


def fast_dropout(model: nn.Module) -> AbstractContextManager[Any]:
    """`FastDropout` for a model on CPU that drops anything; else nothing, because every operation pays a little for
    the mode."""
    drops = dropout_of(model) > 0
    return FastDropout() if drops and device_of(model).type == "cpu" else nullcontext()


def dropout_of(model: nn.Module) -> float:
    """The highest probability with which a model's modules drop anything in training."""
    highest = 0.0
    for module in model.modules():
        for name, value in vars(module).items():
            if isinstance(value, float) and (name == "p" or "dropout" in name):
                highest = max(highest, value)
    return highest


def dropout(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    """Zero elements with probability p (rounded to 1/256) and scale the rest; same signature as torch's."""
    cut = round(p * 256)
    if not training or cut == 0:
        return input
    if cut == 256:
        return input * 0
    # The full range of int64: `random_` without bounds never sets the sign bit, so every eighth byte would be below 128.
    draws = torch.empty((input.numel() + 7) // 8, dtype=torch.int64).random_(-(2**63), None)
    keep = draws.view(torch.uint8)[: input.numel()].view(input.shape) >= cut
    return input * keep.to(input.dtype).mul_(256 / (256 - cut))
