"""Pruning with gates on a tiny trained model: what trains and what does not, what λ does, and that removed = masked."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest
import torch
from pydantic import ValidationError
from torch import Tensor
from transformers import MarianMTModel
from transformers.trainer_callback import TrainerCallback

from headwise.core.errors import HeadwiseError
from headwise.core.heads import KINDS, Head, HeadMap, Kind
from headwise.core.layout import HeadMask
from headwise.core.options import Gates
from headwise.models.attention.capture import capture, keeping
from headwise.models.loading import load
from headwise.models.model import Model
from headwise.pruning.gate_training import GateLog, Pruned, decide, freeze
from headwise.pruning.gates import HardConcrete, HeadGates, PenaltyGates, glorot_uniform
from headwise.pruning.with_gates import prune_by_training
from pruning.bench import ENCODER, GATES, TRAINING, Bench

State = dict[str, Tensor]
Run = tuple[Model, Pruned, Path]


@pytest.fixture(scope="module")
def pruned(bench: Bench, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run over encoder heads, and its folder."""
    work = tmp_path_factory.mktemp("pruned")
    return *bench.prune(work, 0.01), work


def state_of(model: Model) -> State:
    return {name: tensor.clone() for name, tensor in model.hf.state_dict().items()}


def changed(before: Model, after: Model) -> set[str]:
    one, other = state_of(before), state_of(after)
    assert one.keys() == other.keys()
    return {name for name in one if not torch.equal(one[name], other[name])}


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_weights_of_half_precision_give_the_same_gates(
    bench: Bench, tmp_path: Path, dtype: torch.dtype
) -> None:
    """They train in float32 and have their own type again afterwards."""
    found = {}
    for kind in (dtype, torch.float32):
        hf = copy.deepcopy(bench.model.hf).to(dtype).to(kind)
        given = Model(hf, bench.model.tokenizer, "half")
        model, made = bench.prune(tmp_path / str(kind), 0.02, model=given)
        assert {p.dtype for m in (model, made.model) for p in m.hf.parameters()} == {kind}
        found[kind] = made, (tmp_path / str(kind) / "gates.csv").read_text()
    (half, gates), (whole, expected) = found[dtype], found[torch.float32]
    assert gates == expected and half.mask == whole.mask and len(half.mask) < half.mask.heads.total
    assert half.loss == pytest.approx(whole.loss, rel=0.02)
    assert half.soft_loss == pytest.approx(whole.soft_loss, rel=0.02)


def trains(model: Model) -> set[str]:
    return {name for name, parameter in model.hf.named_parameters() if parameter.requires_grad}


class TestAfterwards:
    def test_no_gate_is_left_and_what_trained_before_trains_again(
        self, bench: Bench, pruned: Run
    ) -> None:
        assert trains(bench.model) == trains(pruned[0])
        for model in (pruned[0], pruned[1].model):
            assert not any("gate" in name for name, _ in model.hf.named_modules())
            assert not any("gate" in name for name in model.hf.state_dict())
            assert "forward" not in vars(model.hf)
            assert model.hf.config._attn_implementation == "sdpa"
            assert not any(module.training for module in model.hf.modules())

    @pytest.mark.parametrize(
        ("batches", "kind", "says"),
        [(10**6, "encoder-self", "fewer than 1000000 b"), (1, "cross", "'cross' were asked")],
    )
    def test_an_error_leaves_no_gate_either(
        self, bench: Bench, tmp_path: Path, batches: int, kind: Kind, says: str
    ) -> None:
        model = copy.deepcopy(bench.model)
        model.discovery = replace(model.discovery, heads=HeadMap({"encoder-self": (4, 4)}))
        recipe = TRAINING.model_copy(update={"accumulate": batches})
        with pytest.raises(HeadwiseError, match=says):
            options = GATES.model_copy(update={"penalty": 0.1, "kinds": (kind,)})
            prune_by_training(model, bench.training(tmp_path, recipe, 1), options)
        assert trains(model) == trains(bench.model)
        assert "headwise_gates" not in dict(model.hf.named_modules())


