"""The output layer of a model that predicts words: logits of chosen positions, without those of a whole batch.

Positions × vocabulary is the largest tensor of a forward. The states before the output layer are small, and logits of a
few positions at once are made from them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

import torch
from torch import Tensor, nn

from headwise.attention.offload import loaded

FEW = 4  # positions whose logits the model itself computes, for comparison


def constants(model: nn.Module, layer: nn.Module) -> tuple[Tensor | None, float | None]:
    """What models add to their logits, V or 1 V, and the cap c of those that make x into c · tanh(x/c)."""
    biases = [
        bias
        for bias in (loaded(layer, "bias"), getattr(model, "final_logits_bias", None))
        if bias is not None
    ]
    config: Any = model.config
    cap: float | None = getattr(getattr(config, "decoder", config), "final_logit_softcapping", None)
    return (torch.stack([bias.flatten() for bias in biases]).sum(0) if biases else None), cap


def projection(model: nn.Module, device: torch.device) -> Callable[[Tensor], Tensor] | None:
    """The logits N V of states N M, as most models compute them: one linear layer, constants, a cap. None for a model
    with another sort of output layer."""
    layer: Any = model.get_output_embeddings()  # type: ignore[operator]
    if not isinstance(layer, nn.Linear):
        return None
    weight = loaded(layer).to(device)
    bias, cap = constants(model, layer)
    bias = None if bias is None else bias.to(weight)

    def project(states: Tensor) -> Tensor:
        logits = nn.functional.linear(states, weight, bias)
        return logits if cap is None else torch.tanh(logits / cap) * cap

    return project


@contextmanager
def few_logits(model: nn.Module) -> Iterator[list[Tensor]]:
    """In the block a forward computes logits of only the first few positions of the first sentence; the list gets the
    states before the output layer, B T M, of each forward."""
    seen: list[Tensor] = []

    def shorten(_: nn.Module, given: tuple[Any, ...]) -> tuple[Any, ...]:
        seen.append(given[0])
        return given[0][:1, :FEW], *given[1:]

    hook = model.get_output_embeddings().register_forward_pre_hook(shorten)  # type: ignore[operator]
    try:
        yield seen
    finally:
        hook.remove()


class AtOutputLayer(Exception):
    """Ends a forward where the output layer would begin."""


def states_before(
    layer: nn.Module, forward: Callable[..., Any], inputs: Mapping[str, Any]
) -> Tensor:
    """What a forward gives to the output layer: B T M."""
    states: list[Tensor] = []

    def stop(_: nn.Module, given: tuple[Tensor, ...]) -> None:
        states.append(given[0])
        raise AtOutputLayer

    hook = layer.register_forward_pre_hook(stop)
    try:
        with suppress(AtOutputLayer):
            forward(**inputs)
    finally:
        hook.remove()
    return states[0]
