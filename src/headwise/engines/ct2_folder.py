"""CTranslate2 models. It reads one number of heads for a whole stack (encoder, decoder), and the head size apart.

So layers with fewer heads than the fullest of their stack get heads of zeros up to it: exact, but only what all layers
have lost is saved. CTranslate2's own converter does the rest.
"""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from headwise.attention import start_token
from headwise.heads import Site
from headwise.model import Model

TRANSLATORS = ("marian", "m2m_100", "bart", "mbart", "pegasus", "t5", "mt5", "whisper")
LANGUAGE_MODELS = ("llama", "mistral", "qwen2", "qwen3")
SHARED_BIAS = ("t5", "mt5")  # the bias by relative position of the first layer serves all
NORMS = {
    "bart": (False, True),
    "mbart": (True, True),
    "pegasus": (True, False),
}  # before a layer; of embeddings
NAMES = {"f32": "float32", "f16": "float16", "bf16": "bfloat16", "int8": "int8"}
PROJECTIONS = (("q_proj", "q"), ("k_proj", "k"), ("v_proj", "v"), ("out_proj", "o_proj", "o"))


def refuse(model: Model) -> str | None:
    """Why CTranslate2 cannot run this model; None where it can."""
    kind = model.hf.config.model_type
    if kind not in TRANSLATORS + LANGUAGE_MODELS or model.hf.get_output_embeddings() is None:
        known = ", ".join(TRANSLATORS + LANGUAGE_MODELS)
        return f"CTranslate2 with fewer heads is written for models that write text of {known}, not a {kind}"
    if model.tokenizer is None:
        return "it has no tokenizer, which the model has inside"
    if getattr(model.hf.config, "headwise_biases", None) and kind in LANGUAGE_MODELS:
        return "CTranslate2 reads no output bias: remove heads without compensation"
    if len(shares(model)) > 1:
        return "its layers have different numbers of query heads for each key/value head: remove whole groups"
    if missing := [str(head) for head in model.alignment_heads if head not in model.heads]:
        return f"its alignment heads are others than its own ({missing[0]}): correct its generation_config.json"
    return None


def shares(model: Model) -> set[int]:
    """How many query heads share a key/value head, over the layers that have heads."""
    counts = ((site, model.heads.count(site)) for site in model.heads.sites)
    return {
        heads // model.heads.key_value[site.kind][site.layer] for site, heads in counts if heads
    }


def fullest(model: Model) -> dict[str, int]:
    """Key/value heads of the fullest layer of each stack."""
    stacks: dict[str, int] = {}
    for site in model.heads.sites:
        stack = stack_of(site)
        stacks[stack] = max(stacks.get(stack, 1), model.heads.key_value[site.kind][site.layer])
    return stacks


class Padded(nn.Module):
    """The projections of an attention layer with as many heads as the fullest of its stack; the added ones are zero.

    groups: key/value heads afterwards; share: query heads for each; size: of a head. order: of the layer's own heads.
    """

    def __init__(
        self,
        attention: Any,
        names: tuple[str, ...],
        groups: int,
        share: int,
        size: int,
        width: int,
        biased: bool,
        order: list[int],
    ) -> None:
        super().__init__()
        rows = (
            (torch.tensor(order, dtype=torch.long)[:, None] * size + torch.arange(size)).flatten()
            if order
            else None
        )
        for name, heads in zip(names, (groups * share, groups, groups), strict=False):
            before = getattr(attention, name, None)
            bias = biased if before is None else before.bias is not None
            setattr(self, name, padded(before, heads * size, width, bias, rows))
        before = getattr(attention, names[3], None)
        bias = biased or bias_of(before) is not None
        setattr(self, names[3], padded(before, width, groups * share * size, bias, columns_of=rows))
        for name in ("q_norm", "k_norm"):
            setattr(
                self, name, getattr(attention, name, None) or nn.RMSNorm(size)
            )  # read for Qwen3 alone
        self.has_relative_attention_bias = False


def bias_of(projection: Any) -> Tensor | None:
    return None if projection is None else projection.bias


def padded(
    before: Any,
    rows: int,
    columns: int,
    bias: bool,
    rows_of: Tensor | None = None,
    columns_of: Tensor | None = None,
) -> nn.Linear:
    """A linear layer of zeros, with another one (or none) in its first rows and columns, perhaps in another order."""
    made = nn.Linear(columns, rows, bias=bias)
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.zero_()
        if before is not None:
            weight = before.weight if rows_of is None else before.weight[rows_of]
            weight = weight if columns_of is None else weight[:, columns_of]
            made.weight[: weight.shape[0], : weight.shape[1]] = weight
            if before.bias is not None:
                made.bias[: len(before.bias)] = (
                    before.bias if rows_of is None else before.bias[rows_of]
                )
    return made


