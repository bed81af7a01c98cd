"""Files read back: whole and damaged ones, and what is said of each."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from pruned import language_model, uneven
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner

import headwise as hw
from headwise.cli import app
from headwise.folders import SUMS
from headwise.model_files import MARK, WEIGHTS
from tasks.askers import embedder


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A whole model, a pruned one, and its GGUF and ONNX files."""
    place = tmp_path_factory.mktemp("checked")
    whole = language_model("llama")
    small = uneven(whole)
    whole.save(place / "whole")
    small.save(place / "small")
    hw.export(small, "gguf", place / "gguf", say=lambda note: None)
    pytest.importorskip("onnxruntime", reason="onnxruntime is not installed (headwise[onnx])")
    pytest.importorskip("onnxscript", reason="onnxscript is not installed (headwise[onnx])")
    heads = ["decoder-self/0/0"]
    hw.export(small, "onnx", place / "onnx", say=lambda note: None, attention=heads)
    return place


def verdicts(found: hw.Check) -> dict[str, bool | None]:
    return {finding.what: finding.good for finding in found.findings}


def test_a_pruned_folder_is_the_original_with_heads_off(place: Path) -> None:
    found = hw.check(place / "small", hw.load(place / "whole"))
    assert verdicts(found) == {"files": True, "transformers": True, "heads": True, "outputs": True}
    assert found.good and "with the same heads off" in repr(found)
    assert verdicts(hw.check(place / "whole"))["outputs"] is None


def test_a_gguf_file_has_the_heads_that_it_names(place: Path) -> None:
    found = hw.check(place / "gguf", hw.load(place / "small"))
    counts = hw.load(place / "small").heads.query["decoder-self"]
    says = {finding.what: finding.says for finding in found.findings}
    assert found.good and "+".join(map(str, counts)) in says["heads"]
    assert "not installed" in says["llama.cpp"] or "loads" in says["llama.cpp"]
    assert hw.check(place / "gguf" / "model.gguf").good


def test_an_onnx_file_runs(place: Path) -> None:
    found = hw.check(place / "onnx", hw.load(place / "small"))
    assert verdicts(found) == {
        "files": True,
        "ONNX Runtime": True,
        "heads": True,
        "attention": True,
        "outputs": None,
    }
    assert "gives that of decoder-self/0/0" in repr(found)
    assert verdicts(hw.check(place / "onnx"))["heads"] is None


def cut(file: Path) -> None:
    """Leave half of a file."""
    data = file.read_bytes()
    file.write_bytes(data[: len(data) // 2])


def other_counts(folder: Path) -> None:
    """A layout with another head, and no record that would tell."""
    config = json.loads((folder / "config.json").read_text())
    kept = config["headwise_layout"]["kept"]["decoder-self"]
    layer = next(place for place, heads in enumerate(kept) if len(heads) > 1)
    kept[layer].pop()
    config.pop(MARK)
    (folder / "config.json").write_text(json.dumps(config))
    (folder / SUMS).unlink()


def swapped_rows(folder: Path) -> None:
    """The first two rows of a layer's queries."""
    tensors = load_file(folder / WEIGHTS)
    queries = tensors["model.layers.0.self_attn.q_proj.weight"]
    queries[:2] = queries[:2].flip(0)
    save_file(tensors, folder / WEIGHTS, {"format": "pt"})


def unsealed(folder: Path, damage: Callable[[Path], None]) -> None:
    """A damage, and no record that would tell."""
    damage(folder)
    config = json.loads((folder / "config.json").read_text())
    config.pop(MARK)
    (folder / "config.json").write_text(json.dumps(config))
    (folder / SUMS).unlink()


def trained_on(folder: Path) -> None:
    model = hw.load(folder)
    with torch.no_grad():
        model.hf.model.layers[0].mlp.up_proj.weight.mul_(1.5)
    shutil.rmtree(folder)
    model.save(folder)


@pytest.mark.parametrize(
    ("name", "damage", "what", "sentence"),
    [
        ("small", lambda place: cut(place / WEIGHTS), "files", "is damaged"),
        ("small", swapped_rows, "files", "is damaged"),
        ("small", lambda place: unsealed(place, swapped_rows), "outputs", "trained or changed"),
        ("small", other_counts, "transformers", "do not fit its layout"),
        ("small", trained_on, "outputs", "trained or changed after removal"),
        ("gguf", lambda place: cut(place / "model.gguf"), "files", "not as they were written"),
        ("gguf", lambda place: cut(place / "model.gguf"), "heads", "cannot be read"),
        ("onnx", lambda place: cut(place / "model.onnx"), "ONNX Runtime", "does not run"),
    ],
)
def test_damage_is_said(
    place: Path, tmp_path: Path, name: str, damage: Callable[[Path], None], what: str, sentence: str
) -> None:
    shutil.copytree(place / name, tmp_path / name)
    damage(tmp_path / name)
    found = hw.check(tmp_path / name, hw.load(place / "whole"))
    (finding,) = [each for each in found.findings if each.what == what]
    assert finding.good is False and sentence in finding.says
    assert not found.good
    done = CliRunner().invoke(app, ["check", str(tmp_path / name), "--original", f"{place}/whole"])
    assert isinstance(done.exception, hw.HeadwiseError) and what in str(done.exception)


def test_a_folder_of_ctranslate2_loads_there(place: Path, tmp_path: Path) -> None:
    pytest.importorskip("ctranslate2", reason="ctranslate2 is not installed (headwise[ct2])")
    small = hw.load(place / "small")
    hw.export(small, "ct2", tmp_path / "ct2", say=lambda note: None)
    found = hw.check(tmp_path / "ct2", small)
    assert verdicts(found) == {"files": True, "CTranslate2": True, "outputs": None}
    assert "loads as a Generator" in repr(found)
    cut(tmp_path / "ct2" / "model.bin")
    assert verdicts(hw.check(tmp_path / "ct2")) == {"files": False, "CTranslate2": False}


def test_another_model_and_no_model(place: Path, tmp_path: Path) -> None:
    assert verdicts(hw.check(place / "small", embedder()))["outputs"] is False
    assert verdicts(hw.check(place / "gguf", hw.load(place / "whole")))["heads"] is False
    (tmp_path / "text.txt").write_text("words")
    with pytest.raises(hw.HeadwiseError, match="is no file that can be checked"):
        hw.check(tmp_path / "text.txt")


def test_a_program_of_torch_export_is_whole_or_damaged(tmp_path: Path) -> None:
    """Of a model of embeddings, whose export says how a sentence's vector is made."""
    notes: list[str] = []
    hw.export(embedder(), "torch", tmp_path / "torch", say=notes.append)
    assert any("not for a sentence: take the mean of the last states over its" in n for n in notes)
    found = hw.check(tmp_path / "torch")
    assert verdicts(found) == {"files": True, "archive": True, "PyTorch": None}
    assert "model.pt2 is whole" in repr(found)
    cut(tmp_path / "torch" / "model.pt2")
    found = hw.check(tmp_path / "torch")
    assert verdicts(found) == {"files": False, "archive": False, "PyTorch": None}
