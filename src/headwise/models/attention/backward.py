"""Layers through which no gradient passes, such as those of integers: heads before them would look as if they did
nothing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from headwise.core.errors import HeadwiseError

QUANTISED = "torch.ao.nn.quantized"  # torch's modules of integers
LINEAR = (nn.Linear, Conv1D)


@contextmanager
def passing_gradients(model: nn.Module) -> Iterator[None]:
    """A block in which the model's forward is refused where a linear layer gets a gradient and passes none on.

    Raises HeadwiseError at once for modules that torch has quantised. Layers of other formats are asked when they run:
    only those that are no plain `nn.Linear` cost anything.
    """
    with ExitStack() as block:
        for name, module in model.named_modules():
            if is_quantised(module):
                raise no_gradient(model, name, module)
            if "Linear" in type(module).__name__ and type(module) not in LINEAR:
                hook = partial(refuse_broken, model, name)
                block.callback(module.register_forward_hook(hook).remove)
        yield


def is_quantised(module: nn.Module) -> bool:
    """Whether a module is one of integers that torch has put in place of another."""
    return type(module).__module__.startswith(QUANTISED)


def refuse_broken(
    model: nn.Module, name: str, module: nn.Module, given: tuple[Any, ...], output: Any
) -> None:
    """Raise HeadwiseError where the inputs of a layer have a gradient and its output has none."""
    # Without a gradient in there need be none out.
    asked = any(isinstance(each, Tensor) and each.requires_grad for each in given)
    if asked and isinstance(output, Tensor) and not output.requires_grad:
        raise no_gradient(model, name, module)


def no_gradient(model: nn.Module, name: str, module: nn.Module) -> HeadwiseError:
    return HeadwiseError(
        f"No gradient passes through {name} of this {type(model).__name__}, a {type(module).__module__.rpartition('.')[0]} "
        f"{type(module).__name__}: use the model before it was quantised, or score it by confidence or ablation."
    )


def refuse_no_gradients(model: nn.Module, arrived: bool) -> None:
    """Raise HeadwiseError where no gradient of the loss arrived at any head: zeros would be read as importance."""
    if not arrived:
        raise HeadwiseError(
            f"No gradient of the loss reaches any head of this {type(model).__name__}, so there is nothing to score: a "
            "layer behind them passes none on (integers, or code under torch.no_grad). Use the model as it was trained, or "
            "score it by confidence or ablation."
        )


def words_of(layer: Any) -> int:
    """How many words an embedding or an output layer has; weights of integers are no tensor."""
    for size in ("out_features", "num_embeddings"):
        if isinstance(count := getattr(layer, size, None), int):
            return count
    return int(layer.weight.shape[0])
