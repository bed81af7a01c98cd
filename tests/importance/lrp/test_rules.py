"""The rules against closed forms: shares of an output add up to 1, gradient x input, conservation, positivity."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from headwise.core.heads import Site
from headwise.importance.lrp.rules import RULES, AlphaBeta, Epsilon, Rule, stable
from headwise.importance.lrp.steps import Linear
from headwise.importance.lrp.tape import Walk
from importance.lrp.golden_network import Feedforward, Heads, record
from importance.lrp.twins import drawn

EVERY = pytest.mark.parametrize("name", RULES)
SIZE = 6


def arriving(
    network: nn.Module, rule: Rule, x: Tensor, arrived: Tensor, *more: Tensor | None
) -> Tensor:
    """What comes to x, P and its shape, of a relevance of the output."""
    heads = (module for module in network.modules() if isinstance(module, Heads))
    places = {Site("encoder-self", layer): module for layer, module in enumerate(heads)}
    tape, out = record(network, places, (x,), *more)
    walk = Walk(tape, rule, {tape.numbers[id(out)]: arrived}, lambda *_: None)
    return walk.leaves[tape.numbers[id(x)]]


@EVERY
def test_shares_of_one_output_over_its_inputs_add_up_to_one(name: str) -> None:
    """Not those of one input over the outputs, which a released version normalised."""
    rule, x, weight = replace(RULES[name], rescale=False), drawn(1, SIZE), drawn(4, SIZE, seed=1)
    out, every = x @ weight.T, torch.eye(4, dtype=x.dtype)[:, None]
    (shares,) = Linear(x, out, weight).propagate(rule, every)  # O 1 I
    within = 0.05 / float(out.abs().min()) if name == "ding" else 1e-4
    assert float((shares.sum((1, 2)) - 1).abs().max()) <= within
    assert float((shares.sum((0, 1)) - 1).abs().max()) > 0.1


def test_denominators_have_a_sign_at_zero() -> None:
    assert stable(torch.tensor([-1.0, -0.0, 0.0, 1.0]), 0.5).tolist() == [-1.5, 0.5, 0.5, 1.5]


def test_alpha_beta_with_impacts_of_one_sign_hands_on_half() -> None:
    """α = β = ½ add up to 1 only where both signs are there; `rescale` makes up for it."""
    x, weight = drawn(1, SIZE).abs(), drawn(1, SIZE, seed=1).abs()
    step, arrived = Linear(x, x @ weight.T, weight), torch.ones(1, 1, 1, dtype=torch.float64)
    for rescale, kept in ((False, 0.5), (True, 1)):
        rule = replace(RULES["alpha-beta"], rescale=rescale)
        assert float(step.propagate(rule, arrived)[0].sum()) == pytest.approx(kept, rel=1e-4)


def test_alpha_beta_of_one_and_zero_is_the_positive_part() -> None:
    share = AlphaBeta(1.0, 0.0, 0.0)
    c1, c2 = share(torch.ones(1), torch.tensor([1.0]), torch.tensor([5.0]))  # of 3 and −2
    assert c2 is not None
    assert [float(c1 * z + c2 * abs(z)) for z in (3.0, -2.0)] == pytest.approx([1, 0])


class Summed(nn.Module):
    """x + f(x)."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor, *more: Tensor | None) -> Tensor:
        out: Tensor = x + self.inner(x, *more)
        return out


def linear(seed: int, bias: bool = False) -> nn.Linear:
    layer = nn.Linear(SIZE, SIZE, bias=bias, dtype=torch.float64)
    layer.weight.data = drawn(SIZE, SIZE, seed=seed)
    if bias:
        layer.bias.data = drawn(SIZE, seed=seed + 1)
    return layer


