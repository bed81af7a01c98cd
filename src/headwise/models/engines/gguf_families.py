"""Which architecture of llama.cpp runs a model, and what llama.cpp would compute otherwise.

Two architectures read the counts of heads as one number a layer: `deci`, a Llama with optional biases whose layers may
lack attention, and `openelm`, with Qwen3's norms of queries and keys, which wants embeddings tied to the output and a
head in every layer. Files of all other families have equally many heads in every layer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from headwise.models.model import Model

# Rotary positions whose frequencies do not depend on the length of the text.
STATIC_ROTATIONS = ("default", "linear", "llama3", "yarn")
QKV = ("attn_q", "attn_k", "attn_v")
ALL = (*QKV, "attn_qkv", "attn_output", "ffn_gate", "ffn_up", "ffn_down", "output")


@dataclass(frozen=True)
class Family:
    """How llama.cpp reads a family of transformers.

    architecture: its name there. uneven: each layer has its own number of heads. facts: keys besides those that all
    families have, by GGUFWriter's method: a number, or the name of one in the configuration. paired: its rotary
    positions turn neighbouring numbers, those of transformers halves. fused: one matrix has the queries, keys and values
    of each head together. whole: queries are as wide as the model. by_place: a head's number says how it sees
    positions. norms_from_zero: norms multiply by 1 + weight in transformers. window_period: every so many layers the last
    sees the whole text, the others a window; 0 where all layers see the same. biases: projections that may have a bias.
    largest: the number of layers by which llama.cpp knows Gemma's largest model, whose scale of the scores depends on
    the number of heads.
    """

    architecture: str
    uneven: bool = False
    facts: Mapping[str, float | str] = field(default_factory=dict)
    paired: bool = False
    fused: bool = False
    whole: bool = False
    by_place: bool = False
    norms_from_zero: bool = False
    window_period: int = 0
    biases: tuple[str, ...] = QKV
    largest: int = 0


DECI = Family("deci", uneven=True, paired=True, biases=ALL)
UNEVEN = {
    "llama": DECI,
    "mistral": DECI,
    "qwen2": DECI,
    "qwen3": Family("openelm", uneven=True, biases=()),
}
FAMILIES = {
    "arcee": Family("arcee", paired=True),
    "bloom": Family("bloom", fused=True, by_place=True, biases=ALL),
    "cohere": Family("command-r", whole=True),
    "cohere2": Family("cohere2", whole=True, window_period=4),
    "falcon": Family("falcon", fused=True, by_place=True),
    "gemma": Family("gemma", norms_from_zero=True),
    "gemma2": Family("gemma2", norms_from_zero=True, window_period=2, largest=46),
    "gemma3_text": Family("gemma3", norms_from_zero=True, window_period=6, largest=62),
    "glm4": Family("glm4"),
    "gpt2": Family("gpt2", whole=True, biases=ALL),
    "gpt_neox": Family("gptneox", fused=True, whole=True, biases=ALL),
    "gpt_oss": Family(
        "gpt-oss",
        facts={"expert_feed_forward_length": "intermediate_size"},
        window_period=2,
        biases=(*ALL, "ffn_gate_inp", "ffn_up_exps", "ffn_down_exps"),
    ),
    "granite": Family("granite", paired=True),
    # llama.cpp reads experts in a Llama, and has no Mixtral of its own.
    "mixtral": Family("llama", paired=True),
    "mpt": Family("mpt", by_place=True, biases=ALL),
    "nemotron": Family("nemotron", whole=True, norms_from_zero=True),
    # OLMo's epsilon is in its code, not in its configuration.
    "olmo": Family("olmo", facts={"layer_norm_eps": 1e-5}, paired=True, whole=True, biases=()),
    "phi": Family("phi2", whole=True, biases=ALL),
    "phi3": Family(
        "phi3",
        facts={"sliding_window": 0, "rope_scaling_orig_ctx_len": "max_position_embeddings"},
        whole=True,
    ),
    "qwen2_moe": Family("qwen2moe", whole=True),
    "qwen3": Family("qwen3"),
    "qwen3_moe": Family("qwen3moe"),
    "smollm3": Family("smollm3", paired=True),
    "stablelm": Family("stablelm", whole=True),
    "starcoder2": Family("starcoder2", whole=True, biases=ALL),
}


def family_of(model: Model) -> Family:
    """How llama.cpp reads a model: with each layer's own number of heads where it can."""
    family = model.hf.config.model_type
    # Qwen3 is in both tables: where openelm refuses it, heads of zeros fill it up.
    if family in UNEVEN and (family not in FAMILIES or uneven_refusal(model) is None):
        return UNEVEN[family]
    return FAMILIES[family]


