"""The loss without the logits: values and gradients against torch's own cross-entropy."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, linear
from transformers import BertConfig, EncoderDecoderConfig, EncoderDecoderModel, PreTrainedModel

from headwise.core.errors import HeadwiseError
from headwise.models.token_rows import IGNORED
from headwise.models.training.loss import CHUNK_ROWS, FusedCrossEntropy, loss_forward, summed_loss
from models.attention.families import GROUPED, STACK, T5, TWO_STACKS, batch, build
from syncs import syncs

SIZE, WORDS = 12, 37
WITHIN = {
    torch.float64: (1e-10, 1e-11),
    torch.float32: (1e-4, 4e-5),
}  # relative, absolute, of gradients


def case(
    rows: int, length: int, dtype: torch.dtype = torch.float64, seed: int = 0
) -> tuple[Tensor, ...]:
    """States B T M, weight V M, bias 1 V, and labels B T of which about a third are filling."""
    generator = torch.Generator().manual_seed(seed)
    states = torch.randn(rows, length, SIZE, generator=generator, dtype=torch.float64).to(dtype)
    weight = torch.randn(WORDS, SIZE, generator=generator, dtype=torch.float64).to(dtype)
    bias = torch.randn(1, WORDS, generator=generator, dtype=torch.float64).to(dtype)
    labels = torch.randint(0, WORDS, (rows, length), generator=generator)
    labels[torch.rand(rows, length, generator=generator) < 0.3] = IGNORED
    return states.requires_grad_(), weight.requires_grad_(), bias, labels


def stock(
    states: Tensor, weight: Tensor, bias: Tensor | None, labels: Tensor, smoothing: float
) -> Tensor:
    logits = linear(states, weight, None if bias is None else bias[0])
    return cross_entropy(
        logits.flatten(0, 1),
        labels.flatten(),
        ignore_index=IGNORED,
        reduction="sum",
        label_smoothing=smoothing,
    )


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.7])
@pytest.mark.parametrize("rows", [1, 3 * CHUNK_ROWS // 20])  # one chunk, and several with a rest
@pytest.mark.parametrize("biased", [True, False])
def test_value_and_gradients_are_torchs(
    dtype: torch.dtype, smoothing: float, rows: int, biased: bool
) -> None:
    states, weight, bias, labels = case(rows, 20, dtype)
    expected, found = (
        loss(states, weight, bias if biased else None, labels, smoothing)
        for loss in (stock, summed_loss)
    )
    assert found.dtype == dtype and found.shape == ()
    torch.testing.assert_close(
        found, expected, rtol=1e-12 if dtype == torch.float64 else 1e-5, atol=0
    )
    for ours, theirs in zip(
        torch.autograd.grad(3 * found, (states, weight)),
        torch.autograd.grad(3 * expected, (states, weight)),
        strict=True,
    ):
        assert ours.dtype == dtype
        torch.testing.assert_close(ours, theirs, rtol=WITHIN[dtype][0], atol=WITHIN[dtype][1])


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 40), st.integers(1, 40), st.floats(0, 0.9), st.integers(0, 1000))
def test_any_shape(rows: int, length: int, smoothing: float, seed: int) -> None:
    states, weight, bias, labels = case(rows, length, seed=seed)
    expected, found = (
        loss(states, weight, bias, labels, smoothing) for loss in (stock, summed_loss)
    )
    torch.testing.assert_close(found, expected, rtol=1e-11, atol=1e-11)
    grads = [torch.autograd.grad(loss, states)[0] for loss in (found, expected)]
    torch.testing.assert_close(*grads, rtol=1e-10, atol=1e-11)


@pytest.mark.parametrize("frozen", [True, False])
def test_of_a_large_vocabulary_few_positions_are_projected_at_once(
    monkeypatch: pytest.MonkeyPatch, frozen: bool
) -> None:
    """The last few are filled up; frozen weights get no gradient, and that of the states is the same."""
    monkeypatch.setattr("headwise.models.training.loss.CPU_LOGITS", 4 * WORDS)
    states, weight, bias, labels = case(3, 9)
    expected = torch.autograd.grad(stock(states, weight, bias, labels, 0.0), states)[0]
    most = 0

    stock_logsumexp = torch.logsumexp

    def logsumexp(logits: Tensor, *rest: Any, **more: Any) -> Tensor:
        nonlocal most
        most = max(most, len(logits))
        return stock_logsumexp(logits, *rest, **more)

    monkeypatch.setattr(torch, "logsumexp", logsumexp)
    found = summed_loss(states, weight.detach() if frozen else weight, bias, labels, 0.0)
    grad = torch.autograd.grad(found, states)[0]
    torch.testing.assert_close(grad, expected, rtol=1e-11, atol=1e-11)
    assert most == 4


def test_ignored_positions_have_no_gradient_and_change_nothing() -> None:
    states, weight, bias, labels = case(6, 20)
    found = summed_loss(states, weight, bias, labels, 0.1)
    grad = torch.autograd.grad(found, states)[0]
    filling = labels == IGNORED
    assert bool((grad[filling] == 0).all()) and bool((grad[~filling] != 0).any(-1).all())
    with torch.no_grad():
        states[filling] = 1e6
    assert torch.equal(summed_loss(states, weight, bias, labels, 0.1), found)


def test_a_batch_of_filling_alone_costs_nothing() -> None:
    states, weight, bias, labels = case(2, 5)
    found = summed_loss(states, weight, bias, torch.full_like(labels, IGNORED), 0.1)
    assert found.item() == 0
    assert all(bool((grad == 0).all()) for grad in torch.autograd.grad(found, (states, weight)))


def test_a_frozen_output_layer_gets_no_gradient() -> None:
    states, weight, bias, labels = case(30, 20)
    expected = torch.autograd.grad(summed_loss(states, weight, bias, labels, 0.1), states)[0]
    frozen = weight.detach()
    loss = summed_loss(states, frozen, bias, labels, 0.1)
    assert torch.equal(torch.autograd.grad(loss, states)[0], expected) and frozen.grad is None


def test_the_sentence_and_the_whole_batch_agree() -> None:
    """Summed, so that batches and processes add up."""
    states, weight, bias, labels = case(5, 20)
    parts = [summed_loss(states[i : i + 1], weight, bias, labels[i : i + 1], 0.1) for i in range(5)]
    torch.testing.assert_close(
        torch.stack(parts).sum(), summed_loss(states, weight, bias, labels, 0.1)
    )


def test_without_gradients_the_value_is_the_same_and_none_are_taken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Gradients cost twice the loss itself: a dev loss must not pay for them."""
    states, weight, bias, labels = case(30, 20)
    expected = summed_loss(states, weight, bias, labels, 0.1)
    monkeypatch.setattr(torch.Tensor, "scatter_add_", None)  # only the gradient needs it
    with torch.no_grad():
        assert torch.equal(summed_loss(states, weight, bias, labels, 0.1), expected)


