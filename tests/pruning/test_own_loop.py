"""Gates in a loop of one's own, on a model that headwise has no loss for."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel, Trainer, TrainingArguments

import headwise as hw
from headwise.models.attention.capture import keeping
from headwise.pruning.own_loop import GatedLoop
from models.attention.families import STACK, build
from own_process import script, two

USEFUL = 1  # the only head of the four whose output reaches the classes


def classifier() -> hw.Model:
    hf: PreTrainedModel = build(
        "BertForSequenceClassification", **{**STACK, "num_hidden_layers": 1, "num_labels": 2}
    )
    with torch.no_grad():
        out = hf.get_submodule("bert.encoder.layer.0.attention.output.dense").weight
        out[:, [i for i in range(32) if i // 8 != USEFUL]] = 0.0
    return hw.Model(hf, None, "classifier")


def examples(model: hw.Model, count: int) -> list[dict[str, Tensor]]:
    """Labels that the whole model gives, so that its one head is needed."""
    drawn = torch.Generator().manual_seed(0)
    ids = torch.randint(3, 50, (count, 8), generator=drawn)
    with torch.no_grad():
        whole = model.hf(input_ids=ids).logits[:, 0] - model.hf(input_ids=ids).logits[:, 1]
    labels = (whole < whole.median()).long()
    return [{"input_ids": row, "labels": label} for row, label in zip(ids, labels, strict=True)]


@pytest.fixture
def model() -> hw.Model:
    torch.manual_seed(0)
    return classifier()


def kept(mask: hw.HeadMask) -> list[int]:
    return sorted(head.head for head in mask.kept)


def test_a_bare_loop(model: hw.Model) -> None:
    data, before = examples(model, 512), dict(vars(model.hf))
    batches = torch.utils.data.DataLoader(data, batch_size=32)  # type: ignore[arg-type]
    optimizer = torch.optim.Adam(model.hf.parameters(), lr=1e-3)
    with GatedLoop(model, penalty=0.02, learning_rate=0.2) as gates:
        for _ in range(4):
            for batch in batches:
                model.hf(**batch).loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                gates.step()
        with torch.no_grad():
            again = [
                model.hf(**data[0] | {"input_ids": data[0]["input_ids"][None]}).logits
                for _ in range(2)
            ]
        assert torch.equal(*again), "without gradients gates are not drawn"
    assert kept(gates.mask()) == [USEFUL] and max(gates.open.values()) > 0.9
    smaller = gates.smaller()
    assert smaller.heads.total == 1
    assert not model.hf._forward_pre_hooks
    assert vars(model.hf).keys() == before.keys()
    inputs = {"input_ids": torch.stack([row["input_ids"] for row in data[:5]])}
    with torch.no_grad(), keeping(model.hf, model.discovery, gates.mask()):
        torch.testing.assert_close(smaller.hf(**inputs).logits, model.hf(**inputs).logits)


def test_a_trainer_steps_by_itself(model: hw.Model, tmp_path: Path) -> None:
    arguments = TrainingArguments(
        str(tmp_path),
        num_train_epochs=4,
        per_device_train_batch_size=16,
        gradient_accumulation_steps=2,
        learning_rate=1e-3,
        use_cpu=True,
        report_to=[],
        save_strategy="no",
        disable_tqdm=True,
        logging_strategy="no",
    )
    data: Any = examples(model, 512)
    with GatedLoop(model, penalty=0.02, learning_rate=0.2) as gates:
        Trainer(model.hf, arguments, train_dataset=data, callbacks=[gates]).train()
    assert kept(gates.mask()) == [USEFUL]


def log_alpha(gates: GatedLoop) -> Tensor:
    return gates.gates.log_alpha.detach().clone()


def train(model: hw.Model, scaler: torch.amp.GradScaler | None, updates: int = 24) -> Tensor:
    """log α after some updates of a bare loop, whose optimizer is the scaler's where there is one."""
    torch.manual_seed(1)
    data: Any = examples(model, 32 * updates)
    optimizer = torch.optim.SGD(model.hf.parameters(), lr=1e-2)
    with GatedLoop(model, penalty=0.02, learning_rate=0.2) as gates:
        for batch in torch.utils.data.DataLoader(data, batch_size=32):
            loss = model.hf(**batch).loss
            if scaler is None:
                loss.backward()
                optimizer.step()
                gates.step()
            else:
                scaler.scale(loss).backward()
                scaler.step(optimizer)
                gates.step(scaler)
                scaler.update()
            optimizer.zero_grad()
    return log_alpha(gates)


def test_a_scaled_loss_gives_the_same_gates() -> None:
    """A scale that is a power of two, and grows on the way, changes no bit."""
    results = []
    for scaler in (None, torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=5)):
        torch.manual_seed(0)
        results.append(train(classifier(), scaler))
        if scaler is not None:
            assert scaler.get_scale() > 1024
    assert torch.equal(*results)


def test_a_scaler_that_is_off_changes_nothing() -> None:
    results = []
    for scaler in (None, torch.amp.GradScaler("cpu", enabled=False)):
        torch.manual_seed(0)
        results.append(train(classifier(), scaler, updates=3))
    assert torch.equal(*results)


