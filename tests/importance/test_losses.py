"""The loss without all logits in memory: equal to that of the logits, and models that it does not fit are noticed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import headwise as hw
from headwise.models.tasks import objective
from headwise.models.tasks.objective import losses_of, on_device, predict, sentence_losses
from models.attention.families import STACK, build
from models.tasks.askers import IDS, asker, lines, pairs
from models.training.letters import letters

MEASURES = ["gradient", "attention-gradient", "ablation.zero", "ablation.example"]


def cohere(**changes: Any) -> hw.Model:
    """A family that scales its logits."""
    hf = build("CohereForCausalLM", **{**STACK, **IDS, "vocab_size": 32, **changes})
    return hw.Model(hf, letters(), "cohere")


def text_for(model: hw.Model) -> Any:
    return pairs(9) if model.hf.config.is_encoder_decoder else lines(9)


@pytest.mark.parametrize("family", ["llama", "gpt2", "gemma2", "bert", "marian", "t5", "cohere"])
def test_the_loss_and_its_gradient_are_those_of_the_logits(
    family: str,
) -> None:
    model = cohere() if family == "cohere" else asker(family)
    (batch,) = model.task.batches(text_for(model))
    tensors = on_device(model.hf, batch)
    output = model.hf.get_output_embeddings().weight
    weights = [p for p in model.hf.parameters() if p.requires_grad and p is not output][:5]
    expected = sentence_losses(predict(model.hf, tensors), tensors["labels"])
    gradients = torch.autograd.grad(expected.sum(), weights, allow_unused=True)
    found = losses_of(model.hf, tensors)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    slopes = torch.autograd.grad(found.sum(), weights, allow_unused=True)
    for ours, theirs in zip(slopes, gradients, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("family", ["llama", "bert", "marian"])
def test_scores_are_the_same(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = asker(family)
    found = hw.score(model, text_for(model), MEASURES).table
    monkeypatch.setattr(objective, "projection", lambda *_: None)  # the model's own logits
    monkeypatch.setattr(objective, "CHUNK", 500)  # a few positions at once
    expected = hw.score(model, text_for(model), MEASURES).table
    assert list(found.measure) == list(expected.measure)
    np.testing.assert_allclose(found.value, expected.value, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize(("scale", "whole"), [(1.0, 0), (0.5, 1)])
def test_a_model_that_does_more_with_its_logits_is_noticed(scale: float, whole: int) -> None:
    """Small batches go the same way as large ones: the two ways differ by rounding, and a batch is compared with larger
    ones in which heads are off. That gave every head of a large vocabulary a constant effect of 3e-5 nats."""
    model = cohere(logit_scale=scale)
    (batch,) = model.task.batches(lines(9))
    shapes = []
    head = model.hf.get_output_embeddings()
    head.register_forward_hook(lambda *given: shapes.append(given[2].shape[1]))
    with torch.no_grad():
        losses_of(model.hf, on_device(model.hf, batch))
    assert sum(length > 4 for length in shapes) == whole
