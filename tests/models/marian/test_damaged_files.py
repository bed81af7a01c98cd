"""Damaged folders of Marian: each is refused in one sentence."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import numpy as np
import pytest
import toolkit_models
import yaml

import headwise as hw
from headwise.models.marian import files as marian_files

Damage = Callable[[Path], object]


def cut(share: float) -> Damage:
    """Leave a part of the model's file."""

    def damage(folder: Path) -> None:
        file = next(folder.glob("model.*"))
        data = file.read_bytes()
        file.write_bytes(data[: int(len(data) * share)])

    return damage


def options(**changes: Any) -> Damage:
    """Another configuration; None: without the entry. Names with _ for -."""

    def damage(folder: Path) -> None:
        rewrite(folder, {}, changes)

    return damage


def shaped(name: str, *shape: int) -> Damage:
    """A matrix of another shape."""
    return lambda folder: rewrite(folder, {name: np.ones(shape, np.float32)}, {})


def rewrite(folder: Path, arrays: dict[str, np.ndarray], changes: dict[str, Any]) -> None:
    file = next(folder.glob("model.*"))
    before, configuration = marian_files.read(file)
    configuration |= {name.replace("_", "-"): value for name, value in changes.items()}
    kept = {name: value for name, value in configuration.items() if value is not None}
    write = marian_files.write_npz if file.suffix == ".npz" else marian_files.write_bin
    write(file, before | arrays, kept)


def without(name: str) -> Damage:
    def damage(folder: Path) -> None:
        arrays, configuration = marian_files.read(folder / "model.npz")
        del arrays[name]
        marian_files.write_npz(folder / "model.npz", arrays, configuration)

    return damage


def bytes_at(place: int, data: bytes) -> Damage:
    """Other bytes in a `.bin`."""

    def damage(folder: Path) -> None:
        file = folder / "model.bin"
        found = bytearray(file.read_bytes())
        found[place : place + len(data)] = data
        file.write_bytes(found)

    return damage


def archive(offset: int, value: int) -> Damage:
    """Another byte in the first headers of an archive, of the file and in the directory."""

    def damage(folder: Path) -> None:
        file = folder / "model.npz"
        data = bytearray(file.read_bytes())
        for header in (0, data.index(b"PK\1\2") + 2):
            data[header + offset] = value
        file.write_bytes(data)

    return damage


def member(name: str, data: bytes) -> Damage:
    """Another member in an archive, which is no array."""

    def damage(folder: Path) -> None:
        with ZipFile(folder / "model.npz", "a") as opened:
            opened.writestr(name, data)

    return damage


def configured(text: str) -> Damage:
    """A configuration that YAML reads as more than texts, numbers and lists."""

    def damage(folder: Path) -> None:
        file = folder / "model.npz"
        before, configuration = marian_files.read(file)
        letters = np.frombuffer((yaml.safe_dump(configuration) + text).encode() + b"\0", "i1")
        np.savez(file, allow_pickle=False, **before, **{marian_files.CONFIGURATION: letters})

    return damage


def integers(folder: Path) -> None:
    """A matrix of whole numbers in an archive."""
    file = folder / "model.npz"
    with np.load(file) as archive:
        arrays = {name: archive[name] for name in archive.files}
    arrays["Wemb"] = arrays["Wemb"].astype(np.int32)
    np.savez(file, allow_pickle=False, **arrays)


def dangling(folder: Path) -> None:
    (folder / "model.npz").unlink()
    (folder / "model.npz").symlink_to(folder / "nowhere.npz")


def unlink(folder: Path) -> None:
    (folder / "vocab.spm").unlink()


def second_vocabulary(folder: Path) -> None:
    (folder / "other.spm").write_bytes((folder / "vocab.spm").read_bytes())


def typed(kind: int) -> Damage:
    """Another type of the first entry in a `.bin`."""
    return bytes_at(24, kind.to_bytes(8, "little"))


def factor_of(value: float) -> Damage:
    """Another factor of the word embeddings, which are in int8 here."""

    def damage(folder: Path) -> None:
        file = folder / "model.bin"
        arrays, configuration = marian_files.read(file)
        marian_files.write_bin(file, arrays, configuration, int8=True)
        _, _, data = marian_files.entry("Wemb", arrays["Wemb"], True)
        whole = file.read_bytes()
        assert whole.count(data) == 1
        file.write_bytes(whole.replace(data, data[:-4] + struct.pack("<f", value)))

    return damage


