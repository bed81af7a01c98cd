"""Tiny Whispers with random weights, and recordings of noise for them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.io import wavfile
from transformers import WhisperConfig, WhisperForConditionalGeneration

import headwise as hw
from listening import speech_tokenizer

WORDS = "abcdefgh"
RATE = 16000
FRAMES = 100  # states of the encoder: two seconds


def hearer(seed: int = 0, **changes: Any) -> hw.Model:
    """2 + 2 layers of 4 heads, which write some of 20 letters."""
    tokenizer = speech_tokenizer()
    names = (
        "<|endoftext|>",
        "<|startoftranscript|>",
        "<|notimestamps|>",
        "<|en|>",
        "<|transcribe|>",
    )
    end, start, no_times, english, transcribe = tokenizer.convert_tokens_to_ids(list(names))
    shape = dict(
        d_model=32,
        encoder_layers=2,
        decoder_layers=2,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=64,
        decoder_ffn_dim=64,
        num_mel_bins=8,
        max_source_positions=FRAMES,
        max_target_positions=24,
        vocab_size=no_times + 1,
        decoder_start_token_id=start,
        eos_token_id=end,
        pad_token_id=end,
        bos_token_id=end,
        init_std=0.3,
    )
    torch.manual_seed(seed)
    hf = WhisperForConditionalGeneration(WhisperConfig(**{**shape, **changes})).eval()
    settings = hf.generation_config
    settings.is_multilingual = True
    settings.no_timestamps_token_id = no_times
    settings.lang_to_id = {"<|en|>": english}
    settings.task_to_id = {"transcribe": transcribe}
    settings.suppress_tokens = [start, english, transcribe]
    settings.begin_suppress_tokens = [end]
    settings._from_model_config = False  # else transformers drops what it does not know
    return hw.Model(hf, tokenizer, "hearer")


def recordings(folder: Path, count: int = 6, seconds: float = 1.0, name: str = "said.csv") -> Path:
    """A table of recordings of noise, each a little longer than the one before, and of what is said in them."""
    lines = ["audio,text,language"]
    for number in range(count):
        random = np.random.default_rng(number)
        size = round(RATE * (seconds + 0.1 * number))
        wavfile.write(folder / f"{number}.wav", RATE, random.integers(-9999, 9999, size, np.int16))
        words = random.choice(list(WORDS), 3 + number % 3)
        lines.append(f"{number}.wav,{' '.join(words)},en")
    (folder / name).write_text("\n".join(lines) + "\n")
    return folder / name
