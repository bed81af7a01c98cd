"""Heads of zeros: a model of transformers in which every layer has as many heads as its configuration says.

A head of zeros adds nothing: its values and its columns of the output projection are 0. Where a configuration has a
number of heads and a size of heads, each layer gets as many as the fullest one needs; where layers share a bias by
relative position (T5), as many as have a column in its table. Where a family has no size of heads (it divides the width
by their number), or sees positions by a head's number, every head has its first place again. A wrong choice does no
harm: what the padded model computes is compared with the model.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from headwise.core.errors import HeadwiseError
from headwise.core.heads import Kind, Site
from headwise.core.layout import HeadMask
from headwise.models.attention.discover import Discovery, output_difference, probe
from headwise.models.attention.head_counts import count_name, equal_layers, state_counts, state_size
from headwise.models.attention.matrices import ZEROS, Matrices, by_output, chosen
from headwise.models.attention.position_bias import TABLE, shares_bias
from headwise.models.attention.rebuilt import give_weights, shapes, stock_model
from headwise.models.attention.removal import layer_of

# Why a family needs every head again.
SIZE_BY_WIDTH = "a {} takes the width of the model divided by the number of heads as their size"
Groups = list[tuple[int, list[int]]]  # key/value heads, each with the query heads that it serves


class HeadPlaces(NamedTuple):
    """Which of its heads a layer has at each place; ZEROS where a head of zeros is."""

    query: list[int]
    key_value: list[int]


@dataclass(frozen=True)
class Padded:
    """A model of transformers with heads of zeros. places: of the heads of each layer. reason: why there are not fewer
    heads; empty where the fullest layer has as many."""

    model: Any
    places: dict[Site, HeadPlaces]
    reason: str


def pad(model: Any, discovery: Discovery, layout: HeadMask) -> Padded:
    """A model whose layers have equally many heads, and which transformers loads, with the weights of this one.

    layout: of the heads in the model that was pruned first. Raises HeadwiseError where there is none that computes the
    same.
    """
    expected = probe(model)
    family = type(model).__name__
    reason = ""
    # The first plan that computes the same is the one with the fewest heads.
    for config, places, columns in plans(model, discovery, layout):
        try:
            stock = stock_model(model, config)
        except HeadwiseError as error:
            # Without a size of its own in the configuration, the size of a head follows from their number.
            stated = vars(model.config.get_text_config())
            sized = "head_dim" in stated or "d_kv" in stated
            reason = reason or (str(error) if sized else SIZE_BY_WIDTH.format(family))
            continue
        weights = placed_weights(model, discovery, stock, places, columns)
        # The family has no place for heads of this size: it divides the width by their number.
        if shapes(weights) != shapes(stock.state_dict()):
            reason = reason or SIZE_BY_WIDTH.format(family)
            continue
        give_weights(stock, weights)
        # The check that allows all guesses above: the padded model is tried, not trusted.
        if output_difference(expected, probe(stock)) is None:
            return Padded(stock, places, reason)
        reason = "it would compute something else"
    raise HeadwiseError(f"This {family} cannot be filled up with heads of zeros: {reason}.")


def plans(
    model: Any, discovery: Discovery, layout: HeadMask
) -> Iterator[tuple[Any, dict[Site, HeadPlaces], dict[Kind, list[int]]]]:
    """Configurations, those with the fewest heads first, and that of the first model last.

    Each with the places of the heads, and with the heads' first numbers in tables that layers share.
    """
    groups = groups_of(model, discovery)
    left = {kind: numbers_left(discovery, layout, kind) for kind in discovery.heads.kinds}
    plain = plain_config(model)
    for key_value, shared in numbers_of_heads(groups, left, layout):
        config = copy.deepcopy(plain)
        text = config.get_text_config()
        state_counts(text, key_value * shared, key_value, count_name(text, discovery.heads))
        state_size(text, discovery.head_size)
        places = one_after_another(groups, key_value, shared)
        columns = {}
        for site, own in groups.items():
            # A shared table has a column for each head, so every layer needs each head at the same place.
            if left[site.kind]:
                absent = [ZEROS] * (key_value - len(left[site.kind]))
                columns[site.kind] = [*left[site.kind], *absent]
                # A head's column of the table is found by its number, so heads keep theirs.
                places[site] = by_number(own, layout.of(site), columns[site.kind], key_value)
        yield config, places, columns
    # Last, because it saves nothing: each head where it was before any was removed.
    columns = {site.kind: [*range(layout.heads.count(site))] for site in groups}
    yield plain, first_places(groups, layout), columns


def plain_config(model: Any) -> Any:
    """A model's configuration without what headwise notes in it."""
    config = copy.deepcopy(model.config)
    vars(config).pop("headwise_layout", None)
    return config


