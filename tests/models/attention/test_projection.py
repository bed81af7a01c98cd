"""The output projection, head by head: together the heads give what the layer gives, in every family."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from headwise.core.errors import HeadwiseError
from headwise.core.heads import Head, Site
from headwise.core.layout import HeadMask
from headwise.models.attention.capture import capture, keeping
from headwise.models.attention.discover import discover
from headwise.models.attention.kernel import AttentionCall
from headwise.models.attention.projection import direct_weights, output_weights
from models.attention.families import FAMILIES, batch, cut, output, tiny


@pytest.mark.parametrize("family", FAMILIES)
def test_heads_add_up_to_what_the_projection_gives(family: str) -> None:
    """Σ_h c_h W_h plus the bias is the output of the linear layer that these weights belong to."""
    model = tiny(family)
    discovery = discover(model)
    weights = output_weights(model, discovery)
    assert set(weights) == set(discovery.heads.sites)
    given: dict[
        int, Tensor
    ] = {}  # every linear layer's last output, by the place of its weights in memory
    layers = [module for module in model.modules() if isinstance(module, (nn.Linear, Conv1D))]
    hooks = [
        m.register_forward_hook(lambda m, _, out: given.update({m.weight.data_ptr(): out}))
        for m in layers
    ]
    bias = {m.weight.data_ptr(): 0 if m.bias is None else m.bias for m in layers}
    checked = []

    def hook(seen: AttentionCall) -> None:
        if waiting:
            compare(waiting.pop())
        waiting.append(seen)

    def compare(seen: AttentionCall) -> None:
        weight = weights[seen.site]
        together = torch.einsum("bqhd,hdm->bqm", seen.output, weight) + bias[weight.data_ptr()]
        torch.testing.assert_close(
            together, given[weight.data_ptr()].view_as(together), rtol=1e-4, atol=1e-4
        )
        checked.append(seen.site)

    waiting: list[AttentionCall] = []
    with capture(model, discovery, hook=hook):
        output(model, batch(model))
    compare(waiting.pop())
    assert checked and set(checked) == set(discovery.heads.sites)
    for hook in hooks:
        hook.remove()


def test_the_model_is_left_alone_and_gates_do_not_disturb() -> None:
    model = tiny("gpt2")
    discovery = discover(model)
    before, expected = output(model, batch(model)), output_weights(model, discovery)
    per_example = {site: torch.zeros(3, 4) for site in discovery.heads.sites}
    with (
        keeping(model, discovery, HeadMask(discovery.heads, frozenset())),
        capture(model, discovery, gates=per_example),
    ):
        weights = output_weights(model, discovery)
    assert all(torch.equal(weights[site], expected[site]) for site in expected)
    assert torch.equal(output(model, batch(model)), before)
    assert not any(module._forward_pre_hooks for module in model.modules())
    assert not any(weight.requires_grad for weight in weights.values())


@pytest.mark.parametrize("family", ["marian", "bert"])
def test_removed_heads_have_no_weights(family: str) -> None:
    model = tiny(family)
    discovery = discover(model)
    gone = [Head("encoder-self", 0, h) for h in range(4)] + [Head("encoder-self", 1, 2)]
    smaller = cut(model, discovery, gone)
    weights, whole = output_weights(smaller, discover(smaller)), output_weights(model, discovery)
    assert weights[Site("encoder-self", 0)].shape == (0, 8, 32)
    assert torch.equal(weights[Site("encoder-self", 1)], whole[Site("encoder-self", 1)][[0, 1, 3]])


def test_heads_that_go_through_something_else_first_are_refused() -> None:
    model: Any = tiny("llama")
    attention = model.model.layers[1].self_attn
    attention.o_proj = nn.Sequential(nn.LayerNorm(32), attention.o_proj)
    with pytest.raises(
        HeadwiseError,
        match=r"No linear layer .* of model.layers.1.self_attn \(LlamaAttention\)",
    ):
        output_weights(model, discover(model))


@pytest.mark.parametrize("family", ["gemma2", "olmo2", "gpt2", "llama"])
def test_the_direct_path_goes_through_the_norms_before_the_logits(family: str) -> None:
    """Σ_h c_h W_h of a layer is what it adds to the input of the output layer, but for what norms divide by: counted by
    the weights of the model itself, whose gains are random."""
    model = tiny(family).float()
    for name, parameter in model.named_parameters():
        if "norm" in name or "ln_" in name:
            torch.manual_seed(len(name))
            parameter.data = torch.rand_like(parameter) + 0.5
    discovery = discover(model)
    direct = direct_weights(model, discovery)
    outputs = output_weights(model, discovery)
    plus = 1.0 if family == "gemma2" else 0.0
    for site, weight in outputs.items():
        expected = weight
        if family in ("gemma2", "olmo2"):
            layer = model.model.layers[site.layer]
            expected = expected * (plus + layer.post_attention_layernorm.weight)
        if family == "gpt2":
            expected = expected - expected.mean(-1, keepdim=True)
            expected = expected * model.transformer.ln_f.weight
        else:
            expected = expected * (plus + model.model.norm.weight)
        torch.testing.assert_close(direct[site], expected.detach(), rtol=1e-4, atol=1e-5)


def test_the_encoder_has_no_direct_path_through_the_final_norm() -> None:
    model = tiny("m2m100")
    discovery = discover(model)
    for module in model.modules():
        if isinstance(module, nn.LayerNorm):
            nn.init.constant_(module.weight, 3.0)
    direct, outputs = direct_weights(model, discovery), output_weights(model, discovery)
    encoder, decoder = Site("encoder-self", 0), Site("decoder-self", 0)
    assert torch.equal(direct[encoder], outputs[encoder])
    centred = outputs[decoder] - outputs[decoder].mean(-1, keepdim=True)
    torch.testing.assert_close(direct[decoder], 3 * centred, rtol=1e-3, atol=1e-5)
