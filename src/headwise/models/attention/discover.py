"""Finding the heads of a model: a small forward with hooked attention, and checks that the map can be trusted.

Models that do not call transformers' attention registry ignore our function silently, and some compute something else
under another function's name. So the probe runs twice, as the model is and through our function, and a difference is an
error. The heads that were seen are compared with those that the configuration declares; a difference is an error unless
`allow_partial` accepts missing heads. The probe is short: a rule that holds only for longer texts arrives as a mask, or
as an argument that the kernel does not know and refuses.
"""

from __future__ import annotations

import re
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES,
    MODEL_FOR_MULTIPLE_CHOICE_MAPPING_NAMES,
    MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES,
    MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING_NAMES,
)

from headwise.core.errors import HeadsMissing, HeadwiseError, shown_value
from headwise.core.heads import HeadMap, Kind, Site, describe
from headwise.models.attention import inline, kernel
from headwise.models.attention.configuration import declared_heads
from headwise.models.attention.offload import device_of, undisturbed

# Different lengths, so that the kind of attention follows from the shape of a call.
SOURCE_LENGTH = 9
TARGET_LENGTH = 5
LEFT_PADDING = 3
HALF_PRECISION = (torch.float16, torch.bfloat16)


@dataclass(frozen=True)
class CacheLayer:
    """What one layer keeps in the key/value cache: `numbers` of every token, or of the last `window` tokens."""

    numbers: int
    window: int | None = None

    def size(self, tokens: int) -> int:
        """How many numbers it keeps of so many tokens."""
        return self.numbers * (tokens if self.window is None else min(tokens, self.window))


@dataclass(frozen=True)
class Discovery:
    """A model's heads, and the module (with its name) of each site.

    cached: the layers of the key/value cache, of `decoder-self` and `cross`. inline: where heads arrive in layers that
    compute attention in their own code (inline.py); such a model has no others.
    """

    heads: HeadMap
    modules: dict[Site, nn.Module]
    names: dict[Site, str]
    head_size: int
    cached: dict[Kind, list[CacheLayer]] = field(default_factory=dict)
    inline: dict[Site, inline.Output] = field(default_factory=dict)

    def __repr__(self) -> str:
        return f"Discovery({self.heads.total} heads: {describe(self.heads)})"

    def windows(self, kind: Kind) -> list[int | None]:
        """By layer, how many tokens a token sees in a sliding layer, itself among them; None for all. Empty where the
        layers of the cache are not those of the heads (a layer without heads)."""
        cached = self.cached.get(kind, [])
        if len(cached) != len(self.heads.query.get(kind, ())):
            return []
        return [None if layer.window is None else layer.window + 1 for layer in cached]

    def layer_numbers(self) -> dict[Kind, list[int]]:
        """By kind, the model's own number of each layer of heads, where it is another one: layers of hybrid models without
        attention have none here. Empty for nearly all models, and where one module serves several layers."""
        found: dict[Kind, list[int]] = {}
        for site, name in self.names.items():
            number = re.search(r"\.(\d+)\.", f".{name}.")
            found.setdefault(site.kind, []).append(-1 if number is None else int(number[1]))
        return {
            kind: numbers
            for kind, numbers in found.items()
            if numbers != [*range(len(numbers))]
            and numbers == sorted({*numbers})
            and numbers[0] >= 0
        }

    def numbering(self) -> str:
        """A sentence on how layers are numbered, where that is not as in the model; empty elsewhere."""
        parts = []
        for kind, numbers in self.layer_numbers().items():
            own = ", ".join(map(str, numbers))
            parts.append(f"{kind}/0 is layer {numbers[0]} of the model (with attention: {own})")
        return f"Layers of heads are counted alone: {'; '.join(parts)}." if parts else ""

    def window_names(self) -> dict[Kind, list[str]]:
        """By kind and layer `full` or `sliding 512`, in tokens. Only kinds that have both sorts of layers."""
        names = {}
        for kind in self.heads.kinds:
            windows = self.windows(kind)
            if None in windows and any(windows):
                names[kind] = ["full" if size is None else f"sliding {size}" for size in windows]
        return names


