"""Tiny models that predict words, of many families, and a padded batch that asks each of them for some."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from headwise.core.heads import Site
from headwise.models.attention.discover import Discovery, discover
from headwise.models.evaluation.sums import SentenceSums
from headwise.models.tasks.objective import predict, sentence_losses
from headwise.models.token_rows import IGNORED
from models.attention.families import CAUSAL, ENCODERS, FAMILIES, WORDS, batch, build

ROUNDED = ("llama", "qwen3", "t5")  # norms and softmax in float32 even in a float64 model
# two stacks; tuples with a shared bias; one module for all layers; grouped queries
TELLING = ("marian", "t5", "albert", "llama")
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


def precise(
    family: str, **changes: Any
) -> tuple[PreTrainedModel, Discovery, dict[str, Tensor], float]:
    """A float64 model, its heads, a batch, and how near two ways of computing must come."""
    model = worded(family, **changes).double()
    near = 1e-6 if family in ROUNDED else 1e-9
    return model, discover(model), asking(model, family), near


def lost(model: PreTrainedModel, inputs: Mapping[str, Tensor]) -> Tensor:
    """The loss of every row of a batch."""
    return sentence_losses(predict(model, inputs), inputs["labels"])


def close(found: Any, expected: Any, near: float) -> None:
    np.testing.assert_allclose(found, expected, rtol=near, atol=near)


def same_sums(one: SentenceSums, other: SentenceSums, near: float) -> None:
    """Sums and counts of every sentence."""
    assert one.heads == other.heads
    for site in one.heads.sites:
        for part, expected in zip(one.sentences(site), other.sentences(site), strict=True):
            close(part, expected, near)


def padded_left(inputs: dict[str, Tensor]) -> dict[str, Tensor]:
    """The batch of a causal model with its padding in front."""
    turned = {name: inputs[name].clone() for name in ("input_ids", "attention_mask", "labels")}
    for row in range(3):
        gap = int((inputs["attention_mask"][row] == 0).sum())
        for tensor in turned.values():
            tensor[row] = tensor[row].roll(gap)
    return {**turned, "position_ids": (turned["attention_mask"].cumsum(1) - 1).clamp_min(0)}


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
            drawn = torch.randint(4, WORDS, (3, 5), generator=generator)
            labels[:, ::2] = drawn.masked_fill(~there[:, ::2], IGNORED)
    padded = {"rows": torch.tensor([0, 1, 2, -1])}
    for name, tensor in {**inputs, "labels": labels}.items():
        empty = torch.full_like(tensor[:1], IGNORED if name == "labels" else 0)
        padded[name] = torch.cat([tensor, empty])
    return padded


def sentence(inputs: dict[str, Tensor], row: int) -> dict[str, Tensor]:
    """One sentence of the batch alone, without its padding."""
    lengths = dict.fromkeys(
        ("input_ids", "attention_mask"), int(inputs["attention_mask"][row].sum())
    )
    lengths["labels"] = lengths["input_ids"]
    if "decoder_input_ids" in inputs:
        target = int((inputs["labels"][row] != IGNORED).sum())
        lengths |= {"decoder_input_ids": target, "labels": target}
    return {name: inputs[name][row : row + 1, :length] for name, length in lengths.items()}


def state(model: nn.Module) -> list[object]:
    """Everything a measure could leave behind on a model: weights, what asks for a gradient, modes, forwards, hooks."""
    found: list[object] = [model.config._attn_implementation]
    for parameter in model.parameters():
        found.append(float(parameter.detach().double().sum()))
        found += [parameter.requires_grad, parameter.grad is None]
    for module in model.modules():
        hooks = len(module._forward_pre_hooks), len(module._forward_hooks)
        found += [module.training, sorted(vars(module)), hooks]
    return found


def broken(model: nn.Module, module: nn.Module) -> None:
    """Let one attention module compute numbers that are none."""
    names = (name for name, _ in module.named_parameters())
    name = next(name for name in names if name.split(".")[0] in ("v_proj", "value", "v"))
    with torch.no_grad():
        module.get_parameter(name).fill_(float("nan"))


def where(site: Site) -> str:
    return f"{site.kind} layer {site.layer}"
