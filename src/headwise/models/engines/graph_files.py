"""A model as graphs of tensors, and their files: ONNX for ONNX Runtime, programs of torch.export for PyTorch (`.pt2`).

Keys and values come in and go out, a pair a layer. An encoder is one graph. A language model is one graph, for the
first tokens and for every step after them: without any past its keys have length 0. An encoder-decoder is two: the
encoder with the keys and values of cross-attention, made once a sentence, and a decoder step. A graph can also give
the attention weights of chosen heads.

Every graph is checked against the model with texts of other sizes than the one it was traced with. Whether a model's
code can be traced shows when it is: the engines here refuse no model of text before.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from inspect import signature
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram
from transformers.cache_utils import Cache, DynamicCache, DynamicLayer, EncoderDecoderCache

from headwise.core.errors import HeadwiseError
from headwise.core.heads import Head, Kind
from headwise.models.attention.discover import logits_in, output_of, reads_its_source_twice
from headwise.models.attention.padding import plain_config
from headwise.models.marian.network import Ssru
from headwise.models.model import Model
from headwise.models.tasks.classification import Classification
from headwise.models.tasks.embedding import Embedding

# Sizes of the example: all different, and none of them 0 or 1.
BATCH = 2
TOKENS = 3
PAST = 4
SOURCE = 5
LOGITS = "logits"  # of words or classes
ATTENTION = "attention."  # and a kind: the output with the weights of its chosen heads
TOLERANCE = 1e-4  # of the largest number that the model gives
SIZES = (
    {"batch": 1, "tokens": 4, "past": 0, "source": 7},
    {"batch": 3, "tokens": 1, "past": 9, "source": 1},
)
Run = Callable[[dict[str, Tensor]], list[Tensor]]


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
                # Else a condition on a length in the model's code fails the export.
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
            # Without cross-attention heads; nothing reads it.
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


Given = tuple[list[Tensor], Any]
Step = Callable[[Callable[..., Any], dict[str, Tensor]], Given]


class GraphModule(nn.Module):
    """What a graph computes, for torch.export. step: from the model and inputs to the outputs, and what the model gave.

    attention: by kind, the heads whose attention weights B H Q K are outputs as well. layers: by kind, how many have it.
    """

    def __init__(
        self,
        hf: Any,
        step: Step,
        attention: Mapping[Kind, Sequence[Head]],
        layers: Mapping[Kind, int],
    ) -> None:
        super().__init__()
        self.hf = hf
        self.step = step
        self.attention = attention
        self.layers = layers

    def forward(self, inputs: dict[str, Tensor]) -> tuple[Tensor, ...]:
        # Only where asked for: it costs the fused kernel.
        asked = {"output_attentions": True} if self.attention else {}
        outputs, given = self.step(partial(self.hf, **asked), inputs)
        return (*outputs, *(self.weights(given, kind) for kind in self.attention))

    def weights(self, given: Any, kind: Kind) -> Tensor:
        """The weights of the chosen heads of a kind in what the model gave."""
        name = "attentions"
        if self.hf.config.is_encoder_decoder:
            stack, _, _ = kind.partition("-")
            name = f"{stack}_attentions"
        layers = getattr(given, name, None)
        if layers is None or len(layers) != self.layers[kind]:
            count = "none" if layers is None else f"that of {len(layers)}"
            raise HeadwiseError(
                f"This model's {kind} attention is in {self.layers[kind]} layers, but transformers gives {count}: its "
                "weights cannot be outputs."
            )
        # The chosen heads side by side, B H Q K.
        return torch.stack([layers[head.layer][:, head.head] for head in self.attention[kind]], 1)


def encode(outputs: Sequence[str], hf: Callable[..., Any], inputs: dict[str, Tensor]) -> Given:
    """Token ids B K, their mask, and perhaps of which text each is, to outputs of the model by name: logits, or hidden
    states B K M."""
    given = hf(**inputs, return_dict=True)
    # Some call their logits of words otherwise (BertForPreTraining).
    named = {**given, LOGITS: logits_in(given)}
    return [named[name] for name in outputs], given


def answers_of(model: Model, inputs: dict[str, Tensor]) -> list[str]:
    """What a model answers without writing words, by its own names: `logits` of classes, `start_logits` and `end_logits`
    of an answer in a text; of a model of embeddings its last states alone."""
    if isinstance(model.task, Embedding):
        return ["last_hidden_state"]
    if model.task.measured:
        return [LOGITS]
    with torch.no_grad():
        try:
            given = output_of(model.hf, inputs)
        except (RuntimeError, ValueError, IndexError) as error:
            reason = " ".join(str(error).split())[:200]
            raise HeadwiseError(
                f"This model's code cannot be turned into a graph ({reason})."
            ) from error
    tensors = [name for name, value in given.items() if isinstance(value, Tensor)]
    return [name for name in tensors if not name.endswith("hidden_state")]


def language_step(layers: int, hf: Callable[..., Any], inputs: dict[str, Tensor]) -> Given:
    """Token ids B Q, a mask B P+Q, keys and values of P tokens before, to logits B Q V and all keys and values."""
    past = cache_of(inputs, "past", layers)
    given = hf(
        input_ids=inputs["input_ids"],
        attention_mask=inputs["attention_mask"],
        past_key_values=past,
        use_cache=True,
    )
    return [given.logits, *flat(past.layers)], given


def encode_source(crossing: list[int], hf: Callable[..., Any], inputs: dict[str, Tensor]) -> Given:
    """Source ids B K and their mask to the keys and values of cross-attention, for the layers that have heads."""
    cache = EncoderDecoderCache(DynamicCache(), DynamicCache())
    # Any token will do: the step is there to fill the cache of cross-attention.
    start = inputs["input_ids"].new_zeros(inputs["input_ids"].shape[0], 1)
    given = hf(**inputs, decoder_input_ids=start, past_key_values=cache, use_cache=True)
    layers = cache.cross_attention_cache.layers
    return flat([layers[layer] for layer in crossing]), given


def decoder_step(
    layers: int,
    crossing: list[int],
    dtype: torch.dtype,
    hf: Callable[..., Any],
    inputs: dict[str, Tensor],
) -> Given:
    """Target ids B Q, the source's mask B K, keys and values of P target tokens before and of the source, to logits
    B Q V and the target's keys and values."""
    past = cache_of(inputs, "past", layers)
    cache = EncoderDecoderCache(DynamicCache(), DynamicCache())
    # Set afterwards, as the constructor compares lengths, which are symbols here.
    cache.self_attention_cache = past
    cache.cross_attention_cache = cache_of(inputs, "cross", layers)
    # By it transformers decides whether it reads the cache or projects the source again.
    cache.is_updated = {layer: layer in crossing for layer in range(layers)}
    mask = inputs["attention_mask"]
    # The encoder's states are in the cache already: their values are not read.
    unread = mask.new_zeros((*mask.shape, 1), dtype=dtype)
    given = hf(
        encoder_outputs=(unread,),
        attention_mask=mask,
        decoder_input_ids=inputs["decoder_input_ids"],
        past_key_values=cache,
        use_cache=True,
    )
    return [given.logits, *flat(past.layers)], given