def refuse_no_module(model: object) -> None:
    """Raise HeadwiseError for what is given in place of a plain transformers model."""
    if not isinstance(model, nn.Module):
        raise HeadwiseError(
            f"{shown_value(model)} was given in place of a transformers model: give that itself, of hw.load(…) its .hf."
        )


def discover(model: nn.Module, allow_partial: bool = False) -> Discovery:
    """Find every attention head of a transformers model.

    Runs two forwards of a small padded batch, in float32, and a third where there is one stack of layers. Raises
    HeadsMissing when the configuration declares more heads than the probe saw, unless `allow_partial`; raises
    HeadwiseError when it saw none or too many, or when the model computes something else through our attention
    function.
    """
    refuse_no_module(model)
    # `through`: the output with our function in place; below it is compared with the model's own.
    through, calls, entered = observed(model)
    kinds = kinds_of(model, calls)
    layers: dict[Kind, list[tuple[int, int]]] = defaultdict(list)
    modules: dict[Site, nn.Module] = {}
    names: dict[Site, str] = {}
    own: dict[Site, inline.Output] = {}
    name_of = {module: name for name, module in model.named_modules()}
    for call, kind in zip(calls, kinds, strict=True):
        # Layers are counted by calls, not by modules: ALBERT runs one module for all its layers.
        site = Site(kind, len(layers[kind]))
        modules[site], names[site] = call.module, name_of[call.module]
        layers[kind].append((call.query[1], call.key[1]))
        if call.inline is not None:
            own[site] = call.inline
    query: dict[Kind, tuple[int, ...]] = {}
    key_value: dict[Kind, tuple[int, ...]] = {}
    for kind, counts in layers.items():
        # From pairs a layer to one row of query heads and one of key/value heads.
        query[kind], key_value[kind] = zip(*counts, strict=True)
    heads = HeadMap(query, key_value)
    check_heads(model, heads, modules, allow_partial)
    # A shared module runs once for each of its layers; one that calls attention twice in a run has other calls.
    for module, count in Counter(modules.values()).items():
        # As many runs as calls are fine: each run is a layer (ALBERT).
        if count > entered[module] > 0:
            raise HeadwiseError(
                f"{name_of[module]} ({type(module).__name__}) of this {type(model).__name__} calls attention {count} "
                "times for one layer, so its calls are not its heads: headwise cannot work on it."
            )
    config: Any = model.config
    # Others, such as flash attention, do not compute in float32.
    with (
        nullcontext()
        if config._attn_implementation in ("eager", "sdpa")
        else routed(model, "eager")
    ):
        stock, cached = probe_with_cache(model)
        if output_difference(stock, through) is not None:
            # FSMT reads a target in another way while it fills a cache.
            stock = probe(model)
    if (moved := output_difference(stock, through)) is not None:
        raise HeadwiseError(
            f"This {type(model).__name__} computes something else as soon as headwise hooks into its attention (by "
            f"{moved:.2g}, where its largest output is {float(largest_finite(stock)):.2g}): headwise cannot work on it."
        )
    warn_of_neighbours(model, stock)
    if cached is None:
        # The cache cannot be seen, so what each layer attends to stands for what it keeps.
        cached = defaultdict(list)
        for call, kind in zip(calls, kinds, strict=True):
            numbers = sum(shape[1] * shape[3] for shape in (call.key, call.value))
            cached[kind].append(CacheLayer(numbers))
    return Discovery(heads, modules, names, calls[0].query[3], dict(cached), own)


