"""What stands around a model, masks of old, and layers without heads: each is said with the way on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from torch.nn.utils import prune

import headwise as hw
from models.attention.families import STACK, build
from models.tasks.askers import IDS, asker, lines, pairs
from models.training.letters import letters
from refusals import refuses


def test_what_wraps_a_model() -> None:
    model = asker("bert")
    compiled = torch.compile(model.hf, backend="eager")
    adapted = get_peft_model(asker("llama").hf, LoraConfig(target_modules=["q_proj"]))
    parallel = torch.nn.DataParallel(model.hf)
    for given, words in (
        (compiled, "compiled._orig_mod … model.compile()"),
        (adapted, "merge_and_unload()"),
        (parallel, "DataParallel holds the model: give that itself (.module)"),
    ):
        refuses(lambda given=given: hw.Model(given, model.tokenizer), words)
        refuses(lambda given=given: hw.score(given, lines(4)), words)
        refuses(lambda given=given: hw.masked(given, ["L0H1"]).__enter__(), words)
    assert hw.Model(compiled._orig_mod, model.tokenizer).heads == model.heads
    assert hw.Model(adapted.merge_and_unload(), model.tokenizer).heads.total > 0


def test_a_model_with_parts_of_transformer_lens() -> None:
    """`TransformerBridge.boot_transformers(hf_model=model)` puts them into the model itself."""
    model = asker("gpt2")

    class Bridge(torch.nn.Module):
        """In place of an attention layer."""

        __module__ = "transformer_lens.model_bridge"

        def forward(self, states: Any, *_: Any, **__: Any) -> Any:
            return states, None

    for block in model.hf.transformer.h:
        block.attn = Bridge()
    for given in (model.hf, Bridge()):
        refuses(lambda given=given: hw.Model(given), "TransformerLens … a copy")


@pytest.mark.parametrize("name", ["head_mask", "decoder_head_mask", "cross_attn_head_mask"])
def test_masks_of_transformers_4_are_refused(name: str) -> None:
    model = asker("marian")
    batch = next(iter(model.task.batches(pairs(2))))
    inputs = {key: batch[key] for key in ("input_ids", "attention_mask", "decoder_input_ids")}
    mask = torch.ones(2, 4)
    for call in (model, model.generate):
        given: dict[str, Any] = inputs if call is model else {"input_ids": inputs["input_ids"]}
        refuses(
            lambda call=call, given=given: call(**given, **{name: mask}),
            f"given {name} … hw.masked",
        )
    assert model(**inputs, **{name: None}).logits.shape[0] == 2


def test_layers_without_heads_are_said() -> None:
    """Of four layers the second and the last have attention."""
    types = ["conv", "full_attention", "conv", "full_attention"]
    shape = {**STACK, "num_hidden_layers": 4, "num_key_value_heads": 2, "layer_types": types, **IDS}
    hf = build("Lfm2ForCausalLM", **shape)
    model = hw.Model(hf, letters(), "hybrid")
    assert model.discovery.layer_numbers() == {"decoder-self": [1, 3]}
    said = "decoder-self/0 is layer 1 of the model (with attention: 1, 3)"
    assert said in model.discovery.numbering() and "in its layers 1, 3" in repr(model)
    scores = hw.score(model, lines(4), ["confidence"])
    assert any(said in line for line in scores.lines())
    for plain in ("llama", "marian", "t5", "albert"):
        assert asker(plain).discovery.numbering() == ""


def test_weights_that_are_computed_at_each_forward_are_not_cut(tmp_path: Path) -> None:
    model = asker("bert")
    layer = model.hf.get_submodule(next(iter(model.discovery.names.values())))
    prune.l1_unstructured(layer.query, "weight", 0.5)
    assert len(hw.score(model, lines(4), ["confidence"]).table) > 0
    mask = hw.HeadMask.full(model.heads).without(["encoder-self/0/1"])
    for call in (
        lambda: model.only(mask),
        lambda: model.save(tmp_path / "it"),
        lambda: hw.export(model, "stock", tmp_path / "stock"),
    ):
        refuses(call, "are computed from others at each forward … prune.remove")
    assert not any(tmp_path.iterdir())
    prune.remove(layer.query, "weight")
    assert model.only(mask).heads.total == model.heads.total - 1
