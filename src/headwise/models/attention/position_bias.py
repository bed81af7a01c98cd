"""Removing heads from layers that add a bias by relative position to their scores (T5 and its relatives).

In T5 the first layer of a stack computes the bias of all heads, 1 H Q K, and every layer adds it and passes it on.
Layers may keep different heads, so the full bias is still passed on, and each pruned layer adds its own part. When the
first layer has no heads left, the first layer with heads computes the bias.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn

from headwise.models.attention.offload import device_of

TABLE = "relative_attention_bias"  # by bucket of distances, a number for each head


def shares_bias(module: nn.Module) -> bool:
    """Whether a layer takes a bias from the one before and passes it on."""
    return hasattr(module, "compute_bias") and "position_bias" in forward_parameters(module)


def forward_parameters(module: nn.Module) -> Mapping[str, inspect.Parameter]:
    """The arguments of a layer's own forward."""
    return inspect.signature(type(module).forward).parameters


def narrow(module: nn.Module, kept: list[int], heads: int) -> None:
    """Make a layer with `heads` heads add the bias of the heads `kept` only. A layer that shares no bias (UMT5) keeps
    their columns; one that is given it (Bloom, MPT, MPNet) takes its part."""
    given = {"alibi", "position_bias"} & {*forward_parameters(module)}
    if given:
        chosen = torch.tensor(kept, dtype=torch.long, device=device_of(module))
        # From a second removal on, heads are counted among those that the first one left.
        before = getattr(module, "bias_heads", None)
        # A buffer, which follows the model to its device; it is not saved, because the layout says the same.
        module.register_buffer(
            "bias_heads", chosen if before is None else before[chosen], persistent=False
        )
    if given and not shares_bias(module):
        # The first forward stays: `heads` is the number in the model that was pruned first.
        module.__dict__.setdefault("forward", partial(forward_given, module, heads))
    elif shares_bias(module):
        module.__dict__["forward"] = partial(biased_forward, module)
        module.__dict__["compute_bias"] = partial(compute_bias, module)
    elif hasattr(module, TABLE):
        table = cast(nn.Embedding, getattr(module, TABLE))
        # UMT5: every layer has a table of its own, so its columns are simply cut.
        columns = table.weight.detach()[:, kept]
        setattr(
            module,
            TABLE,
            nn.Embedding.from_pretrained(columns, freeze=not table.weight.requires_grad),
        )


def biased_forward(
    module: Any,
    hidden_states: Tensor,
    mask: Any = None,
    key_value_states: Any = None,
    position_bias: Tensor | None = None,
    **more: Any,
) -> tuple[Tensor, Tensor | None, Any]:
    """The layer's own forward with its part of a bias 1 H Q K; passes the full bias on."""
    # The bias of the heads that this layer still has.
    own = None if position_bias is None else position_bias.index_select(1, module.bias_heads)
    # The layer that computes the bias puts it here (`compute_bias`), others hand on what they got.
    module.__dict__["whole_bias"] = position_bias
    output, _, weights = type(module).forward(
        module, hidden_states, mask, key_value_states, own, **more
    )
    return output, module.__dict__.pop("whole_bias"), weights


def forward_given(module: Any, heads: int, *args: Any, **kwargs: Any) -> Any:
    """The layer's own forward with its part of the biases of all `heads` heads: B H Q K, B·H 1 K or H 1 K. Falcon also
    adds its bias to the mask."""
    given = inspect.signature(type(module).forward).bind(module, *args, **kwargs)
    for name in ("alibi", "position_bias", "attention_mask"):
        bias = given.arguments.get(name)
        # A mask of 4 axes has one head, unless Falcon has added its bias.
        if isinstance(bias, Tensor) and bias.dim() == 4 and bias.shape[1] == heads:
            given.arguments[name] = bias.index_select(1, module.bias_heads)
        elif isinstance(bias, Tensor) and bias.dim() == 3 and name != "attention_mask":
            # B·H 1 K to B H 1 K, so that heads can be picked.
            parts = bias.unflatten(0, (-1, heads))
            given.arguments[name] = parts.index_select(1, module.bias_heads).flatten(0, 1)
    return type(module).forward(*given.args, **given.kwargs)


def compute_bias(module: Any, *args: Any, **kwargs: Any) -> Tensor:
    """The part of a layer's own heads; `biased_forward` passes the full bias on."""
    whole: Tensor = type(module).compute_bias(module, *args, **kwargs)
    module.__dict__["whole_bias"] = whole
    return whole.index_select(1, module.bias_heads)


def hand_down(layers: Sequence[nn.Module], kept: Sequence[Sequence[int]]) -> None:
    """Move the table of a stack's bias from a layer without heads to the first that has any.

    layers: the attention layers of one stack, in order; kept: the heads that are left in each.
    """
    first = next((layer for layer, heads in zip(layers, kept, strict=True) if heads), None)
    holder = next((layer for layer in layers if hasattr(layer, TABLE)), None)
    if first is not None and holder is not None and not hasattr(first, TABLE):
        setattr(first, TABLE, getattr(holder, TABLE))
        first.__dict__["has_relative_attention_bias"] = True