def warn_of_neighbours(model: nn.Module, together: Tensor) -> None:
    """Warn of a model that answers otherwise about a sentence padded on the right, beside another, than about it alone:
    it reads past the mask, or positions count its padding. together: the output of `probe`."""
    inputs = example_batch(model)
    # Of classes that take a single sentence the probe has none that is padded on the right.
    if "attention_mask" not in inputs or bool(inputs["attention_mask"][0, 0] == 0):
        return
    length = int(inputs["attention_mask"][0].sum())
    alone = {name: tensor[:1] for name, tensor in inputs.items()}
    for name in ("input_ids", "attention_mask"):
        alone[name] = alone[name][:, :length]
    expected = without_padding(forward(model, alone)[0], alone)
    # Without its padding the first sentence is the first rows.
    beside = together[: len(expected)]
    if (moved := output_difference(expected, beside)) is not None:
        warnings.warn(
            f"This {type(model).__name__} answers otherwise about a sentence in a batch with a longer one (by {moved:.2g}, "
            f"where its largest output is {float(largest_finite(expected)):.2g}): its numbers depend on the batch.",
            stacklevel=4,
        )


@dataclass(frozen=True)
class ProbeCall:
    """What the probe keeps of an attention layer's call: the shapes of queries, keys and values, the heads' outputs of
    the last sentence at the tokens before its last one (Q H D), and where heads arrive in a layer of own code."""

    module: nn.Module
    query: torch.Size
    key: torch.Size
    value: torch.Size
    before_last: Tensor
    inline: inline.Output | None


def observed(
    model: nn.Module, other_end: bool = False
) -> tuple[Tensor, list[ProbeCall], Counter[nn.Module]]:
    """The output of `probe`, the calls of attention in it, in their order, and how often each module ran.

    Layers that compute attention in their own code are looked for where none calls our function.
    """
    calls: list[ProbeCall] = []
    entered: Counter[nn.Module] = Counter()

    def note(module: nn.Module, output: inline.Output | None, call: kernel.AttentionCall) -> None:
        shapes = (call.query.shape, call.key.shape, call.value.shape)
        # The last text of the probe is the one with padding on the left.
        calls.append(ProbeCall(module, *shapes, call.output[-1, LEFT_PADDING:-1].clone(), output))

    def enter(module: nn.Module, _: Any) -> None:
        entered[module] += 1

    # Every module gets hooks, because nobody knows yet which of them call attention.
    states = {module: kernel.HookState() for module in model.modules()}
    for module, state in states.items():
        hook = partial(note, module, None)
        # The site of a call is not known yet, so any will do.
        state.passes.append((Site("encoder-self", 0), [kernel.Hooks(hook=hook)]))
    with routed(model), kernel.patched(kernel.INTERFACE_NAME, states), ExitStack() as block:
        for module in states:
            block.callback(module.register_forward_pre_hook(enter).remove)
        output = probe(model, other_end)
    # Layers that have lost all heads call us in every family, so they say nothing about the others.
    # Also true without any call: then the model computes attention in its own code.
    if all(hasattr(call.module, "emptied") for call in calls):
        calls.clear()
        empty = {module: state for module, state in states.items() if hasattr(module, "emptied")}
        with (
            kernel.patched(kernel.INTERFACE_NAME, empty),
            inline.finding_inline(model, note),
        ):
            output = probe(model, other_end)
    return output, calls, entered


def kinds_of(model: nn.Module, calls: list[ProbeCall]) -> list[Kind]:
    """The kind of each call. In an encoder-decoder the probe's lengths decide; in a one-stack model, whether heads at
    earlier tokens change with the last one. A pruned model and layers without heads keep the kind they had: the heads that
    are left may all look back.

    Raises HeadwiseError where one softmax is over the target and the source (T5Gemma 2): such heads are of no kind.
    """
    config: Any = model.config
    if reads_its_source_twice(model):
        # Its decoder reads as many tokens as its encoder, so lengths say nothing: the model inside is asked.
        inside: Any = model.base_model
        seen = observed(inside)[1]
        known = dict(zip([call.module for call in seen], kinds_of(inside, seen), strict=True))
        return [known[call.module] for call in calls]
    layout = getattr(config, "headwise_layout", None)
    one_stack: Kind = "encoder-self"
    if layout and not config.is_encoder_decoder:
        one_stack = next(iter(layout["kept"]))
    elif not config.is_encoder_decoder and sees_no_future(model, calls):
        one_stack = "decoder-self"

    # The lengths that the encoder has.
    sources = {call.query[2] for call in calls} - {TARGET_LENGTH}
    kinds: list[Kind] = []
    for call in calls:
        queries, keys = call.query[2], call.key[2]
        kind = one_stack
        if config.is_encoder_decoder:
            if queries == TARGET_LENGTH and keys - queries in sources:
                raise HeadwiseError(
                    f"The decoder of this {type(model).__name__} attends to the target and to the source in one softmax, "
                    "so its heads are neither self-attention nor cross attention: headwise cannot work on it."
                )
            if queries != keys:
                kind = "cross"
            elif queries == TARGET_LENGTH:
                kind = "decoder-self"
        kinds.append(getattr(call.module, "emptied", kind))
    return kinds


