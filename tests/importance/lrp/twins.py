"""The rules once more, slowly: one output at a time, from the derivative of the whole map and sums as written."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from headwise.importance.lrp.rules import AlphaBeta, Rule


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def signed(value: Tensor, epsilon: float) -> Tensor:
    return value - epsilon if value < 0 else value + epsilon


def ratios(rule: Rule, impact: Tensor, bias: Tensor) -> Tensor:
    """How one output is shared: a number for each of its inputs. impact I, bias a number."""
    if rule.bias == "spread":
        terms = rest = impact + bias / len(impact)
    else:
        terms, rest = impact, torch.cat([impact, bias[None]])
    share = rule.share
    if not isinstance(share, AlphaBeta):
        return terms / signed(rest.sum(), share.epsilon)
    found = torch.zeros_like(terms)
    for i, term in enumerate(terms):
        if term > 0:
            found[i] = share.alpha * term / (rest[rest > 0].sum() + share.epsilon)
        if term < 0:
            found[i] = share.beta * term / (rest[rest < 0].sum() - share.epsilon)
    return found


def divided(rule: Rule, slope: Tensor, x: Tensor, bias: Tensor, arrived: Tensor) -> Tensor:
    """The relevance of the inputs. slope O I is the derivative at x (I), bias O the outputs at zero, arrived O."""
    found = torch.zeros_like(x)
    for o in range(len(arrived)):
        found += arrived[o] * ratios(rule, slope[o] * x, bias[o])
    return found


def restored(rule: Rule, expected: Tensor, *parts: Tensor) -> tuple[Tensor, ...]:
    """The parts times one number, so that together they hold as much |relevance| as `expected` (rules that rescale)."""
    if not rule.rescale:
        return parts
    held = sum(float(part.abs().sum()) for part in parts)
    return tuple(part * float(expected.abs().sum()) / (held + rule.share.epsilon) for part in parts)


def by_row(rule: Rule, arrived: Tensor, row: Callable[..., Tensor], *tensors: Tensor) -> Tensor:
    """A map of rows: arrived P B T O and tensors B T ... in, P B T I out; rescaled in the row, then in the sentence."""
    starts = []
    for start in arrived:
        sentences = []
        for s, sentence in enumerate(start):
            rows = []
            for n, one in enumerate(sentence):
                rows += restored(rule, one, row(*(t[s, n] for t in tensors), one))
            sentences.append(restored(rule, sentence, torch.stack(rows))[0])
        starts.append(torch.stack(sentences))
    return torch.stack(starts)


def attention(q: Tensor, k: Tensor, v: Tensor, scale: float, seen: Tensor) -> Tensor:
    """One head. q Q D, k and v K D, seen Q K."""
    return torch.softmax((scale * q @ k.T).masked_fill(~seen, -torch.inf), -1) @ v


def head_by_jacobian(
    rule: Rule, q: Tensor, k: Tensor, v: Tensor, scale: float, seen: Tensor, arrived: Tensor
) -> tuple[Tensor, ...]:
    """The elementary rule with the derivative of the whole head, over all inputs of query, key and value at once."""
    inputs = (q, k, v) if rule.attention == "jacobian" else (v,)

    def head(*now: Tensor) -> Tensor:
        return attention(*(q, k, v)[: 3 - len(now)], *now, scale, seen)

    slopes = torch.func.jacrev(head, tuple(range(len(inputs))))(*inputs)
    slope = torch.cat([part.flatten(0, 1).flatten(1) for part in slopes], 1)
    flat = torch.cat([part.flatten() for part in inputs])
    found = divided(rule, slope, flat, torch.zeros(len(slope), dtype=q.dtype), arrived.flatten())
    split = found.split([t.numel() for t in inputs])
    parts = [part.reshape(t.shape) for part, t in zip(split, inputs, strict=True)]
    zeros = [torch.zeros_like(t) for t in (q, k)] if len(parts) == 1 else []
    return restored(rule, arrived, *zeros, *parts)


def product(
    rule: Rule, a: Tensor, b: Tensor, arrived: Tensor, epsilon: float
) -> tuple[Tensor, Tensor]:
    """O = A B, Prop. 3.3 of Achtibat et al. 2024, one term a_ij b_jk at a time: half of its share to either side."""
    out, to_a, to_b = a @ b, torch.zeros_like(a), torch.zeros_like(b)
    for i in range(a.shape[0]):
        for k in range(b.shape[1]):
            for j in range(a.shape[1]):
                term = a[i, j] * b[j, k] * arrived[i, k] / signed(2 * out[i, k], epsilon)
                to_a[i, j] += term
                to_b[j, k] += term
    return to_a, to_b


def head_by_products(
    rule: Rule, q: Tensor, k: Tensor, v: Tensor, scale: float, seen: Tensor, arrived: Tensor
) -> tuple[Tensor, ...]:
    """Value product, softmax (Prop. 3.1, masked logits left out), query-key product, one after the other."""
    logits = scale * q @ k.T
    weights = torch.softmax(logits.masked_fill(~seen, -torch.inf), -1)
    to_weights, to_value = product(rule, weights, v, arrived, rule.share.epsilon)
    to_logits = torch.zeros_like(logits)
    for i, j in seen.nonzero().tolist():
        to_logits[i, j] = logits[i, j] * (to_weights[i, j] - weights[i, j] * to_weights[i].sum())
    to_query, to_key = product(rule, scale * q, k.T, to_logits, 0.0)
    return to_query, to_key.T, to_value


def head_by_values(
    rule: Rule, q: Tensor, k: Tensor, v: Tensor, scale: float, seen: Tensor, arrived: Tensor
) -> tuple[Tensor, ...]:
    """Weights are constants: shares by weight · value, or (Ding et al. 2017 as in THUMT) by the weight alone."""
    weights = attention(q, k, torch.eye(len(k), dtype=k.dtype), scale, seen)
    out, to_value = weights @ v, torch.zeros_like(v)
    for i in range(len(q)):
        for j in range(len(k)):
            for d in range(v.shape[1]):
                share = weights[i, j]
                if rule.attention == "values":
                    share = share * v[j, d] / signed(out[i, d], rule.share.epsilon)
                to_value[j, d] += share * arrived[i, d]
    return torch.zeros_like(q), torch.zeros_like(k), to_value


HEADS = {
    "jacobian": head_by_jacobian,
    "jacobian-of-values": head_by_jacobian,
    "products": head_by_products,
    "values": head_by_values,
    "weights": head_by_values,
}


def layer(
    rule: Rule, q: Tensor, k: Tensor, v: Tensor, scale: float, seen: Tensor, arrived: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """One sentence's attention layer, head by head: q H Q D, k and v G K D, arrived Q H D; grouped queries add up."""
    groups, parts, head = len(k), [], HEADS[rule.attention]
    for h in range(len(q)):
        group = h * groups // len(q)
        parts.append(head(rule, q[h], k[group], v[group], scale, seen, arrived[:, h]))
    whole = restored(rule, arrived, *(torch.stack(part) for part in zip(*parts, strict=True)))
    query, key, value = whole
    return query, key.unflatten(0, (groups, -1)).sum(1), value.unflatten(0, (groups, -1)).sum(1)
