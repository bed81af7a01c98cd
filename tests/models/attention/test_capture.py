"""The block: it reaches every layer, adds up with the block around it, and leaves the model as it was."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from headwise.core.errors import HeadwiseError
from headwise.core.heads import Head, Site
from headwise.core.layout import HeadMask
from headwise.models.attention.capture import capture, keeping
from headwise.models.attention.discover import discover, evaluating
from headwise.models.attention.kernel import AttentionCall
from models.attention.families import batch, build, output, ready, tiny


def traces(model: nn.Module) -> dict[str, Any]:
    """Whatever a block might leave behind: entries on modules, hooks, modes, the implementations in configurations."""
    return {
        name: (
            sorted(module.__dict__),
            len(module._forward_hooks),
            len(module._forward_pre_hooks),
            module.training,
            getattr(getattr(module, "config", None), "_attn_implementation", None),
        )
        for name, module in model.named_modules()
    }


@pytest.fixture(params=["marian", "t5", "albert", "llama", "gemma2"])
def model(request: pytest.FixtureRequest) -> Any:
    return tiny(request.param)


def test_the_model_is_as_before_after_the_block(model: Any) -> None:
    before, weights = traces(model), copy.deepcopy(model.state_dict())
    stock = output(model, batch(model))
    discovery = discover(model)
    assert traces(model) == before
    gates = {site: torch.zeros(4) for site in discovery.heads.sites}
    with capture(
        model, discovery, hook=lambda seen: None, weights=True, gates=gates, explicit=True
    ):
        assert not torch.equal(output(model, batch(model)), stock)
        assert traces(model) != before
    assert traces(model) == before
    assert torch.equal(output(model, batch(model)), stock)
    assert all(torch.equal(weights[name], tensor) for name, tensor in model.state_dict().items())


def test_the_model_is_as_before_after_an_error_in_the_block(model: Any) -> None:
    before, discovery = traces(model), discover(model)

    def broken(seen: AttentionCall) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError), capture(model, discovery, hook=broken):
        output(model, batch(model))
    assert traces(model) == before
    with (
        pytest.raises(KeyboardInterrupt),
        capture(model, discovery),
        keeping(model, discovery, HeadMask.full(discovery.heads)),
    ):
        raise KeyboardInterrupt
    assert traces(model) == before


@pytest.mark.parametrize("name", ["sdpa", "eager"])
def test_the_implementation_comes_back_in_every_part(name: str) -> None:
    model = tiny("t5")
    model.set_attn_implementation("sdpa")
    model.decoder.config._attn_implementation = (
        name  # the two stacks of T5 have configurations of their own
    )
    discovery = discover(model)
    with capture(model, discovery):
        assert (
            model.encoder.config._attn_implementation
            == model.decoder.config._attn_implementation
            == "headwise"
        )
    implementations = [
        part.config._attn_implementation for part in (model, model.encoder, model.decoder)
    ]
    assert implementations == ["sdpa", "sdpa", name]


def test_each_module_has_its_own_mode_back() -> None:
    model = tiny("marian").train()
    model.model.encoder.eval()
    before = traces(model)
    with evaluating(model):
        assert not any(module.training for module in model.modules())
    assert traces(model) == before
    discover(model)
    assert traces(model) == before


def test_two_blocks_add_up(model: Any) -> None:
    discovery, inputs = discover(model), batch(model)
    first, last = discovery.heads.sites[0], discovery.heads.sites[-1]
    outer, inner = ({site: torch.tensor([0.0, 1, 1, 0.5])} for site in (first, last))
    seen = {"outer": list[Site](), "inner": list[Site]()}
    with capture(model, discovery, gates={**outer, **inner}):
        together = output(model, inputs)
    with capture(model, discovery, gates=outer, hook=lambda s: seen["outer"].append(s.site)):
        alone = output(model, inputs)
        with capture(model, discovery, gates=inner, hook=lambda s: seen["inner"].append(s.site)):
            assert torch.equal(output(model, inputs), together)
        assert torch.equal(output(model, inputs), alone)
    assert not torch.equal(alone, together)
    assert sorted(seen["inner"]) == sorted(discovery.heads.sites)
    assert seen["outer"] == 3 * seen["inner"]


def test_the_inner_block_sees_what_the_outer_one_makes() -> None:
    model = tiny("bert")
    discovery, inputs, outputs = discover(model), batch(model), dict[str, Tensor]()
    site = Site("encoder-self", 0)

    def keep(name: str) -> Any:
        return lambda seen: outputs.setdefault(f"{name}/{seen.site.layer}", seen.output.clone())

    mask = HeadMask.full(discovery.heads).without([Head(*site, 2)])
    with (
        capture(model, discovery, hook=keep("whole")),
        keeping(model, discovery, mask),
        capture(model, discovery, hook=keep("cut")),
    ):
        output(model, inputs)
    assert (outputs["cut/0"][:, :, 2] == 0).all() and (outputs["whole/0"][:, :, 2] != 0).all()
    others = [0, 1, 3]
    assert torch.equal(outputs["cut/0"][:, :, others], outputs["whole/0"][:, :, others])


def test_layers_that_share_a_module_are_reported_apart() -> None:
    model, discovery, inputs = ready("albert", num_hidden_layers=3)
    assert len(set(discovery.modules.values())) == 1 and discovery.heads.query == {
        "encoder-self": (4, 4, 4)
    }
    seen: list[Site] = []
    results = []
    for site in discovery.heads.sites:
        with capture(
            model,
            discovery,
            hook=lambda s: seen.append(s.site),
            gates={site: torch.tensor([0.0, 1, 1, 1])},
        ):
            results.append(output(model, inputs))
    assert seen == 3 * list(discovery.heads.sites)
    assert not any(torch.equal(a, b) for i, a in enumerate(results) for b in results[:i])


def test_a_forward_that_failed_does_not_shift_the_layers_of_a_shared_module() -> None:
    model = tiny("albert", num_hidden_layers=3)
    discovery, seen = discover(model), list[Site]()
    failing: Iterator[bool] = iter([False, True])

    def hook(s: AttentionCall) -> None:
        if next(failing, False):
            raise ZeroDivisionError
        seen.append(s.site)

    with capture(model, discovery, hook=hook):
        with pytest.raises(ZeroDivisionError):
            output(model, batch(model))
        seen.clear()
        output(model, batch(model))
    assert seen == list(discovery.heads.sites)


def test_what_is_seen_has_the_shapes_that_are_promised() -> None:
    model = tiny("llama")
    shown: list[AttentionCall] = []
    with capture(model, discover(model), hook=shown.append, weights=True):
        output(model, batch(model))
    for seen in shown:
        assert seen.weights is not None and seen.mask is not None
        assert seen.query.shape == (3, 4, 9, 8) and seen.key.shape == seen.value.shape == (
            3,
            2,
            9,
            8,
        )
        assert (
            seen.weights.shape == (3, 4, 9, 9)
            and seen.mask.shape == (3, 1, 9, 9)
            and seen.mask.dtype == torch.bool
        )
        assert seen.output.shape == (3, 9, 4, 8)
        values = seen.value.repeat_interleave(2, 1)
        torch.testing.assert_close(
            seen.output, (seen.weights @ values).transpose(1, 2), rtol=0, atol=1e-6
        )


def test_weights_are_only_built_when_asked_for() -> None:
    model = tiny("bert")
    shown: list[AttentionCall] = []
    with capture(model, discover(model), hook=shown.append):
        output(model, batch(model))
    assert shown and all(seen.weights is None for seen in shown)


def test_a_gate_that_is_a_function_is_asked_at_every_forward() -> None:
    model, discovery, inputs = ready("bert")
    opening = iter([torch.ones(4), torch.zeros(4)])
    with capture(model, discovery, gates={discovery.heads.sites[0]: lambda: next(opening)}):
        first, second = output(model, inputs), output(model, inputs)
    assert torch.equal(first, output(model, inputs)) and not torch.equal(first, second)


def test_a_replacement_takes_the_output_s_place_and_is_gated() -> None:
    model, discovery, inputs = ready("bert")
    site = discovery.heads.sites[0]
    mean = {site: lambda seen: seen.output.mean(1, keepdim=True).expand_as(seen.output)}
    with capture(model, discovery, replace=mean):
        replaced = output(model, inputs)
    with capture(model, discovery, replace=mean, gates={site: torch.zeros(4)}):
        silent = output(model, inputs)
    with capture(model, discovery, gates={site: torch.zeros(4)}):
        assert torch.equal(output(model, inputs), silent)
    assert not torch.equal(replaced, silent) and not torch.equal(replaced, output(model, inputs))


def test_masked_silences_exactly_the_heads_that_are_not_kept() -> None:
    model, discovery, inputs = ready("marian")
    mask = HeadMask.full(discovery.heads).without([Head("cross", 1, 3), Head("encoder-self", 0, 0)])
    gates = {
        Site("cross", 1): torch.tensor([1, 1, 1, 0]),
        Site("encoder-self", 0): torch.tensor([0, 1, 1, 1]),
    }
    with capture(model, discovery, gates=gates):
        expected = output(model, inputs)
    with keeping(model, discovery, mask):
        assert torch.equal(output(model, inputs), expected)
    with keeping(model, discovery, HeadMask.full(discovery.heads)):
        assert torch.equal(output(model, inputs), output(model, inputs))


def test_orders_that_reach_nothing_are_refused() -> None:
    model = tiny("bert")
    discovery, other = discover(model), copy.deepcopy(model)
    with (
        pytest.raises(HeadwiseError, match="encoder-self layer 7"),
        capture(model, discovery, gates={Site("encoder-self", 7): torch.ones(4)}),
    ):
        pass
    with pytest.raises(HeadwiseError, match="discover its heads again"), capture(other, discovery):
        pass
    other = discover(
        build(
            "BertModel", vocab_size=50, hidden_size=32, num_hidden_layers=1, num_attention_heads=4
        )
    )
    with (
        pytest.raises(HeadwiseError, match="encoder-self 4 heads"),
        keeping(model, discovery, HeadMask.full(other.heads)),
    ):
        pass
