"""The files that CTranslate2 reads, for which models it has them, and what its caller must know.

CTranslate2 reads one number of heads for a whole stack (encoder, decoder), and one head size. So layers with fewer
heads than the fullest of their stack are padded with heads of zeros: exact, but only what all layers have lost is
saved. CTranslate2's own converter does the rest.
"""

from __future__ import annotations

import copy
import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from headwise.core.heads import Site
from headwise.models.attention.configuration import configured_alignment_heads, start_token
from headwise.models.attention.discover import Discovery
from headwise.models.attention.head_counts import state_counts
from headwise.models.attention.matrices import ZEROS, chosen
from headwise.models.attention.padding import (
    HeadPlaces,
    fullest,
    groups_of,
    one_after_another,
    placed_weights,
    plain_config,
    position_table,
)
from headwise.models.attention.position_bias import TABLE
from headwise.models.attention.rebuilt import give_weights, stock_model
from headwise.models.model_files import README

TRANSLATION_MODELS = ("marian", "m2m_100", "bart", "mbart", "pegasus", "t5", "mt5", "whisper")
LANGUAGE_MODELS = ("llama", "mistral", "qwen2", "qwen3")
# Families in which the first layer's bias by relative position serves all.
SHARED_BIAS = ("t5", "mt5")
# Whether a family normalises before a layer, and whether it normalises its embeddings.
NORMS = {"bart": (False, True), "mbart": (True, True), "pegasus": (True, False)}


def ct2_refusal(hf: Any, tokenizer: Any, discovery: Discovery) -> str | None:
    """Why CTranslate2 cannot run this model; None where it can."""
    family = hf.config.model_type
    heads = discovery.heads
    if family not in TRANSLATION_MODELS + LANGUAGE_MODELS or hf.get_output_embeddings() is None:
        families = ", ".join(TRANSLATION_MODELS + LANGUAGE_MODELS)
        return (
            f"CTranslate2 with fewer heads is written for models that write text of {families}, "
            f"not a {family}"
        )
    if tokenizer is None:
        return "it has no tokenizer, which the model has inside"
    unknown = [str(head) for head in configured_alignment_heads(hf) if head not in heads]
    if unknown:
        return (
            f"its alignment heads are others than its own ({unknown[0]}): "
            "correct its generation_config.json"
        )
    return None


def places_in_model(hf: Any, discovery: Discovery) -> dict[Site, HeadPlaces]:
    """Which heads are where: every layer of a stack is filled up to the fullest, and heads that align stand first."""
    groups = groups_of(hf, discovery)
    places: dict[Site, HeadPlaces] = {}
    for stack in ("encoder", "decoder"):
        own = {site: heads for site, heads in groups.items() if stack_of(site) == stack}
        places |= one_after_another(own, *fullest(own))
    layer, aligned, _ = alignment_layer(hf)
    if aligned:
        site = Site("cross", layer)
        others = [head for head in places[site].query if head not in aligned]
        # CTranslate2 averages the first heads of the layer, as many as the model file says.
        places[site] = HeadPlaces([*aligned, *others], [*aligned, *others])
    return places


def stack_of(site: Site) -> str:
    return "encoder" if site.kind == "encoder-self" else "decoder"


def with_equal_heads(hf: Any, discovery: Discovery, places: Mapping[Site, HeadPlaces]) -> Any:
    """A copy of the model, of the same class, in which every layer of a stack has the same number of heads."""
    padded: Any = stock_model(hf, plain_config(hf))
    weights = placed_weights(hf, discovery, padded, places, {})
    # CTranslate2 reads arrays of the CPU, and writing int8 it scales them where they lie: so they are copies.
    give_weights(
        padded,
        {name: each.to("cpu", torch.float32, copy=True) for name, each in weights.items()},
    )
    config = padded.config
    for site, heads in places.items():
        if not config.is_encoder_decoder:
            state_counts(config, len(heads.query), len(heads.key_value))
            config.head_dim = discovery.head_size
        elif hasattr(config, f"{stack_of(site)}_attention_heads"):
            setattr(config, f"{stack_of(site)}_attention_heads", len(heads.query))

    family = config.model_type
    # CTranslate2 reads the configuration, which may lack what transformers computes by the family.
    if family in NORMS:
        config.normalize_before, config.normalize_embedding = NORMS[family]
    padded.generation_config = copy.copy(hf.generation_config)
    if family == "whisper" and not configured_alignment_heads(hf):
        # CTranslate2 takes all heads of the upper half; the heads of zeros are not among them.
        half = config.decoder_layers // 2
        upper = [head for head in discovery.heads.only(["cross"]) if head.layer >= half]
        padded.generation_config.alignment_heads = [[head.layer, head.head] for head in upper]
    return padded


