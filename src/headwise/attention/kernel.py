"""The one function every attention layer goes through, registered with transformers under the name `headwise`.

It reads its orders from the module that calls it (`module.headwise`, a `Slot` or nothing), never from global state, so two models, or two captures
of one model, do not meet. Without orders it hands over to `sdpa`; with orders it builds the weights itself, or scales the heads' outputs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

from headwise.errors import HeadwiseError
from headwise.heads import Site

NAME = "headwise"
# Arguments that change the result and that `weigh` knows; the rest of what modeling files pass along is harmless.
_REFUSED = ("block_mask", "alibi", "cu_seqlens", "cu_seq_lens_q")


@dataclass
class Seen:
    """What one attention layer did in one call. B batch, H heads, Q queries, K keys, D head size."""

    site: Site
    query: Tensor  # B H Q D
    key: Tensor  # B G K D, G key/value heads
    value: Tensor  # B G K D
    mask: Tensor | None  # B 1 Q K, True where attention is allowed
    weights: Tensor | None  # B H Q K after softmax; None when only outputs were asked for
    output: Tensor  # B Q H D, what every head hands to the output projection, before any gate


@dataclass
class Orders:
    """What to do at one site: show it to `watch`, multiply its heads by `gate`, put `replace(seen)` in place of its output."""

    watch: Callable[[Seen], None] | None = None
    weights: bool = False  # whether `watch` and `replace` want the weights
    gate: Callable[[], Tensor] | None = None  # H, or B H
    replace: Callable[[Seen], Tensor] | None = None


class Slot:
    """The orders of one attention module: one per pass through it (ALBERT runs one module for all its layers)."""

    def __init__(self, sites: list[Site], explicit: bool = False) -> None:
        self.sites = sites
        self.orders = [Orders() for _ in sites]
        self.explicit = explicit  # build the weights even when nobody looks: on CPU its backward is ten times faster than sdpa's
        self.calls = 0

    def next(self) -> tuple[Site, Orders]:
        turn = self.calls % len(self.sites)
        self.calls += 1
        return self.sites[turn], self.orders[turn]


def attend(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None,
    scaling: float | None = None, dropout: float = 0.0, **kwargs: Any,
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    """Attention for `AttentionInterface`: query B H Q D, key and value B G K D in, heads' outputs B Q H D out."""
    slot: Slot | None = module.__dict__.get(NAME)
    if slot is None:
        return hand_over(module, query, key, value, attention_mask, scaling, dropout, kwargs), None
    site, orders = slot.next()
    weights = None
    if orders.weights or slot.explicit:
        weights = weigh(query, key, attention_mask, scaling, kwargs)
        shown = nn.functional.dropout(weights, dropout, module.training) if dropout else weights
        output = torch.matmul(shown.to(value.dtype), repeat(value, query.shape[1])).transpose(1, 2)
    else:
        output = hand_over(module, query, key, value, attention_mask, scaling, dropout, kwargs)
    if orders.watch or orders.replace:
        seen = Seen(site, query, key, value, attention_mask, weights if orders.weights else None, output)
        if orders.watch:
            orders.watch(seen)
        if orders.replace:
            output = orders.replace(seen)
    if orders.gate:
        output = output * spread(orders.gate(), output)
    return output.contiguous(), weights


def hand_over(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None,
    scaling: float | None, dropout: float, kwargs: dict[str, Any],
) -> Tensor:  # fmt: skip
    """The stock fast kernel, which has no soft cap and no attention sinks of its own: those go the explicit way."""
    if kwargs.get("softcap") is not None or kwargs.get("s_aux") is not None:
        weights = nn.functional.dropout(weigh(query, key, mask, scaling, kwargs), dropout, module.training)
        return torch.matmul(weights.to(value.dtype), repeat(value, query.shape[1])).transpose(1, 2).contiguous()
    output: Tensor = sdpa_attention_forward(
        module, query, key, value, mask, dropout=dropout, scaling=scaling, **kwargs
    )[0]
    return output


def weigh(query: Tensor, key: Tensor, mask: Tensor | None, scaling: float | None, kwargs: dict[str, Any]) -> Tensor:
    """Attention weights B H Q K: softmax(scale · q kᵀ + bias), masked keys at exactly the smallest number, in float32 at least."""
    for name in _REFUSED:
        if kwargs.get(name) is not None:
            raise HeadwiseError(f"This model passes '{name}' to its attention, which headwise does not read: its heads cannot be watched.")
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    scores = torch.matmul(query * scale, repeat(key, query.shape[1]).transpose(-1, -2))
    if kwargs.get("softcap") is not None:
        scores = torch.tanh(scores / kwargs["softcap"]) * kwargs["softcap"]
    if kwargs.get("position_bias") is not None:
        scores = scores + kwargs["position_bias"][..., : scores.shape[-1]]
    if mask is not None:
        mask = mask[..., : scores.shape[-1]]
        scores = scores.masked_fill(~mask, torch.finfo(scores.dtype).min) if mask.dtype == torch.bool else scores + mask
    wide = torch.promote_types(scores.dtype, torch.float32)
    if kwargs.get("s_aux") is not None:  # one learned sink logit a head, which takes mass and is then dropped
        sink = kwargs["s_aux"].reshape(1, -1, 1, 1).expand(*scores.shape[:-1], 1)
        return torch.softmax(torch.cat([scores, sink], -1).to(wide), -1)[..., :-1]
    return torch.softmax(scores.to(wide), -1)


def repeat(states: Tensor, heads: int) -> Tensor:
    """Grouped queries: every key/value head serves several query heads. B G K D in, B H K D out."""
    return states if states.shape[1] == heads else states.repeat_interleave(heads // states.shape[1], 1)


def spread(gate: Tensor, output: Tensor) -> Tensor:
    """A gate (H, or B H) in the shape of an output B Q H D; under beam search the batch axis is repeated, and the gate follows."""
    if gate.dim() == 1:
        return gate.to(output.dtype).view(1, 1, -1, 1)
    if gate.shape[0] != output.shape[0]:
        gate = gate.repeat_interleave(output.shape[0] // gate.shape[0], 0)
    return gate.to(output.dtype)[:, None, :, None]


def whole_mask(*args: Any, **kwargs: Any) -> Tensor | None:
    """A mask that is always built: sdpa's own leaves it out when a flag can say the same, and an explicit softmax would then see the future."""
    mask: Tensor | None = sdpa_mask(*args, **(kwargs | {"allow_is_causal_skip": False, "allow_is_bidirectional_skip": False}))
    return mask


AttentionInterface.register(NAME, attend)
AttentionMaskInterface.register(NAME, whole_mask)
