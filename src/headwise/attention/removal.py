"""Cutting heads out of the weights: fewer rows in the query, key and value projections, fewer columns in the output's.

The attention code of transformers reshapes with −1, so a narrower projection just works; a layer with no head at all is
replaced by `EmptyAttention`, because −1 is ambiguous for zero elements. Removed equals masked (Michel et al. 2019,
section 2.2: a masked head's output is zero); `remove` checks that before it hands the smaller model out.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn

from headwise.attention import kernel
from headwise.attention.capture import masked, refuse_other_heads, refuse_strangers
from headwise.attention.discover import Discovery, probe
from headwise.errors import HeadwiseError
from headwise.heads import HeadMask, Kind, Site

# Query, key, value and output projections, by the names modeling files give them; BERT keeps its output projection in
# the parent's `output.dense`.
PROJECTIONS = (
    ("q_proj", "k_proj", "v_proj", ("out_proj", "o_proj")),
    ("query", "key", "value", ("output.dense",)),
    ("q_lin", "k_lin", "v_lin", ("out_lin",)),
)


class EmptyAttention(nn.Module):
    """An attention layer with no head left: its output projection's bias, and a place in the key/value cache, so that
    positions go on counting. `emptied` says what kind of attention it was."""

    def __init__(self, module: nn.Module, out_name: str | None, head_size: int, emptied: Kind) -> None:
        super().__init__()
        self.layer_idx = getattr(module, "layer_idx", None)
        self.head_size = head_size
        self.emptied = emptied
        if out_name:
            self.add_module(out_name, getattr(module, out_name))
        self.out_name = out_name

    def forward(
        self, hidden_states: Tensor, key_value_states: Tensor | None = None, past_key_values: Any = None, **_: Any
    ) -> tuple[Tensor, None]:
        """What the attention layers of transformers return, for hidden states B Q M: the same shape, and no weights."""
        batch, queries = hidden_states.shape[:2]
        slot: kernel.Slot | None = self.__dict__.get(kernel.NAME)
        if slot is not None:
            self.announce(slot, hidden_states, hidden_states if key_value_states is None else key_value_states)
        if past_key_values is not None and self.emptied != "cross":
            cache = getattr(past_key_values, "self_attention_cache", past_key_values)
            place = hidden_states.new_zeros(batch, 1, queries, 1)
            cache.update(place, place, self.layer_idx)
        nothing = hidden_states.new_zeros(batch, queries, 0)
        return (getattr(self, self.out_name)(nothing) if self.out_name else nothing), None

    def announce(self, slot: kernel.Slot, queries: Tensor, keys: Tensor) -> None:
        """Let discovery and observers see the layer: it is there, with zero heads."""
        site, orders = slot.next()
        query = queries.new_zeros(queries.shape[0], 0, queries.shape[1], self.head_size)
        key = keys.new_zeros(keys.shape[0], 0, keys.shape[1], self.head_size)
        weights = query.new_zeros(*query.shape[:3], keys.shape[1])
        for order in orders:
            if order.watch:
                shown = weights if order.weights else None
                order.watch(kernel.Seen(site, query, key, key, None, shown, query.transpose(1, 2)))


def remove(model: nn.Module, found: Discovery, mask: HeadMask) -> nn.Module:
    """A copy of the model in which only the heads of `mask` are left, with smaller weight matrices.

    Raises HeadwiseError for attention layers whose projections are fused or shared across layers (named), and for a
    model that would not compute what the masked model computes.
    """
    refuse_strangers(model, found, ())
    refuse_other_heads(found, mask)
    smaller = copy.deepcopy(model)
    for module in smaller.modules():
        module.__dict__.pop(kernel.NAME, None)  # the copy owes nothing to a capture that may be open around this call
    modules = dict(smaller.named_modules())
    for site, name in found.names.items():
        kept = mask.of(site)
        if len(kept) < found.heads.count(site):
            cut(modules, name, site, kept, found)
    config: Any = smaller.config
    config.headwise_layout = mask.to_json()
    confirm(model, found, mask, smaller)
    return smaller


def cut(modules: dict[str, nn.Module], name: str, site: Site, kept: list[int], found: Discovery) -> None:
    """Cut one attention layer down to the heads `kept`."""
    if list(found.names.values()).count(name) > 1:
        raise HeadwiseError(
            f"Heads of {name} cannot be removed: one module serves several layers (its weights are shared). "
            "They can be masked."
        )
    module = modules[name]
    names, (parent, out_name) = projections(modules, name)
    query, key, value, out = (*(getattr(module, projection) for projection in names), getattr(parent, out_name))
    heads, groups = found.heads.count(site), found.heads.key_value[site.kind][site.layer]
    origin: list[int] = getattr(module, "key_value_origin", list(range(groups)))
    key_heads, per_group = key_value_heads([head // (heads // groups) for head in kept], origin)
    setattr(module, names[0], rows(query, kept, heads))
    setattr(module, names[1], rows(key, key_heads, groups))
    setattr(module, names[2], rows(value, key_heads, groups))
    setattr(parent, out_name, columns(out, kept, heads))
    size = query.out_features // heads
    for attribute, count in (
        ("num_heads", len(kept)), ("num_attention_heads", len(kept)), ("n_heads", len(kept)),
        ("all_head_size", len(kept) * size), ("num_key_value_heads", len(key_heads)),
        ("num_key_value_groups", per_group),
    ):  # fmt: skip
        if hasattr(module, attribute):
            setattr(module, attribute, count)
    module.key_value_origin = [origin[head] for head in key_heads]  # type: ignore[assignment]
    if not kept:
        empty = EmptyAttention(module, out_name if parent is module else None, size, site.kind)
        owner, _, own_name = name.rpartition(".")
        setattr(modules[owner], own_name, empty)


def projections(modules: dict[str, nn.Module], name: str) -> tuple[tuple[str, str, str], tuple[nn.Module, str]]:
    """The names of a layer's query, key and value projections, and where its output projection hangs."""
    module = modules[name]
    for query, key, value, outs in PROJECTIONS:
        if not all(type(getattr(module, projection, None)) is nn.Linear for projection in (query, key, value)):
            continue
        for out in outs:
            path, _, out_name = out.rpartition(".")
            parent = modules.get(f"{name.rpartition('.')[0]}.{path}") if path else module
            if parent is not None and type(getattr(parent, out_name, None)) is nn.Linear:
                return (query, key, value), (parent, out_name)
    raise HeadwiseError(
        f"Heads of {name} ({type(module).__name__}) cannot be removed: separate linear query, key, value and output "
        "projections were expected and not found. They can be masked."
    )


