"""Tiny random models of many families, made from their configs, and a padded batch for each."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
import transformers
from torch import Tensor
from transformers import PreTrainedModel

from headwise.core.heads import Head, Site
from headwise.core.layout import HeadMask
from headwise.models.attention.discover import Discovery, discover
from headwise.models.attention.removal import smaller_copy

WORDS, PAD = 50, 0
STACK = {
    "vocab_size": WORDS,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "max_position_embeddings": 64,
    "pad_token_id": PAD,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
GROUPED = {**STACK, "num_key_value_heads": 2, "head_dim": 8}
TWO_STACKS = {
    "vocab_size": WORDS,
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 64,
    "decoder_ffn_dim": 64,
    "max_position_embeddings": 64,
    "pad_token_id": PAD,
    "eos_token_id": 1,
    "bos_token_id": 2,
    "decoder_start_token_id": 1,
    "forced_eos_token_id": None,
}
T5 = {
    "vocab_size": WORDS,
    "d_model": 32,
    "d_kv": 8,
    "d_ff": 64,
    "num_layers": 2,
    "num_heads": 4,
    "pad_token_id": PAD,
    "eos_token_id": 1,
    "decoder_start_token_id": PAD,
}
GPT = {
    "vocab_size": WORDS,
    "n_embd": 32,
    "n_layer": 2,
    "n_head": 4,
    "n_positions": 64,
    "pad_token_id": PAD,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
MODERN = {**STACK, "local_attention": 4, "global_attn_every_n_layers": 2}
MODERN |= {"cls_token_id": 1, "sep_token_id": 2}
DISTILLED = {"vocab_size": WORDS, "dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 64}
EXPERTS = {"num_local_experts": 2, "num_experts_per_tok": 1, "rope_parameters": None}
ROTATED_APART = {"q_lora_rank": 8, "kv_lora_rank": 8, "qk_rope_head_dim": 4, "qk_nope_head_dim": 4}
FEW_EXPERTS = {"n_routed_experts": 2, "num_experts_per_tok": 1, "n_group": 1, "topk_group": 1}
RELATIVE = {"relative_attention": True, "pos_att_type": ["p2c", "c2p"], "share_att_key": True}
NEO = {"vocab_size": WORDS, "hidden_size": 32, "num_layers": 2, "num_heads": 4, "window_size": 4}
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "marian": ("MarianMTModel", TWO_STACKS),
    "m2m100": ("M2M100ForConditionalGeneration", TWO_STACKS),
    "bart": ("BartForConditionalGeneration", TWO_STACKS),
    "t5": ("T5ForConditionalGeneration", T5),
    "bert": ("BertModel", STACK),
    "albert": ("AlbertModel", {**STACK, "embedding_size": 16}),
    "distilbert": ("DistilBertModel", {**DISTILLED, "max_position_embeddings": 64}),
    "modernbert": ("ModernBertModel", MODERN),
    "gpt2": ("GPT2LMHeadModel", GPT),
    "llama": ("LlamaForCausalLM", GROUPED),
    "qwen3": ("Qwen3ForCausalLM", GROUPED),
    "gemma2": (
        "Gemma2ForCausalLM",
        {**GROUPED, "attn_logit_softcapping": 1.0, "sliding_window": 4},
    ),
    "gpt_oss": ("GptOssForCausalLM", {**GROUPED, **EXPERTS, "sliding_window": 4}),
    "olmo2": ("Olmo2ForCausalLM", {**STACK, "num_key_value_heads": 2}),
}
# More families, whose heads are cut out of other sorts of projections.
CUT: dict[str, tuple[str, dict[str, Any]]] = {
    "phi": ("PhiForCausalLM", STACK),
    "phi3": ("Phi3ForCausalLM", {**STACK, "num_key_value_heads": 2}),
    "gpt_neox": ("GPTNeoXForCausalLM", STACK),
    "umt5": ("UMT5ForConditionalGeneration", T5),
    "modernbert_decoder": ("ModernBertDecoderForCausalLM", MODERN),
    "deepseek_v3": (
        "DeepseekV3ForCausalLM",
        {**STACK, **ROTATED_APART, **FEW_EXPERTS, "v_head_dim": 8, "first_k_dense_replace": 2},
    ),
}
OWN: dict[str, tuple[str, dict[str, Any]]] = {  # families that compute attention in their own code
    "bloom": (
        "BloomForCausalLM",
        {"vocab_size": WORDS, "hidden_size": 32, "n_layer": 2, "n_head": 4},
    ),
    "mpt": (
        "MptForCausalLM",
        {"vocab_size": WORDS, "d_model": 32, "n_layers": 2, "n_heads": 4, "max_seq_len": 64},
    ),
    "falcon": ("FalconForCausalLM", STACK),
    "falcon_alibi": ("FalconForCausalLM", {**STACK, "alibi": True, "multi_query": False}),
    "openai": ("OpenAIGPTLMHeadModel", GPT),  # its mask is −10,000, not −∞
    "gptj": ("GPTJForCausalLM", {**GPT, "rotary_dim": 4}),
    "gpt_neo": (
        "GPTNeoForCausalLM",
        {**NEO, "attention_types": [[["global", "local"], 1]], "max_position_embeddings": 64},
    ),
    "mpnet": ("MPNetModel", STACK),
    "deberta_v2": ("DebertaV2Model", {**STACK, **RELATIVE, "position_buckets": 8}),
    "roformer": ("RoFormerModel", STACK),
    "fsmt": (
        "FSMTForConditionalGeneration",
        {**TWO_STACKS, "langs": ["a", "b"], "src_vocab_size": WORDS, "tgt_vocab_size": WORDS},
    ),
}
ENCODERS = ("bert", "albert", "distilbert", "modernbert")
SEQUENCE_TO_SEQUENCE = ("marian", "m2m100", "bart", "t5")
CAUSAL = ("gpt2", "llama", "qwen3", "gemma2", "gpt_oss", "olmo2")


def tiny(family: str, seed: int = 0, **changes: Any) -> PreTrainedModel:
    """A family's model with weights so large that attention is far from uniform, and no bias that is zero."""
    name, config = {**FAMILIES, **CUT, **OWN}[family]
    return build(name, seed, **{**config, **changes})


