"""Prompts in pairs as a causal language model is scored on them, by a logit difference."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from headwise.core.errors import HeadwiseError
from headwise.data.text import PromptPairs
from headwise.models.token_rows import IGNORED, batch_spans, padded
from headwise.models.training.language import filler

REASONS = (
    "with another number of tokens in the corrupted prompt",
    "with an answer that does not begin a new token",
    "with answers that begin with the same token",
)


@dataclass(frozen=True)
class EncodedPair:
    """One pair: ids of both prompts, the first token of each answer, and the row in the text."""

    clean: list[int]
    corrupted: list[int]
    answer: int
    wrong_answer: int
    row: int


class EncodedPrompts:
    """Pairs of prompts as token ids. Left out and counted (`left_out`) are those that cannot be compared position by
    position, or whose answers cannot be told by the next token, and those longer than `max_length` tokens."""

    noun = "prompts"

    def __init__(
        self, text: PromptPairs, tokenizer: PreTrainedTokenizerBase, max_length: int
    ) -> None:
        self.tokenizer = tokenizer
        # An unknown word at the end of a prompt is a word, and stays.
        self.special = {*tokenizer.all_special_ids} - {tokenizer.unk_token_id}
        too_long = f"longer than {max_length} tokens"
        left_out: Counter[str] = Counter()
        self.prompts: list[EncodedPair] = []
        for row, (clean, corrupted, answer, wrong_answer) in enumerate(text.rows()):
            ids = self.prompt(clean)
            others = self.prompt(corrupted)
            right = self.next_token(clean, ids, answer)
            wrong = self.next_token(clean, ids, wrong_answer)
            if len(ids) != len(others):
                left_out[REASONS[0]] += 1
            elif right is None or wrong is None:
                left_out[REASONS[1]] += 1
            elif right == wrong:
                left_out[REASONS[2]] += 1
            elif len(ids) > max_length:
                left_out[too_long] += 1
            else:
                self.prompts.append(EncodedPair(ids, others, right, wrong, row))
        self.left_out = {reason: left_out[reason] for reason in (*REASONS, too_long)}
        if not self.prompts:
            why = ", ".join(f"{count} {reason}" for reason, count in left_out.items())
            raise HeadwiseError(
                f"None of the {len(text)} pairs of prompts in '{text.name}' can be used: {why}."
            )
        # Batches of similar lengths have little padding.
        self.prompts.sort(key=lambda prompt: len(prompt.clean))
        self.longest = np.array([len(prompt.clean) for prompt in self.prompts])

    def __len__(self) -> int:
        return len(self.prompts)

    def prompt(self, text: str) -> list[int]:
        """The ids of a prompt, without the special tokens that end a sentence."""
        ids: list[int] = self.tokenizer(text)["input_ids"]
        while len(ids) > 1 and ids[-1] in self.special:
            ids = ids[:-1]
        return ids

    def next_token(self, prompt: str, ids: Sequence[int], answer: str) -> int | None:
        """The first token of an answer, which follows the prompt after a blank; None where the tokens of the prompt are
        others with it."""
        longer = self.prompt(f"{prompt} {answer}")
        if len(longer) <= len(ids) or longer[: len(ids)] != list(ids):
            return None
        return longer[len(ids)]

    def batches(self, tokens: int = 4096, hide: bool = True) -> Iterator[dict[str, Any]]:
        """The pairs once, shortest first, in batches of at most `tokens` tokens: input_ids and corrupted_ids,
        attention_mask, labels and wrong_labels (both at the last token of the prompt), rows. Nothing is ever hidden."""
        for span in batch_spans(self.longest, tokens):
            yield self.batch(self.prompts[span])

    def batch(self, prompts: Sequence[EncodedPair]) -> dict[str, Tensor]:
        fill = filler(self.tokenizer)
        ids = padded([prompt.clean for prompt in prompts], fill, None)
        labels = torch.full_like(ids, IGNORED)
        wrong_labels = torch.full_like(ids, IGNORED)
        for number, prompt in enumerate(prompts):
            labels[number, len(prompt.clean) - 1] = prompt.answer
            wrong_labels[number, len(prompt.clean) - 1] = prompt.wrong_answer
        return {
            "input_ids": ids,
            "corrupted_ids": padded([prompt.corrupted for prompt in prompts], fill, None),
            "attention_mask": padded([[1] * len(prompt.clean) for prompt in prompts], 0, None),
            "labels": labels,
            "wrong_labels": wrong_labels,
            "rows": torch.tensor([prompt.row for prompt in prompts]),
        }
