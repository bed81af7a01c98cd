"""Batches of text for language models, which predict the next token, and masked language models."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from headwise.data.text import Text
from headwise.errors import HeadwiseError
from headwise.translation.batches import IGNORED, lengths, padded

MASKED = 0.15  # share of masked tokens (Devlin et al. 2019, section 3.1)


class Lines:
    """Sentences as token ids. Left out and counted (`dropped`) are those longer than `max_length`, and those with no
    token to predict: of one token for a causal model, of special tokens for a masked one."""

    def __init__(self, text: Text, tokenizer: PreTrainedTokenizerBase, max_length: int, causal: bool) -> None:
        self.tokenizer, self.causal = tokenizer, causal
        self.special = set(tokenizer.all_special_ids)
        if not causal and tokenizer.mask_token_id is None:
            raise HeadwiseError(
                "This model predicts masked tokens, but its tokenizer has no mask token: use its own tokenizer."
            )

        def ids(rows: dict[str, list[str]]) -> dict[str, list[Any]]:
            found = tokenizer(rows["text"])["input_ids"]
            return {"ids": found, "askable": [self.askable(row) for row in found]}

        self.dataset: Dataset = text.dataset.map(
            ids, batched=True, remove_columns=text.dataset.column_names, load_from_cache_file=False, keep_in_memory=True
        )
        long = lengths(self.dataset, "ids")
        fits = np.flatnonzero((long <= max_length) & np.array(self.dataset["askable"], dtype=bool))
        self.rows = fits[np.argsort(long[fits], kind="stable")]
        self.longest = long[self.rows]
        self.dropped = len(long) - len(fits)
        if not len(fits):
            raise HeadwiseError(
                f"None of the {len(long)} sentences has from 2 to {max_length} tokens: give other text."
            )

    def __len__(self) -> int:
        return len(self.rows)

    def askable(self, row: Sequence[int]) -> bool:
        return len(row) > 1 if self.causal else any(token not in self.special for token in row)

    def batches(self, tokens: int = 4096, seed: int = 0) -> Iterator[dict[str, Any]]:
        """The text once, shortest first, in batches of at most `tokens` tokens: input_ids, attention_mask, labels (at
        the positions of their logits), rows (the row of each sentence in the text)."""
        start = 0
        while start < len(self):
            end = start + 1
            while end < len(self) and int(self.longest[end]) * (end + 1 - start) <= tokens:
                end += 1
            places = self.rows[start:end].tolist()
            rows = self.dataset[places]["ids"]
            yield {**self.batch(rows, places, seed), "rows": torch.tensor(places)}
            start = end

    def batch(self, rows: Sequence[Sequence[int]], places: Sequence[int], seed: int) -> dict[str, Tensor]:
        """Rows of ids as tensors B S. A share MASKED of the tokens of each sentence is replaced by the mask token, at
        least one, drawn by the seed and the sentence's row in the text. Special tokens are never masked."""
        fills = (self.tokenizer.pad_token_id, self.tokenizer.eos_token_id, 0)
        ids = padded(rows, next(fill for fill in fills if fill is not None), None)
        mask = padded([[1] * len(row) for row in rows], 0, None)
        if self.causal:
            labels = torch.full_like(ids, IGNORED)
            labels[:, :-1] = torch.where(mask[:, 1:].bool(), ids[:, 1:], IGNORED)
            return {"input_ids": ids, "attention_mask": mask, "labels": labels}
        hidden = torch.zeros_like(mask, dtype=torch.bool)
        for i, (row, place) in enumerate(zip(rows, places, strict=True)):
            words = [at for at, token in enumerate(row) if token not in self.special]
            random = np.random.default_rng((seed, place))
            hidden[i, random.choice(words, max(1, round(MASKED * len(words))), replace=False)] = True
        labels = torch.where(hidden, ids, IGNORED)
        return {"input_ids": ids.masked_fill(hidden, self.tokenizer.mask_token_id), "attention_mask": mask,
                "labels": labels}  # fmt: skip