@pytest.mark.parametrize("activation", [nn.Identity(), nn.ReLU()])
def test_without_bias_and_stabiliser_it_is_gradient_times_input(activation: nn.Module) -> None:
    """Linear networks: the shares x · W / out. ReLU networks: the same on their linear piece."""
    network = nn.Sequential(
        linear(1), activation, Summed(nn.Sequential(linear(2), activation, linear(3))), linear(4)
    )
    rule = replace(RULES["cp"], share=Epsilon(0.0))
    x, arrived = drawn(2, 3, SIZE), drawn(2, 2, 3, SIZE, seed=5)
    found = arriving(network, rule, x, arrived)
    for start, one in zip(arrived, found, strict=True):
        inputs = x.clone().requires_grad_()
        out = network(inputs)
        (slope,) = torch.autograd.grad((start / out.detach() * out).sum(), inputs)
        torch.testing.assert_close(one, slope * x, rtol=1e-8, atol=1e-8)
    if isinstance(activation, nn.Identity):
        matrix = torch.func.jacrev(network)(x[0, 0])
        expected = ((arrived[0, 0, 0] / (matrix @ x[0, 0])) @ matrix) * x[0, 0]
        torch.testing.assert_close(found[0, 0, 0], expected, rtol=1e-8, atol=1e-8)


def stack(with_bias: bool) -> nn.Sequential:
    """Attention and feed-forward, each in a residual block, without a norm."""
    heads = {"a/mem_conv/W": (SIZE, 3 * SIZE), "a/out_conv/W": (SIZE, SIZE)}
    names = {**heads, "f/conv1/W": (SIZE, 9), "f/conv2/W": (9, SIZE)}
    weights: dict[str, np.ndarray] = {}
    for seed, (name, shape) in enumerate(names.items()):
        weights[name] = drawn(*shape, seed=10 + seed).numpy()
        if with_bias:
            weights[name[:-1] + "b"] = drawn(shape[1], seed=20 + seed).numpy()
    return nn.Sequential(Summed(Masked(Heads(weights, "a", 2))), Summed(Feedforward(weights, "f")))


class Masked(nn.Module):
    """Causal self-attention."""

    def __init__(self, heads: Heads) -> None:
        super().__init__()
        self.heads = heads

    def forward(self, x: Tensor) -> Tensor:
        past = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).tril()
        out: Tensor = self.heads(x, None, past[None, None])
        return out


@EVERY
def test_what_is_conserved(name: str) -> None:
    """Through attention, feed-forward and residual blocks without bias or norm: cp all, attnlrp not (its softmax)."""
    x, arrived = drawn(2, 4, SIZE), drawn(3, 2, 4, SIZE, seed=1)
    arrived = arrived.abs() if RULES[name].signed else arrived
    rule = replace(RULES[name], share=Epsilon(1e-12)) if name in ("cp", "ding") else RULES[name]
    expected = arrived.flatten(1).sum(1)
    lost, biased = (
        (arriving(stack(with_bias), rule, x, arrived).flatten(1).sum(1) - expected).abs().max()
        / expected.abs().min()
        for with_bias in (False, True)
    )
    within = {"cp": 1e-9, "ding": 1e-9, "alpha-beta": 1e-3, "alpha-beta-fast": 1e-3}
    assert lost < within[name] if name in within else lost > 0.01
    assert biased < 1e-3 if rule.rescale else biased > 0.01


@pytest.mark.parametrize("name", ["alpha-beta", "alpha-beta-fast"])
def test_alpha_beta_stays_positive_through_a_network(name: str) -> None:
    x, arrived = drawn(2, 4, SIZE), drawn(3, 2, 4, SIZE, seed=1).abs()
    assert float(arriving(stack(True), RULES[name], x, arrived).min()) >= -1e-10


def test_the_fast_form_is_the_exact_one_where_nothing_is_constant() -> None:
    x, arrived = drawn(2, 4, SIZE), drawn(3, 2, 4, SIZE, seed=1).abs()
    plain, biased = (
        [
            arriving(stack(with_bias), RULES[name], x, arrived)
            for name in ("alpha-beta-fast", "alpha-beta")
        ]
        for with_bias in (False, True)
    )
    torch.testing.assert_close(*plain, rtol=1e-10, atol=1e-12)
    fast, exact = biased
    assert 1e-3 < float((fast - exact).abs().sum() / exact.sum()) < 0.5
