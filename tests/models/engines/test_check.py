"""Files read back: whole and damaged ones, and what is said of each."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import numpy as np
import pytest
import torch
from pruned import encoder_decoder, language_model, mended, small_model, uneven
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner

import headwise as hw
from headwise.core.folders import SUMS
from headwise.faces.cli import app
from headwise.models.engines import native
from headwise.models.engines.check import Check
from headwise.models.engines.comparison import changed_numbers
from headwise.models.engines.engine import engine
from headwise.models.engines.graph_files import Graph
from headwise.models.model_files import MARK, WEIGHTS
from models.tasks.askers import embedder


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A whole model, a pruned one, and its files of other engines."""
    place = tmp_path_factory.mktemp("checked")
    whole = language_model("llama")
    small = uneven(whole)
    whole.save(place / "whole")
    small.save(place / "small")
    for needed, extra in {
        **dict.fromkeys(("onnxruntime", "onnxscript"), "onnx"),
        "ctranslate2": "ct2",
    }.items():
        pytest.importorskip(needed, reason=f"{needed} is not installed (headwise[{extra}])")
    hw.export(small, "gguf", place / "gguf", say=lambda note: None)
    heads = ["decoder-self/0/0"]
    hw.export(small, "onnx", place / "onnx", say=lambda note: None, attention=heads)
    hw.export(small, "ct2", place / "ct2", say=lambda note: None)
    return place


def verdicts(found: Check) -> dict[str, bool | None]:
    return {finding.what: finding.good for finding in found.findings}


def test_a_pruned_folder_is_the_original_with_heads_off(place: Path) -> None:
    found = hw.check(place / "small", hw.load(place / "whole"))
    good = ("files", "transformers", "heads", "weights", "outputs")
    assert verdicts(found) == dict.fromkeys(good, True)
    assert found.good and "with the same heads off" in repr(found)
    assert verdicts(hw.check(place / "whole", hw.load(place / "whole"))) == dict.fromkeys(
        good, True
    )
    assert verdicts(hw.check(place / "whole"))["outputs"] is None


def test_files_run_in_their_engines(place: Path) -> None:
    found = hw.check(place / "gguf", hw.load(place / "small"))
    says = {finding.what: finding.says for finding in found.findings}
    assert found.good and verdicts(found)["files"]
    assert "not installed" in says["llama.cpp"] or "loads" in says["llama.cpp"]
    assert hw.check(place / "gguf" / "model.gguf").good
    found = hw.check(place / "onnx", hw.load(place / "small"))
    assert verdicts(found) == {"files": True, "ONNX Runtime": True, "outputs": True}
    assert "model.onnx runs" in repr(found)
    assert verdicts(hw.check(place / "onnx"))["outputs"] is None


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


def without_sums(name: str) -> Callable[[Path], None]:
    """Half of an export's file, and no record that would tell."""

    def damage(folder: Path) -> None:
        cut(folder / name)
        (folder / SUMS).unlink()

    return damage


def renamed(folder: Path) -> None:
    """A weight of CTranslate2, and no record that would tell."""
    name = b"decoder/layer_1/self_attention/linear_0/weight"
    data = (folder / "model.bin").read_bytes()
    (folder / "model.bin").write_bytes(data.replace(name, name.upper()))
    (folder / SUMS).unlink()


def train(folder: Path) -> None:
    """As gates do: one weight moves by half, and the model is written again."""
    model = hw.load(folder)
    with torch.no_grad():
        model.hf.model.layers[0].mlp.up_proj.weight.mul_(1.5)
    shutil.rmtree(folder)
    model.save(folder)


def of_another_model(folder: Path) -> None:
    """The same layout of another seed's weights."""
    model = hw.load(folder)
    with torch.no_grad():
        for weight in model.hf.parameters():
            if weight.ndim > 1:
                weight.normal_(std=0.02)
    shutil.rmtree(folder)
    model.save(folder)


