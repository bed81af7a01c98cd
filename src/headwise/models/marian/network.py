"""A model of Marian as it computes: transformers' Marian with what its port leaves out.

The port is of one shape (post-norm, with self-attention in the decoder), and differs from the toolkit in two numbers:
the sinusoids, whose frequencies fall to exactly 1/10,000 in the toolkit, and the 1e-6 of its layer norms. Here sublayers
are in any of the toolkit's orders, and the decoder may have an SSRU in place of self-attention (Kim et al. 2019, From
Research to Production and Back, section 3.1). Written after src/models/transformer.h and src/rnn/cells.h of marian-dev.
"""

from __future__ import annotations

from typing import Any

import torch
from huggingface_hub.dataclasses import strict
from torch import Tensor, nn
from torch.nn.functional import dropout
from torch.overrides import handle_torch_function, has_torch_function
from transformers import AutoConfig, AutoModelForSeq2SeqLM, MarianConfig, MarianMTModel
from transformers.cache_utils import DynamicSlidingWindowLayer
from transformers.models.marian.modeling_marian import (
    MarianDecoderLayer,
    MarianEncoderLayer,
    MarianSinusoidalPositionalEmbedding,
)

NORM_EPSILON = 1e-6
# The slowest of the sinusoids turns by 1/SLOWEST radians a position.
SLOWEST = 10_000
SSRU = "ssru"


@strict
class MarianToolkitConfig(MarianConfig):
    """The configuration of a `MarianToolkitModel`.

    preprocess, postprocess: what comes before and after a sublayer, in order: d dropout, a the sublayer's input is
    added, n layer norm. postprocess_emb, postprocess_top: the same after the embeddings and after the last layer.
    preprocess_keys: whether keys and values of self-attention are preprocessed, too, as in Marian since 1.11; before,
    only queries were. positions: whether embeddings are scaled by the root of the width and get sinusoids. decoder_autoreg:
    what every layer of the decoder begins with, `self-attention` or `ssru`. source_words, target_words: how many the
    matrices have in Marian. toolkit: the configuration in its file. activation_scales: by a matrix's name in the toolkit,
    the factor by which engines of int8 scale its inputs.
    """

    model_type = "marian-toolkit"

    preprocess: str = ""
    postprocess: str = "dan"
    postprocess_emb: str = "d"
    postprocess_top: str = ""
    preprocess_keys: bool = False
    positions: bool = True
    decoder_autoreg: str = "self-attention"
    source_words: int = 0
    target_words: int = 0
    toolkit: dict[str, Any] | None = None
    activation_scales: dict[str, float] | None = None


class Sinusoids(MarianSinusoidalPositionalEmbedding):
    """Positions as Marian has them: sines, then cosines, of the position times SLOWEST^(−i / (number of sines − 1))."""

    def create_weight(self) -> Tensor:
        return sinusoids(*self.weight.shape).to(self.weight)


class NoPositions(MarianSinusoidalPositionalEmbedding):
    """Zeros, of a model that sees no order but by its masks."""

    def create_weight(self) -> Tensor:
        return torch.zeros_like(self.weight)


def sinusoids(positions: int, width: int) -> Tensor:
    """The positions of `Sinusoids`, positions × width."""
    sines = width // 2
    # On the CPU even inside of `torch.device("meta")`, and in float64, so that all machines have the same table.
    # From 0 to exactly 1: the last sine is the slowest one.
    powers = torch.arange(sines, dtype=torch.float64, device="cpu") / max(sines - 1, 1)
    angles = torch.arange(positions, dtype=torch.float64, device="cpu")[:, None] * SLOWEST**-powers
    return torch.cat([angles.sin(), angles.cos()], 1).float()


