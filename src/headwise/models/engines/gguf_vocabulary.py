"""A tokenizer as llama.cpp's keys, which a GGUF file has inside."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from headwise.core.errors import HeadwiseError
from headwise.models.model import Model

# How llama.cpp cuts text before byte-pair merges, by the cuts in tokenizer.json: patterns, `digits` for each digit alone,
# `gpt-2` for GPT-2's own pattern.
PRE_TOKENIZERS = {
    ("gpt-2",): "gpt-2",
    ("digits", "gpt-2"): "starcoder",
    (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",  # noqa: E501
    ): "llama-bpe",
    (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    ): "qwen2",
    (
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",  # noqa: E501
    ): "gpt-4o",
    (r" ?[^(\s|[.,!?…。，、।۔،])]+",): "bloom",
}


def vocabulary(model: Model) -> dict[str, Any]:
    """The tokenizer as llama.cpp's keys, from its tokenizer.json.

    Byte-level vocabularies are `gpt2` with a known pre-tokenizer, those with bytes as fallback (SentencePiece) are
    `llama`. Raises HeadwiseError for any other: llama.cpp would cut text into other tokens without a word.
    """
    backend = getattr(model.tokenizer, "backend_tokenizer", None)
    if backend is None:
        raise HeadwiseError("its tokenizer is not a fast one, with a tokenizer.json")
    content = json.loads(backend.to_str())
    core = content["model"]
    added = {entry["id"]: entry for entry in content["added_tokens"]}
    if core["type"] != "BPE":
        raise HeadwiseError(
            f"its tokenizer is of type {core['type']}: only byte pairs (BPE) are written"
        )
    # As text before tokenizers 0.20, as pairs since: a token may have a blank in it.
    merges = [pair if isinstance(pair, str) else " ".join(pair) for pair in core["merges"]]

    # Embeddings may have more rows than words; llama.cpp wants a name for each row.
    size = max(model.hf.config.vocab_size, max(core["vocab"].values()) + 1)
    names: list[str | None] = [None] * size
    for text, number in core["vocab"].items():
        names[number] = text
    for number, entry in added.items():
        names[number] = entry["content"]
    kinds = [kind_of_token(name, added.get(number)) for number, name in enumerate(names)]
    tokens = [f"[unused {number}]" if name is None else name for number, name in enumerate(names)]

    if core.get("byte_fallback"):
        # Reversed, so that of several merges to one token the first counts.
        rank = {pair.replace(" ", ""): place for place, pair in reversed(list(enumerate(merges)))}
        # llama.cpp joins the pair with the highest score first.
        scores = [float(-rank.get(token, len(merges))) for token in tokens]
        return {
            "model": "llama",
            "pre": "default",
            "tokens": tokens,
            "kinds": kinds,
            "scores": scores,
        }
    return {
        "model": "gpt2",
        "pre": pre_tokenizer(content),
        "tokens": tokens,
        "kinds": kinds,
        "merges": merges,
    }


def kind_of_token(name: str | None, added: Mapping[str, Any] | None) -> int:
    """llama.cpp's type of a token: 1 normal, 3 control, 4 user-defined, 5 unused, 6 byte."""
    if name is None:
        return 5
    if added is not None:
        return 3 if added["special"] else 4
    return 6 if len(name) == 6 and name.startswith("<0x") and name.endswith(">") else 1


def pre_tokenizer(content: Mapping[str, Any]) -> str:
    """llama.cpp's name of a byte-level pre-tokenizer. Raises HeadwiseError for one that it does not have."""
    steps = content["pre_tokenizer"] or {}
    steps = steps.get("pretokenizers", [steps])
    if not any(step.get("type") == "ByteLevel" for step in steps):
        raise HeadwiseError(
            "its tokenizer works on letters, not on bytes: llama.cpp reads only byte-level byte pairs"
        )
    cuts = tuple(cut for cut in map(cut_of, steps) if cut)
    if cuts not in PRE_TOKENIZERS:
        raise HeadwiseError(
            "its tokenizer cuts text by a pattern that llama.cpp is not known to have"
        )
    return PRE_TOKENIZERS[cuts]


def cut_of(step: Mapping[str, Any]) -> str:
    """Where a step of a pre-tokenizer cuts, in the words of PRE_TOKENIZERS; empty where it does not."""
    if step["type"] == "ByteLevel":
        return "gpt-2" if step.get("use_regex", True) else ""
    if step["type"] == "Digits" and step["individual_digits"]:
        return "digits"
    if step["type"] == "Split":
        return str(step["pattern"].get("Regex"))
    return str(step["type"])


def add_vocabulary(writer: Any, model: Model) -> None:
    """The tokenizer, its special tokens and its chat template."""
    words = vocabulary(model)
    tokenizer = model.tokenizer
    add: dict[str, Callable[[Any], None]] = {
        "model": writer.add_tokenizer_model,
        "pre": writer.add_tokenizer_pre,
        "tokens": writer.add_token_list,
        "kinds": writer.add_token_types,
        "scores": writer.add_token_scores,
        "merges": writer.add_token_merges,
    }
    for name, value in words.items():
        add[name](value)
    for name in ("bos", "eos", "unk", "pad", "sep"):
        number = getattr(tokenizer, f"{name}_token_id", None)
        if number is not None:
            getattr(writer, f"add_{name}_token_id")(number)
    framed = tokenizer("a").input_ids  # which special tokens the tokenizer adds by itself
    writer.add_add_bos_token(framed[:1] == [tokenizer.bos_token_id])
    writer.add_add_eos_token(framed[-1:] == [tokenizer.eos_token_id])
    if words["model"] == "llama":
        first = tokenizer.tokenize("a")
        writer.add_add_space_prefix(bool(first) and first[0].startswith("▁"))
    if isinstance(getattr(tokenizer, "chat_template", None), str):
        writer.add_chat_template(tokenizer.chat_template)
