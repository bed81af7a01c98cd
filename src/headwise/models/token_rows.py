"""Rows of tokens as one tensor: padding, the label that counts nowhere, batches of a size."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

IGNORED = -100  # the label of positions without a target
PADDED = 1 / 8  # of the positions of a batch that are padding, at most
FEWEST_TOKENS = 512  # of a batch that ends for its padding: each batch has a price of its own


def batch_spans(longest: Sequence[int] | np.ndarray, tokens: int) -> Iterator[slice]:
    """Slices of rows, shortest first, in batches of at most `tokens` positions; a longer row is alone. Of a short text a
    batch ends earlier, where the next row would make more than a share PADDED of it padding."""
    # The last row of a batch says how wide it is.
    start = 0
    while start < len(longest):
        end = start + 1
        filled = int(longest[start])
        while end < len(longest):
            positions = int(longest[end]) * (end + 1 - start)
            # Some measures take one sentence's outputs for another's, so the last row is not left alone for its length.
            last = end + 1 == len(longest)
            wide = (
                filled >= FEWEST_TOKENS and positions - filled - longest[end] > PADDED * positions
            )
            if positions > tokens or (wide and not last):
                break
            filled += int(longest[end])
            end += 1
        yield slice(start, end)
        start = end


def padded(rows: Sequence[Sequence[int]], fill: int, length: int | None) -> Tensor:
    """Rows of ids as one tensor, padded on the right."""
    out = np.full((len(rows), length or max(map(len, rows))), fill, dtype=np.int64)
    for row, ids in zip(out, rows, strict=True):
        row[: len(ids)] = ids
    return torch.from_numpy(out)
