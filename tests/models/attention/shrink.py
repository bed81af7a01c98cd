"""A tiny model of any class in transformers' auto mappings, from its own configuration with small numbers."""

from __future__ import annotations

import re
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from transformers import CONFIG_MAPPING, PreTrainedConfig, PreTrainedModel
from transformers.models.auto import modeling_auto

WORDS = 50
MAPPINGS = {
    "AutoModel": modeling_auto.MODEL_MAPPING_NAMES,
    "AutoModelForCausalLM": modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    "AutoModelForMaskedLM": modeling_auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES,
    "AutoModelForSeq2SeqLM": modeling_auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES,
    "AutoModelForSequenceClassification": modeling_auto.MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES,
}
# What an integer of a configuration becomes, by its name; the first pattern that fits. 4 heads of size 8, width 32, 50
# words; -1: key/value heads.
PATTERNS = r"""
1     (pad|bos|eos|cls|sep|unk|mask|start|end|image|video|audio|\w+)_token_(id|index)$|^(image|video)_token
50    vocab_size_per_layer|vocab_size$|^n_vocab$|^num_embeddings$|^text_vocab_size|^entity_vocab_size
2     type_vocab_size|^n_langs$|^num_languages$
2     (index_n_heads|num_index_heads)$
8     index_head_dim$
4     (index_topk|topk_blocks|index_block_size|indexer_\w*topk)$
2     ^(linear|mamba|ssm|conv)_num_(key|value)_heads$
4     ^mamba_n_heads$|^mamba_num_heads$|^n_mamba_heads$
16    ^mamba_d_head$|^mamba_head_dim$
1     ^mamba_n_groups$|^n_groups$
2     mamba_expand$|^expand$
-1    (num_key_value_heads|num_kv_heads|n_head_kv|num_global_key_value_heads|num_key_value_attention_heads)$
4     (num_attention_heads|num_heads|n_heads?|attention_heads|num_attn_heads|num_sliding_attention_heads)$
4     (qk_rope_head_dim|qk_nope_head_dim|rotary_dim)$
8     (head_dim|d_kv|d_head|head_size|dim_head|kv_channels|query_pre_attn_scalar)$
8     lora_(rank|dim)$|_rank$
2     (num_experts_per_tok|moe_topk|moe_k|top_k|num_experts_per_token|num_selected_experts|topk_method)$
1     (n_group|topk_group|num_expert_group|n_expert_groups|moe_num_groups)$
1     (n_shared_experts|num_shared_experts|moe_num_shared_experts)$
4     (num_experts|n_routed_experts|num_local_experts|moe_num_experts|num_routed_experts|n_experts)$
1     first_k_dense_replace$|num_dense_layers$
0     num_kv_shared_layers$|num_nextn_predict_layers$|num_mtp_layers$
4     num_conv_pos_embedding_groups$
2     (num_hidden_layers|num_layers|n_layers?|encoder_layers|decoder_layers|depth|num_encoder_layers)$
2     (num_decoder_layers|num_encoder_blocks)$
1     num_hidden_groups$|sparse_step$
64    (intermediate_size|ffn_dim|d_ff|n_inner|hidden_dim|d_inner|ffn_hidden_size|dim_feedforward|mlp_dim)$
64    (intermediate_dim|inner_size|block_ff_dim|ffn_size)$
32    (hidden_size|d_model|n_embd|embed_dim|^dim|embedding_size|emb_dim|embedding_dim|hidden_size_per_layer_input)$
32    (projection_dim|d_embed|model_dim|residual_dim|lru_width|width|decoder_output_dim|proj_size|head_hidden_size)$
32    (bottleneck_size|true_hidden_size|intra_bottleneck_size|ple_dim|rnn_hidden_size|channels_size)$
64    (max_position_embeddings|n_positions|max_source_positions|max_target_positions|max_seq_len|max_seq_length)$
64    (max_sequence_length|max_2d_position_embeddings|num_position_embeddings|seq_length|n_ctx)$
4     (sliding_window|attention_window_size|local_attention|attention_chunk_size|window_size|sliding_window_size)$
4     (sliding_window_pattern)$
8     (mamba_chunk_size|chunk_size|mamba_chunk)$
8     (mamba_d_state|state_size|ssm_state_size)$
4     mamba_dt_rank|time_step_rank$
28    image_size$|img_size$|input_size$
14    patch_size$
8     relative_attention_num_buckets$|num_buckets$
16    relative_attention_max_distance$
"""
SIZES = [line.split() for line in PATTERNS.strip().splitlines()]
SLIDING, FULL = ["sliding_attention"], ["full_attention"]
EXPERTS = {"n_routed_experts": 4, "n_shared_experts": 1, "num_experts_per_tok": 2}
CONVOLVED = {"num_hidden_layers": 3, "layer_types": ["conv", *FULL, "conv"]}
SIZE_8 = {"head_dim": 8}
SPECIAL: dict[str, dict[str, Any]] = {  # numbers of a family that must fit one another
    "jamba": {
        **{"attn_layer_period": 2, "attn_layer_offset": 1},
        **{"expert_layer_period": 2, "expert_layer_offset": 1},
    },
    "cohere2": {"num_hidden_layers": 4, "layer_types": [*SLIDING * 3, *FULL]},
    "gemma3_text": {"num_hidden_layers": 6, "layer_types": [*SLIDING * 5, *FULL]},
    "qwen3_moe": {"norm_topk_prob": True},
    "dbrx": {"ffn_config": {"ffn_hidden_size": 64, "moe_num_experts": 2, "moe_top_k": 1}},
    "deberta-v2": {
        "relative_attention": True,
        "pos_att_type": ["p2c", "c2p"],
        "share_att_key": True,
        "position_buckets": 8,
        "max_relative_positions": -1,
    },
    "dots1": EXPERTS,
    "deepseek_v2": EXPERTS,
    "esm": {"vocab_size": WORDS, "mask_token_id": 3, "pad_token_id": 0},
    "ministral": SIZE_8,
    "hunyuan_v1_dense": SIZE_8,
    "hunyuan_v1_moe": SIZE_8,
    "hunyuan_vl_text": SIZE_8,
    "falcon_h1": {"mamba_d_ssm": 64, "mamba_n_heads": 4, "mamba_d_head": 16},
    "gpt_neo": {"attention_types": [[["global", "local"], 1]]},
    "gemma3n_text": {
        "intermediate_size": 64,
        "layer_types": [*SLIDING, *FULL] * 2,
        "num_hidden_layers": 4,
        "activation_sparsity_pattern": None,
        "num_kv_shared_layers": 2,  # as in every checkpoint
    },
    "gemma4_text": {"global_head_dim": 16},
    "glm5_next_text": {"index_topk": 16},
    "mpt": {"max_seq_len": 128},
    "mpnet": {"relative_attention_num_buckets": 32},
    "mamba2": {"num_heads": 8, "head_dim": 8},
    "nemotron": {"num_key_value_heads": 2},
    "neomme": {"head_dim": 16},
    "reformer": {"axial_pos_embds_dim": [16, 16], "axial_pos_shape": [8, 8], "is_decoder": True},
    "zamba": {
        "num_hidden_layers": 6,
        "attn_layer_period": 3,
        "attn_layer_offset": 1,
        "layers_block_type": ["mamba", "mamba", "hybrid"] * 2,
    },
    "lfm2": CONVOLVED,
    "lfm2_moe": CONVOLVED,
    "perceiver": {
        "d_latents": 32,
        "num_latents": 8,
        "num_self_attends_per_block": 2,
        "num_self_attention_heads": 4,
        "num_cross_attention_heads": 4,
    },
    "blt": {"encoder_hash_byte_group_vocab": 20},
}


