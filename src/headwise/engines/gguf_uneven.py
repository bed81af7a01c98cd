"""GGUF files of the two architectures of llama.cpp that read the counts of heads as one number a layer.

`deci` is a Llama with optional biases whose layers may lack attention; `openelm` has Qwen3's norms of queries and keys,
wants embeddings tied to the output and a head in every layer. Rotary positions: `deci` rotates neighbouring pairs, so
rows of queries and keys are reordered from the half-split form of transformers.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from headwise.heads import Site
from headwise.model import Model

ARCHITECTURES = {"llama": "deci", "mistral": "deci", "qwen2": "deci", "qwen3": "openelm"}

# Rotary positions whose frequencies do not depend on the length of the text.
STATIC_ROTATIONS = ("default", "linear", "llama3", "yarn")


class LayerHeads(NamedTuple):
    """Heads of one layer in the file, and whether there is one of zeros because the layer has none."""

    query: int
    key_value: int
    zeros: bool = False


def uneven_refusal(model: Model) -> str | None:
    """Why no architecture of llama.cpp takes these layers as they are; None where one does."""
    config: Any = model.hf.config
    family = config.model_type
    rotation = config.rope_parameters.get("rope_type", "default")
    if rotation not in STATIC_ROTATIONS:
        return f"its rotary positions of type {rotation} depend on the length of the text"
    if ARCHITECTURES[family] == "openelm":
        empty = [site.layer for site in model.heads.sites if not model.heads.count(site)]
        if empty:
            return f"llama.cpp needs a head in every layer of a {family}, but layer {empty[0]} has none"
        if not tied(model):
            return f"llama.cpp reads a {family} with uneven heads only with tied embeddings"
        if any(attention.o_proj.bias is not None for attention in attentions(model)):
            return (
                f"llama.cpp reads no output bias in a {family}: remove heads without compensation"
            )
        if rotation != "default":
            return f"llama.cpp reads no rotary scaling ({rotation}) in a {family} with uneven heads"
    return None


def tied(model: Model) -> bool:
    return bool(model.hf.get_output_embeddings().weight is model.hf.get_input_embeddings().weight)


def attentions(model: Model) -> list[Any]:
    """The attention modules, layer by layer; EmptyAttention where no head is left."""
    return [
        model.discovery.modules[Site("decoder-self", layer)] for layer in range(len(counts(model)))
    ]


def counts(model: Model) -> list[LayerHeads]:
    """Heads of every layer in the file. An empty layer gets one head of zeros where it has an output bias, which
    needs a head, and where it is the first: llama.cpp reads the size of heads only if that has some."""
    layers = []
    for layer, heads in enumerate(model.heads.query["decoder-self"]):
        groups = model.heads.key_value["decoder-self"][layer]
        bias = output_bias(model.discovery.modules[Site("decoder-self", layer)])
        if not heads and (layer == 0 or bias is not None):
            layers.append(LayerHeads(1, 1, zeros=True))
        else:
            layers.append(LayerHeads(heads, groups))
    return layers


def output_bias(attention: Any) -> Tensor | None:
    projection = getattr(attention, "o_proj", None)
    return None if projection is None else projection.bias


def paired(rows: Tensor, heads: int) -> Tensor:
    """Rows of a query or key projection, head by head, from half-split rotary order to neighbouring pairs."""
    pairs = rows.shape[0] // heads // 2
    return rows.reshape(heads, 2, pairs, *rows.shape[1:]).swapaxes(1, 2).reshape(rows.shape)


def uneven_tensors(model: Model) -> Iterator[tuple[str, Tensor]]:
    """Every tensor of the file, by llama.cpp's name. One at a time: they are made when they are asked for."""
    decoder: Any = model.hf.get_decoder()
    fused = ARCHITECTURES[model.hf.config.model_type] == "openelm"
    yield "token_embd.weight", decoder.embed_tokens.weight
    yield "output_norm.weight", decoder.norm.weight
    if not tied(model):
        yield from weight_and_bias("output", model.hf.get_output_embeddings())
    if not fused and (factors := frequency_factors(decoder.rotary_emb)) is not None:
        yield "rope_freqs.weight", factors
    for number, (layer, attention, count) in enumerate(
        zip(decoder.layers, attentions(model), counts(model), strict=True)
    ):
        block = f"blk.{number}"
        if count.query:
            yield from weight_and_bias(f"{block}.attn_norm", layer.input_layernorm)
        if count.zeros:
            yield from zero_head(block, attention, model)
        elif fused:
            inputs = [attention.q_proj.weight, attention.k_proj.weight, attention.v_proj.weight]
            yield f"{block}.attn_qkv.weight", torch.cat(inputs)
            yield from weight_and_bias(f"{block}.attn_q_norm", attention.q_norm)
            yield from weight_and_bias(f"{block}.attn_k_norm", attention.k_norm)
            yield from weight_and_bias(f"{block}.attn_output", attention.o_proj)
        elif count.query:
            for name, rows in weight_and_bias(f"{block}.attn_q", attention.q_proj):
                yield name, paired(rows, count.query)
            for name, rows in weight_and_bias(f"{block}.attn_k", attention.k_proj):
                yield name, paired(rows, count.key_value)
            yield from weight_and_bias(f"{block}.attn_v", attention.v_proj)
            yield from weight_and_bias(f"{block}.attn_output", attention.o_proj)
        yield from weight_and_bias(f"{block}.ffn_norm", layer.post_attention_layernorm)
        for ours, theirs in (
            ("gate_proj", "ffn_gate"),
            ("up_proj", "ffn_up"),
            ("down_proj", "ffn_down"),
        ):
            yield from weight_and_bias(f"{block}.{theirs}", getattr(layer.mlp, ours))


def weight_and_bias(name: str, module: Any) -> Iterator[tuple[str, Tensor]]:
    """The weight and, where there is one, the bias of a linear layer or a norm."""
    for kind in ("weight", "bias"):
        value = getattr(module, kind, None)
        if value is not None:
            yield f"{name}.{kind}", value


def zero_head(block: str, attention: Any, model: Model) -> Iterator[tuple[str, Tensor]]:
    """One head of zeros, with the output bias of a layer that has no head."""
    embedded = model.hf.get_input_embeddings().weight
    size = model.discovery.head_size
    width = embedded.shape[1]
    for name in ("attn_q", "attn_k", "attn_v"):
        yield f"{block}.{name}.weight", embedded.new_zeros(size, width)
    yield f"{block}.attn_output.weight", embedded.new_zeros(width, size)
    bias = output_bias(attention)
    if bias is not None:
        yield f"{block}.attn_output.bias", bias


def frequency_factors(rotary: Any) -> Tensor | None:
    """What llama.cpp divides each rotary frequency by; None for plain rotary positions."""
    actual = rotary.inv_freq.float()
    theta = rotary.config.rope_parameters["rope_theta"]
    pairs = torch.arange(len(actual), dtype=torch.float32, device=actual.device)
    plain = theta ** (-pairs / len(actual))
    factors = plain / actual
    return None if bool(torch.allclose(factors, torch.ones_like(factors), atol=1e-6)) else factors
