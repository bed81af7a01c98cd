"""The attention function: the same numbers as transformers', nothing at padding, nothing of the future, exact gates."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from transformers import M2M100ForConditionalGeneration, MarianMTModel

from headwise.core.errors import HeadwiseError
from headwise.core.heads import Site
from headwise.models.attention.capture import capture
from headwise.models.attention.discover import discover
from headwise.models.attention.kernel import AttentionCall, attend, explicit
from models.attention.families import (
    CAUSAL,
    ENCODERS,
    FAMILIES,
    GROUPED,
    SEQUENCE_TO_SEQUENCE,
    at_tokens,
    batch,
    build,
    eager,
    output,
    ready,
    real,
    tiny,
)

HALF_PRECISE = (
    "modernbert",
    "llama",
    "qwen3",
    "gemma2",
    "gpt_oss",
    "olmo2",
)  # their rotations or softmax are float32


@pytest.mark.parametrize("left", [False, True], ids=["padding-right", "padding-left"])
@pytest.mark.parametrize("family", FAMILIES)
def test_installed_and_idle_it_is_bit_identical(family: str, left: bool) -> None:
    model = tiny(family)
    inputs, discovery, seen = batch(model, left), discover(model), list[Site]()
    stock = output(model, inputs)
    with capture(model, discovery):
        idle = output(model, inputs)
    with capture(model, discovery, hook=lambda s: seen.append(s.site)):
        hooked = output(model, inputs)
    assert torch.equal(real(model, inputs, idle), real(model, inputs, stock))
    assert torch.equal(hooked, idle)
    assert sorted(seen) == sorted(discovery.heads.sites)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_explicit_form_equals_eager(family: str) -> None:
    model, discovery, inputs = ready(family)
    with capture(model, discovery, explicit=True):
        explicit = at_tokens(model, inputs)
    expected = real(model, inputs, eager(model, inputs)[0])
    torch.testing.assert_close(explicit, expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("family", [f for f in FAMILIES if f not in HALF_PRECISE])
def test_the_explicit_form_equals_eager_in_double_precision(family: str) -> None:
    model = tiny(family).double()
    inputs = batch(model)
    with capture(model, discover(model), explicit=True):
        explicit = output(model, inputs)
    torch.testing.assert_close(explicit, eager(model, inputs)[0], rtol=0, atol=1e-10)


def weights_of(family: str, left: bool = False) -> tuple[dict[Site, Tensor], dict[str, Tensor]]:
    """Every site's weights on the padded batch, and the batch."""
    model, kept = tiny(family), dict[Site, Tensor]()

    def hook(seen: AttentionCall) -> None:
        assert seen.weights is not None
        kept[seen.site] = seen.weights.detach()

    inputs = batch(model, left)
    with capture(model, discover(model), hook=hook, weights=True):
        output(model, inputs)
    return kept, inputs


def of_tokens(weights: Tensor, inputs: dict[str, Tensor]) -> Tensor:
    """Weights B H Q K without the queries that are padding: N H K."""
    by_query, tokens = weights.transpose(1, 2), inputs["attention_mask"].bool()
    return by_query[tokens] if by_query.shape[1] == tokens.shape[1] else by_query.flatten(0, 1)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_weights_are_the_eager_models_attentions(family: str) -> None:
    kept, inputs = weights_of(family)
    out = eager(tiny(family), inputs, output_attentions=True)
    names = {
        "encoder-self": "encoder_attentions",
        "decoder-self": "decoder_attentions",
        "cross": "cross_attentions",
    }
    for (kind, layer), weights in kept.items():
        theirs = getattr(out, names[kind] if family in SEQUENCE_TO_SEQUENCE else "attentions")[
            layer
        ]
        torch.testing.assert_close(
            of_tokens(weights, inputs), of_tokens(theirs, inputs), rtol=0, atol=1e-6
        )


def test_a_soft_cap_bounds_the_scores_and_sinks_take_their_share() -> None:
    capped, _ = weights_of("gemma2")
    largest = capped[Site("decoder-self", 0)][0, :, -1].amax(
        -1
    )  # 4 keys in the window, scores between -1 and 1
    assert (largest <= torch.e / (torch.e + 3 / torch.e) + 1e-6).all()
    sinking, _ = weights_of("gpt_oss")
    mass = sinking[Site("decoder-self", 0)][0].sum(-1)
    assert (mass < 1 - 1e-5).all() and (mass > 0).all()


def test_weights_under_a_sink_are_those_of_the_values() -> None:
    """Granite's eager attention returns its weights before the sink takes its share; the values get those after it."""
    model = build("GraniteSWAForCausalLM", **GROUPED, sliding_window=4)
    discovery, inputs, calls = discover(model), batch(model), list[AttentionCall]()
    with capture(model, discovery, weights=True, hook=calls.append):
        logits = output(model, inputs)
    own = eager(model, inputs, output_attentions=True)
    torch.testing.assert_close(real(model, inputs, logits), real(model, inputs, own.logits))
    for call in calls:
        assert call.weights is not None
        values = call.value.repeat_interleave(2, 1)
        torch.testing.assert_close((call.weights @ values).transpose(1, 2), call.output)
        whole = call.weights.sum(-1, keepdim=True)
        assert (of_tokens(whole, inputs) < 1).any()
        returned = own.attentions[call.site.layer]
        torch.testing.assert_close(
            of_tokens(call.weights / whole, inputs), of_tokens(returned, inputs)
        )


