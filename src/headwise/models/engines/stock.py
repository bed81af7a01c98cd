"""Ordinary checkpoints: heads of zeros fill up uneven layers, and transformers loads the folder without headwise."""

from __future__ import annotations

import copy
import shutil
from pathlib import Path

import transformers
from transformers import PreTrainedModel

from headwise.core.heads import Site
from headwise.core.progress import without_bars
from headwise.models.attention.head_counts import config_has_heads, write_counts
from headwise.models.attention.matrices import ZEROS
from headwise.models.attention.padding import Padded, pad, plain_config
from headwise.models.attention.rebuilt import stock_model
from headwise.models.known_text import write_known_texts
from headwise.models.model import Model, unique_parameters
from headwise.models.model_files import copy_siblings, explain_pruned


def why_not_stock(model: Model) -> str | None:
    """Why there is no ordinary checkpoint of a model; None where there is one."""
    family = type(model.hf).__name__
    # A class of somebody else may have the name of one in transformers.
    if getattr(transformers, family, None) is not type(model.hf):
        return f"transformers has no {family}"
    return None


def write_stock(model: Model, folder: Path, dtype: str) -> list[str]:
    """Write a folder that `from_pretrained` of transformers loads. Returns notes for the user."""
    padded = pad(model.hf, model.discovery, model.heads_left)
    stock = padded.model
    if stock.can_generate():
        # A copy: alignment heads get other numbers below, and the given model keeps its own.
        stock.generation_config = copy.copy(model.hf.generation_config)
    if model.alignment_heads:
        stock.generation_config.alignment_heads = [
            # Heads of zeros may stand before a head, which changes its number.
            [head.layer, padded.places[Site(head.kind, head.layer)].query.index(head.head)]
            for head in model.alignment_heads
        ]
    with without_bars():
        stock.save_pretrained(folder)
    if model.tokenizer is not None:
        model.tokenizer.save_pretrained(folder)
    if model.source is not None:
        copy_siblings(model.source, folder)
    write_known_texts(folder, model.known_texts)
    for weights in folder.glob("*.safetensors"):
        # safetensors writes files that only their owner may read.
        shutil.copymode(folder / "config.json", weights)
    if model.layout is not None:
        saves = note(model, padded)
        explain_pruned(folder, Path(model.name).name, saves)
        return [saves]
    return []


def note(model: Model, padded: Padded) -> str:
    """What was removed, what was filled up, and what that saves in weights."""
    layout = model.heads_left
    total = layout.heads.total
    zeros = sum(places.query.count(ZEROS) for places in padded.places.values())
    config = plain_config(model.hf)
    if config_has_heads(model.hf.config, layout):
        write_counts(config.get_text_config(), layout.heads)
    before = numbers(stock_model(model.hf, config))
    saved = before - numbers(padded.model)
    added = f"{zeros} heads of zeros" if zeros != 1 else "one head of zeros"
    says = f"{total - len(layout)} of {total} heads were removed, and {added} added"
    if not saved:
        why = padded.reason or "the fullest layers need as many as before"
        return f"{says}, so nothing is saved: {why}"
    here = f"this saves {saved:,} of the {before - model.parameters:,} weights that were removed"
    return f"{says}: {here}" + (f"; {padded.reason}" if padded.reason else "")


def numbers(hf: PreTrainedModel) -> int:
    """How many weights a model has, tied ones once."""
    return sum(parameter.numel() for parameter in unique_parameters(hf))