def overflow(model: hw.Model) -> Tensor:
    return model.hf(input_ids=torch.tensor([[5, 6, 7]])).logits.sum() * torch.inf


def test_an_overflow_leaves_the_gates_out_and_lowers_the_scale(model: hw.Model) -> None:
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    with GatedLoop(model, penalty=0.02) as gates:
        scaler.scale(overflow(model)).backward()
        gates.step(scaler)
        scaler.update()
        assert scaler.get_scale() == 512
        assert torch.equal(log_alpha(gates), torch.full((4,), 3.0))
        gates.step(torch.amp.GradScaler("cpu"))  # the gradient that overflowed is gone
        assert (log_alpha(gates) < 3.0).all()


def test_an_overflow_without_a_scaler_is_said(model: hw.Model) -> None:
    with GatedLoop(model, penalty=0.02) as gates:
        overflow(model).backward()
        with pytest.raises(hw.HeadwiseError, match=r"not all finite .* call step\(scaler\)"):
            gates.step()
        assert torch.equal(log_alpha(gates), torch.full((4,), 3.0))


def test_gates_that_are_nan_give_no_mask(model: hw.Model) -> None:
    gates = GatedLoop(model, penalty=0.02)
    with torch.no_grad():
        gates.gates.log_alpha[1] = torch.nan
    with pytest.raises(hw.HeadwiseError, match="1 of 4 gates are NaN"):
        gates.mask()


def test_a_trainer_in_half_precision_steps_by_its_scaler(tmp_path: Path) -> None:
    """Accelerate makes a GradScaler for fp16 on a GPU; here it is put where Accelerate would put it."""
    arguments = TrainingArguments(
        str(tmp_path),
        max_steps=12,
        max_grad_norm=0.0,  # Accelerate unscales before it clips, but only on a GPU
        learning_rate=1e-3,
        use_cpu=True,
        report_to=[],
        save_strategy="no",
        disable_tqdm=True,
        logging_strategy="no",
    )
    results = []
    for scaler in (None, torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=5)):
        torch.manual_seed(0)
        model = classifier()
        data: Any = examples(model, 128)
        with GatedLoop(model, penalty=0.05, learning_rate=0.2) as gates:
            trainer = Trainer(model.hf, arguments, train_dataset=data, callbacks=[gates])
            trainer.accelerator.scaler = scaler
            trainer.train()
        results.append(log_alpha(gates))
    assert scaler is not None and scaler.get_scale() > 1024
    torch.testing.assert_close(*results)


PROCESSES = """
import sys
import torch
from torch import distributed
from torch.nn.parallel import DistributedDataParallel
import headwise as hw
from headwise.pruning.own_loop import GatedLoop
from pruning.test_own_loop import classifier

distributed.init_process_group("gloo")
rank = distributed.get_rank()
torch.manual_seed(0)
model = classifier()
whole = DistributedDataParallel(model.hf)
optimizer = torch.optim.Adam(whole.parameters(), lr=1e-3)
torch.manual_seed(rank)  # other noise and other sentences
with GatedLoop(model, penalty=0.05, learning_rate=0.5) as gates:
    for _ in range(12):
        batch = {"input_ids": torch.randint(3, 50, (16, 8)), "labels": torch.randint(2, (16,))}
        whole(**batch).loss.backward()
        own = gates.gates.log_alpha.grad.clone()
        optimizer.step()
        optimizer.zero_grad()
        gates.step()
torch.save((own, gates.gates.log_alpha.detach(), sorted(gates.mask().kept)), f"{sys.argv[1]}/{rank}.pt")
distributed.barrier()  # who leaves first closes connections that the other may still read
distributed.destroy_process_group()
"""


def test_two_processes_train_the_same_gates(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROCESSES)
    for status, _, errors in two(tmp_path / "processes", script, program, tmp_path):
        assert status == 0, errors
    (own, gates, mask), (others, same, as_well) = (
        torch.load(tmp_path / f"{rank}.pt", weights_only=False) for rank in (0, 1)
    )
    assert not torch.equal(own, others), "each process has its own gradient"
    assert torch.equal(gates, same) and mask == as_well
    assert (gates != 3.0).all()


def test_an_error_in_the_loop_leaves_the_model_as_it_was(model: hw.Model) -> None:
    inputs = {"input_ids": torch.tensor([[5, 6, 7]])}
    with torch.no_grad():
        before = model.hf(**inputs).logits
        with pytest.raises(KeyError), GatedLoop(model, penalty=0.0, start=-9.0):
            assert not torch.equal(model.hf(**inputs).logits, before)
            raise KeyError
        assert torch.equal(model.hf(**inputs).logits, before)


def test_gates_that_have_not_settled_warn(model: hw.Model) -> None:
    """Chances of 0.47 remove every head by their sign, which is no result."""
    gates = GatedLoop(model, penalty=0.01, start=0.0)
    with pytest.warns(UserWarning, match="have not settled: 100%"):
        gates.smaller()
    settled = GatedLoop(model, penalty=0.01)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        settled.smaller()
