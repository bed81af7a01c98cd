"""Small random models with uneven heads and an empty layer, for every engine."""

from __future__ import annotations

import random
import warnings
from collections.abc import Sequence
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    BartConfig,
    BartForConditionalGeneration,
    LlamaConfig,
    LlamaForCausalLM,
    MBartConfig,
    MBartForConditionalGeneration,
    MistralConfig,
    MistralForCausalLM,
    MT5Config,
    MT5ForConditionalGeneration,
    PegasusConfig,
    PegasusForConditionalGeneration,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
    T5Config,
    T5ForConditionalGeneration,
    WhisperConfig,
    WhisperForConditionalGeneration,
)

from headwise.core.layout import HeadMask
from headwise.core.options import Architecture
from headwise.data.text import ParallelText, Text
from headwise.models.evaluation.last_states import Inputs
from headwise.models.model import Model
from headwise.models.training.tokenizer import learn_subwords
from headwise.models.training.translation_model import build_model
from headwise.pruning.repair import Repairs

LINES = [
    "A head that looks at the token before.",
    "Don't remove the heads that do the heavy lifting!",
    "12,345 sentences, and 7 more; the rest can be pruned.",
    "Attention is all you need – or half of it?",
]
FAMILIES = {
    "llama": (LlamaConfig, LlamaForCausalLM),
    "mistral": (MistralConfig, MistralForCausalLM),
    "qwen2": (Qwen2Config, Qwen2ForCausalLM),
    "qwen3": (Qwen3Config, Qwen3ForCausalLM),
}
# What small models of other families have besides the usual shape.
SHAPES: dict[str, dict[str, object]] = {
    "arcee": {},
    "bloom": {"intermediate_size": None, "max_position_embeddings": None},
    "cohere": {"logit_scale": 1.0},
    "cohere2": {"logit_scale": 1.0, "num_hidden_layers": 4, "sliding_window": 8},
    "falcon": {"intermediate_size": None, "num_key_value_heads": None},
    "gemma": {"head_dim": 16},
    "gemma2": {"head_dim": 16, "query_pre_attn_scalar": 24, "sliding_window": 8},
    "gemma3_text": {
        "head_dim": 16,
        "num_hidden_layers": 6,
        "query_pre_attn_scalar": 24,
        "sliding_window": 8,
    },
    "glm4": {"head_dim": 16},
    "gpt2": {"intermediate_size": None, "num_key_value_heads": None},
    "gpt_neox": {"num_key_value_heads": None},
    "gpt_oss": {
        "head_dim": 16,
        "num_experts_per_tok": 2,
        "num_local_experts": 4,
        "rope_parameters": {
            "rope_type": "yarn",
            "rope_theta": 1e4,
            "factor": 4.0,
            "original_max_position_embeddings": 64,
        },
        "sliding_window": 8,
    },
    "granite": {
        "attention_multiplier": 0.2,
        "embedding_multiplier": 2.0,
        "logits_scaling": 2.0,
        "residual_multiplier": 0.5,
    },
    "mixtral": {"num_experts_per_tok": 2, "num_local_experts": 4, "sliding_window": None},
    "mpt": {"intermediate_size": None, "max_position_embeddings": None, "max_seq_len": 256},
    "nemotron": {},
    "olmo": {"clip_qkv": 4.0},
    "phi": {},
    "phi3": {},
    "qwen2_moe": {
        "moe_intermediate_size": 32,
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "shared_expert_intermediate_size": 48,
    },
    "qwen3": {"head_dim": 16},
    "qwen3_moe": {
        "moe_intermediate_size": 32,
        "norm_topk_prob": True,
        "num_experts": 4,
        "num_experts_per_tok": 2,
    },
    "smollm3": {"num_hidden_layers": 4},
    "stablelm": {},
    "starcoder2": {"sliding_window": None},
}
TRANSLATORS: dict[str, tuple[Any, Any, dict[str, object]]] = {
    "bart": (BartConfig, BartForConditionalGeneration, {}),
    "mbart": (MBartConfig, MBartForConditionalGeneration, {"scale_embedding": True}),
    "pegasus": (PegasusConfig, PegasusForConditionalGeneration, {"scale_embedding": True}),
    "t5": (T5Config, T5ForConditionalGeneration, {}),
    "t5-v1.1": (
        T5Config,
        T5ForConditionalGeneration,
        {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False},
    ),
    "mt5": (MT5Config, MT5ForConditionalGeneration, {"feed_forward_proj": "gated-gelu"}),
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
YARN = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "original_max_position_embeddings": 64,
}


