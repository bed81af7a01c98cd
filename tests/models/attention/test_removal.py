"""Removal: what is cut out equals what is masked, on logits and on translations, and the weights are really gone."""

from __future__ import annotations

import copy
import pickle
import random
from collections.abc import Callable
from functools import cache
from itertools import compress
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from transformers import PreTrainedModel

import headwise as hw
from headwise.core.heads import Head, HeadMap, Site
from headwise.core.layout import HeadMask, key_value_heads
from headwise.models.attention.capture import capture, keeping
from headwise.models.attention.discover import Discovery, discover
from headwise.models.attention.kernel import AttentionCall
from headwise.models.attention.removal import EmptyAttention, smaller_copy
from models.attention.families import (
    GPT,
    STACK,
    at_tokens,
    batch,
    build,
    cut,
    eager,
    output,
    ready,
    real,
    tiny,
    whole_layer,
    without,
)
from refusals import refuses

BIASED = ("marian", "m2m100", "bart", "bert", "distilbert", "phi")
SEPARATE = (*BIASED, "llama", "qwen3", "gemma2", "modernbert_decoder")
FUSED = ("gpt2", "modernbert", "phi3", "gpt_neox")
REMOVABLE = (*SEPARATE, *FUSED, "t5", "umt5")
GROUPED = ("llama", "qwen3", "gemma2", "phi3")
REFUSED = {  # family: what the refusal says
    "albert": "one module serves several layers",
    "olmo2": "its q_norm normalises all heads of a layer together",
}


def masks(heads: HeadMap, count: int) -> list[HeadMask]:
    """Random masks from nearly all to none, then every layer emptied in turn, and no head at all."""
    generator, everyone = random.Random(0), list(heads)
    sizes = [int(share * heads.total) for share in (0.9, 0.6, 0.4, 0.2)[:count]]
    drawn = [generator.sample(everyone, size) for size in sizes]
    emptied = [[head for head in heads if head[:2] != site] for site in heads.sites]
    return [HeadMask(heads, frozenset(kept)) for kept in (*drawn, *emptied, ())]


def agree(got: Tensor, expected: Tensor) -> None:
    """To 1e-6 in double precision; single precision by itself moves logits more."""
    near = 1e-6 if got.dtype == torch.float64 else 5e-5
    torch.testing.assert_close(got, expected, rtol=0, atol=near)


def removed_equals_masked(model: Any, discovery: Discovery, mask: HeadMask) -> Tensor:
    """On the outputs at tokens, which are returned."""
    inputs = batch(model)
    smaller = smaller_copy(model, discovery, mask)
    with keeping(model, discovery, mask):
        expected = at_tokens(model, inputs)
    agree(at_tokens(smaller, inputs), expected)
    return expected


def some_are_cut(family: str) -> tuple[Any, Any, dict[str, Tensor]]:
    """The whole model, one without some of its heads, and a batch."""
    model, discovery, inputs = ready(family)
    return model, smaller_copy(model, discovery, masks(discovery.heads, 2)[1]), inputs


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("family", REMOVABLE)
def test_removed_equals_masked_on_logits(family: str, dtype: torch.dtype) -> None:
    # In float64, eager attention gives NaN to padding that sees nothing: a window as wide as the text leaves none.
    model = tiny(family, **{"sliding_window": 64} if family == "gemma2" else {}).to(dtype)
    discovery, whole = discover(model), at_tokens(model, batch(model))
    for mask in masks(discovery.heads, 4):
        assert (removed_equals_masked(model, discovery, mask) - whole).abs().max() > 1e-3


WIDE: dict[str, dict[str, Any]] = {
    "llama": {"num_attention_heads": 8, "num_key_value_heads": 2},
    "phi3": {"num_attention_heads": 8, "num_key_value_heads": 2, "hidden_size": 64},
}


@cache
def made(family: str, **changes: Any) -> tuple[Any, Discovery]:
    """A model that many examples share, and its heads."""
    model = tiny(family, **changes).double()
    return model, discover(model)


@pytest.mark.parametrize("family", WIDE)
@settings(max_examples=25, deadline=None, derandomize=True)
@given(st.sets(st.tuples(st.integers(0, 1), st.integers(0, 7))))
def test_any_choice_of_grouped_heads_can_be_removed(
    family: str, kept: set[tuple[int, int]]
) -> None:
    heads = HeadMap({"decoder-self": (8, 8)}, {"decoder-self": (2, 2)})
    mask = HeadMask(heads, frozenset(Head("decoder-self", *where) for where in kept))
    removed_equals_masked(*made(family, **WIDE[family]), mask)