SHARED = {
    "no vocabulary": (unlink, "has no vocabulary"),
    "two vocabularies": (second_vocabulary, "nothing says which is whose"),
    "vocabulary of text": (
        lambda folder: (folder / "vocab.spm").write_text("words"),
        "is no vocabulary",
    ),
    "larger vocabulary": (shaped("Wemb", 20, 16), "42 pieces, the model in model"),
    "unknown type": (options(type="s2s"), "of type 's2s'"),
    "no type": (options(type=None), "of type None"),
    "unknown cell": (
        options(transformer_decoder_autoreg="rnn", dec_cell="lstm"),
        "rnn of lstm",
    ),
    "unknown activation": (options(transformer_ffn_activation="tanh"), "activation 'tanh'"),
    "unknown operation": (options(transformer_postprocess="dah"), "reads the letters"),
    "option that is not read": (options(transformer_pool=True), "transformer-pool = True"),
    "no depth": (options(enc_depth=None), "does not say enc-depth"),
    "depth of text": (options(enc_depth="two"), "does not say enc-depth"),
    "no layers": (options(dec_depth=0), "0 layers in the decoder"),
    "more layers": (options(enc_depth=3), "lacks weights"),
    "fewer layers": (options(enc_depth=1), "has no place"),
    "heads of text": (options(transformer_heads="many"), "'many' heads"),
    "heads that do not divide": (
        options(transformer_heads=3),
        "3 heads, which do not divide the width of 16",
    ),
    "right to left": (options(right_left=True), "right-left = True"),
    "positions of its own": (shaped("Wpos", 30, 16), "has no place (Wpos)"),
    "positions in words": (
        options(transformer_disable_position_embeddings="no"),
        "transformer-disable-position-embeddings = no",
    ),
    "tied layers of another number": (
        options(transformer_tied_layers=[2]),
        "transformer-tied-layers = [2]",
    ),
    "more tied layers than it has": (
        options(transformer_tied_layers=[1, 1]),
        "transformer-tied-layers = [1, 1]",
    ),
    "tied layers in a text": (options(transformer_tied_layers="1"), "transformer-tied-layers = 1"),
    "alibi": (options(transformer_attention_mask="alibi"), "transformer-attention-mask = alibi"),
    "depth of the decoder's filters": (
        options(transformer_decoder_ffn_depth=1),
        "transformer-decoder-ffn-depth = 1",
    ),
    "lemmas": (options(lemma_dependency="re-embedding"), "lemma-dependency = re-embedding"),
    "option of a later version": (options(transformer_new=7), "transformer-new = 7"),
    "option of nobody": (options(my_new_option=7), "my-new-option = 7"),
    "activation in a list": (options(transformer_ffn_activation=["relu"]), "['relu']"),
    "truth in words": (options(tied_embeddings_all="false"), "tied-embeddings-all = false"),
    "other width": (options(dim_emb=32), "asks for a width of 32"),
    "no width": (shaped("Wemb", 50, 0), "asks for a width of 16"),
    "odd width": (
        lambda folder: rewrite(folder, {"Wemb": np.ones((50, 15), np.float32)}, {"dim-emb": None}),
        "asks for a width of an even number",
    ),
    "gelu of an unknown version": (
        options(transformer_ffn_activation="gelu", version="mine"),
        "depends on the version",
    ),
    "narrow queries": (shaped("encoder_l1_self_Wq", 16, 8), "is damaged"),
    "flat words": (shaped("Wemb", 50), "is damaged"),
    "words in a block": (shaped("Wemb", 5, 10, 16), "is damaged"),
    "one number": (shaped("Wemb"), "is damaged"),
    "flat inner weights": (shaped("encoder_l1_ffn_W1", 24), "is damaged"),
    "long bias": (shaped("decoder_ff_logit_out_b", 1, 70), "is damaged"),
    "short bias": (shaped("decoder_ff_logit_out_b", 1, 30), "is damaged"),
    "wide norm": (shaped("encoder_l1_self_Wo_ln_scale", 2, 16), "is damaged"),
}
NPZ = {
    "nine tenths": (cut(0.9), "is damaged"),
    "link to nothing": (dangling, "is damaged"),
    "text in the archive": (member("README.txt", b"words"), "README.txt is no matrix"),
    "no array in the archive": (member("../other.npy", b"words"), "is no matrix"),
    "whole numbers": (integers, "Wemb is no matrix of floating-point numbers"),
    "number as an option": (configured("1: 2\n"), "1 = 2"),
    "no number as an option": (configured(".nan: 2\n"), "nan ="),
    "date": (configured("since: 2021-04-28\n"), "since = 2021-04-28"),
    "unknown compression": (archive(8, 99), "is damaged"),
    "encrypted": (archive(6, 1), "is damaged"),
    "later version": (archive(4, 99), "cannot be loaded"),
    "no words": (without("Wemb"), "lacks weights of its model (Wemb)"),
    "no inner weights": (without("encoder_l1_ffn_W1"), "lacks weights"),
    "no bias": (without("encoder_l1_self_bq"), "(encoder_l1_self_bq)"),
}
BIN = {
    "another type of as many bytes": (typed(marian_files.INT8), "bytes and needs"),
    "negative factor": (factor_of(-1.0), "has the factor -1.0"),
    "half": (cut(0.5), "it ends within"),
    "header alone": (cut(0.05), "is damaged"),
    "type of one processor": (
        bytes_at(24, (0x6101).to_bytes(8, "little")),
        "one kind of processor",
    ),
    "long name": (bytes_at(16, (2**62).to_bytes(8, "little")), "is damaged"),
    "dimensions": (bytes_at(32, (2**40).to_bytes(8, "little")), "is damaged"),
}


@pytest.mark.parametrize(
    ("ending", "damage", "words"),
    [
        pytest.param(ending, *case, id=f"{ending}: {name}")
        for ending, cases in (("npz", SHARED | NPZ), ("bin", SHARED | BIN))
        for name, case in cases.items()
    ],
)
def test_damage_is_one_sentence(ending: str, damage: Damage, words: str, tmp_path: Path) -> None:
    folder = toolkit_models.write(tmp_path / "it", toolkit_models.options(), ending)
    hw.load(folder)
    damage(folder)
    with pytest.raises(hw.HeadwiseError) as refused:
        hw.load(folder)
    assert words in str(refused.value) and "\n" not in str(refused.value)
