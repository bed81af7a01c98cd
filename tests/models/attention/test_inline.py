"""Families that compute attention in their own code: the same hooks, checked against what the model itself says."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from headwise.core.errors import HeadwiseError
from headwise.core.heads import Kind, Site
from headwise.core.layout import HeadMask
from headwise.models.attention import inline
from headwise.models.attention.capture import capture, keeping
from headwise.models.attention.discover import discover, output_of
from headwise.models.attention.kernel import AttentionCall
from headwise.models.attention.projection import output_weights
from headwise.models.attention.removal import smaller_copy
from models.attention.families import OWN, at_tokens, batch, cut, output, ready, real, tiny

UNCUT = {"fsmt": 1, "openai": 4}  # how many heads of the first layer are too many to remove


@pytest.mark.parametrize("family", OWN)
def test_heads_are_found_and_nothing_changes(family: str) -> None:
    model = tiny(family)
    inputs = batch(model)
    stock = output(model, inputs)
    discovery = discover(model)
    kinds: tuple[Kind, ...] = (
        ("encoder-self",) if family in ("mpnet", "deberta_v2", "roformer") else ("decoder-self",)
    )
    if family == "fsmt":
        kinds = ("encoder-self", "decoder-self", "cross")
    assert discovery.heads.query == dict.fromkeys(kinds, (4, 4))
    assert discovery.heads.key_value == dict.fromkeys(
        kinds, (1, 1) if family == "falcon" else (4, 4)
    )
    with capture(model, discovery), capture(model, discovery, weights=True, hook=lambda call: None):
        assert torch.equal(output(model, inputs), stock)
    with keeping(model, discovery, HeadMask.full(discovery.heads)):
        assert torch.equal(output(model, inputs), stock)
    assert torch.equal(output(model, inputs), stock)
    assert not any({"headwise", "forward"} & module.__dict__.keys() for module in model.modules())


@pytest.mark.parametrize("family", OWN)
def test_weights_are_those_that_the_model_returns(family: str) -> None:
    model = tiny(family)
    inputs, seen = dict[str, Any](batch(model)), list[AttentionCall]()
    discovery = discover(model)
    with capture(model, discovery, weights=True, hook=seen.append):
        output_of(model, inputs)
    with torch.no_grad():  # MPT and MPNet return none, Falcon those of a mask that sdpa's is not
        own = (
            output_of(model, inputs | {"output_attentions": True})
            if family[:2] not in ("mp", "fa")
            else None
        )
    for call in seen:
        assert call.weights is not None
        values = call.value.repeat_interleave(4 // call.value.shape[1], 1)
        torch.testing.assert_close((call.weights @ values).transpose(1, 2), call.output)
        hidden = call.mask.expand_as(call.weights) if call.mask is not None else torch.ones(())
        hidden = (
            hidden if hidden.dtype == torch.bool else hidden > torch.finfo(hidden.dtype).min / 2
        )
        assert not call.weights[~hidden & hidden.any(-1, keepdim=True)].any()
    names = {
        "encoder-self": "encoder_attentions",
        "decoder-self": "decoder_attentions",
        "cross": "cross_attentions",
    }
    for call in seen if own is not None else ():
        name = names[call.site.kind] if family == "fsmt" else "attentions"
        torch.testing.assert_close(call.weights, own[name][call.site.layer])


@pytest.mark.parametrize("family", OWN)
def test_a_gate_scales_the_head_it_names(family: str) -> None:
    """A head at gate 0 equals a head whose columns of the output projection are 0; the innermost capture sees it."""
    model = tiny(family)
    inputs, site, seen = batch(model), Site("decoder-self", 1), list[Tensor]()
    discovery = discover(model)
    site = site if site in discovery.modules else Site("encoder-self", 1)
    with (
        capture(model, discovery, gates={site: torch.tensor([1.0, 0, 1, 1])}),
        capture(
            model,
            discovery,
            hook=lambda call: seen.append(call.output) if call.site == site else None,
        ),
    ):
        gated = output(model, inputs)
    assert not seen[0][:, :, 1].any()
    assert seen[0][:, :, 0].any()
    output_weights(model, discovery)[site][1] = 0  # a view of the model's own weights
    torch.testing.assert_close(real(model, inputs, gated), at_tokens(model, inputs))


@pytest.mark.parametrize("family", [family for family in OWN if family not in UNCUT])
def test_removed_equals_masked_and_generation_needs_no_cache(family: str) -> None:
    model, discovery, inputs = ready(family, left=True)
    mask = HeadMask.full(discovery.heads).without(
        [*list(discovery.heads)[4:], list(discovery.heads)[1], list(discovery.heads)[2]]
    )
    smaller = smaller_copy(model, discovery, mask)
    with keeping(model, discovery, mask):
        expected = output(model, inputs)
    torch.testing.assert_close(
        at_tokens(smaller, inputs),
        real(model, inputs, expected),
        rtol=1e-5,
        atol=1e-5,
    )
    again = discover(smaller)
    assert [again.heads.count(site) for site in again.heads.sites] == [2, 0]
    if "decoder-self" in discovery.heads.kinds:
        with_cache, without = (
            smaller.generate(**inputs, max_new_tokens=5, do_sample=False, use_cache=cache)
            for cache in (True, False)
        )
        assert torch.equal(with_cache, without)


@pytest.mark.parametrize("family", UNCUT)
def test_what_cannot_be_cut_is_refused(family: str) -> None:
    model = tiny(family)
    discovery = discover(model)
    removed = list(discovery.heads)[: UNCUT[family]]
    with pytest.raises(HeadwiseError, match="They can be masked"):
        cut(model, discovery, removed)


def test_a_layer_that_changes_its_heads_before_the_projection_is_none() -> None:
    """The product of weights and values must arrive unchanged, or a gate would scale something else."""
    projection, product = torch.nn.Linear(32, 32), torch.randn(2, 4, 5, 8)
    whole = product.transpose(1, 2).flatten(2)
    found = inline.fit_product(projection, whole, product)
    assert found is not None
    assert found.size == 8
    assert inline.fit_product(projection, whole * 2, product) is None
    assert inline.fit_product(projection, product.flatten(1, 2).flatten(1), product) is None
