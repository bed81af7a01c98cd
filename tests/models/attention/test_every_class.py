"""Classes of transformers in which hooks once changed a number without a word, and some that they must handle.

`make families` makes the same table for every class of transformers' auto mappings (every_class.py).
"""

from __future__ import annotations

import time
from typing import Any

import pytest
import torch
from transformers import BertConfig, BertModel

from headwise.core.errors import HeadwiseError
from headwise.core.heads import Kind, Site
from headwise.core.layout import HeadMask
from headwise.models.attention import removal
from headwise.models.attention.capture import keeping
from headwise.models.attention.discover import HALF_PRECISION, Float32, discover, probe
from headwise.models.attention.matrices import Matrices
from headwise.models.attention.removal import smaller_copy
from models.attention.every_class import examine, outputs
from models.attention.families import TWO_STACKS, build, tiny
from models.attention.shrink import SPECIAL, classes, make, padded
from syncs import syncs

FAMILY = classes()
REFUSED = {  # by name, a word of the reason
    "NllbMoeForConditionalGeneration": "something else",  # its router reads the mask, which has another form there
    "Inkling2Model": "'sinks'",
    "DeepseekV32ForCausalLM": "'indices'",
    "GlmMoeDsaForCausalLM": "'indices'",
    "HYV4ForCausalLM": "'indices'",
    "AXK2ForCausalLM": "'indices'",
    "DiffLlamaForCausalLM": "calls attention 2 times",
    "T5Gemma2ForConditionalGeneration": "to the target and to the source in one softmax",
}
HYBRID = {"Qwen3NextForCausalLM": (4,), "JambaForCausalLM": (4,), "Lfm2ForCausalLM": (4,)}
BY_LAYER: dict[str, dict[str, Any]] = {  # numbers that are not those of all layers
    "LagunaForCausalLM": {"num_attention_heads_per_layer": [4, 8]},
    "Gemma4ForCausalLM": {  # heads of two sizes, and keys that are the values, too
        "global_head_dim": 16,
        "attention_k_eq_v": True,
        "num_global_key_value_heads": 1,
    },
}


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.parametrize("allow_partial", [False, True])
def test_a_model_that_the_seam_would_change_is_refused(name: str, allow_partial: bool) -> None:
    if name not in FAMILY:
        pytest.skip(f"this version of transformers has no {name}")
    model = make(name, FAMILY[name])
    implementation = model.config._attn_implementation
    with pytest.raises(HeadwiseError, match=REFUSED[name]):
        discover(model, allow_partial)
    assert model.config._attn_implementation == implementation


def test_what_partial_discovery_admits_equals_stock() -> None:
    name = "BigBirdPegasusForConditionalGeneration"
    model = make(name, FAMILY[name])
    with pytest.raises(HeadwiseError, match="something else"):
        discover(model, allow_partial=True)


@pytest.mark.parametrize("name", HYBRID)
def test_a_hybrid_model_declares_its_attention_layers(name: str) -> None:
    assert discover(make(name, FAMILY[name])).heads.query == {"decoder-self": HYBRID[name]}


@pytest.mark.parametrize("name", ["BertForSequenceClassification", "MobileBertModel", *HYBRID])
def test_a_class_keeps_the_three_promises(name: str) -> None:
    assert examine(name, FAMILY[name])[0] == "fine"


@pytest.mark.parametrize("name", BY_LAYER)
def test_layers_with_numbers_of_their_own_keep_the_promises(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if name not in FAMILY:
        pytest.skip(f"this version of transformers has no {name}")
    monkeypatch.setitem(SPECIAL, FAMILY[name], BY_LAYER[name])
    assert examine(name, FAMILY[name])[0] == "fine"


def test_layers_that_take_the_keys_of_an_earlier_one_are_only_masked() -> None:
    name = "Gemma3nForCausalLM"
    if name not in FAMILY:
        pytest.skip(f"this version of transformers has no {name}")
    verdict, reason = examine(name, FAMILY[name])
    assert verdict == "masked only"
    assert "layers.2.self_attn" in reason
    assert "keys and values are those of an earlier layer. They can be masked." in reason


def test_the_decoder_of_an_encoder_decoder_declares_its_own_layers() -> None:
    sizes = {**TWO_STACKS, "encoder_layers": 6, "encoder_attention_heads": 2}
    assert discover(build("MarianForCausalLM", **sizes)).heads.query == {"decoder-self": (4, 4)}


def test_whisper_hears_a_recording() -> None:
    model = build(
        "WhisperForConditionalGeneration", **TWO_STACKS, max_source_positions=16, num_mel_bins=8
    )
    discovery = discover(model)
    kinds: tuple[Kind, ...] = ("encoder-self", "decoder-self", "cross")
    assert discovery.heads.query == dict.fromkeys(kinds, (4, 4))
    mask = HeadMask.full(discovery.heads).without(list(discovery.heads)[::3])
    with keeping(model, discovery, mask):
        expected = probe(model)
    torch.testing.assert_close(
        probe(smaller_copy(model, discovery, mask)), expected, rtol=0, atol=1e-5
    )


@pytest.mark.parametrize("dtype", HALF_PRECISION)
def test_a_model_of_half_precision_is_confirmed_in_float32(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A mistake of two percent in the weights is noticed, and a right cut passes."""
    model = tiny("marian").to(dtype)
    discovery = discover(model)
    mask = HeadMask.full(discovery.heads).without(list(discovery.heads)[::3])
    smaller_copy(model, discovery, mask)
    assert {parameter.dtype for parameter in model.parameters()} == {dtype}

    usual = removal.cut_layer

    def slightly_wrong(modules: Any, layer: Matrices, site: Site, kept: list[int]) -> None:
        usual(modules, layer, site, kept)
        if kept:
            layer.out.weight.data *= 1.02

    monkeypatch.setattr(removal, "cut_layer", slightly_wrong)
    with pytest.raises(HeadwiseError, match="something else"):
        smaller_copy(model, discovery, mask)


def test_computing_in_float32_is_what_a_float32_copy_does() -> None:
    for family in ("marian", "t5", "gpt2", "gemma2", "gpt_oss", "modernbert"):
        model = tiny(family).bfloat16()
        copy = tiny(family).bfloat16().float()
        inputs = padded(model)
        with Float32():
            got = outputs(model, inputs)
        torch.testing.assert_close(got, outputs(copy, inputs), rtol=0, atol=1e-6)


def test_discovery_of_a_model_of_twelve_layers_is_quick() -> None:
    model = BertModel(BertConfig()).eval()
    discover(model)
    start = time.process_time()
    discover(model)
    assert time.process_time() - start < 3  # 0.2 s on an idle core


@pytest.mark.parametrize("family", ["marian", "t5", "modernbert", "gemma2"])
def test_no_head_waits_for_the_device(family: str) -> None:
    """Masked, read with weights and cut: nothing in the attention interface needs a number from the device."""
    model = tiny(family)
    discovery = discover(model)
    mask = HeadMask.full(discovery.heads).without(list(discovery.heads)[::3])
    smaller, inputs = smaller_copy(model, discovery, mask), padded(model)
    with keeping(model, discovery, mask), syncs() as seen:
        outputs(model, inputs)
        outputs(smaller, inputs)
    assert not [where for where in seen if not where.endswith("elsewhere")]