@pytest.mark.parametrize("left", [False, True], ids=["padding-right", "padding-left"])
@pytest.mark.parametrize("family", FAMILIES)
def test_padded_keys_have_no_weight_at_all(family: str, left: bool) -> None:
    kept, inputs = weights_of(family, left)
    padding, checked = inputs["attention_mask"] == 0, 0
    for site, weights in kept.items():
        if weights.shape[-1] == padding.shape[1]:
            checked += 1
            on_padding = weights.masked_select(padding[:, None, None, :])
            assert on_padding.numel() and bool((on_padding == 0).all()), site
            mass = of_tokens(weights, inputs).sum(-1)
            assert family == "gpt_oss" or bool(torch.isclose(mass, torch.ones(())).all()), site
    assert checked == (4 if family in SEQUENCE_TO_SEQUENCE else 2)


def same(family: str, first: Tensor, second: Tensor) -> bool:
    """Bit-equal; with experts (gpt_oss) other tokens change how many rows each multiplies, and so its last bit."""
    if family == "gpt_oss":
        return torch.allclose(first, second, rtol=0, atol=1e-5)
    return torch.equal(first, second)


@pytest.mark.parametrize("explicit", [False, True], ids=["idle", "explicit"])
@pytest.mark.parametrize("family", FAMILIES)
def test_what_padding_holds_does_not_matter(family: str, explicit: bool) -> None:
    model, discovery, inputs = ready(family)
    other = {
        **inputs,
        "input_ids": inputs["input_ids"].masked_fill(inputs["attention_mask"] == 0, 7),
    }
    with capture(model, discovery, explicit=explicit):
        first, second = output(model, inputs), output(model, other)
    assert not torch.equal(first, second) or family in SEQUENCE_TO_SEQUENCE
    assert same(family, real(model, inputs, first), real(model, inputs, second))


@pytest.mark.parametrize("explicit", [False, True], ids=["idle", "explicit"])
@pytest.mark.parametrize("family", [*CAUSAL, *SEQUENCE_TO_SEQUENCE])
def test_no_future_is_seen(family: str, explicit: bool) -> None:
    model, discovery, inputs = ready(family)
    inputs["attention_mask"] = torch.ones_like(inputs["attention_mask"])
    name = "decoder_input_ids" if family in SEQUENCE_TO_SEQUENCE else "input_ids"
    changed = inputs[name].clone()
    changed[:, 4] = (changed[:, 4] - 4 + 1) % 46 + 4
    with capture(model, discovery, explicit=explicit):
        first, second = output(model, inputs), output(model, {**inputs, name: changed})
    assert same(family, first[:, :4], second[:, :4])
    assert (first[:, 4:] != second[:, 4:]).any(-1).all()


@pytest.mark.parametrize("family", ENCODERS)
def test_an_encoder_looks_ahead(family: str) -> None:
    kept, _ = weights_of(family)
    assert all((weights[0, :, 0, 1] > 0).all() for weights in kept.values())


@pytest.mark.parametrize("queries", [1, 4])
@pytest.mark.parametrize("causal", [True, False, None])
def test_a_flag_in_place_of_a_mask_is_read_as_sdpa_reads_it(
    causal: bool | None, queries: int
) -> None:
    class Attention(nn.Module):
        is_causal = True

    module = Attention()
    query, key = torch.randn(2, 4, queries, 8), torch.randn(2, 4, 6, 8)
    idle, _ = attend(module, query, key, key, None, is_causal=causal)
    by_hand, _ = explicit(module, query, key, key, None, None, 0.0, {"is_causal": causal})
    torch.testing.assert_close(by_hand, idle, rtol=0, atol=1e-6)


def test_what_the_seam_cannot_read_is_refused() -> None:
    states = torch.randn(1, 2, 3, 4)
    for name in ("alibi", "sinks", "indices", "a_name_of_tomorrow"):
        with pytest.raises(HeadwiseError, match=f"'{name}'"):
            attend(torch.nn.Module(), states, states, states, None, **{name: torch.zeros(1)})
    attend(
        torch.nn.Module(),
        states,
        states,
        states,
        None,
        sinks=None,
        output_attentions=False,
        sliding_window=4,
    )