def sees_no_future(model: nn.Module, calls: list[ProbeCall]) -> bool:
    """Whether no head at an earlier token gives something else when the last token is another one.

    Masks say it in too many ways (−∞, −10,000, a flag) to be read. An image has no last token.
    """
    if "input_ids" not in example_batch(model):
        return False
    again = observed(model, other_end=True)[1]
    return all(
        output_difference(call.before_last, other.before_last) is None
        for call, other in zip(calls, again, strict=True)
        if call.before_last.numel()
    )


def example_batch(model: nn.Module) -> dict[str, Tensor]:
    """A small batch: a sentence padded on the right and one padded on the left, or a recording for Whisper, or
    an image for encoders of images.

    Without a padding token in the configuration only the second: classifiers then refuse several sentences.
    """
    config: Any = model.config
    device = device_of(model)
    reads = getattr(model, "main_input_name", "")
    if type(model).__name__ in MODEL_FOR_MULTIPLE_CHOICE_MAPPING_NAMES.values():
        raise HeadwiseError(
            f"{type(model).__name__} reads several choices for each question, and headwise gives a model one text: it works "
            "on models of other answers, such as classifiers."
        )
    if (
        reads == "pixel_values"
        and hasattr(config, "image_size")
        and hasattr(config, "num_channels")
    ):
        size = config.image_size
        height, width = (size, size) if isinstance(size, int) else size
        count = config.num_channels * height * width
        # Sines, so that no two places of the image are equal.
        image = (
            torch.linspace(0, count, count, device=device).sin().to(next(model.parameters()).dtype)
        )
        return {"pixel_values": image.view(1, config.num_channels, height, width)}
    if reads == "input_values":
        raise HeadwiseError(
            f"{type(model).__name__} reads the waves of a sound, not token ids: headwise works on models of text, on "
            "encoders of images (ViT) and on Whisper."
        )
    words: int | None = getattr(config.get_text_config(), "vocab_size", None)
    if words is None:
        raise HeadwiseError(
            f"{type(model).__name__} reads no token ids (its configuration has no vocabulary): headwise works on "
            "models of text, on encoders of images (ViT) and on Whisper."
        )
    # The first four words of a vocabulary are often special ones, so the probe begins after them.
    ids = torch.arange(SOURCE_LENGTH, device=device).repeat(2, 1) % max(words - 4, 1) + min(
        4, words - 1
    )
    inputs: dict[str, Tensor] = {}
    reads_sound = reads == "input_features"
    if reads_sound and hasattr(config, "num_mel_bins") and hasattr(config, "max_source_positions"):
        # The encoder's convolutions halve the frames, and it takes no other number of them.
        frames = 2 * config.max_source_positions
        sound = torch.linspace(-1, 1, config.num_mel_bins * frames, device=device).sin()
        inputs["input_features"] = sound.view(1, config.num_mel_bins, frames)
        ids = ids[:1]
    else:
        pad = getattr(config.get_text_config(), "pad_token_id", None)
        mask = torch.ones_like(ids)
        mask[0, -2:] = mask[1, :LEFT_PADDING] = 0
        shown = torch.where(mask.bool(), ids, 0 if pad is None else pad)
        rows = slice(1 if pad is None else 0, 2)
        ids = ids[rows]
        inputs |= {"input_ids": shown[rows], "attention_mask": mask[rows]}
    if reads_its_source_twice(model):
        return {**inputs, "input_ids": ended(model, inputs["input_ids"], inputs["attention_mask"])}
    if config.is_encoder_decoder:
        inputs["decoder_input_ids"] = ids[:, :TARGET_LENGTH]
    return inputs