def groups_of(model: nn.Module, discovery: Discovery) -> dict[Site, Groups]:
    """The key/value heads of each layer. Where layers have different numbers, copies of one are one again while they are
    equal."""
    heads = discovery.heads
    alike = len(heads.kinds) == 1 and equal_layers(heads)
    modules = dict(model.named_modules())
    groups: dict[Site, Groups] = {}
    for site in heads.sites:
        count = heads.key_value[site.kind][site.layer]
        # A layer without heads has no key/value head either.
        shared = heads.count(site) // max(count, 1)
        own = [(group, [*range(group * shared, (group + 1) * shared)]) for group in range(count)]
        origin = getattr(discovery.modules[site], "key_value_origin", [*range(count)])
        copied = len({*origin}) < count and not alike
        groups[site] = (
            without_copies(own, origin, layer_of(modules, discovery, site)) if copied else own
        )
    return groups


def without_copies(groups: Groups, origin: Sequence[int], layer: Matrices) -> Groups:
    """Groups of one layer with copies of a key/value head as one. origin: the head that each was in the first model."""
    numbers = {group: numbers_of(layer, group) for group, _ in groups}
    fewer: Groups = []
    for group, queries in groups:
        for first, others in fewer:
            # Training may have moved two copies apart: then they are two heads.
            if origin[first] == origin[group] and torch.equal(numbers[first], numbers[group]):
                others.extend(queries)
                break
        else:
            fewer.append((group, queries))
    return fewer


def numbers_of(layer: Matrices, group: int) -> Tensor:
    """The weights of a key/value head."""
    rows = []
    for name, projection in layer.inputs().items():
        for part, places in layer.parts(name):
            if "q" not in part:
                rows.append(by_output(projection)[places[group]].flatten())
                if projection.bias is not None:
                    rows.append(projection.bias[places[group]])
    return torch.cat(rows)


def numbers_left(discovery: Discovery, layout: HeadMask, kind: Kind) -> list[int]:
    """The first numbers of heads that some layer of a kind still has, where its layers share a table of biases by
    relative position, which has a column for each; else none."""
    sites = [site for site in discovery.heads.sites if site.kind == kind]
    modules = [discovery.modules[site] for site in sites]
    if not any(shares_bias(module) and hasattr(module, TABLE) for module in modules):
        return []
    return sorted({number for site in sites for number in layout.of(site)})


