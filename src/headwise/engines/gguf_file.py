"""GGUF files for llama.cpp: models whose layers have different numbers of heads, empty layers included.

Two of llama.cpp's architectures read the counts of heads as one number a layer. `deci` is a Llama with optional biases
whose layers may lack attention; `openelm` has Qwen3's norms of queries and keys, wants embeddings tied to the output
and a head in every layer. Rotary positions: `deci` rotates neighbouring pairs, so rows of queries and keys are
reordered from the half-split form of transformers.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from headwise.engines.engine import engine
from headwise.errors import HeadwiseError
from headwise.heads import Site
from headwise.model import Model

FILE = "model.gguf"
ARCHITECTURES = {"llama": "deci", "mistral": "deci", "qwen2": "deci", "qwen3": "openelm"}

# Rotary positions whose frequencies do not depend on the length of the text.
STATIC_ROTATIONS = ("default", "linear", "llama3", "yarn")

# How llama.cpp cuts text before byte-pair merges, by the pattern in tokenizer.json (None: GPT-2's own).
PRE_TOKENIZERS = {
    None: "gpt-2",
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+": "llama-bpe",  # noqa: E501
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+": "qwen2",  # noqa: E501
}


class LayerHeads(NamedTuple):
    """Heads of one layer in the file, and whether there is one of zeros because the layer has none."""

    query: int
    key_value: int
    zeros: bool = False


def refusal(model: Model) -> str | None:
    """Why llama.cpp cannot run this model; None where it can."""
    config: Any = model.hf.config
    family = config.model_type
    if family not in ARCHITECTURES or not hasattr(model.hf, "lm_head"):
        families = ", ".join(ARCHITECTURES)
        return (
            f"no architecture of llama.cpp reads uneven heads of a {family}: "
            f"known are language models of {families}"
        )
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
    if model.tokenizer is None:
        return "it has no tokenizer, which the file has inside"
    try:
        vocabulary(model)
    except HeadwiseError as error:
        return str(error)
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


def gguf_tensors(model: Model) -> Iterator[tuple[str, Tensor]]:
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


def vocabulary(model: Model) -> dict[str, Any]:
    """The tokenizer as llama.cpp's keys, from its tokenizer.json.

    Byte-level vocabularies are `gpt2` with a known pre-tokenizer, those with bytes as fallback (SentencePiece) are
    `llama`. Raises HeadwiseError for any other: llama.cpp would cut text into other tokens without a word.
    """
    backend = getattr(model.tokenizer, "backend_tokenizer", None)
    if backend is None:
        raise HeadwiseError("its tokenizer is not a fast one, with a tokenizer.json")
    content = json.loads(backend.to_str())
    core = content["model"]
    added = {entry["id"]: entry for entry in content["added_tokens"]}
    if core["type"] != "BPE":
        raise HeadwiseError(
            f"its tokenizer is of type {core['type']}: only byte pairs (BPE) are written"
        )
    merges = [pair if isinstance(pair, str) else " ".join(pair) for pair in core["merges"]]

    size = max(model.hf.config.vocab_size, max(core["vocab"].values()) + 1)
    names: list[str | None] = [None] * size
    for text, number in core["vocab"].items():
        names[number] = text
    for number, entry in added.items():
        names[number] = entry["content"]
    kinds = [kind_of_token(name, added.get(number)) for number, name in enumerate(names)]
    tokens = [f"[unused {number}]" if name is None else name for number, name in enumerate(names)]

    if core.get("byte_fallback"):
        rank = {pair.replace(" ", ""): place for place, pair in reversed(list(enumerate(merges)))}
        scores = [float(-rank.get(token, len(merges))) for token in tokens]
        return {
            "model": "llama",
            "pre": "default",
            "tokens": tokens,
            "kinds": kinds,
            "scores": scores,
        }
    return {
        "model": "gpt2",
        "pre": pre_tokenizer(content),
        "tokens": tokens,
        "kinds": kinds,
        "merges": merges,
    }


def kind_of_token(name: str | None, added: Mapping[str, Any] | None) -> int:
    """llama.cpp's type of a token: 1 normal, 3 control, 4 user-defined, 5 unused, 6 byte."""
    if name is None:
        return 5
    if added is not None:
        return 3 if added["special"] else 4
    return 6 if len(name) == 6 and name.startswith("<0x") and name.endswith(">") else 1


def pre_tokenizer(content: Mapping[str, Any]) -> str:
    """llama.cpp's name of a byte-level pre-tokenizer. Raises HeadwiseError for one that it does not have."""
    steps = content["pre_tokenizer"] or {}
    steps = steps.get("pretokenizers", [steps])
    if not any(step.get("type") == "ByteLevel" for step in steps):
        raise HeadwiseError(
            "its tokenizer works on letters, not on bytes: llama.cpp reads only byte-level byte pairs"
        )
    patterns = [step["pattern"].get("Regex") for step in steps if step.get("type") == "Split"]
    pattern = patterns[0] if patterns else None
    if pattern not in PRE_TOKENIZERS or len(patterns) > 1:
        raise HeadwiseError(
            "its tokenizer cuts text by a pattern that llama.cpp is not known to have"
        )
    return PRE_TOKENIZERS[pattern]


