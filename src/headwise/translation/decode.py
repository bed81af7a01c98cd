"""Translation by beam search, over batches of sentences sorted by length."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from statistics import median

import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from headwise.attention import device_of, evaluating
from headwise.options import Search
from headwise.progress import Report, silent


def translate(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, sentences: Sequence[str], search: Search | None = None,
    progress: Report = silent, exactly: int | None = None,
) -> tuple[list[str], dict[str, float]]:  # fmt: skip
    """Translate sentences, in their order.

    Also returns seconds, output tokens (without padding) and tokens per second. Sentences longer than the model's
    positions are truncated. A blank sentence stays blank. The unknown subword is never written. exactly: write this
    number of tokens for each sentence, to compare the speed of two models.
    """
    search = search or Search()
    limit = longest(model)
    said = [i for i, sentence in enumerate(sentences) if sentence.strip()]
    ids = tokenizer([sentences[i] for i in said], truncation=True, max_length=limit)["input_ids"] if said else []
    sources = dict(zip(said, ids, strict=True))
    order = sorted(said, key=lambda i: -len(sources[i]))
    out, tokens, start = [""] * len(sentences), 0, time.perf_counter()
    with evaluating(model), torch.no_grad():
        for at in range(0, len(order), search.batch):
            chosen = order[at : at + search.batch]
            batch = tokenizer.pad({"input_ids": [sources[i] for i in chosen]}, return_tensors="pt").to(device_of(model))
            written = decode(model, tokenizer, batch, search, exactly)
            tokens += int((written[:, 1:] != tokenizer.pad_token_id).sum())
            for i, text in zip(chosen, tokenizer.batch_decode(written, skip_special_tokens=True), strict=True):
                out[i] = text.strip()
            progress((at + len(chosen)) / len(order), f"{at + len(chosen)} of {len(order)} sentences")
    seconds = time.perf_counter() - start
    return out, {"seconds": seconds, "tokens": tokens, "tokens_per_second": tokens / seconds}


def longest(model: PreTrainedModel) -> int:
    """The most tokens of a sentence, on either side."""
    return model.config.max_position_embeddings - 8 if hasattr(model.config, "max_position_embeddings") else 512


def decode(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, batch: Mapping[str, Tensor], search: Search,
    exactly: int | None = None,
) -> Tensor:  # fmt: skip
    """The token ids of the best translation of each source sentence, B T: from the start token on, padded."""
    length = exactly + 1 if exactly else min(longest(model), batch["input_ids"].shape[1] * 3 // 2 + 10)
    unknown = [[tokenizer.unk_token_id]] if tokenizer.unk_token_id is not None else None
    written: Tensor = model.generate(
        **batch, num_beams=search.beam, length_penalty=search.length_penalty, max_length=length,
        min_length=length if exactly else 0, do_sample=False, bad_words_ids=unknown, early_stopping=False,
    )  # fmt: skip
    return written


def speeds(
    models: Mapping[str, tuple[PreTrainedModel, PreTrainedTokenizerBase]], sentences: Sequence[str], search: Search,
    tokens: int, rounds: int, progress: Report = silent,
) -> dict[str, tuple[float, float, float]]:  # fmt: skip
    """Tokens per second of decoding (median, least, most), by name: all models write equally many tokens for the same
    sentences, in turn, a few rounds, so that a noisy machine and longer translations affect all alike."""
    rates: dict[str, list[float]] = {name: [] for name in models}
    for turn in range(rounds):
        in_turn = list(models.items())[:: -1 if turn % 2 else 1]  # no model always goes first
        for i, (name, (model, tokenizer)) in enumerate(in_turn):
            cost = translate(model, tokenizer, sentences, search, exactly=tokens)[1]
            rates[name].append(cost["tokens_per_second"])
            progress((turn + (i + 1) / len(models)) / rounds, name)
    return {name: (median(values), min(values), max(values)) for name, values in rates.items()}
