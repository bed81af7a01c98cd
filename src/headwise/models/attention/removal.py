"""Removing heads from the weights: fewer rows in query, key and value projections, fewer columns in the output's.

The attention code of transformers reshapes with −1, so a narrower projection works as it is; other attributes that
count heads are updated. A layer without heads is replaced by `EmptyAttention`, because −1 is ambiguous for zero
elements. Removing a head equals masking it (Michel et al. 2019, section 2.2: a masked head's output is zero);
`smaller_copy` checks that.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from typing import Any, cast

from torch import Tensor, nn
from transformers.cache_utils import DynamicLayer, QuantizedCache
from transformers.utils.output_capturing import _active_collector

from headwise.core.errors import HeadwiseError
from headwise.core.heads import Kind, Site
from headwise.core.layout import HeadMask, key_value_heads
from headwise.models.attention import kernel
from headwise.models.attention.capture import (
    keeping,
    refuse_other_heads,
    refuse_strangers,
)
from headwise.models.attention.discover import Discovery, output_difference, probe, routed
from headwise.models.attention.matrices import Matrices, forms, matrices
from headwise.models.attention.offload import hook_of, separate_copy
from headwise.models.attention.position_bias import (
    forward_parameters,
    hand_down,
    narrow,
    shares_bias,
)


class EmptyAttention(nn.Module):
    """An attention layer without heads: it adds the bias of its output projection, and keeps an entry in the key/value
    cache, by which models count positions. emptied: its kind of attention."""

    def __init__(
        self, module: nn.Module, out_name: str | None, head_size: int, emptied: Kind
    ) -> None:
        super().__init__()
        self.layer_idx = getattr(module, "layer_idx", getattr(module, "layer_id", None))
        self.head_size = head_size
        self.emptied = emptied
        self.config = getattr(module, "config", None)
        # Without these `output_attentions` would leave this layer out, and the later ones would move up.
        self.recorded: list[str] = []
        self.hands_on = shares_bias(module)
        # The arguments after `self` and the hidden states: some callers give them by position.
        # From the class, because `forward` of the module may be patched already.
        self.order = list(forward_parameters(module))[2:]
        if out_name:
            self.add_module(out_name, getattr(module, out_name))
        self.out_name = out_name

    def forward(
        self, hidden_states: Tensor, *args: Any, position_bias: Tensor | None = None, **given: Any
    ) -> tuple[Any, ...]:
        """What attention layers of transformers return, for hidden states B Q M: an output of that shape, a position
        bias where layers share one, and with eager attention the weights of no heads, B 0 Q K."""
        given |= dict(zip(self.order, args, strict=False))
        batch, queries = hidden_states.shape[:2]
        source = first_given(given, "key_value_states", "encoder_hidden_states")
        keys = queries if source is None else source.shape[1]
        state: kernel.HookState | None = self.__dict__.get(kernel.INTERFACE_NAME)
        if state is not None:
            self.announce(state, hidden_states, source)
        past = first_given(given, "past_key_values", "layer_past")
        if past is not None and self.emptied != "cross":
            cache = getattr(past, "self_attention_cache", past)
            # One zero a token makes no group to quantise.
            quantised = isinstance(cache, QuantizedCache)
            if quantised and not cache.layers[self.layer_idx].is_initialized:
                cache.layers[self.layer_idx] = DynamicLayer()
            # One head of one number: just enough for the cache to count tokens.
            place = hidden_states.new_zeros(batch, 1, queries, 1)
            keys = cache.update(place, place, self.layer_idx)[0].shape[2]
        # A projection of no inputs gives its bias, which a masked layer adds, too.
        nothing = hidden_states.new_zeros(batch, queries, 0)
        output = getattr(self, self.out_name)(nothing) if self.out_name else nothing
        # Bloom adds the residual in its attention layer.
        if given.get("residual") is not None:
            output = output + given["residual"]
        weights = None
        # With eager attention the layers around this one give their weights.
        if getattr(self.config, "_attn_implementation", None) == "eager":
            weights = hidden_states.new_zeros(batch, 0, queries, keys)
            collected = _active_collector.get() or {}
            for name in self.recorded:
                if name in collected:
                    collected[name].append(weights)
        return (output, position_bias, weights) if self.hands_on else (output, weights)

    def announce(self, state: kernel.HookState, queries: Tensor, source: Tensor | None) -> None:
        """Call the hooks, as a layer with zero heads."""
        site, opened = state.next()
        keys = queries if source is None else source
        query = queries.new_zeros(queries.shape[0], 0, queries.shape[1], self.head_size)
        key = keys.new_zeros(keys.shape[0], 0, keys.shape[1], self.head_size)
        weights = query.new_zeros(*query.shape[:3], keys.shape[1])
        for hooks in opened:
            if hooks.hook:
                shown = weights if hooks.weights else None
                hooks.hook(
                    kernel.AttentionCall(site, query, key, key, None, shown, query.transpose(1, 2))
                )


def first_given(given: Mapping[str, Any], *names: str) -> Any:
    """The argument of a layer under the first of its possible names that is there."""
    return next((given[name] for name in names if given.get(name) is not None), None)


class LayerConfig:
    """The configuration of one layer: its own numbers of heads, and all else from the shared configuration."""

    def __init__(self, shared: Any, **own: int) -> None:
        self.__dict__.update(own, shared=shared)

    def __getattr__(self, name: str) -> Any:
        # A copy asks before it has attributes, and for methods of copying that the shared one must not answer.
        if "shared" not in self.__dict__ or name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.shared, name)


def smaller_copy(model: nn.Module, discovery: Discovery, mask: HeadMask) -> nn.Module:
    """A model in which only the heads of `mask` are left, with smaller weight matrices. It shares no weight with the
    first one (`offload.separate_copy`).

    Raises HeadwiseError for attention layers whose projections have no known form or are shared across layers, and when
    the result differs from the model with masked heads.
    """
    refuse_strangers(model, discovery, ())
    refuse_other_heads(discovery, mask)
    # The copy is cut in place, layer by layer, so at most one matrix is there twice.
    smaller = separate_copy(model)
    # Hooks of a capture that is open around this call do not act on the new model.
    for module in smaller.modules():
        module.__dict__.pop(kernel.INTERFACE_NAME, None)
    modules, config = dict(smaller.named_modules()), cast(Any, smaller.config)
    for site in removed_heads(discovery, mask):
        layer = layer_at(modules, discovery, site)
        cut_layer(modules, layer, site, mask.of(site))
    for site, name in discovery.names.items():
        fitting = forms(modules, name)
        if fitting is not None and fitting[0].by_config:
            # All layers share one configuration, which therefore cannot hold a number for each.
            own = LayerConfig(modules[name].config, num_attention_heads=len(mask.of(site)))
            modules[name].config = own
    # Only when all layers are cut: the first that still has heads takes the table of biases.
    for kind in discovery.heads.kinds:
        sites = [site for site in discovery.names if site.kind == kind]
        hand_down(
            [modules[discovery.names[site]] for site in sites], [mask.of(site) for site in sites]
        )
    # Who loads the saved model finds here how large each layer is (`loading.py`).
    config.headwise_layout = mask.to_json()
    confirm(model, discovery, mask, smaller)
    return smaller


def removed_heads(discovery: Discovery, mask: HeadMask) -> dict[Site, list[int]]:
    """By site, the heads that a mask removes; without layers that keep all."""
    removed = {
        site: sorted({*range(discovery.heads.count(site))} - {*mask.of(site)})
        for site in discovery.names
    }
    return {site: heads for site, heads in removed.items() if heads}


def layer_at(modules: dict[str, nn.Module], discovery: Discovery, site: Site) -> Matrices:
    """The projections of a layer. Raises HeadwiseError where other layers share them, or they have no known form."""
    name = discovery.names[site]
    if list(discovery.names.values()).count(name) > 1:
        raise HeadwiseError(
            f"Heads of {name} cannot be removed: one module serves several layers (its weights are shared). "
            "They can be masked."
        )
    return layer_of(modules, discovery, site)


def layer_of(modules: dict[str, nn.Module], discovery: Discovery, site: Site) -> Matrices:
    """The projections of a layer that has heads."""
    groups = discovery.heads.key_value[site.kind][site.layer]
    return matrices(modules, discovery.names[site], discovery.heads.count(site), groups)


def cut_layer(modules: dict[str, nn.Module], layer: Matrices, site: Site, kept: list[int]) -> None:
    """Cut one attention layer down to the heads `kept`."""
    module, size = layer.module, layer.size
    # A model that was pruned before has copies of key/value heads: they are told by their first number.
    origin: list[int] = getattr(module, "key_value_origin", list(range(layer.groups)))
    key_heads, per_group = key_value_heads(
        [head // (layer.heads // layer.groups) for head in kept], origin
    )
    # Weights first, then biases by position, sinks, and the numbers that the forward reads.
    layer.cut(kept, key_heads)
    narrow(module, kept, layer.heads)
    for name, whole in list(module.named_parameters(recurse=False)):
        if whole.shape == (layer.heads,):  # attention sinks
            if whole.is_meta and hook_of(module) is not None:
                raise HeadwiseError(
                    f"Heads of {layer.name} cannot be removed: its {name} are offloaded. Load the model whole."
                )
            setattr(
                module,
                name,
                nn.Parameter(whole.detach()[kept].clone(), requires_grad=whole.requires_grad),
            )
    # The names under which families keep these numbers; most need only some of them to reshape.
    for attribute, count in (
        ("num_heads", len(kept)),
        ("num_attention_heads", len(kept)),
        ("n_heads", len(kept)),
        ("n_head", len(kept)),
        ("all_head_size", len(kept) * size),
        ("split_size", len(kept) * size),
        ("embed_dim", len(kept) * size),
        ("num_key_value_heads", len(key_heads)),
        ("num_kv_heads", len(key_heads)),
        ("num_key_value_groups", per_group),
    ):
        if hasattr(module, attribute):
            setattr(module, attribute, count)
    module.key_value_origin = [origin[head] for head in key_heads]  # type: ignore[assignment]
    # The output projection goes with it where it is the layer's own; BERT's stays in the parent.
    if not kept:
        empty = EmptyAttention(
            module, layer.out_name if layer.parent is module else None, size, site.kind
        )
        owner, _, own_name = layer.name.rpartition(".")
        setattr(modules[owner], own_name, empty)
        empty.recorded = recorded_as(modules, layer.name, module)


def recorded_as(modules: Mapping[str, nn.Module], name: str, module: nn.Module) -> list[str]:
    """The outputs as which transformers records what an attention layer returns, such as `cross_attentions`.

    It hooks layers by their class, by the rules of the innermost model around them.
    """
    parts = name.split(".")
    # The models around a layer, the innermost first: `model.decoder`, `model`, the whole.
    above = [modules[".".join(parts[:depth])] for depth in reversed(range(len(parts)))]
    known = (getattr(parent, "_can_record_outputs", None) for parent in above)
    rules: Mapping[str, Any] = next(filter(None, known), {})
    found = []
    for key, listed in rules.items():
        for rule in listed if isinstance(listed, list) else [listed]:
            kind = getattr(rule, "target_class", rule)
            layer = getattr(rule, "layer_name", None) or ""
            here = not layer or f".{layer.strip('.')}." in f".{name}."
            fits = here and isinstance(kind, type) and isinstance(module, kind)
            if fits and key != "hidden_states":
                found.append(key)
    return found


def with_others(
    call: kernel.AttentionCall, heads: int | Sequence[int] | Tensor, replacement: Tensor | float
) -> Tensor:
    """The outputs B Q H D of a call with other values for some heads."""
    # Not in place: recorded outputs are used by other trials.
    output = call.output.clone()
    output[:, :, heads] = replacement if isinstance(replacement, float) else replacement.to(output)
    return output


def confirm(model: nn.Module, discovery: Discovery, mask: HeadMask, smaller: nn.Module) -> None:
    """Compare the smaller model with the masked one on the probe, in float32, both with hooks.

    Fails for families with more parameters per head than their projections (sinks, norms over all heads).
    """
    with keeping(model, discovery, mask):
        # Masked heads stay in the weights, so this is what a right removal must give.
        expected = probe(model)
    try:
        # Both through our function, because kernels differ in the last bits. Layers of own code do not call it.
        with nullcontext() if discovery.inline else routed(smaller):
            got = probe(smaller)
    except HeadwiseError as error:
        reason = shared_norm(discovery) or "without them it does not run"
        raise HeadwiseError(
            f"Heads of this {type(model).__name__} cannot be removed: {reason}. They can be masked."
        ) from error
    if (moved := output_difference(expected, got)) is not None:
        raise HeadwiseError(
            f"Heads of this {type(model).__name__} cannot be removed: without them it would compute something else "
            f"than with them masked (by {moved:.2g}). "
            "They can be masked."
        )


def shared_norm(discovery: Discovery) -> str:
    """Which norm spans all heads of a layer (OLMo 2), in words; empty where none does."""
    for site, module in discovery.modules.items():
        for name, part in module.named_children():
            weight = getattr(part, "weight", None)
            if weight is not None and weight.shape == (
                discovery.heads.count(site) * discovery.head_size,
            ):
                return f"its {name} normalises all heads of a layer together, so those that stay would change"
    return ""