@pytest.mark.parametrize("explicit", [False, True], ids=["sdpa", "explicit"])
@pytest.mark.parametrize("family", FAMILIES)
def test_gate_one_changes_nothing_and_gate_zero_does(family: str, explicit: bool) -> None:
    model, discovery, inputs = ready(family)
    with capture(model, discovery, explicit=explicit):
        idle = output(model, inputs)
    ones = {site: torch.ones(discovery.heads.count(site)) for site in discovery.heads.sites}
    with capture(model, discovery, gates=ones, explicit=explicit):
        assert torch.equal(output(model, inputs), idle)
    for kind, layer, head in discovery.heads:
        shut = torch.ones(discovery.heads.count(Site(kind, layer)))
        shut[head] = 0
        with capture(model, discovery, gates={Site(kind, layer): shut}, explicit=explicit):
            assert (output(model, inputs) - idle).abs().max() > 1e-4, (kind, layer, head)


@pytest.mark.parametrize("family", ["marian", "t5", "bert", "llama", "gemma2", "gpt_oss"])
def test_gate_zero_is_an_output_of_zeros(family: str) -> None:
    model, discovery, inputs = ready(family)
    site = discovery.heads.sites[-1]

    def silenced(seen: AttentionCall) -> Tensor:
        return seen.output * torch.tensor([1.0, 0.0, 1.0, 1.0])[:, None]

    with capture(model, discovery, gates={site: torch.tensor([1, 0, 1, 1])}):
        gated = output(model, inputs)
    with capture(model, discovery, replace={site: silenced}):
        assert torch.equal(output(model, inputs), gated)


@pytest.mark.parametrize("factory", ["tiny_marian", "tiny_m2m100"])
def test_gates_per_example_follow_beam_search(factory: str, request: pytest.FixtureRequest) -> None:
    build: Callable[[], MarianMTModel | M2M100ForConditionalGeneration] = request.getfixturevalue(
        factory
    )
    model = build()
    discovery, ids = discover(model), batch(model)["input_ids"][:, :6].clamp(min=4)
    generator = torch.Generator().manual_seed(0)
    gates = {
        site: torch.randint(0, 2, (3, 4), generator=generator).float()
        for site in discovery.heads.sites
    }
    search = {"num_beams": 4, "max_new_tokens": 12, "do_sample": False, "pad_token_id": 0}
    with torch.no_grad(), capture(model, discovery, gates=gates):
        together = model.generate(ids, **search)
    written = []
    for i in range(3):
        with (
            torch.no_grad(),
            capture(model, discovery, gates={site: gate[i] for site, gate in gates.items()}),
        ):
            written.append(model.generate(ids[i : i + 1], **search)[0])
    for row, alone in zip(together, written, strict=True):
        assert row[: len(alone)].tolist() == alone.tolist()
        assert (row[len(alone) :] == 0).all()
    with torch.no_grad():
        assert model.generate(ids, **search).tolist() != together.tolist()


@pytest.mark.parametrize("shape", [(3,), (1,), (), (2, 4), (3, 1), (3, 4, 1)])
def test_a_gate_of_another_shape_is_refused(shape: tuple[int, ...]) -> None:
    model = tiny("bert")
    discovery = discover(model)
    gates = {discovery.heads.sites[0]: torch.ones(shape)}
    with (
        pytest.raises(HeadwiseError, match="4 heads and a batch of 3"),
        capture(model, discovery, gates=gates),
    ):
        output(model, batch(model))


@pytest.mark.parametrize("family", ["marian", "t5", "bert", "llama", "gemma2"])
def test_gradients_of_gates_are_the_same_both_ways(family: str) -> None:
    model = tiny(family).double()
    discovery, inputs = discover(model), batch(model)
    gradients = []
    for by_hand in (False, True):
        gates = {
            site: torch.ones(4, dtype=torch.float64, requires_grad=True)
            for site in discovery.heads.sites
        }
        with capture(model, discovery, gates=gates, explicit=by_hand):
            real(model, inputs, model(**inputs)[0]).pow(2).mean().backward()
        gradients.append(torch.cat([gate.grad for gate in gates.values() if gate.grad is not None]))
    assert (gradients[0] != 0).all()
    torch.testing.assert_close(*gradients, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("family", ["marian", "t5", "gpt2", "llama", "gemma2"])
def test_a_cache_makes_no_difference(family: str) -> None:
    model = tiny(family)
    discovery, ids = discover(model), batch(model)["input_ids"][:1]
    with torch.no_grad():
        stock = model.generate(ids, max_new_tokens=8, do_sample=False)
        for options in ({"weights": True, "hook": lambda seen: None}, {"explicit": True}, {}):
            with capture(model, discovery, **options):
                assert (
                    model.generate(ids, max_new_tokens=8, do_sample=False).tolist()
                    == stock.tolist()
                )


def test_with_a_cache_the_last_query_is_the_last_token() -> None:
    """Two queries and five keys: nothing but the future is hidden."""
    queries, keys = torch.zeros(1, 2, 2, 4), torch.zeros(1, 2, 5, 4)
    output = queries.transpose(1, 2)
    call = AttentionCall(Site("decoder-self", 0), queries, keys, keys, None, None, output)
    there = torch.ones(1, 5, dtype=torch.bool)
    seen = call.visible(there[:, 3:], there)[0, 0]
    assert seen.tolist() == [[True, True, True, True, False], [True] * 5]
