"""Folders for MLX (mlx-lm), whose `openelm` has a number of heads for every layer: plain Llama and Qwen3 layers."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from headwise.engines.engine import engine
from headwise.heads import Site
from headwise.model import Model

FAMILIES = ("llama", "mistral", "qwen3")
TYPES = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}


def refusal(model: Model) -> str | None:
    """Why MLX cannot run this model; None where it can."""
    config: Any = model.hf.config
    if config.model_type not in FAMILIES or not hasattr(model.hf, "lm_head"):
        return (
            f"MLX reads uneven heads of language models of {', '.join(FAMILIES)}, "
            f"not of a {config.model_type}"
        )
    for site in model.heads.sites:
        if not model.heads.count(site):
            return f"MLX needs a head in every layer, but layer {site.layer} has none"
    if model.hf.get_output_embeddings().weight is not model.hf.get_input_embeddings().weight:
        return "MLX reads it only with tied embeddings"
    if any(name.endswith("proj.bias") for name, _ in model.hf.named_parameters()):
        return "MLX reads no biases in it"
    if config.rope_parameters.get("rope_type", "default") != "default":
        return "MLX reads it only with plain rotary positions"
    if getattr(config, "sliding_window", None):
        return "MLX reads no attention window in it"
    return None


def mlx_tensors(model: Model) -> Iterator[tuple[str, Tensor]]:
    """Every weight, by MLX's name."""
    decoder: Any = model.hf.get_decoder()
    yield "transformer.token_embeddings.weight", decoder.embed_tokens.weight
    yield "transformer.norm.weight", decoder.norm.weight
    for number, layer in enumerate(decoder.layers):
        block = f"transformer.layers.{number}"
        attention = layer.self_attn
        inputs = [attention.q_proj.weight, attention.k_proj.weight, attention.v_proj.weight]
        yield f"{block}.attn.qkv_proj.weight", torch.cat(inputs)
        yield f"{block}.attn.out_proj.weight", attention.o_proj.weight
        if normalises_queries(model):
            yield f"{block}.attn.q_norm.weight", attention.q_norm.weight
            yield f"{block}.attn.k_norm.weight", attention.k_norm.weight
        yield f"{block}.attn_norm.weight", layer.input_layernorm.weight
        yield f"{block}.ffn_norm.weight", layer.post_attention_layernorm.weight
        gate_and_up = torch.cat([layer.mlp.gate_proj.weight, layer.mlp.up_proj.weight])
        yield f"{block}.ffn.proj_1.weight", gate_and_up
        yield f"{block}.ffn.proj_2.weight", layer.mlp.down_proj.weight


def normalises_queries(model: Model) -> bool:
    """Whether queries and keys are normalised, as in Qwen3."""
    return hasattr(model.discovery.modules[Site("decoder-self", 0)], "q_norm")


@engine(
    "mlx",
    title="MLX",
    types=("f16", "f32", "bf16"),
    refusal="refusal",
    models="Llama, Mistral, Qwen3 with tied embeddings and plain rotary positions, in mlx-lm",
    empty="no",
)
def write(model: Model, folder: Path, dtype: str) -> list[str]:
    """Write weights, configuration and tokenizer to a folder that `mlx_lm.load` reads. Returns notes for the user."""
    config: Any = model.hf.config
    layers = len(model.heads.query["decoder-self"])
    facts = {
        "model_type": "openelm",
        "head_dim": model.discovery.head_size,
        "num_transformer_layers": layers,
        "model_dim": config.hidden_size,
        "vocab_size": config.vocab_size,
        "ffn_dim_divisor": 1,
        "num_query_heads": list(model.heads.query["decoder-self"]),
        "num_kv_heads": list(model.heads.key_value["decoder-self"]),
        "ffn_multipliers": [config.intermediate_size / config.hidden_size] * layers,
        "normalize_qk_projections": normalises_queries(model),
        "rms_norm_eps": config.rms_norm_eps,
        "rope_freq_constant": config.rope_parameters["rope_theta"],
        "eos_token_id": config.eos_token_id,
    }
    weights = {}
    for name, tensor in mlx_tensors(model):
        weights[name] = tensor.detach().to(TYPES[dtype]).contiguous().clone()
    save_file(weights, folder / "model.safetensors", {"format": "mlx"})
    (folder / "config.json").write_text(json.dumps(facts, indent=1) + "\n")
    # safetensors writes files that only their owner may read.
    shutil.copymode(folder / "config.json", folder / "model.safetensors")
    if model.tokenizer is not None:
        model.tokenizer.save_pretrained(folder)
    return []
