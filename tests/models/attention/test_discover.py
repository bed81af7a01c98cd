"""Discovery: every family's heads by kind, and a clear word on those that cannot be seen."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
import transformers

import headwise as hw
from headwise.core.errors import HeadsMissing, HeadwiseError
from headwise.core.heads import Kind, Site
from headwise.core.layout import HeadMask
from headwise.models.attention.capture import capture
from headwise.models.attention.discover import discover
from headwise.models.attention.kernel import AttentionCall
from headwise.models.attention.removal import smaller_copy
from headwise.models.model import Model
from models.attention.families import (
    CAUSAL,
    FAMILIES,
    SEQUENCE_TO_SEQUENCE,
    STACK,
    T5,
    batch,
    build,
    cut,
    output,
    tiny,
)
from refusals import refuses

EYES = {
    "hidden_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "image_size": 28,
    "patch_size": 14,
}
EARS = {
    "hidden_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 32,
}
OUTSIDE: dict[
    str, dict[str, Any]
] = {  # models whose attention is computed in ways that headwise does not see
    "XLNetModel": {"vocab_size": 50, "d_model": 32, "n_layer": 2, "n_head": 4, "d_inner": 64},
    "FunnelModel": {
        "vocab_size": 50,
        "d_model": 32,
        "n_head": 4,
        "d_head": 8,
        "d_inner": 64,
        "block_sizes": [1, 1],
    },
}


@pytest.mark.parametrize("family", FAMILIES)
def test_every_head_is_found(family: str) -> None:
    discovery = discover(tiny(family))
    kinds: tuple[Kind, ...] = ("decoder-self",) if family in CAUSAL else ("encoder-self",)
    if family in SEQUENCE_TO_SEQUENCE:
        kinds = ("encoder-self", "decoder-self", "cross")
    assert discovery.heads.query == dict.fromkeys(kinds, (4, 4))
    grouped = family in CAUSAL and family != "gpt2"
    assert discovery.heads.key_value == dict.fromkeys(kinds, (2, 2) if grouped else (4, 4))
    assert discovery.head_size == 8
    assert set(discovery.modules) == set(discovery.names) == set(discovery.heads.sites)


def test_sites_are_named_by_the_modules_that_serve_them() -> None:
    model = tiny("marian")
    discovery = discover(model)
    assert discovery.names[Site("encoder-self", 1)] == "model.encoder.layers.1.self_attn"
    assert discovery.names[Site("decoder-self", 0)] == "model.decoder.layers.0.self_attn"
    assert discovery.names[Site("cross", 1)] == "model.decoder.layers.1.encoder_attn"
    assert all(
        model.get_submodule(name) is discovery.modules[site]
        for site, name in discovery.names.items()
    )


def test_stacks_of_different_depth_and_width() -> None:
    discovery = discover(
        tiny("marian", encoder_layers=3, decoder_layers=1, decoder_attention_heads=2)
    )
    assert discovery.heads.query == {"encoder-self": (4, 4, 4), "decoder-self": (2,), "cross": (2,)}


@pytest.mark.parametrize("window", [2, 4, 128])
def test_a_narrow_window_is_not_taken_for_a_hidden_future(window: int) -> None:
    assert discover(tiny("modernbert", local_attention=window)).heads.kinds == ("encoder-self",)


def test_a_causal_model_without_a_mask_of_its_own_is_a_decoder() -> None:
    assert discover(build("CLIPTextModel", **STACK)).heads.kinds == ("decoder-self",)


def test_a_bert_that_is_a_decoder_and_one_that_is_none() -> None:
    """One class, and the answer is in what it does."""
    for decodes, kind in ((True, "decoder-self"), (False, "encoder-self")):
        config = {**STACK, "is_decoder": decodes}
        assert discover(build("BertLMHeadModel", **config)).heads.kinds == (kind,)


def test_a_mask_of_minus_ten_thousand_hides() -> None:
    """OpenAI GPT adds it to the scores: the model predicts the next token, and sees none of the later ones."""
    model = hw.Model(tiny("openai"), None, "openai")
    assert model.heads.kinds == ("decoder-self",) and model.task.output == "causal-lm"
    calls: list[AttentionCall] = []
    inputs = batch(model.hf)
    with capture(model.hf, model.discovery, weights=True, hook=calls.append):
        output(model.hf, inputs)
    tokens = inputs["attention_mask"].bool()
    future = torch.ones(9, 9, dtype=torch.bool).triu(1)
    for call in calls:
        visible = call.visible(tokens, tokens)
        assert not visible[..., future].any()
        assert visible[0, 0].equal(~future)


def test_an_encoder_of_images_has_no_last_token() -> None:
    assert discover(build("ViTModel", **EYES)).heads.kinds == ("encoder-self",)


def test_a_language_model_with_eyes_shows_the_heads_of_its_text() -> None:
    text = {**STACK, "num_key_value_heads": 2, "head_dim": 8}
    discovery = discover(
        build("Gemma3ForConditionalGeneration", text_config=text, vision_config=EYES)
    )
    assert discovery.heads.query == {"decoder-self": (4, 4)}


@pytest.mark.parametrize("name", OUTSIDE)
def test_a_model_outside_the_seam_is_refused_by_name_and_left_alone(name: str) -> None:
    model = build(name, **OUTSIDE[name])
    implementation, inputs = model.config._attn_implementation, batch(model)
    before = output(model, inputs)
    with pytest.raises(HeadwiseError, match=rf"^{name} shows no attention head: .*registry.*\.$"):
        discover(model)
    with pytest.raises(HeadwiseError, match=name):
        discover(model, allow_partial=True)
    assert model.config._attn_implementation == implementation
    assert not any("headwise" in module.__dict__ for module in model.modules())
    assert torch.equal(output(model, inputs), before)


def test_a_partial_map_is_refused_with_what_was_not_seen() -> None:
    with pytest.raises(HeadsMissing) as refusal:
        discover(build("LongT5ForConditionalGeneration", **T5))
    message = str(refusal.value)
    assert "LongT5ForConditionalGeneration declares 24 heads, the probe saw 16." in message
    unseen = [
        f"encoder.block.{layer}.layer.0.LocalSelfAttention (LongT5LocalAttention)"
        for layer in range(2)
    ]
    assert f"Not seen: {', '.join(unseen)}: " in message
    assert message.endswith("Pass allow_partial=True to work on the 16 that were seen.")


def test_a_partial_map_can_be_asked_for_and_works() -> None:
    model = build("LongT5ForConditionalGeneration", **T5)
    discovery = discover(model, allow_partial=True)
    assert discovery.heads.query == {"decoder-self": (4, 4), "cross": (4, 4)}
    inputs = batch(model)
    before = output(model, inputs)
    with capture(model, discovery, gates={Site("cross", 1): torch.tensor([0.0, 1, 1, 1])}):
        assert not torch.equal(output(model, inputs), before)


def test_a_long_list_of_unseen_layers_is_cut_short() -> None:
    with pytest.raises(HeadsMissing) as refusal:
        discover(build("LongT5ForConditionalGeneration", **{**T5, "num_layers": 9}))
    assert len(re.findall("LongT5LocalAttention", str(refusal.value))) == 6 and " …: they" in str(
        refusal.value
    )


def test_without_a_declared_number_unseen_attention_modules_tell() -> None:
    model = tiny("bert")
    model.config.num_attention_heads = (
        0  # a configuration that names this number in a way of its own
    )
    assert discover(model).heads.total == 8

    class StrangeAttention(torch.nn.Module):
        pass

    model.encoder.layer[1].strange = StrangeAttention()
    with pytest.raises(HeadsMissing, match=re.escape("encoder.layer.1.strange (StrangeAttention)")):
        discover(model)


@pytest.mark.parametrize(("name", "sizes"), [("Wav2Vec2Model", EARS)])
def test_a_model_that_does_not_read_text_is_refused_in_one_sentence(
    name: str, sizes: dict[str, Any]
) -> None:
    model = build(name, **sizes)
    with pytest.raises(
        HeadwiseError,
        match=rf"^{name} reads the waves of a sound.*: headwise works on models .*\.$",
    ):
        discover(model)
    assert model.config._attn_implementation == "sdpa"


def test_a_pruned_encoder_whose_heads_look_back_stays_an_encoder() -> None:
    """As MiniLM with one head left, which looks at the token before; here one whose output is always the same."""
    model = tiny("bert")
    with torch.no_grad():
        model.encoder.layer[1].attention.self.value.weight.zero_()
    whole = Model(model, None, "bert")
    removed = [head for head in whole.heads if head.layer == 0]
    small = whole.without(removed)
    assert small.heads.query == {"encoder-self": (0, 4)}


def test_a_cut_model_promises_its_layout() -> None:
    model = tiny("bert")
    discovery = discover(model)
    smaller = cut(model, discovery, list(discovery.heads)[:5])
    assert discover(smaller).heads.query == {"encoder-self": (0, 3)}
    smaller.config.headwise_layout["kept"]["encoder-self"][0] = [1]
    with pytest.raises(HeadsMissing, match="declares 4 heads, the probe saw 3"):
        discover(smaller)


def test_a_model_with_no_head_left_is_still_a_model() -> None:
    model = tiny("marian")
    discovery = discover(model)
    smaller = smaller_copy(model, discovery, HeadMask(discovery.heads, frozenset()))
    assert discover(smaller).heads.query == {
        "encoder-self": (0, 0),
        "decoder-self": (0, 0),
        "cross": (0, 0),
    }


@pytest.mark.parametrize("words", [1, 2, 3, 5, 8])
def test_a_tiny_vocabulary_is_enough_for_the_probe(words: int) -> None:
    sizes = {
        **STACK,
        "vocab_size": words,
        "pad_token_id": None,
        "bos_token_id": None,
        "eos_token_id": None,
    }
    assert discover(build("BertModel", **sizes)).heads.total == 8


def test_a_model_in_training_is_probed_without_dropout_or_gradient() -> None:
    model = tiny("bert", hidden_dropout_prob=0.9).train()
    torch.manual_seed(3)
    before = torch.random.get_rng_state()
    discover(model)
    assert torch.equal(torch.random.get_rng_state(), before)
    assert model.training and all(parameter.grad is None for parameter in model.parameters())


def test_layers_that_slide_and_layers_that_see_everything_have_names() -> None:
    kinds = ["sliding_attention", "full_attention", "sliding_attention"]
    mixed = tiny("gemma2", num_hidden_layers=3, layer_types=kinds, sliding_window=8)
    names = ["sliding 8", "full", "sliding 8"]
    assert discover(mixed).window_names() == {"decoder-self": names}
    alike = tiny("gemma2", num_hidden_layers=2, layer_types=kinds[:1] * 2, sliding_window=8)
    assert discover(alike).window_names() == {} == discover(tiny("gpt2")).window_names()


class Unmasked(transformers.BertForMaskedLM):
    """A model that reads its padding."""

    def forward(self, input_ids: Any = None, attention_mask: Any = None, **named: Any) -> Any:
        return super().forward(input_ids=input_ids, **named)


@pytest.mark.parametrize("family", ["bert", "gpt2", "marian", "mobilebert", "unmasked"])
def test_a_model_that_reads_its_padding_is_said(family: str, recwarn: Any) -> None:
    """Its numbers depend on what stands beside a sentence. MobileBERT mixes each token with its neighbours."""
    hf: Any
    if family == "mobilebert":
        shape = {**STACK, "embedding_size": 32, "intra_bottleneck_size": 32, "pad_token_id": 0}
        hf = build("MobileBertForMaskedLM", **shape)
    elif family == "unmasked":
        hf = Unmasked(transformers.BertConfig(**{**STACK, "pad_token_id": 0})).eval()
    else:
        hf = tiny(family, pad_token_id=0)
    discover(hf)
    said = [str(each.message) for each in recwarn if "answers otherwise" in str(each.message)]
    assert len(said) == (family in ("mobilebert", "unmasked"))
    if said:
        ids = torch.arange(4, 13).repeat(2, 1)  # as the probe reads them
        ids[0, 7:] = ids[1, :3] = 0
        with torch.no_grad():
            beside = hf(input_ids=ids, attention_mask=(ids > 0).long()).logits[0, :7]
            alone = hf(input_ids=ids[:1, :7]).logits[0]
        assert f"(by {(beside - alone).abs().max():.2g}," in said[0]


def test_several_choices_for_a_question_are_refused_with_that_reason() -> None:
    model = build("BertForMultipleChoice", **STACK)
    refuses(
        lambda: discover(model), "BertForMultipleChoice reads several choices for each question"
    )
