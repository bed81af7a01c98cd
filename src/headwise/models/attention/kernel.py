"""The one function every attention layer goes through, registered with transformers under the name `headwise`.

It reads its hooks from the module that calls it (`module.headwise`, a `HookState` or nothing), never from global state:
two models, or two captures of one model, do not interfere. Without hooks it calls `sdpa`; with hooks it computes the
weights itself where they are needed, and scales or replaces the heads' outputs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import handle_torch_function, has_torch_function
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

from headwise.core.errors import HeadwiseError
from headwise.core.heads import Site

INTERFACE_NAME = "headwise"
# What masks add to the scores of hidden keys is below: −10,000 in old families, else the type's minimum.
HIDDEN = -9e3
Gate = Tensor | Callable[[], Tensor]
# Arguments of an attention call that hold numbers and that `weigh` and sdpa handle, or that change no output.
_KNOWN = {
    "softcap",
    "s_aux",
    "position_bias",
    "input_ids",
    "position_ids",
    "cache_position",
    "num_items_in_batch",
}


@dataclass
class AttentionCall:
    """What one attention layer did in one call. B batch, H heads, Q queries, K keys, D head size."""

    site: Site
    query: Tensor  # B H Q D
    key: Tensor  # B G K D, G key/value heads
    value: Tensor  # B G K D
    mask: Tensor | None  # B 1 Q K, True where attention is allowed
    weights: Tensor | None  # B H Q K after softmax; None when only outputs were asked for
    output: Tensor  # B Q H D, the heads' outputs before the output projection and before any gate of this capture
    # the layer's attention, from query, key, value and mask; None in layers of own code
    formula: Callable[[Tensor, Tensor, Tensor, Tensor | None], Tensor] | None = None

    def __repr__(self) -> str:
        shapes = {"output": self.output, "weights": self.weights}
        shown = [f"{name} {(*each.shape,)}" for name, each in shapes.items() if each is not None]
        return f"AttentionCall({self.site}, {', '.join(shown)})"

    def attended(
        self, query: Tensor | None = None, key: Tensor | None = None, value: Tensor | None = None
    ) -> Tensor:
        """The heads' outputs B Q H D for another query, key or value, in the shapes of the call's own.

        Raises HeadwiseError for a layer whose own code computes attention."""
        if self.formula is None:
            raise HeadwiseError(
                f"{self.site} computes attention in its own code: headwise cannot give it other queries, keys or values."
            )
        query = self.query if query is None else query
        key = self.key if key is None else key
        value = self.value if value is None else value
        return self.formula(query, key, value, self.mask)

    def visible(self, queries: Tensor, keys: Tensor) -> Tensor:
        """Which key each query may attend to, B 1 Q K. queries B Q and keys B K: where a token is.

        A layer without a mask hides nothing, or, in a decoder's self-attention, the future. The last query is the
        last token: with a cache there are fewer queries than keys.
        """
        pairs = queries[:, None, :, None] & keys[:, None, None, :]
        if self.mask is not None:
            mask = self.mask[..., : keys.shape[1]]
            return pairs & (mask if mask.dtype == torch.bool else mask > HIDDEN)
        if self.site.kind == "decoder-self":
            return pairs.tril(keys.shape[1] - queries.shape[1])
        return pairs


@dataclass
class Hooks:
    """What one capture does at a site: call `hook`, replace the output by `replace(call)`, scale heads by `gate`."""

    hook: Callable[[AttentionCall], None] | None = None
    weights: bool = False  # whether `hook` and `replace` need the weights
    gate: Gate | None = None  # H, or B H
    replace: Callable[[AttentionCall], Tensor] | None = None


class HookState:
    """The hooks of one attention module: for each pass through it (ALBERT runs one module for all layers) a site, and
    the hooks of every open capture, the outermost first."""

    def __init__(self, explicit: bool = False) -> None:
        # Whether the weights are always computed: on a CPU the backward pass is then much faster than sdpa's.
        self.explicit = explicit
        self.passes: list[tuple[Site, list[Hooks]]] = []
        self.calls = 0

    def next(self) -> tuple[Site, list[Hooks]]:
        """The site and hooks of the pass that begins now."""
        self.calls += 1
        # Generation runs the layers once for every token.
        return self.passes[(self.calls - 1) % len(self.passes)]


def attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    **kwargs: Any,
) -> tuple[Tensor, Tensor | None]:
    """Attention for `AttentionInterface`: query B H Q D, key and value B G K D in, heads' outputs B Q H D out.

    A TorchFunctionMode gets it as one function: relevance propagation treats an attention layer as one step.
    """
    if has_torch_function((query, key, value)):
        handled: tuple[Tensor, Tensor | None] = handle_torch_function(
            attend,
            (query, key, value),
            module,
            query,
            key,
            value,
            attention_mask,
            scaling,
            dropout,
            **kwargs,
        )
        return handled
    refuse_unknown(kwargs)
    # Not getattr: modules look for unknown names among their parameters and submodules, which takes longer.
    state: HookState | None = module.__dict__.get(INTERFACE_NAME)
    given = (module, query, key, value, attention_mask, scaling, dropout, kwargs)
    if state is None:
        return stock(*given), None
    site, opened = state.next()
    weights = None
    weighed = any(hooks.weights for hooks in opened)
    if state.explicit or weighed:
        output, weights = explicit(*given, weighed)
    else:
        output = stock(*given)

    def formula(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Tensor:
        return stock(module, query, key, value, mask, scaling, dropout, kwargs)

    call = AttentionCall(site, query, key, value, attention_mask, weights, output, formula)
    # Some layers reshape the outputs by `view`, which needs them contiguous.
    return hooked(opened, call, output).contiguous(), weights


def hooked(opened: list[Hooks], call: AttentionCall | None, output: Tensor) -> Tensor:
    """The heads' outputs B Q H D after the hooks of every open capture. call: where a hook reads or replaces."""
    for hooks in opened:
        if hooks.hook or hooks.replace:
            assert call is not None
            # Each block sees what the ones around it made, and weights only where it asked for them.
            now = replace(call, weights=call.weights if hooks.weights else None, output=output)
            if hooks.hook:
                hooks.hook(now)
            if hooks.replace:
                output = hooks.replace(now)
        if hooks.gate is not None:
            gate = hooks.gate if isinstance(hooks.gate, Tensor) else hooks.gate()
            output = output * expand_gate(gate, output)
    return output


