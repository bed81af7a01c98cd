"""Marian itself (the package pymarian) as the judge: models that it trains score as it scores them, or are refused; files
that headwise writes translate, score and align there as here."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import toolkit_models
import torch
import yaml
from test_folder import NEW, PRE_NORM, SSRU

import headwise as hw
from headwise.core.heads import Head

pytest.importorskip("pymarian", reason="pymarian is not installed (600 MB: make engines)")

SOURCES = [*toolkit_models.TEXT, "the old cat sees a small tree"]
TARGETS = [" ".join(reversed(line.split())) for line in SOURCES]
USUAL = {
    "type": "transformer",
    "enc-depth": 2,
    "dec-depth": 2,
    "dim-emb": 32,
    "transformer-dim-ffn": 48,
    "transformer-heads": 4,
    "tied-embeddings-all": True,
    "transformer-ffn-activation": "relu",
}
PRE = {
    "transformer-preprocess": "n",
    "transformer-postprocess": "da",
    "transformer-postprocess-top": "n",
}
CELL = {"transformer-decoder-autoreg": "rnn", "dec-cell": "ssru"}
READ: dict[str, dict[str, Any]] = {
    "post-norm": {},
    "ssru": CELL,
    "pre-norm": PRE,
    "pre-norm ssru": PRE | CELL,
    "norms before and after": {"transformer-preprocess": "n", "transformer-postprocess": "dan"},
    "gelu": {"transformer-ffn-activation": "gelu"},
    "untied, other sizes": {"tied-embeddings-all": None, "transformer-decoder-dim-ffn": 40},
    "no bias": {"output-omit-bias": True, "transformer-guided-alignment-layer": 1},
    "tied layers": {"dec-depth": 3, "transformer-tied-layers": [2, 2, 3]},
    "tied ssru": CELL | {"dec-depth": 3, "transformer-tied-layers": [1, 2, 1]},
    "no projection": {"transformer-no-projection": True},
    "no positions": {"transformer-disable-position-embeddings": True},
    "all of these": PRE
    | CELL
    | {
        "transformer-tied-layers": [1, 1],
        "transformer-no-projection": True,
        "transformer-disable-position-embeddings": True,
    },
}
# Options that change nothing in this Marian: the model is that without them, bit by bit.
UNUSED = [
    "transformer-train-position-embeddings",
    "transformer-no-affine",
    "transformer-no-bias",
    "embedding-normalization",
]
REFUSED: dict[str, dict[str, Any]] = {
    "right-left": {"right-left": True},
    "transformer-decoder-ffn-depth": {"transformer-decoder-ffn-depth": 1},
    "transformer-ffn-depth": {"transformer-ffn-depth": 3},
    "transformer-pool": {"transformer-pool": True},
    "transformer-rnn-projection": CELL | {"transformer-rnn-projection": True},
    "average-attention": {"transformer-decoder-autoreg": "average-attention"},
}


def marian(command: str, *arguments: Any) -> str:
    """What a command of Marian writes, one thread."""
    words = [sys.executable, "-m", "pymarian", command, *map(str, arguments)]
    small = ["--quiet", "--cpu-threads", "1", "--workspace", "128"]
    done = subprocess.run([*words, *small], capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def trained(folder: Path, changes: dict[str, Any]) -> Path:
    """A model after 30 updates, with its vocabulary."""
    folder.mkdir()
    (folder / "vocab.spm").write_bytes(toolkit_models.vocabulary())
    (folder / "source").write_text("\n".join(SOURCES * 10) + "\n")
    (folder / "target").write_text("\n".join(TARGETS * 10) + "\n")
    words = []
    for name, value in {**USUAL, **changes}.items():
        given = value if isinstance(value, list) else [value]
        words += [] if value is None else [f"--{name}"] if value is True else [f"--{name}", *given]
    files = ["--train-sets", folder / "source", folder / "target", "--model", folder / "model.npz"]
    files += ["--vocabs", *[folder / "vocab.spm"] * 2]
    rest = ["--after-batches", 30, "--mini-batch", 12, "--learn-rate", 0.005, "--seed", 1]
    marian("train", *words, *files, *rest, "--overwrite")
    return folder


def lines(path: Path, text: list[str]) -> Path:
    path.write_text("\n".join(text) + "\n")
    return path


def beside(folder: Path) -> list[Any]:
    """The options that name a folder's model and vocabulary."""
    return ["-m", folder / "model.npz", "-v", folder / "vocab.spm", folder / "vocab.spm"]


def scores(folder: Path, scratch: Path) -> list[float]:
    """The log probabilities of the targets in Marian."""
    files = [lines(scratch / "s", SOURCES), lines(scratch / "t", TARGETS)]
    return [float(each) for each in marian("score", *beside(folder), "-t", *files).split()]


def alike(one: str, other: str) -> bool:
    """Whether two translations are the same: one that never ends is cut at other lengths."""
    short, long = sorted([one.strip(), other.strip()], key=len)
    return long.startswith(short)