def uneven_refusal(model: Model) -> str | None:
    """Why no architecture of llama.cpp takes these layers as they are; None where one does."""
    config: Any = model.hf.config
    kind = rotation(config).get("rope_type", "default")
    # The file has one factor for each frequency, which cannot change while a text grows.
    if kind not in STATIC_ROTATIONS:
        return f"its rotary positions of type {kind} depend on the length of the text"
    # Only openelm asks for more than a static rotation.
    if UNEVEN[config.model_type] is DECI:
        return None
    for site, attention in model.discovery.modules.items():
        if not model.heads.count(site):
            return f"llama.cpp needs a head in every layer, but layer {site.layer} has none"
        if output_bias(attention) is not None:
            return "llama.cpp reads no output bias in it"
    if model.hf.get_output_embeddings().weight is not model.hf.get_input_embeddings().weight:
        return "llama.cpp reads uneven heads only with tied embeddings"
    if kind != "default":
        return f"llama.cpp reads no rotary scaling ({kind}) with uneven heads"
    return None


def output_bias(attention: Any) -> Any:
    """The output bias of a layer of UNEVEN; None without one."""
    return getattr(getattr(attention, "o_proj", None), "bias", None)


def configured_otherwise(model: Model) -> str | None:
    """Why llama.cpp would compute something else with this configuration; None where it would not."""
    config: Any = model.hf.config
    name = config.model_type
    family = FAMILIES[name]
    kind = rotation(config).get("rope_type", "default")
    if kind not in ("default", "linear") and (kind, name) != ("yarn", "gpt_oss"):
        return f"rotary positions of type {kind} are not written for a {name}"
    layers = range(1, config.num_hidden_layers + 1)
    if family.window_period:
        windows = [kind == "sliding_attention" for kind in config.layer_types]
        if windows != [bool(layer % family.window_period) for layer in layers]:
            return "llama.cpp gives windows to other layers than this model"
    if name == "gemma3_text" and config.rope_parameters["sliding_attention"]["rope_theta"] != 1e4:
        return "llama.cpp knows only 10,000 as the rotary base of its layers with a window"
    if name == "smollm3" and [*config.no_rope_layers] != [int(bool(n % 4)) for n in layers]:
        return "llama.cpp leaves rotary positions out in every fourth layer, this model in others"
    if name in ("qwen2_moe", "qwen3_moe"):
        if config.norm_topk_prob != (name == "qwen3_moe"):
            return "llama.cpp weighs its chosen experts in another way (norm_topk_prob)"
        if config.mlp_only_layers or config.decoder_sparse_step != 1:
            return "llama.cpp reads experts in every layer or in none"
    other = name == "falcon" and (config.alibi or config.new_decoder_architecture)
    if other or (name == "falcon" and not config.parallel_attn):
        return "only the layout of Falcon 7B is written"
    normed = getattr(config, "use_qk_norm", False) or getattr(config, "qk_layernorm", False)
    if normed and name in ("cohere", "phi", "stablelm"):
        return "its norms of queries and keys are not written"
    return None


def rotation(config: Any) -> dict[str, Any]:
    """The settings of rotary positions, of layers that see the whole text; empty for other positions."""
    settings: dict[str, Any] = getattr(config, "rope_parameters", None) or {}
    of_layers: dict[str, Any] = settings.get("full_attention", settings)
    return of_layers


def families_table() -> list[str]:
    """The lines of the table of families in the documentation."""
    ways: dict[str, list[str]] = {
        "their own numbers | smaller | smaller": ["llama", "mistral", "qwen2"],
        "up to the fullest layer | smaller | smaller": [],
        "queries as wide as the model | smaller by key/value heads | smaller": [],
        "every head at its first place | the same | the same": [],
    }
    own, fullest, wide, placed = ways.values()
    own.append("qwen3 (tied embeddings)")
    for name, family in FAMILIES.items():
        way = placed if family.by_place else wide if family.whole else fullest
        way.append(name)
    lines = ["| families | heads in the file | weights | cache |", "|---|---|---|---|"]
    lines += [f"| {', '.join(names)} | {way} |" for way, names in ways.items()]
    return lines
