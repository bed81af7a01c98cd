"""GGUF files for llama.cpp, whatever number of heads each layer has.

Layers keep their own numbers where an architecture of llama.cpp reads one for each (`gguf_uneven.py`); elsewhere heads
of zeros fill them up (`gguf_padded.py`).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from headwise.attention.matrices import ZEROS
from headwise.engines.gguf_padded import (
    FAMILIES,
    file_heads,
    heads_in_file,
    padded_refusal,
    padded_tensors,
    rotation,
)
from headwise.engines.gguf_uneven import ARCHITECTURES, counts, uneven_refusal, uneven_tensors
from headwise.engines.gguf_vocabulary import add_vocabulary, vocabulary
from headwise.errors import HeadwiseError
from headwise.model import Model

FILE = "model.gguf"


def refusal(model: Model) -> str | None:
    """Why llama.cpp cannot run this model; None where it can."""
    config: Any = model.hf.config
    family = config.model_type
    if family not in (*ARCHITECTURES, *FAMILIES) or not predicts_words(model):
        return f"files for llama.cpp are written of other families than a {family}: see headwise families"
    if not is_uneven(model):
        reason = padded_refusal(model) if family in FAMILIES else uneven_refusal(model)
        if reason:
            return reason
    if model.tokenizer is None:
        return "it has no tokenizer, which the file has inside"
    try:
        vocabulary(model)
    except HeadwiseError as error:
        return str(error)
    return None


def predicts_words(model: Model) -> bool:
    return model.hf.get_output_embeddings() is not None and model.heads.kinds == ("decoder-self",)


def is_uneven(model: Model) -> bool:
    """Whether the file has each layer's own number of heads."""
    family: str = model.hf.config.model_type
    return family in ARCHITECTURES and uneven_refusal(model) is None


def families_table() -> list[str]:
    """The lines of the table of families in the documentation."""
    ways: dict[str, list[str]] = {
        "their own numbers | smaller | smaller": [
            "llama",
            "mistral",
            "qwen2",
            "qwen3 (tied embeddings)",
        ],
        "up to the fullest layer | smaller | smaller": [],
        "queries as wide as the model | smaller by key/value heads | smaller": [],
        "every head at its first place | the same | the same": [],
    }
    _, fullest, wide, placed = ways.values()
    for name, family in FAMILIES.items():
        way = placed if family.by_place else wide if family.whole else fullest
        way.append(name)
    lines = ["| families | heads in the file | weights | cache |", "|---|---|---|---|"]
    lines += [f"| {', '.join(names)} | {way} |" for way, names in ways.items()]
    return lines


def gguf_tensors(model: Model) -> Iterator[tuple[str, Tensor]]:
    """Every tensor of the file, by llama.cpp's name."""
    return uneven_tensors(model) if is_uneven(model) else padded_tensors(model)


def write(model: Model, folder: Path, dtype: str) -> list[str]:
    """Write `model.gguf` to a folder. Returns notes for the user.

    dtype: f32, f16, bf16 or q8_0. Norms and biases stay float32; in q8_0 tensors whose rows do not divide into blocks
    of 32 are float16.
    """
    import gguf

    config: Any = model.hf.config
    family = config.model_type
    named = ARCHITECTURES[family] if is_uneven(model) else FAMILIES[family].architecture
    writer = gguf.GGUFWriter(folder / FILE, named)
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
    if not is_uneven(model) and (note := zeros_note(model, dtype)):
        notes.append(note)
    if window := sliding_window(config):
        notes.append(
            f"context of {window} tokens: the model's attention window, which the file cannot say"
        )
    return notes


def type_of(name: str, tensor: Tensor, dtype: str) -> str:
    if tensor.dim() < 2 or name.startswith(("rope", "position")) or name.endswith(".bias"):
        return "f32"
    if "gate_inp" in name:  # which chooses experts
        return "f32"
    return "f16" if dtype == "q8_0" and tensor.shape[-1] % 32 else dtype


def sliding_window(config: Any) -> int | None:
    """Keys that a query sees, where that is fewer than the longest text and the file cannot say it."""
    window = getattr(config, "sliding_window", None)
    family = FAMILIES.get(config.model_type)
    if not window or (family is not None and family.window_period):
        return None
    if not getattr(config, "use_sliding_window", True):
        return None
    return window if window < config.max_position_embeddings else None


