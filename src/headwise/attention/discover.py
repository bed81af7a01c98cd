"""Finding the heads of a model: one small forward with watched attention, and a check that none was missed.

Models that do not call transformers' attention registry ignore our function silently. So the heads that the probe saw
are compared with those that the configuration declares; a difference is an error unless `allow_partial`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn

from headwise.attention import kernel
from headwise.errors import HeadsMissing, HeadwiseError
from headwise.heads import HeadMap, Kind, Site

SOURCE_LENGTH, TARGET_LENGTH = 5, 3  # different, so that the kind of attention follows from the shape of a call


@dataclass(frozen=True)
class Discovery:
    """A model's heads, and the module (with its name) of each site."""

    heads: HeadMap
    modules: dict[Site, nn.Module]
    names: dict[Site, str]
    head_size: int


def discover(model: nn.Module, allow_partial: bool = False) -> Discovery:
    """Find every attention head of a transformers model.

    Runs one forward of 5 source (and 3 target) tokens. Raises HeadsMissing when the configuration declares more heads
    than the probe saw, unless `allow_partial`; raises HeadwiseError when it saw none.
    """
    calls: list[tuple[nn.Module, Kind, kernel.AttentionCall]] = []

    def note(module: nn.Module, call: kernel.AttentionCall) -> None:
        calls.append((module, getattr(module, "emptied", None) or kind_of(model, module, call), call))

    states = {module: kernel.HookState() for module in model.modules()}
    for module, state in states.items():
        state.passes.append((Site("encoder-self", 0), [kernel.Hooks(watch=partial(note, module))]))
    with routed(model), patched(kernel.NAME, states):
        probe(model)
    layers: dict[Kind, list[tuple[int, int]]] = defaultdict(list)
    modules, names, name_of = {}, {}, {module: name for name, module in model.named_modules()}
    for module, kind, call in calls:
        site = Site(kind, len(layers[kind]))
        modules[site], names[site] = module, name_of[module]
        layers[kind].append((call.query.shape[1], call.key.shape[1]))
    heads = HeadMap(
        {kind: tuple(query for query, _ in counts) for kind, counts in layers.items()},
        {kind: tuple(key_value for _, key_value in counts) for kind, counts in layers.items()},
    )
    check(model, heads, set(modules.values()), allow_partial)
    return Discovery(heads, modules, names, calls[0][2].query.shape[3])


def kind_of(model: nn.Module, module: nn.Module, call: kernel.AttentionCall) -> Kind:
    """In an encoder-decoder the probe's lengths decide; in a one-stack model, whether the next token is hidden."""
    queries, keys = call.query.shape[2], call.key.shape[2]
    if model.config.is_encoder_decoder:  # type: ignore[union-attr]
        if queries != keys:
            return "cross"
        return "encoder-self" if queries == SOURCE_LENGTH else "decoder-self"
    mask = kernel.allowed(module, call.query, call.key, call.mask, {})
    if mask is None:
        return "encoder-self"
    following = mask[0, 0, 0, 1]
    return "decoder-self" if bool(~following if mask.dtype == torch.bool else following < 0) else "encoder-self"


def probe(model: nn.Module) -> Any:
    """The output of one forward, in evaluation mode and without gradients, over a few ordinary token ids."""
    config: Any = model.config
    try:
        words: int = config.get_text_config().vocab_size
        ids = torch.arange(SOURCE_LENGTH, device=next(model.parameters()).device)[None]
        ids = ids % max(words - 4, 1) + min(4, words - 1)
        inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
        if config.is_encoder_decoder:
            inputs["decoder_input_ids"] = ids[:, :TARGET_LENGTH]
        with evaluating(model), torch.no_grad():
            return output_of(model, inputs)
    except HeadwiseError:
        raise
    except Exception as error:
        reason = " ".join(str(error).split())[:200]
        raise HeadwiseError(
            f"{type(model).__name__} does not run on a few token ids ({type(error).__name__}: {reason}): "
            "headwise works on models of text."
        ) from error


def output_of(model: nn.Module, inputs: Mapping[str, torch.Tensor]) -> Any:
    """The output of one forward without a cache."""
    config: Any = model.config
    return model(**inputs, **({"use_cache": False} if "use_cache" in config.to_dict() else {}))