def refuse_unknown(kwargs: Mapping[str, Any]) -> None:
    """An argument with numbers that this file does not know may change the result (sinks, chosen keys)."""
    for name, value in kwargs.items():
        if name not in _KNOWN and isinstance(value, Tensor | float):
            raise HeadwiseError(
                f"This model passes '{name}' to its attention, which headwise does not support: "
                "no hook can read its heads."
            )


def stock(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    scaling: float | None,
    dropout: float,
    kwargs: dict[str, Any],
) -> Tensor:
    """The stock fast kernel; the explicit one for soft caps and attention sinks, which the fast one lacks."""
    if kwargs.get("softcap") is not None or kwargs.get("s_aux") is not None:
        return explicit(module, query, key, value, mask, scaling, dropout, kwargs, weighed=False)[
            0
        ].contiguous()
    output: Tensor = sdpa_attention_forward(
        module, query, key, value, mask, dropout=dropout, scaling=scaling, **kwargs
    )[0]
    return output


def explicit(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    scaling: float | None,
    dropout: float,
    kwargs: dict[str, Any],
    weighed: bool = True,
) -> tuple[Tensor, Tensor | None]:
    """The heads' outputs B Q H D by plain matrix products and, when asked for, the weights B H Q K (before dropout).

    A query with no visible key (padding before the text) has only zeros, as with sdpa.
    """
    mask = allowed(module, query, key, mask, kwargs)
    weights = weigh(query, key, mask, scaling, kwargs)
    dropped = nn.functional.dropout(weights, dropout, module.training) if dropout else weights
    output = torch.matmul(dropped.to(value.dtype), repeat(value, query.shape[1]))
    # For all queries: to ask whether there is such a one would make the processor wait for the device.
    if mask is not None and mask.dtype == torch.bool:
        seeing = mask[..., : key.shape[2]].any(-1, keepdim=True)
        output, weights = output * seeing, weights * seeing if weighed else weights
    return output.transpose(1, 2), weights if weighed else None


