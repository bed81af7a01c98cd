"""Controls for pruning: other models with equally many heads or parameters (docs/methods/controls.md).

Voita et al. 2019, section 6.3 (the same layout from scratch); Michel et al. 2019, section 3.3 (one head per layer).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from transformers import PreTrainedTokenizerBase

from headwise.attention.discover import same_gradients
from headwise.errors import HeadwiseError
from headwise.heads import Head, HeadMap, HeadMask, Kind, Site
from headwise.model import Model
from headwise.options import Architecture, Control, FineTuning, Keep, Unit
from headwise.pruning.gate_training import freeze
from headwise.pruning.greedy import order, random_scores
from headwise.training.build import build
from headwise.training.loss_forward import dev_loss, loss_forward
from headwise.training.trainer import TrainingRun, average, converge, fit
from headwise.units import first, target_counts, units


def control_mask(
    control: Control,
    heads: HeadMap,
    kinds: Sequence[Kind],
    seed: int,
    reference: HeadMask | None,
    score: Callable[[], Mapping[Head, float]],
    unit: Unit | None = None,
) -> HeadMask:
    """The heads that a fine-tuned control keeps. reference: the mask of the model it belongs to; score: asked only for
    the best heads."""
    if control == "fine-tuned":
        return HeadMask.full(heads)
    if control == "random" and reference is not None:
        return at_random(heads, kinds, {kind: reference.count(kind) for kind in kinds}, seed, unit)
    if control == "one-per-layer":
        return one_per_layer(heads, kinds, score())
    if control == "one-per-layer-random":
        return one_per_layer(heads, kinds, random_scores(heads, seed))
    raise HeadwiseError(
        f"The control '{control}' has no heads of its own to keep: it is trained from random weights."
    )


@dataclass(frozen=True)
class Tuned:
    """A model pruned to a mask and fine-tuned.

    loss_before, loss_after: dev loss of the smaller model before and after fine-tuning. notes: for the report. cost:
    seconds and updates.
    """

    mask: HeadMask
    model: Model
    loss_before: float
    loss_after: float
    notes: list[str]
    cost: dict[str, float]


def tune(
    model: Model,
    training: TrainingRun,
    options: FineTuning,
    kinds: tuple[Kind, ...],
    mask: HeadMask,
) -> Tuned:
    """Remove the heads outside `mask`, then fine-tune the smaller model as a pruning run does, but without gates.

    The number of updates, batches and their order, rates, schedule and averaging are the same; the decoder is frozen
    where only encoder heads are pruned. With the full mask it is the control `fine-tuned`. `model` does not change;
    resumes from `training.work`. training: as the full model was trained.
    """
    model.heads.only(kinds)  # raises for a kind that the model does not have
    smaller = model.remove(mask, grow=True)  # the mask obeys the unit that was asked for
    hf = smaller.hf

    def loss() -> float:
        with loss_forward(hf):
            return dev_loss(hf, training.dev, model.tokenizer, training.recipe.batch_tokens)

    before = loss()
    tuning = replace(training, recipe=options.within(training.recipe))
    with same_gradients(hf):
        notes = freeze(hf, kinds)
        cost = fit(hf, model.tokenizer, smaller.found, tuning, keep=max(options.average, 2))
        average(hf, training.work, options.average)
    hf.eval()
    return Tuned(mask, smaller, before, loss(), notes, cost)


def from_scratch(
    shape: Architecture,
    tokenizer: PreTrainedTokenizerBase,
    training: TrainingRun,
    mask: HeadMask,
    device: str = "cpu",
) -> tuple[Model, dict[str, Any]]:
    """The layout of `mask` trained from random weights, as the full model was (Voita et al. 2019, section 6.3).

    The initial weights are those of the full model with this seed, without the missing heads: the same start as with
    gates fixed at 0 and 1. Also returns the result of `converge`.
    """
    whole = Model(build(shape, tokenizer, training.seed).to(device), tokenizer, "from scratch")
    model = whole.remove(mask, grow=True)
    facts = converge(model.hf, tokenizer, model.found, training)
    model.hf.eval()
    return model, facts


def narrower(shape: Architecture, vocabulary: int, parameters: int) -> Architecture:
    """The dense model with all heads and about `parameters` weights, in the proportions of `shape`.

    Its width is a multiple of the number of heads, which is coarse. So each width up to that of `shape` gets the
    feed-forward size nearest to `parameters` (a unit is (E + D)(2M + 1) weights); the result is the model with the
    ratio of feed-forward size to width nearest to that of `shape`. For few missing heads that may be the full width.

    vocabulary: the size of the tokenizer's vocabulary. Raises HeadwiseError when even the narrowest model is larger.
    """
    widths = [width for width in range(shape.heads, shape.width + 1, shape.heads) if width >= 4]
    shapes = [
        filled(shape.model_copy(update={"width": width}), vocabulary, parameters)
        for width in widths
    ]
    fitting = [
        other for other in shapes if weights(other, vocabulary) - parameters <= unit(other) / 2
    ]
    if not fitting:
        raise HeadwiseError(
            f"There is no narrower model of {parameters:,} weights: the narrowest with {shape.heads} heads "
            f"(width {widths[0]}) has {weights(shapes[0], vocabulary):,}. Leave this control out."
        )
    ratio = shape.feedforward / shape.width
    return min(fitting, key=lambda other: abs(math.log(other.feedforward / other.width / ratio)))


def filled(shape: Architecture, vocabulary: int, parameters: int) -> Architecture:
    """The shape with the feed-forward size, at least 1, that is nearest to this number of weights."""
    least = shape.model_copy(update={"feedforward": 1})
    more = round((parameters - weights(least, vocabulary)) / unit(shape))
    return shape.model_copy(update={"feedforward": 1 + max(0, more)})


def unit(shape: Architecture) -> int:
    """The weights of one unit of feed-forward size, over all layers."""
    return (shape.encoder_layers + shape.decoder_layers) * (2 * shape.width + 1)


def weights(shape: Architecture, vocabulary: int) -> int:
    """The number of weights of a model that `build` makes of this shape, tied ones counted once."""
    wide, layers = shape.width, shape.encoder_layers + shape.decoder_layers
    attention = (layers + shape.decoder_layers) * 4 * (wide * wide + wide)
    feedforward = layers * (2 * wide * shape.feedforward + shape.feedforward + wide)
    norms = (2 * layers + shape.decoder_layers) * 2 * wide
    if (
        shape.norm == "post"
    ):  # Marian: two embeddings, and two tables of positions that do not train
        positions = max(shape.max_length + 8, 64)
        return attention + feedforward + norms + 2 * vocabulary * wide + 2 * positions * wide
    return (
        attention + feedforward + norms + 2 * 2 * wide + 3 * vocabulary * wide
    )  # M2M100: last norms, output layer


def at_random(
    heads: HeadMap, kinds: Sequence[Kind], keep: Keep, seed: int, unit: Unit | None = None
) -> HeadMask:
    """A mask with `keep` random heads of `kinds`, in whole units, and all heads of other kinds.

    keep: a number in total, or one for each of `kinds`. With one kind both are the same draw.
    """
    chosen = heads.only(kinds)
    scores, removed = random_scores(chosen, seed), list[Head]()
    for own, count in target_counts(chosen, keep, 0, unit).items():
        some = chosen.only(own)
        drawn = sorted(units(some, unit), key=lambda together: scores[together[0]])
        removed += [head for together in first(drawn, some.total - count) for head in together]
    return HeadMask.full(heads).without(removed)


def one_per_layer(heads: HeadMap, kinds: Sequence[Kind], score: Mapping[Head, float]) -> HeadMask:
    """A mask with the best head by `score` of every layer of `kinds`, and all heads of other kinds.

    Higher is better; of equal heads the last stays. Michel et al. 2019 do this to one layer at a time. Raises
    HeadwiseError for a score that lacks a head or is not a number.
    """
    chosen = heads.only(kinds)
    best = {Site(head.kind, head.layer): head for head in order(score, list(chosen))}
    return HeadMask.full(heads).without(set(chosen) - set(best.values()))
