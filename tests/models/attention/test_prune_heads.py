"""Removed heads are those that `prune_heads` of transformers 4 removed: the same shapes, the same numbers.

prune_heads/reference.json has its numbers, prune_heads/recipe.py says how they were made.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

import headwise as hw
from models.attention.prune_heads.weights import CASES, SHARED, batch, filled

REFERENCE: dict[str, Any] = json.loads(
    (Path(__file__).parent / "prune_heads/reference.json").read_text()
)


@pytest.fixture(autouse=True)
def in_float64() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def whole(name: str) -> hw.Model:
    kind, shape, _ = CASES[name]
    model_class = getattr(transformers, kind)
    return hw.Model(filled(model_class(model_class.config_class(**SHARED, **shape))), None, name)  # type: ignore[arg-type]


def logits(model: hw.Model) -> torch.Tensor:
    with torch.no_grad():
        return model.hf(**batch()).logits  # type: ignore[no-any-return]


@pytest.mark.parametrize("name", CASES)
def test_shapes_and_logits(name: str) -> None:
    model, _, rounds = whole(name), *CASES[name][1:]
    (kind,), expected = model.heads.kinds, REFERENCE[name]
    gone = [
        hw.Head(kind, layer, head)
        for heads in rounds
        for layer, some in heads.items()
        for head in some
    ]
    small = model.remove(hw.HeadMask.full(model.heads).without(gone))
    shapes = {parameter: list(tensor.shape) for parameter, tensor in small.hf.named_parameters()}
    cut = [part for part in shapes if shapes[part] != list(model.hf.get_parameter(part).shape)]
    turned = {
        part: shapes[part][::-1]
        for part in cut
        if part.endswith(("c_attn.weight", "c_proj.weight"))
    }
    assert cut and shapes | turned == expected["shapes"], (
        "of GPT-2 cut layers are linear: the transpose"
    )
    there = batch()["attention_mask"].bool()
    torch.testing.assert_close(
        logits(small)[there], torch.tensor(expected["logits"])[there], rtol=0, atol=1e-6
    )
    assert float((logits(small) - logits(model))[there].abs().max()) > 1e-3


def test_call_after_call() -> None:
    """Heads of a smaller model have new numbers; transformers 4 kept the old ones."""
    model = whole("gpt2-twice")
    once = model.remove(
        hw.HeadMask.full(model.heads).without([hw.Head("decoder-self", 1, head) for head in (0, 2)])
    )
    again = [
        hw.Head("decoder-self", 0, 5),
        hw.Head("decoder-self", 1, 2),
    ]  # 4 was the third that stayed
    small = once.remove(hw.HeadMask.full(once.heads).without(again))
    there = batch()["attention_mask"].bool()
    expected = torch.tensor(REFERENCE["gpt2-twice"]["logits"])
    torch.testing.assert_close(logits(small)[there], expected[there], rtol=0, atol=1e-6)
