"""Finding the heads of a model: one small forward through the seam, and a check that nothing was missed.

Models that do not call transformers' attention registry ignore the request silently, so what the configuration declares is held
against what the probe saw; a difference is an error unless a partial map was asked for.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from headwise.attention import kernel
from headwise.errors import HeadsMissing, HeadwiseError
from headwise.heads import HeadMap, Kind, Site

SOURCE_LENGTH, TARGET_LENGTH = 5, 3  # different, so that the shape of a call tells the kind of attention


@dataclass(frozen=True)
class Discovery:
    """A model's heads and where they live: the map, and the module (with its name) that serves each site."""

    heads: HeadMap
    modules: dict[Site, nn.Module]
    names: dict[Site, str]
    head_size: int


def discover(model: nn.Module, allow_partial: bool = False) -> Discovery:
    """Find every attention head of a transformers model.

    Runs one forward of 5 source (and 3 target) tokens. Raises HeadsMissing when the configuration declares more heads than the probe
    saw, unless `allow_partial`; raises HeadwiseError when the model has no heads that can be seen at all.
    """
    calls: list[tuple[nn.Module, Kind, int, int, int]] = []

    class Recorder(kernel.Slot):
        def __init__(self, module: nn.Module) -> None:
            super().__init__([Site("encoder-self", 0)])
            self.module = module
            self.orders = [kernel.Orders(watch=self.note)]

        def note(self, seen: kernel.Seen) -> None:
            kind = getattr(self.module, "kind", None) or kind_of(model, seen)  # an emptied layer knows its kind
            calls.append((self.module, kind, seen.query.shape[1], seen.key.shape[1], seen.query.shape[3]))

    slots = {module: Recorder(module) for module in model.modules()}
    with routed(model), installed(slots), evaluating(model), torch.no_grad():
        probe(model)
    layers: dict[Kind, list[tuple[int, int]]] = defaultdict(list)
    modules, names, name_of = {}, {}, {module: name for name, module in model.named_modules()}
    for module, kind, query_heads, key_heads, _ in calls:
        site = Site(kind, len(layers[kind]))
        modules[site], names[site] = module, name_of[module]
        layers[kind].append((query_heads, key_heads))
    heads = HeadMap({k: tuple(q for q, _ in v) for k, v in layers.items()}, {k: tuple(g for _, g in v) for k, v in layers.items()})
    check(model, heads, set(modules.values()), allow_partial)
    return Discovery(heads, modules, names, calls[0][4])


def kind_of(model: nn.Module, seen: kernel.Seen) -> Kind:
    """Encoder-decoders tell by the probe's lengths; one-stack models by whether their mask hides the future."""
    queries, keys = seen.query.shape[2], seen.key.shape[2]
    if model.config.is_encoder_decoder:  # type: ignore[union-attr]
        if queries != keys:
            return "cross"
        return "encoder-self" if queries == SOURCE_LENGTH else "decoder-self"
    if seen.mask is None:
        return "encoder-self"
    hides = seen.mask[0, 0, 0, -1]
    return "decoder-self" if bool(hides < 0 if hides.dtype != torch.bool else ~hides) else "encoder-self"


def probe(model: nn.Module) -> None:
    """One forward over a few ordinary token ids."""
    config: Any = model.config
    device = next(model.parameters()).device
    config = config.get_text_config() if hasattr(config, "get_text_config") else config
    ids = torch.arange(SOURCE_LENGTH, device=device)[None] % max(config.vocab_size - 4, 1) + min(4, config.vocab_size - 1)
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    if model.config.is_encoder_decoder:  # type: ignore[union-attr]
        inputs["decoder_input_ids"] = ids[:, :TARGET_LENGTH]
    model(**inputs, use_cache=False) if "use_cache" in model.config.to_dict() else model(**inputs)  # type: ignore[union-attr,operator]


def declared(model: nn.Module) -> dict[Kind, tuple[int, int]]:
    """What the configuration promises: layers and heads of every kind, by the attribute names transformers uses."""
    config: Any = model.config

    def first(*names: str) -> int:
        return next((int(getattr(config, n)) for n in names if isinstance(getattr(config, n, None), int)), 0)

    heads = first("encoder_attention_heads", "num_attention_heads", "num_heads", "n_head", "n_heads")
    layers = first("encoder_layers", "num_layers", "num_hidden_layers", "n_layer", "n_layers")
    if not config.is_encoder_decoder:
        return {"encoder-self": (layers, heads)}
    decoder = first("decoder_layers", "num_decoder_layers") or layers
    decoder_heads = first("decoder_attention_heads") or heads
    return {"encoder-self": (layers, heads), "decoder-self": (decoder, decoder_heads), "cross": (decoder, decoder_heads)}


def check(model: nn.Module, seen: HeadMap, modules: set[nn.Module], allow_partial: bool) -> None:
    """Hold the map against the configuration, and against a layout that headwise itself has cut (`config.headwise_layout`)."""
    cut = getattr(model.config, "headwise_layout", None)
    promised = sum(len(row) for layers in cut["kept"].values() for row in layers) if cut else sum(l * h for l, h in declared(model).values())
    if seen.total == 0:
        raise HeadwiseError(
            f"{type(model).__name__} shows no attention head: it does not call transformers' attention registry, "
            "so headwise cannot work on it."
        )
    if seen.total < promised and not allow_partial:
        missed = sorted({
            f"{name} ({type(module).__name__})" for name, module in model.named_modules()
            if type(module).__name__.endswith("Attention") and module not in modules and not any(m in modules for m in module.modules())
        })  # fmt: skip
        raise HeadsMissing(
            f"This {type(model).__name__} declares {promised} heads, the probe saw {seen.total}. "
            f"Not seen: {', '.join(missed[:6]) or 'unknown modules'}{' …' if len(missed) > 6 else ''}: they bypass transformers' attention registry. "
            f"Pass allow_partial=True to work on the {seen.total} that were seen."
        )


@contextmanager
def routed(model: nn.Module) -> Iterator[None]:
    """Send the model's attention through the seam; the implementation it had comes back at the end, after an error too."""
    config: Any = model.config
    before = config._attn_implementation
    if before == kernel.NAME:
        yield
        return
    try:
        model.set_attn_implementation(kernel.NAME)  # type: ignore[operator]
    except (KeyError, ValueError, AttributeError) as error:
        raise HeadwiseError(
            f"{type(model).__name__} does not accept an attention function of our own ({error}): headwise cannot work on it."
        ) from None
    try:
        yield
    finally:
        model.set_attn_implementation(before)  # type: ignore[operator]


@contextmanager
def installed(slots: dict[nn.Module, Any]) -> Iterator[None]:
    """Hang orders on modules, and take them off again."""
    before = {module: module.__dict__.get(kernel.NAME) for module in slots}
    for module, slot in slots.items():
        module.__dict__[kernel.NAME] = slot
    try:
        yield
    finally:
        for module, slot in before.items():
            if slot is None:
                module.__dict__.pop(kernel.NAME, None)
            else:
                module.__dict__[kernel.NAME] = slot


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Evaluation mode (no dropout) for the time of the block."""
    training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(training)
