"""Removed heads are those that `prune_heads` of transformers 4 removed: the same shapes, the same numbers.

prune_heads/reference.json has its numbers, prune_heads/recipe.py says how they were made.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

import headwise as hw
from models.attention.prune_heads.weights import CASES, SHARED, batch, filled
from refusals import refuses

REFERENCE: dict[str, Any] = json.loads(
    (Path(__file__).parent / "prune_heads/reference.json").read_text()
)


@pytest.fixture(autouse=True)
def in_float64() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def whole(name: str) -> hw.Model:
    kind, shape, _ = CASES[name]
    model_class = getattr(transformers, kind)
    return hw.Model(filled(model_class(model_class.config_class(**SHARED, **shape))), None, name)  # type: ignore[arg-type]


def logits(model: hw.Model) -> torch.Tensor:
    with torch.no_grad():
        return model.hf(**batch()).logits  # type: ignore[no-any-return]


@pytest.mark.parametrize("name", CASES)
def test_shapes_and_logits(name: str) -> None:
    model, _, rounds = whole(name), *CASES[name][1:]
    (kind,), expected = model.heads.kinds, REFERENCE[name]
    gone = [
        hw.Head(kind, layer, head)
        for heads in rounds
        for layer, some in heads.items()
        for head in some
    ]
    small = model.without(gone)
    shapes = {parameter: list(tensor.shape) for parameter, tensor in small.hf.named_parameters()}
    cut = [part for part in shapes if shapes[part] != list(model.hf.get_parameter(part).shape)]
    turned = {
        part: shapes[part][::-1]
        for part in cut
        if part.endswith(("c_attn.weight", "c_proj.weight"))
    }
    assert cut and shapes | turned == expected["shapes"], (
        "of GPT-2 cut layers are linear: the transpose"
    )
    there = batch()["attention_mask"].bool()
    torch.testing.assert_close(
        logits(small)[there], torch.tensor(expected["logits"])[there], rtol=0, atol=1e-6
    )
    assert float((logits(small) - logits(model))[there].abs().max()) > 1e-3


def test_call_after_call() -> None:
    """Heads of a smaller model have new numbers; transformers 4 kept the old ones."""
    model = whole("gpt2-twice")
    once = model.without([hw.Head("decoder-self", 1, head) for head in (0, 2)])
    again = [
        hw.Head("decoder-self", 0, 5),
        hw.Head("decoder-self", 1, 2),
    ]  # 4 was the third that stayed
    small = once.without(again)
    there = batch()["attention_mask"].bool()
    expected = torch.tensor(REFERENCE["gpt2-twice"]["logits"])
    torch.testing.assert_close(logits(small)[there], expected[there], rtol=0, atol=1e-6)


def left_by_transformers(name: str, folder: Path, ending: str) -> None:
    """A folder as `save_pretrained` of transformers 4 leaves it: cut weights, and the heads that are gone by layer."""
    model, _, rounds = whole(name), *CASES[name][1:]
    heads: dict[int, list[int]] = {}
    for each in rounds:
        for layer, some in each.items():
            heads[layer] = sorted({*heads.get(layer, []), *some})
    kind = model.heads.kinds[0]
    gone = [hw.Head(kind, layer, head) for layer, some in heads.items() for head in some]
    model.hf.save_pretrained(folder)
    small = model.without(gone)
    tensors = {}
    for weight, tensor in small.hf.state_dict().items():
        turned = weight.endswith(("c_attn.weight", "c_proj.weight")) and kind == "decoder-self"
        is_cut = isinstance(small.hf.get_submodule(weight.rpartition(".")[0]), torch.nn.Linear)
        tensors[weight] = (
            tensor.T.contiguous() if turned and is_cut else tensor.contiguous().clone()
        )
    shapes = REFERENCE[name]["shapes"]
    assert all(list(tensors[weight].shape) == shapes[weight] for weight in shapes)
    if ending == "bin":
        (folder / "model.safetensors").unlink()
        tensors = {
            weight.replace("LayerNorm.weight", "LayerNorm.gamma"): tensor
            for weight, tensor in tensors.items()
        }
        torch.save(tensors, folder / "pytorch_model.bin")
    else:
        there = load_file(folder / "model.safetensors")
        save_file(
            {weight: tensors[weight] for weight in there},
            folder / "model.safetensors",
            {"format": "pt"},
        )
    config = json.loads((folder / "config.json").read_text())
    config["pruned_heads"] = {str(layer): some for layer, some in heads.items()}
    (folder / "config.json").write_text(json.dumps(config))


@pytest.mark.parametrize("ending", ["safetensors", "bin"])
@pytest.mark.parametrize("name", CASES)
def test_a_folder_of_transformers_4_is_read(name: str, ending: str, tmp_path: Path) -> None:
    left_by_transformers(name, tmp_path / "theirs", ending)
    model = hw.load(tmp_path / "theirs")
    assert model.layout is not None and model.heads.total == len(model.layout)
    again = hw.load(model.save(tmp_path / "ours"))
    assert again.layout == model.layout
    there = batch()["attention_mask"].bool()
    expected = torch.tensor(REFERENCE[name]["logits"])[there]
    for each in (model, again):
        torch.testing.assert_close(logits(each)[there], expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("cut", "words"),
    [
        ({"0": [9]}, "names head 9 of layer 0, and the model has"),
        ({"0": [0]}, "do not fit its pruned_heads: "),
        ([[1]], "must give the removed heads of each layer"),
    ],
)
def test_other_heads_than_are_gone_are_refused(cut: Any, words: str, tmp_path: Path) -> None:
    left_by_transformers("bert", tmp_path / "it", "safetensors")
    config = json.loads((tmp_path / "it/config.json").read_text())
    (tmp_path / "it/config.json").write_text(json.dumps(config | {"pruned_heads": cut}))
    refuses(lambda: hw.load(tmp_path / "it"), words)
