"""Answers as JSON: numbers in short, attention maps in base64, and what changed between two outputs."""

from __future__ import annotations

import base64
import difflib
import re
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from torch import Tensor


def packed(weights: Tensor) -> str:
    """Numbers as base64 of little-endian float32, in the order of memory."""
    return base64.b64encode(weights.contiguous().numpy().astype("<f4").tobytes()).decode()


def unpacked(data: str, shape: Sequence[int]) -> np.ndarray:
    """What `packed` packed."""
    return np.frombuffer(base64.b64decode(data), "<f4").reshape(shape)


def rounded(values: Tensor) -> Any:
    """Nested lists of six significant digits are enough for a page, and a third of the text."""
    return np.round(values.numpy().astype(float), 6).tolist()


def compared(before: str, after: str) -> list[tuple[str, str]]:
    """What changed from one output to another, in order: `same`, `gone` and `new` pieces of words and marks."""
    one, two = (re.findall(r"\s+|\w+|[^\w\s]", text) for text in (before, after))
    matcher = difflib.SequenceMatcher(None, one, two, autojunk=False)
    return list(pieces(matcher.get_opcodes(), one, two))


def pieces(
    codes: Sequence[tuple[str, int, int, int, int]], one: list[str], two: list[str]
) -> Iterator[tuple[str, str]]:
    for what, a, b, c, d in codes:
        if what == "equal":
            yield "same", "".join(one[a:b])
        else:
            yield from (
                (kind, "".join(part))
                for kind, part in (("gone", one[a:b]), ("new", two[c:d]))
                if part
            )