def reads_its_source_twice(model: nn.Module) -> bool:
    """Whether a model is an encoder-decoder that writes no words (`BartForSequenceClassification`): its decoder reads the
    source again, which the model itself shifts, and the answer is at the end."""
    known: Any = model
    return bool(
        known.config.is_encoder_decoder
        and getattr(model, "main_input_name", "") == "input_ids"
        and getattr(model, "base_model", model) is not model
        and known.get_output_embeddings() is None
    )


def ended(model: nn.Module, ids: Tensor, mask: Tensor) -> Tensor:
    """Texts B S that end with the token by which a model knows their end, which is nowhere else; mask: where tokens are.
    The same where the configuration names none."""
    config: Any = model.config
    end = getattr(config, "eos_token_id", None)
    end = end[0] if isinstance(end, list) else end
    words = getattr(config.get_text_config(), "vocab_size", 0)
    if not isinstance(end, int) or words < 2:
        return ids
    ids = torch.where(ids == end, (end + 1) % words, ids)
    last = mask.cumsum(1).argmax(1)  # the first of the largest: where the last token is
    rows = torch.arange(len(ids), device=ids.device)
    ids[rows, last] = end
    return ids


def probe(model: nn.Module, other_end: bool = False) -> Tensor:
    """The output of one forward over `example_batch`, without its padding: in evaluation mode, in float32, no gradients.

    other_end: with another last token.
    """
    inputs = example_batch(model)
    if other_end:
        ids = inputs["input_ids"].clone()
        ids[-1, -1] = (ids[-1, -1] - 1).clamp(min=0)
        # Only the last row changes: the one that ends in a token, not in padding.
        inputs["input_ids"] = ids
    return without_padding(forward(model, inputs)[0], inputs)


def probe_with_cache(model: nn.Module) -> tuple[Tensor, dict[Kind, list[CacheLayer]] | None]:
    """The output of `probe` in a forward that fills a key/value cache, and the layers of that cache: none for models
    that keep no cache. None for models that take a cache only in parts of a forward (Switch Transformers)."""
    inputs = example_batch(model)
    # A model that takes no `use_cache` keeps no keys and values.
    if not without_cache(model):
        return probe(model), {}
    try:
        # Switch Transformers fails here, with a message of its own that is of no use.
        output = forward(model, inputs, use_cache=True)
    except HeadwiseError:
        return probe(model), None

    cache = getattr(output, "past_key_values", None)
    # An encoder-decoder has a cache of two parts.
    layers: dict[Kind, list[CacheLayer]] = {
        "decoder-self": cache_layers(getattr(cache, "self_attention_cache", cache)),
        "cross": cache_layers(getattr(cache, "cross_attention_cache", None)),
    }
    return without_padding(output[0], inputs), layers


def cache_layers(cache: Any) -> list[CacheLayer]:
    """The layers of a cache of transformers that hold keys (B H T D) and values."""
    found = []
    for layer in getattr(cache, "layers", ()):
        keys = getattr(layer, "keys", None)
        # Layers of a hybrid model without attention keep another state.
        if keys is None or not keys.numel():
            continue
        numbers = (keys.numel() + layer.values.numel()) // (keys.shape[0] * keys.shape[-2])
        # A window of n tokens needs the keys of n − 1 tokens before the one that is read.
        window = layer.sliding_window - 1 if layer.is_sliding else None
        found.append(CacheLayer(numbers, window or None))
    return found