def own_scores(model: hw.Model) -> list[float]:
    start = model.hf.config.decoder_start_token_id
    made = []
    for source, target in zip(SOURCES, TARGETS, strict=True):
        ids = model.tokenizer(text_target=target)["input_ids"]
        with torch.no_grad():
            logits = model.hf(
                input_ids=torch.tensor([model.tokenizer(source)["input_ids"]]),
                decoder_input_ids=torch.tensor([[start, *ids[:-1]]]),
            ).logits[0]
        made.append(float(logits.double().log_softmax(-1)[range(len(ids)), ids].sum()))
    return made


@pytest.mark.parametrize("name", READ)
def test_a_model_that_marian_trained_scores_as_there(name: str, tmp_path: Path) -> None:
    folder = trained(tmp_path / "it", READ[name])
    model = hw.load(folder)
    np.testing.assert_allclose(own_scores(model), scores(folder, tmp_path), atol=1e-3)
    pre_norm = "transformer-preprocess" in READ[name]
    if pre_norm and "dec-cell" not in READ[name]:
        return  # behind the first word Marian's own search does not compute what its scorer does
    source = lines(tmp_path / "s", SOURCES)
    limit = ["-b", 1, "--max-length-factor", 3]
    theirs = marian("decode", *beside(folder), "-i", source, *limit).splitlines()
    ours = model.translate(SOURCES, beam=1)
    assert all(map(alike, ours, theirs))


def test_options_that_change_nothing_are_read(tmp_path: Path) -> None:
    model = hw.load(trained(tmp_path / "none", {}))
    other = hw.load(trained(tmp_path / "all", dict.fromkeys(UNUSED, True)))
    for one, two in zip(model.hf.parameters(), other.hf.parameters(), strict=True):
        assert torch.equal(one, two)
    np.testing.assert_allclose(own_scores(other), scores(tmp_path / "all", tmp_path), atol=1e-3)


@pytest.mark.parametrize("name", REFUSED)
def test_a_model_that_is_not_read_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(hw.HeadwiseError, match=name):
        hw.load(trained(tmp_path / "it", REFUSED[name]))


@pytest.mark.parametrize("shape", ["ssru", "post-norm"])
def test_a_pruned_model_is_the_same_there(shape: str, tmp_path: Path) -> None:
    """Its folder is read by its own configuration; a head that aligns is where Marian takes it, also of another layer."""
    changes: dict[str, Any] = {**NEW, **(SSRU if shape == "ssru" else {}), "dec_depth": 2}
    folder = toolkit_models.write(tmp_path / "first", toolkit_models.options(**changes))
    whole = hw.load(folder)
    assert whole.alignment_heads == [Head("cross", 1, 0)]
    removed = [Head("encoder-self", 0, 1), Head("cross", 1, 0), Head("cross", 0, 0)]
    with pytest.warns(UserWarning, match="Alignment heads that are not in the smaller model"):
        small = whole.without(removed)
    small.alignment_heads = [Head("cross", 0, 1)]
    out = hw.export(small, "marian", tmp_path / "out", say=lambda note: None)
    np.testing.assert_allclose(own_scores(small), scores(out, tmp_path), atol=1e-3)

    source = lines(tmp_path / "s", SOURCES[:1])
    target = lines(tmp_path / "t", TARGETS[:1])
    asked = ["-t", source, target, "--alignment", "soft"]
    found = marian("score", *beside(out), *asked).strip().split(" ||| ")[-1]
    theirs = np.array([[float(each) for each in row.split(",")] for row in found.split()])
    small.hf.set_attn_implementation("eager")
    ids = small.tokenizer(text_target=TARGETS[0])["input_ids"]
    with torch.no_grad():
        weights = small.hf(
            input_ids=torch.tensor([small.tokenizer(SOURCES[0])["input_ids"]]),
            decoder_input_ids=torch.tensor([[small.hf.config.decoder_start_token_id, *ids[:-1]]]),
            output_attentions=True,
        ).cross_attentions[0][0, 1]
    np.testing.assert_allclose(theirs, weights.numpy(), atol=1e-4)


def test_the_configuration_of_a_folder_is_one_of_marian(tmp_path: Path) -> None:
    # The vocabulary has 42 pieces.
    made = toolkit_models.options(**NEW, **PRE_NORM, **SSRU, dim_vocabs=[42, 42])
    model = hw.load(toolkit_models.write(tmp_path / "first", made))
    out = hw.export(model, "marian", tmp_path / "out", say=lambda note: None)
    source = lines(tmp_path / "s", SOURCES)
    theirs = marian("decode", "-c", out / "config.yml", "-i", source, "--max-length-factor", 3)
    ours = model.translate(SOURCES, beam=1)
    assert all(map(alike, ours, theirs.splitlines()))
    assert "gemm-precision" not in yaml.safe_load((out / "config.yml").read_text())