def numbers_of_heads(
    groups: Mapping[Site, Groups], left: Mapping[Kind, Sequence[int]], layout: HeadMask
) -> Iterator[tuple[int, int]]:
    """Pairs (key/value heads, query heads for each of them) into which every layer fits, the fewest heads first, without
    the pair of the first model."""
    # From what the fullest layer needs up to what the first model had.
    most, largest = fullest(groups)
    most = max(most, *map(len, left.values()))
    first = layout.heads
    query = max(first.count(site) for site in first.sites)
    key_value = max(max(counts) for counts in first.key_value.values())
    able = [
        (groups, shared)
        for groups in range(most, max(most, key_value) + 1)
        for shared in range(largest, max(largest, query // key_value) + 1)
    ]
    # By query heads, which cost most; then by key/value heads.
    able.sort(key=lambda pair: (pair[0] * pair[1], pair[0]))
    return (pair for pair in able if pair != (key_value, query // key_value))


def fullest(groups: Mapping[Site, Groups]) -> tuple[int, int]:
    """The most key/value heads that a layer has, and the most query heads that one of them serves; at least 1."""
    most = max([1, *map(len, groups.values())])
    return most, max([1, *(len(queries) for own in groups.values() for _, queries in own)])


def one_after_another(
    groups: Mapping[Site, Groups], key_value: int, shared: int
) -> dict[Site, HeadPlaces]:
    """The heads of each layer one after another, each group filled up with heads of zeros to `shared` query heads."""
    places = {}
    for site, own in groups.items():
        places[site] = heads = HeadPlaces([], [])
        for head, queries in own:
            heads.key_value.append(head)
            heads.query.extend([*queries, *[ZEROS] * (shared - len(queries))])
        # Whole groups of zeros fill the layer up.
        missing = key_value - len(own)
        heads.key_value.extend([ZEROS] * missing)
        heads.query.extend([ZEROS] * (missing * shared))
    return places


def first_places(groups: Mapping[Site, Groups], layout: HeadMask) -> dict[Site, HeadPlaces]:
    """Every head at its place in the model that was pruned first."""
    places = {}
    for site, own in groups.items():
        query = layout.heads.count(site)
        key_value = layout.heads.key_value[site.kind][site.layer]
        places[site] = by_number(own, layout.of(site), range(query), key_value)
        # Two copies of one key/value head, trained apart, cannot both have its place.
        if {head for head, _ in own} - {*places[site].key_value}:
            places |= one_after_another({site: own}, key_value, query // key_value)
    return places


def by_number(
    groups: Groups, kept: Sequence[int], numbers: Sequence[int], key_value: int
) -> HeadPlaces:
    """The heads of a layer where their first numbers are. kept: the first numbers of its heads. numbers: of the places."""
    places = HeadPlaces([ZEROS] * len(numbers), [ZEROS] * key_value)
    shared = len(numbers) // key_value
    for head, queries in groups:
        for query in queries:
            place = numbers.index(kept[query])
            places.query[place] = query
            places.key_value[place // shared] = head
    return places


def placed_weights(
    model: Any,
    discovery: Discovery,
    stock: nn.Module,
    places: Mapping[Site, HeadPlaces],
    columns: Mapping[Kind, Sequence[int]],
) -> dict[str, Tensor]:
    """The weights of a model, by name, with heads of zeros.

    stock: the model of transformers that they are for, without weights. columns: the first numbers of the heads in tables
    that layers share; of kinds that have none here the tables are the caller's.
    """
    theirs = dict(stock.named_modules())
    declared = stock.state_dict()
    weights: dict[str, Tensor] = model.state_dict()
    modules = dict(model.named_modules())
    paths = {module: path for path, module in modules.items()}
    for site, name in discovery.names.items():
        heads = places[site]
        # `hand_down` may have moved the table, so it is put where the stock model wants it.
        table = f"{name}.{TABLE}.weight"
        weights.pop(table, None)
        # The module that has the biases of this layer, if any.
        holder = position_table(discovery, site)
        if table in declared and holder is not None:
            shared = columns.get(site.kind, heads.query)
            order = torch.tensor(shared if shares_bias(holder) else heads.query)
            weights[table] = chosen(holder.get_parameter(f"{TABLE}.weight"), order, 1)
        # A layer without heads gets heads of zeros like those of the first of its kind that has heads.
        alike = [site]
        if not discovery.heads.count(site):
            alike = [
                other
                for other in discovery.names
                if other.kind == site.kind and discovery.heads.count(other)
            ]
        for example in alike[:1]:
            layer = layer_of(modules, discovery, example)
            before, after = (discovery.names[each].rpartition(".")[0] for each in (example, site))
            for owner, own, linear in layer.arranged(*heads):
                path = f"{after}{paths[owner].removeprefix(before)}.{own}"
                # `arranged` makes plain linear layers of GPT-2's.
                transposed = isinstance(theirs[path], Conv1D)
                weight = linear.weight.detach()
                weights[f"{path}.weight"] = weight.t().contiguous() if transposed else weight
                # The output bias is the layer's own: what a layer without heads still adds.
                if linear.bias is not None and (example == site or own != layer.out_name):
                    weights[f"{path}.bias"] = linear.bias.detach()
            for own, whole in layer.module.named_parameters(recurse=False):
                if whole.shape == (layer.heads,):  # attention sinks
                    weights[f"{name}.{own}"] = chosen(whole, torch.tensor(heads.query))
    in_layers = tuple(f"{name}." for name in discovery.names.values())
    for name, wanted in declared.items():
        # Norms of layers without heads, biases that only other layers have; everything where no layer has a head.
        absent = name not in weights and name.startswith(in_layers)
        if absent or (name in weights and not weights[name].numel()):
            weights[name] = torch.zeros(wanted.shape, dtype=model.dtype, device=model.device)
    return weights


def position_table(discovery: Discovery, site: Site) -> nn.Module | None:
    """The layer with the table of biases by relative position that serves a layer: itself, or the first of its kind."""
    if hasattr(discovery.modules[site], TABLE):
        return discovery.modules[site]
    for other, module in discovery.modules.items():
        if other.kind == site.kind and hasattr(module, TABLE) and shares_bias(module):
            return module
    return None
