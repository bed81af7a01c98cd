"""What the weights of one model are called in Marian and in transformers, and how they lie there."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from headwise.models.marian.files import SCALE
from headwise.models.marian.network import SSRU, MarianToolkitConfig

OUTPUT = "decoder_ff_logit_out"
# By these options a file leaves weights out (`written_out`).
TIED_LAYERS, NO_PROJECTION = "transformer-tied-layers", "transformer-no-projection"
PROJECTIONS = (("q_proj", "q"), ("k_proj", "k"), ("v_proj", "v"), ("out_proj", "o"))


@dataclass(frozen=True)
class Entry:
    """One weight. ours, theirs: its names here and in Marian. transposed: a matrix, which Marian holds as inputs ×
    outputs and torch as outputs × inputs; vectors are 1 × size there."""

    ours: str
    theirs: str
    transposed: bool = False


def entries(config: MarianToolkitConfig) -> Iterator[Entry]:
    """Every weight of the layers; the embeddings and the output layer are in `embeddings`."""
    for side, layers in (("encoder", config.encoder_layers), ("decoder", config.decoder_layers)):
        for layer in range(layers):
            ours = f"model.{side}.layers.{layer}"
            # Marian counts layers from 1.
            theirs = f"{side}_l{layer + 1}"
            if side == "decoder" and config.decoder_autoreg == SSRU:
                # An SSRU takes the place of self-attention; Marian names its norm after `ffn` all the same.
                yield Entry(f"{ours}.self_attn.W.weight", f"{theirs}_rnn_W", True)
                yield from linear_names(
                    f"{ours}.self_attn.Wf", f"{theirs}_rnn_Wf", f"{theirs}_rnn_bf"
                )
                yield from norms(
                    config, f"{ours}", "self_attn", f"{theirs}_rnn", f"{theirs}_rnn_ffn"
                )
            else:
                yield from attention(config, ours, "self_attn", f"{theirs}_self")
            if side == "decoder":
                yield from attention(config, ours, "encoder_attn", f"{theirs}_context")
            for number in "12":
                name = f"{theirs}_ffn"
                yield from linear_names(
                    f"{ours}.fc{number}", f"{name}_W{number}", f"{name}_b{number}"
                )
            yield from norms(config, ours, "ffn", f"{theirs}_ffn_ffn", f"{theirs}_ffn_ffn")
        if "n" in config.postprocess_emb:
            yield from norm_names(f"model.{side}.layers.0.embedded", f"{side}_emb", "_pre")
        if "n" in config.postprocess_top:
            yield from norm_names(f"model.{side}.layers.{layers - 1}.top", f"{side}_top", "")


def written_out(
    arrays: Mapping[str, np.ndarray], options: Mapping[str, Any]
) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """The same model without the options by which a file leaves weights out: decoder layers that share theirs get copies of
    them, attention without an output projection the identity. An option that does not fit the weights stays."""
    arrays, options = dict(arrays), dict(options)
    tied = options.get(TIED_LAYERS)
    layers = {found[1] for name in arrays if (found := re.match(r"decoder_l(\d+)_", name))}
    if (
        isinstance(tied, list)
        and len(tied) == options.get("dec-depth")
        and {str(number) for number in tied} == layers
    ):
        del options[TIED_LAYERS]
        shared = {name: arrays.pop(name) for name in list(arrays) if name.startswith("decoder_l")}
        for layer, number in enumerate(tied, 1):
            start = f"decoder_l{number}_"
            for name, array in shared.items():
                if name.startswith(start):
                    arrays[f"decoder_l{layer}_{name.removeprefix(start)}"] = array

    # An engine of int8 would want a scale for the identity.
    if options.get(NO_PROJECTION) and not any(name.endswith(SCALE) for name in arrays):
        del options[NO_PROJECTION]
        for name in [name for name in arrays if re.search(r"_l\d+_(self|context)_Wv$", name)]:
            start = name.removesuffix("Wv")
            width = arrays[name].shape[-1]
            arrays.setdefault(f"{start}Wo", np.eye(width, dtype=np.float32))
            arrays.setdefault(f"{start}bo", np.zeros((1, width), np.float32))
    return arrays, options


def embedding_places(config: MarianToolkitConfig) -> dict[str, tuple[str, int]]:
    """The matrices of words, with that of the output layer: by the name here, the name in Marian and how many words the
    matrix has there. Here all have the same number of words, the last of them for padding."""
    source, target = embedding_names(config.toolkit or {})
    output = target if config.tie_word_embeddings else f"{OUTPUT}_Wt"
    found = {
        "model.encoder.embed_tokens.weight": (source, config.source_words),
        "model.decoder.embed_tokens.weight": (target, config.target_words),
        "lm_head.weight": (output, config.target_words),
    }
    if config.share_encoder_decoder_embeddings:
        found["model.shared.weight"] = (source, config.source_words)
    return found


def embedding_names(options: Mapping[str, Any]) -> tuple[str, str]:
    """What the matrices of the source's and the target's words are called."""
    if options.get("tied-embeddings-all") or options.get("tied-embeddings-src"):
        return "Wemb", "Wemb"
    return "encoder_Wemb", "decoder_Wemb"


def attention(
    config: MarianToolkitConfig, ours: str, sublayer: str, theirs: str
) -> Iterator[Entry]:
    for projection, letter in PROJECTIONS:
        yield from linear_names(
            f"{ours}.{sublayer}.{projection}", f"{theirs}_W{letter}", f"{theirs}_b{letter}"
        )
    yield from norms(config, ours, sublayer, f"{theirs}_Wo", f"{theirs}_Wo")


def linear_names(ours: str, weight: str, bias: str) -> Iterator[Entry]:
    yield Entry(f"{ours}.weight", weight, True)
    yield Entry(f"{ours}.bias", bias)


def norms(
    config: MarianToolkitConfig, layer: str, sublayer: str, before: str, after: str
) -> Iterator[Entry]:
    """The norms before and after a sublayer. before, after: what their names begin with in Marian."""
    if "n" in config.preprocess:
        yield from norm_names(f"{layer}.before_{sublayer}", before, "_pre")
    if "n" in config.postprocess:
        yield from norm_names(f"{layer}.after_{sublayer}", after, "")


def norm_names(steps: str, theirs: str, ending: str) -> Iterator[Entry]:
    yield Entry(f"{steps}.norm.weight", f"{theirs}_ln_scale{ending}")
    yield Entry(f"{steps}.norm.bias", f"{theirs}_ln_bias{ending}")