def equal_heads(model: Model) -> Any:
    """A copy of the model in which every layer of a stack has the same number of heads, and those that align stand
    first in their layer."""
    hf = copy.deepcopy(model.hf).float()
    modules = dict(hf.named_modules())
    (share,), stacks = shares(model) or {1}, fullest(model)
    layer, first, _ = aligning(model)
    for site in model.heads.sites:
        name, groups = model.found.names[site], stacks[stack_of(site)]
        owner, _, own = name.rpartition(".")
        others = [model.found.modules[other] for other in of(model, site)]
        names = tuple(
            next((name for name in some if any(hasattr(other, name) for other in others)), some[0])
            for some in PROJECTIONS
        )
        biased = any(bias_of(getattr(other, names[0], None)) is not None for other in others)
        order = []
        if site == Site("cross", layer):
            order = [
                *first,
                *(head for head in range(model.heads.count(site)) if head not in first),
            ]
        made = Padded(
            modules[name], names, groups, share, model.found.head_size, width(hf), biased, order
        )
        if site.kind != "cross" and hf.config.model_type in SHARED_BIAS:
            made.has_relative_attention_bias = True
            made.relative_attention_bias = position_bias(modules, model, site, groups)
            made.relative_attention_max_distance = hf.config.relative_attention_max_distance
        setattr(modules[owner], own, made)
    heads = {stack: groups * share for stack, groups in stacks.items()}
    config = hf.config
    if config.is_encoder_decoder:
        for stack, count in heads.items():
            if hasattr(config, f"{stack}_attention_heads"):
                setattr(config, f"{stack}_attention_heads", count)
    else:
        config.num_attention_heads, config.num_key_value_heads = heads["decoder"], stacks["decoder"]
        config.head_dim = model.found.head_size
    if (
        config.model_type in NORMS
    ):  # what transformers computes; the loader asks the configuration, which may be silent
        config.normalize_before, config.normalize_embedding = NORMS[config.model_type]
    if (
        config.model_type == "whisper" and not model.alignment_heads
    ):  # what CTranslate2 takes, without heads of zeros
        half = config.decoder_layers // 2
        listed = [
            [head.layer, head.head] for head in model.heads.only(["cross"]) if head.layer >= half
        ]
        hf.generation_config.alignment_heads = listed
    return hf


def position_bias(
    modules: dict[str, nn.Module], model: Model, site: Site, heads: int
) -> nn.Embedding:
    """The bias by relative position of a layer's own heads, then zeros: in T5 the table of all heads is in the first
    layer of the stack that has heads."""
    layers = [modules[model.found.names[other]] for other in of(model, site)]
    tables: list[Any] = [
        layer.relative_attention_bias
        for layer in layers
        if hasattr(layer, "relative_attention_bias")
    ]
    config: Any = model.hf.config
    made = nn.Embedding(config.relative_attention_num_buckets, heads)
    with torch.no_grad():
        made.weight.zero_()
        if count := model.heads.count(site):
            own = getattr(modules[model.found.names[site]], "bias_heads", None)
            whole = tables[0].weight
            made.weight[:, :count] = whole if own is None else whole[:, own]
    return made


def stack_of(site: Site) -> str:
    return "encoder" if site.kind == "encoder-self" else "decoder"


def aligning(model: Model) -> tuple[int, list[int], str]:
    """The layer whose first heads CTranslate2 averages to align, these heads, and a note on those it cannot take.

    Whisper models name any heads, so theirs stay in their places.
    """
    heads = model.alignment_heads
    if not heads or model.hf.config.model_type == "whisper":
        return -1, [], ""
    layer = heads[0].layer
    first = list(dict.fromkeys(head.head for head in heads if head.layer == layer))
    left = [str(head) for head in heads if head.layer != layer]
    note = f"CTranslate2 averages heads of one layer to align: {', '.join(left)} were left out (--one-layer avoids this)"
    return layer, first, note if left else ""


def of(model: Model, site: Site) -> Iterator[Site]:
    return (other for other in model.heads.sites if other.kind == site.kind)


def width(hf: Any) -> int:
    return int(getattr(hf.config, "d_model", None) or hf.config.hidden_size)


