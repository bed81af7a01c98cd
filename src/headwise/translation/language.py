"""Batches of one-sided text for models of language: the next token, or masked ones, are what is asked for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from headwise.errors import HeadwiseError
from headwise.translation.batches import IGNORED, padded

MASKED = 0.15  # share of tokens that a masked language model is asked for (Devlin et al. 2019, section 3.1)


class Lines:
    """Sentences as token ids, longer ones than `max_length` left out and counted (`dropped`), as are those too short to
    ask for anything."""

    def __init__(self, lines: Sequence[str], tokenizer: PreTrainedTokenizerBase, max_length: int, causal: bool) -> None:
        self.tokenizer, self.causal = tokenizer, causal
        self.special = set(tokenizer.all_special_ids)
        if not causal and tokenizer.mask_token_id is None:
            raise HeadwiseError(
                "This model predicts masked tokens, but its tokenizer has no mask token: "
                "put its own tokenizer beside it."
            )
        ids: list[list[int]] = tokenizer(list(lines))["input_ids"] if len(lines) else []
        fits = [row for row in ids if len(row) <= max_length and self.askable(row)]
        self.ids, self.dropped = sorted(fits, key=len), len(ids) - len(fits)
        if not fits:
            raise HeadwiseError(f"None of the {len(ids)} sentences has from 2 to {max_length} tokens: give other text.")

    def askable(self, row: list[int]) -> bool:
        return len(row) > 1 if self.causal else any(token not in self.special for token in row)

    def batches(self, tokens: int = 4096, seed: int = 0) -> Iterator[dict[str, Any]]:
        """The text once, shortest first: input_ids, attention_mask, labels (aligned with the logits), rows."""
        start = 0
        while start < len(self.ids):
            end = start + 1
            while end < len(self.ids) and len(self.ids[end]) * (end + 1 - start) <= tokens:
                end += 1
            yield {**self.batch(self.ids[start:end], seed + start), "rows": torch.arange(start, end)}
            start = end

    def batch(self, rows: list[list[int]], seed: int) -> dict[str, Tensor]:
        fill = self.tokenizer.pad_token_id
        ids = padded(rows, self.tokenizer.eos_token_id if fill is None else fill, None)
        mask = padded([[1] * len(row) for row in rows], 0, None)
        if self.causal:
            labels = torch.full_like(ids, IGNORED)
            labels[:, :-1] = torch.where(mask[:, 1:].bool(), ids[:, 1:], IGNORED)
            return {"input_ids": ids, "attention_mask": mask, "labels": labels}
        random = np.random.default_rng(seed)
        hidden = torch.zeros_like(mask, dtype=torch.bool)
        for i, row in enumerate(rows):
            words = [place for place, token in enumerate(row) if token not in self.special]
            hidden[i, random.choice(words, max(1, round(MASKED * len(words))), replace=False)] = True
        labels = torch.where(hidden, ids, IGNORED)
        return {"input_ids": ids.masked_fill(hidden, self.tokenizer.mask_token_id), "attention_mask": mask,
                "labels": labels}  # fmt: skip
