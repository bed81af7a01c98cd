"""The tensors of a GGUF file, by llama.cpp's names, with heads of zeros where layers must have equally many.

Copies of a key/value head become one again, and every layer gets the largest number of key/value heads that a layer has,
and the largest number of query heads that one of them serves. Where llama.cpp takes queries to be as wide as the model
(`whole`: GPT-2), there are that many, and only key/value heads are saved. Where a head's number says how it sees
positions (`by_place`: Bloom), every head of the first model has its place again, and nothing is saved.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

import torch
from torch import Tensor
from transformers.pytorch_utils import Conv1D

from headwise.core.errors import HeadwiseError
from headwise.core.heads import Site
from headwise.models.attention.matrices import ZEROS
from headwise.models.attention.padding import (
    HeadPlaces,
    first_places,
    fullest,
    groups_of,
    one_after_another,
    placed_weights,
    plain_config,
)
from headwise.models.attention.rebuilt import stock_model
from headwise.models.engines.gguf_families import family_of, output_bias
from headwise.models.model import Model

NORMED = "attn_q_norm"


def places_in_file(model: Model) -> dict[Site, HeadPlaces]:
    """By layer, which of its heads are where in the file."""
    family = family_of(model)
    groups = groups_of(model.hf, model.discovery)
    if family.by_place or not model.heads.total:
        return first_places(groups, model.heads_left)
    if not family.uneven:
        most, largest = fullest(groups)
        if family.whole:
            most, largest = spread(model, most, largest)
        return one_after_another(groups, most, largest)
    places = {}
    for site in model.heads.sites:
        key_value = model.heads.key_value[site.kind][site.layer]
        places[site] = HeadPlaces([*range(model.heads.count(site))], [*range(key_value)])
        # An output bias needs a head, and llama.cpp reads the size of heads only if the first layer has some.
        biased = output_bias(model.discovery.modules[site]) is not None
        if not key_value and (biased or site.layer == 0):
            places[site] = HeadPlaces([ZEROS], [ZEROS])
    return places


def spread(model: Model, most: int, largest: int) -> tuple[int, int]:
    """Numbers of key/value heads, at least `most`, and of query heads for each, at least `largest`, that make queries as
    wide as the model. Raises HeadwiseError where none do."""
    config: Any = model.hf.config
    heads, rest = divmod(int(config.hidden_size), model.discovery.head_size)
    # As few key/value heads as fit: each costs cache.
    for groups in range(most, heads + 1):
        if not rest and not heads % groups and heads // groups >= largest:
            return groups, heads // groups
    raise HeadwiseError(
        f"llama.cpp takes queries to be as wide as the model, {config.hidden_size} numbers, and {most} key/value heads "
        f"with {largest} heads each of size {model.discovery.head_size} do not fit them"
    )


def gguf_tensors(model: Model) -> Iterator[tuple[str, Tensor]]:
    """Every tensor of the file, by llama.cpp's name. Those that are made are made one at a time."""
    family = family_of(model)
    stock = stock_model(model.hf, plain_config(model.hf))
    places = places_in_file(model)
    layers = [*places.values()]
    # From here on every layer has the heads that its place in the file wants.
    weights = placed_weights(model.hf, model.discovery, stock, places, {})
    modules = dict(stock.named_modules())
    if family.architecture == "deci":
        rotary: Any = model.hf.get_decoder().rotary_emb
        factors = frequency_factors(rotary)
        if factors is not None:
            yield "rope_freqs.weight", factors
    for name in parameter_names(stock, model.hf):
        own = gguf_name(name, model)
        block, _, part = own.rpartition(".")[0].rpartition(".")
        heads = layers[int(block.removeprefix("blk."))] if block else layers[0]
        # llama.cpp refuses a file with tensors that it does not ask for.
        if part.startswith("attn_") and not heads.query:
            continue
        value = weights[name].detach()
        # GPT-2's Conv1D keeps inputs × outputs, the transpose of a linear layer.
        if isinstance(modules.get(name.rpartition(".")[0]), Conv1D) and value.dim() == 2:
            value = value.t()
        if family.norms_from_zero and part.endswith("norm") and own.endswith("weight"):
            # In float32: bfloat16 would round most of a small weight away beside the 1.
            value = value.float() + 1
        if ".experts." in name:
            yield from expert_tensors(own, name, value, family.architecture == "gpt-oss")
        elif family.architecture == "openelm" and part == "attn_qkv":
            # All three have one name in the file: the queries bring the other two along.
            if "q_proj" in name:
                rest = [weights[name.replace("q_proj", each)] for each in ("k_proj", "v_proj")]
                yield own, torch.cat([value, *rest])
        else:
            yield own, in_order(model, part, value, heads)


