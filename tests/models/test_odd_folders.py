"""Folders of models as other programs leave them: read right, or refused with the way on."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch

import headwise as hw
from headwise.models import loading
from models.tasks.askers import asker
from refusals import refuses


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    model, place = asker("gpt2"), tmp_path / "model"
    model.hf.save_pretrained(place)
    model.tokenizer.save_pretrained(place)
    return place


def test_a_pickled_model_is_not_run(folder: Path) -> None:
    """`torch.save(model, …)` in place of its state."""
    torch.save(asker("gpt2").hf, folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    refuses(lambda: hw.load(folder), "a pickled program … save_pretrained")


def test_a_variant_has_another_name(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "model.fp16.safetensors")
    refuses(lambda: hw.load(folder), "has model.fp16.safetensors: rename that")


def test_a_tokenizer_that_needs_a_package_names_it(folder: Path) -> None:
    pytest.importorskip("transformers")
    file = folder / "tokenizer_config.json"
    settings = json.loads(file.read_text())
    settings |= {"tokenizer_class": "BertJapaneseTokenizer", "word_tokenizer_type": "no-such"}
    file.write_text(json.dumps(settings))

    def needs(*_: object, **__: object) -> None:
        raise ModuleNotFoundError("You need to install fugashi to use MecabTokenizer.")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loading.AutoTokenizer, "from_pretrained", needs)
        words = refuses(lambda: hw.load(folder), "needs another package … install fugashi")
    assert "copy" not in words


def test_tokens_that_were_added_without_embeddings(folder: Path) -> None:
    model = hw.load(folder)
    model.tokenizer.add_tokens([f"<{number}>" for number in range(99)])
    model.tokenizer.save_pretrained(folder)
    refuses(lambda: hw.load(folder), "tokens were added … resize_token_embeddings")


def test_an_adapter_beside_the_weights(folder: Path, tmp_path: Path) -> None:
    """It is in the model that is scored; without its package it would be left out in silence."""
    peft = pytest.importorskip("peft")
    model = asker("gpt2")
    config = peft.LoraConfig(
        r=2, target_modules=["c_attn"], fan_in_fan_out=True, init_lora_weights=False
    )
    adapted = peft.get_peft_model(model.hf, config)
    ids = model.tokenizer("a b c", return_tensors="pt")["input_ids"]
    with torch.no_grad():
        expected = adapted.eval()(ids).logits
    adapted.save_pretrained(tmp_path / "adapter")
    for file in (tmp_path / "adapter").glob("adapter*"):
        shutil.copy(file, folder)
    loaded = hw.load(folder)
    with torch.no_grad():
        torch.testing.assert_close(loaded(ids).logits, expected)
    refuses(lambda: loaded.remove(["L0H0"]), "adapter of PEFT … merge_and_unload")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loading, "is_peft_available", lambda: False)
        refuses(lambda: hw.load(folder), "has an adapter of PEFT … pip install peft")
