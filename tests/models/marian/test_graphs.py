"""Graphs of models of Marian with SSRUs in the decoder: ONNX Runtime translates as headwise."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import toolkit_models
import torch
from test_firefox import SENTENCES
from test_folder import PRE_NORM, SSRU

import headwise as hw
from headwise.core.heads import Head

MOST = 40  # tokens


def exported(model: hw.Model, folder: Path, **options: Any) -> Path:
    for needed in ("onnxruntime", "onnxscript"):
        pytest.importorskip(needed, reason=f"{needed} is not installed (headwise[onnx])")
    return hw.export(model, "onnx", folder, say=lambda note: None, **options)


def greedy(folder: Path, ids: list[int], start: int) -> list[int]:
    """What ONNX Runtime writes for a source, token by token, to the end of the sentence, whose number is 0."""
    import onnxruntime

    encoder, decoder = (
        onnxruntime.InferenceSession(folder / f"{name}.onnx") for name in ("encoder", "decoder")
    )
    given = {"input_ids": np.array([ids]), "attention_mask": np.ones((1, len(ids)), np.int64)}
    crossed = encoder.run(None, given)
    names = [each.name for each in encoder.get_outputs()]
    inputs = {"attention_mask": given["attention_mask"], **dict(zip(names, crossed, strict=True))}
    past = {
        each.name: np.zeros((1, each.shape[1], 0, each.shape[3]), np.float32)
        for each in decoder.get_inputs()
        if each.name.startswith("past.")
    }
    outputs = [each.name for each in decoder.get_outputs()]
    made: list[int] = []
    while len(made) < MOST and made[-1:] != [0]:
        token = np.array([[made[-1] if made else start]])
        given = {"decoder_input_ids": token, **inputs, **past}
        given = {each.name: given[each.name] for each in decoder.get_inputs()}
        result = dict(zip(outputs, decoder.run(None, given), strict=True))
        made.append(int(result["logits"][0, -1].argmax()))
        past = {name: result[name.replace("past", "present", 1)] for name in past}
    return made


@pytest.mark.campaign
def test_onnx_runtime_writes_the_same(tmp_path: Path) -> None:
    """Of a model with an empty layer across."""
    shape = toolkit_models.options(**SSRU, **PRE_NORM, dec_depth=2)
    model = hw.load(toolkit_models.write(tmp_path / "it", shape))
    removed = [*(Head("cross", 0, head) for head in range(4)), Head("encoder-self", 1, 2)]
    small = model.without(removed)
    folder = exported(small, tmp_path / "onnx")
    assert hw.check(folder, small).good
    written = []
    for line in toolkit_models.TEXT:
        ids = small.tokenizer(line)["input_ids"]
        own = small.hf.generate(torch.tensor([ids]), num_beams=1, max_length=MOST + 1)[0]
        written.append(greedy(folder, ids, small.hf.config.pad_token_id))
        assert written[-1] == own.tolist()[1:]
    assert len({tuple(each) for each in written}) > 1


@pytest.mark.campaign
def test_a_program_of_torch_export_is_the_model(tmp_path: Path) -> None:
    """`export` compares it; an SSRU reads one token at a time."""
    model = hw.load(toolkit_models.write(tmp_path / "it", toolkit_models.options(**SSRU)))
    folder = hw.export(model, "torch", tmp_path / "torch", say=lambda note: None)
    program = torch.export.load(folder / "decoder.pt2")
    (ids,) = (
        node.meta["val"] for node in program.graph.nodes if node.name.endswith("decoder_input_ids")
    )
    assert ids.shape[1] == 1


def test_the_student_of_firefox_translates_in_onnx_runtime(
    firefox: hw.Model, tmp_path: Path
) -> None:
    folder = exported(firefox, tmp_path / "onnx", attention=["cross/0/5"])
    assert hw.check(folder, firefox).good
    for line, own in zip(SENTENCES[:4], firefox.translate(SENTENCES[:4], beam=1), strict=True):
        ids = firefox.tokenizer(line)["input_ids"]
        made = greedy(folder, ids, firefox.hf.config.pad_token_id)
        assert firefox.tokenizer.decode(made, skip_special_tokens=True) == own
