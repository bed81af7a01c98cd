"""The loss without logits is that of the model's own logits, for every family, or it is refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from transformers import BertConfig, EncoderDecoderConfig, EncoderDecoderModel, PreTrainedModel

from attention.families import GROUPED, STACK, T5, TWO_STACKS, batch, build
from headwise.errors import HeadwiseError
from headwise.training.loss_forward import loss_forward
from headwise.training.token_batches import IGNORED

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
            pytest.raises(HeadwiseError, match=f"one output layer: {name} is none"),
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