def parameter_names(*models: Any) -> list[str]:
    """The names of parameters that any of some models has, each once."""
    return [*dict.fromkeys(name for model in models for name, _ in model.named_parameters())]


def in_order(model: Model, part: str, rows: Tensor, heads: HeadPlaces) -> Tensor:
    """A tensor of a layer: of queries and keys with rows as llama.cpp reads and scales them. heads: of the layer."""
    family = family_of(model)
    count = len(heads.key_value if part == "attn_k" else heads.query)
    # Falcon's one key/value head stands behind all queries already, as llama.cpp wants it.
    if part == "attn_qkv" and family.fused and len(heads.key_value) == count:
        apart: Tensor = rows.unflatten(0, (count, 3, -1)).swapaxes(0, 1).flatten(0, 2)
        return apart
    if family.paired and part in ("attn_q", "attn_k"):
        # Head by head, from half-split rotary order to neighbouring pairs.
        rows = rows.unflatten(0, (count, 2, -1)).swapaxes(1, 2).flatten(0, 2)
    # A factor before a norm of the queries would be divided out again.
    normed = any(hasattr(module, "q_norm") for module in model.discovery.modules.values())
    return rows * scale_factor(model, count) if part == (NORMED if normed else "attn_q") else rows


def gguf_name(name: str, model: Model) -> str:
    """llama.cpp's name of a parameter. Raises HeadwiseError where it has none."""
    base, _, kind = name.rpartition(".")
    if kind not in ("weight", "bias"):
        base, kind = name, "weight"
        if name.endswith("_bias"):  # of experts in one tensor
            base, kind = name.removesuffix("_bias"), "bias"
    # gguf's table has gate and up apart: `expert_tensors` gives the gate its name.
    base = base.replace("gate_up_proj", "up_proj") if ".experts." in base else base
    architecture = family_of(model).architecture
    if architecture == "openelm" and base.endswith(("q_proj", "k_proj", "v_proj")):
        base = f"{base[:-6]}qkv_proj"
    names = names_of(architecture, len(model.heads.sites))
    # gguf's table has some names without the prefix, such as Bloom's.
    own = names.get_name(base) or names.get_name(base.removeprefix("transformer."))
    if own is None:
        raise HeadwiseError(f"llama.cpp has no name for {name}.")
    return f"{own}.{kind}"


@cache
def names_of(architecture: str, layers: int) -> Any:
    """gguf's table from names of transformers to those of llama.cpp."""
    import gguf

    constant = next(key for key, name in gguf.MODEL_ARCH_NAMES.items() if name == architecture)
    return gguf.get_tensor_name_map(constant, layers)


def expert_tensors(
    own: str, name: str, value: Tensor, in_turn: bool
) -> Iterator[tuple[str, Tensor]]:
    """Experts E, in one tensor each: gate and up apart. in_turn: they have them in turn, and inputs before outputs, as
    gpt-oss."""
    if in_turn and value.dim() == 3:
        value = value.swapaxes(1, 2)
    if "gate_up" not in name:
        yield own, value
        return
    # gpt-oss: gate, up, gate, up …; others: all gates, then all ups.
    gate, up = (value[:, ::2], value[:, 1::2]) if in_turn else value.chunk(2, dim=1)
    yield own.replace("_up_", "_gate_"), gate
    yield own, up


def scale_factor(model: Model, heads: int) -> float:
    """The model's scale of the scores, divided by the one that llama.cpp takes for so many heads."""
    config: Any = model.hf.config
    usual = model.discovery.head_size**-0.5
    theirs = getattr(config, "attention_multiplier", usual)
    if config.num_hidden_layers == family_of(model).largest:
        theirs = (config.hidden_size // heads) ** -0.5
    scales = [getattr(each, "scaling", None) for each in model.discovery.modules.values()]
    own = next(filter(None, scales), usual)
    # Rounding alone must not change the weights.
    return float(own) / theirs if abs(float(own) / theirs - 1) > 1e-6 else 1.0


def frequency_factors(rotary: Any) -> Tensor | None:
    """What llama.cpp divides each rotary frequency by; None for plain rotary positions."""
    actual = rotary.inv_freq.float()
    theta = rotary.config.rope_parameters["rope_theta"]
    pairs = torch.arange(len(actual), dtype=torch.float32, device=actual.device)
    plain = theta ** (-pairs / len(actual))
    factors = plain / actual
    return None if bool(torch.allclose(factors, torch.ones_like(factors), atol=1e-6)) else factors
