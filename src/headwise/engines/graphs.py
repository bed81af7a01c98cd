"""A model as graphs of tensors: what torch.export and ONNX take. Keys and values come in and go out, a pair a layer.

An encoder is one graph. A language model is one graph, for the first tokens and for every step after them: without any
past its keys have length 0. An encoder-decoder is two: the encoder with the keys and values of cross-attention, made
once a sentence, and a decoder step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram
from transformers.cache_utils import Cache, DynamicCache, DynamicLayer, EncoderDecoderCache

from headwise.errors import HeadwiseError
from headwise.heads import Kind
from headwise.model import Model

# Sizes of the example: all different, and none of them 0 or 1.
BATCH = 2
TOKENS = 3
PAST = 4
SOURCE = 5


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
        self.keys = keys
        self.values = values

    def get_seq_length(self) -> int:
        length = self.keys.shape[-2]
        return length if torch.compiler.is_exporting() else int(length)


def cache_of(inputs: dict[str, Tensor], prefix: str, layers: int) -> Cache:
    """The cache of all layers from the inputs `prefix.LAYER.key` and `.value`."""
    states: list[Any] = []
    for layer in range(layers):
        keys = inputs.get(f"{prefix}.{layer}.key")
        if keys is None:
            states.append(DynamicLayer())
        else:
            states.append(PastLayer(keys, inputs[f"{prefix}.{layer}.value"]))
    return Cache(layers=states)


def flat(layers: Sequence[Any]) -> list[Tensor]:
    """The keys and values of some layers of a cache, layer by layer."""
    tensors = []
    for layer in layers:
        tensors += [layer.keys, layer.values]
    return tensors


class Encoder(nn.Module):
    """Token ids B K and their mask to the model's first output: logits, or hidden states B K M."""

    def __init__(self, hf: Any) -> None:
        super().__init__()
        self.hf = hf

    def forward(self, inputs: dict[str, Tensor]) -> tuple[Tensor, ...]:
        return (self.hf(**inputs)[0],)


class LanguageModelGraph(nn.Module):
    """Token ids B Q, a mask B P+Q, keys and values of P tokens before, to logits B Q V and all keys and values."""

    def __init__(self, hf: Any, layers: int) -> None:
        super().__init__()
        self.hf = hf
        self.layers = layers

    def forward(self, inputs: dict[str, Tensor]) -> tuple[Tensor, ...]:
        past = cache_of(inputs, "past", self.layers)
        logits = self.hf(
            input_ids=inputs["input_ids"],
            attention_mask=inputs["attention_mask"],
            past_key_values=past,
            use_cache=True,
        ).logits
        return (logits, *flat(past.layers))


class Source(nn.Module):
    """Source ids B K and their mask to the keys and values of cross-attention, for the layers that have heads."""

    def __init__(self, hf: Any, crossing: list[int]) -> None:
        super().__init__()
        self.hf = hf
        self.crossing = crossing

    def forward(self, inputs: dict[str, Tensor]) -> tuple[Tensor, ...]:
        cache = EncoderDecoderCache(DynamicCache(), DynamicCache())
        start = inputs["input_ids"].new_zeros(inputs["input_ids"].shape[0], 1)
        self.hf(**inputs, decoder_input_ids=start, past_key_values=cache, use_cache=True)
        layers = cache.cross_attention_cache.layers
        return tuple(flat([layers[layer] for layer in self.crossing]))


class DecoderStep(nn.Module):
    """Target ids B Q, the source's mask B K, keys and values of P target tokens before and of the source, to logits
    B Q V and the target's keys and values."""

    def __init__(self, hf: Any, layers: int, crossing: list[int]) -> None:
        super().__init__()
        self.hf = hf
        self.layers = layers
        self.crossing = crossing

    def forward(self, inputs: dict[str, Tensor]) -> tuple[Tensor, ...]:
        past = cache_of(inputs, "past", self.layers)
        cache = EncoderDecoderCache(DynamicCache(), DynamicCache())
        cache.self_attention_cache = past
        cache.cross_attention_cache = cache_of(inputs, "cross", self.layers)
        cache.is_updated = {layer: layer in self.crossing for layer in range(self.layers)}
        mask = inputs["attention_mask"]
        # The encoder's states are in the cache already: their values are not read.
        unread = mask.new_zeros((*mask.shape, 1), dtype=self.hf.dtype)
        logits = self.hf(
            encoder_outputs=(unread,),
            attention_mask=mask,
            decoder_input_ids=inputs["decoder_input_ids"],
            past_key_values=cache,
            use_cache=True,
        ).logits
        return (logits, *flat(past.layers))


def graphs(model: Model) -> list[Graph]:
    """The graphs of a model, with stock attention."""
    vocabulary = model.hf.config.get_text_config().vocab_size
    batch_and_source = {0: "batch", 1: "source"}
    ids = torch.arange(BATCH * SOURCE, device=model.hf.device).view(BATCH, SOURCE) % vocabulary
    source = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    source_sizes = dict.fromkeys(source, batch_and_source)
    if "decoder-self" not in model.heads.kinds:
        return [Graph("model", Encoder(model.hf), source, source_sizes, ("output",))]

    layers = len(model.heads.query["decoder-self"])
    past, past_sizes = states(model, "decoder-self", "past", PAST, list(range(layers)))
    outputs = ("logits", *(name.replace("past", "present", 1) for name in past))
    next_ids = ids[:, :TOKENS].clone(memory_format=torch.contiguous_format)
    next_size = {0: "batch", 1: "tokens"}
    if not model.hf.config.is_encoder_decoder:
        step = {
            "input_ids": next_ids,
            "attention_mask": ids.new_ones(BATCH, PAST + TOKENS),
        }
        sizes = {"input_ids": next_size, "attention_mask": {0: "batch", 1: "total"}}
        module = LanguageModelGraph(model.hf, layers)
        return [Graph("model", module, step | past, sizes | past_sizes, outputs)]

    crossing = [layer for layer, heads in enumerate(model.heads.query["cross"]) if heads]
    cross, cross_sizes = states(model, "cross", "cross", SOURCE, crossing)
    encoder = Graph("encoder", Source(model.hf, crossing), source, source_sizes, tuple(cross))
    step = {"decoder_input_ids": next_ids, "attention_mask": source["attention_mask"]}
    sizes = {"decoder_input_ids": next_size, "attention_mask": batch_and_source}
    decoder = Graph(
        "decoder",
        DecoderStep(model.hf, layers, crossing),
        step | past | cross,
        sizes | past_sizes | cross_sizes,
        outputs,
    )
    return [encoder, decoder]


def states(
    model: Model, kind: Kind, prefix: str, length: int, layers: list[int]
) -> tuple[dict[str, Tensor], dict[str, dict[int, str]]]:
    """Example keys and values B G K D of some layers, and their dynamic sizes. A layer without heads has one zero a
    token, from which positions are counted."""
    head_size = model.discovery.head_size
    dynamic_length = "source" if prefix == "cross" else "past"
    example = {}
    sizes = {}
    for layer in layers:
        groups = model.heads.key_value[kind][layer]
        shape = (BATCH, groups, length, head_size) if groups else (BATCH, 1, length, 1)
        for side in ("key", "value"):
            name = f"{prefix}.{layer}.{side}"
            example[name] = torch.zeros(shape, device=model.hf.device, dtype=model.hf.dtype)
            sizes[name] = {0: "batch", 2: dynamic_length}
    return example, sizes
