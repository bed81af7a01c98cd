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

from headwise.heads import Site
from headwise.model import Model

TRANSLATORS = ("marian", "m2m_100", "bart", "mbart", "pegasus")
LANGUAGE_MODELS = ("llama", "mistral", "qwen2", "qwen3")
NAMES = {"f32": "float32", "f16": "float16", "bf16": "bfloat16", "int8": "int8"}


def refuse(model: Model) -> str | None:
    """Why CTranslate2 cannot run this model; None where it can."""
    kind = model.hf.config.model_type
    if kind not in TRANSLATORS + LANGUAGE_MODELS or not hasattr(model.hf, "lm_head"):
        known = ", ".join(TRANSLATORS + LANGUAGE_MODELS)
        return f"CTranslate2 with fewer heads is written for translation and language models of {known}, not a {kind}"
    if model.tokenizer is None:
        return "it has no tokenizer, which the model has inside"
    if getattr(model.hf.config, "headwise_biases", None) and kind in LANGUAGE_MODELS:
        return "CTranslate2 reads no output bias: remove heads without compensation"
    if len(shares(model)) > 1:
        return "its layers have different numbers of query heads for each key/value head: remove whole groups"
    return None


def shares(model: Model) -> set[int]:
    """How many query heads share a key/value head, over the layers that have heads."""
    counts = ((site, model.heads.count(site)) for site in model.heads.sites)
    return {heads // model.heads.key_value[site.kind][site.layer] for site, heads in counts if heads}


def fullest(model: Model) -> dict[str, int]:
    """Key/value heads of the fullest layer of each stack."""
    stacks: dict[str, int] = {}
    for site in model.heads.sites:
        stack = "encoder" if site.kind == "encoder-self" else "decoder"
        stacks[stack] = max(stacks.get(stack, 1), model.heads.key_value[site.kind][site.layer])
    return stacks


class Padded(nn.Module):
    """The projections of an attention layer with as many heads as the fullest of its stack; the added ones are zero.

    groups: key/value heads afterwards; share: query heads for each; size: of a head.
    """

    def __init__(self, attention: Any, groups: int, share: int, size: int, width: int, biased: bool) -> None:
        super().__init__()
        out = "o_proj" if hasattr(attention, "o_proj") else "out_proj"
        for name, heads in (("q_proj", groups * share), ("k_proj", groups), ("v_proj", groups)):
            before = getattr(attention, name, None)
            bias = biased if before is None else before.bias is not None
            setattr(self, name, padded(before, heads * size, width, bias))
        before = getattr(attention, out, None)
        setattr(self, out, padded(before, width, groups * share * size, biased or bias_of(before) is not None))
        for name in ("q_norm", "k_norm"):
            setattr(self, name, getattr(attention, name, None) or nn.RMSNorm(size))  # read for Qwen3 alone


def bias_of(projection: Any) -> Tensor | None:
    return None if projection is None else projection.bias


def padded(before: Any, rows: int, columns: int, bias: bool) -> nn.Linear:
    """A linear layer of zeros, with another one (or none) in its first rows and columns."""
    made = nn.Linear(columns, rows, bias=bias)
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.zero_()
        if before is not None:
            made.weight[: before.weight.shape[0], : before.weight.shape[1]] = before.weight
            if before.bias is not None:
                made.bias[: len(before.bias)] = before.bias
    return made


def equal_heads(model: Model) -> Any:
    """A copy of the model in which every layer of a stack has the same number of heads."""
    hf = copy.deepcopy(model.hf).float()
    modules = dict(hf.named_modules())
    (share,), stacks = shares(model) or {1}, fullest(model)
    for site in model.heads.sites:
        name, stack = model.found.names[site], "encoder" if site.kind == "encoder-self" else "decoder"
        owner, _, own = name.rpartition(".")
        biased = any(
            bias_of(getattr(model.found.modules[other], "q_proj", None)) is not None for other in of(model, site)
        )
        layer = Padded(modules[name], stacks[stack], share, model.found.head_size, width(hf), biased)
        setattr(modules[owner], own, layer)
    heads = {stack: groups * share for stack, groups in stacks.items()}
    config = hf.config
    if config.is_encoder_decoder:
        config.encoder_attention_heads, config.decoder_attention_heads = heads["encoder"], heads["decoder"]
    else:
        config.num_attention_heads, config.num_key_value_heads = heads["decoder"], stacks["decoder"]
        config.head_dim = model.found.head_size
    return hf


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
            set_heads(spec, hf.config, model.found.head_size)
            set_positions(spec, hf)
            if spec.config.unk_token is None:  # a byte-level vocabulary has none; CTranslate2 wants a string
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
    if config.model_type != "marian" or config.decoder_start_token_id == config.pad_token_id == config.vocab_size - 1:
        return None
    config.normalize_before, config.normalize_embedding = False, False
    return converters.BartLoader()


def set_positions(spec: Any, hf: Any) -> None:
    """M2M100 counts positions from the padding's number on; CTranslate2 takes for granted that this is 1."""
    if hf.config.model_type == "m2m_100":
        for stack, module in ((spec.encoder, hf.get_encoder()), (spec.decoder, hf.get_decoder())):
            first = module.embed_positions.padding_idx + 1
            stack.position_encodings.encodings = module.embed_positions.weights[first:].numpy()


def set_heads(spec: Any, config: Any, size: int) -> None:
    """State the heads of each stack, and the head size of every layer, which no longer is width / heads."""
    from ctranslate2.specs.attention_spec import MultiHeadAttentionSpec

    for stack in ("encoder", "decoder"):
        if hasattr(spec, stack):
            part = getattr(spec, stack)
            heads = getattr(config, f"{stack}_attention_heads", None) or config.num_attention_heads
            part.num_heads = np.dtype("int16").type(heads)
            for layer in part.layer:
                for attention in (value for value in vars(layer).values() if isinstance(value, MultiHeadAttentionSpec)):
                    vars(attention)["head_dim"] = np.dtype("int32").type(size)  # not all loaders state it


def notes(model: Model) -> list[str]:
    """What the padding costs, in heads."""
    stacks = fullest(model)
    padded_to = {
        site: stacks["encoder" if site.kind == "encoder-self" else "decoder"] * next(iter(shares(model) or {1}))
        for site in model.heads.sites
    }
    added = sum(padded_to.values()) - model.heads.total
    return (
        [f"{added} heads of zeros were added: CTranslate2 wants equally many in every layer of a stack"]
        if added
        else []
    )
