"""A translation model from its description (`Architecture`): a class of transformers, newly initialised."""

from __future__ import annotations

import torch
from transformers import (
    M2M100Config,
    M2M100ForConditionalGeneration,
    MarianConfig,
    MarianMTModel,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from headwise.core.errors import HeadwiseError
from headwise.core.options import Architecture
from headwise.models.attention.rebuilt import drop_unused
from headwise.models.generators import drawing_from


def build_model(
    shape: Architecture, tokenizer: PreTrainedTokenizerBase, seed: int
) -> PreTrainedModel:
    """A newly initialised model for a joint vocabulary.

    The encoder has its own embeddings, so that the source side can train alone; the decoder's are tied to the output
    layer (not in M2M100, which cannot tie only those two). Sinusoidal positions, ReLU, embeddings times √width.
    """
    if shape.width % shape.heads:
        raise HeadwiseError(
            f"A width of {shape.width} cannot be divided by {shape.heads} heads: give a multiple of the heads."
        )
    common = dict(
        vocab_size=len(tokenizer),
        d_model=shape.width,
        encoder_layers=shape.encoder_layers,
        decoder_layers=shape.decoder_layers,
        encoder_attention_heads=shape.heads,
        decoder_attention_heads=shape.heads,
        encoder_ffn_dim=shape.feedforward,
        decoder_ffn_dim=shape.feedforward,
        dropout=shape.dropout,
        attention_dropout=shape.attention_dropout,
        activation_dropout=0.0,
        activation_function="relu",
        encoder_layerdrop=0.0,
        decoder_layerdrop=0.0,
        scale_embedding=True,
        init_std=shape.width**-0.5,
        # `sentence_limit` keeps these 8 free.
        max_position_embeddings=max(shape.max_length + 8, 64),
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
        bos_token_id=tokenizer.bos_token_id,
        decoder_start_token_id=tokenizer.bos_token_id,
        forced_eos_token_id=None,
    )
    with drawing_from(seed):
        if shape.norm == "post":
            common |= dict(
                share_encoder_decoder_embeddings=False, decoder_vocab_size=len(tokenizer)
            )
            model = MarianMTModel(MarianConfig(**common))
        else:
            model = drop_unused(
                M2M100ForConditionalGeneration(M2M100Config(**common, tie_word_embeddings=False))
            )
        # transformers draws all matrices with `init_std`, which is right for embeddings only.
        for name, parameter in model.named_parameters():
            if parameter.dim() == 2 and "embed" not in name and "lm_head" not in name:
                torch.nn.init.xavier_uniform_(parameter)
    model.generation_config.update(max_length=shape.max_length, forced_eos_token_id=None)
    return model.eval()
