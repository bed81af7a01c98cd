"""Tiny models whose weights follow a formula, so that two versions of transformers build the same ones."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

SHARED = {"vocab_size": 40, "attn_implementation": "eager"}
CASES: dict[str, tuple[str, dict[str, Any], list[dict[int, list[int]]]]] = {
    # class, shape, and the heads that are pruned by layer, call after call, in the numbers of the whole model
    "bert": (
        "BertForMaskedLM",
        {
            "hidden_size": 24,
            "num_hidden_layers": 3,
            "num_attention_heads": 4,
            "intermediate_size": 48,
            "max_position_embeddings": 32,
        },
        [{0: [0, 2], 1: [3], 2: [0, 1, 2]}],
    ),
    "bert-twice": (
        "BertForMaskedLM",
        {
            "hidden_size": 24,
            "num_hidden_layers": 2,
            "num_attention_heads": 6,
            "intermediate_size": 48,
            "max_position_embeddings": 32,
        },
        [{0: [1, 4]}, {0: [0, 5], 1: [2]}],
    ),
    "gpt2": (
        "GPT2LMHeadModel",
        {"n_embd": 24, "n_layer": 3, "n_head": 4, "n_positions": 32},
        [{0: [1], 1: [0, 3], 2: [1, 2, 3]}],
    ),
    "gpt2-twice": (
        "GPT2LMHeadModel",
        {"n_embd": 24, "n_layer": 2, "n_head": 6, "n_positions": 32},
        [{1: [0, 2]}, {0: [5], 1: [4]}],
    ),
}


def filled(model: nn.Module) -> nn.Module:
    """The model with weights sin(0.7 i + s) / 5, i counted within a parameter, s from its name; norms are near 1."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            places = torch.arange(parameter.numel(), dtype=torch.float64)
            values = (0.7 * places + sum(name.encode()) % 97).sin() / 5
            near_one = parameter.dim() == 1 and name.endswith("weight")
            parameter.copy_((values + near_one).view_as(parameter))
    return model.eval()


def batch() -> dict[str, torch.Tensor]:
    """Two texts of 7 and 5 tokens."""
    ids = (torch.arange(14).view(2, 7) * 5 + 3) % 40
    mask = torch.ones_like(ids)
    mask[1, 5:] = 0
    return {"input_ids": ids, "attention_mask": mask}
