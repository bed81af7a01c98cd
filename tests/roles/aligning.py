"""Models whose cross heads align, made by hand: each knows some words, and looks where those are."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import torch
from scipy.io import wavfile
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from torch import nn
from transformers import (
    MarianConfig,
    MarianMTModel,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    WhisperConfig,
    WhisperForConditionalGeneration,
)

from headwise.data.text import ParallelText
from headwise.model import Model

WORDS = [f"w{n}" for n in range(20)]
SPECIAL = [
    "<pad>",
    "</s>",
    "<unk>",
    "<|startoftranscript|>",
    "<|notimestamps|>",
    "<|en|>",
    "<|transcribe|>",
    "<|translate|>",
    "<|endoftext|>",
]
SHAPE = dict(
    d_model=32,
    encoder_layers=1,
    decoder_layers=2,
    encoder_attention_heads=2,
    decoder_attention_heads=2,
    encoder_ffn_dim=8,
    decoder_ffn_dim=8,
    pad_token_id=0,
    bos_token_id=None,
    eos_token_id=1,
    decoder_start_token_id=0,
    vocab_size=len(SPECIAL) + len(WORDS),
)
FIRST, LATER = (0, 1), (1, 0)  # layer and head of those that know the first words, and the others


def word_tokenizer() -> PreTrainedTokenizerFast:
    raw = Tokenizer(
        models.WordLevel({word: n for n, word in enumerate(SPECIAL + WORDS)}, unk_token="<unk>")
    )
    raw.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    raw.post_processor = processors.TemplateProcessing(
        single="$A </s>", special_tokens=[("</s>", 1)]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=raw, pad_token="<pad>", eos_token="</s>", unk_token="<unk>"
    )


def hollow(model: PreTrainedModel) -> None:
    """Every sublayer gives zero, and every head attends everywhere alike."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "layers." in name and "norm" not in name:
                parameter.zero_()


def looking(attention: nn.Module, head: int, query: torch.Tensor, key: torch.Tensor) -> None:
    """A head with these projections, size x width."""
    size = query.shape[0]
    with torch.no_grad():
        attention.q_proj.weight[head * size : (head + 1) * size] = query
        attention.k_proj.weight[head * size : (head + 1) * size] = key


def translator() -> Model:
    """Two heads that look at the source word that was written last: one for words 0 to 9, one for the others."""
    hf = MarianMTModel(MarianConfig(**SHAPE, max_position_embeddings=32, scale_embedding=False))
    hollow(hf)
    with torch.no_grad():
        hf.model.shared.weight.copy_(torch.eye(len(SPECIAL) + len(WORDS), 32))
        for stack in (hf.model.encoder, hf.model.decoder):
            stack.embed_positions.weight.zero_()
    for (layer, head), first in ((FIRST, len(SPECIAL)), (LATER, len(SPECIAL) + 10)):
        known = torch.zeros(16, 32)
        known[torch.arange(10), first + torch.arange(10)] = 8.0
        looking(hf.model.decoder.layers[layer].encoder_attn, head, known, known)
    return Model(hf, word_tokenizer(), "by-hand")


def pairs(folder: Path, count: int = 60) -> tuple[ParallelText, Path]:
    """Pairs of six words in two orders; each target word but the first is linked with the one before it."""
    draw = random.Random(0)
    lines: list[list[str]] = [[], [], []]
    for _ in range(count):
        words = draw.sample(WORDS, 6)
        written = draw.sample(words, 6)
        found = [f"{words.index(before)}-{n}" for n, before in enumerate(written[:-1], start=1)]
        for side, line in zip(lines, (words, written, found), strict=True):
            side.append(" ".join(line))
    for name, side in zip(("source", "target", "links"), lines, strict=True):
        (folder / name).write_text("\n".join(side) + "\n")
    return ParallelText.read(folder / "source", folder / "target"), folder / "links"


def start_of(word: str) -> float:
    """When a word is said: later ones faster and faster."""
    return round(0.1 + 1.7 * (int(word[1:]) / 20) ** 0.5, 2)


def listener() -> Model:
    """A Whisper of 2 seconds with two heads that look at the time of their words."""
    shape = WhisperConfig(
        **SHAPE | dict(d_model=64, decoder_start_token_id=3),
        num_mel_bins=8,
        max_source_positions=100,
        max_target_positions=32,
        median_filter_width=3,
    )
    hf = WhisperForConditionalGeneration(shape)
    hf.generation_config.is_multilingual = True
    hollow(hf)
    encoder, decoder = hf.model.encoder, hf.model.decoder
    fast = torch.cat(
        [torch.arange(16), torch.arange(32, 48)]
    )  # sines and cosines that change quickly
    with torch.no_grad():
        for convolution in (encoder.conv1, encoder.conv2):
            convolution.weight.zero_()
            convolution.bias.zero_()
        decoder.embed_positions.weight.zero_()
        decoder.embed_tokens.weight.zero_()
        for n, word in enumerate(WORDS):
            half = slice(0, 32) if n < 10 else slice(32, 64)
            frame = encoder.embed_positions.weight[round(start_of(word) / 0.02), fast]
            decoder.embed_tokens.weight[len(SPECIAL) + n, half] = frame
    centred = torch.eye(32) - 1 / 32  # without what the layer norm adds everywhere
    for (layer, head), half in ((FIRST, slice(0, 32)), (LATER, slice(32, 64))):
        query, key = torch.zeros(32, 64), torch.zeros(32, 64)
        query[:, half], key[:, fast] = 8 * centred, centred
        looking(decoder.layers[layer].encoder_attn, head, query, key)
    return Model(hf, word_tokenizer(), "by-hand")


def spoken(folder: Path, count: int = 24) -> Path:
    """A table of utterances of five words, and their audio (noise: the model above does not listen)."""
    draw = random.Random(0)
    lines = ["audio,word,start,end,language"]
    for number in range(count):
        rate = 16000 if number % 2 else 8000
        noise = np.random.default_rng(number).integers(-999, 999, 2 * rate, dtype=np.int16)
        wavfile.write(folder / f"{number}.wav", rate, noise)
        for n in sorted(draw.sample(range(20), 5)):
            lines.append(f"{number}.wav,w{n},{start_of(f'w{n}')},{start_of(f'w{n}') + 0.02},en")
    (folder / "words.csv").write_text("\n".join(lines) + "\n")
    return folder / "words.csv"
