"""Relevance through one attention layer, from the heads' outputs to queries, keys and values.

Letters as in `attention.kernel` (B batch, H heads, G key/value heads, Q queries, K keys, D head size), with P starts in
front. The layer is one step: alpha-beta divides an output's relevance over query, key and value together.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from headwise.attention.kernel import repeat
from headwise.errors import HeadwiseError
from headwise.importance.lrp.rules import Rule, stable
from headwise.importance.lrp.steps import Absorber, RecordedOperation, rescaled, spans


class Heads(NamedTuple):
    """Queries, keys and values of N sentences x heads: N Q D, N K D, N K D; weights N Q K."""

    query: Tensor
    key: Tensor
    value: Tensor
    weights: Tensor


@dataclass
class Attention(RecordedOperation):
    """softmax(scale · q kᵀ + bias) v. query B H Q D, key and value B G K D, weights B H Q K, relevance P B Q H D."""

    query: Tensor
    key: Tensor
    value: Tensor
    weights: Tensor
    scale: float
    carried: tuple[int, ...] = (0, 1, 2)  # which of query, key and value carry relevance
    capped: bool = (
        False  # whether logits are soft-capped, which only rules with constant weights support
    )
    absorber: ClassVar[Absorber] = "softmax"

    def propagate(self, rule: Rule, relevance: Tensor) -> tuple[Tensor, ...]:
        """The relevance of query, key and value, or of those among them that carry relevance."""
        if self.capped and rule.attention in ("jacobian", "products"):
            raise HeadwiseError(
                f"This model caps its attention logits, which the rule '{rule.name}' does not support: "
                "use ding or cp, with constant attention weights."
            )
        shape = self.query.shape[:2]
        pair = (repeat(t, shape[1]) for t in (self.key, self.value))
        query, key, value = (t.to(relevance.dtype).flatten(0, 1) for t in (self.query, *pair))
        heads = Heads(query, key, value, self.weights.to(relevance.dtype).flatten(0, 1))
        arrived = relevance.transpose(2, 3).flatten(1, 2)
        if rule.attention == "jacobian":
            found = self.by_jacobian(rule, heads, arrived)
        elif rule.attention == "products":
            found = self.by_products(rule, heads, arrived)
        else:
            found = (
                *(torch.zeros_like(t).expand(len(arrived), -1, -1, -1) for t in heads[:2]),
                self.by_values(rule, heads, arrived),
            )
        if rule.rescale:
            found = rescaled(rule, arrived, *found)
        parts = [part.unflatten(1, shape) for part in found]
        if rule.rescale:
            parts = list(rescaled(rule, relevance, *parts))
        groups = self.key.shape[1]
        parts[1:] = [part.unflatten(2, (groups, -1)).sum(3) for part in parts[1:]]
        return tuple(parts[place] for place in self.carried)

    def by_values(self, rule: Rule, heads: Heads, arrived: Tensor) -> Tensor:
        """Weights are constants. Raw: R_v = Aᵀ R; shared: R_v = v ⊙ Aᵀ (R / A v), Ali et al. 2022, section 4.1."""
        back, value = heads.weights.transpose(-1, -2), heads.value
        if rule.attention == "weights":
            return back @ arrived
        absolutes = heads.weights @ value.abs() if rule.share.absolute else None
        c1, c2 = rule.share(arrived, heads.weights @ value, absolutes)
        found = value * (back @ c1)
        return found if c2 is None else found + value.abs() * (back @ c2)

    def by_products(self, rule: Rule, heads: Heads, arrived: Tensor) -> tuple[Tensor, ...]:
        """Achtibat et al. 2024, Prop. 3.1 and 3.3: each matrix product gives half to either side.

        R_A = A ⊙ (R / 2O) vᵀ, and with logits x: R_x = x ⊙ (R_A − A Σ R_A). The next product divides by 2x, which
        cancels against the factor x: R_q = q ⊙ ½ scale (R_A − A Σ R_A) k, and R_k alike.
        """
        query, key, value, weights = heads
        halved = arrived / stable(2 * (weights @ value), rule.share.epsilon)
        inner = weights * (halved @ value.transpose(-1, -2))
        slope = (self.scale / 2) * (inner - weights * inner.sum(-1, keepdim=True))
        found_value = value * (weights.transpose(-1, -2) @ halved)
        return query * (slope @ key), key * (slope.transpose(-1, -2) @ query), found_value

    def by_jacobian(self, rule: Rule, heads: Heads, arrived: Tensor) -> tuple[Tensor, ...]:
        """Every output [q, d] divided over its query, all keys and all values by impact = derivative · input.

        With G[q, d, k] = A[q, k] (v[k, d] − o[q, d]), the derivative by a logit, the impacts are A v (values),
        G · scale · q[f] k[f] (key) and scale · q[f] Σ_k G k[f] (query): products, so that |impact| factors as well.
        """
        count, queries, size = heads.query.shape
        parts = [
            self.some(rule, Heads(*(t[rows] for t in heads)), arrived[:, rows])
            for rows in spans(
                count, queries * size * max(size, heads.key.shape[1]), heads.query.device
            )
        ]
        return tuple(torch.cat(part, 1) for part in zip(*parts, strict=True))

    def some(self, rule: Rule, heads: Heads, arrived: Tensor) -> tuple[Tensor, ...]:
        """`by_jacobian` for some sentences x heads, so that G has at most CHUNK elements."""
        query, key, value, weights = heads
        out, scaled = weights @ value, self.scale * query
        slope = weights[:, :, None] * (value.transpose(-1, -2)[:, None] - out[..., None])  # N Q D K
        scores = scaled @ key.transpose(-1, -2)
        sums = out + 2 * (slope @ scores[..., None])[..., 0]
        back = weights.transpose(-1, -2)
        absolutes = None
        if rule.share.absolute:
            turned = (slope @ key[:, None]).abs_() * scaled.abs()[
                :, :, None
            ]  # |impact| of query f on output d: N Q D D
            slope = slope.abs_()
            sizes = scaled.abs() @ key.abs().transpose(-1, -2)
            absolutes = weights @ value.abs() + (slope @ sizes[..., None])[..., 0] + turned.sum(-1)
        c1, c2 = rule.share(arrived, sums, absolutes)
        inner = weights * (
            c1 @ value.transpose(-1, -2) - (c1 * out).sum(-1, keepdim=True)
        )  # Σ_d c1 G
        found_query = scaled * (inner @ key)
        found_key = key * (inner.transpose(-1, -2) @ scaled)
        found_value = value * (back @ c1)
        if c2 is not None:
            many = c2.movedim(0, 2)  # N Q P D
            found_query = found_query + (many @ turned).movedim(2, 0)
            outer = (many @ slope).movedim(2, 0)
            found_key = found_key + key.abs() * (outer.transpose(-1, -2) @ scaled.abs())
            found_value = found_value + value.abs() * (back @ c2)
        return found_query, found_key, found_value