class TestWhatTrains:
    def test_the_decoder_stays_bit_for_bit_when_encoder_heads_are_pruned(
        self, bench: Bench, pruned: Run
    ) -> None:
        different = changed(bench.model, pruned[0])
        assert different and all(name.startswith("model.encoder.") for name in different)
        assert "model.encoder.embed_tokens.weight" in different, "the source embeddings train"
        assert different == {name for name in trains(bench.model) if ".encoder." in name}
        assert pruned[1].notes[0].startswith("The decoder was frozen; the encoder and the source")

    def test_everything_trains_when_decoder_heads_are_pruned(
        self, bench: Bench, tmp_path: Path
    ) -> None:
        model, result = bench.prune(tmp_path, 0.0, KINDS, epochs=1)
        assert changed(bench.model, model) >= trains(bench.model)
        assert not any("frozen" in note for note in result.notes)

    def test_tied_source_embeddings_stay_frozen_and_the_run_says_so(
        self, bench: Bench, tmp_path: Path, tiny_marian: Callable[..., MarianMTModel]
    ) -> None:
        hf = tiny_marian(vocab_size=len(bench.model.tokenizer), max_position_embeddings=128)
        model = Model(hf, bench.model.tokenizer, "tied")
        before = copy.deepcopy(model)
        _, result = bench.prune(tmp_path, 0.0, model=model, epochs=1)
        different = changed(before, model)
        assert different and not re.search("embed|shared|lm_head", " ".join(different))
        assert "source embeddings, which are tied" in result.notes[0]

    def test_freeze_leaves_what_was_frozen_frozen(self, bench: Bench) -> None:
        model = copy.deepcopy(bench.model.hf)
        fixed = [name for name, p in model.named_parameters() if not p.requires_grad]
        assert fixed, "sinusoidal positions"
        freeze(model, ENCODER)
        assert not any(p.requires_grad for name, p in model.named_parameters() if name in fixed)

    def test_a_model_trained_by_low_rank_changes_loads_again(
        self, bench: Bench, tmp_path: Path
    ) -> None:
        """Its decoder's embeddings are the output layer's weights, and not the encoder's: they stay tied."""
        pytest.importorskip("peft", reason="peft is not installed (headwise[lora])")
        tuned, result = bench.prune(tmp_path, 0.02, KINDS, train="lora")
        assert changed(bench.model, tuned) and len(result.mask) < result.mask.heads.total
        ids, decoder_ids = torch.arange(5, 11)[None], torch.arange(20, 26)[None]
        batch = {"input_ids": ids, "decoder_input_ids": decoder_ids}
        for model, name in ((tuned, "tuned"), (result.model, "pruned")):
            folder = model.save(tmp_path / name)
            again = [load(folder).hf]
            if model is tuned:  # transformers alone reads models that have all their heads
                again.append(MarianMTModel.from_pretrained(folder))
            with torch.no_grad():
                expected = model.hf(**batch).logits
                for hf in again:
                    assert torch.equal(hf.eval()(**batch).logits, expected)


class TestPenalty:
    def test_zero_keeps_all_heads(self, bench: Bench, tmp_path: Path) -> None:
        _, result = bench.prune(tmp_path, 0.0)
        assert result.mask == HeadMask.full(bench.model.heads)
        assert result.model.heads == bench.model.heads
        assert result.model.parameters == bench.model.parameters

    @pytest.mark.parametrize("kinds", [ENCODER, KINDS], ids=str)
    def test_a_large_one_removes_all_and_says_so(
        self, bench: Bench, tmp_path: Path, kinds: tuple[Kind, ...]
    ) -> None:
        _, result = bench.prune(tmp_path, 3.0, kinds)
        assert [result.mask.count(kind) for kind in kinds] == [0] * len(kinds)
        assert result.mask.count("cross") == (0 if "cross" in kinds else 8)
        for kind in kinds:
            assert f"No {kind} head is left" in " ".join(result.notes)
        assert result.model.parameters < bench.model.parameters
        assert len(result.model.translate(["She sees him."], beam=2)) == 1

    def test_more_penalty_less_open(self, bench: Bench, pruned: Run, tmp_path: Path) -> None:
        def open_at_the_end(work: Path) -> float:
            table = pd.read_csv(work / "gates.csv")
            return float(table[table.step == table.step.max()].p_open.sum())

        bench.prune(tmp_path, 0.3)
        assert open_at_the_end(tmp_path) < open_at_the_end(pruned[2])

    def test_the_two_scales(self, bench: Bench, tmp_path: Path) -> None:
        """λ_paper = λ_code / layers: the same run."""
        paper, code = tmp_path / "paper", tmp_path / "code"
        bench.prune(paper, 0.02, epochs=1)
        bench.prune(code, 0.04, epochs=1, penalty_scale="code")
        assert (paper / "gates.csv").read_text() == (code / "gates.csv").read_text()