def declared(model: nn.Module) -> int | None:
    """How many heads the configuration declares, by the attribute names transformers uses; None when it has none.

    A model that headwise has pruned declares the heads of its layout.
    """
    config: Any = model.config
    cut = getattr(config, "headwise_layout", None)
    if cut:
        return sum(len(row) for layers in cut["kept"].values() for row in layers)
    if not config.is_encoder_decoder:
        config = config.get_text_config()

    def first(*names: str) -> int:
        return next((int(getattr(config, n)) for n in names if isinstance(getattr(config, n, None), int)), 0)

    heads = first("encoder_attention_heads", "num_attention_heads", "num_heads", "n_head", "n_heads")
    layers = first("encoder_layers", "num_layers", "num_hidden_layers", "n_layer", "n_layers")
    if not config.is_encoder_decoder:
        return layers * heads or None
    decoder_layers = first("decoder_layers", "num_decoder_layers") or layers
    return layers * heads + 2 * decoder_layers * (first("decoder_attention_heads") or heads) or None


def check(model: nn.Module, heads: HeadMap, modules: set[nn.Module], allow_partial: bool) -> None:
    """Compare the map with the configuration or, where that has no number, with the modules named attention."""
    if not heads.kinds:
        raise HeadwiseError(
            f"{type(model).__name__} shows no attention head: it does not call transformers' attention registry, "
            "so headwise cannot work on it."
        )
    number = declared(model)
    missed = sorted(
        f"{name} ({type(module).__name__})"
        for name, module in model.named_modules()
        if called_attention(module)
        and modules.isdisjoint(module.modules())
        and not any(map(called_attention, module.children()))
    )
    short = bool(missed) if number is None else heads.total < number
    if short and not allow_partial:
        tally = f"declares {number or 'no number of'} heads, the probe saw {heads.total}"
        raise HeadsMissing(
            f"This {type(model).__name__} {tally}. "
            f"Not seen: {', '.join(missed[:6]) or 'unknown modules'}{' …' if len(missed) > 6 else ''}: "
            "they bypass transformers' attention registry. "
            f"Pass allow_partial=True to work on the {heads.total} that were seen."
        )


def called_attention(module: nn.Module) -> bool:
    return type(module).__name__.endswith("Attention")


@contextmanager
def routed(model: nn.Module) -> Iterator[None]:
    """Use our attention function; afterwards every configuration in the model has its own implementation again."""
    configs = {id(config): config for module in model.modules() if (config := getattr(module, "config", None))}
    parts = [getattr(config, name) for config in configs.values() for name in getattr(config, "sub_configs", ())]
    before: list[tuple[Any, Any]] = [
        (config, config._attn_implementation)
        for config in [*configs.values(), *parts]
        if hasattr(config, "_attn_implementation")
    ]
    try:
        try:
            model.set_attn_implementation(kernel.NAME)  # type: ignore[operator]
        except (KeyError, ValueError, AttributeError) as error:
            raise HeadwiseError(
                f"{type(model).__name__} does not accept another attention function ({error}): "
                "headwise cannot work on it."
            ) from error
        yield
    finally:
        for config, implementation in before:
            config._attn_implementation_internal = implementation


@contextmanager
def patched(name: str, values: Mapping[nn.Module, Any]) -> Iterator[None]:
    """An attribute of modules for the time of the block; afterwards each has what it had before."""
    before = {module: module.__dict__.get(name) for module in values}
    for module, value in values.items():
        module.__dict__[name] = value
    try:
        yield
    finally:
        for module, own in before.items():
            del module.__dict__[name]
            if own is not None:
                module.__dict__[name] = own


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Evaluation mode (no dropout) inside the block; afterwards every module has its own mode again."""
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True


@contextmanager
def same_gradients(model: nn.Module) -> Iterator[None]:
    """After the block each parameter requires a gradient where it did before."""
    before = {parameter: parameter.requires_grad for parameter in model.parameters()}
    try:
        yield
    finally:
        for parameter, state in before.items():
            parameter.requires_grad_(state)