def graphs(model: Model, attention: Sequence[Head] = ()) -> list[Graph]:
    """The graphs of a model, with stock attention. attention: heads whose weights are outputs of the graph with them."""
    vocabulary = model.hf.config.get_text_config().vocab_size
    batch_and_source = {0: "batch", 1: "source"}
    ids = torch.arange(BATCH * SOURCE, device=model.hf.device).view(BATCH, SOURCE) % vocabulary
    source = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    if types := text_types(model):
        source["token_type_ids"] = ids % types
    source_sizes = dict.fromkeys(source, batch_and_source)
    cached = cached_shapes(model, "decoder-self")

    def graph(
        name: str, kinds: Sequence[Kind], step: Step, inputs: Any, sizes: Any, outputs: Any
    ) -> Graph:
        chosen: dict[Kind, list[Head]] = {}
        for kind in kinds:
            heads = [head for head in attention if head.kind == kind]
            if heads:
                chosen[kind] = heads
        layers = {kind: len(model.heads.query[kind]) for kind in chosen}
        module = GraphModule(model.hf, step, chosen, layers)
        return Graph(
            name, module, inputs, sizes, (*outputs, *(f"{ATTENTION}{each}" for each in chosen))
        )

    kinds = model.heads.kinds
    if not cached or model.hf.get_output_embeddings() is None:
        outputs = answers_of(model, source)
        step: Step = partial(encode, outputs)
        return [graph("model", kinds, step, source, source_sizes, outputs)]

    layers = len(cached)
    past, past_sizes = states(model, "past", PAST, dict(enumerate(cached)))
    outputs = ["logits", *(name.replace("past", "present", 1) for name in past)]
    next_ids = ids[:, :TOKENS].clone(memory_format=torch.contiguous_format)
    next_size = {0: "batch", 1: "tokens"}
    if states_of_ssru(model):  # their loop over the tokens would be traced at one length
        next_ids, next_size = ids[:, :1].clone(), {0: "batch"}
    if not model.hf.config.is_encoder_decoder:
        inputs = {
            "input_ids": next_ids,
            "attention_mask": ids.new_ones(BATCH, PAST + TOKENS),
        }
        sizes = {"input_ids": next_size, "attention_mask": {0: "batch", 1: "total"}}
        step = partial(language_step, layers)
        return [graph("model", kinds, step, inputs | past, sizes | past_sizes, outputs)]

    shapes = cached_shapes(model, "cross")
    crossing = [layer for layer, heads in enumerate(model.heads.query["cross"]) if heads]
    cross, cross_sizes = states(model, "cross", SOURCE, {each: shapes[each] for each in crossing})
    step = partial(encode_source, crossing)
    encoder = graph("encoder", ["encoder-self"], step, source, source_sizes, cross)
    inputs = {"decoder_input_ids": next_ids, "attention_mask": source["attention_mask"]}
    inputs |= past | cross
    sizes = {"decoder_input_ids": next_size, "attention_mask": batch_and_source}
    sizes |= past_sizes | cross_sizes
    step = partial(decoder_step, layers, crossing, model.hf.dtype)
    return [encoder, graph("decoder", ["decoder-self", "cross"], step, inputs, sizes, outputs)]