def alignment_layer(hf: Any) -> tuple[int, list[int], str]:
    """The layer whose first heads CTranslate2 averages to align, these heads, and a note on those it cannot take.

    Whisper models name any heads, so theirs stay in their places; language models give no attention.
    """
    heads = configured_alignment_heads(hf)
    if not heads or hf.config.model_type in ("whisper", *LANGUAGE_MODELS):
        return -1, [], ""
    # The layer of the first one: `align` names the best first.
    layer = heads[0].layer
    first = list(dict.fromkeys(head.head for head in heads if head.layer == layer))
    others = [str(head) for head in heads if head.layer != layer]
    if not others:
        return layer, first, ""
    note = (
        "CTranslate2 averages heads of one layer to align: "
        f"{', '.join(others)} were left out (--one-layer avoids this)"
    )
    return layer, first, note


def write_folder(
    hf: Any, tokenizer: Any, discovery: Discovery, folder: Path, dtype: str
) -> list[str]:
    """Write a CTranslate2 model to a folder, with weights of a type that it knows. Returns notes for the user."""
    from ctranslate2.converters import transformers as converters

    places = places_in_model(hf, discovery)
    padded = with_equal_heads(hf, discovery, places)
    prefix = target_prefix(hf, tokenizer)

    class Converter(converters.TransformersConverter):
        # The model is in memory, so nothing is loaded from a folder.
        def load_model(self, *_: Any, **__: Any) -> Any:
            return padded

        def load_tokenizer(self, *_: Any, **__: Any) -> Any:
            return tokenizer

        def _load(self) -> Any:
            loader = own_loader(converters, padded, tokenizer)
            if loader is None:
                spec = super()._load()
            else:
                with torch.no_grad():
                    spec = loader(padded, tokenizer)
            set_heads(spec, hf, discovery, places)
            set_positions(spec, padded)
            set_t5(spec, hf, discovery, places)
            set_start(spec, hf, tokenizer)
            if prefix:
                # CTranslate2 does not read it: for who calls it.
                spec.config.add_attribute("target_prefix", prefix)
            # A byte-level vocabulary has no unknown word, mBART-50 no first one; CTranslate2 wants a string.
            for word in ("unk_token", "bos_token"):
                if getattr(spec.config, word, "") is None:
                    setattr(spec.config, word, "")
            return spec

    with tempfile.TemporaryDirectory() as scratch:
        # The converter chooses its loader by the configuration's class.
        hf.config.save_pretrained(scratch)
        Converter(scratch).convert(str(folder), quantization=dtype, force=True)
    tokenizer.save_pretrained(folder)
    said = notes(hf, discovery, places)
    if prefix:
        (folder / README).write_text(
            f"# A translation model for CTranslate2\n\nIts {prefix_note(prefix)}.\n"
        )
        said.append(prefix_note(prefix))
    return said


def target_prefix(hf: Any, tokenizer: Any) -> list[str]:
    """The tokens that CTranslate2's caller must give for each sentence: the language that translations begin with, which
    `generate` reads in its settings. Empty for most models."""
    if hf.config.model_type not in TRANSLATION_MODELS or hf.config.model_type == "whisper":
        return []
    forced = hf.generation_config.forced_bos_token_id
    if type(tokenizer).__name__.startswith("MBartTokenizer"):
        forced = start_token(hf)
    return [] if forced is None else [str(tokenizer.convert_ids_to_tokens(forced))]


def prefix_note(prefix: list[str]) -> str:
    """What a caller has to do, in words."""
    return (
        f"translations begin with {prefix[0]}, which no file of CTranslate2 can say: give target_prefix="
        f"[{json.dumps(prefix)}], once for each sentence, and leave it out of the result"
    )


def own_loader(converters: Any, hf: Any, tokenizer: Any) -> Any:
    """A loader for a Marian model that does not start from an embedding of zeros, which CTranslate2 takes for granted:
    those that headwise trains start from a token; and for M2M100, whose tokenizer no longer lists its languages among
    its special tokens. None for every other model."""
    config = hf.config
    if hasattr(tokenizer, "num_madeup_words"):

        class Loader(converters.M2M100Loader):
            def get_vocabulary(self, model: Any, tokenizer: Any) -> list[str]:
                words = tokenizer.convert_ids_to_tokens(range(config.vocab_size))
                first = len(tokenizer.encoder) + len(tokenizer.lang_code_to_id)
                return [*words[:first], *(f"madeupword{n}" for n in range(len(words) - first))]

        return Loader()
    if config.model_type != "marian":
        return None
    if config.decoder_start_token_id == config.pad_token_id == config.vocab_size - 1:
        return None
    # The loader of BART reads these, which Marian's configuration does not have.
    config.normalize_before = False
    config.normalize_embedding = False
    return converters.BartLoader()


