"""Attribution in steps: one step is the plain attribution, many steps sum to the loss of the layer, slow twins."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from headwise.core.heads import Site
from headwise.core.layout import HeadMask
from headwise.importance.gradient import gradients
from headwise.importance.integrated_gradients import PATH_STEPS, integrated_gradients
from headwise.models.attention.capture import capture
from headwise.models.attention.discover import discover
from headwise.models.evaluation.sums import SentenceSums
from headwise.models.evaluation.without_heads import removal_losses
from importance.asking import TELLING, asking, close, lost, precise, same_sums, sentence, worded
from models.attention.families import whole_layer


def stepped(*given: Any, **options: int) -> SentenceSums:
    return integrated_gradients(*given, **options)["attribution.steps"]


@pytest.mark.parametrize("family", TELLING)
def test_one_step_is_the_plain_attribution(family: str) -> None:
    model, found, inputs, near = precise(family)
    plain = gradients(model, found, [inputs])["attribution.zero"]
    same_sums(plain, stepped(model, found, [inputs], steps=1), 100 * near)


@pytest.mark.parametrize("family", ["marian", "llama"])
def test_slow_version(family: str) -> None:
    """Gates of one sentence at a time, without padding, in full forwards."""
    model, found, inputs, near = precise(family)
    measured = stepped(model, found, [inputs])
    for row in range(3):
        alone = sentence(inputs, row)
        for site in found.heads.sites:
            total = torch.zeros(found.heads.count(site), dtype=torch.float64)
            for step in range(1, PATH_STEPS + 1):
                gate = torch.full_like(total, step / PATH_STEPS, requires_grad=True)
                with capture(model, found, gates={site: gate}):
                    total -= torch.autograd.grad(lost(model, alone).sum(), gate)[0] / PATH_STEPS
            close(measured.sentences(site)[0][row], total, 100 * near)


@pytest.mark.parametrize("family", TELLING)
def test_heads_of_a_layer_sum_to_the_loss_without_them(family: str) -> None:
    """Completeness. The error of m steps falls as 1/m, so twice the sum of 2 m steps less that of m is nearly exact."""
    model, found, inputs, _ = precise(family)
    site, whole = found.heads.sites[-1], HeadMask.full(found.heads)
    masks = [whole, whole.without(whole_layer(found, site))]
    losses, _ = removal_losses(model, found, [inputs], masks)
    true = losses[:, 1] - losses[:, 0]
    sums = {}
    for steps in (1, 32, 64):
        sums[steps] = stepped(model, found, [inputs], steps=steps).sentences(site)[0].sum(1)
    errors = {steps: np.abs(values - true).max() for steps, values in sums.items()}
    assert errors[1] > 0.1, "the loss is straight, so the test shows nothing"
    assert errors[64] < 0.03 * errors[1]
    np.testing.assert_allclose(2 * sums[64] - sums[32], true, atol=0.005)


def test_a_loss_that_is_flat_at_the_end_hides_a_head_from_one_step_only() -> None:
    """Closed form: with logits of ±a · ξ for two words, L = log(1 + exp(−2 a ξ)) is flat at ξ = 1 for a large a, but
    log 2 is lost without the head, all of which many steps find."""
    model = worded("gpt2", n_layer=1, n_head=1, n_embd=8).double()
    discovery, site = discover(model), Site("decoder-self", 0)
    batch = {
        "input_ids": torch.tensor([[4, 4]]),
        "attention_mask": torch.ones(1, 2, dtype=torch.long),
        "labels": torch.tensor([[-100, 1]]),
    }
    block, height = model.transformer.h[0], 12.0
    model.transformer.ln_f = torch.nn.Identity()
    model.lm_head = torch.nn.Linear(8, model.config.vocab_size, bias=True).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
        block.attn.c_attn.bias[16:] = 1.0  # the value, whatever the token
        block.attn.c_proj.weight[0, 0] = 1.0
        model.lm_head.bias.fill_(-1e4)
        model.lm_head.bias[1:3] = 0
        model.lm_head.weight[1, 0], model.lm_head.weight[2, 0] = height, -height
    for steps, expected in ((1, 0.0), (400, np.log(2))):
        measured = stepped(model, discovery, [batch], steps=steps)
        shares = np.arange(1, steps + 1) / steps
        closed = (2 * height / (1 + np.exp(2 * height * shares))).mean()
        assert measured.sentences(site)[0].item() == pytest.approx(closed, rel=1e-6)
        assert closed == pytest.approx(expected, abs=0.03)


def test_a_layer_that_does_not_reach_the_loss_has_zeros(monkeypatch: pytest.MonkeyPatch) -> None:
    """A model that throws the output of its last layer away."""
    model = worded("llama")
    last = model.model.layers[-1]
    usual = last.forward

    def useless(states: Any, *args: Any, **kwargs: Any) -> Any:
        usual(states, *args, **kwargs)
        return states

    monkeypatch.setattr(last, "forward", useless)
    measured = stepped(model, discover(model), [asking(model, "llama")], steps=2)
    rows = measured.rows("attribution.steps")
    values = {layer: [row["value"] for row in rows if row["layer"] == layer] for layer in (0, 1)}
    assert all(values[0]) and not any(values[1])
