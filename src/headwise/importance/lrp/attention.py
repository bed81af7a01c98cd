"""Relevance through one attention layer, from the heads' outputs to queries, keys and values.

Letters as in `attention.kernel` (B batch, H heads, G key/value heads, Q queries, K keys, D head size), with P starts in
front. The layer is one step: alpha-beta divides an output's relevance over query, key and value together.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from headwise.core.errors import HeadwiseError
from headwise.importance.lrp.rules import Rule, stable
from headwise.importance.lrp.steps import Absorber, RecordedOperation, rescaled, spans
from headwise.models.attention.kernel import repeat


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

    def propagate(self, rule: Rule, relevance: Tensor) -> tuple[Tensor | None, ...]:
        """The relevance of query, key and value, or of those among them that carry relevance."""
        if self.capped and rule.attention in ("jacobian", "products"):
            raise HeadwiseError(
                f"This model caps its attention logits, which the rule '{rule.name}' does not support: "
                "use ding or cp, with constant attention weights."
            )
        shape = self.query.shape[:2]

        def as_heads(tensor: Tensor) -> Tensor:
            return tensor.to(relevance.dtype).flatten(0, 1)

        heads = Heads(
            query=as_heads(self.query),
            key=as_heads(repeat(self.key, shape[1])),
            value=as_heads(repeat(self.value, shape[1])),
            weights=as_heads(self.weights),
        )
        # P B Q H D to P B·H Q D: sentences and heads are one axis of matrix products
        arrived = relevance.transpose(2, 3).flatten(1, 2)
        if rule.attention == "jacobian":
            of_inputs = self.by_jacobian(rule, heads, arrived)
        elif rule.attention == "products":
            of_inputs = self.by_products(rule, heads, arrived)
        else:
            of_inputs = (self.by_values(rule, heads, arrived),)
        if rule.rescale:
            of_inputs = rescaled(rule, arrived, *of_inputs)
        parts = [part.unflatten(1, shape) for part in of_inputs]
        if rule.rescale:
            # once by head, once over all heads of the sentence
            parts = list(rescaled(rule, relevance, *parts))
        groups = self.key.shape[1]
        # grouped heads share a key and a value, which get the relevance of all of them
        shared = [part.unflatten(2, (groups, -1)).sum(3) for part in parts[-2:]]
        if len(parts) == 1:
            # constant weights: none arrives at query and key
            return tuple(shared[0] if place == 2 else None for place in self.carried)
        found = (parts[0], *shared)
        return tuple(found[place] for place in self.carried)

    def by_values(self, rule: Rule, heads: Heads, arrived: Tensor) -> Tensor:
        """Weights are constants. Raw: R_v = Aᵀ R; shared: R_v = v ⊙ Aᵀ (R / A v), Ali et al. 2022, section 4.1."""
        back = heads.weights.transpose(-1, -2)
        value = heads.value
        if rule.attention == "weights":
            return back @ arrived
        # weights are never negative, so Σ |z| = A |v|
        absolutes = heads.weights @ value.abs() if rule.share.absolute else None
        c1, c2 = rule.share(arrived, heads.weights @ value, absolutes)
        of_value = value * (back @ c1)
        if c2 is not None:
            of_value = of_value + value.abs() * (back @ c2)
        return of_value

    def by_products(self, rule: Rule, heads: Heads, arrived: Tensor) -> tuple[Tensor, ...]:
        """Achtibat et al. 2024, Prop. 3.1 and 3.3: each matrix product gives half to either side.

        R_A = A ⊙ (R / 2O) vᵀ, and with logits x: R_x = x ⊙ (R_A − A Σ R_A). The next product divides by 2x, which
        cancels against the factor x: R_q = q ⊙ ½ scale (R_A − A Σ R_A) k, and R_k alike.
        """
        query, key, value, weights = heads
        halved = arrived / stable(2 * (weights @ value), rule.share.epsilon)
        inner = weights * (halved @ value.transpose(-1, -2))
        # R_x / 2x times the scale
        slope = (self.scale / 2) * (inner - weights * inner.sum(-1, keepdim=True))
        of_query = query * (slope @ key)
        of_key = key * (slope.transpose(-1, -2) @ query)
        of_value = value * (weights.transpose(-1, -2) @ halved)
        return of_query, of_key, of_value

    def by_jacobian(self, rule: Rule, heads: Heads, arrived: Tensor) -> tuple[Tensor, ...]:
        """Every output [q, d] divided over its query, all keys and all values by impact = derivative · input.

        With G[q, d, k] = A[q, k] (v[k, d] − o[q, d]), the derivative by a logit, the impacts are A v (values),
        G · scale · q[f] k[f] (key) and scale · q[f] Σ_k G k[f] (query): products, so that |impact| factors as well.
        """
        count, queries, size = heads.query.shape
        # the larger of N Q D K and N Q D D is what fills memory
        numbers_each = queries * size * max(size, heads.key.shape[1])
        parts = []
        for rows in spans(count, numbers_each, heads.query.device):
            of_rows = Heads(*(tensor[rows] for tensor in heads))
            parts.append(self.some(rule, of_rows, arrived[:, rows]))
        return tuple(torch.cat(of_input, 1) for of_input in zip(*parts, strict=True))

    def some(self, rule: Rule, heads: Heads, arrived: Tensor) -> tuple[Tensor, ...]:
        """`by_jacobian` for some sentences x heads, so that G has at most SLICE_NUMBERS elements."""
        query, key, value, weights = heads
        out = weights @ value
        scaled = self.scale * query
        slope = weights[:, :, None] * (value.transpose(-1, -2)[:, None] - out[..., None])  # N Q D K
        scores = scaled @ key.transpose(-1, -2)
        # query and key have the same sum of impacts: the logits q · k, once for each
        sums = out + 2 * (slope @ scores[..., None])[..., 0]
        back = weights.transpose(-1, -2)
        absolutes = None
        if rule.share.absolute:
            # |impact| of query f on output d: N Q D D
            turned = (slope @ key[:, None]).abs_() * scaled.abs()[:, :, None]
            slope = slope.abs_()
            sizes = scaled.abs() @ key.abs().transpose(-1, -2)
            absolutes = weights @ value.abs() + (slope @ sizes[..., None])[..., 0] + turned.sum(-1)
        c1, c2 = rule.share(arrived, sums, absolutes)
        # Σ_d c1 G
        inner = weights * (c1 @ value.transpose(-1, -2) - (c1 * out).sum(-1, keepdim=True))
        of_query = scaled * (inner @ key)
        of_key = key * (inner.transpose(-1, -2) @ scaled)
        of_value = value * (back @ c1)
        if c2 is not None:
            # starts become rows of one product, because |G| is the same for all of them
            many = c2.movedim(0, 2)  # N Q P D
            of_query = of_query + (many @ turned).movedim(2, 0)
            outer = (many @ slope).movedim(2, 0)
            of_key = of_key + key.abs() * (outer.transpose(-1, -2) @ scaled.abs())
            of_value = of_value + value.abs() * (back @ c2)
        return of_query, of_key, of_value
