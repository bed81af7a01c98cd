"""Batches of text for language models, which predict the next token, and masked language models: a sentence a row for
measuring (`Lines`), packed for training (`Packed`).
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from headwise.core.errors import HeadwiseError
from headwise.data.text import Text
from headwise.models.token_rows import IGNORED, batch_spans, padded
from headwise.models.training.token_batches import (
    Batch,
    Collate,
    TokenBatches,
    TrainingData,
    lengths,
    mapped,
)

MASKED = 0.15  # share of masked tokens (Devlin et al. 2019, section 3.1)


class Lines:
    """Sentences as token ids. Left out and counted (`left_out`) are those longer than `max_length`, and those with no
    token to predict: of one token for a causal model, of special tokens for a masked one.

    stride: for a causal model; read long sentences as well, in windows of `max_length` tokens, each so many tokens
    after the one before it. A window predicts the tokens that none before it predicts, so every token but the first
    is predicted once, and with at least max_length − stride tokens before it
    (https://huggingface.co/docs/transformers/perplexity). The windows of a sentence follow one another.

    documents: by window, the number of its sentence, from 0; None where every sentence is read at once. windowed: how
    long sentences are read, in words; empty where there is none.
    """

    def __init__(
        self,
        text: Text,
        tokenizer: PreTrainedTokenizerBase,
        max_length: int,
        causal: bool,
        stride: int | None = None,
    ) -> None:
        self.tokenizer = tokenizer
        self.causal = causal
        self.special = set(tokenizer.all_special_ids)
        self.length = max_length
        self.stride = max_length if stride is None else stride

        def ids(rows: dict[str, list[str]]) -> dict[str, list[Any]]:
            tokens = tokenizer(rows["text"])["input_ids"]
            return {"ids": tokens, "askable": [self.askable(row) for row in tokens]}

        self.dataset = mapped(text, tokenizer, ids, None)
        long = lengths(self.dataset, "ids")
        askable = np.array(self.dataset["askable"], dtype=bool)
        fits = askable if stride is not None else askable & (long <= max_length)
        self.left_out = {
            "without a token to predict": int((~askable).sum()),
            f"longer than {max_length} tokens": int((askable & ~fits).sum()),
        }
        if not fits.any():
            need = f"from 2 to {max_length}" if stride is None else "2 or more"
            raise HeadwiseError(
                f"None of the {len(long)} sentences has {need} tokens: give other text."
            )
        by_length = np.flatnonzero(fits)
        by_length = by_length[np.argsort(long[by_length], kind="stable")]

        documents, self.starts, self.longest = windows_of(long[by_length], max_length, self.stride)
        self.rows = by_length[documents]
        self.noun = "sentences"
        self.documents: np.ndarray | None = None
        self.windowed = ""
        if len(documents) > len(by_length):
            self.noun = "windows"
            self.documents = documents
            self.windowed = (
                f"long ones in windows of {max_length} tokens, each {self.stride} after the last"
            )

    def __len__(self) -> int:
        return len(self.rows)

    def askable(self, row: Sequence[int]) -> bool:
        if self.causal:
            return len(row) > 1
        return not self.special.issuperset(row)

    def batches(
        self, tokens: int = 4096, seed: int = 0, hide: bool = True
    ) -> Iterator[dict[str, Any]]:
        """The text once, shortest first, in batches of at most `tokens` tokens: input_ids, attention_mask, labels (at
        the positions of their logits), rows (the row of each sentence in the text). Windows also have `counted`: the
        tokens that are in no earlier window. hide: replace the tokens that a masked model predicts; without it the text
        is intact, for what needs no prediction."""
        if hide and not self.causal:
            refuse_maskless(self.tokenizer)
        for span in batch_spans(self.longest, tokens):
            places = self.rows[span].tolist()
            whole = self.dataset[places]["ids"]
            starts = self.starts[span].tolist()
            rows = [ids[at : at + self.length] for ids, at in zip(whole, starts, strict=True)]
            batch = self.batch(rows, seed, hide)
            if self.documents is not None:
                # The first window of a sentence counts whole. Labels are one place before the token that they name.
                overlap = self.length - self.stride
                later = torch.from_numpy(self.starts[span] > 0)
                batch["counted"] = batch["attention_mask"].bool()
                batch["counted"][later, :overlap] = False
                batch["labels"][later, : overlap - 1] = IGNORED
            yield {**batch, "rows": torch.tensor(places)}

    def batch(self, rows: Sequence[Sequence[int]], seed: int, hide: bool) -> dict[str, Tensor]:
        """Rows of ids as tensors B S. A share MASKED of the tokens of each sentence is replaced by the mask token, at
        least one, drawn by the seed and the sentence itself, so that they are the same in any part or order of the text.
        Special tokens are never masked."""
        ids = padded(rows, filler(self.tokenizer), None)
        mask = padded([[1] * len(row) for row in rows], 0, None)
        if self.causal:
            labels = torch.full_like(ids, IGNORED)
            # labels[t] = ids[t + 1]; the last position predicts nothing.
            labels[:, :-1] = torch.where(mask[:, 1:].bool(), ids[:, 1:], IGNORED)
            return {"input_ids": ids, "attention_mask": mask, "labels": labels}
        hidden = [
            to_hide(row, self.special, (seed, zlib.crc32(np.array(row, np.int64).tobytes())))
            for row in rows
        ]
        return masked_batch(ids, mask, hidden, self.tokenizer.mask_token_id if hide else None)


def windows_of(
    lengths: np.ndarray, max_length: int, stride: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The windows of sentences of these lengths, as in `Lines`: by window, the number of its sentence, the place of its
    first token in the sentence, and its length."""
    # Tokens that the first window does not reach: one more window for each `stride` of them, or a part.
    beyond = np.maximum(lengths - max_length, 0)
    windows = 1 + -(-beyond // stride)
    sentences = np.repeat(np.arange(len(lengths)), windows)
    # The number of a window in its sentence: 0, 1, 2 …
    number = np.arange(len(sentences)) - np.repeat(np.cumsum(windows) - windows, windows)
    starts = number * stride
    return sentences, starts, np.minimum(lengths[sentences] - starts, max_length)


def to_hide(row: Sequence[int], special: set[int], seed: tuple[int, ...]) -> np.ndarray:
    """The places of the tokens that a masked model predicts: a share MASKED of those that are not special, at least one."""
    # A generator for each row, so that a sentence hides the same tokens in whatever batch it comes.
    words = np.array([at for at, token in enumerate(row) if token not in special], dtype=np.int64)
    count = min(len(words), max(1, round(MASKED * len(words))))
    return np.random.default_rng(seed).choice(words, count, replace=False) if count else words


def masked_batch(
    ids: Tensor, mask: Tensor, places: Sequence[Any], word: int | None
) -> dict[str, Tensor]:
    """A batch B S for a masked model. places: of each row, the tokens to predict. word: the mask token in their place;
    None leaves the text intact."""
    hidden = torch.zeros_like(mask, dtype=torch.bool)
    for row, chosen in enumerate(places):
        hidden[row, chosen] = True
    seen = ids if word is None else ids.masked_fill(hidden, word)
    labels = torch.where(hidden, ids, IGNORED)
    return {"input_ids": seen, "attention_mask": mask, "labels": labels}


def refuse_maskless(tokenizer: PreTrainedTokenizerBase) -> None:
    if tokenizer.mask_token_id is None:
        raise HeadwiseError(
            "This model predicts masked tokens, but its tokenizer has no mask token: use its own tokenizer."
        )


class Packed(TrainingData):
    """A text as one stream of tokens, memory-mapped, in rows of `length` tokens; the last may be shorter.

    Sentences stand one after another as the tokenizer gives them, as in transformers' run_clm and run_mlm; where it
    marks neither begin nor end, the end token follows each. A causal model predicts every next token; a masked one the
    tokens that are hidden, other ones in every epoch. No sentence is left out. cache: a folder for the ids, which
    another `Packed` of the same text and tokenizer reuses.
    """

    dropped = 0

    def __init__(
        self,
        text: Text,
        tokenizer: PreTrainedTokenizerBase,
        length: int,
        causal: bool,
        cache: Path | None = None,
    ) -> None:
        self.causal = causal
        self.tokenizer = tokenizer
        self.special = set(tokenizer.all_special_ids)
        if not causal:
            refuse_maskless(tokenizer)
        end: Any = tokenizer.eos_token_id

        def ids(rows: dict[str, list[str]]) -> dict[str, list[Any]]:
            return {"ids": [self.ended(row, end) for row in tokenizer(rows["text"])["input_ids"]]}

        dataset = mapped(text, tokenizer, ids, cache)
        self.stream = pa.chunked_array(
            [chunk.flatten() for chunk in dataset.data.column("ids").chunks]
        )
        if not len(self.stream):
            raise HeadwiseError(
                f"The tokenizer makes no tokens of '{text.name}': give other text, or the model's own tokenizer."
            )
        self.length = min(length, len(self.stream))
        # All rows are alike, so there is one bucket.
        self.longest = np.full(-(-len(self.stream) // self.length), self.length)

    def __len__(self) -> int:
        return len(self.longest)

    def ended(self, row: list[int], end: int | None) -> list[int]:
        # Without any mark between them a model would read two sentences as one.
        # No special token at either end.
        bare = not row or not {row[0], row[-1]} & self.special
        return [*row, end] if bare and end is not None else row

    def __getitems__(self, indices: Sequence[int]) -> list[dict[str, Any]]:
        """Rows by `epoch * len(self) + row`, with the places of their hidden tokens; −1 is an empty row."""
        return [self[index] for index in indices]

    def __getitem__(self, index: int) -> dict[str, Any]:
        # `EpochBatches` counts on over the epochs.
        epoch, place = divmod(max(index, 0), len(self))
        # One token more than a row: the last one predicts the first of the next row.
        tokens = self.stream.slice(place * self.length, self.length + 1).to_numpy()
        row = tokens[: self.length]
        follow = tokens[1:]
        hidden: Any = []
        if index < 0:
            follow = follow[:0]
        elif not self.causal:
            hidden = to_hide(row.tolist(), self.special, (epoch, place))
        return {"ids": row, "next": follow, "hidden": hidden}

    def sampler(self, tokens: int, seed: int, multiple: int) -> TokenBatches:
        return (TokenBatches if self.causal else EpochBatches)(self, tokens, seed, multiple)

    def collator(self, model: PreTrainedModel, sampler: TokenBatches) -> Collate:
        return PackedCollator(self.tokenizer, self.length, self.causal)

    def once(self, model: PreTrainedModel, tokens: int) -> Iterator[Batch]:
        rows = max(1, tokens // self.length)
        collate = PackedCollator(self.tokenizer, self.length, self.causal)
        for start in range(0, len(self), rows):
            yield collate(self.__getitems__(range(start, min(start + rows, len(self)))))


class EpochBatches(TokenBatches):
    """Batches whose rows say the epoch as well, so that other tokens are hidden in each, whatever process asks."""

    def __iter__(self) -> Iterator[list[int]]:
        for rows in super().__iter__():
            # Row n of epoch e is number e · rows + n.
            first = self.epoch * len(self.lengths)
            yield [row if row < 0 else first + row for row in rows]


class PackedCollator:
    """Makes tensors B S of rows of `Packed`; labels are at the positions of their logits."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, length: int, causal: bool) -> None:
        self.fill = filler(tokenizer)
        self.length = length
        self.causal = causal
        self.mask: Any = tokenizer.mask_token_id

    def __call__(self, rows: Sequence[dict[str, Any]]) -> Batch:
        ids = padded([row["ids"] for row in rows], self.fill, self.length)
        mask = padded([[1] * len(row["ids"]) for row in rows], 0, self.length)
        if self.causal:
            labels = padded([row["next"] for row in rows], IGNORED, self.length)
            return {"input_ids": ids, "attention_mask": mask, "labels": labels}
        return masked_batch(ids, mask, [row["hidden"] for row in rows], self.mask)


def filler(tokenizer: PreTrainedTokenizerBase) -> int:
    """The token of positions that are padding."""
    fills = (tokenizer.pad_token_id, tokenizer.eos_token_id, 0)
    return int(next(fill for fill in fills if fill is not None))
