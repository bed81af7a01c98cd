"""Relaxed top-K gates: exactly K, the formula, the limits of the temperature, and a run on a tiny trained model."""

from __future__ import annotations

import copy
from pathlib import Path

import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from headwise.core.errors import HeadwiseError
from headwise.core.heads import HeadMap
from headwise.core.options import Keep, TopK
from headwise.models.attention.capture import keeping
from headwise.pruning.gate_training import UNDECIDED
from headwise.pruning.gates import HardConcrete
from headwise.pruning.target_count import CLIP, CountedGates
from headwise.pruning.top_k import COLD, WARM, TopGates, gumbel, relaxed_top
from headwise.pruning.with_gates import prune_by_training
from pruning.bench import ENCODER, Bench
from syncs import syncs

HEADS = HeadMap({"encoder-self": (4, 4), "cross": (4,)})
weights = st.lists(st.floats(-5, 5), min_size=2, max_size=12)


class TestRelaxedTop:
    @settings(max_examples=100, deadline=None)
    @given(weights, st.sampled_from([10.0, 1.0, 0.1, 1e-3, 1e-8]), st.data())
    def test_it_sums_to_k_at_every_temperature(
        self, values: list[float], temperature: float, data: st.DataObject
    ) -> None:
        k = data.draw(st.integers(1, len(values)))
        m = relaxed_top(torch.tensor(values, dtype=torch.float64), k, temperature)
        assert float(m.sum()) == pytest.approx(k, abs=1e-9) and bool((m >= 0).all())

    @settings(max_examples=50, deadline=None)
    @given(st.permutations(range(8)), st.integers(1, 8))
    def test_cold_it_is_the_k_largest(self, ranks: list[int], k: int) -> None:
        m = relaxed_top(torch.tensor(ranks, dtype=torch.float64), k, COLD)
        assert m.tolist() == [float(rank >= 8 - k) for rank in ranks]

    def test_a_single_gate_may_pass_1_while_it_is_warm(self) -> None:
        m = relaxed_top(torch.tensor([4.0, 0, 0, 0], dtype=torch.float64), 3, 1.0)
        assert float(m[0]) > 1 and float(m.sum()) == pytest.approx(3)

    def test_every_weight_gets_a_gradient(self) -> None:
        r = torch.linspace(-0.1, 0.1, 6, dtype=torch.float64, requires_grad=True)
        (relaxed_top(r, 2, WARM) * torch.arange(6)).sum().backward()
        assert r.grad is not None and bool(r.grad.isfinite().all() & (r.grad != 0).all())
        cold = torch.linspace(-0.1, 0.1, 6, dtype=torch.float64, requires_grad=True)
        (relaxed_top(cold, 2, COLD) * torch.arange(6)).sum().backward()
        assert cold.grad is not None and bool(cold.grad.isfinite().all())