def byte_tokenizer() -> PreTrainedTokenizerFast:
    """A byte-level tokenizer like GPT-2's."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=["<s>", "</s>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(LINES * 3, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>")


def language_model(family: str, **changes: object) -> Model:
    """3 layers of 8 heads in 4 groups, with weights large enough that every head shows."""
    tokenizer = byte_tokenizer()
    configuration, kind = FAMILIES[family]
    shape = dict(
        vocab_size=len(tokenizer),
        hidden_size=64,
        num_attention_heads=8,
        num_key_value_heads=4,
        num_hidden_layers=3,
        intermediate_size=96,
        max_position_embeddings=256,
        rms_norm_eps=1e-5,
        bos_token_id=0,
        eos_token_id=1,
    )
    if family != "qwen2":
        shape["head_dim"] = 16
    torch.manual_seed(1)
    hf = kind(configuration(**shape | changes))
    with torch.no_grad():
        for name, parameter in hf.named_parameters():
            if parameter.dim() > 1:
                parameter.mul_(6)
            elif "norm" not in name:
                parameter.normal_(0, 0.3)
    return Model(hf, tokenizer, family)


def small_model(family: str, **changes: object) -> Model:
    """3 layers of 8 heads, in 4 groups where the family has groups, of any family of SHAPES."""
    tokenizer = byte_tokenizer()
    shape: dict[str, object] = dict(
        vocab_size=len(tokenizer),
        hidden_size=64,
        num_attention_heads=8,
        num_key_value_heads=4,
        num_hidden_layers=3,
        intermediate_size=96,
        max_position_embeddings=256,
        bos_token_id=0,
        eos_token_id=1,
        pad_token_id=0,
    )
    shape |= SHAPES[family] | changes
    given = {
        name: value
        for name, value in shape.items()
        if value is not None or name in SHAPES[family].keys() & {"sliding_window"}
    }
    torch.manual_seed(1)
    hf = AutoModelForCausalLM.from_config(AutoConfig.for_model(family, **given)).float()
    with torch.no_grad():
        for parameter in hf.parameters():
            if parameter.dim() > 1:
                parameter.mul_(6)
            else:
                parameter.add_(torch.randn_like(parameter), alpha=0.2)
    return Model(hf, tokenizer, "small")


def translator(norm: str) -> Model:
    """3 + 3 layers of 4 heads."""
    tokenizer = learn_subwords(LINES * 3, 200)
    shape = Architecture(
        norm=norm,
        encoder_layers=3,
        decoder_layers=3,
        heads=4,
        width=64,
        feedforward=96,
        vocabulary=len(tokenizer),
    )
    hf = build_model(shape, tokenizer, 1)
    with torch.no_grad():
        for parameter in hf.parameters():
            if parameter.dim() > 1:
                parameter.mul_(2)
    return Model(hf, tokenizer, norm)


def encoder_decoder(family: str) -> Model:
    """3 + 3 layers of 4 heads, with biases that show."""
    tokenizer = byte_tokenizer()
    tokenizer.add_special_tokens({"pad_token": "<pad>", "unk_token": "<unk>"})
    configuration, kind, changes = TRANSLATORS[family]
    shape: dict[str, object] = dict(
        vocab_size=len(tokenizer),
        d_model=32,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=0,
        eos_token_id=1,
        decoder_start_token_id=1,
    )
    if "T5" in kind.__name__:
        shape |= dict(
            num_layers=3,
            num_heads=4,
            d_kv=8,
            d_ff=48,
            relative_attention_num_buckets=8,
            relative_attention_max_distance=16,
            decoder_start_token_id=tokenizer.pad_token_id,
        )
    else:
        shape |= dict(
            encoder_layers=3,
            decoder_layers=3,
            encoder_attention_heads=4,
            decoder_attention_heads=4,
            encoder_ffn_dim=48,
            decoder_ffn_dim=48,
            max_position_embeddings=128,
        )
    torch.manual_seed(1)
    hf = kind(configuration(**shape | changes))
    with torch.no_grad():
        for name, parameter in hf.named_parameters():
            if not parameter.requires_grad:
                continue
            if parameter.dim() > 1 or "norm" not in name:
                parameter.normal_(0, 0.3)
    return Model(hf, tokenizer, family)


def listener() -> Model:
    """A Whisper of 2 + 2 layers of 4 heads that hears 2 seconds."""
    tokenizer = byte_tokenizer()
    names = [
        "<|startoftranscript|>",
        "<|notimestamps|>",
        "<|transcribe|>",
        "<|translate|>",
        "<|startoflm|>",
    ]
    end = "<|endoftext|>"
    tokenizer.add_special_tokens(
        {"additional_special_tokens": names, "eos_token": end, "pad_token": end}
    )
    start = tokenizer.convert_tokens_to_ids(names[0])
    shape = WhisperConfig(
        vocab_size=len(tokenizer),
        d_model=32,
        encoder_layers=2,
        decoder_layers=2,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=48,
        decoder_ffn_dim=48,
        num_mel_bins=8,
        max_source_positions=100,
        max_target_positions=32,
        pad_token_id=tokenizer.eos_token_id,
        bos_token_id=0,
        eos_token_id=tokenizer.eos_token_id,
        decoder_start_token_id=start,
        suppress_tokens=[],
        begin_suppress_tokens=[],
    )
    torch.manual_seed(1)
    hf = WhisperForConditionalGeneration(shape)
    with torch.no_grad():
        for name, parameter in hf.named_parameters():
            if parameter.requires_grad and "norm" not in name:
                parameter.normal_(0, 0.3)
    return Model(hf, tokenizer, "whisper")


def uneven(model: Model, empty: int | None = 1, seed: int = 1) -> Model:
    """About half of the heads, at least one a layer but for the layer `empty`."""
    with warnings.catch_warnings(action="ignore"):  # with grouped queries the cache may grow
        return model.only(half(model, empty, seed), grow=True)


def half(model: Model, empty: int | None, seed: int) -> HeadMask:
    draw = random.Random(seed)
    kept = (
        head
        for head in model.heads
        if head.layer != empty and (head.head == 0 or draw.random() < 0.5)
    )
    return HeadMask(model.heads, frozenset(kept))


def mended(model: Model, mask: HeadMask | None = None, of: Sequence[str] = LINES) -> Model:
    """As `uneven`, and the heads that are left were repaired: their outputs, values where each head has its own, biases
    where there were any, and what the decoder reads of an encoder. of: lines whose words the text is drawn from."""
    draw = random.Random(1)
    words = " ".join(of).split()
    lines = [" ".join(draw.choices(words, k=8)) for _ in range(150)]
    pairs = ParallelText.from_pairs(zip(lines, reversed(lines), strict=True))
    text = pairs if model.hf.config.is_encoder_decoder else Text.from_lines(lines)
    given, dev = (
        Inputs.of(model, model.task.batches(some).intact().whole())
        for some in (text, text.head(50))
    )
    with warnings.catch_warnings(action="ignore"):
        made = Repairs(model, given, dev).best_repair(mask or half(model, empty=1, seed=1))
    assert made.helped and made.after < made.before
    return made.model


def groups(model: Model, empty: int | None = 1) -> Model:
    """Whole key/value groups: 1, 2 … of 4 a layer."""
    size = model.heads.count(model.heads.sites[0]) // model.heads.key_value["decoder-self"][0]
    kept = (head for head in model.heads if head.layer != empty and head.head // size <= head.layer)
    return model.only(HeadMask(model.heads, frozenset(kept)))


def greedy(model: Model, prompt: list[int], count: int) -> list[int]:
    """The most probable next tokens, without the end of text."""
    ids = list(prompt)
    for _ in range(count):
        with torch.no_grad():
            logits = model.hf(torch.tensor([ids])).logits[0, -1]
        logits[model.tokenizer.eos_token_id] = -torch.inf
        ids.append(int(logits.argmax()))
    return ids[len(prompt) :]
