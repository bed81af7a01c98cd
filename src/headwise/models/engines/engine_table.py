"""Our own engines, a row each. Needs no torch."""

from __future__ import annotations

from headwise.models.engines.engine import engine

engine.row(
    "ct2",
    home="ct2:write_ct2",
    title="CTranslate2",
    types=("float32", "float16", "bfloat16", "int8"),
    modules=("ctranslate2",),
    extra="ct2",
    refusal="why_not_ct2",
    models="Marian, M2M100 and NLLB, BART, mBART, Pegasus, T5, mT5, Whisper; Llama, Mistral, Qwen2, Qwen3",
    uneven="heads of zeros are added up to the fullest layer of the stack",
    empty="the same",
)
engine.row(
    "gguf",
    home="gguf_file:write_gguf",
    title="llama.cpp",
    types=("float16", "float32", "bfloat16", "q8_0"),
    modules=("gguf",),
    extra="gguf",
    refusal="why_not_gguf",
    models="language models of [these families](#llamacpp)",
    uneven="yes, or heads of zeros",
    empty="the same",
)
engine.row(
    "onnx",
    home="graph_files:write_onnx",
    title="ONNX Runtime",
    modules=("onnx", "onnxruntime", "onnxscript"),
    extra="onnx",
    refusal="why_not_graph",
    models="any model of text",
    attention=True,
)
engine.row(
    "torch",
    home="graph_files:write_torch",
    title="PyTorch",
    refusal="why_not_graph",
    models="any model of text, without transformers (`.pt2`)",
)
engine.row(
    "marian",
    home="marian:write_marian",
    title="Marian",
    types=("float32", "int8"),
    refusal="why_not_marian",
    models="models read from [files of Marian](marian.md), such as Firefox's",
    uneven="zeros where heads were",
    empty="the same",
)
engine.row(
    "stock",
    home="stock:write_stock",
    title="transformers",
    types=("as loaded",),
    refusal="why_not_stock",
    models="any model, [without headwise](#an-ordinary-checkpoint)",
    uneven="heads of zeros are added up to the fullest layer, or up to the first number",
    empty="the same",
)