def set_positions(spec: Any, hf: Any) -> None:
    """M2M100 counts positions from the padding's number on; CTranslate2 takes for granted that this is 1."""
    if hf.config.model_type == "m2m_100":
        for stack, module in ((spec.encoder, hf.get_encoder()), (spec.decoder, hf.get_decoder())):
            first = module.embed_positions.padding_idx + 1
            stack.position_encodings.encodings = module.embed_positions.weights[first:].numpy()


def set_heads(spec: Any, hf: Any, discovery: Discovery, places: Mapping[Site, HeadPlaces]) -> None:
    """State the heads of each stack, those that align, and the head size of every layer, which no longer is width /
    heads."""
    from ctranslate2.specs.attention_spec import MultiHeadAttentionSpec

    int16 = np.dtype("int16").type
    int32 = np.dtype("int32").type
    for site, heads in places.items():
        stack = getattr(spec, stack_of(site))
        stack.num_heads = int16(len(heads.query))
        for value in vars(stack.layer[site.layer]).values():
            if isinstance(value, MultiHeadAttentionSpec):
                # Not all loaders state it.
                vars(value)["head_dim"] = int32(discovery.head_size)

    layer, first, _ = alignment_layer(hf)
    if first:
        spec.decoder.alignment_layer = int16(layer)
        spec.decoder.alignment_heads = int16(len(first))


def set_start(spec: Any, hf: Any, tokenizer: Any) -> None:
    """Start with the token that transformers starts with; some loaders take it for granted.

    Not for Marian models that start from zeros, Whisper, and mBART-25, whose user gives the language as a prefix.
    """
    family = hf.config.model_type
    zeros = getattr(getattr(spec, "decoder", None), "start_from_zero_embedding", False)
    prefixed = type(tokenizer).__name__.startswith("MBartTokenizer")
    if family in TRANSLATION_MODELS and family != "whisper" and not zeros and not prefixed:
        spec.config.decoder_start_token = tokenizer.convert_ids_to_tokens(start_token(hf))


def set_t5(spec: Any, hf: Any, discovery: Discovery, places: Mapping[Site, HeadPlaces]) -> None:
    """Give every layer of a T5 the biases by relative position of its own heads, bucket by head, and scale the output
    only where transformers does."""
    if hf.config.model_type not in SHARED_BIAS:
        return
    from ctranslate2.specs.model_spec import OPTIONAL

    for site, heads in places.items():
        if site.kind == "cross":
            continue
        holder = position_table(discovery, site)
        assert holder is not None
        own: Any = getattr(discovery.modules[site], "bias_heads", None)
        columns = [h if own is None or h == ZEROS else int(own[h]) for h in heads.query]
        table = chosen(holder.get_parameter(f"{TABLE}.weight"), torch.tensor(columns), 1)
        layer = getattr(spec, stack_of(site)).layer[site.layer]
        layer.self_attention.relative_attention_bias = table.float().cpu()
    # CTranslate2 goes by tied embeddings; MT5 never scales, whatever its configuration ties.
    if not getattr(hf.config, "scale_decoder_outputs", False):
        spec.decoder.scale_outputs = OPTIONAL


def notes(hf: Any, discovery: Discovery, places: Mapping[Site, HeadPlaces]) -> list[str]:
    """What the padding costs, in heads, and what else its user must know."""
    sentences = []
    _, _, left_out = alignment_layer(hf)
    if left_out:
        sentences.append(left_out)
    added = sum(heads.query.count(ZEROS) for heads in places.values())
    if added:
        sentences.append(
            f"{added} heads of zeros were added: CTranslate2 wants equally many in every layer of "
            "a stack, so of the removed heads those count that all layers have lost"
        )
    reduced = any(hasattr(module, "bias_heads") for module in discovery.modules.values())
    if hf.config.model_type in SHARED_BIAS and reduced:
        sentences.append(
            "run it in CTranslate2 4.8.5 or later: "
            "earlier ones use the first layer's position bias everywhere"
        )
    return sentences
