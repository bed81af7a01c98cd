"""Hard Concrete gates: against the original implementation's numbers, closed forms, chance, and properties.

The golden set also has the original's hard gates (`*_hard`: rounded at 0.5 with a straight-through gradient). They are
not tested, because headwise does not have them: its gates are decided once, at the end, by `kept`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from transformers import MarianMTModel

from headwise.core.heads import Head, HeadMap
from headwise.core.options import Scale
from headwise.models.attention.capture import capture, keeping
from headwise.models.attention.discover import discover
from headwise.pruning.gates import EDGE, HardConcrete, HeadGates, glorot_uniform
from pruning.golden_model import close, tensor

Settled = tuple[HardConcrete, Callable[[str], Tensor]]
THREE_LAYERS = HeadMap({"encoder-self": (2, 3), "cross": (4,)})

quickly = settings(max_examples=100, deadline=None)
log_alphas = st.floats(-9, 9)
noises = st.floats(EDGE, 1 - EDGE)
gate_kinds = st.builds(
    HardConcrete, temperature=st.floats(0.2, 1), low=st.floats(-1, -0.05), high=st.floats(1.05, 2)
)
symmetric = st.builds(
    lambda temperature, by: HardConcrete(temperature, -by, 1 + by),
    temperature=st.floats(0.2, 1),
    by=st.floats(0.05, 1),
)


def gradient(of: Callable[[Tensor], Tensor], at: Tensor) -> Tensor:
    at = at.clone().requires_grad_()
    (found,) = torch.autograd.grad(of(at).sum(), at)
    return found


def one(value: float) -> Tensor:
    return torch.tensor(value, dtype=torch.float64)


@pytest.fixture(params=["default", "alt"])
def settled(request: pytest.FixtureRequest, golden: Path) -> Settled:
    """A distribution of gate.npz and its arrays."""
    arrays = dict(np.load(golden / "gate.npz"))

    def array(name: str) -> Tensor:
        return tensor(arrays[name if name in arrays else f"{request.param}.{name}"])

    return HardConcrete(float(array("temperature")), *map(float, array("stretch"))), array


class TestAgainstTheOriginal:
    def test_a_gate_in_training(self, settled: Settled) -> None:
        gate, array = settled
        log_a, noise = array("log_a").expand(16, 65), array("u")[:, None].expand(16, 65)
        close(gate.sample(log_a, noise), array("train_gate"))
        close(gradient(lambda at: gate.sample(at, noise), log_a), array("train_gate_grad"))

    def test_a_gate_in_evaluation(self, settled: Settled) -> None:
        gate, array = settled
        close(gate.deterministic(array("log_a")), array("eval_gate"))
        close(gradient(gate.deterministic, array("log_a")), array("eval_gate_grad"))
        kept = gate.kept(array("log_a"), "deterministic").double().mean()
        close(kept, array("sparsity_rate_eval"))

    def test_the_chance_to_be_open(self, settled: Settled) -> None:
        gate, array = settled
        close(gate.p_open(array("log_a")), array("p_open"))
        close(gradient(gate.p_open, array("log_a")), array("p_open_grad"))

    @pytest.mark.parametrize("scale", ["paper", "code"])
    def test_the_penalty_of_one_layer(self, settled: Settled, scale: Scale) -> None:
        gate, array = settled
        gates = gates_at(HeadMap({"encoder-self": (65,)}), array("log_a"), gate)
        close(gates.penalty(scale), array("penalty_sum"))
        close(0.7 * gates.penalty(scale), array("penalty_sum_l0_0p7"))


def gates_at(
    heads: HeadMap, log_alpha: Tensor, distribution: HardConcrete | None = None
) -> HeadGates:
    gates = HeadGates(heads, distribution or HardConcrete(), start=0.0).double()
    with torch.no_grad():
        gates.log_alpha.copy_(log_alpha)
    return gates


class TestClosedForms:
    @pytest.mark.parametrize(
        ("log_alpha", "temperature", "zero", "whole"),
        [
            (0, 0.33, 0.3119, 0.3119),
            (0, 0.5, 0.2317, 0.2317),
            (0, 2 / 3, 0.1682, 0.1682),
            (1.979, 0.5, 0.040, 0.686),
            (-3.014, 0.5, 0.860, 0.015),
        ],
    )
    def test_the_table_and_chance_agree(
        self, log_alpha: float, temperature: float, zero: float, whole: float
    ) -> None:
        """Voita et al.'s figure 6 and Louizos et al.'s temperature; then a hundred thousand draws."""
        gate, at = HardConcrete(temperature), one(log_alpha)
        digits = 4 if log_alpha == 0 else 3
        assert round(float(gate.p_zero(at)), digits) == zero
        assert round(float(gate.p_one(at)), digits) == whole
        noise = torch.rand(100_000, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
        drawn = gate.sample(at.expand(100_000), noise)
        shares = [(drawn == 0), (drawn == 1), (drawn != 0)]
        found = [float(share.double().mean()) for share in shares]
        assert found == pytest.approx([zero, whole, float(gate.p_open(at))], abs=0.006)

    def test_the_usual_slips_would_show(self) -> None:
        """Forgetting the temperature, or the sign of the logarithm, gives another number than 0.6881."""
        gate = HardConcrete()
        assert float(gate.p_open(one(0.0))) == pytest.approx(0.6881, abs=5e-5)
        assert float(gate.deterministic(one(2.0))) == pytest.approx(1.2 / (1 + math.exp(-2)) - 0.1)

    def test_noise_at_the_edge_stays_finite(self) -> None:
        for dtype in (torch.float32, torch.float64):
            log_alpha = torch.zeros(2, dtype=dtype, requires_grad=True)
            gate = HardConcrete().sample(log_alpha, torch.tensor([0.0, 1.0], dtype=dtype))
            gate.sum().backward()
            assert gate.tolist() == [0, 1]
            assert log_alpha.grad is not None
            assert log_alpha.grad.tolist() == [0, 0]


class TestProperties:
    @quickly
    @given(gate_kinds, log_alphas, noises)
    def test_a_gate_lies_between_0_and_1(
        self, gate: HardConcrete, log_alpha: float, noise: float
    ) -> None:
        assert 0 <= float(gate.sample(one(log_alpha), one(noise))) <= 1
        assert 0 <= float(gate.deterministic(one(log_alpha))) <= 1

    @quickly
    @given(gate_kinds, log_alphas)
    def test_the_chances_add_up(self, gate: HardConcrete, log_alpha: float) -> None:
        """P(0) + P(0 < z < 1) + P(1) = 1, the middle one taken from the noise that leads there."""
        edges = []
        for edge in (0.0, 1.0):
            stretched = torch.logit((one(edge) - gate.low) / (gate.high - gate.low))
            edges.append(torch.sigmoid(gate.temperature * stretched - log_alpha))
        zero, whole = gate.p_zero(one(log_alpha)), gate.p_one(one(log_alpha))
        assert float(zero + (edges[1] - edges[0]) + whole) == pytest.approx(1, abs=1e-12)
        assert float(gate.p_open(one(log_alpha))) == pytest.approx(float(1 - zero), abs=EDGE)

    @quickly
    @given(gate_kinds, log_alphas, st.floats(0, 3), noises)
    def test_a_larger_log_alpha_never_shuts_a_gate(
        self, gate: HardConcrete, log_alpha: float, more: float, noise: float
    ) -> None:
        low, high = one(log_alpha), one(log_alpha + more)
        for value in (gate.p_open, gate.p_one, gate.deterministic):
            assert float(value(low)) <= float(value(high))
        assert float(gate.sample(low, one(noise))) <= float(gate.sample(high, one(noise)))
        assert float(gate.p_zero(low)) >= float(gate.p_zero(high))

    @quickly
    @given(symmetric, log_alphas.filter(lambda x: abs(x) > 1e-6))
    def test_the_papers_rule_is_the_sign(self, gate: HardConcrete, log_alpha: float) -> None:
        at = one(log_alpha)
        likelier = float(gate.p_one(at)) > float(gate.p_zero(at))
        assert bool(gate.kept(at)) == likelier == (log_alpha > 0)

    @quickly
    @given(log_alphas.filter(lambda x: abs(x + math.log(11)) > 1e-9))
    def test_the_codes_rule_shuts_at_minus_ln_11(self, log_alpha: float) -> None:
        gate = HardConcrete()
        shut = log_alpha <= -math.log(11)
        assert (float(gate.deterministic(one(log_alpha))) == 0) == shut
        assert bool(gate.kept(one(log_alpha), "deterministic")) != shut

    @quickly
    @given(st.lists(log_alphas, min_size=9, max_size=9), st.floats(0.001, 10))
    def test_lambda_of_the_code_is_layers_times_that_of_the_paper(
        self, values: list[float], code: float
    ) -> None:
        gates = gates_at(THREE_LAYERS, torch.tensor(values, dtype=torch.float64))
        paper = code / 3
        objectives = [paper * gates.penalty("paper"), code * gates.penalty("code")]
        close(objectives[0], objectives[1].detach(), 1e-9)
        grads = [torch.autograd.grad(objective, gates.log_alpha)[0] for objective in objectives]
        close(grads[0], grads[1], 1e-12)


class TestGates:
    def test_every_head_has_its_own_gate(self) -> None:
        gates = gates_at(THREE_LAYERS, torch.linspace(-4, 4, 9, dtype=torch.float64)).eval()
        gates.draw()
        found = {site: gate() for site, gate in gates.by_site().items()}
        wanted = HardConcrete().deterministic(gates.log_alpha)
        assert [len(gate) for gate in found.values()] == [2, 3, 4]
        assert torch.equal(torch.cat(list(found.values())), wanted)
        assert list(gates.probabilities()) == list(THREE_LAYERS)
        p_open = HardConcrete().p_open(gates.log_alpha).tolist()
        assert list(gates.probabilities().values()) == p_open

    def test_noise_is_drawn_anew_from_torchs_generator_and_only_in_training(self) -> None:
        gates = HeadGates(THREE_LAYERS, HardConcrete(), start=0.0)
        drawn = []
        for seed in (1, 1, 2):
            torch.manual_seed(seed)
            gates.draw()
            drawn.append(gates.now.detach().clone())
        assert torch.equal(drawn[0], drawn[1]) and not torch.equal(drawn[0], drawn[2])
        gates.eval()
        state = torch.get_rng_state()
        gates.draw()
        assert torch.equal(state, torch.get_rng_state()) and gates.now.tolist() == [0.5] * 9

    def test_a_start_of_3_changes_nothing(self) -> None:
        gates = HeadGates(THREE_LAYERS, HardConcrete(), start=3.0).eval()
        gates.draw()
        assert gates.now.tolist() == [1.0] * 9

    def test_the_start_of_the_papers_is_uniform_by_the_heads_of_a_layer(self) -> None:
        """U(−0.612, 0.612) for 8 heads: there a gate without noise is between 0.32 and 0.68, nowhere 1."""
        heads = HeadMap({"encoder-self": (8,) * 500, "cross": (2,) * 500})
        start = glorot_uniform(heads, 1)
        assert torch.equal(start, glorot_uniform(heads, 1))
        assert not torch.equal(start, glorot_uniform(heads, 2))
        for part, limit in ((start[:4000], math.sqrt(3 / 8)), (start[4000:], math.sqrt(3 / 2))):
            assert 0.99 * limit < float(part.abs().max()) <= limit
            assert float(part.mean()) == pytest.approx(0, abs=0.1 * limit)
            assert float(part.std()) == pytest.approx(limit / math.sqrt(3), rel=0.05)
        gates = HeadGates(heads, HardConcrete(), start).eval()
        gates.draw()
        assert float(gates.now[:4000].min()) == pytest.approx(0.32, abs=0.005)
        assert float(gates.now[:4000].max()) == pytest.approx(0.68, abs=0.005)

    def test_health_is_that_of_the_gates_as_last_trained(self) -> None:
        log_alpha = torch.tensor([-9, -9, -9, -1, 1, 9, 9, 9, 9], dtype=torch.float64)
        gates = gates_at(THREE_LAYERS, log_alpha)
        gates.log_alpha_before.copy_(gates.log_alpha.detach())
        p = HardConcrete().p_open(torch.tensor([-1.0, 1.0]))
        assert gates.undecided() == pytest.approx(2 / 9)
        assert gates.expected() == pytest.approx(4 + p.sum().item(), abs=1e-2)
        for left in (3, 2, 1):
            gates.settle(gates.kept(), left)
        assert gates.log_alpha.tolist() == [-9.0] * 4 + [9.0] * 5
        assert gates.undecided() == pytest.approx(2 / 9)

    def test_the_mask_takes_shut_gates_out_and_keeps_heads_without_a_gate(self) -> None:
        whole = HeadMap({"encoder-self": (2, 3), "decoder-self": (2,), "cross": (4,)})
        log_alpha = torch.tensor([-5, 5, -1, 1, 5, 5, 5, 5, -5], dtype=torch.float64)
        gates = gates_at(THREE_LAYERS, log_alpha)
        shut = {Head("encoder-self", 0, 0), Head("encoder-self", 1, 0), Head("cross", 0, 3)}
        assert gates.mask(whole, gates.kept("sign")).kept == set(whole) - shut
        released = gates.mask(whole, gates.kept("deterministic")).kept
        assert released == set(whole) - shut | {Head("encoder-self", 1, 0)}

    def test_on_a_transformers_model(self, tiny_marian: Callable[..., MarianMTModel]) -> None:
        """Gates far out are the mask they decide; in training the loss reaches every one of them."""
        model = tiny_marian()
        discovery = discover(model)
        gated_heads = discovery.heads.only(["encoder-self", "cross"])
        gates = HeadGates(gated_heads, HardConcrete(), start=9.0)
        with torch.no_grad():
            gates.log_alpha[::3] = -9
        ids = torch.arange(4, 12)[None]
        batch = {"input_ids": ids, "decoder_input_ids": ids[:, :5]}
        gates.eval().draw()
        with torch.no_grad():
            with capture(model, discovery, gates=gates.by_site()):
                gated = model(**batch).logits
            with keeping(model, discovery, gates.mask(discovery.heads, gates.kept())):
                assert torch.equal(gated, model(**batch).logits)
            assert not torch.allclose(gated, model(**batch).logits, atol=1e-3)
        with torch.no_grad():
            gates.log_alpha.zero_()
        gates.train().draw(torch.full_like(gates.log_alpha, 0.5))
        with capture(model, discovery, gates=gates.by_site()):
            model(**batch).logits.square().sum().backward()
        assert gates.log_alpha.grad is not None and bool((gates.log_alpha.grad != 0).all())
