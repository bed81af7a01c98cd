"""Attribution in steps: one step is the plain attribution, many steps sum to the loss of the layer, slow twins."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from headwise.attention import capture, discover, remove
from headwise.attention.discover import Discovery
from headwise.errors import HeadwiseError
from headwise.heads import Head, HeadMask, Site
from headwise.importance.ablation import removal_losses
from headwise.importance.gradient import gradients
from headwise.importance.integrated_gradients import STEPS, integrated_gradients
from headwise.tasks.objective import predict, sentence_losses
from importance.asking import asking, broken, counted, sentence, state, where, worded

ROUNDED = ("llama", "t5")  # norms and softmax in float32 even in a float64 model
FAMILIES = (
    "marian",
    "t5",
    "albert",
    "llama",
)  # two stacks; a shared bias; one module for all layers; grouped queries


def wide(family: str) -> tuple[PreTrainedModel, Discovery, dict[str, Tensor], float]:
    model = worded(family).double()
    return model, discover(model), asking(model, family), 1e-5 if family in ROUNDED else 1e-9


@pytest.mark.parametrize("family", FAMILIES)
def test_one_step_is_the_plain_attribution(family: str) -> None:
    model, found, inputs, near = wide(family)
    plain = gradients(model, found, [inputs])["attribution.zero"]
    stepped = integrated_gradients(model, found, [inputs], steps=1)["attribution.steps"]
    for site in found.modules:
        for one, other in zip(counted(plain, site), counted(stepped, site), strict=True):
            np.testing.assert_allclose(one, other, rtol=100 * near, atol=100 * near)


@pytest.mark.parametrize("family", ["marian", "llama"])
def test_slow_version(family: str) -> None:
    """Gates of one sentence at a time, without padding, in full forwards."""
    model, found, inputs, near = wide(family)
    measured = integrated_gradients(model, found, [inputs])["attribution.steps"]
    for row in range(3):
        alone = sentence(inputs, row)
        for site in found.heads.sites:
            total = torch.zeros(found.heads.count(site), dtype=torch.float64)
            for step in range(1, STEPS + 1):
                gate = torch.full_like(total, step / STEPS, requires_grad=True)
                with capture(model, found, gates={site: gate}):
                    lost = sentence_losses(predict(model, alone), alone["labels"])
                total -= torch.autograd.grad(lost.sum(), gate)[0] / STEPS
            np.testing.assert_allclose(
                counted(measured, site)[0][row], total.numpy(), rtol=100 * near, atol=100 * near
            )


@pytest.mark.parametrize("family", FAMILIES)
def test_heads_of_a_layer_sum_to_the_loss_without_them(family: str) -> None:
    """Completeness. The error of m steps falls as 1/m, so twice the sum of 2 m steps less that of m is nearly exact."""
    model, found, inputs, _ = wide(family)
    site = found.heads.sites[-1]
    whole = HeadMask.full(found.heads)
    gone = whole.without([Head(*site, head) for head in range(found.heads.count(site))])
    lost, _ = removal_losses(model, found, [inputs], [whole, gone])
    true = lost[:, 1] - lost[:, 0]
    sums = {
        steps: counted(
            integrated_gradients(model, found, [inputs], steps)["attribution.steps"], site
        )[0].sum(1)
        for steps in (1, 32, 64)
    }
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
    with torch.no_grad():
        for weight in (block.attn.c_proj.bias, block.mlp.c_proj.weight, block.mlp.c_proj.bias):
            weight.zero_()
        model.transformer.wte.weight.zero_()
        model.transformer.wpe.weight.zero_()
        block.attn.c_attn.weight.zero_()
        block.attn.c_attn.bias[16:] = 1.0  # the value, whatever the token
        block.attn.c_proj.weight.zero_()
        block.attn.c_proj.weight[0, 0] = 1.0
    model.transformer.ln_f = torch.nn.Identity()
    model.lm_head = torch.nn.Linear(8, model.config.vocab_size, bias=True).double()
    with torch.no_grad():
        model.lm_head.weight.zero_()
        model.lm_head.bias.fill_(-1e4)
        model.lm_head.bias[1:3] = 0
        model.lm_head.weight[1, 0], model.lm_head.weight[2, 0] = height, -height
    for steps, expected in ((1, 0.0), (400, np.log(2))):
        measured = integrated_gradients(model, discovery, [batch], steps)["attribution.steps"]
        shares = np.arange(1, steps + 1) / steps
        closed = (2 * height / (1 + np.exp(2 * height * shares))).mean()
        assert counted(measured, site)[0].item() == pytest.approx(closed, rel=1e-6)
        assert closed == pytest.approx(expected, abs=0.03)


def test_the_model_is_as_before_and_a_broken_one_is_reported() -> None:
    model = worded("marian").train()
    discovery, inputs = discover(model), asking(model, "marian")
    before = state(model)
    integrated_gradients(model, discovery, [inputs], 2)
    assert state(model) == before
    site = discovery.heads.sites[-1]
    broken(model, discovery.modules[site])
    with pytest.raises(HeadwiseError, match=where(site)):
        integrated_gradients(model, discovery, [inputs], 2)


def test_a_layer_that_does_not_reach_the_loss_has_zeros(monkeypatch: pytest.MonkeyPatch) -> None:
    """A model that throws the output of its last layer away."""
    model = worded("llama")
    last = model.model.layers[-1]
    usual = last.forward

    def useless(states: Any, *args: Any, **kwargs: Any) -> Any:
        usual(states, *args, **kwargs)
        return states

    monkeypatch.setattr(last, "forward", useless)
    measured = integrated_gradients(model, discover(model), [asking(model, "llama")], 2)
    rows = measured["attribution.steps"].rows("attribution.steps")
    values = {layer: [row["value"] for row in rows if row["layer"] == layer] for layer in (0, 1)}
    assert all(values[0]) and not any(values[1])


def test_a_layer_without_heads_has_no_row() -> None:
    model = worded("marian")
    discovery = discover(model)
    smaller = remove(
        model,
        discovery,
        HeadMask.full(discovery.heads).without(Head("cross", 1, head) for head in range(4)),
    )
    measured = integrated_gradients(smaller, discover(smaller), [asking(model, "marian")], 2)[
        "attribution.steps"
    ]
    assert len(measured.rows("attribution.steps")) == 20
