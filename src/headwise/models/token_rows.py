"""Rows of tokens as one tensor: padding, the label that counts nowhere, batches of a size."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

IGNORED = -100  # the label of positions without a target


def batch_spans(longest: Sequence[int] | np.ndarray, tokens: int) -> Iterator[slice]:
    """Slices of rows, shortest first, in batches of at most `tokens` positions; a longer row is alone."""
    # The last row of a batch says how wide it is.
    start = 0
    while start < len(longest):
        end = start + 1
        while end < len(longest) and int(longest[end]) * (end + 1 - start) <= tokens:
            end += 1
        yield slice(start, end)
        start = end


def padded(rows: Sequence[Sequence[int]], fill: int, length: int | None) -> Tensor:
    """Rows of ids as one tensor, padded on the right."""
    out = np.full((len(rows), length or max(map(len, rows))), fill, dtype=np.int64)
    for row, ids in zip(out, rows, strict=True):
        row[: len(ids)] = ids
    return torch.from_numpy(out)
