"""What repair cannot restore: how much of the last states is lost for good with a head, once the heads that stay were
fitted again (docs/methods/repair.md).

Of each layer one Gram matrix of all heads' outputs, whose every subset of heads is a linear system; heads go backward,
the one next whose loss the others can make up for best. What a layer with k heads costs is measured where the states
are read: the layer's output projection is refitted, the layers above run as they are. A head's value is what its
removal adds to that, after those that went before it in its layer. Costs that rise and fall are replaced by their
lower convex hull, whose order is the best choice of numbers of heads for the layers if their costs add up.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import groupby
from typing import Any

from torch import Tensor, nn

from headwise.core.heads import Head, Row
from headwise.core.options import REPAIR
from headwise.importance.measurement import Measurement
from headwise.models.attention.removal import layer_at
from headwise.models.attention.sides import sides_of_site
from headwise.models.attention.stages import (
    Stages,
    Sublayer,
    error_weights,
    look_at_sum,
    sublayers,
)
from headwise.models.evaluation.last_states import Inputs, LastStates, refuse_few_tokens
from headwise.models.evaluation.least_squares import Moments, without_blocks
from headwise.models.model import Model
from headwise.models.tasks.batches import Batches, Fold

STRENGTH = 1e-4  # of the ridge of the layers' fits
TOKENS = 15_000  # that the layers are fitted on, about
SHORT = 1000  # tokens on which the last states are compared, about
APART = (
    1e-9  # of the largest value: so far apart are values that would be equal, to keep their order
)


def repair_error(model: Model, text: Batches | Fold) -> Measurement:
    """The measure `repair`: the share of the variance of the last states that each head's removal costs after repair."""
    modules = dict(model.hf.named_modules())
    for site in model.heads.sites:
        if model.heads.count(site):
            layer_at(
                modules, model.discovery, site
            )  # raises for one from which no head can be removed
    # In every process all of it: parts of the sums would have to be gathered layer by layer.
    inputs = Inputs.of(model, text.intact().whole()).thinned(TOKENS)
    short = inputs.thinned(SHORT)
    stages, trial = Stages(model.hf, inputs.inputs), Stages(model.hf, short.inputs)
    encoder_decoder = bool(model.hf.config.is_encoder_decoder)
    ends: dict[bool, LastStates] = {}
    rows: list[Row] = []
    layers = sublayers(model.hf, model.discovery)
    refuse_few_tokens(model, layers, inputs)
    for block, in_block in groupby(layers, lambda layer: layer.block):
        for layer in in_block:
            encoder = encoder_decoder and layer.site.kind == "encoder-self"
            if encoder not in ends:
                ends[encoder] = LastStates(model, encoder, short)
            order, costs = removals(model, stages, trial, layer, inputs, ends[encoder])
            tokens = inputs.tokens(sides_of_site(layer.site)[0])
            for head, value in zip(order, rising(costs), strict=True):
                place = Head(*layer.site, head)
                rows.append({**place._asdict(), "measure": REPAIR, "value": value, "n": tokens})
        stages.finish(block)
        trial.finish(block)
    return Measurement(rows=rows)


def removals(
    model: Model,
    stages: Stages,
    trial: Stages,
    layer: Sublayer,
    inputs: Inputs,
    end: LastStates,
) -> tuple[list[int], list[float]]:
    """The heads of a layer in the order in which they go, and what the last states miss after each, with the layer
    refitted."""
    moments = moments_of(stages, layer, inputs)
    heads = model.heads.count(layer.site)
    size = (len(moments.gram) - moments.constant) // heads
    order: list[int] = []
    costs: list[float] = []
    for head, _, weights in without_blocks(moments, size, STRENGTH):
        if head is None:
            continue
        with refitted(trial.modules[layer.out], weights, moments.constant):
            costs.append(end.missed(model, trial))
        order.append(head)
    return order, costs


def moments_of(stages: Stages, layer: Sublayer, inputs: Inputs) -> Moments:
    """The sums of what the output projection of a layer gets and gives, each token by what the norm behind makes of an
    error."""
    out: Any = stages.modules[layer.out]
    constant = out.bias is not None
    side, _ = sides_of_site(layer.site)
    moments: Moments | None = None
    for number, masks in enumerate(inputs.places):
        seen = look_at_sum(stages, layer, number)
        features, targets = seen[layer.out]
        if moments is None:
            moments = Moments.empty(features.shape[-1], targets.shape[-1], constant)
        places = masks[side]
        weights = error_weights(layer, seen)
        moments.add(features[places], targets[places], weights[places])
    assert moments is not None
    moments.refuse_unsound(layer.out)
    return moments


@contextmanager
def refitted(out: nn.Module, weights: Tensor, constant: bool) -> Iterator[None]:
    """The model with other weights n M in an output projection, which stays as it is."""

    def other(_: nn.Module, given: tuple[Tensor, ...], output: Tensor) -> Tensor:
        own = weights.to(output)
        made = given[0] @ own[: len(own) - constant]
        return made + own[-1] if constant else made

    hook = out.register_forward_hook(other)
    try:
        yield
    finally:
        hook.remove()


def rising(costs: Sequence[float]) -> list[float]:
    """What each removal adds to the costs, never less than the one before: where it would be, neighbours share their
    mean (the slopes of the lower convex hull). Equal ones are kept apart by a hair, in their order."""
    pools: list[list[float]] = []  # of removals: their sum and number
    before = 0.0
    for cost in costs:
        pools.append([cost - before, 1])
        before = cost
        while len(pools) > 1 and pools[-2][0] / pools[-2][1] >= pools[-1][0] / pools[-1][1]:
            total, number = pools.pop()
            pools[-1][0] += total
            pools[-1][1] += number
    slopes = [total / number for total, number in pools for _ in range(int(number))]
    hair = APART * max(map(abs, slopes), default=0.0)
    return [slope + hair * place for place, slope in enumerate(slopes)]
