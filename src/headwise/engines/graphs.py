"""A model as graphs of tensors: what torch.export and ONNX take. Keys and values come in and go out, a pair a layer.

An encoder is one graph. A language model is one graph, for the first tokens and for every step after them: without any
past its keys have length 0. An encoder-decoder is two: the encoder with the keys and values of cross-attention, made
once a sentence, and a decoder step.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram
from transformers.cache_utils import Cache, DynamicCache, DynamicLayer, EncoderDecoderCache

from headwise.errors import HeadwiseError
from headwise.heads import Kind
from headwise.model import Model

BATCH, TOKENS, PAST, SOURCE = (
    2,
    3,
    4,
    5,
)  # sizes of the example: all different, and none of them 0 or 1


@dataclass(frozen=True)
class Graph:
    """One graph. inputs: an example by name. dynamic: by name, what its dynamic dimensions are called."""

    name: str
    module: nn.Module
    inputs: dict[str, Tensor]
    dynamic: dict[str, dict[int, str]]
    outputs: tuple[str, ...]

    def program(self) -> ExportedProgram:
        """The graph as a program of torch.export. Raises HeadwiseError where the model's code cannot be traced."""
        shapes = {name: dict.fromkeys(dims, Dim.DYNAMIC) for name, dims in self.dynamic.items()}
        try:
            return torch.export.export(
                self.module,
                (),
                {"inputs": self.inputs},
                dynamic_shapes={"inputs": shapes},
                strict=False,
                prefer_deferred_runtime_asserts_over_guards=True,
            )
        except Exception as error:  # of the tracer, about code of transformers
            reason = " ".join(str(error).split())[:200]
            raise HeadwiseError(
                f"This model's code cannot be turned into a graph ({reason})."
            ) from error


class PastLayer(DynamicLayer):
    """Keys and values of one layer, whose length may be 0 and is not looked at: it is a symbol in the graph."""

    def __init__(self, keys: Tensor, values: Tensor) -> None:
        super().__init__()
        self.lazy_initialization(keys, values)
        self.keys, self.values = keys, values

    def get_seq_length(self) -> int:
        return (
            int(self.keys.shape[-2]) if not torch.compiler.is_exporting() else self.keys.shape[-2]
        )


def cache_of(inputs: dict[str, Tensor], prefix: str, layers: int) -> Cache:
    """The cache of all layers from the inputs `prefix.LAYER.key` and `.value`."""
    return Cache(
        layers=[
            PastLayer(inputs[f"{prefix}.{layer}.key"], inputs[f"{prefix}.{layer}.value"])
            if f"{prefix}.{layer}.key" in inputs
            else DynamicLayer()
            for layer in range(layers)
        ]
    )


class Encoder(nn.Module):
    """Token ids B K and their mask to the model's first output: logits, or hidden states B K M."""

    def __init__(self, hf: Any) -> None:
        super().__init__()
        self.hf = hf

    def forward(self, inputs: dict[str, Tensor]) -> tuple[Tensor, ...]:
        return (self.hf(**inputs)[0],)


class LanguageModel(nn.Module):
    """Token ids B Q, a mask B P+Q, keys and values of P tokens before, to logits B Q V and all keys and values."""

    def __init__(self, hf: Any, layers: int) -> None:
        super().__init__()
        self.hf, self.layers = hf, layers

    def forward(self, inputs: dict[str, Tensor]) -> tuple[Tensor, ...]:
        past = cache_of(inputs, "past", self.layers)
        logits = self.hf(
            input_ids=inputs["input_ids"],
            attention_mask=inputs["attention_mask"],
            past_key_values=past,
            use_cache=True,
        ).logits
        return (logits, *(state for layer in past.layers for state in (layer.keys, layer.values)))


class Source(nn.Module):
    """Source ids B K and their mask to the keys and values of cross-attention, for the layers that have heads."""

    def __init__(self, hf: Any, crossing: list[int]) -> None:
        super().__init__()
        self.hf, self.crossing = hf, crossing

    def forward(self, inputs: dict[str, Tensor]) -> tuple[Tensor, ...]:
        cache = EncoderDecoderCache(DynamicCache(), DynamicCache())
        start = inputs["input_ids"].new_zeros(inputs["input_ids"].shape[0], 1)
        self.hf(**inputs, decoder_input_ids=start, past_key_values=cache, use_cache=True)
        layers = [cache.cross_attention_cache.layers[layer] for layer in self.crossing]
        return tuple(state for layer in layers for state in (layer.keys, layer.values))