def key_value_heads(served_by: list[int], origin: list[int]) -> tuple[list[int], int]:
    """Which key/value heads stay, and how many query heads share each.

    Whole groups stay shared where every group that is left keeps as many heads; else each kept head gets its own copy.
    served_by: for every kept query head, the key/value head that serves it now.
    origin: for every key/value head there is now, the head of the whole model that it is, or is a copy of.
    """
    groups = [origin[head] for head in served_by]
    shares = {groups.count(group) for group in groups}
    if len(shares) == 1:
        return [served_by[groups.index(group)] for group in dict.fromkeys(groups)], shares.pop()
    return served_by, 1


def rows(linear: nn.Linear, keep: list[int], heads: int) -> nn.Linear:
    """A projection whose rows belong to `heads` heads, with only those of `keep`."""
    bias = None if linear.bias is None else linear.bias.unflatten(0, (heads, -1))[keep].flatten()
    return narrowed(linear, linear.weight.unflatten(0, (heads, -1))[keep].flatten(0, 1), bias)


def columns(linear: nn.Linear, keep: list[int], heads: int) -> nn.Linear:
    """A projection whose columns belong to `heads` heads, with only those of `keep`."""
    return narrowed(linear, linear.weight.unflatten(1, (heads, -1))[:, keep].flatten(1), linear.bias)


def narrowed(linear: nn.Linear, weight: Tensor, bias: Tensor | None) -> nn.Linear:
    """A linear layer like another, around other weights."""
    new = nn.Linear(1, 1, bias=bias is not None, device="meta")
    new.out_features, new.in_features = weight.shape
    new.weight = nn.Parameter(weight.detach().clone(), requires_grad=linear.weight.requires_grad)
    if bias is not None:
        new.bias = nn.Parameter(bias.detach().clone(), requires_grad=linear.bias.requires_grad)
    return new.train(linear.training)


def confirm(model: nn.Module, found: Discovery, mask: HeadMask, smaller: nn.Module) -> None:
    """Hold the smaller model against the masked one on the probe.

    Families may keep more per head than the four projections (sinks, norms over all heads): they are refused here.
    """
    with masked(model, found, mask):
        expected: Tensor = probe(model)[0]
    try:
        got: Tensor = probe(smaller)[0]
    except HeadwiseError as error:
        reason = " ".join(str(error.__cause__).split())[:200]
        raise HeadwiseError(
            f"Heads of this {type(model).__name__} cannot be removed: without them it does not run ({reason}). "
            "They can be masked."
        ) from error
    difference = float((got - expected).abs().max())
    # Many models count in float32 inside (norms, rotations) whatever the type of their weights.
    precision = max(torch.finfo(expected.dtype).eps, torch.finfo(torch.float32).eps)
    if not difference <= precision**0.5 * float(expected.abs().max()):
        raise HeadwiseError(
            f"Heads of this {type(model).__name__} cannot be removed: without them it would compute something else "
            f"than with them masked (by {difference:.2g}). They can be masked."
        )
