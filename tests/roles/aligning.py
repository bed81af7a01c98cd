"""Models whose cross heads align, made by hand: each knows some words, and looks where those are."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import torch
from scipy.io import wavfile
from torch import nn
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    MarianConfig,
    MarianMTModel,
    PreTrainedModel,
    WhisperConfig,
    WhisperForConditionalGeneration,
    WhisperTokenizer,
)

from headwise.data.text import ParallelText
from headwise.models.model import Model
from roles.handmade import word_tokenizer

WORDS = [f"w{n}" for n in range(20)]
SPECIAL = ["<pad>", "</s>", "<unk>", "<|startoftranscript|>", "<|notimestamps|>", "<|en|>"]
SPECIAL += ["<|transcribe|>", "<|translate|>", "<|endoftext|>"]
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
    return Model(hf, word_tokenizer(SPECIAL + WORDS), "by-hand")


PROMPT = "say w3 : {source} = {target} ."  # with a word that sentences have, too


def prompted_translator() -> Model:
    """A language model with two heads that look at earlier tokens like the one they read: one knows words 0 to 9, one
    the others."""
    shape = dict(n_embd=32, n_layer=2, n_head=2, n_positions=32)
    hf = GPT2LMHeadModel(GPT2Config(**shape, vocab_size=len(SPECIAL) + len(WORDS)))
    with torch.no_grad():
        for name, parameter in hf.named_parameters():
            if ".h." in name and "ln_" not in name:
                parameter.zero_()
        hf.transformer.wte.weight.copy_(torch.eye(len(SPECIAL) + len(WORDS), 32))
        hf.transformer.wpe.weight.zero_()
        for (layer, head), first in ((FIRST, len(SPECIAL)), (LATER, len(SPECIAL) + 10)):
            attention = hf.transformer.h[layer].attn.c_attn.weight  # in x (queries, keys, values)
            places = torch.arange(10)
            attention[first + places, head * 16 + places] = 2.0
            attention[first + places, 32 + head * 16 + places] = 2.0
    return Model(hf, word_tokenizer(SPECIAL + WORDS), "by-hand")


def copies(folder: Path, count: int = 60) -> tuple[ParallelText, Path]:
    """Pairs of six words in two orders; each target word is linked with itself."""
    text, _ = pairs(folder, count)
    lines = []
    for source, target in text:
        words = source.split()
        lines.append(" ".join(f"{words.index(word)}-{n}" for n, word in enumerate(target.split())))
    (folder / "links").write_text("\n".join(lines) + "\n")
    return text, folder / "links"


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


SPOKEN = list("abcdefghijklmnopqrst")  # one token each: WhisperTokenizer cuts words at digits
STEP = 4  # a word is followed by the fourth after it
SILENCES = ("<|endoftext|>", "<|startoftranscript|>", "<|en|>", "<|transcribe|>", "<|translate|>")


def middle_of(number: int) -> float:
    """The middle of a word in seconds, all in the first half of the audio: later ones faster and faster."""
    return round(0.1 + 1.9 * (number / 20) ** 0.5, 2)


def start_of(number: int) -> float:
    """When a word starts: in the middle between those of its neighbours; the first one of all, with the audio."""
    return 0.0 if number < STEP else round((middle_of(number - STEP) + middle_of(number)) / 2, 2)


def speech_tokenizer() -> WhisperTokenizer:
    """A word a token; behind all words the tokens that begin a transcription, and behind those the times."""
    pieces = ["Ġ", *SPOKEN, *[f"Ġ{word}" for word in SPOKEN]]
    merges = [("Ġ", word) for word in SPOKEN]
    vocabulary = {piece: number for number, piece in enumerate(pieces)}
    tokenizer = WhisperTokenizer(vocab=vocabulary, merges=merges)
    tokenizer.add_special_tokens({"additional_special_tokens": [*SILENCES[1:], "<|notimestamps|>"]})
    return tokenizer


def listener() -> Model:
    """A Whisper of 4 seconds with two heads that look at the middle of the word that comes next."""
    tokenizer = speech_tokenizer()
    names = ("<|endoftext|>", "<|startoftranscript|>", "<|notimestamps|>")
    end, start, no_times = tokenizer.convert_tokens_to_ids(list(names))
    times = 201
    special = dict(decoder_start_token_id=start, eos_token_id=end, pad_token_id=end)
    shape = dict(d_model=64, vocab_size=no_times + 1 + times, num_mel_bins=8)
    lengths = dict(max_source_positions=200, max_target_positions=32, median_filter_width=3)
    hf = WhisperForConditionalGeneration(WhisperConfig(**SHAPE | special | shape | lengths))
    settings = hf.generation_config
    settings.is_multilingual = True
    settings.no_timestamps_token_id = no_times
    settings.lang_to_id = {"<|en|>": tokenizer.convert_tokens_to_ids("<|en|>")}
    settings.task_to_id = {"transcribe": tokenizer.convert_tokens_to_ids("<|transcribe|>")}
    settings._from_model_config = False  # else transformers drops what it does not know
    hollow(hf)
    encoder, decoder = hf.model.encoder, hf.model.decoder
    channels = torch.arange(6, 22)  # the nearer a time, the more alike: no period is short
    place = torch.cat([channels, 32 + channels])  # sines and cosines
    with torch.no_grad():
        for convolution in (encoder.conv1, encoder.conv2):
            convolution.weight.zero_()
            convolution.bias.zero_()
        decoder.embed_positions.weight.zero_()
        decoder.embed_tokens.weight.zero_()
        # Before the first word, and behind the last, both heads look at the beginning.
        beginning = encoder.embed_positions.weight[0, place]
        decoder.embed_tokens.weight[no_times:] = torch.cat([beginning, beginning])
        for n, word in enumerate(SPOKEN):
            half = slice(0, 32) if n + STEP < 10 else slice(32, 64)
            frame = encoder.embed_positions.weight[round(middle_of(n + STEP) / 0.02), place]
            decoder.embed_tokens.weight[tokenizer.convert_tokens_to_ids(f"Ġ{word}"), half] = frame
    centred = torch.eye(32) - 1 / 32  # without what the layer norm adds everywhere
    for (layer, head), half in ((FIRST, slice(0, 32)), (LATER, slice(32, 64))):
        query, key = torch.zeros(32, 64), torch.zeros(32, 64)
        query[:, half], key[:, place] = 6 * centred, centred
        looking(decoder.layers[layer].encoder_attn, head, query, key)
    return Model(hf, tokenizer, "by-hand")


def spoken(folder: Path, count: int = 24, seconds: int = 4) -> Path:
    """A table of utterances of five words, and their audio (noise: the model above does not listen)."""
    lines = ["audio,word,start,end,language"]
    for number in range(count):
        rate = 16000 if number % 2 else 8000
        noise = np.random.default_rng(number).integers(-999, 999, seconds * rate, dtype=np.int16)
        wavfile.write(folder / f"{number}.wav", rate, noise)
        for n in range(number % STEP, 20, STEP):
            lines.append(f"{number}.wav,{SPOKEN[n]},{start_of(n)},{start_of(n) + 0.02},en")
    (folder / "words.csv").write_text("\n".join(lines) + "\n")
    return folder / "words.csv"
