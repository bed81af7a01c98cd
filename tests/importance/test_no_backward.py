"""Layers through which no gradient passes are named; what needs no gradient works on them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import headwise as hw
from headwise.core.options import Gates, Training
from headwise.importance.measures import measure
from headwise.models.model import Model
from headwise.pruning.own_loop import GatedLoop
from models.tasks.askers import asker, lines, pairs
from refusals import refuses

GRADIENT = [
    name
    for name in (
        "gradient",
        "attribution.zero",
        "lrp",
        "attribution.direct",
        "integrated-gradients",
    )
    if name in measure
]


def quantised(family: str, only: str = "") -> hw.Model:
    """A model whose linear layers torch has quantised: all, or those with such a name."""
    model = asker(family)
    which: Any = {nn.Linear}
    if only:
        named = [
            name
            for name, module in model.hf.named_modules()
            if only in name and isinstance(module, nn.Linear)
        ]
        assert named
        which = {name: torch.ao.quantization.default_dynamic_qconfig for name in named}
    hf = torch.ao.quantization.quantize_dynamic(model.hf, which, dtype=torch.qint8)
    return Model(hf, model.tokenizer, f"int8 {family}")


def text_of(family: str) -> Any:
    return pairs(6) if family == "marian" else lines(6)


@pytest.mark.parametrize("family", ["bert", "llama", "marian"])
def test_integers_of_torch(family: str, tmp_path: Path) -> None:
    model, text = quantised(family), text_of(family)
    for name in GRADIENT:
        refuses(
            lambda name=name: hw.score(model, text, [name]),
            "No gradient passes through … torch.ao.nn",
        )
    scores = hw.score(model, text, ["confidence", "ablation.zero"])
    assert any(abs(value) > 0 for value in scores.of("ablation.zero").values())
    training = Training(batch_tokens=64, dtype="float32")
    for options in (Gates(penalty=0.1, epochs=1), Gates(keep=2, epochs=1)):
        with pytest.raises(hw.HeadwiseError):
            hw.prune(model, text, options, dev=text, training=training)
    with pytest.raises(hw.HeadwiseError, match="No gradient passes"), GatedLoop(model, 0.1):
        pass
    some = [next(iter(model.heads))]
    refuses(lambda: model.without(some), "holds integers … before it is quantised")
    refuses(lambda: model.save(tmp_path / "it"), "holds integers")
    refuses(lambda: hw.export(model, "stock", tmp_path / "stock"), "holds integers")
    if family == "marian":
        assert len(model.translate(["a b c"])) == 1


def test_integers_in_some_layers_only() -> None:
    """Past them the gradient of the residual alone would arrive."""
    model = quantised("llama", only="mlp")
    refuses(lambda: hw.score(model, lines(6), ["gradient"]), "No gradient passes through")


class WithoutBackward(nn.Module):
    """A layer of another format, whose product has no gradient."""

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            return self.layer(given)  # type: ignore[no-any-return]


class PackedLinear(WithoutBackward):
    pass


@pytest.mark.parametrize("layer", [WithoutBackward, PackedLinear])
def test_layers_of_another_format(layer: type[WithoutBackward]) -> None:
    model = asker("llama")
    for block in model.hf.model.layers:
        block.self_attn.o_proj = layer(block.self_attn.o_proj)
    said = (
        "No gradient passes through model.layers.0"
        if layer is PackedLinear
        else "No gradient of the loss reaches any head"
    )
    refuses(lambda: hw.score(model, lines(6), ["gradient"]), said)
