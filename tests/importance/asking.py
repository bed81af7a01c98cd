"""Tiny models that predict words, of many families, and a padded batch that asks each of them for some."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from attention.families import CAUSAL, ENCODERS, FAMILIES, WORDS, batch, build
from headwise.heads import Site
from headwise.importance.sums import SentenceSums
from headwise.training.token_batches import IGNORED

ASKED = ("marian", "m2m100", "bart", "t5", "bert", "albert", "modernbert", "gpt2", "llama", "qwen3")
TARGETS = (7, 4, 2)  # tokens of the three targets


def worded(family: str, seed: int = 0, **changes: Any) -> PreTrainedModel:
    """A family's tiny model, with its language-model head."""
    name, config = FAMILIES[family]
    return build(
        name.replace("Model", "ForMaskedLM") if family in ENCODERS else name,
        seed,
        **{**config, **changes},
    )


def asking(model: PreTrainedModel, family: str) -> dict[str, Tensor]:
    """Three sentences of 9, 6 and 3 tokens and an empty row, which asks for nothing."""
    inputs = batch(model)
    generator = torch.Generator().manual_seed(2)
    if "decoder_input_ids" in inputs:
        labels = torch.randint(4, WORDS, (3, max(TARGETS)), generator=generator)
        labels[torch.arange(max(TARGETS)) >= torch.tensor(TARGETS)[:, None]] = IGNORED
    else:
        labels = torch.full_like(inputs["input_ids"], IGNORED)
        there = inputs["attention_mask"].bool()
        if family in CAUSAL:
            labels[:, :-1] = inputs["input_ids"][:, 1:].masked_fill(~there[:, 1:], IGNORED)
        else:  # every second token
            labels[:, ::2] = torch.randint(4, WORDS, (3, 5), generator=generator).masked_fill(
                ~there[:, ::2], IGNORED
            )
    whole = {**inputs, "labels": labels}
    empty = {"input_ids": 0, "attention_mask": 0, "decoder_input_ids": 0, "labels": IGNORED}
    padded = {
        name: torch.cat([tensor, torch.full_like(tensor[:1], empty[name])])
        for name, tensor in whole.items()
    }
    return {**padded, "rows": torch.tensor([0, 1, 2, -1])}


def sentence(inputs: dict[str, Tensor], row: int) -> dict[str, Tensor]:
    """One sentence of the batch alone, without its padding."""
    source = int(inputs["attention_mask"][row].sum())
    target = (
        int((inputs["labels"][row] != IGNORED).sum()) if "decoder_input_ids" in inputs else source
    )
    lengths = {
        "input_ids": source,
        "attention_mask": source,
        "decoder_input_ids": target,
        "labels": target,
    }
    return {
        name: inputs[name][row : row + 1, :length]
        for name, length in lengths.items()
        if name in inputs
    }


def state(model: nn.Module) -> list[object]:
    """Everything a measure could leave behind on a model: weights, what asks for a gradient, modes, forwards, hooks."""
    return [
        *(float(parameter.detach().double().sum()) for parameter in model.parameters()),
        *(parameter.requires_grad for parameter in model.parameters()),
        *(parameter.grad is None for parameter in model.parameters()),
        *(
            (module.training, sorted(vars(module)), len(module._forward_pre_hooks))
            for module in model.modules()
        ),
        model.config._attn_implementation,
    ]


def broken(model: nn.Module, module: nn.Module) -> None:
    """Let one attention module compute numbers that are none."""
    name = next(
        name
        for name, _ in module.named_parameters()
        if name.split(".")[0] in ("v_proj", "value", "v")
    )
    with torch.no_grad():
        module.get_parameter(name).fill_(float("nan"))


def counted(measured: SentenceSums, site: Site) -> tuple[np.ndarray, np.ndarray]:
    """Sums and counts of the sentences that count."""
    return measured.sentences(site)


def where(site: Site) -> str:
    return f"{site.kind} layer {site.layer}"