def ready(
    family: str, left: bool = False, **changes: Any
) -> tuple[Any, Discovery, dict[str, Tensor]]:
    """A family's model, its heads, and a padded batch."""
    model = tiny(family, **changes)
    return model, discover(model), batch(model, left)


def whole_layer(discovery: Discovery, *sites: Site) -> list[Head]:
    return [Head(*site, head) for site in sites for head in range(discovery.heads.count(site))]


def without(discovery: Discovery, gone: Iterable[Head]) -> HeadMask:
    return HeadMask.full(discovery.heads).without(gone)


def cut(model: Any, discovery: Discovery, gone: Iterable[Head]) -> Any:
    return smaller_copy(model, discovery, without(discovery, gone))


def build(name: str, seed: int = 0, **config: Any) -> PreTrainedModel:
    model_class = getattr(transformers, name)
    torch.manual_seed(seed)
    model = model_class(model_class.config_class(**config)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:  # fixed sinusoidal positions stay
                parameter.add_(torch.randn_like(parameter), alpha=0.2)
    return model


def batch(model: PreTrainedModel, left: bool = False) -> dict[str, Tensor]:
    """Three sentences of 9, 6 and 3 tokens, padded on the right (or left); encoder-decoders get 7 target tokens."""
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(4, WORDS, (3, 9), generator=generator)
    mask = (torch.arange(9) < torch.tensor([[9], [6], [3]])).long()
    if left:
        mask = mask.flip(1)
    inputs = {"input_ids": ids * mask + PAD * (1 - mask), "attention_mask": mask}
    if model.config.is_encoder_decoder:
        inputs["decoder_input_ids"] = torch.randint(4, WORDS, (3, 7), generator=generator)
    return inputs


def real(model: PreTrainedModel, inputs: dict[str, Tensor], states: Tensor) -> Tensor:
    """The outputs B T V at tokens, without those at padding."""
    if model.config.is_encoder_decoder:
        return states.flatten(0, 1)
    return states[inputs["attention_mask"].bool()]


def output(model: PreTrainedModel, inputs: dict[str, Tensor]) -> Tensor:
    """The logits, or the last hidden states of a model without a head: B T V."""
    with torch.no_grad():
        out: Tensor = model(**inputs)[0]
    return out


def at_tokens(model: PreTrainedModel, inputs: dict[str, Tensor]) -> Tensor:
    return real(model, inputs, output(model, inputs))


def eager(model: PreTrainedModel, inputs: dict[str, Tensor], **options: Any) -> Any:
    """What transformers' own eager attention makes of the inputs."""
    before = model.config._attn_implementation
    model.set_attn_implementation("eager")
    with torch.no_grad():
        out = model(**inputs, **options)
    model.set_attn_implementation(before)
    return out
