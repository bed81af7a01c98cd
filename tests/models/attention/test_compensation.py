"""Bias compensation: a head that is cut out and stays in the bias equals one that always gives its mean output."""

from __future__ import annotations

import copy
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from headwise.core.errors import HeadwiseError
from headwise.core.heads import Head, HeadMap, Site
from headwise.core.layout import HeadMask
from headwise.importance.ablation import ablate
from headwise.models.attention.capture import capture
from headwise.models.attention.discover import Discovery, discover
from headwise.models.attention.kernel import AttentionCall
from headwise.models.attention.removal import EmptyAttention, remove
from headwise.models.evaluation.mean_outputs import mean_outputs
from headwise.models.loading import load
from headwise.models.model import Model
from headwise.models.tasks.objective import asked_tokens, predict, sentence_losses
from importance.asking import asking
from models.attention.families import batch, output, real, tiny

WITHOUT_BIAS = ("llama", "qwen3", "t5", "modernbert", "phi3")
FAMILIES = ("marian", "m2m100", "bart", "bert", "distilbert", "gpt2", "gpt_neox", *WITHOUT_BIAS)


def layouts(heads: HeadMap) -> list[HeadMask]:
    """Uneven layers, an empty one, and no head at all."""
    uneven = HeadMask.full(heads).without(
        h for h in heads if h.head == 1 or (h.layer == 1 and h.head > 1)
    )
    first = heads.sites[0]
    return [
        uneven,
        uneven.without(h for h in heads if h[:2] == tuple(first)),
        HeadMask(heads, frozenset()),
    ]


def made_up(model: Any, heads: HeadMap) -> dict[Site, Tensor]:
    """Any numbers as means: H 8 by site."""
    generator = torch.Generator().manual_seed(3)
    return {
        site: torch.randn(heads.count(site), 8, generator=generator, dtype=torch.float64)
        for site in heads.sites
    }


def replaced(
    model: Any,
    discovery: Discovery,
    mask: HeadMask,
    means: dict[Site, Tensor],
    inputs: dict[str, Tensor],
) -> Tensor:
    """What the model gives with every head outside the mask set to its mean by hand."""

    def replacement(seen: AttentionCall) -> Tensor:
        changed = seen.output.clone()
        for head in range(changed.shape[2]):
            if Head(*seen.site, head) not in mask.kept:
                changed[:, :, head] = means[seen.site][head].to(changed)
        return changed

    with capture(model, discovery, replace=dict.fromkeys(discovery.modules, replacement)):
        return output(model, inputs)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_compensated_equals_replaced_by_the_mean(family: str, dtype: torch.dtype) -> None:
    model = tiny(family).to(dtype)
    discovery, inputs = discover(model), batch(model)
    means = made_up(model, discovery.heads)
    for mask in layouts(discovery.heads):
        smaller = remove(model, discovery, mask, means)
        got, expected = (
            real(model, inputs, states)
            for states in (output(smaller, inputs), replaced(model, discovery, mask, means, inputs))
        )
        # Families of the second sort count in float32 inside.
        near = 1e-5 if dtype == torch.float32 or family in (*WITHOUT_BIAS, "gpt_neox") else 1e-10
        torch.testing.assert_close(got, expected, rtol=0, atol=near)
        masked = real(model, inputs, output(remove(model, discovery, mask), inputs))
        assert (got - masked).abs().max() > 1e-2
        assert not hasattr(model.config, "headwise_biases")


@cache
def llama() -> tuple[Any, Discovery]:
    model = tiny("llama", num_attention_heads=8, num_key_value_heads=2)
    return model, discover(model)


@settings(max_examples=20, deadline=None, derandomize=True)
@given(st.sets(st.tuples(st.integers(0, 1), st.integers(0, 7))))
def test_any_choice_of_grouped_heads_is_compensated(kept: set[tuple[int, int]]) -> None:
    model, discovery = llama()
    inputs, means = batch(model), made_up(model, discovery.heads)
    mask = HeadMask(discovery.heads, frozenset(Head("decoder-self", *where) for where in kept))
    got = output(remove(model, discovery, mask, means), inputs)
    expected = replaced(model, discovery, mask, means, inputs)
    torch.testing.assert_close(
        *(real(model, inputs, states) for states in (got, expected)), rtol=0, atol=1e-5
    )


def test_the_bias_is_the_closed_form() -> None:
    model = tiny("marian")
    discovery = discover(model)
    means = made_up(model, discovery.heads)
    gone = [Head("cross", 1, 0), Head("cross", 1, 3)]
    smaller = remove(model, discovery, HeadMask.full(discovery.heads).without(gone), means)
    before, after = (m.model.decoder.layers[1].encoder_attn.out_proj for m in (model, smaller))
    expected = before.bias.double()
    for head in (0, 3):
        expected = (
            expected
            + before.weight[:, 8 * head : 8 * head + 8].double() @ means[Site("cross", 1)][head]
        )
    torch.testing.assert_close(after.bias, expected.float(), rtol=0, atol=1e-6)
    changed = {n for n, p in smaller.named_parameters() if p.shape != model.get_parameter(n).shape}
    same = {
        n
        for n, p in smaller.named_parameters()
        if n not in changed and torch.equal(p, model.get_parameter(n))
    }
    left = {n for n, _ in smaller.named_parameters()} - changed - same
    assert left == {"model.decoder.layers.1.encoder_attn.out_proj.bias"}


