"""Exactly K gates open in every step: relaxed top-K sampling (Li, Cotterell and Sachan 2021, "Differentiable subset
pruning of Transformer heads"; Xie and Ermon 2019).

Every head has a weight w_h (`log_alpha` here). In every batch, with u ~ U(0, 1) and a temperature τ:

    r = w − ln(−ln u),    p¹ = softmax(r/τ),    r ← r + ln(1 − p^{j−1}),    p^j = softmax(r/τ),  j = 2 … K
    m = Σ_j p^j,          Σ_h m_h = K

m multiplies the heads' outputs; there is no penalty. τ falls log-linearly from WARM to COLD until the last SETTLE of
the run; there the K heads with the largest w are chosen, without noise, while the model trains on. From the first step
on the gates sum to K, so, unlike Hard Concrete gates, training does not start at the unpruned model. The gradient of w
grows with 1/τ where two heads are nearly equal; it is clipped separately, as with a target count.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from headwise.core.heads import HeadMap
from headwise.core.options import Keep, Unit
from headwise.pruning.gates import EDGE, HardConcrete
from headwise.pruning.target_count import SETTLE, TargetGates

WARM = 0.1
COLD = 1e-8
DRAWS = 256  # for the probability to be among the top K


def relaxed_top(r: Tensor, k: int, temperature: float) -> Tensor:
    """m of noisy weights r (both H, float64), which sums to k. A single m_h may exceed 1 at high temperature."""
    # Near temperature 0 some p are exactly 1, and ln 0 has no gradient.
    tiny = torch.finfo(r.dtype).tiny
    p = torch.softmax(r / temperature, -1)
    m = p
    for _ in range(k - 1):
        r = r + (1 - p).clamp(min=tiny).log()
        p = torch.softmax(r / temperature, -1)
        m = m + p
    return m


class TopGates(TargetGates):
    """Gates with the target count open in every step, in total or of every kind.

    settle: the share of the run, at its end, with fixed gates; τ falls before it.
    """

    def __init__(
        self,
        heads: HeadMap,
        start: float | Tensor,
        keep: Keep,
        settle: float = SETTLE,
        unit: Unit | None = None,
    ) -> None:
        super().__init__(heads, HardConcrete(), start, keep, unit)
        self.settle_share = settle

    @property
    def temperature(self) -> float:
        """τ now."""
        share = min(1.0, self.progress / (1 - self.settle_share))
        return math.exp((1 - share) * math.log(WARM) + share * math.log(COLD))

    def drawn(self, noise: Tensor | None = None) -> Tensor:
        """Gates for one forward (U): relaxed and noisy in training, the K largest otherwise."""
        if not self.training or self.settling:
            return self.decided().to(self.log_alpha)
        if noise is None:
            noise = torch.rand_like(self.log_alpha)
        device = self.log_alpha.device
        if device.type == "mps":  # which has no float64
            device = torch.device("cpu")
        # At COLD, a rounding error of float32 would decide between two heads.
        r = self.log_alpha.to(device, torch.float64) + gumbel(noise.to(device, torch.float64))
        drawn = []
        for group, count in self.counts:
            drawn.append(relaxed_top(r[group], count, self.temperature))
        return torch.cat(drawn).to(self.log_alpha)

    def soft(self) -> Tensor:
        """The mean of every gate over noise at low temperature (U): its probability to be among the K largest."""
        return self.chances(self.log_alpha.detach())

    def chances(self, log_alpha: Tensor) -> Tensor:
        """P(among the K largest with noise) of every gate (U), from DRAWS fixed draws."""
        # The same draws in every call: P(open) in gates.csv then moves only with log α.
        generator = torch.Generator().manual_seed(0)
        noise = torch.rand(DRAWS, len(log_alpha), generator=generator).to(log_alpha.device)
        r = log_alpha + gumbel(noise)
        chances = torch.zeros_like(log_alpha)
        for group, count in self.counts:
            of_group = r[:, group]
            largest = of_group.topk(count).indices
            is_largest = torch.zeros_like(of_group).scatter(1, largest, 1.0)
            chances[group] = is_largest.mean(0)
        return chances


def gumbel(noise: Tensor) -> Tensor:
    """Uniform noise as Gumbel noise: −ln(−ln u)."""
    return -(-noise.clamp(EDGE, 1 - EDGE).log()).log()
