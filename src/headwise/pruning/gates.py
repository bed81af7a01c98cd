"""Hard Concrete gates: a random number in [0, 1] per head or unit, often exactly 0 or 1, trained by gradient.

Louizos et al. 2018 ("Learning sparse neural networks through L0 regularization"), as used on heads by Voita et al.
2019, section 6.1. With noise u ~ U(0, 1):

    s = σ((ln u − ln(1 − u) + log α) / β),   s̄ = s·(ζ − γ) + γ,   z = min(1, max(0, s̄))
    P(z = 0) = σ(β ln(−γ/ζ) − log α),        P(z = 1) = σ(log α − β ln((1 − γ)/(ζ − 1)))
    P(z ≠ 0) = σ(log α − β ln(−γ/ζ)),        L_C = Σ_heads P(z ≠ 0)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from headwise.core.errors import HeadwiseError
from headwise.core.heads import Head, HeadMap, Site
from headwise.core.layout import HeadMask
from headwise.core.options import Gates, Rule, Scale, Unit
from headwise.core.removal_units import removal_units

EDGE = 1e-6  # noise and P(open) stay this far from 0 and 1
# |log α| of a settled gate: P(open) is within 3e-4 of 0 or 1 at every temperature up to 1.
FAR = 9.0


@dataclass(frozen=True)
class HardConcrete:
    """The distribution: temperature β (0.33 in Voita's released gate, 2/3 in Louizos et al.) and stretch (γ, ζ)."""

    temperature: float = 0.33
    low: float = -0.1
    high: float = 1.1

    def sample(self, log_alpha: Tensor, noise: Tensor) -> Tensor:
        """A gate for each log α, given uniform noise of the same shape."""
        noise = noise.clamp(EDGE, 1 - EDGE)  # ln 0 would make the gate NaN
        s = torch.sigmoid((noise.log() - (-noise).log1p() + log_alpha) / self.temperature)
        # Stretched beyond 0 and 1 and cut off there: so both ends have a probability of their own.
        return (s * (self.high - self.low) + self.low).clamp(0, 1)

    def p_open(self, log_alpha: Tensor) -> Tensor:
        """P(z ≠ 0), the term of L_C, clamped to EDGE … 1 − EDGE as in the released code."""
        p = torch.sigmoid(log_alpha - self.temperature * math.log(-self.low / self.high))
        return p.clamp(EDGE, 1 - EDGE)

    def p_zero(self, log_alpha: Tensor) -> Tensor:
        """P(z = 0)."""
        return torch.sigmoid(self.temperature * math.log(-self.low / self.high) - log_alpha)

    def p_one(self, log_alpha: Tensor) -> Tensor:
        """P(z = 1)."""
        return torch.sigmoid(
            log_alpha - self.temperature * math.log((1 - self.low) / (self.high - 1))
        )

    def deterministic(self, log_alpha: Tensor) -> Tensor:
        """The released code's gate at test time: without noise and temperature."""
        return (torch.sigmoid(log_alpha) * (self.high - self.low) + self.low).clamp(0, 1)

    def kept(self, log_alpha: Tensor, rule: Rule = "sign") -> Tensor:
        """Which gates stay open: by `sign`, the paper's rule (P(z = 1) > P(z = 0), footnote 7: the sign of log α for a
        symmetric stretch), or `deterministic`, the code's (the gate at test time is not 0).
        """
        if rule == "deterministic":
            return self.deterministic(log_alpha) > 0
        return self.p_one(log_alpha) > self.p_zero(log_alpha)


def glorot_uniform(heads: HeadMap, seed: int) -> Tensor:
    """The start of the released code: log α ~ U(−√(3/h), √(3/h)) in a layer of h heads, ±0.61 for 8 heads.

    It is Glorot-uniform initialisation of a variable of shape [1, h, 1, 1]. One number per head, in the map's order.
    """
    generator = torch.Generator().manual_seed(seed)
    layers = []
    for site in heads.sites:
        count = heads.count(site)
        uniform = torch.rand(count, generator=generator) * 2 - 1
        # A layer may have lost all of its heads.
        layers.append(uniform * math.sqrt(3 / max(count, 1)))
    return torch.cat(layers)


class HeadGates(nn.Module):
    """One gate per unit of a map's heads. As a submodule of the model, it is in checkpoints and in data-parallel
    training.

    Letters: H heads, U units; U = H where every head is a unit. In training `draw` resamples the noise once per batch
    (footnote 5); in evaluation gates are deterministic.

    start: the first log α, one number or H numbers; a unit takes that of its first head. unit: the heads that are removed
    together; by default `usual_unit`. log_alpha_before: log α (U) when it was last trained, before the decision.
    losses_at_decision: the dev loss with soft and with decided gates, in nats per token (2); NaN if the gates were not
    decided before the end of the run. progress: the share of the run that is over. unit_of: the unit of every head (H).
    heads_in: the number of heads of every unit (U). now: the gates of all heads (H).
    """

    log_alpha_before: Tensor
    losses_at_decision: Tensor
    unit_of: Tensor
    heads_in: Tensor

    def __init__(
        self,
        heads: HeadMap,
        distribution: HardConcrete,
        start: float | Tensor,
        unit: Unit | None = None,
    ) -> None:
        super().__init__()
        self.heads = heads
        self.distribution = distribution
        self.units = removal_units(heads, unit)

        number_of = {head: number for number, head in enumerate(heads)}
        unit_of = torch.zeros(heads.total, dtype=torch.long)
        sizes: list[float] = []
        first_heads: list[int] = []
        for place, together in enumerate(self.units):
            sizes.append(float(len(together)))
            first_heads.append(number_of[together[0]])
            for head in together:
                unit_of[number_of[head]] = place
        # Not in checkpoints: they follow from the heads and the unit.
        self.register_buffer("unit_of", unit_of, persistent=False)
        self.register_buffer("heads_in", torch.tensor(sizes), persistent=False)

        self.log_alpha = nn.Parameter((torch.zeros(heads.total) + start)[first_heads])
        # In checkpoints: a run that goes on after the decision could not measure them again.
        self.register_buffer("log_alpha_before", self.log_alpha.detach().clone())
        self.register_buffer("losses_at_decision", torch.full((2,), math.nan))
        self.progress = 0.0
        self.settling = False

        self.slices: dict[Site, slice] = {}  # of all heads
        start_of_layer = 0
        for site in heads.sites:
            end = start_of_layer + heads.count(site)
            self.slices[site] = slice(start_of_layer, end)
            start_of_layer = end
        # Any numbers of the right shape: `draw` comes before the first forward.
        self.now: Tensor = self.of_heads(self.log_alpha.detach())
        self.fixed: Tensor | None = None

    def draw(self, noise: Tensor | None = None) -> None:
        """Draw the gates of the next forward."""
        self.now = self.of_heads(self.drawn(noise) if self.fixed is None else self.fixed)

    def of_heads(self, gates: Tensor) -> Tensor:
        """Numbers of units (U) for all heads (H)."""
        return gates.index_select(0, self.unit_of)

    def drawn(self, noise: Tensor | None = None) -> Tensor:
        """Gates for one forward (U): with noise in training."""
        if not self.training:
            return self.distribution.deterministic(self.log_alpha)
        if noise is None:
            noise = torch.rand_like(self.log_alpha)
        return self.distribution.sample(self.trained, noise)

    def soft(self) -> Tensor:
        """Every gate without noise, before it is decided (U)."""
        return self.distribution.deterministic(self.log_alpha.detach())

    @contextmanager
    def held(self, gates: Tensor) -> Iterator[None]:
        """Fix the gates (U) inside the block."""
        self.fixed = gates
        self.now = self.of_heads(gates)
        try:
            yield
        finally:
            self.fixed = None

    def by_site(self) -> dict[Site, Callable[[], Tensor]]:
        """The gates of every layer, for `capture`."""

        # A function of its own for each layer: lambdas of one loop would all read its last slice.
        def gates_of(heads: slice) -> Callable[[], Tensor]:
            # A function, because `now` is another tensor in every batch.
            return lambda: self.now[heads]

        return {site: gates_of(heads) for site, heads in self.slices.items()}

    def penalty(self, scale: Scale = "paper") -> Tensor:
        """L_C: `paper` sums P(open) over all heads, `code` takes the mean over gated layers of their sums. Both are the
        same objective for λ_paper = λ_code / layers."""
        # A unit counts once for each head, so that λ means the same whatever is removed together.
        # L_C = Σ_heads P(z ≠ 0) (Voita et al. 2019, section 6.1).
        total = (self.distribution.p_open(self.trained) * self.heads_in).sum()
        return total if scale == "paper" else total / len(self.slices)

    def cost(self) -> Tensor:
        """What is added to the loss, per target token."""
        return self.log_alpha.new_zeros(())

    def decided(self) -> Tensor:
        """The decision: which gates stay open (U)."""
        return self.kept()

    def groups(self, rate: float, updates: int) -> list[dict[str, Any]]:
        """Parameter groups for a run of this number of updates."""
        # Decay would pull log α to 0, where a gate is half open.
        return [{"params": [self.log_alpha], "lr": rate, "weight_decay": 0.0}]

    @property
    def trained(self) -> Tensor:
        """log α for the loss: without gradient once the gates settle."""
        return self.log_alpha.detach() if self.settling else self.log_alpha

    def settle(self, kept: Tensor, left: int) -> None:
        """The next of `left` equal steps that move decided gates to ±FAR, without training. kept: the open ones (U)."""
        self.settling = True
        with torch.no_grad():
            goal = torch.where(kept, FAR, -FAR)
            # A `left`-th of the way that is left: after the last step it is all gone.
            self.log_alpha.add_((goal - self.log_alpha) / left)

    def chances(self, log_alpha: Tensor) -> Tensor:
        """P(open) of every gate (U) for a log α."""
        return self.distribution.p_open(log_alpha)

    def kept(self, rule: Rule = "sign") -> Tensor:
        """Which gates stay open now (U)."""
        return self.distribution.kept(self.log_alpha.detach(), rule)

    def mask(self, whole: HeadMap, kept: Tensor) -> HeadMask:
        """Decided gates (U) as a mask over all heads of the model; heads without a gate stay.

        Raises HeadwiseError for gates that are NaN, which `kept` would close.
        """
        broken = int(self.log_alpha.isnan().sum())
        if broken:
            raise HeadwiseError(
                f"{broken} of {len(self.units)} gates are NaN, so they say nothing about their heads: the loss "
                "overflowed or was NaN in training. Train at a smaller learning rate or in float32."
            )
        # A unit goes as a whole.
        closed: list[Head] = []
        for together, keep in zip(self.units, kept.tolist(), strict=True):
            if not keep:
                closed += together
        return HeadMask.full(whole).without(closed)

    def expected(self) -> float:
        """The expected number of open heads, Σ P(open), when their gates were last trained."""
        return float((self.chances(self.log_alpha_before) * self.heads_in).sum())

    def undecided(self) -> float:
        """The share of gates with P(open) between 0.1 and 0.9 when they were last trained."""
        p = self.chances(self.log_alpha_before)
        return float(((p > 0.1) & (p < 0.9)).float().mean())

    def probabilities(self) -> dict[Head, float]:
        """P(open) of every head now."""
        chances = self.of_heads(self.chances(self.log_alpha.detach()))
        return dict(zip(self.heads, chances.tolist(), strict=True))


class PenaltyGates(HeadGates):
    """Gates under a penalty. weight: λ. scale: what it multiplies. rule: the decision."""

    def __init__(
        self, heads: HeadMap, options: Gates, start: float | Tensor, weight: float
    ) -> None:
        super().__init__(heads, HardConcrete(options.temperature), start, options.unit)
        self.weight = weight
        self.scale = options.penalty_scale
        self.rule = options.rule

    def cost(self) -> Tensor:
        return self.weight * self.penalty(self.scale)

    def decided(self) -> Tensor:
        return self.kept(self.rule)