class TestDecision:
    def test_the_removed_model_is_the_masked_one(self, bench: Bench, pruned: Run) -> None:
        model, result, _ = pruned
        with keeping(model.hf, model.discovery, result.mask):
            expected = bench.loss(model)
        assert result.decided_loss == expected == result.loss
        assert bench.loss(result.model) == pytest.approx(expected, abs=1e-5)

    @pytest.mark.parametrize("rule", ["sign", "deterministic"])
    def test_gates_are_decided_by_the_rule_and_really_removed(
        self, bench: Bench, rule: Any
    ) -> None:
        """log α of −1 is shut by its sign, but the deterministic gate of the released code is still open there."""
        log_alpha = torch.tensor([9.0, -9.0, 0.5, -1.0, -9.0, -9.0, -9.0, -9.0])
        options = Gates(penalty=1.0, rule=rule)
        gates = PenaltyGates(bench.model.heads.only(ENCODER), options, log_alpha, 1.0)
        model = copy.deepcopy(bench.model)
        result = decide(model, gates, bench.dev, 1260, [], {})
        kept = {0, 2} if rule == "sign" else {0, 2, 3}
        left = {head for head in result.mask.kept if head.kind == "encoder-self"}
        assert left == {Head("encoder-self", 0, head) for head in kept}
        assert result.model.heads.query["encoder-self"] == (len(kept), 0)
        assert bench.loss(result.model) == pytest.approx(result.decided_loss, abs=1e-5)
        assert result.expected == pytest.approx(float(HardConcrete().p_open(log_alpha).sum()))
        assert result.undecided == 2 / 8
        assert not result.settled
        assert "25% were still between" in " ".join(result.notes)
        assert result.soft_loss != result.decided_loss

    def test_settled_gates_give_no_warning(self, bench: Bench) -> None:
        gates = HeadGates(bench.model.heads.only(ENCODER), HardConcrete(), 9.0)
        result = decide(copy.deepcopy(bench.model), gates, bench.dev, 1260, [], {})
        assert result.notes == [] and result.undecided == 0 and result.settled
        assert result.soft_loss == result.decided_loss == bench.loss(bench.model)

    def test_at_the_start_the_gated_model_is_the_converged_one(self, bench: Bench) -> None:
        """log α = 3: the gate at test time is exactly 1, so step 0 is the model as it came."""
        model = copy.deepcopy(bench.model)
        distribution = HardConcrete(GATES.temperature)
        gates = HeadGates(model.heads.only(ENCODER), distribution, GATES.start).eval()
        gates.draw()
        assert bool((gates.now == 1).all())
        with capture(model.hf, model.discovery, gates=gates.by_site()):
            assert bench.loss(model) == bench.loss(bench.model)