def forward(model: nn.Module, inputs: Mapping[str, Tensor], use_cache: bool = False) -> Any:
    """What a model returns for a small batch, in evaluation mode, in float32 and without gradients."""
    options = {"use_cache": True} if use_cache else without_cache(model)
    try:
        with evaluating(model), torch.no_grad(), undisturbed(model), precise(model):
            return model(**inputs, **options)
    except HeadwiseError:
        raise
    except Exception as error:
        reason = " ".join(str(error).split())[:200]
        raise HeadwiseError(
            f"{type(model).__name__} does not run on a few token ids ({type(error).__name__}: {reason}): "
            "headwise works on models that read only text."
        ) from error


def without_padding(output: Tensor, inputs: Mapping[str, Tensor]) -> Tensor:
    """The output at tokens, where it has a row for each position of the one text that was read."""
    mask = inputs.get("attention_mask")
    # A decoder's rows are target tokens, none of which is padding.
    if mask is None or "decoder_input_ids" in inputs or output.shape[:2] != mask.shape:
        return output
    return output[mask.bool()]


def output_difference(expected: Tensor, got: Tensor) -> float | None:
    """How far two outputs of `probe` are apart, when that is more than rounding: √ε of the largest number.

    Where the expected one is not a number (some families, padded on the left, in float64) nothing is compared.
    """
    moved = torch.where((expected == got) | expected.isnan(), 0.0, (got - expected).abs()).max()
    # Norms and rotations are in float32, whatever the type of the weights.
    precision = torch.finfo(torch.float32).eps
    return None if bool(moved <= precision**0.5 * largest_finite(expected)) else float(moved)


def largest_finite(output: Tensor) -> Tensor:
    """The largest finite number of an output."""
    return torch.where(output.isfinite(), output.abs(), 0.0).max()


def precise(model: nn.Module) -> AbstractContextManager[Any]:
    """A `with` block in which a model of half precision computes in float32, one matrix at a time."""
    return (
        Float32()
        if any(parameter.dtype in HALF_PRECISION for parameter in model.parameters())
        else nullcontext()
    )


class Float32(TorchFunctionMode):
    """Every operation gets its tensors of half precision, and the types it is asked for, as float32."""

    def __torch_function__(
        self,
        function: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Any = None,
    ) -> Any:
        # The type is in the name of these two, where `widened` does not see it.
        if function in (Tensor.half, Tensor.bfloat16):
            # `x.half()` would undo what the mode is for.
            function = Tensor.float
        # `__get__` reads a property, such as the shape, which needs no other numbers.
        if getattr(function, "__name__", "") != "__get__":
            args, kwargs = tree_map(widened, (args, kwargs or {}))
        return function(*args, **(kwargs or {}))