class DecoderStep(nn.Module):
    """Target ids B Q, the source's mask B K, keys and values of P target tokens before and of the source, to logits
    B Q V and the target's keys and values."""

    def __init__(self, hf: Any, layers: int, crossing: list[int]) -> None:
        super().__init__()
        self.hf, self.layers, self.crossing = hf, layers, crossing

    def forward(self, inputs: dict[str, Tensor]) -> tuple[Tensor, ...]:
        past, cross = cache_of(inputs, "past", self.layers), cache_of(inputs, "cross", self.layers)
        cache = EncoderDecoderCache(DynamicCache(), DynamicCache())
        cache.self_attention_cache, cache.cross_attention_cache = past, cross
        cache.is_updated = {layer: layer in self.crossing for layer in range(self.layers)}
        mask = inputs["attention_mask"]
        unread = mask.new_zeros(
            (*mask.shape, 1), dtype=self.hf.dtype
        )  # stands for states that the cache has read
        logits = self.hf(
            encoder_outputs=(unread,),
            attention_mask=mask,
            decoder_input_ids=inputs["decoder_input_ids"],
            past_key_values=cache,
            use_cache=True,
        ).logits
        return (logits, *(state for layer in past.layers for state in (layer.keys, layer.values)))


def graphs(model: Model) -> list[Graph]:
    """The graphs of a model, with stock attention."""
    device, words = model.hf.device, model.hf.config.get_text_config().vocab_size
    ids = torch.arange(BATCH * SOURCE, device=device).view(BATCH, SOURCE) % words
    source = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    source_sizes = {name: {0: "batch", 1: "source"} for name in source}
    if "decoder-self" not in model.heads.kinds:
        return [Graph("model", Encoder(model.hf), source, source_sizes, ("output",))]
    layers = len(model.heads.query["decoder-self"])
    past, past_sizes = states(model, "decoder-self", "past", PAST, list(range(layers)))
    after = tuple(name.replace("past", "present", 1) for name in past)
    if not model.hf.config.is_encoder_decoder:
        step = {
            "input_ids": ids[:, :TOKENS].clone(memory_format=torch.contiguous_format),
            "attention_mask": ids.new_ones(BATCH, PAST + TOKENS),
        }
        sizes = {"input_ids": {0: "batch", 1: "tokens"}, "attention_mask": {0: "batch", 1: "total"}}
        whole = LanguageModel(model.hf, layers)
        return [Graph("model", whole, step | past, sizes | past_sizes, ("logits", *after))]
    crossing = [layer for layer, heads in enumerate(model.heads.query["cross"]) if heads]
    cross, cross_sizes = states(model, "cross", "cross", SOURCE, crossing)
    step = {
        "decoder_input_ids": ids[:, :TOKENS].clone(memory_format=torch.contiguous_format),
        "attention_mask": source["attention_mask"],
    }
    sizes = {
        "decoder_input_ids": {0: "batch", 1: "tokens"},
        "attention_mask": {0: "batch", 1: "source"},
    }
    return [
        Graph("encoder", Source(model.hf, crossing), source, source_sizes, tuple(cross)),
        Graph(
            "decoder",
            DecoderStep(model.hf, layers, crossing),
            step | past | cross,
            sizes | past_sizes | cross_sizes,
            ("logits", *after),
        ),
    ]


def states(
    model: Model, kind: Kind, prefix: str, length: int, layers: list[int]
) -> tuple[dict[str, Tensor], dict[str, dict[int, str]]]:
    """Example keys and values B G K D of some layers, and their dynamic sizes. A layer without heads has one zero a
    token, from which positions are counted."""
    size, name_of_length = model.found.head_size, "source" if prefix == "cross" else "past"
    example, sizes = {}, {}
    for layer in layers:
        groups = model.heads.key_value[kind][layer]
        shape = (BATCH, groups, length, size) if groups else (BATCH, 1, length, 1)
        for part in ("key", "value"):
            name = f"{prefix}.{layer}.{part}"
            example[name] = torch.zeros(shape, device=model.hf.device, dtype=model.hf.dtype)
            sizes[name] = {0: "batch", 2: name_of_length}
    return example, sizes
