"""A sentence as the model reads it: token ids, the text of every token, and which word it belongs to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from headwise.errors import HeadwiseError

CHARACTERS = 20_000  # of a text; what comes after is cut
MARKS = ("▁", "Ġ", " ")  # what tokens of the common subword models begin a word with


@dataclass(frozen=True)
class Sentence:
    """Token ids, the text of each, the number of its word, a remark where the text was cut, and its tree if one is
    known (see `trees.py`)."""

    ids: list[int]
    tokens: list[str]
    words: list[int]
    note: str = ""
    tree: dict[str, Any] | None = None

    def to_json(self) -> dict[str, Any]:
        return {"tokens": self.tokens, "words": self.words, "note": self.note, "tree": self.tree}


def read(tokenizer: Any, text: str, most: int) -> Sentence:
    """The first `most` tokens of a text. Raises HeadwiseError for a text without any."""
    note = ""
    if len(text) > CHARACTERS:
        text, note = text[:CHARACTERS], f"Only the first {CHARACTERS:,} characters were read."
    if not text.strip():
        raise HeadwiseError("There is no text: type a sentence.")
    ids = tokenizer(text)["input_ids"]
    if len(ids) > most:
        note = f"Only the first {most} of {len(ids):,} tokens are used: give a shorter text to see all of it."
        ids = tokenizer(text, truncation=True, max_length=most)["input_ids"]
    if not ids:
        raise HeadwiseError("The model's tokenizer finds no token in this text: type another one.")
    return sentence_of(tokenizer, ids, note)


def sentence_of(tokenizer: Any, ids: Sequence[int], note: str = "") -> Sentence:
    """Token ids with their texts and words."""
    named = tokenizer.convert_ids_to_tokens(list(ids))
    raw = [
        f"[{number}]" if token is None else str(token)
        for token, number in zip(named, ids, strict=True)
    ]
    special = set(tokenizer.all_special_ids)
    joined = any(token.startswith("##") for token in raw) or not any(
        token.startswith(MARKS) for token in raw
    )
    words: list[int] = []
    for place, (token, number) in enumerate(zip(raw, ids, strict=True)):
        alone = number in special or (place and ids[place - 1] in special)
        begins = not token.startswith("##") if joined else token.startswith(MARKS)
        words.append(words[-1] + bool(alone or begins) if words else 0)
    return Sentence(
        list(ids),
        [shown(tokenizer, number, token) for number, token in zip(ids, raw, strict=True)],
        words,
        note,
    )


def shown(tokenizer: Any, number: int, raw: str) -> str:
    """A token as a reader knows it; one that decodes to nothing keeps its raw name."""
    text = str(tokenizer.decode([number], clean_up_tokenization_spaces=False)).strip()
    return text or raw
