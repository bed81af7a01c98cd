"""Gradients of the direct paths alone: what a head itself adds to the logits, not what later layers make of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from headwise.models.attention import kernel
from headwise.models.attention.discover import Discovery
from headwise.models.attention.projection import LinearNorm, output_layers
from headwise.models.attention.reuse import blocks


@contextmanager
def direct_paths(model: nn.Module, discovery: Discovery) -> Iterator[None]:
    """In the block, a backward pass follows direct paths alone: from a head through its output projection and the residual
    stream to the output layer. Later attention and feed-forward layers are constants, and so is what each norm divides
    by at a token. The forward pass gives the same numbers as outside.

    Raises HeadwiseError for a layer whose heads reach no output projection unchanged.
    """
    projections = {module for module, _ in output_layers(model, discovery).values()}
    # also layers without heads, such as those of state spaces
    layers = {
        module for stack in set(blocks(model, discovery).values()) for module in stack.modules()
    }
    norms: dict[nn.Module, Callable[..., Any]] = {}
    with ExitStack() as block:
        for module in model.modules():
            if is_norm(module):
                norms[module] = partial(frozen, module, module.forward)
            elif module in layers - projections and has_matrix(module):
                hook = module.register_forward_pre_hook(cut, with_kwargs=True)
                block.callback(hook.remove)
        block.enter_context(kernel.patched("forward", norms))
        yield


def is_norm(module: nn.Module) -> bool:
    """Whether a module divides by the size of what it gets. Families call such classes LayerNorm, RMSNorm, LayerNorm1P."""
    return "Norm" in type(module).__name__ and not list(module.children())


def has_matrix(module: nn.Module) -> bool:
    """Whether a module itself has weights that mix the numbers of a token: a linear layer, experts, a convolution."""
    return any(parameter.dim() > 1 for parameter in module.parameters(recurse=False))


def cut(_: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any]) -> tuple[Any, Any]:
    """What a module gets, as constants."""

    def constant(given: Any) -> Any:
        return given.detach() if isinstance(given, Tensor) else given

    return tuple(map(constant, inputs)), {name: constant(given) for name, given in named.items()}


def frozen(norm: nn.Module, usual: Callable[..., Any], states: Tensor, *others: Any) -> Any:
    """What a norm gives for states … M, with the gradient of gain ⊙ states · s, s what it divides each token by."""
    if not states.requires_grad:
        return usual(states, *others)
    linear = LinearNorm.of(norm, states)
    with torch.no_grad():
        normed = usual(states, *others)
        straight = linear(states)
        # 1 / s is the slope between the two; a token of zeros has none
        size = straight.square().sum(-1, keepdim=True)
        slope = ((normed - linear.bias) * straight).sum(-1, keepdim=True)
        slope = slope / size.clamp_min(torch.finfo(size.dtype).tiny)
    through = linear(states) * slope
    return normed + (through - through.detach())
