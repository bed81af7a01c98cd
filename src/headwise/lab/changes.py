"""Heads turned down: an output between a head's own and what stands in for it.

With a gate g from 0 to 1 a head gives g · own + (1 − g) · other. Other is zero (Michel et al. 2019, section 2.3), the
head's mean output over the tokens of this sentence, or its output with equal weights on all visible keys.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Literal

import torch
from torch import Tensor

from headwise.attention import AttentionCall, capture
from headwise.attention.kernel import repeat, spread
from headwise.heads import Site
from headwise.model import Model

Ablation = Literal["zero", "mean", "uniform"]
Means = Mapping[Site, Tensor]  # H D
Check = Callable[[], None]  # raises when the work is no longer wanted


@contextmanager
def turned_down(
    model: Model,
    gates: Tensor,
    ablation: Ablation,
    means: Means,
    check: Check,
    watch: Callable[[AttentionCall], None] | None = None,
) -> Iterator[None]:
    """The model with its heads turned down, in the order of its map. gates: H, or B H for a row of a batch each.

    Layers whose gates are all 1 compute as ever. watch: sees every call with its weights. check: asked at every layer.
    """
    counts = [model.heads.count(site) for site in model.heads.sites]
    parts = dict(zip(model.heads.sites, gates.to(model.hf.device).split(counts, -1), strict=True))
    changed = {
        site: part for site, part in parts.items() if part.numel() and bool((part != 1).any())
    }

    def see(call: AttentionCall) -> None:
        check()
        if watch:
            watch(call)

    options = {"watch": see, "weights": watch is not None}
    if ablation == "zero":
        with capture(model.hf, model.found, gates=changed, **options):  # type: ignore[arg-type]
            yield
    else:
        replace = {
            site: partial(mixed, gate=gate, means=means.get(site)) for site, gate in changed.items()
        }
        with capture(model.hf, model.found, replace=replace, **options):  # type: ignore[arg-type]
            yield


def mixed(call: AttentionCall, gate: Tensor, means: Tensor | None) -> Tensor:
    """The outputs B Q H D of a call, turned down towards means (H D), or towards uniform attention without them."""
    gate = spread(gate, call.output)
    other = uniform(call) if means is None else means.to(call.output)
    return torch.where(gate == 1, call.output, call.output * gate + other * (1 - gate))


def uniform(call: AttentionCall) -> Tensor:
    """The outputs B Q H D of a call with equal weights on all visible keys, of sentences without padding."""
    queries, keys = call.query.shape[2], call.key.shape[2]
    if call.mask is not None:
        mask = call.mask[..., :keys]
        seen = mask if mask.dtype == torch.bool else mask > torch.finfo(mask.dtype).min / 2
    else:
        seen = torch.ones(queries, keys, dtype=torch.bool, device=call.query.device)
        seen = seen.tril(keys - queries) if call.site.kind == "decoder-self" else seen
    weights = seen / seen.sum(-1, keepdim=True).clamp_min(1)
    return torch.matmul(weights.to(call.value), repeat(call.value, call.query.shape[1])).transpose(
        1, 2
    )
