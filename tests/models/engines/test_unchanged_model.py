"""What only reads a model changes none of its weights, not by a bit."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from pruned import encoder_decoder, language_model, translator

import headwise as hw
from headwise.data.embedded import write_treebank
from headwise.models.engines.engine import engine
from models.marian import toolkit_models
from models.tasks.askers import asker, embedder, pairs


def toolkit_model(folder: Path) -> hw.Model:
    return hw.load(toolkit_models.write(folder / "toolkit", toolkit_models.options()))


MODELS: dict[str, Callable[[Path], hw.Model]] = {
    "translator": lambda folder: translator("post"),
    "bart": lambda folder: encoder_decoder("bart"),
    "t5": lambda folder: encoder_decoder("t5"),
    "llama": lambda folder: language_model("llama"),
    "marian": toolkit_model,
    "bert": lambda folder: embedder(),
}
# Engines that do not run a Llama, are slow with it, or of which several families are tried.
MODELS_OF = {
    "ct2": ("translator", "bart", "t5", "llama"),
    "marian": ("marian",),
    "onnx": ("bert",),
    "torch": ("bert",),
}
EXPORTS = [
    (name, dtype, model)
    for name in engine.own
    for dtype in engine[name].types
    for model in MODELS_OF.get(name, ("llama",))
]


@cache
def installed(name: str) -> bool:
    return all(map(find_spec, engine[name].modules))


def changed(model: hw.Model, before: dict[str, torch.Tensor]) -> list[str]:
    """The names of the weights that are not as before, bit by bit."""
    after = model.hf.state_dict()
    assert list(after) == list(before)
    return [name for name, tensor in after.items() if not torch.equal(tensor, before[name])]


def copied(model: hw.Model) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in model.hf.state_dict().items()}


@pytest.mark.parametrize(("to", "dtype", "kind"), EXPORTS)
def test_an_export_changes_no_weight(to: str, dtype: str, kind: str, tmp_path: Path) -> None:
    if not installed(to):
        pytest.skip(f"{', '.join(engine[to].modules)} is not installed")
    model = MODELS[kind](tmp_path)
    before = copied(model)
    given = None if dtype == "as loaded" else dtype
    folder = hw.export(model, to, tmp_path / "out", given, say=lambda note: None)
    assert changed(model, before) == []
    hw.check(folder, model)
    assert changed(model, before) == []


def test_translating_in_ctranslate2_changes_no_weight() -> None:
    pytest.importorskip("ctranslate2", reason="ctranslate2 is not installed (headwise[ct2])")
    model = translator("pre")
    before = copied(model)
    model.translate(["A head that looks at the token before."], engine="ct2")
    assert changed(model, before) == []


CALLS: dict[str, Callable[[hw.Model, Any], Any]] = {
    "evaluate": lambda model, place: hw.evaluate([model], pairs(4)),
    "score": lambda model, place: hw.score(model, pairs(6), judge=True),
    "roles": lambda model, place: hw.roles(model, place / "trees.conllu"),
    "prune": lambda model, place: hw.prune(
        model, pairs(8), hw.Greedy(keep=4, measure="random"), dev=pairs(4, 9)
    ),
    "remove": lambda model, place: model.without(["encoder-self/0/0"]),
    "save": lambda model, place: model.save(place / "saved"),
    "push": lambda model, place: hw.push(model.save(place / "pushed"), "me/it"),
}


@pytest.mark.parametrize("call", CALLS)
def test_what_studies_a_model_changes_no_weight(call: str, tmp_path: Path) -> None:
    write_treebank(tmp_path / "trees.conllu", 4)
    model = asker()
    before = copied(model)
    with warnings.catch_warnings(action="ignore"):  # random weights translate nothing
        CALLS[call](model, tmp_path)
    assert changed(model, before) == []
