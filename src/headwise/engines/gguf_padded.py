"""GGUF files of architectures that read one number of heads for all layers: heads of zeros fill up the others.

A head of zeros adds nothing: its values and its columns of the output projection are 0. Where layers keep equally many
heads on equally many key/value heads, there are none. Else copies of a key/value head become one again, and every layer
gets the largest number of key/value heads that a layer has, and the largest number of query heads that one of them
serves. Where llama.cpp takes queries to be as wide as the model (`whole`: GPT-2), there are that many, and only
key/value heads are saved. Where a head's number says how it sees positions (`by_place`: Bloom), every head of the first
model has its place again, and nothing is saved.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

from torch import Tensor
from transformers.pytorch_utils import Conv1D

from headwise.attention.padding import (
    HeadPlaces,
    first_places,
    fullest,
    groups_of,
    layer_of,
    one_after_another,
    placed_weights,
    plain_config,
)
from headwise.attention.rebuilt import stock_model
from headwise.engines.gguf_uneven import paired
from headwise.errors import HeadwiseError
from headwise.heads import Site
from headwise.model import Model

Facts = Callable[[Any, Any], None]  # writes keys of a configuration: (writer, configuration)


@dataclass(frozen=True)
class Family:
    """How llama.cpp reads a family of transformers.

    architecture: its name there. facts: writes the keys that not all families have. paired: its rotary positions turn
    neighbouring numbers, those of transformers halves. whole: queries are as wide as the model. by_place: a
    head's number says how it sees positions. norms_from_zero: norms
    multiply by 1 + weight in transformers. window_period: every so many layers the last sees the whole text, the others
    a window; 0 where all layers see the same. biases: projections that may have a bias. scale: of the scores, where it
    is not the usual one: (configuration, heads) -> number. fits: says why a configuration does not, or None.
    """

    architecture: str
    facts: Facts | None = None
    paired: bool = False
    whole: bool = False
    by_place: bool = False
    norms_from_zero: bool = False
    window_period: int = 0
    biases: tuple[str, ...] = ("attn_q", "attn_k", "attn_v")
    scale: Callable[[Any, int], float] | None = None
    fits: Callable[[Any], str | None] | None = None


def soft_caps(writer: Any, config: Any) -> None:
    if config.attn_logit_softcapping:
        writer.add_attn_logit_softcapping(config.attn_logit_softcapping)
    if config.final_logit_softcapping:
        writer.add_final_logit_softcapping(config.final_logit_softcapping)


def gemma_scale(layers: int) -> Callable[[Any, int], float]:
    """The scale of Gemma's largest models, which llama.cpp knows by their number of layers, depends on the heads."""

    def scale(config: Any, heads: int) -> float:
        if config.num_hidden_layers == layers:
            return float((config.hidden_size // heads) ** -0.5)
        return float(config.head_dim**-0.5)

    return scale


def gemma3_fits(config: Any) -> str | None:
    if config.rope_parameters["sliding_attention"]["rope_theta"] != 10_000:
        return "llama.cpp knows only 10,000 as the rotary base of its layers with a window"
    return None


def smollm3_fits(config: Any) -> str | None:
    expected = [int(bool((layer + 1) % 4)) for layer in range(config.num_hidden_layers)]
    if list(config.no_rope_layers) != expected:
        return "llama.cpp leaves rotary positions out in every fourth layer, this model in others"
    return None


def olmo_facts(writer: Any, config: Any) -> None:
    writer.add_layer_norm_eps(1e-5)
    if config.clip_qkv:
        writer.add_clamp_kqv(config.clip_qkv)


def granite_facts(writer: Any, config: Any) -> None:
    writer.add_attention_scale(config.attention_multiplier)
    writer.add_embedding_scale(config.embedding_multiplier)
    writer.add_residual_scale(config.residual_multiplier)
    writer.add_logit_scale(config.logits_scaling)


def cohere_facts(writer: Any, config: Any) -> None:
    writer.add_logit_scale(config.logit_scale)


def neox_facts(writer: Any, config: Any) -> None:
    writer.add_parallel_residual(config.use_parallel_residual)


def stablelm_facts(writer: Any, config: Any) -> None:
    writer.add_parallel_residual(config.use_parallel_residual)


def phi3_facts(writer: Any, config: Any) -> None:
    writer.add_sliding_window(0)
    writer.add_rope_scaling_orig_ctx_len(config.max_position_embeddings)


def experts(writer: Any, config: Any) -> None:
    count = getattr(config, "num_local_experts", None) or config.num_experts
    writer.add_expert_count(count)
    writer.add_expert_used_count(config.num_experts_per_tok)


def oss_facts(writer: Any, config: Any) -> None:
    experts(writer, config)
    writer.add_expert_feed_forward_length(config.intermediate_size)


def qwen_expert_facts(writer: Any, config: Any) -> None:
    experts(writer, config)
    writer.add_expert_feed_forward_length(config.moe_intermediate_size)
    if config.model_type == "qwen2_moe":
        writer.add_expert_shared_feed_forward_length(config.shared_expert_intermediate_size)


def qwen_experts_fit(config: Any) -> str | None:
    if config.norm_topk_prob != (config.model_type == "qwen3_moe"):
        return "llama.cpp weighs its chosen experts in another way (norm_topk_prob)"
    if config.mlp_only_layers or config.decoder_sparse_step != 1:
        return "llama.cpp reads experts in every layer or in none"
    return None


def alibi(writer: Any, config: Any) -> None:
    if config.model_type == "mpt":
        writer.add_max_alibi_bias(config.attn_config.alibi_bias_max)
        if config.attn_config.clip_qkv:
            writer.add_clamp_kqv(config.attn_config.clip_qkv)


def falcon_fits(config: Any) -> str | None:
    if config.alibi or config.new_decoder_architecture or not config.parallel_attn:
        return "only the layout of Falcon 7B is written"
    return None


def falcon_facts(writer: Any, config: Any) -> None:
    writer.add_tensor_data_layout("jploski")


def plain_norms(config: Any) -> str | None:
    if getattr(config, "use_qk_norm", False) or getattr(config, "qk_layernorm", False):
        return "its norms of queries and keys are not written"
    return None


ALL = ("attn_q", "attn_k", "attn_v", "attn_qkv", "attn_output", "ffn_up", "ffn_down", "output")
FAMILIES = {
    "arcee": Family("arcee", paired=True),
    "bloom": Family("bloom", alibi, by_place=True, biases=ALL),
    "cohere": Family("command-r", cohere_facts, whole=True, fits=plain_norms),
    "cohere2": Family("cohere2", cohere_facts, whole=True, window_period=4),
    "falcon": Family("falcon", falcon_facts, by_place=True, fits=falcon_fits),
    "gemma": Family("gemma", norms_from_zero=True),
    "gemma2": Family(
        "gemma2", soft_caps, norms_from_zero=True, window_period=2, scale=gemma_scale(46)
    ),
    "gemma3_text": Family(
        "gemma3",
        soft_caps,
        norms_from_zero=True,
        window_period=6,
        scale=gemma_scale(62),
        fits=gemma3_fits,
    ),
    "glm4": Family("glm4"),
    "gpt2": Family("gpt2", whole=True, biases=ALL),
    "gpt_neox": Family("gptneox", neox_facts, whole=True, biases=ALL),
    "gpt_oss": Family(
        "gpt-oss",
        oss_facts,
        window_period=2,
        biases=(*ALL, "ffn_gate_inp", "ffn_up_exps", "ffn_down_exps"),
    ),
    "granite": Family(
        "granite", granite_facts, paired=True, scale=lambda config, _: config.attention_multiplier
    ),
    "mixtral": Family("llama", experts, paired=True),
    "mpt": Family("mpt", alibi, by_place=True, biases=ALL),
    "nemotron": Family("nemotron", whole=True, norms_from_zero=True),
    "olmo": Family("olmo", olmo_facts, paired=True, whole=True, biases=()),
    "phi": Family("phi2", whole=True, biases=ALL, fits=plain_norms),
    "phi3": Family("phi3", phi3_facts, whole=True),
    "qwen2_moe": Family("qwen2moe", qwen_expert_facts, whole=True, fits=qwen_experts_fit),
    "qwen3": Family("qwen3"),
    "qwen3_moe": Family("qwen3moe", qwen_expert_facts, fits=qwen_experts_fit),
    "smollm3": Family("smollm3", paired=True, fits=smollm3_fits),
    "stablelm": Family("stablelm", stablelm_facts, whole=True, fits=plain_norms),
    "starcoder2": Family("starcoder2", whole=True, biases=ALL),
}


def padded_refusal(model: Model) -> str | None:
    """Why llama.cpp cannot run a model with heads of zeros; None where it can."""
    config: Any = model.hf.config
    family = FAMILIES[config.model_type]
    if not any(model.heads.query["decoder-self"]):
        return "no layer has a head"
    if family.fits is not None and (reason := family.fits(config)):
        return reason
    if reason := rotation_refusal(config):
        return reason
    if family.window_period and sliding_layers(config) != expected_windows(config, family):
        return "llama.cpp gives windows to other layers than this model"
    try:
        file_heads(model)
    except HeadwiseError as error:
        return str(error)
    unnamed = []
    for name, _ in model.hf.named_parameters():
        try:
            own = gguf_name(name, model)
        except HeadwiseError:
            unnamed.append(name)
            continue
        part = own.removesuffix(".bias").rpartition(".")[2]
        if own.endswith(".bias") and not part.endswith("norm") and part not in family.biases:
            if part == "attn_output":
                return "llama.cpp reads no output bias in it: remove heads without compensation"
            return f"llama.cpp reads no bias {own} in it"
    if unnamed:
        return f"llama.cpp has no name for its {unnamed[0]}"
    return None


def rotation(config: Any) -> dict[str, Any]:
    """The settings of rotary positions, of layers that see the whole text; empty for other positions."""
    settings: dict[str, Any] = getattr(config, "rope_parameters", None) or {}
    of_layers: dict[str, Any] = settings.get("full_attention", settings)
    return of_layers


def rotation_refusal(config: Any) -> str | None:
    """Why rotary positions cannot be written: only plain and linearly scaled ones, and gpt-oss's own."""
    kind = rotation(config).get("rope_type", "default")
    if kind in ("default", "linear") or (kind, config.model_type) == ("yarn", "gpt_oss"):
        return None
    return f"rotary positions of type {kind} are not written for a {config.model_type}"


def sliding_layers(config: Any) -> list[bool]:
    """By layer, whether it sees a window only."""
    return [kind == "sliding_attention" for kind in config.layer_types]


def expected_windows(config: Any, family: Family) -> list[bool]:
    """By layer, whether llama.cpp takes it to see a window only."""
    return [bool((layer + 1) % family.window_period) for layer in range(config.num_hidden_layers)]


def file_heads(model: Model) -> dict[Site, HeadPlaces]:
    """By layer, which of its heads are where in the file."""
    family = FAMILIES[model.hf.config.model_type]
    groups = groups_of(model.hf, model.discovery)
    if family.by_place:
        return first_places(groups, model.heads_left)
    most, largest = fullest(groups)
    if family.whole:
        most, largest = spread(model, most, largest)
    return one_after_another(groups, most, largest)


def heads_in_file(model: Model) -> tuple[int, int]:
    """The numbers of query heads and of key/value heads in every layer of the file."""
    first = next(iter(file_heads(model).values()))
    return len(first.query), len(first.key_value)


def spread(model: Model, most: int, largest: int) -> tuple[int, int]:
    """Numbers of key/value heads, at least `most`, and of query heads for each, at least `largest`, that make queries as
    wide as the model. Raises HeadwiseError where none do."""
    config: Any = model.hf.config
    heads, rest = divmod(int(config.hidden_size), model.discovery.head_size)
    for groups in range(most, heads + 1):
        if not rest and not heads % groups and heads // groups >= largest:
            return groups, heads // groups
    raise HeadwiseError(
        f"llama.cpp takes queries to be as wide as the model, {config.hidden_size} numbers, and {most} key/value heads "
        f"with {largest} heads each of size {model.discovery.head_size} do not fit them"
    )


def padded_tensors(model: Model) -> Iterator[tuple[str, Tensor]]:
    """Every tensor of the file, by llama.cpp's name."""
    config: Any = model.hf.config
    family = FAMILIES[config.model_type]
    stock = stock_model(model.hf, plain_config(model.hf))
    places = file_heads(model)
    weights = placed_weights(model.hf, model.discovery, stock, places, {})
    modules = dict(stock.named_modules())
    for name, _ in stock.named_parameters():
        own = gguf_name(name, model)
        value = weights[name].detach()
        if isinstance(modules[name.rpartition(".")[0]], Conv1D) and value.dim() == 2:
            value = value.t()
        if family.norms_from_zero and own.endswith("norm.weight"):
            value = value.float() + 1
        if ".experts." in name:
            yield from expert_tensors(own, name, value, config.model_type == "gpt_oss")
        else:
            yield own, in_order(model, own.split(".")[-2], value, next(iter(places.values())))


def in_order(model: Model, part: str, rows: Tensor, heads: HeadPlaces) -> Tensor:
    """A tensor of a layer: of queries and keys with rows as llama.cpp reads and scales them. heads: of every layer."""
    if part not in ("attn_q", "attn_k", "attn_qkv", "attn_q_norm"):
        return rows
    count = len(heads.key_value if part == "attn_k" else heads.query)
    layer = layer_of(model.hf, model.discovery, first_with_heads(model))
    if part == "attn_qkv":
        apart = "qkv" not in layer.form.inputs.values() or len(heads.key_value) < count
        return rows if apart else rows.unflatten(0, (count, 3, -1)).swapaxes(0, 1).flatten(0, 2)
    if FAMILIES[model.hf.config.model_type].paired and part != "attn_q_norm":
        rows = paired(rows, count)
    scaled = "attn_q_norm" if hasattr(layer.module, "q_norm") else "attn_q"
    return rows * scale_factor(model, count) if part == scaled else rows


def gguf_name(name: str, model: Model) -> str:
    """llama.cpp's name of a parameter. Raises HeadwiseError where it has none."""
    base, _, kind = name.rpartition(".")
    if kind not in ("weight", "bias"):
        base, kind = name, "weight"
        if name.endswith("_bias"):  # of experts in one tensor
            base, kind = name.removesuffix("_bias"), "bias"
    base = base.replace("gate_up_proj", "up_proj") if ".experts." in base else base
    config: Any = model.hf.config
    names = names_of(FAMILIES[config.model_type].architecture, len(model.heads.sites))
    own = names.get_name(base) or names.get_name(base.removeprefix("transformer."))
    if own is None:
        raise HeadwiseError(f"llama.cpp has no name for {name}.")
    return f"{own}.{kind}"


@cache
def names_of(architecture: str, layers: int) -> Any:
    """gguf's table from names of transformers to those of llama.cpp."""
    import gguf

    constant = next(key for key, name in gguf.MODEL_ARCH_NAMES.items() if name == architecture)
    return gguf.get_tensor_name_map(constant, layers)


def expert_tensors(
    own: str, name: str, value: Tensor, in_turn: bool
) -> Iterator[tuple[str, Tensor]]:
    """Experts E, in one tensor each: gate and up apart. in_turn: they have them in turn, and inputs before outputs, as
    gpt-oss."""
    if in_turn and value.dim() == 3:
        value = value.swapaxes(1, 2)
    if "gate_up" not in name:
        yield own, value
        return
    gate, up = (value[:, ::2], value[:, 1::2]) if in_turn else value.chunk(2, dim=1)
    yield own.replace("_up_", "_gate_"), gate
    yield own, up


def first_with_heads(model: Model) -> Site:
    """The first layer that has heads."""
    return next(site for site in model.heads.sites if model.heads.count(site))


def scale_factor(model: Model, heads: int) -> float:
    """The model's scale of the scores, divided by the one that llama.cpp takes for so many heads."""
    config: Any = model.hf.config
    family = FAMILIES[config.model_type]
    usual = model.discovery.head_size**-0.5
    theirs = usual if family.scale is None else family.scale(config, heads)
    own = getattr(model.discovery.modules[first_with_heads(model)], "scaling", None) or usual
    return float(own) / theirs if abs(float(own) / theirs - 1) > 1e-6 else 1.0
