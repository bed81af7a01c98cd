"""GGUF files, run in llama.cpp itself."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from pruned import (
    LINES,
    LLAMA3,
    SHAPES,
    YARN,
    byte_tokenizer,
    greedy,
    groups,
    language_model,
    mended,
    small_model,
    uneven,
)
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

import headwise as hw
from headwise.core.heads import Head, Site
from headwise.core.layout import HeadMask
from headwise.models.attention.matrices import ZEROS
from headwise.models.engines import gguf_file
from headwise.models.engines.gguf_families import FAMILIES, family_of
from headwise.models.engines.gguf_tensors import places_in_file
from headwise.models.engines.gguf_vocabulary import PRE_TOKENIZERS
from models.engines import asked

pytest.importorskip("gguf", reason="gguf is not installed (headwise[gguf])")
pytest.importorskip("xllamacpp", reason="xllamacpp is not installed (llama.cpp for Python)")


def tokens(lines: list[str]) -> list[tuple[str, dict[str, object]]]:
    """Questions to llama.cpp: how it cuts lines."""
    return [("/tokenize", {"content": line, "add_special": False}) for line in lines]


def compare(small, folder: Path, dtype: str, count: int = 16) -> int:
    """How many greedy tokens of llama.cpp are the model's; its tokens of text always are."""
    hw.export(small, "gguf", folder, dtype)
    ids = [small.tokenizer(line).input_ids for line in LINES]
    options = {"temperature": 0, "return_tokens": True, "ignore_eos": True}
    completion = ("/completion", {"prompt": ids[0], "n_predict": count, **options})
    *cut, got = asked.llama_cpp(folder / "model.gguf", *tokens(LINES), completion)
    assert [answer["tokens"] for answer in cut] == ids
    return sum(a == b for a, b in zip(got["tokens"], greedy(small, ids[0], count), strict=True))


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
    assert compare(small, tmp_path / "float32", "float32") == 16


def test_a_first_layer_without_heads_gives_the_same_tokens(tmp_path):
    """llama.cpp takes the size of heads from the first layer."""
    small = groups(language_model("llama"), empty=0)
    assert small.heads.query["decoder-self"] == (0, 4, 6)
    assert compare(small, tmp_path / "float32", "float32") == 16


def test_qwen3_keeps_its_numbers_where_the_embeddings_are_tied(tmp_path):
    """Elsewhere, and with an empty layer, heads of zeros fill them up."""
    tied = groups(language_model("qwen3", tie_word_embeddings=True), empty=None)
    assert family_of(tied).uneven and compare(tied, tmp_path / "tied", "float32") == 16
    empty = uneven(language_model("qwen3", tie_word_embeddings=True))
    assert not family_of(empty).uneven and compare(empty, tmp_path / "empty", "float32") == 16


@pytest.mark.parametrize("family", SHAPES)
def test_heads_of_zeros_give_the_same_tokens(family, tmp_path):
    """In every family, uneven with an empty layer."""
    assert compare(uneven(small_model(family)), tmp_path / "uneven", "float32") == 16


@pytest.mark.parametrize("family", ["llama", "qwen2", "gemma2", "gemma3_text", "gpt2", "falcon"])
def test_a_repaired_model_gives_the_same_tokens(family, tmp_path):
    """With biases and without, groups of queries, norms on the branch, fused projections."""
    model = language_model(family) if family in ("llama", "qwen2") else small_model(family)
    assert compare(mended(model), tmp_path / "repaired", "float32") == 16


@pytest.mark.parametrize("family", ["gemma2", "bloom"])
def test_a_model_without_any_head_gives_the_same_tokens(family, tmp_path):
    model = small_model(family)
    small = model.only(HeadMask(model.heads, frozenset()))
    assert compare(small, tmp_path / "none", "float32") == 16


@pytest.mark.parametrize("family", ["gemma2", "gpt2", "phi3"])
def test_whole_groups_save_key_value_heads(family, tmp_path):
    """Also where llama.cpp takes queries as wide as the model: these then share the groups that are left."""
    small = groups(small_model(family))
    assert compare(small, tmp_path / "groups", "float32") == 16
    first, *_ = places_in_file(small).values()
    assert len(first.key_value) == {"gemma2": 3, "gpt2": 4, "phi3": 4}[family]


@pytest.mark.parametrize("family", ["gemma3_text", "gpt_oss", "gpt2"])
def test_equal_layers_and_whole_models_need_no_zeros(family, tmp_path):
    model = small_model(family)
    kept = [head for head in model.heads if head.head % 2 == head.layer % 2]
    half = model.only(HeadMask(model.heads, frozenset(kept)))
    for small in (model, half):
        notes = []
        hw.export(small, "gguf", tmp_path / f"{small.heads.total}", "float32", say=notes.append)
        assert bool(notes) == (family == "gpt2" and small is half)
    assert compare(half, tmp_path / "half", "float32") == 16


def test_every_family_of_the_table_is_run():
    assert set(FAMILIES) == set(SHAPES)


