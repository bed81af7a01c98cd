"""A target count: the Lagrangian against its formula, targets held on a toy and on a tiny trained model."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from torch import Tensor
from transformers.trainer_callback import TrainerCallback

from headwise.core.errors import HeadwiseError
from headwise.core.heads import HeadMap, Kind
from headwise.core.options import Gates, Greedy, Keep
from headwise.core.removal_units import counts_by_kinds, left_by_step
from headwise.models.attention.capture import keeping
from headwise.models.model import Model
from headwise.models.training.loss import dev_loss
from headwise.pruning import target_count
from headwise.pruning.gate_training import GateSchedule, Pruned
from headwise.pruning.gates import FAR, HardConcrete
from headwise.pruning.target_count import CLIP, RAMP, SETTLE, CountedGates
from pruning.bench import Bench

HEADS = HeadMap({"encoder-self": (4, 4), "cross": (4,)})
ALL: tuple[Kind, ...] = ("encoder-self", "decoder-self", "cross")


class TestLagrangian:
    def test_the_target_falls_from_all_heads_to_the_wanted_ones_and_is_held(self) -> None:
        gates = CountedGates(HEADS, HardConcrete(), 3.0, {"encoder-self": 2, "cross": 4})
        found = []
        for share in (0.0, RAMP / 2, RAMP, 0.9):
            gates.progress = share
            found.append(gates.target().tolist())
        assert found == [[8, 4], [5, 4], [2, 4], [2, 4]]

    @pytest.mark.parametrize("share", [RAMP / 2, 0.75])
    def test_it_is_the_formula(self, share: float) -> None:
        gates = CountedGates(HEADS, HardConcrete(), torch.linspace(-3, 3, 12), 6)
        gates.progress = share
        with torch.no_grad():
            for multiplier, value in zip(gates.multipliers, (0.3, 0.07, 0.2), strict=True):
                multiplier.fill_(value)
        p = HardConcrete().p_open(torch.linspace(-3, 3, 12)).tolist()
        excess = sum(p) - (9 if share < RAMP else 6)
        doubt = sum(x * (1 - x) for x in p) if share >= RAMP else 0
        assert float(gates.cost().detach()) == pytest.approx(
            0.3 * excess + 0.07 * excess**2 + 0.2 * doubt, rel=1e-5
        )

    def test_multipliers_start_at_0_and_climb_where_there_are_too_many(self) -> None:
        gates = CountedGates(HEADS, HardConcrete(), 3.0, 6)
        gates.progress = 1.0
        assert [m.tolist() for m in gates.multipliers] == [[0.0]] * 3
        optimiser = torch.optim.AdamW(gates.groups(0.05, 100))
        gates.cost().backward()
        assert gates.linear.grad is not None and gates.linear.grad.norm() == pytest.approx(CLIP), (
            "clipped for itself"
        )
        optimiser.step()
        assert [m.tolist() for m in gates.multipliers] == [[pytest.approx(0.1)]] * 3

    def test_settling_gates_ask_for_nothing(self) -> None:
        gates = CountedGates(HEADS, HardConcrete(), 0.0, 6)
        gates.settle(gates.decided(), 2)
        assert float(gates.cost()) == 0 and not gates.cost().requires_grad
        assert gates.log_alpha.tolist() == [FAR / 2] * 6 + [-FAR / 2] * 6
        gates.draw()
        assert not gates.now.requires_grad


class TestChoice:
    def test_the_largest_log_alpha_stay_also_where_all_are_equal(self) -> None:
        gates = CountedGates(
            HEADS, HardConcrete(), torch.tensor([1.0, 2, 3, 4, 5, 6, 7, 8, -9, -8, -7, -6]), 3
        )
        assert gates.decided().nonzero().flatten().tolist() == [5, 6, 7]
        gates = CountedGates(
            HEADS, HardConcrete(), gates.log_alpha.detach(), {"encoder-self": 2, "cross": 1}
        )
        assert gates.decided().nonzero().flatten().tolist() == [6, 7, 11]
        for wanted in range(1, 13):
            assert int(CountedGates(HEADS, HardConcrete(), 0.0, wanted).decided().sum()) == wanted

    @pytest.mark.parametrize(
        "keep", [0, 13, -1, {"encoder-self": 9, "cross": 1}, {"encoder-self": 1, "cross": 0}]
    )
    def test_none_and_more_than_there_are_cannot_be_wanted(self, keep: Keep) -> None:
        with pytest.raises(HeadwiseError, match=r"cannot be kept: there are .* to prune .*Give a"):
            CountedGates(HEADS, HardConcrete(), 3.0, keep)

    def test_a_share_is_the_nearest_number_of_heads_that_units_give(self) -> None:
        share = Gates(keep="50%").keep  # type: ignore[arg-type]
        assert share == 0.5 and Gates(keep=[4, 0.25]).keep == [4, 0.25]
        assert int(CountedGates(HEADS, HardConcrete(), 0.0, 0.5).decided().sum()) == 6
        for keep, count in {0.01: 1, 0.3: 4, 0.99: 12}.items():
            assert counts_by_kinds(HEADS, keep) == {HEADS.kinds: count}
        grouped = HeadMap({"decoder-self": (8, 8)}, {"decoder-self": (2, 2)})
        assert counts_by_kinds(grouped, 0.4, "group") == {grouped.kinds: 8}
        assert left_by_step(grouped, Greedy(keep=0.4, unit="group", step=1.0)) == [8]

    @pytest.mark.parametrize("keep", [0.0, 1.5, "0%", "100%", "half"])
    def test_what_is_no_share_is_refused(self, keep: Any) -> None:
        with pytest.raises(HeadwiseError, match=r"Gates: .*keep.* (share of them|valid)"):
            Gates(keep=keep)


def toy(gates: CountedGates, updates: int, worth: Tensor, seed: int) -> Tensor:
    """A run without a model, in which a shut gate costs its head's worth; gives the decision."""
    torch.manual_seed(seed)
    optimiser = torch.optim.AdamW(gates.groups(0.05, updates), betas=(0.9, 0.98), eps=1e-9)
    rates = [group["lr"] for group in optimiser.param_groups]
    schedule = GateSchedule(gates, SETTLE, lambda: float((worth * (1 - gates.now)).sum()))
    for step in range(updates):
        state: Any = type("State", (), {"global_step": step, "max_steps": updates})
        schedule.on_step_begin(None, state, None)
        for group, rate in zip(optimiser.param_groups, rates, strict=True):
            group["lr"] = rate * (1 - step / updates)
        gates.draw()
        loss = (worth * (1 - gates.now)).sum() + gates.cost()
        optimiser.zero_grad()
        if loss.requires_grad:
            loss.backward()
        optimiser.step()
    return gates.decided()