class Ssru(nn.Module):
    """The simpler simple recurrent unit: c_t = f_t c_{t−1} + (1 − f_t) W x_t, f_t = σ(W_f x_t + b_f); it gives relu(c_t).

    It stands where a decoder layer's self-attention stands. In the cache the state is the key of the last token.
    """

    def __init__(self, width: int, layer_idx: int) -> None:
        super().__init__()
        self.W = nn.Linear(width, width, bias=False)
        self.Wf = nn.Linear(width, width)
        self.layer_idx = layer_idx

    def forward(
        self, hidden_states: Tensor, past_key_values: Any = None, **_: Any
    ) -> tuple[Tensor, None]:
        new = self.W(hidden_states)
        keep = torch.sigmoid(self.Wf(hidden_states))
        cache = getattr(past_key_values, "self_attention_cache", past_key_values)
        state = torch.zeros_like(new[:, 0])
        if cache is not None:
            add_state_layer(cache, self.layer_idx)
            if cache.layers[self.layer_idx].is_initialized:
                # The key of the last token; of an empty cache, the zeros.
                before = cache.layers[self.layer_idx].keys[:, 0]
                state = torch.cat([state[:, None], before], 1)[:, -1]
        # Without a cache the whole target at once, with one the tokens that are new.
        every = recur(keep, new, state)
        if cache is not None:
            # A layer of the cache also wants values: one number a token.
            cache.update(every[:, None], every[:, None, :, :1], self.layer_idx)
        return torch.relu(every), None


def recur(keep: Tensor, new: Tensor, state: Tensor) -> Tensor:
    """The states c_t = keep_t c_{t−1} + (1 − keep_t) new_t, B T W. state: the one before the first, B W.

    A TorchFunctionMode gets it as one function: relevance propagation treats it as one step.
    """
    if has_torch_function((keep, new)):
        handled: Tensor = handle_torch_function(recur, (keep, new), keep, new, state)
        return handled
    states = []
    for kept, value in zip(keep.unbind(1), new.unbind(1), strict=True):
        state = kept * state + (1 - kept) * value
        states.append(state)
    return torch.stack(states, 1)


def add_state_layer(cache: Any, index: int) -> None:
    """Give a layer of the cache that is still empty room for one state: a window of the token that is read and the one
    before it."""
    while len(cache.layers) <= index:
        cache.layers.append(cache.layer_class_to_replicate())
    if not cache.layers[index].is_initialized:
        cache.layers[index] = DynamicSlidingWindowLayer(sliding_window=2)


class Steps(nn.Module):
    """What Marian does before or after a sublayer: `operations`, a letter each (`MarianToolkitConfig`)."""

    def __init__(self, operations: str, config: MarianToolkitConfig) -> None:
        super().__init__()
        self.operations = operations
        self.dropout = config.dropout
        self.norm = nn.LayerNorm(config.d_model, NORM_EPSILON) if "n" in operations else None

    def forward(self, hidden: Tensor, before: Tensor | None = None) -> Tensor:
        for operation in self.operations:
            if operation == "d":
                hidden = dropout(hidden, self.dropout, self.training)
            elif operation == "a":
                assert before is not None
                hidden = before + hidden
            else:
                assert self.norm is not None
                hidden = self.norm(hidden)
        return hidden


def add_steps(
    layer: Any,
    sublayers: tuple[str, ...],
    config: MarianToolkitConfig,
    is_first: bool,
    is_last: bool,
) -> None:
    """Give a layer its steps: `embedded`, `before_…` and `after_…` each sublayer, `top`."""
    layer.embedded = Steps(config.postprocess_emb if is_first else "", config)
    for sublayer in sublayers:
        setattr(layer, f"before_{sublayer}", Steps(config.preprocess, config))
        setattr(layer, f"after_{sublayer}", Steps(config.postprocess, config))
    layer.top = Steps(config.postprocess_top if is_last else "", config)


class EncoderLayer(MarianEncoderLayer):
    """A layer of the encoder in the toolkit's orders."""

    def __init__(self, config: MarianToolkitConfig, layer_idx: int) -> None:
        super().__init__(config, layer_idx)
        del self.self_attn_layer_norm, self.final_layer_norm
        is_last = layer_idx == config.encoder_layers - 1
        add_steps(self, ("self_attn", "ffn"), config, layer_idx == 0, is_last)
        self.preprocess_keys = config.preprocess_keys

    def forward(
        self, hidden_states: Tensor, attention_mask: Tensor | None, **kwargs: Any
    ) -> Tensor:
        hidden_states = self.embedded(hidden_states)
        query = self.before_self_attn(hidden_states)
        # Without steps before the sublayer there is nothing to tell apart.
        alike = self.preprocess_keys or query is hidden_states
        attended, _ = self.self_attn(
            query,
            key_value_states=None if alike else hidden_states,
            attention_mask=attention_mask,
            **kwargs,
        )
        hidden_states = self.after_self_attn(attended, hidden_states)
        made: Tensor = self.top(feed_forward_sublayer(self, hidden_states))
        return made