def allowed(
    module: nn.Module, query: Tensor, key: Tensor, mask: Tensor | None, kwargs: dict[str, Any]
) -> Tensor | None:
    """The mask of a call, B 1 Q K. Without a mask, the flag that sdpa reads says whether the future is hidden."""
    # As in transformers' sdpa: one query is the next token of a generation, which sees all keys.
    if mask is not None or query.shape[2] == 1:
        return mask
    flag = kwargs.get("is_causal")
    if not (getattr(module, "is_causal", True) if flag is None else flag):
        return None
    return torch.ones(query.shape[2], key.shape[2], dtype=torch.bool, device=query.device).tril()[
        None, None
    ]


def weigh(
    query: Tensor, key: Tensor, mask: Tensor | None, scaling: float | None, kwargs: dict[str, Any]
) -> Tensor:
    """Attention weights B H Q K: softmax(scale · q kᵀ + bias), in float32 at least, exactly 0 on masked keys (but equal
    where a query sees no key)."""
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    scores = torch.matmul(query, repeat(key, query.shape[1]).transpose(-1, -2)) * scale
    if kwargs.get("softcap") is not None:
        scores = torch.tanh(scores / kwargs["softcap"]) * kwargs["softcap"]
    if kwargs.get("position_bias") is not None:
        scores = scores + kwargs["position_bias"][..., : scores.shape[-1]]
    if mask is not None:
        mask = mask[..., : scores.shape[-1]]
        # Not −∞: a query that sees no key would have weights that are no numbers.
        hidden = torch.finfo(scores.dtype).min
        scores = scores.masked_fill(~mask, hidden) if mask.dtype == torch.bool else scores + mask
    wide = torch.promote_types(scores.dtype, torch.float32)
    # Attention sinks (GPT-OSS): a learned score per head, whose weight is dropped after the softmax.
    if kwargs.get("s_aux") is not None:
        sink = kwargs["s_aux"].reshape(1, -1, 1, 1).expand(*scores.shape[:-1], 1)
        return torch.softmax(torch.cat([scores, sink], -1).to(wide), -1)[..., :-1]
    return torch.softmax(scores.to(wide), -1)


def repeat(states: Tensor, heads: int) -> Tensor:
    """Grouped queries: every key/value head serves several query heads. B G K D in, B H K D out."""
    return (
        states
        if states.shape[1] == heads
        else states.repeat_interleave(heads // states.shape[1], 1)
    )


def expand_gate(gate: Tensor, output: Tensor) -> Tensor:
    """A gate (H, or B H) in the shape of an output B Q H D.

    Beam search repeats the batch axis sentence by sentence, and so the gate.
    """
    batch, _, heads, _ = output.shape
    if gate.shape[-1:] != (heads,) or gate.dim() > 2 or batch % gate[..., 0].numel():
        raise HeadwiseError(
            f"A gate of shape {tuple(gate.shape)} was given for {heads} heads and a batch of {batch}: "
            "give one number per head, or one per example and head."
        )
    gate = gate.to(output)
    if gate.dim() == 1:
        return gate.view(1, 1, -1, 1)
    return gate.repeat_interleave(batch // gate.shape[0], 0)[:, None, :, None]


@contextmanager
def patched(name: str, values: Mapping[nn.Module, Any]) -> Iterator[None]:
    """An attribute of modules for the time of the block; afterwards each has what it had before."""
    # By `__dict__`: getattr would find the class's own `forward`, which would then be written into the module.
    before = {module: module.__dict__.get(name) for module in values}
    for module, value in values.items():
        module.__dict__[name] = value
    try:
        yield
    finally:
        for module, own in before.items():
            del module.__dict__[name]
            if own is not None:
                module.__dict__[name] = own


def whole_mask(*args: Any, **kwargs: Any) -> Tensor | None:
    """A mask that is always built: sdpa leaves it out where a flag suffices, and an explicit softmax would then see the
    future."""
    always = {"allow_is_causal_skip": False, "allow_is_bidirectional_skip": False}
    mask: Tensor | None = sdpa_mask(*args, **(kwargs | always))
    return mask


AttentionInterface.register(INTERFACE_NAME, attend)
AttentionMaskInterface.register(INTERFACE_NAME, whole_mask)