@pytest.mark.parametrize("wanted", [1, 2, 6, 11, 15, 16])
def test_the_expected_count_reaches_every_target_without_a_penalty_chosen_by_hand(
    wanted: int,
) -> None:
    """Before anything is decided. Heads are worth from 0.0001 to 0.3 nats each."""
    worth = torch.logspace(-4, -0.5, 16)
    gates = CountedGates(HeadMap({"encoder-self": (8, 8)}), HardConcrete(), 3.0, wanted)
    kept = toy(gates, 250, worth, 1)
    assert gates.missed() < 0.5
    assert abs(gates.expected() - wanted) < 0.5
    assert gates.undecided() <= 0.25
    assert kept.sum() == wanted and torch.equal(gates.log_alpha, torch.where(kept, FAR, -FAR))
    if wanted > 2:
        assert worth[kept].sum() >= 0.85 * worth[-wanted:].sum(), (
            "and those that are worth most stay"
        )


@pytest.fixture(scope="module")
def three(bench: Bench, tmp_path_factory: pytest.TempPathFactory) -> tuple[Model, Pruned, Path]:
    """A run that keeps three of eight encoder heads, and its folder."""
    work = tmp_path_factory.mktemp("three")
    return *bench.keep(work, 3), work


class TestRun:
    def test_exactly_so_many_heads_stay(
        self, bench: Bench, three: tuple[Model, Pruned, Path]
    ) -> None:
        _, result, _ = three
        assert result.mask.count("encoder-self") == 3
        assert len(result.mask) == bench.model.heads.total - 5
        assert sum(result.model.heads.query["encoder-self"]) == 3
        assert abs(result.expected - 3) < 0.5

    def test_gates_that_were_open_by_half_had_not_settled_though_they_were_decided(
        self, bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("headwise.pruning.target_count.TRAVEL", 0)  # they stay where they start
        _, result = bench.keep(tmp_path, 3, epochs=1, start=0.0, gate_learning_rate=1e-6)
        assert result.undecided == 1 and not result.settled
        assert "100% were still between 0.1 and 0.9 when they were decided" in " ".join(
            result.notes
        )
        assert result.soft_loss != result.decided_loss

    def test_gates_that_are_all_open_have_settled(self, bench: Bench, tmp_path: Path) -> None:
        _, result = bench.keep(tmp_path, 8, epochs=2)
        assert result.settled and result.undecided <= 0.1 and len(result.notes) == 1
        assert result.soft_loss == pytest.approx(result.decided_loss, abs=0.02)

    def test_the_losses_are_those_of_the_moment_of_deciding(
        self,
        bench: Bench,
        three: tuple[Model, Pruned, Path],
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        """Measured here from outside, by moving log α; the run itself is not disturbed by it."""
        found: list[float] = []
        begin, model = GateSchedule.on_step_begin, copy.deepcopy(bench.model)

        def measure(self: GateSchedule, args: Any, state: Any, control: Any, **rest: Any) -> None:
            if state.global_step == state.max_steps * (1 - SETTLE):
                log_alpha, kept = self.gates.log_alpha.detach().clone(), self.gates.decided()
                for values in (log_alpha, torch.where(kept, FAR, -FAR)):
                    with torch.no_grad():
                        self.gates.log_alpha.copy_(values)
                    found.append(dev_loss(model.hf, bench.dev, 1260))
                with torch.no_grad():
                    self.gates.log_alpha.copy_(log_alpha)
            begin(self, args, state, control, **rest)

        monkeypatch.setattr(GateSchedule, "on_step_begin", measure)
        _, result = bench.keep(tmp_path, 3, model=model)
        assert [result.soft_loss, result.decided_loss] == pytest.approx(
            found, rel=1e-6
        )  # kept in float32
        assert (result.soft_loss, result.decided_loss) == (
            three[1].soft_loss,
            three[1].decided_loss,
        )
        assert result.loss == three[1].loss != result.decided_loss

    def test_the_removed_model_is_the_masked_one(
        self, bench: Bench, three: tuple[Model, Pruned, Path]
    ) -> None:
        model, result, _ = three
        with keeping(model.hf, model.discovery, result.mask):
            assert bench.loss(model) == result.loss
        assert bench.loss(result.model) == pytest.approx(result.loss, abs=1e-5)

    def test_the_trajectory_ends_decided(self, three: tuple[Model, Pruned, Path]) -> None:
        table = pd.read_csv(three[2] / "gates.csv")
        last = table[table.step == table.step.max()]
        assert (last.p_open > 0.5).sum() == 3 and not last.p_open.between(0.001, 0.999).any()
        kept = {
            f"{row.kind}/{row.layer}/{row.head}" for row in last[last.p_open > 0.5].itertuples()
        }
        assert kept == {str(head) for head in three[1].mask.kept if head.kind == "encoder-self"}

    def test_a_number_for_every_kind(self, bench: Bench, tmp_path: Path) -> None:
        keep = {"encoder-self": 5, "decoder-self": 1, "cross": 8}
        _, result = bench.keep(tmp_path, keep, ALL, epochs=3)
        assert {kind: result.mask.count(kind) for kind in ALL} == keep

    def test_gates_that_could_not_travel_far_enough_still_leave_so_many_heads_and_the_run_says_so(
        self, bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(target_count, "TRAVEL", 0.1)
        _, result = bench.keep(tmp_path, 1, epochs=1, gate_learning_rate=0.01)
        assert result.mask.count("encoder-self") == 1 and not result.settled
        assert "heads away from the target count" in result.notes[-1]
        assert "updates are too few" in result.notes[-1]

    def test_a_broken_run_goes_on_bit_for_bit(
        self,
        bench: Bench,
        three: tuple[Model, Pruned, Path],
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        """Broken while the gates were settling: what they were before is in the checkpoint."""

        def crash(self: TrainerCallback, args: Any, state: Any, control: Any, **_: Any) -> None:
            if state.global_step >= 0.9 * state.max_steps:
                raise KeyboardInterrupt

        monkeypatch.setattr(GateSchedule, "on_step_end", crash, raising=False)
        with pytest.raises(KeyboardInterrupt):
            bench.keep(tmp_path, 3)
        monkeypatch.undo()
        _, result = bench.keep(tmp_path, 3)
        assert (tmp_path / "gates.csv").read_text() == (three[2] / "gates.csv").read_text()
        assert result.mask == three[1].mask and result.loss == three[1].loss
        assert (result.soft_loss, result.decided_loss) == (
            three[1].soft_loss,
            three[1].decided_loss,
        )
        assert (result.expected, result.undecided) == (three[1].expected, three[1].undecided)