def text_types(model: Model) -> int:
    """How many texts a classifier, or a model that answers questions, tells apart by `token_type_ids`; 0 where it tells
    none apart."""
    of_pairs = isinstance(model.task, Classification) or not model.task.measured
    if not of_pairs or "token_type_ids" not in signature(model.hf.forward).parameters:
        return 0
    types = getattr(model.hf.config, "type_vocab_size", 0)
    return types if types > 1 else 0


def cached_shapes(model: Model, kind: Kind) -> list[tuple[int, int, int]]:
    """What each layer keeps of a token: heads, numbers of a key and numbers of a value; nothing where no layer keeps any.
    A layer without heads has one zero, from which positions are counted."""
    if kind == "decoder-self" and (ssru := states_of_ssru(model)):
        return [(1, size, 1) for size in ssru]
    size = model.discovery.head_size
    counts = model.heads.key_value.get(kind, ())
    return [(groups, size, size) if groups else (1, 1, 1) for groups in counts]


def states_of_ssru(model: Model) -> list[int]:
    """The widths of the decoder's SSRUs, which stand where self-attention usually does; nothing without any."""
    units = [module for module in model.hf.modules() if isinstance(module, Ssru)]
    return [unit.W.out_features for unit in units]


def states(
    model: Model, prefix: str, length: int, shapes: Mapping[int, tuple[int, int, int]]
) -> tuple[dict[str, Tensor], dict[str, dict[int, str]]]:
    """Example keys and values B G K D by layer, and their dynamic sizes. shapes: as `cached_shapes` gives them."""
    dynamic_length = "source" if prefix == "cross" else "past"
    example = {}
    sizes = {}
    for layer, (groups, *widths) in shapes.items():
        for side, width in zip(("key", "value"), widths, strict=True):
            name = f"{prefix}.{layer}.{side}"
            shape = (BATCH, groups, length, width)
            # Shapes alone count while a graph is traced.
            example[name] = torch.zeros(shape, device=model.hf.device, dtype=model.hf.dtype)
            sizes[name] = {0: "batch", 2: dynamic_length}
    return example, sizes