def test_zeros_go_up_to_the_fullest_layer_and_groups_share_again():
    """Copies of a key/value head, made for uneven groups, are one head in the file: at most what the model had."""
    model = small_model("gemma")
    gone = [Head("decoder-self", 0, head) for head in (0, 2, 3)]
    gone += [Head("decoder-self", 1, head) for head in range(4)]
    small = model.without(gone, grow=True)
    assert small.heads.key_value["decoder-self"] == (5, 2, 4)
    first, second, third = places_in_file(small).values()
    assert first.query == [0, -1, 1, 2, 3, 4, -1, -1]
    assert first.key_value == [0, 1, 3, -1]
    assert second.query == [0, 1, 2, 3, -1, -1, -1, -1]
    assert second.key_value == [0, 1, -1, -1]
    assert third.query == [*range(8)]
    with torch.no_grad():  # copies that training has moved apart are heads of their own
        small.discovery.modules[Site("decoder-self", 0)].k_proj.weight[16 * 2] += 1
    first, *_ = places_in_file(small).values()
    assert len(first.key_value) == 4 and ZEROS not in first.key_value


def test_the_cost_of_zeros_is_said(tmp_path):
    small = groups(small_model("gemma2"))
    notes = []
    hw.export(small, "gguf", tmp_path / "out", "float32", say=notes.append)
    # layers of 2, 0 and 6 of 6 heads, on 1, 0 and 3 of 3: 10 and 5 of zeros, two matrices each, size 16, width 64
    assert notes[0].startswith("10 query heads and 5 key/value heads of zeros were added, 122,880")


@pytest.mark.parametrize(
    ("family", "changes", "why"),
    [
        ("smollm3", {"no_rope_layers": [1, 1, 1, 1]}, "every fourth layer"),
        ("gemma2", {"layer_types": ["full_attention"] * 3}, "windows to other layers"),
        ("qwen3_moe", {"norm_topk_prob": False}, "norm_topk_prob"),
        ("cohere", {"use_qk_norm": True}, "norms of queries"),
        ("granite", {"rope_parameters": YARN}, "yarn"),
        ("gemma", {"attention_bias": True}, "no bias blk.0.attn_output"),
        ("nemotron", {"head_dim": 16}, "as wide as the model"),
    ],
)
def test_what_llama_cpp_would_compute_otherwise_is_refused(family, changes, why):
    assert why in gguf_file.why_not_gguf(small_model(family, **changes))


@pytest.mark.parametrize("cuts", PRE_TOKENIZERS, ids=PRE_TOKENIZERS.values())
def test_llama_cpp_cuts_text_into_the_same_tokens(cuts, tmp_path):
    steps = {
        "gpt-2": pre_tokenizers.ByteLevel(add_prefix_space=False),
        "digits": pre_tokenizers.Digits(individual_digits=True),
    }
    parts = [
        steps[cut] if cut in steps else pre_tokenizers.Split(Regex(cut), "isolated") for cut in cuts
    ]
    if "gpt-2" not in cuts:
        parts.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False))
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(parts)
    tokenizer.decoder = decoders.ByteLevel()
    text = [*LINES, "x1234567y  DON'T\n\n\tdo (it), naïve 日本 ٣٤!?/\n", "aaa AAA aAa 2024-12-31  "]
    trainer = trainers.BpeTrainer(
        vocab_size=600,
        special_tokens=["<s>", "</s>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(text * 3, trainer)
    model = language_model("llama", vocab_size=tokenizer.get_vocab_size())
    model.tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>"
    )
    hw.export(model, "gguf", tmp_path / "out", "float32")
    cut = asked.llama_cpp(tmp_path / "out" / "model.gguf", *tokens(text))
    own = [model.tokenizer(line, add_special_tokens=False).input_ids for line in text]
    assert [answer["tokens"] for answer in cut] == own


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "q8_0"])
def test_types(dtype, tmp_path):
    small = uneven(language_model("llama"))
    assert compare(small, tmp_path / dtype, dtype, 4) >= (4 if dtype == "float16" else 1)
    hw.export(small, "gguf", tmp_path / "wide", "float32")
    wide = (tmp_path / "wide" / "model.gguf").stat().st_size
    assert (tmp_path / dtype / "model.gguf").stat().st_size < 0.7 * wide


def test_the_output_bias_of_an_empty_layer_stays(tmp_path):
    model = language_model("llama", attention_bias=True)
    small = uneven(model)
    bias = small.discovery.modules[Site("decoder-self", 1)].o_proj.bias
    with torch.no_grad():
        bias.normal_(0, 2)
    assert compare(small, tmp_path / "float32", "float32") == 16


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
    assert compare(uneven(model), tmp_path / "float32", "float32") == 16


def test_a_tokenizer_that_llama_cpp_would_cut_otherwise_is_refused():
    model = language_model("llama")
    content = json.loads(byte_tokenizer().backend_tokenizer.to_str())
    before = content["pre_tokenizer"]
    threes = {"type": "Digits", "individual_digits": False}
    for steps, why in (
        ({"type": "Whitespace"}, "bytes"),
        ({"type": "Sequence", "pretokenizers": [threes, before]}, "pattern"),
    ):
        content["pre_tokenizer"] = steps
        model.tokenizer = PreTrainedTokenizerFast(
            tokenizer_object=Tokenizer.from_str(json.dumps(content))
        )
        assert why in gguf_file.why_not_gguf(model)


def test_a_family_without_such_an_architecture_is_refused(tmp_path):
    model = language_model(
        "llama", rope_parameters={"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}
    )
    with pytest.raises(hw.HeadwiseError, match="length of the text"):
        hw.export(model, "gguf", tmp_path / "out")
    assert not (tmp_path / "out").exists()
