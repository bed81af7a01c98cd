"""The rules of relevance propagation: how relevance is divided from outputs to inputs.

For a map with impacts z[o, i] of input i on output o (weight times input), an output's relevance R[o] is divided over
the inputs as R[i] = Σ_o c1[o] · z[o, i] + c2[o] · |z[o, i]|. A `Share` makes c1 and c2 from R[o], S[o] = Σ_i z[o, i]
and A[o] = Σ_i |z[o, i]|. Positive and negative impacts are (z ± |z|)/2, so all rules of the papers have this form, and
linear maps need only matrix products.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

Share = Callable[[Tensor, Tensor, Tensor | None], tuple[Tensor, Tensor | None]]


def stable(sums: Tensor, epsilon: float) -> Tensor:
    """Denominators away from zero: S + ε · sign(S), with sign(0) = 1."""
    return torch.where(sums < 0, sums - epsilon, sums + epsilon)


@dataclass(frozen=True)
class Epsilon:
    """R[i] = Σ_o z[o, i] / (S[o] + ε sign S[o]) · R[o] (Bach et al. 2015; Voita et al. 2019, appendix A)."""

    epsilon: float
    absolute = False  # whether A is needed

    def __call__(
        self, relevance: Tensor, sums: Tensor, absolutes: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        return relevance / stable(sums, self.epsilon), None


@dataclass(frozen=True)
class AlphaBeta:
    """R[i] = Σ_o (α z⁺[o, i] / Σ z⁺ + β z⁻[o, i] / Σ z⁻) · R[o], both fractions positive (Voita et al. 2021, section 2;
    the released code has α = β = ½)."""

    alpha: float = 0.5
    beta: float = 0.5
    epsilon: float = 1e-5
    absolute = True

    def __call__(
        self, relevance: Tensor, sums: Tensor, absolutes: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        assert absolutes is not None
        noise = (
            4 * torch.finfo(sums.dtype).eps * absolutes
        )  # below it, there are no impacts of that sign
        # z⁺ and z⁻ from sums that matrix products give (module docstring)
        up, down = (absolutes + sums) / 2, (sums - absolutes) / 2
        positive, negative = self.parts(relevance, up, down)
        positive, negative = (
            torch.where(up > noise, positive, 0),
            torch.where(-down > noise, negative, 0),
        )
        return (positive + negative) / 2, (positive - negative) / 2

    def parts(self, relevance: Tensor, up: Tensor, down: Tensor) -> tuple[Tensor, Tensor]:
        """The relevance per unit of positive and of negative impact, given their sums."""
        return relevance * (self.alpha / (up + self.epsilon)), relevance * (
            self.beta / (down - self.epsilon)
        )


@dataclass(frozen=True)
class Rule:
    """A rule of propagation.

    share: how an output's relevance is divided over its inputs.
    bias: absorbed (it is in the denominator and keeps its share, like an input), or spread (evenly over all inputs, so
        that also an input of zero gets some).
    norm: jacobian (through the statistics too), deviation-constant (with a fixed standard deviation) or centring (only
        through the mean; without scale, bias and deviation).
    attention: jacobian (query, key and value), jacobian-of-values, products (query, key and value through the matrix
        products and softmax), values (constant weights, shares by weight · value) or weights (raw weights).
    rescale: every step propagates as much |relevance| as it received.
    signed: whether a head's relevance is the signed sum over its neurons, not the absolute one.
    """

    name: str
    share: Epsilon | AlphaBeta
    bias: Literal["absorbed", "spread"]
    norm: Literal["jacobian", "deviation-constant", "centring"]
    attention: Literal["jacobian", "jacobian-of-values", "products", "values", "weights"]
    rescale: bool = False
    signed: bool = False


RULES = {
    rule.name: rule
    for rule in (
        Rule(
            "ding",  # Ding et al. 2017 as in Voita et al. 2019, appendix A
            Epsilon(0.05),
            bias="absorbed",
            norm="centring",
            attention="weights",
        ),
        Rule(
            "alpha-beta",  # Voita et al. 2021, section 2, as released
            AlphaBeta(),
            bias="spread",
            norm="jacobian",
            attention="jacobian",
            rescale=True,
            signed=True,
        ),
        Rule(
            "alpha-beta-fast",  # alpha-beta in matrix products
            AlphaBeta(),
            bias="absorbed",
            norm="deviation-constant",
            attention="jacobian",
            rescale=True,
            signed=True,
        ),
        Rule(
            "attnlrp",  # Achtibat et al. 2024, section 3
            Epsilon(1e-6),
            bias="absorbed",
            norm="deviation-constant",
            attention="products",
        ),
        Rule(
            "cp",  # Ali et al. 2022, section 4
            Epsilon(1e-6),
            bias="absorbed",
            norm="deviation-constant",
            attention="values",
        ),
    )
}
