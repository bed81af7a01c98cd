"""GGUF files for llama.cpp, whatever number of heads each layer has.

Layers keep their own numbers where an architecture of llama.cpp reads one for each; elsewhere heads of zeros fill them
up.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from headwise.core.errors import HeadwiseError
from headwise.models.attention.matrices import ZEROS
from headwise.models.engines.gguf_families import (
    FAMILIES,
    UNEVEN,
    configured_otherwise,
    family_of,
    rotation,
    uneven_refusal,
)
from headwise.models.engines.gguf_tensors import (
    gguf_name,
    gguf_tensors,
    parameter_names,
    places_in_file,
)
from headwise.models.engines.gguf_vocabulary import add_vocabulary, vocabulary
from headwise.models.model import Model

FILE = "model.gguf"
# Keys of a GGUF file, by GGUFWriter's method, and where configurations have them: the first that is there.
FILE_KEYS = {
    "attention_scale": ("attention_multiplier",),
    "attn_logit_softcapping": ("attn_logit_softcapping",),
    "clamp_kqv": ("clip_qkv",),
    "context_length": ("max_position_embeddings", "seq_length", "max_seq_len"),
    "embedding_length": ("hidden_size",),
    "embedding_scale": ("embedding_multiplier",),
    "expert_count": ("num_local_experts", "num_experts"),
    "expert_feed_forward_length": ("moe_intermediate_size",),
    "expert_shared_feed_forward_length": ("shared_expert_intermediate_size",),
    "expert_used_count": ("num_experts_per_tok",),
    "feed_forward_length": ("intermediate_size", "n_inner", "ffn_hidden_size"),
    "final_logit_softcapping": ("final_logit_softcapping",),
    "layer_norm_eps": ("layer_norm_eps", "layer_norm_epsilon", "norm_epsilon", "norm_eps"),
    "layer_norm_rms_eps": ("rms_norm_eps",),
    "logit_scale": ("logit_scale", "logits_scaling"),
    "max_alibi_bias": ("alibi_bias_max",),
    "parallel_residual": ("use_parallel_residual",),
    "residual_scale": ("residual_multiplier",),
    "vocab_size": ("vocab_size",),
}


def why_not_gguf(model: Model) -> str | None:
    """Why llama.cpp cannot run this model; None where it can."""
    name = model.hf.config.model_type
    predicts = model.hf.get_output_embeddings() is not None
    if name not in (*UNEVEN, *FAMILIES) or not predicts or model.heads.kinds != ("decoder-self",):
        return f"files for llama.cpp are written of other families than a {name}: see docs/howto/export.md"
    if name in UNEVEN and name not in FAMILIES and (reason := uneven_refusal(model)):
        return reason
    if not family_of(model).uneven and (reason := configured_otherwise(model)):
        return reason
    if model.tokenizer is None:
        return "it has no tokenizer, which the file has inside"
    try:
        places_in_file(model)
        vocabulary(model)
        return unread(model)
    except HeadwiseError as error:
        # It becomes the end of a sentence in `export`.
        return str(error).rstrip(".")


def unread(model: Model) -> str | None:
    """A bias of a model that llama.cpp does not read. Raises HeadwiseError for a parameter without a name there."""
    for name in parameter_names(model.hf):
        own, _, kind = gguf_name(name, model).rpartition(".")
        part = own.rpartition(".")[2]
        if kind == "weight" or part.endswith("norm") or part in family_of(model).biases:
            continue
        return f"llama.cpp reads no bias {own} in it"
    return None


TYPES = {"float32": "f32", "float16": "f16", "bfloat16": "bf16"}  # as llama.cpp calls them


def write_gguf(model: Model, folder: Path, dtype: str) -> list[str]:
    """Write `model.gguf` to a folder. Returns notes for the user.

    dtype: float32, float16, bfloat16 or q8_0. Norms and biases stay float32; in q8_0 tensors whose rows do not divide
    into blocks of 32 are float16.
    """
    import gguf

    dtype = TYPES.get(dtype, dtype)
    writer = gguf.GGUFWriter(folder / FILE, family_of(model).architecture)
    add_facts(writer, model, dtype)
    add_vocabulary(writer, model)

    kept_wide = []
    # The table of tensors comes first in the file: made twice, only one tensor is in memory.
    for name, tensor in gguf_tensors(model):
        kind = type_of(name, tensor, dtype)
        if dtype == "q8_0" and kind == "f16":
            kept_wide.append(name)
        stored_as = gguf.GGMLQuantizationType[kind.upper()]
        block, size = gguf.GGML_QUANT_SIZES[stored_as]
        shape: tuple[int, ...] = tuple(tensor.shape)
        # GGUFWriter takes the shape of all other types in bytes, bfloat16 too.
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
    if note := zeros_note(model, dtype):
        notes.append(note)
    if window := sliding_window(model):
        notes.append(
            f"context of {window} tokens: the model's attention window, which the file cannot say"
        )
    return notes


def type_of(name: str, tensor: Tensor, dtype: str) -> str:
    # As llama.cpp's own converter keeps them, whatever type was asked for.
    if tensor.dim() < 2 or name.startswith(("rope", "position")) or name.endswith(".bias"):
        return "f32"
    if "gate_inp" in name:  # which chooses experts
        return "f32"
    return "f16" if dtype == "q8_0" and tensor.shape[-1] % 32 else dtype


def sliding_window(model: Model) -> int | None:
    """Keys that a query sees, where that is fewer than the longest text and the file cannot say it."""
    config: Any = model.hf.config
    window = getattr(config, "sliding_window", None)
    if not window or family_of(model).window_period:
        return None
    if not getattr(config, "use_sliding_window", True):
        return None
    return window if window < config.max_position_embeddings else None


def zeros_note(model: Model, dtype: str) -> str:
    """What heads of zeros cost; nothing where there are none."""
    import gguf

    if family_of(model).uneven:
        return ""
    layers = places_in_file(model).values()
    query = sum(heads.query.count(ZEROS) for heads in layers)
    key_value = sum(heads.key_value.count(ZEROS) for heads in layers)
    if not query + key_value:
        return ""
    block, size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[dtype.upper()]]
    width = model.hf.get_input_embeddings().weight.shape[1]
    first = next(iter(layers))
    numbers = 2 * (query + key_value) * model.discovery.head_size * width
    return (
        f"{query} query heads and {key_value} key/value heads of zeros were added, {numbers * size // block:,} bytes: "
        f"llama.cpp reads one number for all layers, {len(first.query)} on {len(first.key_value)}, and its key/value "
        "cache is that of them all"
    )


def add_facts(writer: Any, model: Model, dtype: str) -> None:
    """The shape of the model, as llama.cpp's keys."""
    import gguf

    config: Any = model.hf.config
    family = family_of(model)
    layers = [*places_in_file(model).values()]
    # For configurations without: GPT-2's n_inner is None, and means four times the width.
    facts: dict[str, Any] = {"context_length": 2048, "feed_forward_length": 4 * config.hidden_size}
    for key, names in FILE_KEYS.items():
        for name in names:
            # MPT has some of these in a configuration inside its own.
            value = getattr(config, name, getattr(getattr(config, "attn_config", None), name, None))
            if value is not None:
                facts[key] = value
                break
    for key, given in family.facts.items():
        facts[key] = getattr(config, given) if isinstance(given, str) else given
    facts |= {
        "name": Path(model.name).name,
        "block_count": len(layers),
        "head_count": [len(heads.query) for heads in layers],
        "head_count_kv": [len(heads.key_value) for heads in layers],
        "key_length": model.discovery.head_size,
        "value_length": model.discovery.head_size,
        "file_type": gguf.LlamaFileType["ALL_F32" if dtype == "f32" else f"MOSTLY_{dtype.upper()}"],
        "quantization_version": gguf.GGML_QUANT_VERSION,
    }
    if family.uneven:
        facts["feed_forward_length"] = [facts["feed_forward_length"]] * len(layers)
    else:
        # Layers are filled up to equal counts, which these architectures read as one number.
        facts |= {key: facts[key][0] for key in ("head_count", "head_count_kv")}
    if family.window_period:
        facts["sliding_window"] = config.sliding_window
    if window := sliding_window(model):
        # Beyond the window llama.cpp would see more of the text than the model does.
        facts["context_length"] = window
    for key, value in (facts | rotation_facts(model)).items():
        getattr(writer, f"add_{key}")(value)


def rotation_facts(model: Model) -> dict[str, Any]:
    """Rotary positions, where the model has them."""
    import gguf

    config: Any = model.hf.config
    settings = rotation(config)
    if not settings:
        return {}
    share = settings.get("partial_rotary_factor", 1.0)
    facts = {
        "rope_dimension_count": int(model.discovery.head_size * share),
        "rope_freq_base": settings["rope_theta"],
    }
    kind = settings.get("rope_type", "default")
    if family_of(model).uneven:
        # Deci's frequencies are scaled by a tensor (rope_freqs), so that no kind is named here.
        rotary: Any = model.hf.get_decoder().rotary_emb
        if rotary.attention_scaling != 1:
            facts["rope_scaling_attn_factors"] = rotary.attention_scaling
    elif kind != "default":
        facts["rope_scaling_type"] = gguf.RopeScalingType(kind)
        facts["rope_scaling_factor"] = settings["factor"]
        if kind == "yarn":
            facts["rope_scaling_orig_ctx_len"] = settings["original_max_position_embeddings"]
    return facts
