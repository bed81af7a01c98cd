"""Pruning to a target count: a Lagrangian moves the expected number of open gates to N, then exactly N heads stay.

    min over weights and gates, max over λ1, λ2, λ3:
        L_xent + λ1 (K − t) + λ2 (K − t)² + λ3 D,    K = Σ_heads P(z ≠ 0),    D = Σ_heads P(z ≠ 0) (1 − P(z ≠ 0))

λ1 and λ2: Wang et al. 2020 (FLOP), Xia et al. 2022 (CoFi), Xia et al. 2024 (Sheared-LLaMA, counts of heads). The target
t falls linearly from all heads to N over the first RAMP of the run. Half-open gates would satisfy that, so from then on
λ3, which is ours, penalises them. All multipliers start at 0; the optimiser ascends them. In the last SETTLE of the run
the N heads with the largest log α are chosen: their gates go to 1, the others to 0, while the model trains on. All
rates follow from the length of the run.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from headwise.core.errors import HeadwiseError
from headwise.core.heads import HeadMap
from headwise.core.options import GateTraining, Keep, Unit
from headwise.core.removal_units import Together, target_counts
from headwise.pruning.gates import HardConcrete, HeadGates

RAMP = 0.25
SETTLE = 0.25
TRAVEL = 60  # distance in log α that a gate can cover in the run: several times from open to closed and back
ASCENT = 10  # the same for the multipliers, in nats per unit
CLIP = 0.1  # gradients of gates and multipliers are clipped apart from those of the model
WITHIN = 0.5  # largest difference of the expected count from N, in units


class TargetGates(HeadGates):
    """Gates with a target count of heads: in total, or of every kind. All units of a group have the same size.

    Letters: U units, G groups (one, or one per kind). targets, sizes: how many units of every group shall stay, and how
    many it has (G). members: G U, 1 where a unit is in a group. counts: for every group its place among the units, and
    its target. Raises HeadwiseError for counts that the units cannot give.
    """

    members: Tensor
    targets: Tensor
    sizes: Tensor

    def __init__(
        self,
        heads: HeadMap,
        distribution: HardConcrete,
        start: float | Tensor,
        keep: Keep,
        unit: Unit | None = None,
    ) -> None:
        super().__init__(heads, distribution, start, unit)
        groups = target_counts(heads, keep, 1, unit)
        members = torch.zeros(len(groups), len(self.units))
        targets = torch.zeros(len(groups))
        self.counts: list[tuple[slice, int]] = []
        start_of_group = 0
        for group, (kinds, count) in enumerate(groups.items()):
            own = [together for together in self.units if together[0].kind in kinds]
            target = count // size_of(own)
            # Units of a kind are neighbours, and the groups have the order of the kinds.
            place = slice(start_of_group, start_of_group + len(own))
            self.counts.append((place, target))
            members[group, place] = 1.0
            targets[group] = target
            start_of_group = place.stop
        self.register_buffer("members", members, persistent=False)
        self.register_buffer("targets", targets, persistent=False)
        self.register_buffer("sizes", members.sum(1), persistent=False)
        # The Trainer clips the norm of all gradients together: large ones of gates would shrink those of the weights.
        self.log_alpha.register_hook(clip)

    def groups(self, rate: float, updates: int) -> list[dict[str, Any]]:
        """Parameter groups at a rate that lets a gate travel far enough in this number of updates."""
        # Adam moves a number by about the rate in each update, however large its gradient is.
        return super().groups(max(rate, TRAVEL / updates), updates)

    def decided(self) -> Tensor:
        """The target count of gates with the largest log α in every group (U); of equal ones the first."""
        kept = torch.zeros_like(self.log_alpha, dtype=torch.bool)
        for place, count in self.counts:
            # Stable, so that every device and every resumed run keeps the same ones of equal gates.
            order = self.log_alpha.detach()[place].argsort(descending=True, stable=True)
            kept[place].index_fill_(0, order[:count], True)
        return kept


class CountedGates(TargetGates):
    """Hard Concrete gates with multipliers (G each) that control the expected number of open ones."""

    def __init__(
        self,
        heads: HeadMap,
        distribution: HardConcrete,
        start: float | Tensor,
        keep: Keep,
        unit: Unit | None = None,
    ) -> None:
        super().__init__(heads, distribution, start, keep, unit)
        self.linear = nn.Parameter(torch.zeros(len(self.targets)))
        self.quadratic = nn.Parameter(torch.zeros(len(self.targets)))
        self.variance = nn.Parameter(torch.zeros(len(self.targets)))
        for multiplier in self.multipliers:
            multiplier.register_hook(clip)

    @property
    def multipliers(self) -> list[nn.Parameter]:
        """λ1, λ2 and λ3 of every group (G each)."""
        return [self.linear, self.quadratic, self.variance]

    def target(self) -> Tensor:
        """t of every group now (G): from all units to the target count."""
        return self.sizes + (self.targets - self.sizes) * min(1.0, self.progress / RAMP)

    def cost(self) -> Tensor:
        """λ1 (K − t) + λ2 (K − t)² + λ3 D, summed over groups; 0 once the gates are settling."""
        if self.settling:
            return self.linear.new_zeros(())
        p = self.distribution.p_open(self.log_alpha)
        excess = self.members @ p - self.target()
        cost: Tensor = (self.linear * excess + self.quadratic * excess.square()).sum()
        if self.progress < RAMP:
            return cost  # half-open gates are on their way
        d = self.members @ (p * (1 - p))
        return cost + (self.variance * d).sum()

    def groups(self, rate: float, updates: int) -> list[dict[str, Any]]:
        """Gates descend, multipliers ascend."""
        ascent = {
            "params": self.multipliers,
            "lr": ASCENT / updates,
            "weight_decay": 0.0,
            "maximize": True,
        }
        return [*super().groups(rate, updates), ascent]

    def missed(self) -> float:
        """The largest distance of an expected number of units from its target when the gates were last trained."""
        expected = self.members @ self.distribution.p_open(self.log_alpha_before)
        return float((expected - self.targets).abs().max())


def size_of(parts: Sequence[Together]) -> int:
    """How many heads each of these units has. Raises HeadwiseError where they differ: gates are counted."""
    sizes = {len(together) for together in parts}
    if len(sizes) > 1:
        raise HeadwiseError(
            f"Gates with a target count need units of equal size, but some have {min(sizes)} heads and some "
            f"{max(sizes)}: give a number for each kind, another unit, a penalty, or the method 'greedy'."
        )
    return sizes.pop()


def clip(gradient: Tensor) -> Tensor:
    """The gradient, clipped to norm CLIP."""
    return gradient.div(gradient.norm().div(CLIP).clamp(min=1))


def settle_share(options: GateTraining, to_count: bool) -> float:
    """The share of the run, at its end, with decided gates: with frozen weights none, as nothing would train in it."""
    if options.settle is not None:
        return options.settle
    return SETTLE if to_count and options.train != "gates" else 0.0
