"""The output layer in parts: losses of blocks of words are those of all logits; a forward that stops before it."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from headwise.models.attention import output as output_layer
from headwise.models.attention.capture import capture
from headwise.models.attention.output import Projection, run_layers
from models.attention.families import FAMILIES, ready


@pytest.mark.parametrize("cap", [None, 3.0])
@pytest.mark.parametrize("biased", [False, True])
def test_losses_of_blocks_are_those_of_all_logits(
    cap: float | None, biased: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also with words and positions that fill no whole block, and with logits too large for exp."""
    monkeypatch.setattr(output_layer, "BLOCK_WORDS", 16)
    monkeypatch.setattr(output_layer, "BLOCK_POSITIONS", 4)
    torch.manual_seed(0)
    weight = 30 * torch.randn(50, 8, dtype=torch.float64)
    states = torch.randn(11, 8, dtype=torch.float64, requires_grad=True)
    words = torch.randint(50, (11,))
    bias = torch.randn(50, dtype=torch.float64) if biased else None
    project = Projection(weight, bias, cap)
    logits = states @ weight.T + (0 if bias is None else bias)
    if cap is not None:
        logits = cap * torch.tanh(logits / cap)
    expected = nn.functional.cross_entropy(logits, words, reduction="none")
    torch.testing.assert_close(project(states), logits)
    found = project.losses(states, words)
    torch.testing.assert_close(found, expected)
    slopes = [torch.autograd.grad((each**2).sum(), states)[0] for each in (found, expected)]
    torch.testing.assert_close(*slopes)
    assert project.losses(states[:0], words[:0]).shape == (0,)
    lost, best = project.losses_and_best(states, words)
    torch.testing.assert_close(lost, expected.detach())
    assert best.tolist() == logits.argmax(1).tolist()
    assert [len(each) for each in project.losses_and_best(states[:0], words[:0])] == [0, 0]


def test_losses_are_in_float32_where_a_model_is_in_half_precision() -> None:
    torch.manual_seed(0)
    weight = torch.randn(50, 8, dtype=torch.bfloat16)
    states = torch.randn(3, 8, dtype=torch.bfloat16)
    words = torch.tensor([4, 9, 49])
    found = Projection(weight, None, None).losses(states, words)
    assert found.dtype == torch.float32
    logits = nn.functional.linear(states, weight).float()
    expected = nn.functional.cross_entropy(logits, words, reduction="none")
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_layers_run_without_the_output_layer(family: str) -> None:
    model, discovery, inputs = ready(family)
    projected = []
    head = model.get_output_embeddings()
    if head is not None:
        head.register_forward_hook(lambda *given: projected.append(given[2]))
    seen: list[object] = []
    with torch.no_grad(), capture(model, discovery, hook=lambda call: seen.append(call.site)):
        run_layers(model, inputs)
    assert set(seen) == set(discovery.modules) and len(seen) == len(discovery.modules)
    assert not projected