@pytest.mark.parametrize("family", ["gpt2", "modernbert", "gpt_neox", "t5"])
@settings(max_examples=20, deadline=None, derandomize=True)
@given(keep=st.lists(st.booleans(), min_size=24, max_size=24))
def test_any_choice_of_heads_can_be_removed(family: str, keep: list[bool]) -> None:
    """Also from projections that are fused, and under a position bias that layers share."""
    model, discovery = made(family)
    kept = frozenset(compress(discovery.heads, keep))
    removed_equals_masked(model, discovery, HeadMask(discovery.heads, kept))


def test_cross_attention_of_gpt2() -> None:
    """Its queries have a projection of their own, keys and values share one."""
    decoder = {**GPT, "model_type": "gpt2", "add_cross_attention": True, "is_decoder": True}
    model = build("EncoderDecoderModel", encoder={**STACK, "model_type": "bert"}, decoder=decoder)
    discovery = discover(model)
    for mask in masks(discovery.heads, 3):
        removed_equals_masked(model, discovery, mask)


@pytest.mark.parametrize("family", GROUPED)
@pytest.mark.parametrize(
    ("kept", "key_value"),
    [([0, 2], 2), ([1, 2], 2), ([0, 1], 1), ([3], 1), ([0, 2, 3], 3), ([0, 1, 2, 3], 2), ([], 0)],
)
def test_groups_stay_shared_where_they_can(family: str, kept: list[int], key_value: int) -> None:
    model, discovery, _ = ready(family)
    gone = [Head("decoder-self", 0, h) for h in range(4) if h not in kept]
    smaller = discover(cut(model, discovery, gone))
    assert smaller.heads.query == {"decoder-self": (len(kept), 4)}
    assert smaller.heads.key_value == {"decoder-self": (key_value, 2)}


TWELVE = st.lists(st.booleans(), min_size=12, max_size=12)


