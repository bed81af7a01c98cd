"""Hard Concrete gates: a random number in [0, 1] per head, often exactly 0 or exactly 1, that is trained by gradient.

Louizos et al. 2018 ("Learning sparse neural networks through L0 regularization"), as used on heads by Voita et al.
2019, section 6.1. With noise u ~ U(0, 1):

    s = σ((ln u − ln(1 − u) + log α) / β),   s̄ = s·(ζ − γ) + γ,   z = min(1, max(0, s̄))
    P(z = 0) = σ(β ln(−γ/ζ) − log α),        P(z = 1) = σ(log α − β ln((1 − γ)/(ζ − 1)))
    P(z ≠ 0) = σ(log α − β ln(−γ/ζ)),        L_C = Σ_heads P(z ≠ 0)
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from headwise.heads import Head, HeadMap, HeadMask, Site

EDGE = 1e-6  # noise and P(open) stay this far from 0 and 1
Scale = Literal["paper", "code"]
Rule = Literal["sign", "deterministic"]


@dataclass(frozen=True)
class HardConcrete:
    """The distribution: temperature β (0.33 in Voita's released gate, 2/3 in Louizos et al.) and stretch (γ, ζ)."""

    temperature: float = 0.33
    low: float = -0.1
    high: float = 1.1

    def sample(self, log_alpha: Tensor, noise: Tensor) -> Tensor:
        """A gate for each log α, given uniform noise of the same shape."""
        noise = noise.clamp(EDGE, 1 - EDGE)
        s = torch.sigmoid((noise.log() - (-noise).log1p() + log_alpha) / self.temperature)
        return (s * (self.high - self.low) + self.low).clamp(0, 1)

    def p_open(self, log_alpha: Tensor) -> Tensor:
        """P(z ≠ 0), the term of L_C, kept a little away from 0 and 1 as in the released code."""
        return torch.sigmoid(log_alpha - self.temperature * math.log(-self.low / self.high)).clamp(EDGE, 1 - EDGE)

    def p_zero(self, log_alpha: Tensor) -> Tensor:
        """P(z = 0)."""
        return torch.sigmoid(self.temperature * math.log(-self.low / self.high) - log_alpha)

    def p_one(self, log_alpha: Tensor) -> Tensor:
        """P(z = 1)."""
        return torch.sigmoid(log_alpha - self.temperature * math.log((1 - self.low) / (self.high - 1)))

    def deterministic(self, log_alpha: Tensor) -> Tensor:
        """The released code's gate at test time: no noise, and no temperature."""
        return (torch.sigmoid(log_alpha) * (self.high - self.low) + self.low).clamp(0, 1)

    def kept(self, log_alpha: Tensor, rule: Rule = "sign") -> Tensor:
        """Which gates stay open: `sign`, the paper's rule (P(z = 1) > P(z = 0), footnote 7: the sign of log α where the
        stretch is symmetric), or `deterministic`, the code's (its gate at test time is not 0).
        """
        if rule == "deterministic":
            return self.deterministic(log_alpha) > 0
        return self.p_one(log_alpha) > self.p_zero(log_alpha)


class Gates(nn.Module):
    """One gate per head of a map, as a submodule of the model, so that checkpoints and data-parallel training carry it.

    In training `draw` resamples the noise once per batch (footnote 5); in evaluation the deterministic gate holds.
    """

    def __init__(self, heads: HeadMap, distribution: HardConcrete, start: float) -> None:
        super().__init__()
        self.heads, self.distribution = heads, distribution
        self.log_alpha = nn.Parameter(torch.full((heads.total,), float(start)))
        self.places: dict[Site, slice] = {}
        at = 0
        for site in heads.sites:
            self.places[site] = slice(at, at := at + heads.count(site))
        self.now: Tensor = self.log_alpha.detach()

    def draw(self, noise: Tensor | None = None) -> None:
        """Set the gates for the coming forward."""
        if self.training:
            noise = torch.rand_like(self.log_alpha) if noise is None else noise
            self.now = self.distribution.sample(self.log_alpha, noise)
        else:
            self.now = self.distribution.deterministic(self.log_alpha)

    def by_site(self) -> dict[Site, Callable[[], Tensor]]:
        """The gates as `capture` takes them."""
        return {site: (lambda place=place: self.now[place]) for site, place in self.places.items()}  # type: ignore[misc]

    def penalty(self, scale: Scale = "paper") -> Tensor:
        """L_C: `paper` sums P(open) over all heads, `code` takes the mean over gated attention layers of their sums; so
        the objective is the same for λ_paper = λ_code / layers.
        """
        total = self.distribution.p_open(self.log_alpha).sum()
        return total if scale == "paper" else total / len(self.places)

    def mask(self, whole: HeadMap, rule: Rule = "sign") -> HeadMask:
        """The decided gates as a mask over all heads of the model; heads without a gate stay."""
        kept = self.distribution.kept(self.log_alpha.detach(), rule)
        return HeadMask.full(whole).without(
            head for head, keep in zip(self.heads, kept.tolist(), strict=True) if not keep
        )

    def probabilities(self) -> dict[Head, float]:
        """P(open) of every head now."""
        return dict(zip(self.heads, self.distribution.p_open(self.log_alpha.detach()).tolist(), strict=True))
