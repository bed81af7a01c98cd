"""ONNX files in ONNX Runtime and programs of torch.export: both are checked by `export` itself against the model."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from pruned import LINES, greedy, language_model, translator, uneven
from transformers import BertConfig, BertModel, T5Config, T5ForConditionalGeneration

import headwise as hw
from headwise.engines import graph_files
from headwise.engines.graph_files import graphs
from headwise.heads import HeadMask
from headwise.model import Model
from tasks.askers import asker


def test_a_language_model_generates_in_onnx_runtime(tmp_path):
    onnxruntime = pytest.importorskip(
        "onnxruntime", reason="onnxruntime is not installed (headwise[onnx])"
    )
    pytest.importorskip("onnxscript", reason="onnxscript is not installed (headwise[onnx])")
    small = uneven(language_model("llama"))
    hw.export(small, "onnx", tmp_path / "onnx")
    session = onnxruntime.InferenceSession(str(tmp_path / "onnx" / "model.onnx"))
    states = [one for one in session.get_inputs() if one.name.startswith("past")]
    past = {one.name: np.zeros((1, one.shape[1], 0, one.shape[3]), np.float32) for one in states}
    ids = small.tokenizer(LINES[0]).input_ids
    new, made = ids, []
    for _ in range(8):
        length = len(ids) + len(made)
        logits, *states = session.run(
            None,
            {
                "input_ids": np.array([new]),
                "attention_mask": np.ones((1, length), np.int64),
                **past,
            },
        )
        logits[0, -1, small.tokenizer.eos_token_id] = -np.inf
        made.append(int(logits[0, -1].argmax()))
        new, past = made[-1:], dict(zip(past, states, strict=True))
    assert made == greedy(small, ids, 8)


def test_an_encoder_decoder_becomes_two_onnx_files(tmp_path):
    pytest.importorskip("onnxruntime", reason="onnxruntime is not installed (headwise[onnx])")
    pytest.importorskip("onnxscript", reason="onnxscript is not installed (headwise[onnx])")
    notes: list[str] = []
    hw.export(uneven(translator("post")), "onnx", tmp_path / "onnx", say=notes.append)
    assert {path.name for path in (tmp_path / "onnx").glob("*.onnx")} == {
        "encoder.onnx",
        "decoder.onnx",
    }
    assert "ONNX Runtime" in notes[0]


@pytest.mark.parametrize("family", ["bert", "llama", "marian"])
def test_attention_weights_as_in_transformers(family, tmp_path):
    """Before and after removal, of two heads of each kind in the order in which they are named."""
    onnxruntime = pytest.importorskip(
        "onnxruntime", reason="onnxruntime is not installed (headwise[onnx])"
    )
    pytest.importorskip("onnxscript", reason="onnxscript is not installed (headwise[onnx])")
    whole = asker(family)
    first = next(head for head in whole.heads if head.kind != "encoder-self" or family == "bert")
    mask = HeadMask.full(whole.heads).without([first])
    for model in (whole, whole.remove(mask, grow=True)):
        folder = tmp_path / str(model.heads.total)
        chosen = []
        for kind in model.heads.kinds:
            of_kind = list(model.heads.only([kind]))
            chosen += [of_kind[-1], of_kind[0]]
        hw.export(model, "onnx", folder, attention=[str(head) for head in chosen])

        ids = torch.arange(5, 12).view(1, 7)
        mask_of_ids = torch.ones_like(ids)
        inputs = {"input_ids": ids, "attention_mask": mask_of_ids}
        if model.hf.config.is_encoder_decoder:
            inputs["decoder_input_ids"] = ids[:, :4]
        model.hf.set_attn_implementation("eager")
        with torch.no_grad():
            wanted = model.hf(**inputs, output_attentions=True)
        given = {name: array.numpy() for name, array in inputs.items()}
        for file in sorted(folder.glob("*.onnx"), reverse=True):  # the encoder first
            session = onnxruntime.InferenceSession(str(file))
            feeds = {}
            for each in session.get_inputs():
                groups, size = each.shape[1], each.shape[-1]
                if each.name.startswith("past"):
                    given[each.name] = np.zeros((1, groups, 0, size), np.float32)
                feeds[each.name] = given[each.name]
            names = [one.name for one in session.get_outputs()]
            outputs = dict(zip(names, session.run(None, feeds), strict=True))
            given |= {name: value for name, value in outputs.items() if name.startswith("cross")}
            for kind in model.heads.kinds:
                if f"attention.{kind}" not in outputs:
                    continue
                stack = f"{kind.split('-')[0]}_" if len(model.heads.kinds) > 1 else ""
                layers = getattr(wanted, f"{stack}attentions")
                heads = [head for head in chosen if head.kind == kind]
                expected = torch.stack([layers[head.layer][:, head.head] for head in heads], 1)
                assert np.abs(outputs.pop(f"attention.{kind}") - expected.numpy()).max() < 1e-4
                named = session.get_modelmeta().custom_metadata_map[f"attention.{kind}"]
                assert named == " ".join(map(str, heads))
                chosen = [head for head in chosen if head.kind != kind]
        assert not chosen
        found = hw.check(folder)
        assert [one.good for one in found.findings if one.what == "attention"] == [True] * len(
            model.heads.kinds
        )


def test_attention_weights_that_cannot_be_given(tmp_path):
    model = language_model("llama")
    with pytest.raises(hw.HeadwiseError, match="files of gguf give none: export to onnx"):
        hw.export(model, "gguf", tmp_path / "gguf", attention=["decoder-self/0/0"])
    with pytest.raises(hw.HeadwiseError, match="decoder-self/9/0"):
        hw.export(model, "onnx", tmp_path / "onnx", attention=["decoder-self/9/0"])
    chosen = {"decoder-self": []}
    fewer = graph_files.AttentionGraph(graphs(model)[0].module, chosen, {"decoder-self": 5})
    with torch.no_grad(), pytest.raises(hw.HeadwiseError, match=r"in 5 layers, but .* of 3"):
        fewer(graphs(model)[0].inputs)
    assert not list(tmp_path.iterdir())


def test_programs_of_torch_export(tmp_path):
    small = dict(hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=32)
    bert = BertModel(BertConfig(vocab_size=50, **small))
    hw.export(uneven(Model(bert, None, "bert")), "torch", tmp_path / "bert")
    t5 = T5Config(
        vocab_size=50,
        d_model=32,
        d_kv=8,
        d_ff=32,
        num_layers=2,
        num_heads=4,
        decoder_start_token_id=0,
    )
    hw.export(uneven(Model(T5ForConditionalGeneration(t5), None, "t5")), "torch", tmp_path / "t5")
    program = torch.export.load(tmp_path / "t5" / "encoder.pt2").module()
    assert program(
        inputs={
            name: torch.ones(2, 3, dtype=torch.int64) for name in ("input_ids", "attention_mask")
        }
    )


@pytest.mark.parametrize("family", ["llama", "gpt2", "marian", "t5", "bert"])
def test_inputs_are_made_on_the_device_of_the_model(family):
    """Those of other sizes were made on the CPU. The device of tensors without numbers stands for a GPU."""
    model = asker(family)
    model.hf.to("meta")
    for graph in graphs(model):
        for sizes in graph_files.SIZES:
            inputs = graph_files.resized(graph, sizes)
            for given in (graph.inputs, inputs):
                assert {tensor.device.type for tensor in given.values()} == {"meta"}
            if family in ("llama", "gpt2"):  # others ask for numbers of the mask
                with torch.no_grad(), graph_files.traceable(model, "eager"):
                    outputs = graph.module(inputs)
                assert {output.device.type for output in outputs} == {"meta"}


def test_a_graph_that_computes_something_else_is_refused():
    (graph,) = graphs(language_model("llama"))
    wrong = lambda inputs: [output * 1.01 for output in graph.module(inputs)]  # noqa: E731
    with torch.no_grad(), pytest.raises(hw.HeadwiseError, match="differs"):
        graph_files.check_engine(graph, wrong, "an engine")


def test_a_graph_that_stops_at_other_sizes_is_refused():
    def stops(inputs):
        raise RuntimeError("Ne(s97, 3)")

    (graph,) = graphs(language_model("llama"))
    with torch.no_grad(), pytest.raises(hw.HeadwiseError, match=r"another length \(Ne\(s97, 3\)\)"):
        graph_files.check_engine(graph, stops, "an engine")


def test_a_folder_in_use_and_an_unknown_engine_are_refused(tmp_path):
    (tmp_path / "mine.txt").write_text("mine")
    model = language_model("llama")
    with pytest.raises(hw.HeadwiseError, match="not empty"):
        hw.export(model, "torch", tmp_path)
    with pytest.raises(
        hw.HeadwiseError,
        match=r"engine 'tensorrt' is unknown; there is ct2, gguf, onnx, torch, mlx\.",
    ):
        hw.export(model, "tensorrt", tmp_path / "new")
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]
