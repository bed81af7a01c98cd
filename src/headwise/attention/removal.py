"""Cutting heads out of the weights: fewer rows in the query, key and value projections, fewer columns in the output projection.

The attention code of transformers reshapes with −1, so a narrower projection just works; a layer with no head at all is replaced by `EmptyAttention`,
because −1 is ambiguous for zero elements. Removed equals masked (Michel et al. 2019, section 2.2: a masked head's output is zero).
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn

from headwise.attention import kernel
from headwise.attention.discover import Discovery
from headwise.errors import HeadwiseError
from headwise.heads import HeadMask, Kind, Site

# query, key, value and output projections, by the names modeling files give them; BERT keeps its output projection in the parent's `output.dense`.
PROJECTIONS = (
    ("q_proj", "k_proj", "v_proj", ("out_proj", "o_proj")),
    ("query", "key", "value", ("output.dense",)),
    ("q_lin", "k_lin", "v_lin", ("out_lin",)),
)


class EmptyAttention(nn.Module):
    """An attention layer with no head left: its output projection's bias, and a place in the key/value cache so that positions go on counting."""

    def __init__(self, module: nn.Module, out_name: str | None, head_size: int, kind: Kind) -> None:
        super().__init__()
        self.layer_idx = getattr(module, "layer_idx", None)
        self.head_size = head_size
        self.kind = kind
        if out_name:
            self.add_module(out_name, getattr(module, out_name))
        self.out_name = out_name

    def forward(self, hidden_states: Tensor, key_value_states: Tensor | None = None, past_key_values: Any = None, **_: Any) -> tuple[Tensor, None]:
        batch, queries = hidden_states.shape[:2]
        slot: kernel.Slot | None = self.__dict__.get(kernel.NAME)
        if slot is not None:
            self.announce(slot, hidden_states, hidden_states if key_value_states is None else key_value_states)
        if past_key_values is not None and self.kind != "cross":
            cache = getattr(past_key_values, "self_attention_cache", past_key_values)
            place = hidden_states.new_zeros(batch, 1, queries, 1)
            cache.update(place, place, self.layer_idx)
        nothing = hidden_states.new_zeros(batch, queries, 0)
        return (getattr(self, self.out_name)(nothing) if self.out_name else nothing), None

    def announce(self, slot: kernel.Slot, queries: Tensor, keys: Tensor) -> None:
        """Let discovery and observers see the layer: it is there, with zero heads."""
        site, orders = slot.next()
        if orders.watch:
            query = queries.new_zeros(queries.shape[0], 0, queries.shape[1], self.head_size)
            key = keys.new_zeros(keys.shape[0], 0, keys.shape[1], self.head_size)
            weights = query.new_zeros(*query.shape[:3], keys.shape[1])
            orders.watch(kernel.Seen(site, query, key, key, None, weights, query.transpose(1, 2)))


def remove(model: nn.Module, found: Discovery, mask: HeadMask) -> nn.Module:
    """A copy of the model in which only the heads of `mask` are left, with smaller weight matrices.

    Raises HeadwiseError for attention layers whose projections are fused or shared across layers (named).
    """
    if mask.heads.query != found.heads.query:
        raise HeadwiseError("The layout to remove was made for another model: its heads per layer differ from this model's.")
    smaller = copy.deepcopy(model)
    modules = dict(smaller.named_modules())
    for site, name in found.names.items():
        kept = mask.of(site)
        if len(kept) < found.heads.count(site):
            cut(modules, name, site, kept, found)
    config: Any = smaller.config
    config.headwise_layout = mask.to_json()
    return smaller


def cut(modules: dict[str, nn.Module], name: str, site: Site, kept: list[int], found: Discovery) -> None:
    """Cut one attention layer down to the heads `kept`."""
    module = modules[name]
    query, key, value, (parent, out_name) = projections(modules, name)
    if list(found.names.values()).count(name) > 1:
        raise HeadwiseError(f"Heads of {name} cannot be removed: one module serves several layers (its weights are shared); mask them instead.")
    size, heads, groups = found.head_size, found.heads.count(site), found.heads.key_value[site.kind][site.layer]
    columns = spread_rows(kept, size)
    key_heads, per_group = key_value_heads(kept, heads, groups)
    setattr(module, query, rows(getattr(module, query), columns))
    for projection in (key, value):
        setattr(module, projection, rows(getattr(module, projection), spread_rows(key_heads, size)))
    setattr(parent, out_name, columns_of(getattr(parent, out_name), columns))
    for attribute, count in (
        ("num_heads", len(kept)), ("num_attention_heads", len(kept)), ("n_heads", len(kept)), ("all_head_size", len(columns)),
        ("num_key_value_heads", len(key_heads)), ("num_key_value_groups", per_group),
    ):  # fmt: skip
        if hasattr(module, attribute):
            setattr(module, attribute, count)
    if not kept:
        empty = EmptyAttention(module, out_name if parent is module else None, size, site.kind)
        owner, _, own_name = name.rpartition(".")
        setattr(modules[owner], own_name, empty)


def projections(modules: dict[str, nn.Module], name: str) -> tuple[str, str, str, tuple[nn.Module, str]]:
    """The names of a layer's query, key and value projections, and where its output projection hangs."""
    module = modules[name]
    for query, key, value, outs in PROJECTIONS:
        if not isinstance(getattr(module, query, None), nn.Linear):
            continue
        for out in outs:
            path, _, out_name = out.rpartition(".")
            parent = modules.get(f"{name.rpartition('.')[0]}.{path}") if path else module
            if isinstance(getattr(parent, out_name, None), nn.Linear):
                assert parent is not None
                return query, key, value, (parent, out_name)
    raise HeadwiseError(
        f"Heads of {name} ({type(module).__name__}) cannot be cut out: separate linear query, key, value and output projections were "
        "expected and not found. The heads can be masked, but not removed."
    )


def key_value_heads(kept: list[int], heads: int, groups: int) -> tuple[list[int], int]:
    """Which key/value heads the kept query heads need, and how many query heads share each.

    Whole groups stay shared where every group keeps as many heads; else each kept head gets its own copy.
    """
    served = [head // (heads // groups) for head in kept]
    counts = {served.count(group) for group in served}
    if len(counts) == 1:
        return sorted(set(served)), counts.pop()
    return served, 1


def spread_rows(heads: list[int], size: int) -> Tensor:
    """The row numbers of whole heads in a projection."""
    return (torch.tensor(heads, dtype=torch.long)[:, None] * size + torch.arange(size)).flatten()


def rows(linear: nn.Linear, keep: Tensor) -> nn.Linear:
    return narrowed(linear, linear.weight[keep.to(linear.weight.device)], None if linear.bias is None else linear.bias[keep.to(linear.bias.device)])


def columns_of(linear: nn.Linear, keep: Tensor) -> nn.Linear:
    return narrowed(linear, linear.weight[:, keep.to(linear.weight.device)], linear.bias)


def narrowed(linear: nn.Linear, weight: Tensor, bias: Tensor | None) -> nn.Linear:
    """A linear layer around given weights, which keep their `requires_grad`."""
    new = nn.Linear(1, 1, bias=bias is not None, device="meta")
    new.out_features, new.in_features = weight.shape
    new.weight = nn.Parameter(weight.detach().clone(), requires_grad=linear.weight.requires_grad)
    if bias is not None:
        new.bias = nn.Parameter(bias.detach().clone(), requires_grad=linear.weight.requires_grad)
    return new.train(linear.training)