@pytest.mark.parametrize("family", ["bart", "llama"])
def test_heads_that_always_give_the_same_cost_nothing(family: str) -> None:
    """Values that do not depend on the text: the compensated model is the whole one, also with an empty layer."""
    model = tiny(family, **({"attention_bias": True} if family == "llama" else {}))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("v_proj.weight"):
                parameter.zero_()
    discovery, inputs = discover(model), batch(model)
    means = {}
    with capture(
        model, discovery, hook=lambda seen: means.update({seen.site: seen.output[0, 0].double()})
    ):
        whole = output(model, inputs)
    smaller = remove(model, discovery, layouts(discovery.heads)[1], means)
    torch.testing.assert_close(
        *(real(model, inputs, states) for states in (output(smaller, inputs), whole)),
        rtol=0,
        atol=1e-5,
    )


def test_it_loses_what_ablation_by_the_mean_says() -> None:
    model = tiny("marian").double()
    discovery = discover(model)
    inputs = asking(model, "marian")
    means = mean_outputs(model, discovery, [inputs])
    measured = ablate(model, discovery, [inputs], ["ablation.mean"])["ablation.mean"]
    asked = asked_tokens(inputs["labels"]).sum()

    def loss(one: Any) -> float:
        with torch.no_grad():
            return float(sentence_losses(predict(one, inputs), inputs["labels"]).sum() / asked)

    message = {
        Head(row["kind"], row["layer"], row["head"]): row["value"]
        for row in measured.rows("ablation.mean", 1)
    }
    for head in (Head("encoder-self", 0, 2), Head("decoder-self", 1, 0), Head("cross", 0, 3)):
        smaller = remove(model, discovery, HeadMask.full(discovery.heads).without([head]), means)
        assert loss(smaller) - loss(model) == pytest.approx(message[head], abs=1e-6)


@pytest.mark.parametrize(
    "family", ["marian", "bert", "llama", "gpt2", "t5", "modernbert", "phi3", "gpt_neox"]
)
def test_saved_and_loaded_it_is_the_same_and_so_when_cut_again(family: str, tmp_path: Path) -> None:
    model = Model(tiny(family), None, family)
    inputs = batch(model.hf)
    for place, mask in enumerate(layouts(model.heads)):
        once = model.remove(mask, made_up(model.hf, model.heads))
        cuts = [once]
        if once.heads.total:
            fewer = HeadMask.full(once.heads).without([next(iter(once.heads))])
            cuts += [once.remove(fewer), once.remove(fewer, made_up(once.hf, once.heads))]
        for cut in cuts:
            again = load(cut.save(tmp_path / f"{place}"))
            assert torch.equal(output(again.hf, inputs), output(cut.hf, inputs))
            assert again.layout == cut.layout and again.parameters == cut.parameters
            made = getattr(cut.hf.config, "headwise_biases", [])
            assert len(made) == len(set(made)) and bool(made) == (family in WITHOUT_BIAS)


def test_a_made_bias_is_counted_trains_with_its_layer_and_stays_in_an_empty_one() -> None:
    model = tiny("llama")
    model.model.layers[1].self_attn.o_proj.weight.requires_grad_(False)
    discovery = discover(model)
    means = made_up(model, discovery.heads)
    smaller = remove(model, discovery, HeadMask(discovery.heads, frozenset()), means)
    layers = [layer.self_attn for layer in smaller.model.layers]
    assert all(isinstance(layer, EmptyAttention) for layer in layers)
    assert [layer.o_proj.bias.requires_grad for layer in layers] == [True, False]
    assert smaller.config.headwise_biases == [
        f"model.layers.{layer}.self_attn.o_proj" for layer in range(2)
    ]
    given_states, _ = layers[0](torch.randn(2, 3, 32))
    assert (
        torch.equal(given_states, layers[0].o_proj.bias.expand(2, 3, 32))
        and given_states.abs().max() > 0.1
    )


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda means: means.pop(Site("encoder-self", 1)), "4 × 8 numbers, but none came"),
        (
            lambda means: means.update({Site("encoder-self", 1): torch.zeros(3, 8)}),
            "4 × 8 numbers, but 3 × 8 came",
        ),
        (
            lambda means: means[Site("encoder-self", 1)].fill_(torch.nan),
            "but some that are not finite numbers",
        ),
    ],
)
def test_means_that_do_not_fit_are_refused(change: Any, said: str) -> None:
    model = tiny("bert")
    discovery, before = discover(model), copy.deepcopy(model.state_dict())
    means = made_up(model, discovery.heads)
    change(means)
    mask = HeadMask.full(discovery.heads).without([Head("encoder-self", 1, 0)])
    with pytest.raises(
        HeadwiseError,
        match=rf"^Heads of encoder\.layer\.1\.attention\.self cannot be replaced .* {said}",
    ):
        remove(model, discovery, mask, means)
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    remove(
        model,
        discovery,
        HeadMask.full(discovery.heads).without([Head("encoder-self", 0, 0)]),
        made_up(model, discovery.heads),
    )


def test_a_configuration_that_tells_of_other_layers_is_refused(tmp_path: Path) -> None:
    model = Model(tiny("llama"), None, "llama")
    small = model.remove(layouts(model.heads)[0])
    small.hf.config.headwise_biases = ["model.layers.7.self_attn.o_proj"]
    with pytest.raises(
        HeadwiseError, match=r"a bias in model\.layers\.7\.self_attn\.o_proj, but there is no such"
    ):
        load(small.save(tmp_path / "small"))
