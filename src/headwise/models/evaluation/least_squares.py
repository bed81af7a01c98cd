"""Linear maps that are fitted by least squares, from sums over tokens: features F (N tokens × n) to targets T (N × M).

Only FᵀF and FᵀT are kept, so memory does not grow with the text. In lower precision such sums are no longer positive
definite, so they are in float64.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from headwise.core.errors import NOT_FINITE, HeadwiseError

# Strengths of the ridge that are tried, as shares of the mean square of a feature.
STRENGTHS = (1e-6, 1e-4, 1e-3, 1e-2, 1e-1)
CONSTANT = 1e-9  # the strength for the constant, which no text is too short for


@dataclass
class Moments:
    """Sums over tokens: gram FᵀF, n n; cross FᵀT, n M; square |T|²; tokens. A last feature of ones is the constant, where
    there is one."""

    gram: Tensor
    cross: Tensor
    constant: bool
    square: float = 0.0
    tokens: int = 0
    # of the products of a batch; their sums are in float64
    product: torch.dtype = torch.float64

    @classmethod
    def empty(
        cls, features: int, targets: int, constant: bool, product: torch.dtype = torch.float64
    ) -> Moments:
        size = features + constant
        gram = torch.zeros(size, size, dtype=torch.float64)
        cross = torch.zeros(size, targets, dtype=torch.float64)
        return cls(gram, cross, constant, product=product)

    def add(self, features: Tensor, targets: Tensor, weights: Tensor) -> None:
        """Add tokens. features N n, without the constant; targets N M; weights N: how much a token's error counts, as a
        factor of its error (not of its square)."""
        # Some devices have no float64.
        place = "cpu" if features.device.type == "mps" else features.device
        scale = weights.to(place, self.product)[:, None]
        wide = features.to(place, self.product)
        if self.constant:
            wide = torch.cat([wide, wide.new_ones(len(wide), 1)], 1)
        wide = wide * scale
        wanted = targets.to(place, self.product) * scale
        self.gram += (wide.t() @ wide).cpu()
        self.cross += (wide.t() @ wanted).cpu()
        self.square += float(wanted.square().sum())
        self.tokens += len(wide)

    def refuse_unsound(self, name: str) -> None:
        """Raise HeadwiseError for sums that are not finite. name: of the module that gave the features."""
        if not (math.isfinite(self.square) and bool(self.gram.isfinite().all())):
            raise HeadwiseError(
                f"{name} gets or gives numbers that are not finite, so it cannot be fitted. {NOT_FINITE}."
            )

    def __add__(self, other: Moments) -> Moments:
        return Moments(
            self.gram + other.gram,
            self.cross + other.cross,
            self.constant,
            self.square + other.square,
            self.tokens + other.tokens,
        )

    def missed(self, weights: Tensor) -> float:
        """|T − F W|² of weights n M."""
        # |T − F W|² = |T|² − 2 tr(WᵀFᵀT) + tr(WᵀFᵀF W)
        explained = 2 * (weights * self.cross).sum() - (weights * (self.gram @ weights)).sum()
        return self.square - float(explained)

    def ridges(self, strength: float) -> Tensor:
        """What is added to the diagonal of the Gram matrix: n."""
        diagonal = self.gram.diagonal()
        own = diagonal[: len(diagonal) - self.constant]
        mean = float(own.mean()) if len(own) else 0.0
        # a layer whose features are all 0 still has a solution: its own weights
        added = torch.full_like(diagonal, strength * mean or 1.0)
        if self.constant:
            added[-1] = CONSTANT * float(diagonal[-1]) or 1.0
        return added

    def fitted(self, start: Tensor, strength: float) -> Tensor:
        """The weights W that make |T − F W|² + Σ ridge |W − start|² least: n M."""
        matrix = self.gram + torch.diag(self.ridges(strength))
        # (FᵀF + ridge) ΔW = FᵀT − FᵀF W₀: how far the ridge lets W leave W₀.
        moved = torch.cholesky_solve(self.cross - self.gram @ start, torch.linalg.cholesky(matrix))
        return start + moved


def held_out_fit(fit: Moments, held: Moments, start: Tensor) -> tuple[float, Tensor]:
    """What is missed of the tokens held out, and the fit on all of them with the ridge that is best there; `start` where
    none improves on it.

    fit, held: of different tokens. start: weights n M towards which the ridge pulls.
    """
    least, best = held.missed(start), None
    for strength in STRENGTHS:
        missed = held.missed(fit.fitted(start, strength))
        if missed < least:
            least, best = missed, strength
    return least, start if best is None else (fit + held).fitted(start, best)


def without_blocks(
    moments: Moments, size: int, strength: float
) -> Iterator[tuple[int | None, float, Tensor]]:
    """Backward removal of blocks of features, such as heads: the block that goes, |T − F W|² without it, and the best W
    for those that stay, n M; first all blocks (None), then one less at each step, down to none.

    size: features in a block. strength: of the ridge, towards 0. The block goes next whose loss raises the error least
    once the others are fitted again. With P = (FᵀF + ridge)⁻¹ and W = P FᵀT the error rises by tr(W_bᵀ P_bb⁻¹ W_b), and
    W ← W − P_·b P_bb⁻¹ W_b, P ← P − P_·b P_bb⁻¹ P_b· (Hassibi and Stork 1993, equation 5, for blocks), so that the whole
    order takes as long as a few inverses.
    """
    inverse = torch.linalg.inv(moments.gram + torch.diag(moments.ridges(strength)))
    weights = inverse @ moments.cross
    error = moments.square - float((weights * moments.cross).sum())
    left = list(range((len(moments.gram) - moments.constant) // size))
    yield None, error, weights
    while left:
        rises = []
        for block in left:
            rows = slice(block * size, (block + 1) * size)
            # P_bb⁻¹ W_b
            inner = torch.linalg.solve(inverse[rows, rows], weights[rows])
            rises.append((float((weights[rows] * inner).sum()), block))
        rise, block = min(rises)
        rows = slice(block * size, (block + 1) * size)
        # P_bb⁻¹ P_b·
        share = torch.linalg.solve(inverse[rows, rows], inverse[rows])
        weights = weights - share.t() @ weights[rows]
        inverse = inverse - inverse[:, rows] @ share
        # What is gone stays gone, whatever rounding leaves of it.
        inverse[rows] = 0
        inverse[:, rows] = 0
        weights[rows] = 0
        error += rise
        left.remove(block)
        yield block, error, weights
