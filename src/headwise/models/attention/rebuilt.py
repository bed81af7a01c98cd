"""A model's class, built again by a configuration: what `from_pretrained` of transformers would make of it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from accelerate import init_empty_weights
from huggingface_hub.errors import StrictDataclassError
from torch import Tensor, nn
from transformers import M2M100ForConditionalGeneration
from transformers.initialization import no_init_weights

from headwise.core.errors import HeadwiseError


def drop_unused(model: Any) -> Any:
    """Remove the unused matrix for shared embeddings of an M2M100 model whose embeddings are not shared.

    It would be counted and saved, and data-parallel training would miss its gradient. Its name becomes an alias of the
    encoder's embeddings. Other models do not change. `from_pretrained` creates the matrix again.
    """
    if isinstance(model, M2M100ForConditionalGeneration) and not model.config.tie_word_embeddings:
        del model.model.shared
        vars(model.model)["shared"] = model.model.encoder.embed_tokens
    return model


def stock_model(model: Any, config: Any) -> nn.Module:
    """The class of a model, built by a configuration as it would be saved, without weights: they are on `meta`.

    Raises HeadwiseError for a configuration that transformers refuses.
    """
    try:
        # By way of JSON, because saving drops some attributes and reading derives others.
        saved = type(config).from_dict(json.loads(config.to_json_string()))
        with init_empty_weights(), no_init_weights():
            stock = drop_unused(type(model)(saved))
    except (StrictDataclassError, ValueError, TypeError) as error:
        said = " ".join(str(error).split()).rstrip(".")
        raise HeadwiseError(f"transformers refuses a smaller number ({said})") from None
    stock.tie_weights()
    # The name of the attention function is not saved.
    attention = model.config._attn_implementation
    if stock.config._attn_implementation != attention:
        stock.set_attn_implementation(attention)
    return stock  # type: ignore[no-any-return]


def shapes(tensors: Mapping[str, Tensor]) -> dict[str, tuple[int, ...]]:
    return {name: tuple(tensor.shape) for name, tensor in tensors.items()}


def give_weights(stock: Any, weights: Mapping[str, Tensor]) -> None:
    """Give a model of `stock_model` weights of any shapes, which it shares with the model that they are from."""
    device = next(iter(weights.values())).device
    for name, weight in weights.items():
        path, _, own = name.rpartition(".")
        # Not `load_state_dict`, which refuses other shapes than those of the configuration.
        module = stock.get_submodule(path)
        is_buffer = own in module._buffers
        before = getattr(module, own)
        setattr(module, own, weight if is_buffer else nn.Parameter(weight, before.requires_grad))
    stock.tie_weights()
    stock.to(device).eval()
