"""Exactly K gates open in every step: relaxed top-K sampling (Li, Cotterell and Sachan 2021, "Differentiable subset
pruning of Transformer heads"; Xie and Ermon 2019).

Every head has a weight w_h (`log_alpha` here). In every batch, with u ~ U(0, 1) and a temperature τ:

    r = w − ln(−ln u),    p¹ = softmax(r/τ),    r ← r + ln(1 − p^{j−1}),    p^j = softmax(r/τ),  j = 2 … K
    m = Σ_j p^j,          Σ_h m_h = K

m multiplies the heads' outputs; there is no penalty. τ falls log-linearly from WARM to COLD until the last SETTLE of
the run; there the K heads of the largest w are chosen, noise ends, and the model trains on. From the first step on only
K heads' worth of outputs is there, so, unlike Hard Concrete gates, this does not begin at the model as it came. The
gradient of w goes with 1/τ where two heads are nearly level; it is clipped for itself, as with a target.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from headwise.heads import HeadMap, Kind
from headwise.model import Model
from headwise.pruning.gates import EDGE, HardConcrete
from headwise.pruning.hard_concrete import GateOptions, GateTraining, Pruned, start_of
from headwise.pruning.target_count import SETTLE, TRAVEL, Keep, WantedGates, heads_of, updates_of
from headwise.translation.train import Training

WARM, COLD = 0.1, 1e-8
DRAWS = 256  # by which the chance to be among the top K is told


def relaxed_top(r: Tensor, k: int, temperature: float) -> Tensor:
    """m of noisy weights r (both H, float64): it sums to k. A single m_h may pass 1 while the temperature is high."""
    tiny = torch.finfo(r.dtype).tiny
    p = torch.softmax(r / temperature, -1)
    m = p
    for _ in range(k - 1):
        r = r + (1 - p).clamp(min=tiny).log()
        p = torch.softmax(r / temperature, -1)
        m = m + p
    return m


class TopGates(WantedGates):
    """Gates of which the wanted number is open at every moment, in total or of every kind.

    settle: the last share of the run, in which the choice is fixed; τ has fallen before.
    """

    def __init__(self, heads: HeadMap, start: float | Tensor, keep: Keep, settle: float = SETTLE) -> None:
        super().__init__(heads, HardConcrete(), start, keep)
        self.settle_share = settle

    @property
    def temperature(self) -> float:
        """τ now."""
        share = min(1.0, self.share / (1 - self.settle_share))
        return math.exp((1 - share) * math.log(WARM) + share * math.log(COLD))

    def drawn(self, noise: Tensor | None = None) -> Tensor:
        """Gates for one forward (H): relaxed and noisy in training, the K largest otherwise."""
        if not self.training or self.settling:
            return self.largest().to(self.log_alpha)
        noise = torch.rand_like(self.log_alpha) if noise is None else noise
        r = self.log_alpha.double() + gumbel(noise.double())
        now = torch.zeros_like(r)
        for member, wanted in zip(self.members.bool(), self.wanted.int().tolist(), strict=True):
            now = now.masked_scatter(member, relaxed_top(r[member], wanted, self.temperature))
        return now.to(self.log_alpha)

    def soft(self) -> Tensor:
        """The mean of every gate over noise when it is cold (H): its chance to be among the K largest."""
        return self.chances(self.log_alpha.detach())

    def chances(self, log_alpha: Tensor) -> Tensor:
        """P(among the K largest under noise) of every head (H), by DRAWS draws that are always the same."""
        generator = torch.Generator().manual_seed(0)
        noise = torch.rand(DRAWS, len(log_alpha), generator=generator).to(log_alpha.device)
        r = log_alpha + gumbel(noise)
        found = torch.zeros_like(log_alpha)
        for member, wanted in zip(self.members.bool(), self.wanted.int().tolist(), strict=True):
            inside = r[:, member]
            among = torch.zeros_like(inside).scatter(1, inside.topk(wanted).indices, 1.0)
            found[member] = among.mean(0)
        return found


def gumbel(noise: Tensor) -> Tensor:
    """Uniform noise as Gumbel noise: −ln(−ln u)."""
    return -(-noise.clamp(EDGE, 1 - EDGE).log()).log()


def prune_by_top_k(
    model: Model, training: Training, options: GateOptions, kinds: tuple[Kind, ...], keep: Keep
) -> Pruned:  # fmt: skip
    """Relaxed top-K gates on every head of `kinds`: exactly `keep` stay, in total or of every kind.

    Trains `model` in place, resumes and raises as `prune_to_count` does.
    """
    heads, updates = heads_of(model, keep, kinds), updates_of(training, options)
    settle = SETTLE if options.settle is None else options.settle
    gates = TopGates(heads, start_of(options, heads, training.seed), keep, settle).to(model.hf.device)
    rate = max(options.gate_learning_rate, TRAVEL / updates)
    gate_training = GateTraining(
        gates, cost=lambda: gates.log_alpha.new_zeros(()), kept=gates.largest, settle=settle,
        groups=[{"params": [gates.log_alpha], "lr": rate, "weight_decay": 0.0}],
    )  # fmt: skip
    return gate_training.run(model, training, options)
