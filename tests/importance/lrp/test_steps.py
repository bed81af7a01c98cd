"""Every step under every rule against its slow version, in float64 on tiny shapes."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from headwise.importance.lrp import steps
from headwise.importance.lrp.attention import Attention
from headwise.importance.lrp.rules import RULES, Rule
from headwise.importance.lrp.steps import (
    Addition,
    LayerNorm,
    Linear,
    Passing,
    Product,
    RecordedOperation,
    Recurrence,
    RootMeanSquareNorm,
    rescaled,
)
from headwise.models.marian.network import recur
from importance.lrp import twins
from importance.lrp.twins import drawn
from refusals import refuses

STARTS, BATCH, LENGTH, SIZE = 2, 2, 3, 5
VALUES = replace(RULES["alpha-beta"], name="alpha-beta-values", attention="jacobian-of-values")
NAMED = {**RULES, VALUES.name: VALUES}
EVERY = pytest.mark.parametrize("rule", NAMED.values(), ids=list(NAMED))


def several(*shapes: tuple[int, ...]) -> tuple[Tensor, ...]:
    return tuple(drawn(*shape, seed=seed) for seed, shape in enumerate(shapes))


ROWS = (BATCH, LENGTH, SIZE)  # of states, and what arrives there
ARRIVED = (STARTS, *ROWS)


def near(found: Tensor, expected: Tensor) -> None:
    assert found.shape == expected.shape
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-11)


@EVERY
@pytest.mark.parametrize("with_bias", [True, False])
@pytest.mark.parametrize("chunk", [steps.SLICE_NUMBERS, 1])
def test_linear(rule: Rule, with_bias: bool, chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steps, "SLICE_NUMBERS", chunk)  # a row at a time, too
    x, weight, arrived = several(ROWS, (4, SIZE), (STARTS, BATCH, LENGTH, 4))
    bias = drawn(4, seed=3) if with_bias else None
    step = Linear(x, nn.functional.linear(x, weight, bias), weight, bias)
    (found,) = step.propagate(rule, arrived)
    constant = drawn(4) * 0 if bias is None else bias

    def row(now: Tensor, one: Tensor) -> Tensor:
        return twins.divided(rule, weight, now, constant, one)

    near(found, twins.by_row(rule, arrived, row, x))


def released_layer_norm(x: Tensor, scale: Tensor, epsilon: float) -> Tensor:
    """Its derivative is that of the released code, whose first root is of the variance without epsilon."""
    variance = x.var(correction=0)

    def norm(now: Tensor) -> Tensor:
        return (now - now.mean()) * (now.var(correction=0) + epsilon).rsqrt()

    direct = torch.eye(len(x), dtype=x.dtype) - 1 / len(x)
    direct = direct * (variance.rsqrt() - (variance + epsilon).rsqrt())
    return scale[:, None] * (torch.func.jacrev(norm)(x) + direct)


@EVERY
@pytest.mark.parametrize("affine", [True, False])
def test_layer_norm(rule: Rule, affine: bool) -> None:
    x, arrived, *given = several(ROWS, ARRIVED, (SIZE,), (SIZE,))
    scale, bias = given if affine else (None, None)
    epsilon = 0.1
    out = nn.functional.layer_norm(x, (SIZE,), scale, bias, epsilon)
    (found,) = LayerNorm(x, out, scale, bias, epsilon).propagate(rule, arrived)
    steep, constant = given if affine else (drawn(SIZE) * 0 + 1, drawn(SIZE) * 0)
    centring = torch.eye(SIZE, dtype=x.dtype) - 1 / SIZE

    def row(now: Tensor, one: Tensor) -> Tensor:
        if rule.norm == "jacobian":
            return twins.divided(rule, released_layer_norm(now, steep, epsilon), now, constant, one)
        if rule.norm == "centring":
            return twins.divided(rule, centring, now, torch.zeros_like(now), one)
        slope = steep[:, None] * centring / (now.var(correction=0) + epsilon).sqrt()
        return twins.divided(rule, slope, now, constant, one)

    near(found, twins.by_row(rule, arrived, row, x))


@EVERY
def test_root_mean_square_norm(rule: Rule) -> None:
    x, arrived, scale = several(ROWS, ARRIVED, (SIZE,))

    def root_mean_square(now: Tensor) -> Tensor:
        return scale * now * (now.square().mean() + 0.1).rsqrt()

    step = RootMeanSquareNorm(x, nn.functional.rms_norm(x, (SIZE,), scale, 0.1), scale, 0.1)
    (found,) = step.propagate(rule, arrived)
    if rule.norm != "jacobian":
        near(found, arrived)
        return

    def row(now: Tensor, one: Tensor) -> Tensor:
        slope = torch.func.jacrev(root_mean_square)(now)
        return twins.divided(rule, slope, now, torch.zeros_like(now), one)

    near(found, twins.by_row(rule, arrived, row, x))


@EVERY
def test_addition(rule: Rule) -> None:
    """Two tensors, a tensor and a constant, and a tensor that is repeated for every sentence (positions)."""
    a, b, arrived = several(ROWS, (LENGTH, SIZE), ARRIVED)
    both = replace(rule, bias="absorbed")  # nothing is constant here
    slope, nothing = torch.ones(1, 2, dtype=a.dtype), torch.zeros(1, dtype=a.dtype)
    shares = torch.zeros(2, *arrived.shape, dtype=a.dtype)
    for place in torch.cartesian_prod(*map(torch.arange, arrived.shape)).tolist():
        p, s, t, i = place
        pair = torch.stack([a[s, t, i], b[t, i]])
        shares[:, p, s, t, i] = twins.divided(both, slope, pair, nothing, arrived[p, s, t, i, None])
    one = shares[:1].clone()
    for p, s, t in torch.cartesian_prod(*map(torch.arange, arrived.shape[:3])).tolist():
        for parts in (shares, one):
            (parts[:, p, s, t],) = twins.restored(rule, arrived[p, s, t], parts[:, p, s, t])
    if rule.rescale:
        for parts in (shares, one):
            held = parts.abs().sum((-1, -2), keepdim=True)
            parts *= held / (held + rule.share.epsilon)
    found = Addition((a, b), 2).propagate(rule, arrived)
    near(found[0], shares[0])
    near(found[1], shares[1].sum(1))
    (found_one,) = Addition((a, b), 1).propagate(rule, arrived)
    near(found_one, one[0])


def test_products_and_activations() -> None:
    a, b, arrived = several(ROWS, (LENGTH, 1), ARRIVED)
    first, second = Product((a, b)).propagate(RULES["cp"], arrived)
    near(first, arrived / 2)
    near(second, (arrived / 2).sum((1, 3))[..., None])
    (found,) = Passing(b.shape).propagate(RULES["cp"], arrived)
    near(found, arrived.sum((1, 3))[..., None])


@EVERY
def test_recurrence(rule: Rule) -> None:
    """The states are new values times constant weights, the products of the gates between."""
    gates, new, arrived = several(ROWS, ROWS, ARRIVED)
    keep = gates.sigmoid()
    weights = torch.zeros(BATCH, LENGTH, LENGTH, SIZE, dtype=keep.dtype)
    for place in range(LENGTH):
        for source in range(place + 1):
            between = keep[:, source + 1 : place + 1].prod(1)
            weights[:, place, source] = (1 - keep[:, source]) * between
    impacts = weights * new[:, None]
    states = recur(keep, new, torch.zeros_like(new[:, 0]))
    near(states, impacts.sum(2))

    of_gates, found = Recurrence(keep, new, states).propagate(rule, arrived)
    c1, c2 = rule.share(arrived, states, impacts.abs().sum(2))
    expected = (c1[:, :, :, None] * impacts).sum(2)
    if c2 is not None:
        expected = expected + (c2[:, :, :, None] * impacts.abs()).sum(2)
    if rule.rescale:
        (expected,) = rescaled(rule, arrived, expected)
    near(found, expected)
    assert of_gates is None


def masks(queries: int, keys: int) -> Tensor:
    """B 1 Q K: a causal one, and one that hides the last keys."""
    causal = torch.ones(queries, keys, dtype=torch.bool).tril(keys - queries)
    return torch.stack([causal, torch.ones_like(causal)])[:, None] & (torch.arange(keys) < keys - 1)


@EVERY
@pytest.mark.parametrize("groups", [1, 2, 4])
@pytest.mark.parametrize("chunk", [steps.SLICE_NUMBERS, 1])
def test_attention(rule: Rule, groups: int, chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steps, "SLICE_NUMBERS", chunk)
    heads, queries, keys, size, scale = 4, 3, 4, 2, 0.7
    of_group = (BATCH, groups, keys, size)
    of_query = (BATCH, heads, queries, size), (STARTS, BATCH, queries, heads, size)
    q, arrived, k, v = several(*of_query, of_group, of_group)
    seen = masks(queries, keys)
    logits = scale * q @ k.repeat_interleave(heads // groups, 1).mT
    weights = torch.softmax(logits.masked_fill(~seen, -torch.inf), -1)
    found = Attention(q, k, v, weights, scale).propagate(rule, arrived)
    for p in range(STARTS):
        for s in range(BATCH):
            expected = twins.layer(rule, q[s], k[s], v[s], scale, seen[s, 0], arrived[p, s])
            for part, one in zip(found, expected, strict=True):
                # None stands for none at all
                near(torch.zeros_like(one) if part is None else part[p, s], one)
    hidden = ~seen.any(2)[:, 0]  # keys that no query sees
    assert hidden.any()
    for part in found[1:]:
        assert part is None or not part.movedim(2, -1)[:, hidden].any()


def test_a_position_bias_in_the_logits_stands_in_the_weights_only() -> None:
    """T5: x = q kᵀ + bias. The bias is a constant summand, which takes its share of the logit with it."""
    rule, scale = RULES["attnlrp"], 1.0
    q, k, v, arrived = (drawn(1, 1, 3, 2, seed=n) for n in range(4))
    bias = drawn(3, 3, seed=9)
    logits = q[0, 0] @ k[0, 0].T + bias
    weights = torch.softmax(logits, -1)
    to_weights, to_value = twins.product(rule, weights, v[0, 0], arrived[0, 0], rule.share.epsilon)
    to_logits = logits * (to_weights - weights * to_weights.sum(-1, keepdim=True))
    without = to_logits * (logits - bias) / logits
    to_query, to_key = twins.product(rule, q[0, 0], k[0, 0].T, without, 0.0)
    step = Attention(q, k, v, weights[None, None], scale)
    found = step.propagate(rule, arrived.transpose(1, 2)[None])
    for part, expected in zip(found, (to_query, to_key.T, to_value), strict=True):
        near(part[0, 0, 0], expected)


@pytest.mark.parametrize("name", RULES)
def test_capped_logits_have_rules_only_with_constant_weights(name: str) -> None:
    q, k, v, arrived = (drawn(1, 1, 3, 2, seed=n) for n in range(4))
    step = Attention(q, k, v, torch.softmax(torch.tanh(q @ k.mT), -1), 1.0, capped=True)
    if name in ("ding", "cp"):
        step.propagate(RULES[name], arrived[None].transpose(2, 3))
        return
    words = f"caps its attention logits … '{name}' … use ding or cp"
    refuses(lambda: step.propagate(RULES[name], arrived[None].transpose(2, 3)), words)


def test_softmax_takes_or_gives_relevance_whatever_the_logits_are_shifted_by() -> None:
    """Prop. 3.1: R_x = x ⊙ (R − s Σ R) does not add up to Σ R, and its sum is the same for x + c."""
    x, arrived = drawn(6), drawn(6, seed=3)
    s = torch.softmax(x, -1)
    sums = [float(((x + c) * (arrived - s * arrived.sum())).sum()) for c in (0.0, 3.0)]
    assert sums[0] == pytest.approx(sums[1]) and abs(sums[0] - float(arrived.sum())) > 0.1
    q, k, v, arrived = (drawn(1, 1, 3, 2, seed=n) for n in range(4))
    step = Attention(q, k, v, torch.softmax(q @ k.mT, -1), 1.0)
    query, key, value = step.propagate(RULES["attnlrp"], arrived[None].transpose(2, 3))
    torch.testing.assert_close(value.sum(), arrived.sum() / 2, rtol=1e-4, atol=1e-4)
    assert abs(float((query + key).sum() - arrived.sum() / 2)) > 0.1


@pytest.mark.parametrize("name", ["alpha-beta", "alpha-beta-fast"])
def test_relevance_that_starts_positive_stays_so_and_is_kept(name: str) -> None:
    rule, of_head = RULES[name], (BATCH, 2, LENGTH, SIZE)
    x, scale, bias, weight, *states = several(ROWS, (SIZE,), (SIZE,), (SIZE, SIZE), *[of_head] * 3)
    q, k, v = states
    every: list[RecordedOperation] = [
        Linear(x, x @ weight.T + bias, weight, bias),
        Addition((x, x.flip(-1)), 2),
        Product((x, x)),
        LayerNorm(x, nn.functional.layer_norm(x, (SIZE,), scale, bias), scale, bias),
        RootMeanSquareNorm(x, nn.functional.rms_norm(x, (SIZE,), scale), scale),
        Attention(q, k, v, torch.softmax(q @ k.mT, -1), 1.0),
    ]
    for step in every:
        shape = (STARTS, BATCH, LENGTH, *((2,) if isinstance(step, Attention) else ()), SIZE)
        arrived = drawn(*shape, seed=8).abs()
        parts = step.propagate(rule, arrived)
        assert all(float(part.min()) >= -1e-12 for part in parts), step
        kept = float(sum(part.sum() for part in parts))
        assert kept == pytest.approx(float(arrived.sum()), rel=1e-4), step


def test_fast_form_is_near_the_exact_one_and_the_same_without_bias() -> None:
    """The distance is relative, Σ|fast − exact| / Σ|exact|: measured about 0.02 (linear) and 0.4 (layer norm)."""
    exact, fast, size = RULES["alpha-beta"], RULES["alpha-beta-fast"], 32
    x, weight, arrived = several((1, 4, size), (size, size), (1, 1, 4, size))
    arrived = arrived.abs()
    scale, bias = 1 + 0.1 * drawn(size, seed=3), 0.1 * drawn(size, seed=4)
    q, k, v = (drawn(1, 2, 4, 16, seed=n) for n in range(5, 8))

    def distance(step: RecordedOperation, relevance: Tensor = arrived) -> float:
        one, other = (
            torch.cat([part.flatten() for part in step.propagate(rule, relevance)])
            for rule in (fast, exact)
        )
        return float((one - other).abs().sum() / other.abs().sum())

    assert distance(Linear(x, x @ weight.T, weight)) < 1e-12
    assert distance(Addition((x, x.flip(-1)), 2)) < 1e-12
    heads = Attention(q, k, v, torch.softmax(q @ k.mT / 4, -1), 0.25)
    assert distance(heads, arrived.unflatten(-1, (2, 16))) < 1e-12
    biased = distance(Linear(x, x @ weight.T + bias, weight, bias))
    normed = distance(LayerNorm(x, nn.functional.layer_norm(x, (size,), scale, bias), scale, bias))
    assert 0 < biased < 0.1 and 0 < normed < 1


def test_spans_are_as_large_as_told() -> None:
    few, one = (
        [*steps.spans(count, size, torch.device("cpu"))]
        for count, size in ((5, steps.SLICE_NUMBERS // 2), (2, 2 * steps.SLICE_NUMBERS))
    )
    assert few == [slice(0, 2), slice(2, 4), slice(4, 6)] and one == [slice(0, 1), slice(1, 2)]
