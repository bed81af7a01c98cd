"""ONNX files in ONNX Runtime and programs of torch.export: both are checked by `export` itself against the model."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from pruned import LINES, greedy, language_model, mended, translator, uneven
from transformers import BertConfig, BertModel, T5Config, T5ForConditionalGeneration

import headwise as hw
from headwise.core.heads import Head
from headwise.core.layout import HeadMask
from headwise.models.engines import graph_files
from headwise.models.engines.graph_files import graphs
from headwise.models.model import Model
from models.engines import asked
from models.tasks.askers import asker

pytest.importorskip("onnxruntime", reason="onnxruntime is not installed (headwise[onnx])")
pytest.importorskip("onnxscript", reason="onnxscript is not installed (headwise[onnx])")


def test_a_repaired_language_model_generates_in_onnx_runtime(tmp_path):
    small = mended(language_model("llama"))
    chosen = [Head("decoder-self", 2, 1), Head("decoder-self", 0, 0)]
    hw.export(small, "onnx", tmp_path / "onnx", attention=chosen)
    ids = small.tokenizer(LINES[0]).input_ids
    file = tmp_path / "onnx" / "model.onnx"
    made, weights = asked.onnxruntime(file, ids, 8, small.tokenizer.eos_token_id)
    assert made == greedy(small, ids, 8)
    later = [(1, 2, 1, len(ids) + step) for step in range(1, 8)]
    assert [each.shape for each in weights] == [(1, 2, len(ids), len(ids)), *later]
    small.hf.set_attn_implementation("eager")
    with torch.no_grad():
        layers = small.hf(torch.tensor([ids]), output_attentions=True).attentions
    expected = torch.stack([layers[head.layer][0, head.head] for head in chosen])
    np.testing.assert_allclose(weights[0][0], expected, atol=1e-4)


@pytest.mark.campaign  # Firefox's student becomes two files in every run (marian/test_graphs.py)
def test_an_encoder_decoder_becomes_two_onnx_files(tmp_path):
    notes: list[str] = []
    small = uneven(translator("post"))
    chosen = [next(iter(small.heads.only([kind]))) for kind in small.heads.kinds]
    hw.export(small, "onnx", tmp_path / "onnx", say=notes.append, attention=list(map(str, chosen)))
    assert {path.name for path in (tmp_path / "onnx").glob("*.onnx")} == {
        "encoder.onnx",
        "decoder.onnx",
    }
    assert "ONNX Runtime" in notes[0]
    assert hw.check(tmp_path / "onnx").good


@pytest.mark.parametrize("family", ["bert", "llama", "gpt2", "marian", "t5"])
def test_attention_weights_as_in_transformers(family):
    """Before and after removal, of two heads of each kind in the order in which they are named."""
    whole = asker(family)
    removed = next(head for head in whole.heads if head.kind != "cross")
    mask = HeadMask.full(whole.heads).without([removed])
    for model in (whole, whole.only(mask, grow=True)):
        chosen = []
        for kind in model.heads.kinds:
            of_kind = list(model.heads.only([kind]))
            chosen += [of_kind[-1], of_kind[0]]
        ids = torch.arange(5, 12).view(1, 7)
        given = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
        if model.hf.config.is_encoder_decoder:
            given["decoder_input_ids"] = ids[:, :4]

        outputs = {}
        with torch.no_grad(), graph_files.traceable(model, "eager"):
            wanted = model.hf(**given, output_attentions=True)
            for graph in graphs(model, chosen):
                inputs = {}
                for name, example in graph.inputs.items():
                    if name.startswith("past"):
                        inputs[name] = example[:1, :, :0]
                    else:
                        inputs[name] = given[name] if name in given else outputs[name]
                outputs |= dict(zip(graph.outputs, graph.module(inputs), strict=True))

        for kind in model.heads.kinds:
            stack = f"{kind.split('-')[0]}_" if len(model.heads.kinds) > 1 else ""
            layers = getattr(wanted, f"{stack}attentions")
            heads = [head for head in chosen if head.kind == kind]
            expected = torch.stack([layers[head.layer][:, head.head] for head in heads], 1)
            assert (outputs[f"attention.{kind}"] - expected).abs().max() < 1e-5


def test_attention_weights_that_cannot_be_given(tmp_path):
    model = language_model("llama")
    with pytest.raises(hw.HeadwiseError, match="files of gguf give none: export to onnx"):
        hw.export(model, "gguf", tmp_path / "gguf", attention=["decoder-self/0/0"])
    with pytest.raises(hw.HeadwiseError, match="decoder-self/9/0"):
        hw.export(model, "onnx", tmp_path / "onnx", attention=["decoder-self/9/0"])
    fewer = graphs(model, [Head("decoder-self", 0, 0)])[0].module
    fewer.layers = {"decoder-self": 5}
    refusal = pytest.raises(hw.HeadwiseError, match=r"in 5 layers, but .* of 3")
    with graph_files.traceable(model, "eager"), refusal:
        fewer(graphs(model)[0].inputs)
    assert not list(tmp_path.iterdir())


@pytest.mark.campaign
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
    with pytest.raises(hw.HeadwiseError, match="something else"):
        hw.export(model, "torch", tmp_path)
    with pytest.raises(
        hw.HeadwiseError,
        match=r"engine 'tensorrt' is unknown; there is ct2 \(CTranslate2\), gguf \(llama.cpp\), onnx",
    ):
        hw.export(model, "tensorrt", tmp_path / "new")
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]