def test_a_model_that_trained_after_removal_is_good(place: Path, tmp_path: Path) -> None:
    """It differs from its original on purpose: what is equal is counted, and how it is compared is said."""
    small = Path(shutil.copytree(place / "small", tmp_path / "small"))
    train(small)
    arguments = ["check", str(small), "--original", str(place / "whole")]
    ended = CliRunner().invoke(app, arguments)
    assert ended.exit_code == 0, ended.output
    found = hw.check(small, hw.load(place / "whole"))
    assert verdicts(found)["weights"] is True and verdicts(found)["outputs"] is None
    says = {finding.what: finding.says for finding in found.findings}
    count = len(list(hw.load(small).hf.parameters()))
    assert f"{count - 1} of {count} are those of" in says["weights"]
    assert "layers.0.mlp.up_proj.weight, moved by 50 %" in says["weights"]
    assert f"headwise evaluate {place / 'whole'} {small} --text FILE" in says["outputs"]


def test_the_folder_of_a_study_stands_for_its_model(place: Path, tmp_path: Path) -> None:
    shutil.copytree(place / "whole", tmp_path / "run" / "model")
    assert hw.check(tmp_path / "run").good


@pytest.mark.parametrize(
    ("name", "damage", "what", "sentence"),
    [
        ("small", lambda place: cut(place / WEIGHTS), "files", "is damaged"),
        ("small", swapped_rows, "files", "is damaged"),
        (
            "small",
            lambda place: unsealed(place, swapped_rows),
            "weights",
            "by training or by damage",
        ),
        ("small", other_counts, "transformers", "do not fit its layout"),
        ("small", of_another_model, "weights", "as far as those of an unrelated model"),
        ("gguf", lambda place: cut(place / "model.gguf"), "files", "model.gguf has changed"),
        ("gguf", without_sums("model.gguf"), "llama.cpp", "not within the file bounds"),
        ("onnx", without_sums("model.onnx"), "ONNX Runtime", "does not run"),
        ("ct2", without_sums("model.bin"), "CTranslate2", "does not run"),
        ("ct2", renamed, "CTranslate2", "not found"),
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


def initializer(folder: Path) -> None:
    """The last bit of one number of a feed-forward matrix in an ONNX file: no output shows it."""
    import onnx

    graph = onnx.load(folder / "model.onnx")
    large = next(each for each in graph.graph.initializer if {*each.dims} == {64, 96})
    array = onnx.numpy_helper.to_array(large).copy()
    array.flat[5] = np.nextafter(array.flat[5], np.float32(9))
    large.CopyFrom(onnx.numpy_helper.from_array(array, large.name))
    onnx.save(graph, folder / "model.onnx")


def gguf_number(folder: Path) -> None:
    """One number of a matrix in a GGUF file."""
    import gguf

    reader = gguf.GGUFReader(folder / "model.gguf", "r+")
    reader.tensors[3].data.flat[5] += 1
    reader.data.flush()


def middle_byte(name: str) -> Callable[[Path], None]:
    """A number in the middle of a file of weights."""

    def damage(folder: Path) -> None:
        data = bytearray((folder / name).read_bytes())
        data[len(data) // 2] ^= 0x40
        (folder / name).write_bytes(data)

    return damage


def archived(folder: Path) -> None:
    """One number of a weight in the archive of a program."""
    file = folder / "model.pt2"
    with ZipFile(file) as archive:
        members = {each: archive.read(each) for each in archive.namelist()}
    name = next(each for each in members if each.endswith("weights/weight_5"))
    changed = bytearray(members[name])
    changed[3] ^= 0x40
    with ZipFile(file, "w") as archive:
        for each, data in (members | {name: bytes(changed)}).items():
            archive.writestr(each, data)


NUMBERS: dict[str, tuple[Callable[[Path], None], str]] = {
    "gguf": (gguf_number, "weights"),
    "ct2": (middle_byte("model.bin"), "weights"),
    "onnx": (initializer, "outputs"),
    "torch": (archived, "weights"),
}


@pytest.mark.parametrize("name", NUMBERS)
def test_one_changed_number_is_found(place: Path, tmp_path: Path, name: str) -> None:
    """In every engine's file, and no list of sums that would tell; exit status 1."""
    small, other = hw.load(place / "small"), hw.load(place / "whole")
    if name == "torch":
        small = other = embedder()
        hw.export(small, "torch", tmp_path / "torch", say=lambda note: None)
    else:
        shutil.copytree(place / name, tmp_path / name)
    found = hw.check(tmp_path / name, small)
    damage, what = NUMBERS[name]
    assert verdicts(found)[what] is True and found.good
    if other is not small:
        assert verdicts(hw.check(tmp_path / name, other))[what] is False
    damage(tmp_path / name)
    (tmp_path / name / SUMS).unlink()
    found = hw.check(tmp_path / name, small)
    assert verdicts(found)[what] is False
    assert f"was not written from {small.name}: " in repr(found)


def test_one_changed_number_of_an_ordinary_checkpoint_is_found(place: Path, tmp_path: Path) -> None:
    """Of a word that no text of the comparison has."""
    small = hw.load(place / "small")
    stock = hw.export(small, "stock", tmp_path / "stock", say=lambda note: None)
    assert verdicts(hw.check(stock, small)) == dict.fromkeys(
        ("files", "transformers", "heads", "weights", "outputs"), True
    )
    tensors = load_file(stock / WEIGHTS)
    tensors["model.embed_tokens.weight"][-3, 0] += 0.1
    save_file(tensors, stock / WEIGHTS, {"format": "pt"})
    (stock / SUMS).unlink()
    found = verdicts(hw.check(stock, small))
    assert found["outputs"] is True and found["weights"] is False


def test_tables_of_an_onnx_file_that_are_no_weights_are_no_damage(tmp_path: Path) -> None:
    """Constants, and what the exporter makes of weights; a weight with one other number is."""
    onnx = pytest.importorskip("onnx", reason="onnx is not installed (headwise[onnx])")
    linear = torch.nn.Linear(12, 1)
    weight = linear.weight.detach().numpy().copy()
    changed = weight.T.copy()
    changed[7] += 1e-3
    right = [weight.T, 2 * weight, np.float32([0.5]), np.float32(3)]
    graph = Graph("it", linear, {}, {}, ())
    for tables, wrong in ((right, False), ([*right, changed], True)):
        stored = [onnx.numpy_helper.from_array(one, f"val_{n}") for n, one in enumerate(tables)]
        made = onnx.helper.make_graph([], "it", [], [], stored)
        onnx.save(onnx.helper.make_model(made), tmp_path / "it.onnx")
        assert bool(changed_numbers(tmp_path / "it.onnx", graph)) is wrong


REPAIRED: dict[str, Callable[[], hw.Model]] = {
    "t5": lambda: encoder_decoder("t5"),
    "gemma3_text": lambda: small_model("gemma3_text"),
}


@pytest.mark.parametrize(
    ("family", "to"),
    [
        pytest.param("t5", "onnx", marks=pytest.mark.campaign),
        ("t5", "ct2"),
        pytest.param("gemma3_text", "onnx", marks=pytest.mark.campaign),
        ("gemma3_text", "gguf"),
    ],
)
def test_what_repair_changed_is_in_the_files(family: str, to: str, tmp_path: Path) -> None:
    """They run, have the numbers of the repaired model, and not those of the one that was only cut."""
    for module in engine[to].modules:
        pytest.importorskip(module, reason=f"{module} is not installed")
    small = mended(REPAIRED[family]())
    cut = uneven(REPAIRED[family]())
    assert small.heads == cut.heads
    hw.export(small, to, tmp_path / to, say=lambda note: None)
    found = hw.check(tmp_path / to, small)
    what = "outputs" if to == "onnx" else "weights"
    assert found.good and verdicts(found)[what] is True
    assert verdicts(hw.check(tmp_path / to, cut))[what] is False


def test_a_list_of_sums_of_another_program_says_nothing(place: Path, tmp_path: Path) -> None:
    shutil.copytree(place / "gguf", tmp_path / "gguf")
    (tmp_path / "gguf" / SUMS).write_text(f"{'0' * 64}  model.gguf\n")
    assert verdicts(hw.check(tmp_path / "gguf"))["files"] is None


def test_a_folder_of_ctranslate2_loads_there(place: Path) -> None:
    found = hw.check(place / "ct2", hw.load(place / "small"))
    assert verdicts(found) == {"files": True, "CTranslate2": True, "weights": True}
    assert "loads as a Generator" in repr(found)


@pytest.mark.parametrize(
    ("name", "file", "engine"),
    [
        ("gguf", "model.gguf", "llama.cpp"),
        ("onnx", "tokenizer.json", "ONNX Runtime"),
        ("ct2", "model.bin", "CTranslate2"),
    ],
)
def test_no_engine_gets_a_file_that_is_not_as_it_was_written(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, file: str, engine: str
) -> None:
    shutil.copytree(place / name, tmp_path / name)
    cut(tmp_path / name / file)
    monkeypatch.setattr(native, "apart", None)
    found = hw.check(tmp_path / name)
    assert verdicts(found)["files"] is False and verdicts(found)[engine] is None
    assert "not run on files that are not as they were written" in repr(found)


@pytest.mark.parametrize(
    ("name", "package", "engine", "words"),
    [
        ("gguf", "llama_cpp", "llama.cpp", "model.gguf does not run (no memory)"),
        ("ct2", "ctranslate2", "CTranslate2", "ct2 does not run (it crashed with SIGABRT)"),
    ],
)
def test_an_engine_that_fails_is_a_finding(
    place: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    package: str,
    engine: str,
    words: str,
) -> None:
    """Of packages that stand in: llama-cpp-python, which goes before xllamacpp, and a CTranslate2 that crashes."""
    code = "import os\n\nclass Llama:\n    def __init__(self, file, n_ctx, verbose):\n"
    code += "        raise ValueError('no memory')\n\ndef __getattr__(name):\n    os.abort()\n"
    (tmp_path / f"{package}.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    found = hw.check(place / name)
    assert verdicts(found)[engine] is False and words in repr(found)


def onnx_file(folder: Path, inputs: dict[str, list[int]], nodes: list[Any], output: str) -> None:
    onnx = pytest.importorskip("onnx", reason="onnx is not installed (headwise[onnx])")
    number = onnx.TensorProto.FLOAT
    given = [onnx.helper.make_tensor_value_info(each, number, of) for each, of in inputs.items()]
    made = [onnx.helper.make_tensor_value_info(output, number, None)]
    graph = onnx.helper.make_graph(nodes, "graph", given, made)
    versions = {"opset_imports": [onnx.helper.make_opsetid("", 17)], "ir_version": 8}
    onnx.save(onnx.helper.make_model(graph, **versions), str(folder / "model.onnx"))


def test_an_onnx_file_with_odd_inputs_and_outputs(tmp_path: Path) -> None:
    """A past of no layer and of one size, and an output that is not finite."""
    helper = pytest.importorskip("onnx", reason="onnx is not installed (headwise[onnx])").helper
    for operation, good in (("Add", True), ("Sub", False)):
        nodes = [
            helper.make_node(operation, ["past.first.key", "past.0.key"], ["sum"]),
            helper.make_node("Log", ["sum"], ["out"]),
        ]
        onnx_file(tmp_path, {"past.first.key": [1], "past.0.key": [1]}, nodes, "out")
        found = hw.check(tmp_path)
        assert verdicts(found) == {"files": None, "ONNX Runtime": good, "outputs": None}
        assert ("gives numbers that are not finite" in repr(found)) is not good


def test_an_onnx_file_that_never_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    onnx = pytest.importorskip("onnx", reason="onnx is not installed (headwise[onnx])")
    helper = onnx.helper
    true = helper.make_node("Constant", [], ["on"], value=helper.make_tensor("", 9, [], [True]))
    body = helper.make_graph(
        [helper.make_node("Identity", [name], [f"{name}_"]) for name in ("go", "state")],
        "body",
        [
            helper.make_tensor_value_info("turn", 7, []),
            helper.make_tensor_value_info("go", 9, []),
            helper.make_tensor_value_info("state", 1, None),
        ],
        [
            helper.make_tensor_value_info(each, kind, None)
            for each, kind in (("go_", 9), ("state_", 1))
        ],
    )
    loop = helper.make_node("Loop", ["", "on", "x"], ["out"], body=body)
    onnx_file(tmp_path, {"x": [1]}, [true, loop], "out")
    monkeypatch.setattr(native, "PATIENCE", 4)
    found = hw.check(tmp_path)
    assert verdicts(found) == {"files": None, "ONNX Runtime": False, "outputs": None}
    assert "model.onnx does not run (no answer in 4 seconds)" in repr(found)


@pytest.mark.parametrize(("offset", "value"), [(8, 99), (6, 1)], ids=["method", "encrypted"])
def test_an_archive_that_zipfile_cannot_unpack(tmp_path: Path, offset: int, value: int) -> None:
    """A method of compression that it does not know, and a file with a password."""
    with ZipFile(tmp_path / "model.pt2", "w") as archive:
        archive.writestr("data", "words")
    data = bytearray((tmp_path / "model.pt2").read_bytes())
    for header in (0, data.index(b"PK\1\2") + 2):
        data[header + offset] = value
    (tmp_path / "model.pt2").write_bytes(data)
    found = hw.check(tmp_path)
    assert verdicts(found) == {"files": None, "archive": False, "weights": None}
    assert "model.pt2 does not run" in repr(found)


def test_another_model_and_no_model(place: Path, tmp_path: Path) -> None:
    assert verdicts(hw.check(place / "small", embedder()))["weights"] is False
    assert verdicts(hw.check(place / "ct2", embedder()))["weights"] is False
    (tmp_path / "text.txt").write_text("words")
    with pytest.raises(hw.HeadwiseError, match="is no file that can be checked"):
        hw.check(tmp_path / "text.txt")


def test_a_program_of_torch_export_is_whole_or_damaged(tmp_path: Path) -> None:
    """Of a model of embeddings, whose export says how a sentence's vector is made."""
    notes: list[str] = []
    hw.export(embedder(), "torch", tmp_path / "torch", say=notes.append)
    assert any("not for a sentence: take the mean of the last states over its" in n for n in notes)
    found = hw.check(tmp_path / "torch")
    assert verdicts(found) == {"files": True, "archive": True, "weights": None}
    assert "model.pt2 is whole" in repr(found)
    cut(tmp_path / "torch" / "model.pt2")
    found = hw.check(tmp_path / "torch")
    assert verdicts(found) == {"files": False, "archive": None, "weights": None}


@pytest.mark.parametrize("name", ["x" * 300, "a\0b"])
def test_a_name_that_no_file_can_have(name: str) -> None:
    with pytest.raises(hw.HeadwiseError, match=r"There is no .* to check"):
        hw.check(name)


def test_a_row_of_the_embeddings_that_no_drawn_token_reads_is_compared(tmp_path: Path) -> None:
    onnx = pytest.importorskip("onnx", reason="onnx is not installed (headwise[onnx])")
    model = embedder()
    hw.export(model, "onnx", tmp_path / "onnx", say=lambda note: None)
    (tmp_path / "onnx" / "SHA256SUMS").unlink()
    assert verdicts(hw.check(tmp_path / "onnx", model))["outputs"] is True

    words = model.hf.get_input_embeddings().weight
    graph = onnx.load(tmp_path / "onnx" / "model.onnx")
    (table,) = [each for each in graph.graph.initializer if [*each.dims] == [*words.shape]]
    array = onnx.numpy_helper.to_array(table).copy()
    array[-1, 0] += 1e-3
    table.CopyFrom(onnx.numpy_helper.from_array(array, table.name))
    onnx.save(graph, tmp_path / "onnx" / "model.onnx")
    (finding,) = [
        each for each in hw.check(tmp_path / "onnx", model).findings if each.what == "outputs"
    ]
    assert finding.good is False and table.name in finding.says
