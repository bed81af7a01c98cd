"""What a GPU computes is what the processor computes. Skipped where there is no GPU; `make gpu` runs these alone."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import headwise as hw
from headwise.core.layout import HeadMask
from headwise.core.options import Architecture
from headwise.core.progress import Progress
from headwise.importance.measures import facts, resolve_measures
from headwise.models.attention.capture import capture
from headwise.models.attention.discover import discover
from headwise.models.training.loss import loss_forward
from headwise.pruning.gates import HardConcrete, HeadGates
from headwise.study.forecast import blank, random_batch
from headwise.study.plan import make_plan
from headwise.study.study import run_study
from models.attention.families import FAMILIES, batch, eager, output, real, tiny
from models.tasks.askers import asker, lines, pairs

DEVICE = "cuda"
MEASURES = resolve_measures(["all"])
SCORES = [
    name for name in MEASURES if not facts(name).expensive
]  # those draw their noise on the device
WITHIN = 1e-3  # of the largest value of a measure, in float32
ROUNDING = 4  # times as far from float64 as the processor is in float32
HALF = 0.03  # of the largest output, in bfloat16
TOY = {
    "name": "toy",
    "data": {"embedded": {"train": 300, "dev": 20, "test": 20}},
    "model": {
        "encoder_layers": 1,
        "decoder_layers": 1,
        "heads": 2,
        "width": 16,
        "feedforward": 32,
        "vocabulary": 200,
    },
    "training": {"epochs": 2, "batch_tokens": 180, "warmup": 5, "average": 1, "dtype": "bfloat16"},
    "scoring": {"measures": ["confidence", "lrp", "gradient", "ablation"], "judge": False},
    "pruning": {"keep": [1], "epochs": 2},
    "search": {"beam": 2},
}
pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(
        DEVICE == "cuda" and not torch.cuda.is_available(), reason="there is no GPU here"
    ),
]


def there(inputs: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.to(DEVICE) for name, tensor in inputs.items()}


@pytest.mark.parametrize("family", ["marian", "bert", "gpt2", "llama"])
def test_every_score(family: str) -> None:
    """Sums with signs cancel, so that float32 is further from float64 there, on the processor as well."""
    model = asker(family)
    text: Any = pairs(12) if family == "marian" else lines(12)
    here = hw.score(model, text, SCORES).table
    model.hf.double()
    exact = hw.score(model, text, SCORES).table
    model.hf.float().to(DEVICE)
    found = hw.score(model, text, SCORES).table
    assert set(here.measure) >= {"confidence", "gradient", "lrp.alpha-beta", "ablation.zero"}
    assert here[["kind", "layer", "head", "measure"]].equals(
        found[["kind", "layer", "head", "measure"]]
    )
    largest = exact.value.abs().groupby(exact.measure).transform("max")

    def worst(table: Any) -> Any:
        return ((table.value - exact.value).abs() / largest).groupby(exact.measure).max()

    allowed = (ROUNDING * worst(here)).clip(lower=WITHIN)
    assert (worst(found) <= allowed).all(), (worst(found) / allowed).sort_values().tail()


@pytest.mark.parametrize("explicit", [False, True], ids=["idle", "explicit"])
@pytest.mark.parametrize("family", FAMILIES)
def test_bfloat16(family: str, explicit: bool) -> None:
    """The attention interface computes what transformers' own attention does, in the same precision."""
    model: Any = tiny(family).to(DEVICE, torch.bfloat16)
    discovery, inputs = discover(model), there(batch(model))
    expected = real(model, inputs, eager(model, inputs)[0]).float()
    with capture(model, discovery, explicit=explicit):
        got = real(model, inputs, output(model, inputs)).float()
    assert float((got - expected).abs().max()) <= HALF * float(expected.abs().max())


@pytest.mark.parametrize("family", ["marian", "t5", "bert", "gpt2", "llama"])
def test_removal(family: str) -> None:
    model = asker(family)
    mask = HeadMask(
        model.heads, frozenset(head for head in model.heads if head.layer or head.head < 2)
    )
    smaller, inputs = model.only(mask).hf, batch(model.hf)
    expected = output(smaller, inputs)
    got = output(copy.deepcopy(smaller).to(DEVICE), there(inputs)).cpu()
    torch.testing.assert_close(got, expected, rtol=0, atol=WITHIN * float(expected.abs().max()))


@pytest.mark.parametrize("engine", ["torch", "onnx"])
def test_exports(engine: str, tmp_path: Path) -> None:
    """Each is compared with the model while it is written."""
    for module in engine[engine].modules:
        pytest.importorskip(module, reason=f"{module} is not installed")
    model = asker("marian")
    model.hf.to(DEVICE)
    assert any(hw.export(model, engine, tmp_path / "out", say=str).iterdir())


@pytest.fixture
def no_waits() -> Iterator[Callable[[str], None]]:
    """Sets what torch does when the processor waits for the GPU: "error", or "default" (nothing)."""
    setting = torch.cuda.set_sync_debug_mode if DEVICE == "cuda" else lambda _: None
    yield setting
    setting("default")


def test_an_update_waits_for_nothing(no_waits: Callable[[str], None]) -> None:
    """Forward, gates, penalty, backward, clipping and the optimiser are all enqueued before the first is done."""
    hf: Any = blank(
        Architecture(
            encoder_layers=2, decoder_layers=2, heads=4, width=32, feedforward=64, vocabulary=300
        )
    )
    hf = hf.to(DEVICE)
    discovery, inputs = discover(hf), random_batch(hf, 8, 16)
    gates = HeadGates(discovery.heads, HardConcrete(), 3.0).to(DEVICE)
    optimizer = torch.optim.AdamW([*hf.parameters(), *gates.parameters()], lr=1e-3, fused=True)

    def update() -> Tensor:
        with torch.autocast(DEVICE, torch.bfloat16):
            loss: Tensor = hf(**inputs, smoothing=0.1) / inputs["labels"].numel()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(hf.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    with (
        capture(hf, discovery, gates=gates.by_site()),
        loss_forward(hf, gates.draw, lambda: 0.01 * gates.penalty()),
    ):
        hf.train()
        losses = [update()]
        no_waits("error")
        losses += [update() for _ in range(20)]
        no_waits("default")
    assert float(losses[-1]) < float(losses[0])


def test_a_study(tmp_path: Path) -> None:
    """Training in bfloat16, scores, a target count, removal, translation: from end to end on the GPU."""
    run_study(make_plan(TOY), tmp_path / "run", Progress(quiet=True), device=DEVICE)
    smaller = hw.load(tmp_path / "run" / "pruned" / "keep-1", device=DEVICE)
    assert smaller.layout is not None and smaller.layout.count("encoder-self") == 1
    assert len(smaller.translate(["the cat sleeps"])) == 1