@given(TWELVE, st.sampled_from([1, 2, 3, 4, 6, 12]), st.randoms())
def test_every_kept_head_keeps_its_key_value_head(
    keep: list[bool], groups: int, chance: random.Random
) -> None:
    """Cut once and cut again: each query head is served by the group it had, and a cut in two steps gives the same."""
    group_of = [head // (12 // groups) for head in range(12) if keep[head]]
    first, share = key_value_heads(group_of, list(range(groups)))
    assert [first[place // share] for place in range(len(group_of))] == group_of
    places = [place for place in range(len(group_of)) if chance.random() < 0.6]
    second, again = key_value_heads([place // share for place in places], first)
    left = [group_of[place] for place in places]
    at_once, share_at_once = key_value_heads(left, list(range(groups)))
    assert again == share_at_once and [first[place] for place in second] == at_once


def writes_what_the_masked_model_writes(
    model: Any, discovery: Discovery, some: list[HeadMask], **given: Any
) -> int:
    """With a cache and without. Gives how many of the masks change what is written."""
    whole = model.generate(**given, do_sample=False).tolist()
    different = 0
    for mask in some:
        smaller = smaller_copy(model, discovery, mask)
        with keeping(model, discovery, mask):
            expected = model.generate(**given, do_sample=False).tolist()
        for cached in (True, False):
            made = smaller.generate(**given, use_cache=cached, do_sample=False)
            assert made.tolist() == expected, (mask.kept, cached)
        different += expected != whole
    return different


@pytest.mark.parametrize("factory", ["tiny_marian", "tiny_m2m100"])
def test_removed_equals_masked_on_beam_output(factory: str, request: pytest.FixtureRequest) -> None:
    model = request.getfixturevalue(factory)()
    discovery, ids = discover(model), batch(model)["input_ids"][:, :6].clamp(min=4)
    given = {"input_ids": ids, "num_beams": 4, "max_new_tokens": 10}
    some = masks(discovery.heads, 3)
    assert writes_what_the_masked_model_writes(model, discovery, some, **given) > 5


@pytest.mark.parametrize(
    "family",
    ["bart", "llama", "gemma2", "gpt2", "t5", "umt5", "phi3", "gpt_neox", "modernbert_decoder"],
)
def test_what_it_writes_with_a_cache_is_what_the_masked_model_writes(family: str) -> None:
    """Also where the cache of an emptied layer has to go on counting."""
    model, discovery, inputs = ready(family, left=True)
    inputs.pop("decoder_input_ids", None)
    first = whole_layer(discovery, Site("decoder-self", 0))
    some = [
        without(discovery, first),
        *masks(discovery.heads, 2)[:2],
        without(discovery, discovery.heads),
    ]
    writes_what_the_masked_model_writes(model, discovery, some, **inputs, max_new_tokens=8)


def test_an_emptied_layer_gives_its_bias_and_nothing_else() -> None:
    model, discovery, _ = ready("marian")
    smaller = cut(model, discovery, whole_layer(discovery, Site("cross", 1)))
    layer = smaller.model.decoder.layers[1].encoder_attn
    assert isinstance(layer, EmptyAttention)
    given_states, weights = layer(torch.randn(2, 3, 32))
    assert weights is None and torch.equal(given_states, layer.out_proj.bias.expand(2, 3, 32))


@pytest.mark.parametrize("family", ["marian", "m2m100", "t5", "bert", "gpt2"])
def test_attention_outputs_keep_their_layers(family: str) -> None:
    model, discovery, inputs = ready(family)
    smaller = cut(model, discovery, (head for head in discovery.heads if head.layer == 0))
    out = eager(smaller, inputs, output_attentions=True)
    names = [name for name in out if name.endswith("attentions") and out[name]]
    assert names
    for name in names:
        first, second = out[name]
        assert first.shape[1] == 0 and first.shape[2:] == second.shape[2:] and second.shape[1] == 4


def test_observers_see_an_emptied_layer_with_no_heads() -> None:
    model, discovery, inputs = ready("marian")
    smaller = cut(model, discovery, whole_layer(discovery, Site("cross", 0)))
    calls: list[AttentionCall] = []
    with capture(smaller, discover(smaller), hook=calls.append, weights=True):
        output(smaller, inputs)
    seen = {call.site: call for call in calls}
    assert set(seen) == set(discovery.heads.sites)
    empty, full = seen[Site("cross", 0)], seen[Site("cross", 1)]
    assert empty.weights is not None and full.weights is not None
    assert empty.weights.shape == (3, 0, 7, 9) and full.weights.shape == (3, 4, 7, 9)
    assert empty.output.shape == (3, 7, 0, 8)


@pytest.mark.parametrize("family", REMOVABLE)
def test_the_weights_are_really_gone(family: str) -> None:
    """One head of each group stays: the keys and values stay, too. Each layer of UMT5 has a position bias of its own."""
    model, discovery, _ = ready(family)
    whole = copy.deepcopy(model.state_dict())
    gone = [head for head in discovery.heads if head.layer == 0 and head.head in (0, 3)]
    smaller = cut(model, discovery, gone)
    before, after = (sum(p.numel() for p in one.parameters()) for one in (model, smaller))
    bias = int(family in (*BIASED, "gpt2", "gpt_neox"))
    rows = 4 if family not in GROUPED else 2
    kinds, tables = len(discovery.heads.kinds), 2 * 2 * 32 if family == "umt5" else 0
    assert before - after == kinds * 2 * 8 * (rows * 32 + 3 * bias) + tables
    assert all(torch.equal(whole[name], tensor) for name, tensor in model.state_dict().items())
    assert not hasattr(model.config, "headwise_layout")
    assert smaller.config.headwise_layout == without(discovery, gone).to_json()


def test_cut_weights_of_gpt2_lie_in_memory_as_those_of_other_models() -> None:
    """Its own are the other way round, and safetensors refuses a view of them."""
    model, discovery, _ = ready("gpt2")
    one = HeadMask(discovery.heads, frozenset({Head("decoder-self", 0, 1)}))
    smaller = smaller_copy(model, discovery, one)
    assert all(parameter.is_contiguous() for parameter in smaller.parameters())


def test_heads_of_different_sizes_in_the_two_stacks() -> None:
    model = tiny("marian", decoder_attention_heads=2)
    discovery = discover(model)
    for mask in masks(discovery.heads, 4):
        removed_equals_masked(model, discovery, mask)


@pytest.mark.parametrize("family", REFUSED)
def test_what_cannot_be_removed_is_refused_in_one_sentence(family: str) -> None:
    model, discovery, inputs = ready(family)
    before = output(model, inputs)
    gone = [Head(*discovery.heads.sites[0], 1)]
    refuses(lambda: cut(model, discovery, gone), f"{REFUSED[family]} … They can be masked.")
    assert torch.equal(output(model, inputs), before)


def test_a_layout_of_another_model_is_refused() -> None:
    model, other = tiny("bert"), tiny("bert", num_hidden_layers=3)
    discovery, copied = discover(model), copy.deepcopy(model)
    layout, whole = HeadMask.full(discover(other).heads), HeadMask.full(discovery.heads)
    words = "encoder-self 4+4+4 heads, but … encoder-self 4+4: give the layout"
    refuses(lambda: smaller_copy(model, discovery, layout), words)
    refuses(lambda: smaller_copy(copied, discovery, whole), "discover its heads again")


@pytest.mark.parametrize("family", REMOVABLE)
def test_a_cut_model_can_be_cut_again(family: str) -> None:
    model, discovery, inputs = ready(family)
    heads = discovery.heads
    first = masks(heads, 2)[1]
    once = smaller_copy(model, discovery, first)
    again = discover(once)
    left = again.heads
    for second in (HeadMask.full(left).without([next(iter(left))]), *masks(left, 2)):
        got = removed_equals_masked(once, again, second)
        kept = frozenset(Head(*h[:2], first.of(Site(*h[:2]))[h.head]) for h in second.kept)
        with keeping(model, discovery, HeadMask(heads, kept)):
            agree(got, at_tokens(model, inputs))


def test_the_position_bias_moves_to_the_first_layer_that_has_heads() -> None:
    model, discovery, inputs = ready("t5", num_layers=3)
    table = model.encoder.block[0].layer[0].SelfAttention.relative_attention_bias.weight
    first, second = Site("encoder-self", 0), Site("encoder-self", 1)
    once = cut(model, discovery, whole_layer(discovery, first))
    left = discover(once)
    twice = cut(once, left, whole_layer(left, second))
    for smaller, gone in ((once, [first]), (twice, [first, second])):
        biases = (name for name, _ in smaller.named_parameters() if "relative" in name)
        (holder,) = (name for name in biases if "encoder" in name)
        assert holder.startswith(f"encoder.block.{len(gone)}.layer.0.SelfAttention.relative")
        assert torch.equal(smaller.get_parameter(holder), table)
        with keeping(model, discovery, without(discovery, whole_layer(discovery, *gone))):
            agree(output(smaller, inputs), output(model, inputs))


def test_an_emptied_layer_in_the_middle_hands_the_position_bias_on() -> None:
    model, discovery, _ = ready("t5", num_layers=3)
    middle = whole_layer(discovery, Site("encoder-self", 1))
    removed_equals_masked(model, discovery, without(discovery, middle))


@pytest.mark.parametrize("family", ["t5", "phi3"])
@pytest.mark.parametrize("again", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
def test_a_copy_of_a_cut_model_is_a_model_of_its_own(family: str, again: Any) -> None:
    _, smaller, inputs = some_are_cut(family)
    other, before = again(smaller), output(smaller, inputs)
    assert torch.equal(output(other, inputs), before)
    in_place(other)
    assert torch.equal(output(smaller, inputs), before)
    assert not torch.equal(output(other, inputs), before)


@pytest.mark.parametrize("family", ["t5", "phi3"])
def test_a_cut_layer_takes_another_attention_implementation(family: str) -> None:
    """Phi-3's layers see the configuration through one of their own; T5's own part of the bias goes every way."""
    model, smaller, inputs = some_are_cut(family)
    expected = at_tokens(smaller, inputs)
    smaller.set_attn_implementation("eager")
    with torch.no_grad():
        given = smaller(**inputs, output_attentions=True)
    weights = given.encoder_attentions if family == "t5" else given.attentions
    heads = discover(smaller).heads
    assert [layer.shape[1] for layer in weights] == [n for n in heads.query[heads.kinds[0]] if n]
    agree(real(model, inputs, given[0]), expected)


def test_a_cut_t5_trains_its_position_bias() -> None:
    """The second layer has all four heads."""
    model, discovery, inputs = ready("t5")
    smaller = cut(model, discovery, [Head("encoder-self", 0, 1)])
    smaller(**inputs)[0].pow(2).mean().backward()
    table = smaller.encoder.block[0].layer[0].SelfAttention.relative_attention_bias.weight
    assert table.shape == (32, 4) and (table.grad != 0).any(0).all()


def test_a_cut_model_trains_and_what_was_frozen_stays_so() -> None:
    model, discovery, inputs = ready("marian")
    for name, parameter in model.named_parameters():
        parameter.requires_grad_("decoder" not in name and "q_proj.bias" not in name)
    some = Head("encoder-self", 0, 1), Head("encoder-self", 0, 2)
    smaller = cut(model, discovery, [*some, *whole_layer(discovery, Site("encoder-self", 1))])
    free, before = (
        {name for name, p in one.named_parameters() if p.requires_grad} for one in (smaller, model)
    )
    assert free <= before
    query = smaller.model.encoder.layers[0].self_attn.q_proj
    assert query.weight.requires_grad and not query.bias.requires_grad
    smaller.train()(**inputs)[0].pow(2).mean().backward()
    slopes = {name: p.grad for name, p in smaller.named_parameters() if p.grad is not None}
    trained = {name for name, slope in slopes.items() if bool((slope != 0).any())}
    assert {f"model.encoder.layers.{i}.self_attn.out_proj.bias" for i in range(2)} <= trained
    assert not any("decoder" in name for name in trained)


def test_a_copy_made_inside_a_block_owes_nothing_to_it() -> None:
    model, discovery, inputs = ready("bert")
    gone = [Head("encoder-self", 0, 1)]
    expected = output(cut(model, discovery, gone), inputs)
    with keeping(model, discovery, HeadMask.full(discovery.heads)):
        smaller = cut(model, discovery, gone)
    assert torch.equal(output(smaller, inputs), expected)
    assert not any("headwise" in module.__dict__ for module in smaller.modules())


ONE_PER_GROUP = [Head("decoder-self", 0, 0), Head("decoder-self", 0, 2)]


def pair() -> list[hw.Model]:
    """A model whose output layer is its embeddings, and a smaller one."""
    model = hw.Model(tiny("llama", tie_word_embeddings=True), None, "llama")
    return [model, model.without(ONE_PER_GROUP)]


def by_a_gradient_given(hf: PreTrainedModel) -> None:
    optimizer = torch.optim.SGD(hf.parameters(), lr=0.1)
    for parameter in hf.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()


def by_a_backward_pass(hf: PreTrainedModel) -> None:
    optimizer = torch.optim.SGD(hf.parameters(), lr=0.1)
    ids = torch.tensor([[5, 6, 7]])
    hf(ids, labels=ids).loss.backward()
    optimizer.step()


def by_loading(hf: PreTrainedModel) -> None:
    hf.load_state_dict({name: tensor + 1 for name, tensor in hf.state_dict().items()})


def in_place(hf: PreTrainedModel) -> None:
    with torch.no_grad():
        for parameter in hf.parameters():
            parameter.add_(1)


@pytest.mark.parametrize("changed", [0, 1], ids=["the-whole-one", "the-smaller-one"])
@pytest.mark.parametrize("change", [by_a_gradient_given, by_a_backward_pass, by_loading, in_place])
def test_writing_into_one_model_leaves_the_other(
    change: Callable[[PreTrainedModel], None], changed: int
) -> None:
    both = pair()
    before = {name: tensor.clone() for name, tensor in both[1 - changed].hf.state_dict().items()}
    weight = both[changed].hf.get_input_embeddings().weight
    old = weight.clone()
    change(both[changed].hf)
    assert not torch.equal(weight, old)
    for name, tensor in both[1 - changed].hf.state_dict().items():
        assert torch.equal(tensor, before[name]), name
    for model in both:
        assert model.hf.lm_head.weight is model.hf.get_input_embeddings().weight


def test_removing_many_times_leaves_nothing_on_the_weights() -> None:
    model = hw.Model(tiny("llama"), None, "llama")
    before = {id(each): vars(each).copy() for each in model.hf.parameters()}
    mask = HeadMask.full(model.heads).without(ONE_PER_GROUP)
    for _ in range(5):
        small = model.only(mask)
    for parameter in [*model.hf.parameters(), *small.hf.parameters()]:
        assert not parameter._post_accumulate_grad_hooks and not parameter._backward_hooks
    assert {id(each): vars(each) for each in model.hf.parameters()} == before


def test_copies_of_a_key_value_head_are_known_after_two_removals() -> None:
    """Heads 0 to 3 share one: where groups are uneven each has a copy, and where they are even again, one serves all."""
    model = tiny("llama", num_attention_heads=8, num_key_value_heads=2)
    groups = []
    for kept in ((0, 1, 2, 4), (0, 1, 3), (0, 1)):
        discovery = discover(model)
        some = [Head("decoder-self", 0, head) for head in kept]
        rest = [head for head in discovery.heads if head.layer == 1]
        model = smaller_copy(model, discovery, HeadMask(discovery.heads, frozenset([*some, *rest])))
        groups.append(discover(model).heads.key_value["decoder-self"][0])
    assert groups == [4, 3, 1]
