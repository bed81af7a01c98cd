"""Translation by beam search, over batches of sentences sorted by length."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from statistics import median
from typing import Any, Protocol

import torch
import transformers
from torch import Tensor
from transformers import DynamicCache, EncoderDecoderCache, PreTrainedModel, PreTrainedTokenizerBase

from headwise.core.errors import HeadwiseError
from headwise.core.options import Search
from headwise.core.progress import OnProgress, silent
from headwise.models.attention.backward import words_of
from headwise.models.attention.discover import evaluating
from headwise.models.attention.offload import device_of
from headwise.models.decoding.search import OtherSearch, search_rows
from headwise.models.positions import positions_of
from headwise.models.vocabulary import ending

# Settings of a generation configuration that name tokens.
TOKEN_SETTINGS = (
    "decoder_start_token_id",
    "bos_token_id",
    "eos_token_id",
    "pad_token_id",
    "forced_bos_token_id",
    "forced_eos_token_id",
)
TOKEN_LISTS = ("suppress_tokens", "begin_suppress_tokens")


class Translator(Protocol):
    """What searches for translations with one model. engine: its name and version. longest: tokens on either side. ends:
    the tokens that end a translation."""

    engine: str
    tokenizer: Any
    longest: int
    ends: list[int]

    def write(
        self, sources: list[list[int]], search: Search, length: int, exactly: bool
    ) -> list[list[int]]:
        """The best translation of each source of a batch, in token ids, with the end token and without the start token:
        at most `length` tokens, or just so many."""


class Generate:
    """transformers' `generate`, the reference for every other engine."""

    engine = f"transformers {transformers.__version__}"

    def __init__(self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> None:
        self.model = model
        self.tokenizer = tokenizer
        self.longest = sentence_limit(model)
        self.ends = ending(model)

    def write(
        self, sources: list[list[int]], search: Search, length: int, exactly: bool
    ) -> list[list[int]]:
        batch = self.tokenizer.pad({"input_ids": sources}, return_tensors="pt")
        batch = batch.to(device_of(self.model))
        try:
            with evaluating(self.model), torch.no_grad():
                rows = decode(self.model, self.tokenizer, batch, search, length, exactly)
        except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
            reason = " ".join(str(error).split())[:150]
            raise HeadwiseError(
                f"transformers does not translate with the settings of generation_config.json ({reason}): mend that file."
            ) from error
        return [
            until_end(row, self.ends) for row in rows[:, 1:].tolist()
        ]  # without the start token


def refuse_tokens(model: PreTrainedModel) -> None:
    """Raise HeadwiseError where the generation configuration names tokens that the model does not have."""
    words = words_of(model.get_output_embeddings())
    for name in (*TOKEN_SETTINGS, *TOKEN_LISTS):
        given = getattr(model.generation_config, name, None)
        # Some configurations write -1 for no padding.
        if given is None or (name == "pad_token_id" and given == -1):
            continue
        tokens = given if isinstance(given, list) else [given]
        wrong = [token for token in tokens if type(token) is not int or not 0 <= token < words]
        if wrong or not isinstance(given, list | int) or (name in TOKEN_SETTINGS and not tokens):
            raise HeadwiseError(
                f"{name} in generation_config.json is {given!r:.60}, which names none of the model's {words:,} words: mend "
                "that file."
            )
        if name in TOKEN_LISTS and not isinstance(given, list):
            raise HeadwiseError(
                f"{name} in generation_config.json is {given!r:.60}, which is no list of words: mend that file."
            )


def translate(
    translator: Translator,
    sentences: Sequence[str],
    search: Search,
    progress: OnProgress = silent,
    exactly: int | None = None,
) -> tuple[list[str], dict[str, Any]]:
    """Translate sentences, in their order.

    Also returns the engine, seconds, output tokens (without padding), tokens per second, `cut`: the indices of the
    sentences longer than the model's positions, of which only the beginning is translated (`cut_note`), and `endless`:
    those whose translation did not end within `most_written` tokens and was cut there (`endless_note`). A blank sentence
    stays blank. The unknown subword is never written. exactly: write this number of tokens for each sentence, to compare
    the speed of two models.
    """
    sources, cut = token_ids(translator, sentences)
    translations = [""] * len(sentences)
    tokens = 0
    done = 0
    endless: list[int] = []
    start = time.perf_counter()
    for batch in longest_first(sources, search.batch):
        length = exactly or most_written(len(sources[batch[0]]), translator.longest)
        rows = [sources[i] for i in batch]
        written = translator.write(rows, search, length, exactly is not None)
        tokens += sum(map(len, written))
        for i, row in zip(batch, written, strict=True):
            # A forced end token stands in the last place.
            if len(row) >= length or not {*row[-1:]} & {*translator.ends}:
                endless.append(i)
        texts = translator.tokenizer.batch_decode(written, skip_special_tokens=True)
        for i, text in zip(batch, texts, strict=True):
            translations[i] = text.strip()
        done += len(batch)
        progress(done / len(sources), f"{done} of {len(sources)} sentences")

    seconds = time.perf_counter() - start
    cost = {
        "seconds": seconds,
        "tokens": tokens,
        "tokens_per_second": tokens / seconds,
        "engine": translator.engine,
        "cut": cut,
        "endless": sorted(endless),
    }
    return translations, cost


def longest_first(sources: Mapping[int, list[int]], size: int) -> list[list[int]]:
    """The indices of sources in batches: the longest first, so that a batch that does not fit into memory fails at
    once."""
    ordered = sorted(sources, key=lambda i: -len(sources[i]))
    return [ordered[first : first + size] for first in range(0, len(ordered), size)]


def token_ids(
    translator: Translator, sentences: Sequence[str]
) -> tuple[dict[int, list[int]], list[int]]:
    """The token ids of the sentences that are not blank, by their index, and the indices of those that were cut to the
    model's positions."""
    indices = [i for i, sentence in enumerate(sentences) if sentence.strip()]
    if not indices:
        return {}, []
    longest = translator.longest
    whole = translator.tokenizer([sentences[i] for i in indices], verbose=False)["input_ids"]
    ids = dict(zip(indices, whole, strict=True))
    cut = [i for i in indices if len(ids[i]) > longest]
    if cut:
        # By the tokenizer, which keeps the end token.
        texts = [sentences[i] for i in cut]
        encoded = translator.tokenizer(texts, truncation=True, max_length=longest)
        ids |= zip(cut, encoded["input_ids"], strict=True)
    return ids, cut


def cut_note(cut: int, count: int, longest: int, where: str = "") -> str:
    """A sentence on sentences that were cut. where: which ones, in words."""
    had = "sentence is" if cut == 1 else "sentences are"
    return (
        f"{cut} of {count:,} {had} longer than the model's {longest} tokens: only the beginning is translated{where}. "
        "Split such sentences."
    )


def endless_note(count: int, total: int) -> str:
    """A sentence on translations that were cut because they did not end."""
    were = "translation does" if count == 1 else "translations do"
    return (
        f"{count} of {total:,} {were} not end and {'is' if count == 1 else 'are'} cut: at most 1.5 times the tokens of the "
        "source and 10 are written"
    )


def sentence_limit(model: PreTrainedModel) -> int:
    """The most tokens of a sentence, on either side."""
    # 8 positions stay free, because some families count them from behind the padding's number (M2M100, BART). T5 has no
    # such limit; it was trained on 512 tokens.
    positions = positions_of(model)
    return 512 if positions is None else positions - 8


class BeamCache(EncoderDecoderCache):
    """Keys and values in beam search. Those of cross-attention are the same for all hypotheses of a sentence, so they
    stay in their places."""

    def reorder_cache(self, beam_idx: Tensor) -> None:
        self.self_attention_cache.reorder_cache(beam_idx)


def decode(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    batch: Mapping[str, Tensor],
    search: Search,
    length: int,
    exactly: bool = False,
) -> Tensor:
    """The token ids of the best translation of each source sentence, B T: from the start token on, padded. length: the
    most tokens, without the start token."""
    config: Any = model.config.get_text_config(decoder=True)
    banned = banned_words(model, tokenizer) or None
    settings: Any = model.generation_config
    least = max(settings.min_length or 0, (settings.min_new_tokens or -1) + 1)

    def generated(loop: Callable[..., Tensor] | None) -> Tensor:
        written: Tensor = model.generate(
            **batch,
            past_key_values=BeamCache(DynamicCache(config=config), DynamicCache(config=config)),
            num_beams=search.beam,
            length_penalty=search.length_penalty,
            max_length=length + 1,
            min_length=length + 1 if exactly else min(least, length + 1),
            do_sample=False,
            bad_words_ids=banned,
            early_stopping=settings.early_stopping or False,
            # A generation configuration may set these: they would replace the length, or give other rows.
            max_new_tokens=None,
            min_new_tokens=None,
            num_return_sequences=1,
            return_dict_in_generate=False,
            custom_generate=loop,
            # Translations that end by the clock are others on each machine; None would leave the clock as it is.
            **({"max_time": math.inf} if settings.max_time else {}),
        )
        return written

    # On a GPU transformers' own loop waits for fewer numbers.
    if device_of(model).type == "cpu":
        with suppress(OtherSearch):
            return generated(search_rows)
    return generated(None)


def banned_words(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> list[list[int]]:
    """What is never written, in token ids: what the generation configuration names (of Marian models the padding), and
    the unknown subword."""
    banned = [*(model.generation_config.bad_words_ids or [])]
    if tokenizer.unk_token_id is not None:
        banned.append([tokenizer.unk_token_id])
    return banned


def most_written(source: int, longest: int) -> int:
    """The most tokens to write for a source of so many, without the start token."""
    return min(longest, source * 3 // 2 + 10) - 1


def until_end(written: list[int], ends: list[int]) -> list[int]:
    """Token ids up to the first end token, which stays; without what `generate` fills the rest with."""
    for i, token in enumerate(written):
        if token in ends:
            return written[: i + 1]
    return written


def speeds(
    translators: Mapping[str, Translator],
    sentences: Sequence[str],
    search: Search,
    tokens: int,
    rounds: int,
    progress: OnProgress = silent,
) -> dict[str, tuple[float, float, float]]:
    """Tokens per second of decoding (median, least, most), by name.

    All models write equally many tokens for the same sentences, in turns and several rounds, so that a noisy machine
    and longer translations affect all alike.
    """
    rates: dict[str, list[float]] = {name: [] for name in translators}
    for number in range(rounds):
        # No model is always the first.
        names = list(translators)[:: -1 if number % 2 else 1]
        for done, name in enumerate(names, start=1):
            _, cost = translate(translators[name], sentences, search, exactly=tokens)
            rates[name].append(cost["tokens_per_second"])
            progress((number + done / len(names)) / rounds, name)
    return {name: (median(values), min(values), max(values)) for name, values in rates.items()}