class TestOptions:
    def test_gates_settle_at_the_end_where_asked(self, bench: Bench, tmp_path: Path) -> None:
        """The share undecided is that of before, and tells whether the run had settled."""
        model, result = bench.prune(tmp_path, 0.05, settle=0.4, average=2)
        assert not result.settled
        assert result.undecided > 0.1
        assert result.soft_loss != result.decided_loss
        assert "when they were decided" in result.notes[-1]
        table = pd.read_csv(tmp_path / "gates.csv")
        assert not table[table.step == table.step.max()].p_open.between(0.001, 0.999).any()
        with keeping(model.hf, model.discovery, result.mask):
            assert bench.loss(model) == result.loss != result.decided_loss

    def test_the_start_of_the_papers(self, bench: Bench, tmp_path: Path) -> None:
        bench.prune(tmp_path, 0.0, start="glorot", epochs=1)
        table = pd.read_csv(tmp_path / "gates.csv")
        start = glorot_uniform(bench.model.heads.only(ENCODER), 5)
        found = torch.tensor(table[table.step == 0].p_open.tolist())
        torch.testing.assert_close(found, HardConcrete().p_open(start), rtol=0, atol=1e-5)

    def test_what_is_no_start_is_refused(self) -> None:
        for wrong in ({"start": "xavier"}, {"settle": 0.9}, {"settle": -0.1}):
            with pytest.raises(ValidationError):
                Gates.model_validate(wrong)


def test_a_run_that_diverged_gives_no_model(bench: Bench, tmp_path: Path) -> None:
    with pytest.raises(HeadwiseError, match=r"The training diverged: the loss is (nan|inf)"):
        bench.prune(tmp_path, 0.1, warmup=0, learning_rate=1e30)
    assert not list(tmp_path.glob("checkpoint-*"))


class TestGateLog:
    def test_it_has_every_head_at_every_tenth_update(self, pruned: Run) -> None:
        table, last = pd.read_csv(pruned[2] / "gates.csv"), int(pruned[1].cost["updates"])
        assert list(table.columns) == ["step", "kind", "layer", "head", "p_open"]
        assert list(table.step.unique()) == sorted({*range(0, last + 1, 10), last})
        assert table.step.is_monotonic_increasing
        assert (table.groupby("step").size() == 8).all()
        assert not table.duplicated(["step", "kind", "layer", "head"]).any()
        start = float(HardConcrete().p_open(torch.tensor(3.0)))
        assert set(table[table.step == 0].p_open.round(3)) == {round(start, 3)}
        assert table.p_open.between(0, 1).all()

    def test_a_broken_run_goes_on_bit_for_bit(
        self,
        bench: Bench,
        pruned: Run,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        half = int(pruned[1].cost["updates"]) // 2
        monkeypatch.setattr(GateLog, "on_step_begin", crash_after(half + 1), raising=False)
        with pytest.raises(Crash):
            bench.prune(tmp_path, 0.01)
        monkeypatch.undo()
        assert (tmp_path / f"checkpoint-{half}" / "complete").exists()
        with (tmp_path / "gates.csv").open("a") as file:
            # written after the checkpoint; and a line cut in two
            file.write(f"{half + 1},encoder-self,0,0,0.5\n1")
        model, result = bench.prune(tmp_path, 0.01)
        assert (tmp_path / "gates.csv").read_text() == (pruned[2] / "gates.csv").read_text()
        assert changed(model, pruned[0]) == set()
        assert result.mask == pruned[1].mask and result.soft_loss == pruned[1].soft_loss

    def test_only_the_main_process_writes(self, tmp_path: Path) -> None:
        gates = HeadGates(HeadMap({"encoder-self": (2,)}), HardConcrete(), 3.0)
        log = GateLog(gates, tmp_path / "gates.csv")
        other = SimpleNamespace(is_world_process_zero=False, global_step=0, max_steps=1)
        log.on_train_begin(None, other, None)
        log.on_step_end(None, other, None)
        assert not (tmp_path / "gates.csv").exists()


class Crash(Exception):
    """A kill, as seen from inside."""


def crash_after(step: int) -> Any:
    def on_step_begin(self: TrainerCallback, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.global_step >= step:
            raise Crash

    return on_step_begin


def test_the_last_checkpoints_are_averaged_with_their_gates(bench: Bench, tmp_path: Path) -> None:
    alone, both = bench.prune(tmp_path / "1", 0.3), bench.prune(tmp_path / "2", 0.3, average=2)
    assert changed(alone[0], both[0])
    assert alone[1].soft_loss != both[1].soft_loss
