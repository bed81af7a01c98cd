"""Positional heads attend to a neighbour (Voita et al. 2019, section 5.1; Olsson et al. 2022)."""

from __future__ import annotations

import torch
from torch import Tensor

from headwise.roles.passage import Passage, View, moved
from headwise.roles.probe import Probe, mean_over_queries, sum_over_queries

OFFSETS = (-3, -2, -1, 0, 1, 2, 3)


def positional(passage: Passage) -> Probe:
    """How often, and how much, tokens attend to the token at an offset r.

    positional.r = share of query tokens q with argmax_k A_h[q, k] = q + r; attention-at.r = mean of A_h[q, q + r]
    (Olsson et al. 2022, Vig 2019). Tokens are subwords, or frames of sound; a token may attend to itself. Queries
    without a token at the offset do not count. Baseline: a random visible token.
    """
    queries = passage.words
    length = queries.shape[1]
    sight = queries.cumsum(1) if passage.causal else queries.sum(1, keepdim=True).expand(-1, length)
    with_token: dict[int, Tensor] = {}  # by offset, the queries that see a token there
    counts = []
    chances = []
    for offset in OFFSETS:
        with_token[offset] = queries & moved(queries, -offset)
        # What comes later is hidden.
        if passage.causal and offset > 0:
            with_token[offset] = torch.zeros_like(queries)
        counts.append(with_token[offset].sum(1))
        chances.append((with_token[offset] / sight.clamp_min(1)).sum(1))
    positions = torch.arange(length, device=queries.device)

    def answer(view: View) -> Tensor:
        distance = view.attended - positions
        shares = []
        weights = []
        for offset, asking in with_token.items():
            shares.append(sum_over_queries(asking, distance == offset))
            weights.append(sum_over_queries(asking, weight_at_offset(view.weights, offset)))
        return torch.stack(shares + weights, -1)

    names = [f"{name}.{offset}" for name in ("positional", "attention-at") for offset in OFFSETS]
    count = torch.stack(counts, -1).float()
    chance = torch.stack(chances, -1)
    return Probe(names, count.repeat(1, 2), chance.repeat(1, 2)[:, None], answer)


def previous_token(passage: Passage) -> Probe:
    """previous-token = mean of A_h[q, q − 1] over tokens q with a token before them (Olsson et al. 2022; real text)."""
    queries = passage.words & moved(passage.words, 1)
    chance = (queries / passage.mask.cumsum(1).clamp_min(1)).sum(1)

    def weights(view: View) -> Tensor:
        return weight_at_offset(view.weights, -1)

    return mean_over_queries("previous-token", queries, chance[:, None], weights)


def weight_at_offset(weights: Tensor, offset: int) -> Tensor:
    """The weight of every query on the token at an offset, 0 beyond the edges: B H Q K in, B H Q out."""
    out = weights.new_zeros(weights.shape[:3])
    diagonal = weights.diagonal(offset, -2, -1)
    start = max(-offset, 0)
    out[..., start : start + diagonal.shape[-1]] = diagonal
    return out
