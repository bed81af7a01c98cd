"""Models whose layers have equally many heads are ordinary checkpoints: transformers loads them by itself."""

from __future__ import annotations

import json
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import torch

from headwise.core.heads import Head
from headwise.core.layout import HeadMask
from headwise.importance.untrained import untrained
from headwise.models.loading import load
from headwise.models.model import Model
from models.attention.every_family import outputs
from models.attention.families import TWO_STACKS, build
from models.attention.shrink import make, padded

CLASSES = {
    "gemma2": "Gemma2ForCausalLM",
    "gemma3_text": "Gemma3ForCausalLM",
    "llama": "LlamaForCausalLM",
    "phi3": "Phi3ForCausalLM",
    "smollm3": "SmolLM3ForCausalLM",
}
# Loads every folder as anyone would, and compares the logits with those that are in it.
WITHOUT_HEADWISE = """
import sys, torch, transformers
from pathlib import Path
for folder in sorted(Path(sys.argv[1]).iterdir()):
    inputs, expected, name = torch.load(folder / "expected.pt")
    model, info = getattr(transformers, name).from_pretrained(folder, output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"], folder
    with torch.no_grad():
        logits = model.eval()(**inputs).logits[inputs["attention_mask"].bool()]
    assert torch.allclose(logits, expected, atol=1e-5), folder
    print(folder.name, model.config.num_attention_heads, model.config.num_key_value_heads)
assert "headwise" not in sys.modules
"""


def model_of(family: str) -> Model:
    """2 layers of 4 heads."""
    return Model(make(CLASSES[family], family), None, family)


def halved(model: Model, groups: bool = False) -> Model:
    """The model with half of its heads, others in each layer. groups: whole key/value groups of two heads."""
    kept = []
    for head in model.heads:
        pair = (head.head // 2 if groups else head.head) % 2
        if pair == head.layer % 2:
            kept.append(head)
    return model.only(HeadMask(model.heads, frozenset(kept)))


def configuration(folder: Path) -> dict[str, object]:
    content: dict[str, object] = json.loads((folder / "config.json").read_text())
    return content


def test_transformers_loads_equal_layers_without_headwise(tmp_path: Path) -> None:
    """In a process of its own, with equal logits; whole key/value groups in one of them."""
    for family, name in CLASSES.items():
        small = halved(model_of(family), groups=family == "gemma2")
        inputs = padded(small.hf)
        expected = outputs(small.hf, inputs)
        assert small.is_stock, family
        small.save(tmp_path / family)
        torch.save((inputs, expected, name), tmp_path / family / "expected.pt")
        assert not (tmp_path / family / "README.md").exists()

    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_HEADWISE, str(tmp_path)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-2000:]
    lines = done.stdout.splitlines()
    assert [line.split()[0] for line in lines] == sorted(CLASSES)
    assert "gemma2 2 1" in lines and "gemma3_text 2 2" in lines


def test_headwise_loads_them_with_the_numbers_of_the_first_model(tmp_path: Path) -> None:
    model = model_of("phi3")
    small = halved(model)
    again = load(small.save(tmp_path / "small"))
    assert again.is_stock and again.layout == small.layout
    assert again.heads == small.heads
    assert again.layout.heads == model.heads  # type: ignore[union-attr]


@pytest.mark.parametrize("left", [4, 3])
@pytest.mark.parametrize("name", ["MBartForCausalLM", "MarianForCausalLM"])
def test_a_decoder_alone_has_the_decoders_number(name: str, left: int, tmp_path: Path) -> None:
    """`num_attention_heads` of such a configuration is the encoder's, which is not there: here 4."""
    alone = {"is_decoder": True, "is_encoder_decoder": False, "decoder_attention_heads": 8}
    model = Model(build(name, **{**TWO_STACKS, **alone}), None, name)
    small = model.without([Head("decoder-self", at, n) for at in (0, 1) for n in range(left, 8)])
    again = load(small.save(tmp_path / "small"))
    assert again.heads == small.heads
    ids = torch.arange(4, 12)[None]
    torch.testing.assert_close(again.hf(ids).logits, small.hf(ids).logits)


def test_what_becomes_uneven_says_the_first_numbers_again(tmp_path: Path) -> None:
    model = model_of("phi3")
    once = load(halved(model).save(tmp_path / "once"))
    assert configuration(tmp_path / "once")["num_attention_heads"] == 2
    twice = once.without([Head("decoder-self", 0, 1)])
    again = load(twice.save(tmp_path / "twice"))
    assert configuration(tmp_path / "twice")["num_attention_heads"] == 4
    assert not again.is_stock and again.heads.query["decoder-self"] == (1, 2)
    inputs = padded(twice.hf)
    assert torch.equal(outputs(again.hf, inputs), outputs(twice.hf, inputs))


def test_copies_of_key_value_heads_are_still_known_after_loading(tmp_path: Path) -> None:
    """Two of four heads share a key/value head again once no other is left."""
    model = model_of("smollm3")
    kept = [Head("decoder-self", layer, head) for layer in (0, 1) for head in (0, 1, 2)]
    with warnings.catch_warnings(action="ignore"):  # the cache grows
        small = model.only(HeadMask(model.heads, frozenset(kept)), grow=True)
    assert small.heads.key_value["decoder-self"] == (3, 3) and small.is_stock
    again = load(small.save(tmp_path / "small"))
    for each in (small, again):
        fewer = each.without([Head("decoder-self", 0, 2)])
        assert fewer.heads.key_value["decoder-self"] == (1, 3)
        assert load(fewer.save(tmp_path / "fewer")).heads == fewer.heads


@pytest.mark.parametrize("family", ["bert", "gpt2", "t5"])
def test_families_that_compute_the_size_of_a_head_need_headwise(
    family: str, tmp_path: Path
) -> None:
    """They divide the width by the number of heads; T5's layers share one bias by position."""
    names = {"bert": "BertForMaskedLM", "gpt2": "GPT2LMHeadModel"}
    model = Model(make(names.get(family, "T5ForConditionalGeneration"), family), None, family)
    before = model.hf.config.to_dict()
    small = halved(model)
    after = small.hf.config.to_dict()
    after.pop("headwise_layout")
    assert not small.is_stock and before == after
    assert "from_pretrained" in (small.save(tmp_path / "small") / "README.md").read_text()
    assert load(tmp_path / "small").heads == small.heads


def test_a_number_that_transformers_refuses_stays_out_of_the_configuration(tmp_path: Path) -> None:
    """A Llama's width must be a multiple of its number of heads, although its head size is a number of its own."""
    model = model_of("llama")
    kept = frozenset(head for head in model.heads if head.head != 3)
    small = model.only(HeadMask(model.heads, kept))
    assert small.heads.query["decoder-self"] == (3, 3) and not small.is_stock
    assert load(small.save(tmp_path / "small")).heads == small.heads
    assert configuration(tmp_path / "small")["num_attention_heads"] == 4


def test_the_untrained_control_has_the_same_heads() -> None:
    small = halved(model_of("llama"))
    assert untrained(small).heads == small.heads
