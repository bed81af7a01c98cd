"""Folders of Marian: every shape that is read gives the logits of an independent forward; what is not read is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import toolkit_forward
import toolkit_models
import torch
from sentencepiece import SentencePieceProcessor

import headwise as hw
from headwise.core.heads import Head
from headwise.core.layout import HeadMask
from headwise.models.marian import files as marian_files

SOURCE = [5, 9, 14, 7, 20, 0]
TARGET = [11, 6, 30, 8, 0]
SSRU = {"transformer_decoder_autoreg": "rnn", "dec_cell": "ssru"}
PRE_NORM = {
    "transformer_preprocess": "n",
    "transformer_postprocess": "da",
    "transformer_postprocess_top": "n",
}
UNTIED = {"tied_embeddings_all": False}
NEW = {"version": "v1.12.42 b7be0e964 2025-05-24 22:34:42 -0700"}
SHAPES: dict[str, dict[str, Any]] = {
    "post-norm": {},
    "ssru": SSRU,
    "pre-norm": PRE_NORM,
    "pre-norm ssru": {**PRE_NORM, **SSRU},
    "pre-norm of the fork": {**PRE_NORM, "version": "v1.9.56 94aeaa46 2021-04-28 00:28:35 +0100"},
    "pre-norm since 1.11": {**PRE_NORM, "version": "v1.11.0"},
    "pre-norm and ssru since 1.11": {**PRE_NORM, **SSRU, **NEW},
    "gelu before 1.12.3": {"transformer_ffn_activation": "gelu", "version": "v1.12.2"},
    "gelu since 1.12.3": {"transformer_ffn_activation": "gelu", **NEW},
    "norms everywhere": {
        "transformer_preprocess": "nd",
        "transformer_postprocess": "and",
        "transformer_postprocess_emb": "nd",
        "transformer_postprocess_top": "dn",
    },
    "norm before adding": {"transformer_postprocess": "na", **SSRU},
    "output tied to the target's words": {**UNTIED, "tied_embeddings": True},
    "output of its own": {**UNTIED, "tied_embeddings_src": True},
    "nothing tied": {**UNTIED, **SSRU},
    "deep encoder": {"enc_depth": 5, "dec_depth": 1},
    "deep decoder": {"enc_depth": 1, "dec_depth": 4, **SSRU},
    "swish": {"transformer_ffn_activation": "swish"},
    "gelu": {"transformer_ffn_activation": "gelu"},
    "two heads": {"transformer_heads": 2},
    "no output bias": {"output_omit_bias": True},
    "tied layers": {"dec_depth": 3, "transformer_tied_layers": [2, 2, 3]},
    "tied ssru": {**SSRU, **PRE_NORM, "dec_depth": 3, "transformer_tied_layers": [1, 2, 1]},
    "no projection": {"transformer_no_projection": True},
    "no positions": {"transformer_disable_position_embeddings": True},
}


def forward(model: hw.Model, source: list[int], target: list[int]) -> np.ndarray:
    start = model.hf.config.decoder_start_token_id
    with torch.no_grad():
        output = model.hf(
            input_ids=torch.tensor([source]),
            decoder_input_ids=torch.tensor([[start, *target[:-1]]]),
        )
    return output.logits[0].double().numpy()


def near(got: np.ndarray, expected: np.ndarray) -> None:
    """Equal but for the rounding of float32; the last word is for padding and is never written."""
    assert np.abs(got[:, :-1] - expected).max() < 1e-4 * np.abs(expected).max()
    assert (got[:, -1] < expected.min() - 1000).all()


@pytest.mark.parametrize("shape", SHAPES)
def test_logits_are_those_of_an_independent_forward(shape: str, tmp_path: Path) -> None:
    made = toolkit_models.options(**SHAPES[shape])
    model = hw.load(toolkit_models.write(tmp_path, made))
    arrays, options = marian_files.read(tmp_path / "model.npz")
    assert options == made
    near(forward(model, SOURCE, TARGET), toolkit_forward.logits(arrays, options, SOURCE, TARGET))
    kinds = {"encoder-self": made["enc-depth"], "cross": made["dec-depth"]}
    if made["transformer-decoder-autoreg"] != "rnn":
        kinds["decoder-self"] = made["dec-depth"]
    assert {kind: len(layers) for kind, layers in model.heads.query.items()} == kinds


@pytest.mark.parametrize(
    "shape", ["post-norm", "ssru", "pre-norm", "pre-norm ssru", "pre-norm since 1.11"]
)
def test_translations_are_those_without_a_cache(shape: str, tmp_path: Path) -> None:
    model = hw.load(toolkit_models.write(tmp_path, toolkit_models.options(**SHAPES[shape])))
    arrays, options = marian_files.read(tmp_path / "model.npz")
    ids = model.tokenizer("the cat ran to the sea")["input_ids"]
    written = model.hf.generate(torch.tensor([ids]), num_beams=1, max_length=12)[0].tolist()[1:]
    expected: list[int] = []
    while len(expected) < 11 and expected[-1:] != [0]:
        expected.append(
            int(toolkit_forward.logits(arrays, options, ids, [*expected, 0])[-1].argmax())
        )
    assert written == expected
    batch = model.tokenizer(toolkit_models.TEXT[:3], padding=True, return_tensors="pt")
    rows = [
        model.hf.generate(**batch, num_beams=3, max_length=15, use_cache=cached)
        for cached in (True, False)
    ]
    assert rows[0].tolist() == rows[1].tolist()


@pytest.mark.parametrize("ending", ["bin", "int8.bin"])
def test_binaries_give_the_matrices_that_they_hold(ending: str, tmp_path: Path) -> None:
    made = toolkit_models.options(**SSRU)
    toolkit_models.write(tmp_path / "npz", made)
    expected, _ = marian_files.read(tmp_path / "npz" / "model.npz")
    toolkit_models.write(tmp_path / "bin", made, ending)
    arrays, options = marian_files.read(tmp_path / "bin" / "model.bin")
    assert options == made and arrays.keys() == expected.keys()
    stored = 0
    for name, array in arrays.items():
        step = np.abs(expected[name]).max() / 127 if "W" in name and "_ln_" not in name else 0
        assert np.abs(array - expected[name]).max() <= (0.501 * step if ending == "int8.bin" else 0)
        stored += bool(step)
    assert stored == 2 * 6 + 2 + 4 + 2 + 1
    model = hw.load(tmp_path / "bin")
    near(forward(model, SOURCE, TARGET), toolkit_forward.logits(arrays, options, SOURCE, TARGET))


def test_scales_of_activations_are_kept_and_change_nothing(tmp_path: Path) -> None:
    made = toolkit_models.options(**SSRU)
    folder = toolkit_models.write(tmp_path, made, "int8.bin")
    plain = forward(hw.load(folder), SOURCE, TARGET)
    arrays, _ = marian_files.read(folder / "model.bin")
    scales = {"encoder_l1_self_Wq_QuantMultA": 12.5, "Wemb_QuantMultA": 8.0, "none_QuantMultA": 3.0}
    scaled = arrays | {name: np.full((1, 1), value, np.float32) for name, value in scales.items()}
    marian_files.write_bin(folder / "model.bin", scaled, made, int8=True)
    model = hw.load(folder)
    assert np.array_equal(forward(model, SOURCE, TARGET), plain)
    kept = {name.removesuffix("_QuantMultA"): value for name, value in scales.items()}
    assert model.hf.config.activation_scales == kept
    saved = hw.load(model.save(tmp_path / "saved"))
    assert saved.hf.config.activation_scales == kept


@pytest.mark.parametrize(
    "shape",
    ["ssru", "pre-norm", "nothing tied", "norms everywhere", "no projection", "no positions"],
)
def test_masks_removal_and_reload_agree_with_the_forward_without_heads(
    shape: str, tmp_path: Path
) -> None:
    model = hw.load(
        toolkit_models.write(tmp_path / "marian", toolkit_models.options(**SHAPES[shape]))
    )
    arrays, options = marian_files.read(tmp_path / "marian" / "model.npz")
    silent = ("encoder_l1_self:0", "encoder_l2_self:1", "encoder_l2_self:3", "decoder_l1_context:2")
    removed = {
        Head("encoder-self", 0, 0),
        Head("encoder-self", 1, 1),
        Head("encoder-self", 1, 3),
        Head("cross", 0, 2),
    }
    expected = toolkit_forward.logits(arrays, options, SOURCE, TARGET, silent)
    mask = HeadMask(model.heads, frozenset(set(model.heads) - removed))
    with hw.masked(model, only=mask):
        near(forward(model, SOURCE, TARGET), expected)
    smaller = model.only(mask)
    near(forward(smaller, SOURCE, TARGET), expected)
    again = hw.load(smaller.save(tmp_path / "smaller"))
    assert np.array_equal(forward(again, SOURCE, TARGET), forward(smaller, SOURCE, TARGET))
    assert again.heads == smaller.heads and again.translate(["the old sea"]) == smaller.translate(
        ["the old sea"]
    )
    whole = hw.load(model.save(tmp_path / "whole"))
    assert np.array_equal(forward(whole, SOURCE, TARGET), forward(model, SOURCE, TARGET))


@pytest.mark.parametrize("separate", [False, True])
def test_a_text_is_cut_as_by_sentencepiece_also_after_saving(
    separate: bool, tmp_path: Path
) -> None:
    """What looks like a language or a special token is letters."""
    folder = toolkit_models.write(tmp_path / "marian", toolkit_models.options(**UNTIED))
    words = folder / "vocab.spm"
    pieces = SentencePieceProcessor(str(words))
    if separate:
        (folder / "trgvocab.spm").write_bytes(words.read_bytes())
        words.rename(folder / "srcvocab.spm")
    model = hw.load(folder)
    lines = [">>pt<< the old sea", "the </s> sea", "<pad>", "<unk> sea", " two  birds "]
    expected = [[*pieces.encode(line), 0] for line in lines]
    for each in (model, hw.load(model.save(tmp_path / "saved"))):
        assert each.tokenizer(lines)["input_ids"] == expected
        assert each.tokenizer(text_target=lines)["input_ids"] == expected
