"""Tiny models of Marian with random weights, written as the toolkit writes them, by its names and shapes."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import sentencepiece

from headwise.models.marian import files as marian_files

WIDTH, INNER, HEADS = 16, 24, 4
TEXT = [
    "the cat sat on the mat",
    "a dog ran to the old house",
    "she sees the small bird in a tree",
    "we read old books and new letters",
    "they sing songs of the sea",
]


def vocabulary(size: int = 50) -> bytes:
    """A vocabulary of SentencePiece with Marian's numbers: the end of a sentence is 0, the unknown piece 1."""
    made = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(TEXT * 20),
        model_writer=made,
        vocab_size=size,
        bos_id=-1,
        eos_id=0,
        unk_id=1,
        hard_vocab_limit=False,
        minloglevel=2,
    )
    return made.getvalue()


def options(**changes: Any) -> dict[str, Any]:
    """The configuration of a model: 2 + 1 layers of 4 heads, post-norm, one matrix of words. Names with _ for -."""
    usual = {
        "type": "transformer",
        "enc-depth": 2,
        "dec-depth": 1,
        "dim-emb": WIDTH,
        "dec-cell": "gru",
        "tied-embeddings": False,
        "tied-embeddings-all": True,
        "tied-embeddings-src": False,
        "transformer-decoder-autoreg": "self-attention",
        "transformer-ffn-activation": "relu",
        "transformer-ffn-depth": 2,
        "transformer-dim-ffn": INNER,
        "transformer-heads": HEADS,
        "transformer-preprocess": "",
        "transformer-postprocess": "dan",
        "transformer-postprocess-emb": "d",
        "transformer-postprocess-top": "",
        "transformer-tied-layers": [],
        "output-omit-bias": False,
    }
    return usual | {name.replace("_", "-"): value for name, value in changes.items()}


def shapes(made: dict[str, Any], source: int, target: int) -> dict[str, tuple[int, int]]:
    """The matrices of a model by Marian's names. source, target: how many words each side has."""
    found: dict[str, tuple[int, int]] = {}

    def attention(name: str) -> None:
        for letter in "qkv" if made.get("transformer-no-projection") else "qkvo":
            found[f"{name}_W{letter}"] = (WIDTH, WIDTH)
            found[f"{name}_b{letter}"] = (1, WIDTH)
        norms(f"{name}_Wo", f"{name}_Wo")

    def norms(before: str, after: str) -> None:
        for part in ("scale", "bias"):
            if "n" in made["transformer-preprocess"]:
                found[f"{before}_ln_{part}_pre"] = (1, WIDTH)
            if "n" in made["transformer-postprocess"]:
                found[f"{after}_ln_{part}"] = (1, WIDTH)

    for side in ("encoder", "decoder"):
        for part in ("scale", "bias"):
            if "n" in made["transformer-postprocess-emb"]:
                found[f"{side}_emb_ln_{part}_pre"] = (1, WIDTH)
            if "n" in made["transformer-postprocess-top"]:
                found[f"{side}_top_ln_{part}"] = (1, WIDTH)
        layers = range(1, made[f"{side[:3]}-depth"] + 1)
        tied = made["transformer-tied-layers"] if side == "decoder" else []
        for layer in sorted({*tied}) or layers:
            name = f"{side}_l{layer}"
            if side == "decoder" and made["transformer-decoder-autoreg"] == "rnn":
                found[f"{name}_rnn_W"] = found[f"{name}_rnn_Wf"] = (WIDTH, WIDTH)
                found[f"{name}_rnn_bf"] = (1, WIDTH)
                norms(f"{name}_rnn", f"{name}_rnn_ffn")
            else:
                attention(f"{name}_self")
            if side == "decoder":
                attention(f"{name}_context")
            found |= {f"{name}_ffn_W1": (WIDTH, INNER), f"{name}_ffn_b1": (1, INNER)}
            found |= {f"{name}_ffn_W2": (INNER, WIDTH), f"{name}_ffn_b2": (1, WIDTH)}
            norms(f"{name}_ffn_ffn", f"{name}_ffn_ffn")
    if made["tied-embeddings-all"] or made["tied-embeddings-src"]:
        found["Wemb"] = (max(source, target), WIDTH)
    else:
        found |= {"encoder_Wemb": (source, WIDTH), "decoder_Wemb": (target, WIDTH)}
    if not made["tied-embeddings-all"] and not made["tied-embeddings"]:
        found["decoder_ff_logit_out_W"] = (WIDTH, target)
    if not made["output-omit-bias"]:
        found["decoder_ff_logit_out_b"] = (1, target)
    return found


def matrices(
    made: dict[str, Any], source: int = 50, target: int = 50, seed: int = 0
) -> dict[str, np.ndarray]:
    """Random matrices, so large that attention is far from uniform, and no bias or norm is without effect."""
    draw = np.random.default_rng(seed)
    found = {}
    for name, shape in shapes(made, source, target).items():
        size = 0.6 if "_W" in name else 0.3
        values = draw.normal(0, size, shape)
        found[name] = (values + ("ln_scale" in name)).astype(np.float32)
    return found


def write(folder: Path, made: dict[str, Any], ending: str = "npz", **sizes: Any) -> Path:
    """A folder with a model and its vocabulary. ending: npz, bin, or int8.bin."""
    folder.mkdir(parents=True, exist_ok=True)
    words = vocabulary()
    (folder / "vocab.spm").write_bytes(words)
    count = len(sentencepiece.SentencePieceProcessor(model_proto=words))
    arrays = matrices(made, count, count, **sizes)
    if ending == "npz":
        marian_files.write_npz(folder / "model.npz", arrays, made)
    else:
        marian_files.write_bin(folder / "model.bin", arrays, made, int8=ending == "int8.bin")
    return folder
