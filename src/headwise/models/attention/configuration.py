"""What a model's configuration says: its heads, those that align, and the token that targets start with. Other programs
write these files, so every fact is checked where it is read."""

from __future__ import annotations

from typing import Any

from torch import nn

from headwise.core.errors import HeadwiseError
from headwise.core.heads import Head, Kind
from headwise.models.attention.backward import words_of

# Types of layers in configurations of hybrid models.
LAYERS_WITHOUT_HEADS = {
    "linear_attention",
    "conv",
    "moe",
    "mlp",
    "dense",
    "sparse",
    "mamba",
    "recurrent",
    "ssru",
}


def start_token(model: nn.Module) -> int:
    """The token that starts every target, as `generate` finds it: in the generation configuration first.

    Raises HeadwiseError when there is none, or when its number is beyond the model's words.
    """
    known: Any = model
    generation = getattr(known, "generation_config", None)
    places = [
        (generation, "decoder_start_token_id"),
        (known.config, "decoder_start_token_id"),
        (generation, "bos_token_id"),
    ]
    start = next(
        (found for place, name in places if (found := getattr(place, name, None)) is not None), None
    )
    # A bare model (`BartModel`) has no output layer; only the number of words is asked for.
    layer = known.get_output_embeddings() or known.get_input_embeddings()
    words = words_of(layer)
    if type(start) is not int or not 0 <= start < words:
        raise HeadwiseError(
            f"The decoder_start_token_id of this {type(model).__name__} is {start}, but it must be one of its {words} "
            "words: set it in generation_config.json."
        )
    return start


def other_start(model: nn.Module) -> str:
    """A sentence on two start tokens that a model declares; empty where it declares one. `generate` and headwise go by the
    first, transformers' own loss by the second."""
    known: Any = model
    settings = getattr(known, "generation_config", None)
    first, second = (
        getattr(place, "decoder_start_token_id", None) for place in (settings, known.config)
    )
    if None in (first, second) or first == second:
        return ""
    return (
        f"targets start with token {first} by its generation_config.json, which headwise and generate go by, and with "
        f"{second} by its config.json, which training in transformers goes by: losses differ. Make them equal."
    )


def configured_alignment_heads(model: nn.Module) -> list[Head]:
    """The heads whose attention says which source word, or which moment of speech, a token belongs to:
    `alignment_heads` of the generation configuration, [[layer, head], …]. Empty where none are named.

    Raises HeadwiseError for entries that are no pairs of a layer and a head.
    """
    listed = getattr(getattr(model, "generation_config", None), "alignment_heads", None) or []
    config: Any = model.config
    kind: Kind = "cross" if config.is_encoder_decoder else "decoder-self"
    try:
        return [Head(kind, int(layer), int(head)) for layer, head in listed]
    except (TypeError, ValueError):
        raise HeadwiseError(
            f"The alignment_heads of this {type(model).__name__} are {listed}, but must be pairs of a layer and a "
            "head: correct its generation_config.json."
        ) from None


def declared_heads(model: nn.Module) -> int | None:
    """How many heads the configuration declares, under the names that transformers uses; None where it has none.

    A model that headwise has pruned declares the heads of its layout. Hybrid models name the type of each layer, and
    some its number of heads (Laguna). Models of Marian name what replaces the decoder's self-attention.
    """
    config: Any = model.config
    cut = getattr(config, "headwise_layout", None)
    if cut:
        return sum(len(row) for layers in cut["kept"].values() for row in layers)
    if not config.is_encoder_decoder:
        config = config.get_text_config()
    by_layer = getattr(config, "num_attention_heads_per_layer", None)
    if by_layer:
        return int(sum(by_layer))

    def first(*names: str) -> int:
        return next(
            (int(getattr(config, n)) for n in names if isinstance(getattr(config, n, None), int)), 0
        )

    heads = first(
        "encoder_attention_heads", "num_attention_heads", "num_heads", "n_head", "n_heads"
    )
    layers = first("encoder_layers", "num_layers", "num_hidden_layers", "n_layer", "n_layers")
    decoder_layers = first("decoder_layers", "num_decoder_layers") or layers
    decoder_heads = first("decoder_attention_heads") or heads
    if config.is_encoder_decoder:
        # Self and cross; Firefox's decoders have an SSRU in place of self-attention.
        attentions = 1 if getattr(config, "decoder_autoreg", None) in LAYERS_WITHOUT_HEADS else 2
        return layers * heads + attentions * decoder_layers * decoder_heads or None
    # The decoder of an encoder-decoder alone (`BartForCausalLM`), whose configuration has both numbers.
    if getattr(config, "is_decoder", False):
        layers, heads = decoder_layers, decoder_heads
    types = getattr(config, "layer_types", None) or getattr(config, "layers_block_type", None)
    return (
        heads * (sum(type not in LAYERS_WITHOUT_HEADS for type in types) if types else layers)
        or None
    )