class TestGates:
    def test_in_training_gates_are_drawn_and_sum_to_the_wanted_numbers(self) -> None:
        gates = TopGates(HEADS, 0.0, {"encoder-self": 3, "cross": 2})
        for share in (0.0, 0.4, 0.9):
            gates.progress = share
            gates.draw()
            assert gates.now[:8].sum().item() == pytest.approx(3, abs=1e-5)
            assert gates.now[8:].sum().item() == pytest.approx(2, abs=1e-5)
        gates.eval().draw()
        assert gates.now.tolist() == [1, 1, 1, 0, 0, 0, 0, 0, 1, 1, 0, 0]

    def test_gumbel_noise_is_drawn_once_and_used(self) -> None:
        gates = TopGates(HEADS, torch.linspace(-1, 1, 12), 4)
        noise = torch.rand(12, generator=torch.Generator().manual_seed(3))
        gates.draw(noise)
        r = torch.linspace(-1, 1, 12).double() - (-noise.double().log()).log()
        torch.testing.assert_close(
            gates.now.detach().double(), relaxed_top(r, 4, WARM), rtol=0, atol=1e-6
        )
        assert gates.now.requires_grad

    def test_the_temperature_falls_log_linearly_until_the_gates_settle(self) -> None:
        gates = TopGates(HEADS, 0.0, 4, settle=0.2)
        found = []
        for share in (0.0, 0.4, 0.8, 1.0):
            gates.progress = share
            found.append(gates.temperature)
        assert found == pytest.approx([WARM, (WARM * COLD) ** 0.5, COLD, COLD])

    def test_chances_are_those_of_many_draws(self) -> None:
        """With K = 1 the Gumbel trick draws from the softmax."""
        w = torch.tensor([0.0, 1.0, 2.0, -1.0] * 3)
        gates = TopGates(HEADS, w, 1)
        torch.testing.assert_close(gates.chances(w), w.softmax(0), rtol=0, atol=0.07)
        assert gates.expected() == pytest.approx(1) and float(gates.chances(w * 50).max()) < 1
        assert gumbel(torch.tensor([0.0, 1.0])).isfinite().all()

    def test_their_gradient_is_clipped_for_itself(self) -> None:
        """Two heads that are level have a gradient of 1/τ, which must not shrink the step of the model."""
        gates = TopGates(HEADS, 0.0, 4).to("cpu")
        gates.progress = 0.4
        gates.draw(torch.full((12,), 0.5))
        (gates.now * torch.arange(12)).sum().backward()
        assert gates.log_alpha.grad is not None
        assert float(gates.log_alpha.grad.norm()) == pytest.approx(CLIP)

    @pytest.mark.parametrize("keep", [4, {"encoder-self": 3, "cross": 2}])
    @pytest.mark.parametrize("settling", [False, True])
    def test_an_update_asks_nothing_back_from_the_device(self, keep: Keep, settling: bool) -> None:
        for gates in (TopGates(HEADS, 0.0, keep), CountedGates(HEADS, HardConcrete(), 0.0, keep)):
            noise = torch.full((12,), 0.5)
            gates.settling = settling
            with syncs() as seen:
                gates.draw(noise)
                (gates.cost() + gates.now.sum()).backward() if not settling else gates.settle(
                    gates.decided(), 3
                )
            assert seen == []

    @pytest.mark.parametrize("keep", [0, 13])
    def test_numbers_that_cannot_be_are_refused_as_elsewhere(self, keep: int) -> None:
        for make in (
            lambda: TopGates(HEADS, 0.0, keep),
            lambda: CountedGates(HEADS, HardConcrete(), 0.0, keep),
        ):
            with pytest.raises(HeadwiseError, match="Give a number from 1 to 12"):
                make()


def test_what_is_soft_is_the_mean_over_noise() -> None:
    gates = TopGates(HEADS, torch.linspace(-1, 1, 12), 4)
    gates.progress = 1.0
    draws = []
    for _ in range(2000):
        gates.draw()
        draws.append(gates.now.detach())
    torch.testing.assert_close(gates.soft(), torch.stack(draws).mean(0), rtol=0, atol=0.1)
    with gates.held(gates.soft()):
        gates.draw()
        assert torch.equal(gates.now, gates.soft())
    gates.draw()
    assert not torch.equal(gates.now, gates.soft())


def test_a_run_ends_with_exactly_so_many_heads(bench: Bench, tmp_path: Path) -> None:
    model = copy.deepcopy(bench.model)
    options = TopK(gate_learning_rate=0.7, warmup=2, epochs=6, keep=3, kinds=ENCODER)
    result = prune_by_training(model, bench.training(tmp_path), options)
    assert result.mask.count("encoder-self") == 3 and result.expected == pytest.approx(3)
    assert result.settled is (result.undecided <= UNDECIDED)
    assert result.soft_loss == pytest.approx(result.decided_loss, abs=0.02)
    with keeping(model.hf, model.discovery, result.mask):
        assert bench.loss(model) == result.loss
    assert bench.loss(result.model) == pytest.approx(result.loss, abs=1e-5)
    table = pd.read_csv(tmp_path / "gates.csv")
    assert table.groupby("step").p_open.sum().tolist() == pytest.approx(
        [3] * table.step.nunique(), abs=1e-3
    )
    assert set(table[table.step == table.step.max()].p_open) == {0, 1}


def test_a_run_whose_heads_are_still_drawn_by_chance_has_not_settled(
    bench: Bench, tmp_path: Path
) -> None:
    model = copy.deepcopy(bench.model)
    options = TopK(gate_learning_rate=0.7, warmup=2, epochs=1, keep=4, kinds=ENCODER)
    result = prune_by_training(model, bench.training(tmp_path), options)
    assert result.undecided > 0.1 and not result.settled and result.soft_loss != result.decided_loss
    assert result.mask.count("encoder-self") == 4