class DecoderLayer(MarianDecoderLayer):
    """A layer of the decoder in the toolkit's orders, with self-attention or an SSRU."""

    def __init__(self, config: MarianToolkitConfig, layer_idx: int) -> None:
        super().__init__(config, layer_idx)
        del self.self_attn_layer_norm, self.encoder_attn_layer_norm, self.final_layer_norm
        if config.decoder_autoreg == SSRU:
            self.self_attn = Ssru(config.d_model, layer_idx)
        is_last = layer_idx == config.decoder_layers - 1
        add_steps(self, ("self_attn", "encoder_attn", "ffn"), config, layer_idx == 0, is_last)
        # An SSRU has no keys.
        self.preprocess_keys = config.preprocess_keys or config.decoder_autoreg == SSRU

    def forward(
        self,
        hidden_states: Tensor,
        attention_mask: Tensor | None = None,
        encoder_hidden_states: Tensor | None = None,
        encoder_attention_mask: Tensor | None = None,
        past_key_values: Any = None,
        use_cache: bool | None = True,
        **kwargs: Any,
    ) -> Tensor:
        hidden_states = self.embedded(hidden_states)
        query = self.before_self_attn(hidden_states)
        own: dict[str, Any] = {"past_key_values": past_key_values}
        if query is not hidden_states and not self.preprocess_keys:
            # Keys and values of other states than the queries'; given alone, the cache is that of the target.
            own = {
                "past_key_values": getattr(
                    past_key_values, "self_attention_cache", past_key_values
                ),
                "key_value_states": hidden_states,
            }
        attended, _ = self.self_attn(query, attention_mask=attention_mask, **own, **kwargs)
        hidden_states = self.after_self_attn(attended, hidden_states)

        attended, _ = self.encoder_attn(
            self.before_encoder_attn(hidden_states),
            key_value_states=encoder_hidden_states,
            attention_mask=encoder_attention_mask,
            past_key_values=past_key_values,
            **kwargs,
        )
        hidden_states = self.after_encoder_attn(attended, hidden_states)
        made: Tensor = self.top(feed_forward_sublayer(self, hidden_states))
        return made


def feed_forward_sublayer(layer: Any, hidden_states: Tensor) -> Tensor:
    """The feed-forward sublayer of a layer."""
    # before – sublayer – after: the same frame as of attention.
    inner = layer.activation_fn(layer.fc1(layer.before_ffn(hidden_states)))
    inner = layer.fc2(dropout(inner, layer.activation_dropout, layer.training))
    made: Tensor = layer.after_ffn(inner, hidden_states)
    return made


class MarianToolkitModel(MarianMTModel):
    """A translation model of Marian. Its last word is for padding, and starts every target: its embedding is zero."""

    config: MarianToolkitConfig
    config_class = MarianToolkitConfig

    def __init__(self, config: MarianToolkitConfig) -> None:
        super().__init__(config)
        encoder, decoder = self.model.encoder, self.model.decoder
        encoder.layers = nn.ModuleList(
            EncoderLayer(config, layer) for layer in range(config.encoder_layers)
        )
        decoder.layers = nn.ModuleList(
            DecoderLayer(config, layer) for layer in range(config.decoder_layers)
        )
        positions = Sinusoids if config.positions else NoPositions
        for stack in (encoder, decoder):
            stack.embed_positions = positions(config.max_position_embeddings, config.d_model)
        self.post_init()


# A saved model is loaded by its model_type, as any other; no code of its folder runs.
AutoConfig.register(MarianToolkitConfig.model_type, MarianToolkitConfig)
AutoModelForSeq2SeqLM.register(MarianToolkitConfig, MarianToolkitModel)
