"""Reuse of earlier layers: what is kept is not computed again, and gives the same; the model comes back as it was."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from headwise.core.errors import HeadwiseError
from headwise.core.heads import Site
from headwise.models.attention.discover import Discovery, discover
from headwise.models.attention.kernel import AttentionCall
from headwise.models.attention.reuse import ForwardRecord, blocks, recording, repeated, trying
from models.attention.families import (
    ENCODERS,
    FAMILIES,
    SEQUENCE_TO_SEQUENCE,
    batch,
    output,
    ready,
    real,
    tiny,
)


def recorded(
    model: PreTrainedModel, discovery: Discovery, inputs: dict[str, Tensor]
) -> tuple[ForwardRecord, Tensor]:
    with recording(model, discovery, len(inputs["input_ids"]), lambda seen: None) as kept:
        states = output(model, inputs)
    return kept, states


def same(seen: AttentionCall) -> Tensor:
    return seen.output


def silent(seen: AttentionCall) -> Tensor:
    return torch.zeros_like(seen.output)


@pytest.mark.parametrize("family", FAMILIES)
def test_every_start_gives_the_whole_forward(family: str) -> None:
    """The batch three times over: unchanged, with one layer silent, unchanged."""
    model, discovery, inputs = ready(family)
    kept, states = recorded(model, discovery, inputs)
    assert [site for call in kept.calls for site in call.sites] == in_order(discovery)
    thrice = {name: tensor.repeat(3, 1) for name, tensor in inputs.items()}
    for site in discovery.modules:
        with trying(model, discovery, kept, [{site: same}, {site: silent}, {site: same}]):
            first, other, last = output(model, thrice).chunk(3)
        near = {"rtol": 2e-4, "atol": 2e-4}
        torch.testing.assert_close(real(model, inputs, first), real(model, inputs, states), **near)
        torch.testing.assert_close(real(model, inputs, last), real(model, inputs, states), **near)
        with trying(
            model, discovery, ForwardRecord(3), [{site: silent}]
        ):  # nothing kept: all is computed
            alone = output(model, inputs)
        torch.testing.assert_close(real(model, inputs, other), real(model, inputs, alone), **near)
        assert not torch.allclose(
            real(model, inputs, other), real(model, inputs, states), atol=1e-2
        )


def in_order(discovery: Discovery) -> list[Site]:
    """Encoder layers first; in a decoder layer its own attention, then cross attention."""
    return sorted(
        discovery.modules,
        key=lambda site: (site.kind != "encoder-self", site.layer, site.kind == "cross"),
    )


@pytest.mark.parametrize("family", [*SEQUENCE_TO_SEQUENCE, *ENCODERS, "gpt2"])
def test_what_comes_before_does_not_run_again(family: str) -> None:
    model, discovery, inputs = ready(family)
    kept, _ = recorded(model, discovery, inputs)
    ran: Counter[nn.Module] = Counter()
    for module in set(discovery.modules.values()):
        module.register_forward_pre_hook(lambda module, _: ran.update([module]))
    order = in_order(discovery)
    for site in order:
        ran.clear()
        block = next(call.sites for call in kept.calls if site in call.sites)
        with trying(model, discovery, kept, [{site: same}]):
            output(model, inputs)
        assert sum(ran.values()) == len(order) - order.index(block[0])


def test_several_sites_begin_at_the_first() -> None:
    model = tiny("marian")
    discovery = discover(model)
    kept, _ = recorded(model, discovery, batch(model))
    assert kept.first([Site("cross", 1), Site("encoder-self", 1)]) == 1
    assert kept.first([Site("cross", 1)]) == kept.first([Site("decoder-self", 1)]) == 3
    assert kept.first([]) == 4
    assert kept.first([Site("cross", 1), Site("cross", 7)]) == 0, "a layer outside all blocks"


@pytest.mark.parametrize("family", ["marian", "albert"])
def test_the_model_comes_back_after_an_error(family: str) -> None:
    model, discovery, inputs = ready(family)
    kept, before = recorded(model, discovery, inputs)

    def fail(seen: AttentionCall) -> Tensor:
        raise RuntimeError("stop")

    for block in (
        recording(model, discovery, 3, fail),
        trying(model, discovery, kept, [{discovery.heads.sites[-1]: fail}]),
    ):  # type: ignore[arg-type]
        with pytest.raises(RuntimeError, match="stop"), block:
            output(model, inputs)
        assert not any(
            "forward" in vars(module) or "headwise" in vars(module) for module in model.modules()
        )
        assert torch.equal(output(model, inputs), before)


def test_a_forward_that_somebody_else_put_there_stays() -> None:
    model, discovery, inputs = ready("gpt2")
    block = next(iter(blocks(model, discovery)))
    usual = block.forward
    block.forward = lambda *args, **kwargs: usual(*args, **kwargs) * 0.5
    own, before = block.forward, output(model, inputs)
    kept, states = recorded(model, discovery, inputs)
    assert torch.equal(states, before)
    assert block.forward is own
    with trying(model, discovery, kept, [{Site("decoder-self", 0): same}]):
        assert torch.equal(output(model, inputs), before)
    assert block.forward is own


def test_what_cannot_be_repeated_is_refused() -> None:
    shared, states = torch.ones(1, 2), torch.arange(6.0).view(3, 2)
    first, second, third = repeated((states, shared, None), 3, 2)
    assert torch.equal(first, torch.cat([states, states]))
    assert second is shared and third is None
    with pytest.raises(HeadwiseError, match="returns a dict"):
        repeated({"states": states}, 3, 2)
