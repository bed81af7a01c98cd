"""The whole model of the original, with headwise's gates on its heads: logits, a training step, gradients."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from headwise.core.heads import Site
from headwise.pruning.gates import HardConcrete, HeadGates
from pruning.golden_model import SITES, GoldenModel, close, inputs, tensor

KEYS = ("s0", "s1", "s2", "s3", "batch")


def test_without_gates(golden: Path) -> None:
    model, forward = GoldenModel(golden), dict(np.load(golden / "forward.npz"))
    for key in KEYS:
        source, target, source_length, target_length = inputs(forward, key)
        out = model(source, target, source_length)
        for name in ("logits", "rdo", "enc_out"):
            close(out[name], np.reshape(forward[f"{key}.{name}"], out[name].shape))
        close(
            model.loss(out["logits"], target, target_length), np.atleast_1d(forward[f"{key}.xent"])
        )


@pytest.mark.parametrize("which", ["all", "enc_only", "all_dead"])
def test_fixed_gates_of_0_and_1(golden: Path, which: str) -> None:
    model, numbers = GoldenModel(golden), dict(np.load(golden / "head_gates.npz"))
    gates = {
        Site(kind, layer): tensor(row)
        for name, kind in SITES.items()
        for layer, row in enumerate(numbers.get(f"alive.{which}.gates.{name}", ()))
    }
    model.gates = {site: partial(gates.__getitem__, site) for site in gates}
    compare(model, golden, numbers, f"alive.{which}")


def test_gates_in_evaluation(golden: Path) -> None:
    model, numbers = GoldenModel(golden), dict(np.load(golden / "head_gates.npz"))
    gates = gates_of(model, numbers).eval()
    gates.draw()
    compare(model, golden, numbers, "concrete.eval")


def test_a_training_step_with_fixed_noise(golden: Path) -> None:
    model, numbers = GoldenModel(golden), dict(np.load(golden / "head_gates.npz"))
    gates = gates_of(model, numbers)
    gates.draw(torch.cat([tensor(numbers[f"concrete.noise.{name}"]).flatten() for name in SITES]))
    source, target, source_length, target_length = inputs(
        dict(np.load(golden / "forward.npz")), "batch"
    )
    loss = model.loss(model(source, target, source_length)["logits"], target, target_length).sum()
    penalty, expected = (
        gates.penalty("code"),
        {k.rpartition("train.")[2]: v for k, v in numbers.items()},
    )
    total = loss / target_length.sum() + float(expected["concrete_coef"]) * penalty
    total.backward()
    close(loss, expected["loss"])
    close(penalty, expected["concrete_reg"])
    close(total, expected["total"])
    close(
        gates.distribution.kept(gates.log_alpha, "deterministic").double().mean(),
        expected["sparsity_rate"],
    )
    assert gates.log_alpha.grad is not None
    for name, kind in SITES.items():
        for layer, row in enumerate(expected[f"grad_log_a.{name}"]):
            close(gates.log_alpha.grad[gates.slices[Site(kind, layer)]], row)
    norms = {
        key.partition(":")[2]: value
        for key, value in expected.items()
        if key.startswith("gradnorm:")
    }
    assert len(norms) > 40
    for name, norm in norms.items():
        grad = model.weight(name.removesuffix(":0")).grad
        assert grad is not None, name
        close(grad.norm(), norm)


def gates_of(model: GoldenModel, numbers: dict[str, np.ndarray]) -> HeadGates:
    log_a = torch.cat([tensor(numbers[f"concrete.log_a.{name}"]).flatten() for name in SITES])
    gates = HeadGates(model.map, HardConcrete(), start=0.0).double()
    with torch.no_grad():
        gates.log_alpha.copy_(log_a)
    model.gates = gates.by_site()
    return gates


def compare(model: GoldenModel, golden: Path, numbers: dict[str, np.ndarray], what: str) -> None:
    forward = dict(np.load(golden / "forward.npz"))
    for key in KEYS:
        source, target, source_length, _ = inputs(forward, key)
        logits = model(source, target, source_length)["logits"]
        close(logits, np.reshape(numbers[f"{what}.{key}.logits"], logits.shape))
