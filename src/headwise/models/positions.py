"""How many tokens a model can read at once, by its positions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import nn
from transformers import PretrainedConfig

TABLE = "position_embeddings"  # what families call the matrix of positions that they learn


def sub_configs(config: Any) -> Iterator[Any]:
    """The configurations inside a configuration, such as those of an encoder and a decoder."""
    for name in getattr(config, "sub_configs", ()):
        inner = getattr(config, name, None)
        if isinstance(inner, PretrainedConfig):
            yield inner
            yield from sub_configs(inner)


def positions_of(model: nn.Module) -> int | None:
    """The most tokens that all parts of a model have positions for; None where no part says a number.

    A composite of two models (BERT2BERT) says it in the configuration of each. RoBERTa and its kin count positions from
    behind the number of the padding token, so that some of the matrix are never used.
    """
    config: Any = model.config
    limits = []
    for each in (config, *sub_configs(config)):
        number = getattr(each, "max_position_embeddings", None)
        if type(number) is int and number > 0:
            limits.append(number)
    for name, module in model.named_modules():
        is_table = isinstance(module, nn.Embedding) and name.endswith(TABLE)
        if is_table and module.padding_idx is not None:
            limits.append(module.num_embeddings - module.padding_idx - 1)
    return min(limits, default=None)