@engine(
    "gguf",
    title="llama.cpp",
    types=("f16", "f32", "bf16", "q8_0"),
    modules=("gguf",),
    extra="gguf",
    refusal="refusal",
    models="Llama, Mistral, Qwen2, Qwen3",
    empty="yes (Qwen3: no)",
)
def write(model: Model, folder: Path, dtype: str) -> list[str]:
    """Write `model.gguf` to a folder. Returns notes for the user.

    dtype: f32, f16, bf16 or q8_0. Norms and biases stay float32; in q8_0 tensors whose rows do not divide into blocks
    of 32 are float16.
    """
    import gguf

    config: Any = model.hf.config
    writer = gguf.GGUFWriter(folder / FILE, ARCHITECTURES[config.model_type])
    add_facts(writer, model, dtype)
    add_vocabulary(writer, model)

    kept_wide = []
    for name, tensor in gguf_tensors(model):
        kind = type_of(name, tensor, dtype)
        if dtype == "q8_0" and kind == "f16":
            kept_wide.append(name)
        stored_as = gguf.GGMLQuantizationType[kind.upper()]
        block, size = gguf.GGML_QUANT_SIZES[stored_as]
        shape: tuple[int, ...] = tuple(tensor.shape)
        if kind not in ("f32", "f16"):
            shape = (*tensor.shape[:-1], tensor.shape[-1] // block * size)
        stored = np.dtype({"f32": np.float32, "f16": np.float16}.get(kind, np.uint8))
        writer.add_tensor_info(name, shape, stored, tensor.numel() // block * size, stored_as)

    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    for name, tensor in gguf_tensors(model):
        numbers = tensor.detach().float().cpu().contiguous().numpy()
        stored_as = gguf.GGMLQuantizationType[type_of(name, tensor, dtype).upper()]
        writer.write_tensor_data(gguf.quants.quantize(numbers, stored_as))
    writer.close()

    notes = []
    if kept_wide:
        notes.append(
            f"{len(kept_wide)} tensors are float16: their rows do not divide into blocks of 32"
        )
    if window := sliding_window(config):
        notes.append(
            f"context of {window} tokens: the model's attention window, which the file cannot say"
        )
    return notes


def type_of(name: str, tensor: Tensor, dtype: str) -> str:
    if tensor.dim() < 2 or name.startswith("rope"):
        return "f32"
    return "f16" if dtype == "q8_0" and tensor.shape[-1] % 32 else dtype


def sliding_window(config: Any) -> int | None:
    """Keys that a query sees, where that is fewer than the longest text."""
    window = getattr(config, "sliding_window", None)
    return window if window and window < config.max_position_embeddings else None


def add_facts(writer: Any, model: Model, dtype: str) -> None:
    """The shape of the model, as llama.cpp's keys."""
    import gguf

    config: Any = model.hf.config
    size = model.discovery.head_size
    heads = counts(model)
    rotary: Any = model.hf.get_decoder().rotary_emb
    writer.add_name(Path(model.name).name)
    writer.add_block_count(len(heads))
    writer.add_context_length(sliding_window(config) or config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length([config.intermediate_size] * len(heads))
    writer.add_head_count([count.query for count in heads])
    writer.add_head_count_kv([count.key_value for count in heads])
    writer.add_key_length(size)
    writer.add_value_length(size)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_dimension_count(size)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    if rotary.attention_scaling != 1:
        writer.add_rope_scaling_attn_factors(rotary.attention_scaling)
    writer.add_vocab_size(config.vocab_size)
    writer.add_file_type(
        gguf.LlamaFileType[{"f32": "ALL_F32"}.get(dtype, f"MOSTLY_{dtype.upper()}")]
    )
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)


def add_vocabulary(writer: Any, model: Model) -> None:
    """The tokenizer, its special tokens and its chat template."""
    words = vocabulary(model)
    tokenizer = model.tokenizer
    add: dict[str, Callable[[Any], None]] = {
        "model": writer.add_tokenizer_model,
        "pre": writer.add_tokenizer_pre,
        "tokens": writer.add_token_list,
        "kinds": writer.add_token_types,
        "scores": writer.add_token_scores,
        "merges": writer.add_token_merges,
    }
    for name, value in words.items():
        add[name](value)
    for name in ("bos", "eos", "unk", "pad", "sep"):
        number = getattr(tokenizer, f"{name}_token_id", None)
        if number is not None:
            getattr(writer, f"add_{name}_token_id")(number)
    framed = tokenizer("a").input_ids  # which special tokens the tokenizer adds by itself
    writer.add_add_bos_token(framed[:1] == [tokenizer.bos_token_id])
    writer.add_add_eos_token(framed[-1:] == [tokenizer.eos_token_id])
    if words["model"] == "llama":
        first = tokenizer.tokenize("a")
        writer.add_add_space_prefix(bool(first) and first[0].startswith("▁"))
    if isinstance(getattr(tokenizer, "chat_template", None), str):
        writer.add_chat_template(tokenizer.chat_template)
