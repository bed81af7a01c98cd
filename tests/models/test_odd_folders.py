"""Folders of models as other programs leave them: read right, or refused with the way on."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import CanineTokenizer

import headwise as hw
from headwise.models import loading
from models.attention.families import build
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


def change_config(folder: Path, **changes: object) -> Path:
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))
    return folder


def test_a_folder_whose_outputs_have_no_names(folder: Path) -> None:
    """Of transformers 3, with `"return_dict": false`."""
    change_config(folder, return_dict=False)
    text = hw.Text.from_lines(["a b c", "d e f"])
    same, other = (hw.score(model, text, "gradient") for model in (asker("gpt2"), hw.load(folder)))
    assert same.table["value"].tolist() == other.table["value"].tolist()


def test_weights_of_what_wraps_a_model(folder: Path) -> None:
    """DataParallel writes `module.` before each name, Lightning puts the weights under `state_dict`."""
    weights = load_file(folder / "model.safetensors")
    save_file(
        {f"module.{name}": tensor for name, tensor in weights.items()}, folder / "model.safetensors"
    )
    refuses(lambda: hw.load(folder), "would be random. It has others (module. … inside")
    (folder / "model.safetensors").unlink()
    torch.save({"state_dict": weights, "epoch": 3}, folder / "pytorch_model.bin")
    refuses(lambda: hw.load(folder), "It has others (epoch, state_dict) … inside")


def test_relative_positions_are_of_transformers_4(tmp_path: Path) -> None:
    model = asker("bert")
    model.save(tmp_path / "bert")
    (tmp_path / "bert" / "SHA256SUMS").unlink()
    settings = json.loads((tmp_path / "bert" / "config.json").read_text())
    settings = {name: value for name, value in settings.items() if not name.startswith("headwise")}
    (tmp_path / "bert" / "config.json").write_text(json.dumps(settings))
    change_config(tmp_path / "bert", position_embedding_type="relative_key")
    weights = load_file(tmp_path / "bert" / "model.safetensors")
    of_layer = "bert.encoder.layer.0.attention.self"
    weights[f"{of_layer}.distance_embedding.weight"] = torch.ones(9, 8)
    save_file(weights, tmp_path / "bert" / "model.safetensors", metadata={"format": "pt"})
    refuses(lambda: hw.load(tmp_path / "bert"), "position_embedding_type … transformers 4")


def test_weights_of_tensorflow_alone(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "tf_model.h5")
    refuses(lambda: hw.load(folder), "Its weights are tf_model.h5 … load it with transformers 4")


@pytest.mark.parametrize("name", ["model.safetensors", "pytorch_model.bin", "tokenizer.json"])
def test_pointers_of_git_are_no_files(folder: Path, name: str) -> None:
    if name.endswith(".bin"):
        (folder / "model.safetensors").unlink()
    pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 133466\n"
    (folder / name).write_text(pointer)
    refuses(lambda: hw.load(folder), f"{name} is a pointer of git-lfs … git lfs pull")


def test_a_variant_has_another_name(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "model.fp16.safetensors")
    refuses(lambda: hw.load(folder), "has model.fp16.safetensors: rename that")


def test_a_tokenizer_that_needs_a_package_names_it(folder: Path) -> None:
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
    peft = pytest.importorskip("peft", reason="peft is not installed (headwise[lora])")
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
    refuses(lambda: loaded.without(["L0H0"]), "adapter of PEFT … merge_and_unload")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loading, "is_peft_available", lambda: False)
        refuses(lambda: hw.load(folder), "has an adapter of PEFT … pip install peft")


def test_a_model_of_letters_is_no_damaged_folder(tmp_path: Path) -> None:
    """CANINE has no table of words, and its class says so by an error."""
    shape = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4}
    hf = build("CanineForSequenceClassification", **shape, intermediate_size=32, num_hash_buckets=9)
    hf.save_pretrained(tmp_path)
    CanineTokenizer().save_pretrained(tmp_path)
    refuses(lambda: hw.load(tmp_path), "reads no token ids (its configuration has no vocabulary)")


def test_code_of_a_folder_is_said(folder: Path, recwarn: pytest.WarningsRecorder) -> None:
    """LLM2Vec's folders have Llama's weights and read text in both directions. Others name a class that transformers has."""
    hw.load(change_config(folder, auto_map={"AutoModelForCausalLM": "modeling.GPT2LMHeadModel"}))
    hw.load(change_config(folder, auto_map={"AutoTokenizer": ["a.Own", None]}))
    assert not [each for each in recwarn if "code of its own" in str(each.message)]
    change_config(folder, auto_map={"AutoModel": "modeling.BothWays"})
    with pytest.warns(UserWarning, match="BothWays.* is loaded as a GPT2LMHeadModel"):
        hw.load(folder)


def test_shards_without_their_index(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "model-00001-of-00002.safetensors")
    refuses(lambda: hw.load(folder), "shards (model-00001-of-00002 … model.safetensors.index.json")


def test_adapters_that_cannot_be_merged_and_adapters_with_a_name(tmp_path: Path) -> None:
    (tmp_path / "out" / "mine").mkdir(parents=True)
    file = tmp_path / "out" / "mine" / "adapter_config.json"
    for kind, said in (("LORA", "merge it"), ("PREFIX_TUNING", "cannot be merged")):
        file.write_text(json.dumps({"peft_type": kind}))
        refuses(lambda said=said: hw.load(file.parent), f"adapter of PEFT … {said}")
        refuses(lambda said=said: hw.load(tmp_path / "out"), f"mine: It holds … {said}")
    file.write_text("{")
    refuses(lambda: hw.load(file.parent), "adapter of PEFT")