def test_huge_logits_stay_finite() -> None:
    states, weight, bias, labels = case(4, 10, torch.float32)
    loss = summed_loss(states * 1e4, weight, bias, labels, 0.1)
    assert bool(loss.isfinite()) and bool(torch.autograd.grad(loss, states)[0].isfinite().all())


def test_bfloat16_under_autocast_is_close() -> None:
    states, weight, bias, labels = case(3 * CHUNK_ROWS // 20, 20, torch.float32)
    expected = stock(states, weight, bias, labels, 0.1)
    exact = torch.autograd.grad(expected, (states, weight))
    with torch.autocast("cpu", torch.bfloat16):
        found = summed_loss(states, weight, bias, labels, 0.1)
    assert found.dtype == torch.float32
    assert found.item() != summed_loss(states, weight, bias, labels, 0.1).item(), (
        "the product is in bfloat16"
    )
    torch.testing.assert_close(found, expected, rtol=2e-3, atol=0)
    for ours, theirs in zip(torch.autograd.grad(found, (states, weight)), exact, strict=True):
        assert ours.dtype == torch.float32
        assert float((ours - theirs).norm() / theirs.norm()) < 0.01


def test_a_second_derivative_is_refused_not_wrong() -> None:
    states, weight, bias, labels = case(1, 5)
    loss = summed_loss(states, weight, bias, labels, 0.1)
    grad = torch.autograd.grad(loss**2, states, create_graph=True)[0]
    with pytest.raises(RuntimeError, match="differentiate twice"):
        grad.sum().backward()


@pytest.mark.parametrize("cap", [None, 2.0])
@pytest.mark.parametrize("size", [512, 10_000])
def test_elsewhere_than_on_cpu_nothing_waits(cap: float | None, size: int) -> None:
    """Padding is projected as well, in chunks of any size; nothing is asked back from the device."""
    states, weight, bias, labels = case(33, 20)
    bias = bias.flatten().requires_grad_()
    logits = linear(states, weight, bias).flatten(0, 1)
    logits = logits if cap is None else cap * torch.tanh(logits / cap)
    expected = cross_entropy(
        logits, labels.flatten(), ignore_index=IGNORED, reduction="sum", label_smoothing=0.1
    )
    with syncs() as seen:
        flat, gold = states.flatten(0, 1), labels.flatten()
        found = FusedCrossEntropy.apply(flat, weight, bias, gold, 0.1, cap, size)  # type: ignore[no-untyped-call]
    assert seen == []
    torch.testing.assert_close(found, expected)
    for ours, theirs in zip(
        torch.autograd.grad(found, (states, weight, bias)),
        torch.autograd.grad(expected, (states, weight, bias)),
        strict=True,
    ):
        torch.testing.assert_close(ours, theirs)


GEMMA = {**GROUPED, "query_pre_attn_scalar": 8, "sliding_window": 8, "final_logit_softcapping": 0.5}


def pair_of_berts() -> PreTrainedModel:
    torch.manual_seed(0)
    decoder = BertConfig(**STACK, is_decoder=True, add_cross_attention=True)
    made = EncoderDecoderConfig.from_encoder_decoder_configs(BertConfig(**STACK), decoder)
    model = EncoderDecoderModel(made).eval()
    nn.init.normal_(model.get_output_embeddings().bias)
    return model


def marian() -> PreTrainedModel:
    model = build("MarianMTModel", **TWO_STACKS)
    model.final_logits_bias.normal_(generator=torch.Generator().manual_seed(0))
    return model


FAMILIES: dict[str, Any] = {
    "marian": marian,
    "m2m100": lambda: build("M2M100ForConditionalGeneration", **TWO_STACKS),
    "t5-scaled": lambda: build("T5ForConditionalGeneration", **T5, scale_decoder_outputs=True),
    "t5-untied": lambda: build(
        "T5ForConditionalGeneration", **T5, scale_decoder_outputs=False, tie_word_embeddings=False
    ),
    "umt5": lambda: build("UMT5ForConditionalGeneration", **T5),
    "switch": lambda: build(
        "SwitchTransformersForConditionalGeneration", **T5, num_experts=2, expert_capacity=64
    ),
    "t5gemma": lambda: build(
        "T5GemmaForConditionalGeneration",
        encoder=dict(GEMMA),
        decoder=dict(GEMMA),
        vocab_size=50,
        pad_token_id=0,
    ),
    "pair-of-berts": pair_of_berts,
}


def asked(model: PreTrainedModel) -> tuple[dict[str, Tensor], Tensor]:
    labels = torch.randint(0, 50, (3, 7), generator=torch.Generator().manual_seed(2))
    labels[1, 5:] = IGNORED
    return batch(model), labels


@pytest.mark.parametrize("family", FAMILIES)
def test_loss_and_gradients_are_those_of_the_model_s_logits(family: str) -> None:
    model = FAMILIES[family]()
    inputs, labels = asked(model)
    logits = model(**inputs, use_cache=False).logits.flatten(0, 1)
    expected = cross_entropy(logits, labels.flatten(), reduction="sum", label_smoothing=0.1)
    expected.backward()
    gradients = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()
    with loss_forward(model):
        found = model(**inputs, labels=labels, smoothing=0.1)
        found.backward()
    torch.testing.assert_close(found, expected)
    for name, gradient in gradients.items():
        torch.testing.assert_close(
            model.get_parameter(name).grad, gradient, rtol=1e-3, atol=1e-4, msg=name
        )


@pytest.mark.parametrize(
    "change",
    [lambda logits: logits * 1.1, lambda logits: logits.sin(), lambda logits: logits * torch.nan],
)
def test_a_model_that_does_more_to_its_logits_is_refused(change: Any) -> None:
    model = marian()
    forward = model.forward

    def other(**inputs: Any) -> Any:
        out = forward(**inputs)
        out.logits = change(out.logits)
        return out

    model.forward = other
    with (
        pytest.raises(HeadwiseError, match="MarianMTModel cannot be trained: its loss is"),
        loss_forward(model),
    ):
        pass
    assert vars(model)["forward"] is other


def test_a_model_without_an_output_layer_is_refused() -> None:
    for name in ("BartModel", "BartForQuestionAnswering"):
        with (
            pytest.raises(HeadwiseError, match=f"one output layer: {name} does neither"),
            loss_forward(build(name, **TWO_STACKS)),
        ):
            pass


def test_a_forward_that_was_on_the_instance_is_used_and_stays() -> None:
    """Accelerate puts its hooks there."""
    model, calls = marian(), list[str]()
    stock = model.forward

    def hooked(**inputs: Any) -> Any:
        calls.append("hook")
        return stock(**inputs)

    model.forward = hooked
    inputs, labels = asked(model)
    with torch.no_grad(), loss_forward(model):
        calls.clear()
        model(**inputs, labels=labels, smoothing=0.0)
    assert calls == ["hook"] and vars(model)["forward"] is hooked
    del model.forward
    with loss_forward(model):
        pass
    assert "forward" not in vars(model)


def test_the_comparison_draws_no_random_number() -> None:
    model = marian().train()
    before = torch.get_rng_state()
    with loss_forward(model):
        assert torch.equal(torch.get_rng_state(), before) and model.training