def classes() -> dict[str, str]:
    """Every class of the mappings, by name, with its model type."""
    found: dict[str, str] = {}
    for mapping in MAPPINGS.values():
        for family, names in mapping.items():
            for name in (names,) if isinstance(names, str) else names:
                found.setdefault(name, family)
    return found


def small(config: PreTrainedConfig) -> dict[str, Any]:
    """The arguments that make a configuration of the same class small."""
    changes: dict[str, Any] = {}
    renamed = getattr(config, "attribute_map", {})
    for name, value in vars(config).items():
        if isinstance(value, PreTrainedConfig):
            changes[name] = {"model_type": value.model_type, **small(value)}
        elif name in renamed or name.startswith("_") or isinstance(value, bool):
            continue
        elif isinstance(value, int):
            size = next((int(size) for size, pattern in SIZES if re.search(pattern, name)), None)
            if size is not None and value > 0:
                changes[name] = grouped(config, value) if size < 0 else min(size, value)
            elif size is not None:
                changes[name] = value
    if "qk_rope_head_dim" in changes and "head_dim" in changes:
        changes["head_dim"] = changes["qk_rope_head_dim"]
    for name in ("layer_types", "layers_block_type", "mlp_layer_types"):
        types = getattr(config, name, None)
        if isinstance(types, list | tuple) and types and name in vars(config):
            changes[name] = types_of(types)
    both = "layer_types", "layers_block_type"
    lengths = {len(changes[name]) for name in both if name in changes}
    for count in ("num_hidden_layers", "num_layers", "n_layer"):
        if lengths and count in changes:
            changes[count] = max(lengths)
    if "mlp_layer_types" in changes and lengths:
        few = changes["mlp_layer_types"]
        changes["mlp_layer_types"] = (few * max(lengths))[: max(lengths)]
    if any(name.startswith("vocab") or name == "n_vocab" for name in changes):
        changes |= {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    return changes | SPECIAL.get(config.model_type, {})


def grouped(config: PreTrainedConfig, value: int) -> int:
    heads = getattr(config, "num_attention_heads", None)
    return 4 if value == heads else 1 if value == 1 else 2


def types_of(types: Any) -> list[str]:
    """Each sort of layer once, and two layers at least."""
    few = list(dict.fromkeys(types))
    return few if len(few) > 1 else few * 2


def make(name: str, family: str, seed: int = 0) -> PreTrainedModel:
    """A tiny random model of a class. Raises ValueError where it would be large."""
    model_class = getattr(transformers, name)
    config_class = model_class.config_class or CONFIG_MAPPING[family]
    config = config_class(**small(config_class()))
    with torch.device("meta"):
        model = model_class(config)
    count = sum(parameter.numel() for parameter in model.parameters())
    if count > 1e7:
        largest = max(model.named_parameters(), key=lambda item: item[1].numel())
        raise ValueError(f"{count:,} parameters, of them {largest[0]} {tuple(largest[1].shape)}")
    torch.manual_seed(seed)
    model = model_class(config).eval()
    shake(model)
    return model


def shake(model: nn.Module) -> None:
    """Weights so large that attention is far from uniform, and no bias that is zero."""
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad and parameter.is_floating_point():
                parameter.add_(torch.randn_like(parameter), alpha=0.2)
        # The embedding of padding is never trained, and some classes load it as 0.
        for module in model.modules():
            if isinstance(module, nn.Embedding) and module.padding_idx is not None:
                module.weight[module.padding_idx] = 0


def padded(model: PreTrainedModel, length: int = 24) -> dict[str, Tensor]:
    """Four sentences: whole, and padded on the right, on the left, and on the right again."""
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(4, WORDS, (4, length), generator=generator)
    place = torch.arange(length)
    mask = torch.stack([place >= 0, place < length - 7, place >= 9, place < 5]).long()
    inputs = {"input_ids": ids * mask, "attention_mask": mask}
    if model.config.is_encoder_decoder:
        inputs["decoder_input_ids"] = torch.randint(4, WORDS, (4, 11), generator=generator)
    return inputs