def why_not_graph(model: Model) -> str | None:
    """Why no graph can be written of this model; None where one may be."""
    if reads_its_source_twice(model.hf):
        kind = type(model.hf).__name__
        return f"a {kind} finds the end of its text by the ids that it gets, which no graph of tensors does"
    if model.hf.main_input_name == "input_ids":
        return None
    return f"its graphs are of models that read text, and a {type(model.hf).__name__} reads {model.hf.main_input_name}"


def write_onnx(model: Model, folder: Path, dtype: str, attention: Sequence[Head] = ()) -> list[str]:
    """Write ONNX files to a folder, in float32. attention: heads whose weights are outputs. Returns notes for the user."""
    import onnxruntime

    with traceable(model, "eager"):
        for graph in graphs(model, attention):
            path = folder / f"{graph.name}.onnx"
            program = graph.program()
            try:
                with quiet_converter():
                    made = torch.onnx.export(
                        program,
                        (),
                        kwargs={"inputs": graph.inputs},
                        dynamo=True,
                        verbose=False,
                        optimize=True,
                        input_names=list(graph.inputs),
                        output_names=list(graph.outputs),
                    )
            except Exception as error:  # of the converter, about an operation that ONNX lacks
                message = " ".join(str(error.__cause__ or error).split())
                reason, _, _ = message.partition(" : [")  # without the node's whole entry
                raise HeadwiseError(
                    f"This model's graph cannot be written as ONNX ({reason[:200]})."
                ) from error
            assert made is not None
            for kind in model.heads.kinds:
                if f"{ATTENTION}{kind}" in graph.outputs:
                    of_kind = [str(head) for head in attention if head.kind == kind]
                    # An output has no names for its heads: the file says their order here.
                    made.model.metadata_props[f"{ATTENTION}{kind}"] = " ".join(of_kind)
            made.save(str(path))
            # The file as users will have it, not the program in memory, is checked.
            session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
            check_engine(graph, partial(run_onnx, session), "ONNX Runtime")
    save_tokenizer(model, folder)
    checked = f"checked in ONNX Runtime: within {TOLERANCE:g} of the largest number"
    return [checked, *pooling_notes(model)]


@contextmanager
def quiet_converter() -> Iterator[None]:
    """Without the converter's own warnings: about torchvision, which no graph here needs, and about torch's code."""
    log = logging.getLogger("torch.onnx")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(action="ignore", category=FutureWarning):
            yield
    finally:
        log.setLevel(level)


def run_onnx(session: Any, inputs: Mapping[str, Tensor]) -> list[Tensor]:
    """The outputs of an ONNX Runtime session. Inputs that the graph does not read are not among its own."""
    names = [own.name for own in session.get_inputs()]
    arrays = {name: inputs[name].cpu().numpy() for name in names}
    outputs = session.run(None, arrays)
    return [torch.from_numpy(output) for output in outputs]


