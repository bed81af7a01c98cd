"""The numbers of heads in a model's configuration. Where all layers have equally many, they are those that are left:
then the model is an ordinary checkpoint, which transformers and engines load without headwise."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from headwise.core.errors import HeadwiseError
from headwise.core.heads import HeadMap
from headwise.core.layout import HeadMask, key_value_heads
from headwise.models.attention.discover import Discovery, output_difference, probe
from headwise.models.attention.offload import is_offloaded
from headwise.models.attention.rebuilt import give_weights, shapes, stock_model


def config_has_heads(config: Any, layout: HeadMask) -> bool:
    """Whether a configuration itself says how many heads are left, so that the stock class has their shapes."""
    if config.is_encoder_decoder or len(layout.heads.kinds) != 1:
        return False
    # One number, or the layers are uneven.
    left = {len(layout.of(site)) for site in layout.heads.sites}
    text = config.get_text_config()
    return left == {getattr(text, count_name(text, layout.heads), None)}


def count_name(text: Any, heads: HeadMap) -> str:
    """What the configuration of a stack calls its number of heads. In families of two stacks (BART's), of which a decoder
    stands alone, `num_attention_heads` is the encoder's."""
    own = "decoder_attention_heads"
    return own if "decoder-self" in heads.kinds and hasattr(text, own) else "num_attention_heads"


def write_heads_to_config(model: nn.Module, discovery: Discovery, layout: HeadMask) -> None:
    """Write the numbers of heads of a pruned model into its configuration, with the size of a head.

    Where all layers have equally many heads, and the stock class with this configuration computes the same as the
    model, these are the heads that are left. Otherwise they are those of the model that was pruned first, which with
    the layout gives the shapes. Some families cannot state the heads that are left: they divide the width of the model
    by the number of heads for the size of a head (BERT, GPT-2), or refuse a number that does not divide the width
    (Llama, Gemma 3). A configuration with numbers for single layers (Gemma 4) is not changed.
    """
    config: Any = model.config
    # An encoder-decoder has one number for self- and cross-attention of a decoder.
    if config.is_encoder_decoder or len(layout.heads.kinds) != 1:
        return
    text: Any = config.get_text_config()
    if getattr(text, "is_heterogeneous", False):
        return
    if not config_has_heads(config, layout):
        write_counts(text, layout.heads)
    if not equal_layers(discovery.heads) or discovery.heads == layout.heads:
        return
    # An offloaded model is compared by shapes alone: its stock twin would need all weights in memory.
    expected = None if is_offloaded(model) else probe(model)
    # All of it: transformers derives attributes from others.
    before = dict(vars(text))
    write_counts(text, discovery.heads)
    state_size(text, discovery.head_size)
    if not is_stock(model, expected):
        vars(text).clear()
        vars(text).update(before)


def equal_layers(heads: HeadMap) -> bool:
    """Whether all layers of a map of one kind have equally many heads, and some."""
    (kind,) = heads.kinds
    counts = {*zip(heads.query[kind], heads.key_value[kind], strict=True)}
    return len(counts) == 1 and (0, 0) not in counts


def write_counts(text: Any, heads: HeadMap) -> None:
    """Write the numbers of heads of a map with equal layers into the configuration of a stack."""
    if equal_layers(heads):
        (kind,) = heads.kinds
        state_counts(text, heads.query[kind][0], heads.key_value[kind][0], count_name(text, heads))


def state_counts(text: Any, query: int, key_value: int, name: str = "num_attention_heads") -> None:
    """Write the numbers of heads of every layer into the configuration of a stack. name: of that of query heads."""
    setattr(text, name, query)
    if hasattr(text, "num_key_value_heads"):
        text.num_key_value_heads = key_value


def state_size(text: Any, head_size: int) -> None:
    """Write the size of a head into the configuration of a stack, unless it has one (T5: `d_kv`)."""
    if getattr(text, "head_dim", None) is None and not hasattr(text, "d_kv"):
        text.head_dim = head_size


def is_stock(model: nn.Module, expected: Tensor | None) -> bool:
    """Whether the class of a model, built by the configuration as it would be saved, has the model's shapes and gives the
    expected output of `probe` with its weights. expected: None to compare shapes only."""
    try:
        stock = stock_model(model, model.config)
    except HeadwiseError:
        return False  # a number that transformers refuses
    weights = model.state_dict()
    # Buffers that are not saved (tables of rotations) have shapes by the configuration as well.
    if shapes({**dict(model.named_buffers()), **weights}) != shapes(
        {**dict(stock.named_buffers()), **stock.state_dict()}
    ):
        return False
    if expected is None:
        return True
    give_weights(stock, weights)
    try:
        return output_difference(expected, probe(stock)) is None
    except HeadwiseError:
        return False


def note_origins(discovery: Discovery, layout: HeadMask) -> None:
    """Note in the layers of a pruned model that transformers has loaded which key/value heads are copies of one head.

    These are the key/value heads of query heads that shared one. `cut_layer` leaves the same note.
    """
    for site, module in discovery.modules.items():
        groups = layout.heads.key_value[site.kind][site.layer]
        # Query heads of a group, in the model that was pruned first.
        shared = layout.heads.count(site) // groups
        served_by = [head // shared for head in layout.of(site)]
        origin, _ = key_value_heads(served_by, list(range(groups)))
        if not hasattr(module, "key_value_origin"):
            module.key_value_origin = origin  # type: ignore[assignment]
