"""The models of controls, that a pruned one is compared with; `controls.py` has their table.

The first are layouts: heads of the full model, chosen another way than by pruning; they are then fine-tuned. The last
two are trained from random weights, as the full model was: the same layout (Voita et al. 2019, section 6.3), and a
narrower model.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from headwise.core.errors import HeadwiseError
from headwise.core.heads import Head, HeadMap, Kind, Site
from headwise.core.layout import HeadMask
from headwise.core.options import Architecture, Keep, Unit
from headwise.core.removal_units import first_units, removal_units, target_counts
from headwise.pruning.control_case import Case, Trained
from headwise.pruning.greedy import random_scores, refuse_holes


def all_heads(case: Case) -> HeadMask:
    """The full model's layout."""
    return HeadMask.full(case.heads)


def random_heads(case: Case) -> HeadMask:
    """As many random heads of every kind as the pruned model keeps."""
    if case.mask is None:
        raise HeadwiseError("The control 'random' belongs to a pruned model, but none was given.")
    counts = {kind: case.mask.count(kind) for kind in case.kinds}
    return at_random(case.heads, case.kinds, counts, case.seed, case.unit)


def best_of_each_layer(case: Case) -> HeadMask:
    """The most important head of every layer (Michel et al. 2019, section 3.3)."""
    return one_per_layer(case.heads, case.kinds, case.importance())


def random_of_each_layer(case: Case) -> HeadMask:
    """A random head of every layer."""
    return one_per_layer(case.heads, case.kinds, random_scores(case.heads, case.seed))


def at_random(
    heads: HeadMap, kinds: Sequence[Kind], keep: Keep, seed: int, unit: Unit | None = None
) -> HeadMask:
    """A mask with `keep` random heads of `kinds`, in whole units, and all heads of other kinds.

    keep: a number in total, or one for each of `kinds`. With one kind both are the same draw.
    """
    chosen = heads.only(kinds)
    scores = random_scores(chosen, seed)
    removed: list[Head] = []
    for own, count in target_counts(chosen, keep, 0, unit).items():
        some = chosen.only(own)
        drawn = sorted(removal_units(some, unit), key=lambda together: scores[together[0]])
        for together in first_units(drawn, some.total - count):
            removed += together
    return HeadMask.full(heads).without(removed)


def one_per_layer(heads: HeadMap, kinds: Sequence[Kind], score: Mapping[Head, float]) -> HeadMask:
    """A mask with the best head by `score` of every layer of `kinds`, and all heads of other kinds.

    Higher is better; of equal heads the last stays. Michel et al. 2019 do this to one layer at a time. Raises
    HeadwiseError for a score that lacks a head or is not a number.
    """
    chosen = heads.only(kinds)
    refuse_holes(score, list(chosen))
    best: dict[Site, Head] = {}
    for head in sorted(chosen, key=score.__getitem__):
        best[Site(head.kind, head.layer)] = head
    return HeadMask.full(heads).without(set(chosen) - set(best.values()))


def from_scratch(case: Case) -> Trained:
    """The layout of the pruned model trained from random weights, as the full model was.

    The initial weights are those of the full model with this seed, without the missing heads: the same start as with
    gates fixed at 0 and 1.
    """
    assert case.shape is not None and case.mask is not None
    model = case.untrained(case.shape).only(case.mask, grow=True)
    facts = case.train(model)
    return Trained(model, {**facts, "notes": []})


def narrower_model(case: Case) -> Trained:
    """A dense model with all heads and about as many weights as the pruned one."""
    assert case.shape is not None
    parameters = case.pruned().parameters
    smaller = narrower(case.shape, len(case.full.tokenizer), parameters)
    model = case.untrained(smaller)
    facts = {
        **case.train(model),
        "width": smaller.width,
        "feedforward": smaller.feedforward,
        "parameters_beyond_reference": model.parameters - parameters,
        "notes": shape_notes(smaller, case.shape),
    }
    return Trained(model, facts)


def shape_notes(smaller: Architecture, shape: Architecture) -> list[str]:
    """What a reader must know of the shape that was found."""
    if smaller == shape:
        return [
            "No head was removed, so no narrower model is as large: this is the full shape again."
        ]
    if smaller.width == shape.width:
        return ["So few heads were removed that only the feed-forward layers are narrower."]
    return []


def narrower(shape: Architecture, vocabulary: int, parameters: int) -> Architecture:
    """The dense model with all heads and about `parameters` weights, in the proportions of `shape`.

    Its width is a multiple of the number of heads, which is coarse. So each width up to that of `shape` gets the
    feed-forward size nearest to `parameters` (a unit is (E + D)(2M + 1) weights); the result is the model with the
    ratio of feed-forward size to width nearest to that of `shape`. For few missing heads that may be the full width.

    vocabulary: the size of the tokenizer's vocabulary. Raises HeadwiseError when even the narrowest model is larger.
    """
    widths = [width for width in range(shape.heads, shape.width + 1, shape.heads) if width >= 4]
    shapes = []
    fitting = []
    # Every width, because the widest that fits may have hardly any feed-forward layer.
    for width in widths:
        other = filled_up(shape.model_copy(update={"width": width}), vocabulary, parameters)
        shapes.append(other)
        # Half a unit: with whole units of feed-forward size none may come nearer.
        if count_weights(other, vocabulary) - parameters <= weights_per_unit(other) / 2:
            fitting.append(other)
    if not fitting:
        raise HeadwiseError(
            f"There is no narrower model of {parameters:,} weights: the narrowest with {shape.heads} heads "
            f"(width {widths[0]}) has {count_weights(shapes[0], vocabulary):,}. Leave this control out."
        )
    ratio = shape.feedforward / shape.width
    # By logarithms, so that half the ratio is as far off as twice the ratio.
    return min(fitting, key=lambda other: abs(math.log(other.feedforward / other.width / ratio)))


def filled_up(shape: Architecture, vocabulary: int, parameters: int) -> Architecture:
    """The shape with the feed-forward size, at least 1, that is nearest to this number of weights."""
    least = shape.model_copy(update={"feedforward": 1})
    more = round((parameters - count_weights(least, vocabulary)) / weights_per_unit(shape))
    return shape.model_copy(update={"feedforward": 1 + max(0, more)})


def weights_per_unit(shape: Architecture) -> int:
    """The weights of one unit of feed-forward size, over all layers."""
    return (shape.encoder_layers + shape.decoder_layers) * (2 * shape.width + 1)


def count_weights(shape: Architecture, vocabulary: int) -> int:
    """The number of weights of a model that `build_model` makes of this shape, tied ones counted once."""
    wide = shape.width
    layers = shape.encoder_layers + shape.decoder_layers
    # A decoder layer has cross-attention as well.
    attention = (layers + shape.decoder_layers) * 4 * (wide * wide + wide)
    feedforward = layers * (2 * wide * shape.feedforward + shape.feedforward + wide)
    # A decoder layer has a third norm, that of cross-attention.
    norms = (2 * layers + shape.decoder_layers) * 2 * wide
    blocks = attention + feedforward + norms
    if shape.norm == "post":
        # Marian: two embeddings, and two tables of positions that do not train.
        positions = max(shape.max_length + 8, 64)
        return blocks + 2 * vocabulary * wide + 2 * positions * wide
    # M2M100: two embeddings and an output layer, and a last norm in each stack.
    return blocks + 3 * vocabulary * wide + 2 * 2 * wide