def write_torch(model: Model, folder: Path, dtype: str) -> list[str]:
    """Write programs of torch.export to a folder. Returns notes for the user."""
    with traceable(model, "sdpa" if getattr(model.hf, "_supports_sdpa", True) else "eager"):
        for graph in graphs(model):
            path = folder / f"{graph.name}.pt2"
            torch.export.save(graph.program(), path)
            # Read back, so that the file itself is checked.
            program = torch.export.load(path).module()
            check_engine(graph, partial(run_program, program), "torch.export")
    save_tokenizer(model, folder)
    checked = f"checked in PyTorch: within {TOLERANCE:g} of the largest number"
    return [checked, *pooling_notes(model)]


def run_program(program: Any, inputs: dict[str, Tensor]) -> list[Tensor]:
    return list(program(inputs=inputs))


def pooling_notes(model: Model) -> list[str]:
    """What makes one vector of the states of tokens that the graph of a model of embeddings gives."""
    if not isinstance(model.task, Embedding):
        return []
    try:
        pooling = f"take the {model.task.pooling().words} over its tokens"
    except HeadwiseError:  # a module that headwise does not run
        pooling = "make it with sentence-transformers, as modules.json says"
    return [
        f"the graph gives a vector for each token, not for a sentence: {pooling}"
        f"{model.task.reading().words}"
    ]


def save_tokenizer(model: Model, folder: Path) -> None:
    """Write what a program needs beside a graph: the tokenizer, and the names of classes."""
    if model.tokenizer is not None:
        model.tokenizer.save_pretrained(folder)
    if model.task.output == "classification":
        plain_config(model.hf).save_pretrained(folder)


@contextmanager
def traceable(model: Model, attention: str) -> Iterator[None]:
    """Plain attention of transformers, evaluation, no gradients. ONNX has no operator for the fused attention of T5."""
    before = model.hf.config._attn_implementation
    try:
        model.hf.set_attn_implementation(attention)
        with torch.no_grad():
            yield
    finally:
        model.hf.set_attn_implementation(before)


def check_engine(graph: Graph, run: Run, engine: str) -> None:
    """Compare an engine with the model. Raises HeadwiseError for a difference, or where the engine stops at other sizes
    than those it was traced with."""
    for sizes in SIZES:
        inputs = resized(graph, sizes)
        # The same inputs through the model itself.
        expected_outputs = graph.module(inputs)
        try:
            outputs = run(inputs)
        except Exception as error:  # the model's code asks for sizes that it was traced with
            reason = " ".join(str(error).split())[:200]
            raise HeadwiseError(
                f"{engine} cannot run the graph '{graph.name}' with texts of another length ({reason}). Nothing was "
                "written."
            ) from error
        for name, expected, got in zip(graph.outputs, expected_outputs, outputs, strict=True):
            # An output may be empty, and `max` raises for it.
            if not expected.numel():
                continue
            difference = float((got.to(expected.device) - expected).abs().max())
            # In this form NaN is a difference, too.
            if not difference <= TOLERANCE * max(float(expected.abs().max()), 1.0):
                raise HeadwiseError(
                    f"{engine} computes something else than the model: {name} of the graph '{graph.name}' differs by "
                    f"{difference:.2g}. Nothing was written."
                )


def resized(graph: Graph, sizes: Mapping[str, int]) -> dict[str, Tensor]:
    """Inputs of other sizes, on the same device: ids of the example drawn again, drawn states, masks of ones."""
    # Drawn on the CPU, so that each device is checked with the same inputs.
    random = torch.Generator().manual_seed(1)
    # A mask is over what is cached and what is new.
    sizes = {**sizes, "total": sizes["past"] + sizes["tokens"]}
    inputs = {}
    for name, example in graph.inputs.items():
        shape = list(example.shape)
        for dimension, size in graph.dynamic[name].items():
            shape[dimension] = sizes[size]
        if name.endswith("ids"):
            places = torch.randint(example.numel(), shape, generator=random)
            inputs[name] = example.flatten()[places.to(example.device)]
        elif name.endswith("mask"):
            inputs[name] = example.new_ones(shape)
        else:
            inputs[name] = torch.randn(shape, generator=random).to(example)
    return inputs