def zeros_note(model: Model, dtype: str) -> str:
    """What heads of zeros cost; nothing where there are none."""
    import gguf

    layers = file_heads(model).values()
    query = sum(heads.query.count(ZEROS) for heads in layers)
    key_value = sum(heads.key_value.count(ZEROS) for heads in layers)
    if not query + key_value:
        return ""
    block, size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[dtype.upper()]]
    width = model.hf.get_input_embeddings().weight.shape[1]
    all_query, all_key_value = heads_in_file(model)
    numbers = 2 * (query + key_value) * model.discovery.head_size * width
    return (
        f"{query} query heads and {key_value} key/value heads of zeros were added, {numbers * size // block:,} bytes: "
        f"llama.cpp reads one number for all layers, {all_query} on {all_key_value}, and its key/value cache is that of "
        "them all"
    )


def add_facts(writer: Any, model: Model, dtype: str) -> None:
    """The shape of the model, as llama.cpp's keys."""
    import gguf

    config: Any = model.hf.config
    size = model.discovery.head_size
    layers = len(model.heads.sites)
    forward = feed_forward(config)
    writer.add_name(Path(model.name).name)
    writer.add_block_count(layers)
    writer.add_context_length(sliding_window(config) or longest_text(config))
    writer.add_embedding_length(config.hidden_size)
    if is_uneven(model):
        heads = counts(model)
        writer.add_feed_forward_length([forward] * layers)
        writer.add_head_count([count.query for count in heads])
        writer.add_head_count_kv([count.key_value for count in heads])
    else:
        query, key_value = heads_in_file(model)
        writer.add_feed_forward_length(forward)
        writer.add_head_count(query)
        writer.add_head_count_kv(key_value)
    writer.add_key_length(size)
    writer.add_value_length(size)
    add_norm(writer, config)
    add_rotation(writer, model)
    writer.add_vocab_size(config.vocab_size)
    writer.add_file_type(
        gguf.LlamaFileType[{"f32": "ALL_F32"}.get(dtype, f"MOSTLY_{dtype.upper()}")]
    )
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    if not is_uneven(model):
        family = FAMILIES[config.model_type]
        if family.window_period:
            writer.add_sliding_window(config.sliding_window)
        if family.facts is not None:
            family.facts(writer, config)


def add_norm(writer: Any, config: Any) -> None:
    """The number that keeps norms from dividing by 0."""
    if hasattr(config, "rms_norm_eps"):
        writer.add_layer_norm_rms_eps(config.rms_norm_eps)
        return
    for name in ("layer_norm_eps", "layer_norm_epsilon", "norm_epsilon", "norm_eps"):
        if hasattr(config, name):
            writer.add_layer_norm_eps(getattr(config, name))
            return


def add_rotation(writer: Any, model: Model) -> None:
    """Rotary positions, where the model has them."""
    config: Any = model.hf.config
    settings = rotation(config)
    if not settings:
        return
    share = settings.get("partial_rotary_factor", 1.0)
    writer.add_rope_dimension_count(int(model.discovery.head_size * share))
    writer.add_rope_freq_base(settings["rope_theta"])
    if is_uneven(model):
        rotary: Any = model.hf.get_decoder().rotary_emb
        if rotary.attention_scaling != 1:
            writer.add_rope_scaling_attn_factors(rotary.attention_scaling)
    elif settings.get("rope_type", "default") != "default":
        import gguf

        writer.add_rope_scaling_type(gguf.RopeScalingType(settings["rope_type"]))
        writer.add_rope_scaling_factor(settings["factor"])
        if settings["rope_type"] == "yarn":
            writer.add_rope_scaling_orig_ctx_len(settings["original_max_position_embeddings"])


def longest_text(config: Any) -> int:
    """The length of text that a model was made for, in tokens."""
    longest = getattr(config, "max_position_embeddings", None) or getattr(
        config, "seq_length", None
    )
    return int(longest or getattr(config, "max_seq_len", None) or 2048)


def feed_forward(config: Any) -> int:
    """The width of the layers between those of attention."""
    for name in ("intermediate_size", "n_inner", "ffn_hidden_size"):
        if getattr(config, name, None):
            return int(getattr(config, name))
    return 4 * int(config.hidden_size)
