"""GGUF files, run in llama.cpp itself."""

from __future__ import annotations

import json
import urllib.request
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from pruned import LINES, LLAMA3, YARN, byte_tokenizer, greedy, groups, language_model, uneven
from tokenizers import Tokenizer, decoders, models, normalizers, trainers
from transformers import PreTrainedTokenizerFast

import headwise as hw
from headwise.engines import gguf_file
from headwise.heads import Site

gguf = pytest.importorskip("gguf", reason="gguf is not installed (headwise[gguf])")
xllamacpp = pytest.importorskip(
    "xllamacpp", reason="xllamacpp is not installed (llama.cpp for Python)"
)


@contextmanager
def llama_cpp(path: Path):
    """A llama.cpp server on the loopback address, as a function (path, body) -> answer."""
    params = xllamacpp.CommonParams()
    params.model.path, params.n_ctx, params.n_parallel, params.port = str(path), 256, 1, 0
    params.cpuparams.n_threads, params.warmup, params.verbosity = 1, False, -1
    server = xllamacpp.Server(params)

    def ask(where: str, **body):
        request = urllib.request.Request(
            server.listening_address + where,
            json.dumps(body).encode(),
            {"Content-Type": "application/json"},
        )
        return json.loads(urllib.request.urlopen(request, timeout=60).read())

    yield ask


def compare(small, folder: Path, dtype: str, count: int = 16) -> int:
    """How many greedy tokens of llama.cpp are the model's; its tokens of text always are."""
    hw.export(small, "gguf", folder, dtype)
    with llama_cpp(folder / "model.gguf") as ask:
        for line in LINES:
            assert (
                ask("/tokenize", content=line, add_special=False)["tokens"]
                == small.tokenizer(line).input_ids
            )
        prompt = small.tokenizer(LINES[0]).input_ids
        got = ask(
            "/completion",
            prompt=prompt,
            n_predict=count,
            temperature=0,
            return_tokens=True,
            ignore_eos=True,
        )
    return sum(a == b for a, b in zip(got["tokens"], greedy(small, prompt, count), strict=True))


@pytest.mark.parametrize(
    ("family", "changes"),
    [
        ("llama", {"rope_parameters": LLAMA3, "attention_bias": True, "mlp_bias": True}),
        ("llama", {"rope_parameters": YARN, "tie_word_embeddings": True}),
        ("mistral", {"sliding_window": None}),
        ("qwen2", {}),
    ],
)
def test_uneven_layers_and_an_empty_one_give_the_same_tokens(family, changes, tmp_path):
    small = uneven(language_model(family, **changes))
    assert small.heads.query["decoder-self"][1] == 0
    assert compare(small, tmp_path / "f32", "f32") == 16


def test_a_first_layer_without_heads_gives_the_same_tokens(tmp_path):
    """llama.cpp takes the size of heads from the first layer."""
    small = groups(language_model("llama"), empty=0)
    assert small.heads.query["decoder-self"] == (0, 4, 6)
    assert compare(small, tmp_path / "f32", "f32") == 16


def test_qwen3_gives_the_same_tokens_and_wants_a_head_in_every_layer(tmp_path):
    model = language_model("qwen3", tie_word_embeddings=True)
    assert compare(groups(model, empty=None), tmp_path / "f32", "f32") == 16
    assert "layer 1 has none" in gguf_file.refusal(uneven(model))
    assert "tied" in gguf_file.refusal(language_model("qwen3", tie_word_embeddings=False))


@pytest.mark.parametrize("dtype", ["f16", "bf16", "q8_0"])
def test_types(dtype, tmp_path):
    small = uneven(language_model("llama"))
    assert compare(small, tmp_path / dtype, dtype, 4) >= (4 if dtype == "f16" else 1)
    hw.export(small, "gguf", tmp_path / "wide", "f32")
    wide = (tmp_path / "wide" / "model.gguf").stat().st_size
    assert (tmp_path / dtype / "model.gguf").stat().st_size < 0.7 * wide


def test_the_output_bias_of_an_empty_layer_stays(tmp_path):
    model = language_model("llama", attention_bias=True)
    small = uneven(model)
    bias = small.discovery.modules[Site("decoder-self", 1)].o_proj.bias
    with torch.no_grad():
        bias.normal_(0, 2)
    assert compare(small, tmp_path / "f32", "f32") == 16


def test_a_vocabulary_with_bytes_as_fallback(tmp_path):
    """As SentencePiece's: merges become scores, so that llama.cpp cuts text into the same tokens."""
    tokenizer = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    special = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    trainer = trainers.BpeTrainer(
        vocab_size=400, special_tokens=special, show_progress=False, max_token_length=8
    )
    tokenizer.train_from_iterator(LINES * 3, trainer)
    content = json.loads(tokenizer.to_str())
    content["added_tokens"] = content["added_tokens"][:3]  # bytes are ordinary tokens
    tokenizer = Tokenizer.from_str(json.dumps(content))
    model = language_model("llama", vocab_size=400)
    model.tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", unk_token="<unk>"
    )
    assert compare(uneven(model), tmp_path / "f32", "f32") == 16


def test_a_tokenizer_that_llama_cpp_would_cut_otherwise_is_refused():
    model = language_model("llama")
    content = json.loads(byte_tokenizer().backend_tokenizer.to_str())
    content["pre_tokenizer"] = {"type": "Whitespace"}
    model.tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(json.dumps(content))
    )
    assert "bytes" in gguf_file.refusal(model)


def test_a_family_without_such_an_architecture_is_refused(tmp_path):
    model = language_model(
        "llama", rope_parameters={"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}
    )
    with pytest.raises(hw.HeadwiseError, match="length of the text"):
        hw.export(model, "gguf", tmp_path / "out")
    assert not (tmp_path / "out").exists()
