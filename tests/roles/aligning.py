"""Models whose cross heads align, made by hand: each knows some words, and looks where those are."""

from __future__ import annotations

import random
from pathlib import Path

import torch
from torch import nn
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    MarianConfig,
    MarianMTModel,
    PreTrainedModel,
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
