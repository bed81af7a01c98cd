"""A Whisper whose cross heads align, made by hand: they look at the middle of the word that comes next."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from scipy.io import wavfile
from transformers import WhisperConfig, WhisperForConditionalGeneration, WhisperTokenizer

from headwise.models.model import Model
from roles.aligning import FIRST, LATER, SHAPE, hollow, looking

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
