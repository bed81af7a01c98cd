"""The tape: what is recorded, what is refused and when, how relevance is moved, hooks that are gone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import linear
from transformers.models.llama.modeling_llama import LlamaRMSNorm

from headwise.core.errors import HeadwiseError
from headwise.importance.lrp.rules import RULES, Epsilon
from headwise.importance.lrp.steps import LayerNorm, RootMeanSquareNorm
from headwise.importance.lrp.tape import Tape, Walk
from importance.lrp.golden_network import record
from importance.lrp.twins import drawn
from refusals import refuses

Function = Callable[[Tensor], Tensor]
CP = replace(RULES["cp"], share=Epsilon(1e-12))


X, W = drawn(2, 3, 4), drawn(4, 4, seed=1)


class Network(nn.Module):
    """A function as a network."""

    def __init__(self, function: Function, **parts: nn.Module) -> None:
        super().__init__()
        self.function = function
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


def walk(network: nn.Module | Function, start: Tensor | None = None) -> Walk:
    """Relevance (of 1 everywhere, if not message) handed back through a network from its output to X, by `cp`."""
    network = network if isinstance(network, nn.Module) else Network(network)
    tape, out = record(network, {}, (X.clone(),))
    start = torch.ones_like(out)[None] if start is None else start
    with torch.no_grad():
        return Walk(tape, CP, {tape.numbers[id(out)]: start}, lambda *_: None)


def slopes(function: Function) -> Tensor:
    """Gradient x input, relative to the output: what `cp` gives through maps without a constant."""
    x = X.clone().requires_grad_()
    out = function(x)
    (slope,) = torch.autograd.grad((out / out.detach()).sum(), x)
    return slope * X


PICKED = torch.tensor([2, 0, 2])
EXACT: dict[str, Function] = {
    "transposed": lambda x: linear(x.transpose(1, 2).reshape(2, 4, 3), W[:3, :3]).permute(0, 2, 1),
    "split": lambda x: torch.cat(linear(x, W).chunk(2, -1)[::-1], -1),
    "uneven": lambda x: torch.cat(x.split([1, 3], -1), -1)[..., 1:],
    "picked": lambda x: linear(x, W)[:, PICKED],
    "masked": lambda x: linear(x, W)[torch.tensor([[True, False, True], [False, True, True]])],
    "repeated": lambda x: x[:, None].expand(-1, 3, -1, -1).reshape(6, 3, 4).repeat_interleave(2, 1),
    "rolled": lambda x: torch.stack([x.roll(1, 1), x.flip(1)], -1).squeeze(-1),
    "unpacked": lambda x: (lambda a, b: a - b)(*linear(x, W)),
    "scaled": lambda x: -(linear(x, W) * 3 / 2).mul(W[0]),
    "gated": lambda x: linear(x, W) * (2 * x),
    "conv1d": lambda x: torch.addmm(W[0] * 0, x.flatten(0, 1), W).view(2, 3, 4),
    "matmul": lambda x: x @ W + torch.matmul(x, W.T),
    "out of order": lambda x: 2 * x - linear(x, W).to(torch.float64).contiguous(),
}


@pytest.mark.parametrize("name", EXACT)
def test_numbers_that_move_take_their_relevance_along(name: str) -> None:
    found = walk(EXACT[name])
    expected = slopes(EXACT[name])
    if name == "gated":  # the product hands half to either side, its gradient all to both
        expected = expected / 2
    torch.testing.assert_close(found.leaves[0][0], expected, rtol=1e-8, atol=1e-8)
    assert float(found.balance["arrived"]) == pytest.approx(float(expected.sum()), rel=1e-8)


def test_constants_that_are_joined_in_keep_their_relevance() -> None:
    found = walk(lambda x: torch.cat([x, torch.ones(2, 2, 4, dtype=x.dtype)], 1))
    assert found.leaves[0][0].tolist() == torch.ones_like(X).tolist()
    assert float(found.balance["other"]) == 16 and float(found.balance["arrived"]) == 24


def test_balance_adds_up() -> None:
    norm = nn.LayerNorm(4, dtype=torch.float64)
    norm.bias.data = drawn(4, seed=7)
    start = drawn(2, 2, 3, 4, seed=2)
    balance = walk(Network(lambda x: linear(norm(x + 0.5), W, W[0]), norm=norm), start).balance
    torch.testing.assert_close(torch.stack([*balance.values()]).sum(0), start.flatten(1).sum(1))
    assert all(float(balance[name].abs().min()) > 1e-3 for name in ("bias", "norm", "arrived"))


UNKNOWN: dict[str, Function] = {
    "sin": lambda x: x + torch.sin(x),
    "einsum": lambda x: torch.einsum("btm,nm->btn", x, W),
    "softmax": lambda x: torch.softmax(x, -1),
    "matmul": lambda x: x @ x.mT.contiguous() @ x,
    "where": lambda x: torch.where(x > 0, x, 0),
    "pow": lambda x: x**2,
    "sum": lambda x: x.sum(1),
    "__rdiv__": lambda x: 1 / x,
    "div": lambda x: x / linear(x, W),
    "add": lambda x: torch.add(x, linear(x, W), alpha=2),
    "add_": lambda x: linear(x, W).add_(1.0),
    "relu_": lambda x: linear(x, W).relu_(),
    "copy_": lambda x: x + torch.zeros(2, 3, 4, dtype=x.dtype).copy_(linear(x, W)),
    "layer_norm": lambda x: nn.functional.layer_norm(x, (3, 4)),
    "scaled_dot_product_attention": lambda x: nn.functional.scaled_dot_product_attention(x, x, x),
}


@pytest.mark.parametrize("name", UNKNOWN)
def test_an_operation_without_a_rule_names_itself_when_relevance_comes_and_not_before(
    name: str,
) -> None:
    """Beside the way of relevance, anything may happen."""
    words = f"Relevance reached the operation '{name}', for which there is no rule"
    refuses(lambda: walk(UNKNOWN[name]), words)

    def beside(x: Tensor) -> Tensor:
        UNKNOWN[name](x)
        return linear(x, W)

    expected = slopes(lambda x: linear(x, W))
    torch.testing.assert_close(walk(beside).leaves[0][0], expected, rtol=1e-8, atol=1e-8)


def written_into(x: Tensor) -> Tensor:
    """Padding set to zero in place."""
    states = linear(x, W)
    states[:, 1:] = 0
    return states


def through_a_view(x: Tensor) -> Tensor:
    states = linear(x, W)
    states.view(-1).mul_(2)
    return states


def filled(x: Tensor) -> Tensor:
    states = linear(x, W)
    nn.functional.relu(states, inplace=True)
    return states


def started_again(x: Tensor) -> Tensor:
    """Rows put into a fresh tensor."""
    rows = torch.zeros(2, 3, 4, dtype=x.dtype)
    rows[:, :2] = linear(x, W)[:, :2]
    return x + rows


@pytest.mark.parametrize("function", [written_into, through_a_view, filled, started_again])
def test_what_the_tape_cannot_see_is_an_error(function: Function) -> None:
    """A tensor that changed after it was recorded."""
    with pytest.raises(HeadwiseError):
        walk(function)


class OddNorm(Network):
    """A norm by name."""

    eps = 1e-5


def written_out(x: Tensor) -> Tensor:
    centred = x - x.mean(-1, keepdim=True)
    return centred / torch.sqrt(centred.square().mean(-1, keepdim=True) + 1e-5)


def test_norms_that_are_written_out_are_known_by_what_they_compute() -> None:
    known = OddNorm(written_out)
    llama = LlamaRMSNorm(4, eps=1e-5).double()
    llama.weight.data = drawn(4)
    for module, kind in ((known, LayerNorm), (llama, RootMeanSquareNorm)):
        tape, out = record(Network(module, inner=module), {}, (X,))
        (step,) = (step for step in tape.records if step.output == tape.numbers[id(out)])
        assert type(step.step) is kind and step.inputs == (0,)
    odd = OddNorm(lambda x: x / x.abs().amax(-1, keepdim=True))
    refuses(lambda: walk(odd), "norm OddNorm is neither")


def test_looking_at_a_norm_leaves_nothing_on_the_tape() -> None:
    norm = LlamaRMSNorm(4).double()
    assert len(record(Network(norm, inner=norm), {}, (X,))[0].records) == 1


def test_a_module_that_is_run_twice_is_recorded_twice() -> None:
    layer = nn.Linear(4, 4, bias=False, dtype=torch.float64)
    layer.weight.data = W
    norm = nn.RMSNorm(4, dtype=torch.float64)
    function = Network(lambda x: layer(torch.relu(layer(norm(norm(x))))), layer=layer, norm=norm)
    names = [step.name for step in record(function, {}, (X,))[0].records]
    assert names == ["rms_norm", "rms_norm", "linear", "relu", "linear"]


def test_hooks_are_gone_after_the_block_and_after_an_error() -> None:
    norm = LlamaRMSNorm(4).double()

    def fail(x: Tensor) -> Tensor:
        raise ValueError("on purpose")

    failing = OddNorm(fail)
    record(Network(norm, inner=norm), {}, (X,))
    with pytest.raises(ValueError, match="on purpose"):
        record(failing, {}, (X,))
    for module in (norm, failing):
        assert not module._forward_hooks and not module._forward_pre_hooks
    assert walk(lambda x: linear(x, W)).leaves  # nothing of the failed tape is left


def test_a_tape_is_walked_as_often_as_wanted() -> None:
    tape, out = record(Network(lambda x: x + torch.relu(linear(x, W))), {}, (X,))
    start = {tape.numbers[id(out)]: torch.ones_like(out)[None]}
    first, second = (Walk(tape, rule, start, lambda *_: None) for rule in (CP, CP))
    assert torch.equal(first.leaves[0], second.leaves[0])
    rescaling = Walk(tape, RULES["alpha-beta"], start, lambda *_: None)
    assert (start[tape.numbers[id(out)]] == 1).all()  # not changed in place
    assert float(rescaling.balance["arrived"]) == pytest.approx(24, rel=1e-3)


def test_numbers_are_of_tensors_not_of_places_in_memory() -> None:
    """Every tensor on the tape is kept, so that a later one is never taken for it."""

    def many(x: Tensor) -> Tensor:
        for _ in range(50):
            x = x + 0.01 * linear(x, W)
        return x

    tape, _ = record(Network(many), {}, (X,))
    assert len(set(map(id, tape.tensors))) == len(tape.tensors) == len(tape.numbers) == 1 + 50 * 3
    assert isinstance(tape, Tape) and [record.output for record in tape.records] == [*range(1, 151)]