def widened(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.float() if value.dtype in HALF_PRECISION else value
    return torch.float32 if value in HALF_PRECISION and isinstance(value, torch.dtype) else value


def output_of(model: nn.Module, inputs: Mapping[str, Tensor]) -> Any:
    """The output of one forward without a cache."""
    return model(**inputs, **without_cache(model))


def logits_in(output: Any) -> Tensor | None:
    """The logits in what a model gives; None where it has none. Models of two tasks (BertForPreTraining) call those of
    words `prediction_logits`."""
    for name in ("logits", "prediction_logits"):
        logits: Tensor | None = getattr(output, name, None)
        if logits is not None:
            return logits
    return None


def without_cache(model: nn.Module) -> dict[str, bool]:
    """The argument that makes a model's forward keep no cache; none for models without one."""
    config: Any = model.config
    return {"use_cache": False} if config.is_encoder_decoder or "use_cache" in vars(config) else {}


def classifies(model: nn.Module) -> bool:
    """Whether a model gives logits of classes for a whole text or image."""
    named = (
        MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES,
        MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES,
    )
    return any(type(model).__name__ in mapping.values() for mapping in named)


def tags(model: nn.Module) -> bool:
    """Whether a model gives logits of classes for every token."""
    return type(model).__name__ in MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING_NAMES.values()


def refuse_taken_apart(model: nn.Module) -> None:
    """Raise HeadwiseError for a model that TransformerLens was given, or made of one."""
    if any(type(part).__module__.startswith("transformer_lens.") for part in model.modules()):
        raise HeadwiseError(
            "TransformerLens put modules of its own into this model: load it again, and give TransformerLens a copy "
            "(hf_model=copy.deepcopy(model))."
        )


def check_heads(
    model: nn.Module, heads: HeadMap, modules: Mapping[Site, nn.Module], allow_partial: bool
) -> None:
    """Compare the map with the configuration or, where that has no number, with the modules named attention."""
    if not heads.kinds:
        refuse_taken_apart(model)
        raise HeadwiseError(
            f"{type(model).__name__} shows no attention head: it does not call transformers' attention registry, and "
            "none of its layers multiplies softmax weights with values right before an output projection that headwise "
            "knows, so headwise cannot work on it."
        )
    number, seen = declared_heads(model), set(modules.values())
    # Layers that share a module may be more than the configuration counts.
    if number is not None and heads.total > number and len(seen) == len(modules):
        raise HeadwiseError(
            f"This {type(model).__name__} declares {number} heads, but the probe saw {heads.total}: "
            "not every call of attention is a head of its own, so headwise cannot work on it."
        )
    if allow_partial or (number is not None and heads.total >= number):
        return
    # Outer modules named attention only hold the inner ones that compute it.
    missed = sorted(
        f"{name} ({type(module).__name__})"
        for name, module in model.named_modules()
        if called_attention(module)
        and seen.isdisjoint(module.modules())
        and not any(map(called_attention, module.children()))
    )
    if missed or number is not None:
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
def routed(model: nn.Module, name: str = kernel.INTERFACE_NAME) -> Iterator[None]:
    """Use an attention function (ours); afterwards every configuration in the model has its own again."""
    configs = {
        id(config): config
        for module in model.modules()
        if (config := getattr(module, "config", None))
    }
    # Configurations of parts that no module of this model holds get our function as well.
    parts = []
    for config in configs.values():
        parts += [getattr(config, part) for part in getattr(config, "sub_configs", ())]
    before: list[tuple[Any, Any]] = [
        (config, config._attn_implementation)
        for config in [*configs.values(), *parts]
        if hasattr(config, "_attn_implementation")
    ]
    try:
        try:
            model.set_attn_implementation(name)  # type: ignore[operator]
        except (KeyError, ValueError, AttributeError) as error:
            raise HeadwiseError(
                f"{type(model).__name__} does not accept another attention function ({error}): "
                "headwise cannot work on it."
            ) from error
        yield
    finally:
        # The property would also set the parts.
        for config, implementation in before:
            config._attn_implementation_internal = implementation


@contextmanager
def attention_interface(
    model: nn.Module,
    discovery: Discovery,
    states: Mapping[nn.Module, kernel.HookState],
    calls: bool = True,
) -> Iterator[None]:
    """A `with` block in which the hooks of `states` act. calls: whether any of them gets calls: reads or replaces."""
    with ExitStack() as block:
        if not discovery.inline:
            block.enter_context(routed(model))
        block.enter_context(kernel.patched(kernel.INTERFACE_NAME, states))
        # By module: one that serves several layers gets one hook.
        outputs = {discovery.modules[site]: output for site, output in discovery.inline.items()}
        recorders = {module: inline.Recorder() for module in outputs}
        if calls:
            block.enter_context(kernel.patched("forward", inline.recorded_forwards(recorders)))
        for module, output in outputs.items():
            arrive = partial(inline.arrive, module, states[module], output, recorders[module])
            block.callback(output.projection.register_forward_pre_hook(arrive).remove)
        yield


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Evaluation mode (no dropout) inside the block; afterwards every module has its own mode again."""
    modes = [(module, module.training) for module in model.modules()]
    if any(training for _, training in modes):
        model.eval()
    try:
        yield
    finally:
        # Always, because the block may have trained the model.
        for module, training in modes:
            module.training = training


@contextmanager
def same_gradients(model: nn.Module) -> Iterator[None]:
    """After the block each parameter requires a gradient where it did before."""
    before = {parameter: parameter.requires_grad for parameter in model.parameters()}
    try:
        yield
    finally:
        for parameter, state in before.items():
            parameter.requires_grad_(state)