def write(model: Model, folder: Path, dtype: str) -> list[str]:
    """Write a CTranslate2 model to a folder. Returns notes for the user."""
    from ctranslate2.converters import transformers as converters

    hf = equal_heads(model)

    class Converter(converters.TransformersConverter):
        def load_model(self, *_: Any, **__: Any) -> Any:
            return hf

        def load_tokenizer(self, *_: Any, **__: Any) -> Any:
            return model.tokenizer

        def _load(self) -> Any:
            loader = our_loader(converters, hf)
            if loader is None:
                spec = super()._load()
            else:
                with torch.no_grad():
                    spec = loader(hf, model.tokenizer)
            set_heads(spec, model)
            set_positions(spec, hf)
            set_t5(spec, hf)
            set_start(spec, model)
            if (
                getattr(spec.config, "unk_token", "") is None
            ):  # a byte-level vocabulary has none; CTranslate2 wants a string
                spec.config.unk_token = ""
            return spec

    with tempfile.TemporaryDirectory() as scratch:
        model.hf.config.save_pretrained(scratch)  # it chooses the loader
        Converter(scratch).convert(str(folder), quantization=NAMES[dtype], force=True)
    model.tokenizer.save_pretrained(folder)
    return notes(model)


def our_loader(converters: Any, hf: Any) -> Any:
    """A loader for a Marian model that does not start from an embedding of zeros, which CTranslate2 takes for granted:
    those that headwise trains start from a token. None for every other model."""
    config = hf.config
    if (
        config.model_type != "marian"
        or config.decoder_start_token_id == config.pad_token_id == config.vocab_size - 1
    ):
        return None
    config.normalize_before, config.normalize_embedding = False, False
    return converters.BartLoader()


def set_positions(spec: Any, hf: Any) -> None:
    """M2M100 counts positions from the padding's number on; CTranslate2 takes for granted that this is 1."""
    if hf.config.model_type == "m2m_100":
        for stack, module in ((spec.encoder, hf.get_encoder()), (spec.decoder, hf.get_decoder())):
            first = module.embed_positions.padding_idx + 1
            stack.position_encodings.encodings = module.embed_positions.weights[first:].numpy()


def set_heads(spec: Any, model: Model) -> None:
    """State the heads of each stack, those that align, and the head size of every layer, which no longer is width /
    heads."""
    from ctranslate2.specs.attention_spec import MultiHeadAttentionSpec

    share = next(iter(shares(model) or {1}))
    for stack, groups in fullest(model).items():
        part = getattr(spec, stack)
        part.num_heads = np.dtype("int16").type(groups * share)
        for layer in part.layer:
            for attention in (
                value for value in vars(layer).values() if isinstance(value, MultiHeadAttentionSpec)
            ):
                vars(attention)["head_dim"] = np.dtype("int32").type(
                    model.found.head_size
                )  # not all loaders state it
    layer, first, _ = aligning(model)
    if first:
        spec.decoder.alignment_layer = np.dtype("int16").type(layer)
        spec.decoder.alignment_heads = np.dtype("int16").type(len(first))


def set_start(spec: Any, model: Model) -> None:
    """Start with the token that transformers starts with; some loaders take it for granted.

    Not for Marian models that start from zeros, Whisper, and mBART-25, whose user gives the language as a prefix.
    """
    zeros = getattr(getattr(spec, "decoder", None), "start_from_zero_embedding", False)
    kind, prefixed = (
        model.hf.config.model_type,
        type(model.tokenizer).__name__.startswith("MBartTokenizer"),
    )
    if kind in TRANSLATORS and kind != "whisper" and not zeros and not prefixed:
        spec.config.decoder_start_token = model.tokenizer.convert_ids_to_tokens(
            start_token(model.hf)
        )


def set_t5(spec: Any, hf: Any) -> None:
    """Give every layer of a T5 the bias of its own heads, and scale the output only where transformers does."""
    if hf.config.model_type not in SHARED_BIAS:
        return
    from ctranslate2.specs.model_spec import OPTIONAL

    for part, module in ((spec.encoder, hf.encoder), (spec.decoder, hf.decoder)):
        for layer, block in zip(part.layer, module.block, strict=True):
            layer.self_attention.relative_attention_bias = block.layer[
                0
            ].SelfAttention.relative_attention_bias.weight
    if not getattr(
        hf.config, "scale_decoder_outputs", False
    ):  # MT5 never does, whatever its configuration ties
        spec.decoder.scale_outputs = OPTIONAL


def notes(model: Model) -> list[str]:
    """What the padding costs, in heads, and what else its user must know."""
    stacks, share = fullest(model), next(iter(shares(model) or {1}))
    added = sum(stacks[stack_of(site)] * share for site in model.heads.sites) - model.heads.total
    found = [aligning(model)[2]]
    if added:
        found.append(
            f"{added} heads of zeros were added: CTranslate2 wants equally many in every layer of a stack, so of the "
            f"removed heads those count that all layers have lost"
        )
    if model.hf.config.model_type in SHARED_BIAS and any(
        getattr(module, "bias_heads", None) is not None for module in model.found.modules.values()
    ):
        found.append(
            "run it in CTranslate2 4.8.5 or later: earlier ones use the first layer's position bias everywhere"
        )
    return [note for note in found if note]
