"""Repair: what the lost heads did is given to those that stay, by least squares, without a gradient.

From the bottom up, each output projection of the smaller model is fitted on a text, so that the residual stream gets
what the whole model's layer adds (docs/methods/repair.md). The smaller model's own states go in, so later layers make
up for what earlier ones miss.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn

from headwise.core.errors import HeadwiseError
from headwise.core.heads import Kind
from headwise.core.layout import HeadMask
from headwise.core.progress import Report, silent
from headwise.models.attention.matrices import by_output
from headwise.models.attention.offload import refuse_offloaded, set_bias
from headwise.models.attention.sides import sides_of_site
from headwise.models.attention.stages import (
    End,
    Stages,
    Sublayer,
    error_weights,
    look_at_sum,
    sublayers,
)
from headwise.models.evaluation.last_states import Inputs, LastStates, readers
from headwise.models.evaluation.least_squares import Moments, held_out_fit
from headwise.models.model import Model
from headwise.models.tasks import AnyText

SENTENCES = 2000  # of a text, at most
TOKENS = 50_000  # of them, about
LEAST_TOKENS = 2  # for each feature of a layer


@dataclass(frozen=True)
class Repaired:
    """A smaller model that was repaired, and what it misses of the whole model's last states on held-out text before and
    after, as a share of their variance. taken: whether the repair helped; else the model is only cut."""

    model: Model
    before: float
    after: float
    taken: bool


def repaired(
    model: Model, mask: HeadMask, text: Inputs, dev: Inputs, progress: Report = silent
) -> Repaired:
    """The model with only the heads of a mask, whose output projections do what they can of the work of the others.

    text: it is fitted on; dev: it must not be worse there than without. Raises HeadwiseError for fewer tokens than the
    fit needs.
    """
    refuse_offloaded(model.hf, "Repair")
    smaller = model.remove(mask, grow=True)
    layers = sublayers(model.hf, model.discovery)
    to_fit = changed_layers(model, mask, layers)
    if not to_fit:
        return Repaired(smaller, 0.0, 0.0, True)
    refuse_few_tokens(smaller, to_fit, text)
    judge = LastStates(model, only_encoder(model, mask), dev)
    before = judge.missed(smaller)
    whole, small = Stages(model.hf, text.inputs), Stages(smaller.hf, text.inputs)
    for number, layer in enumerate(layers):
        progress(number / len(layers), f"layer {number + 1} of {len(layers)}")
        if layer in to_fit:
            fit(whole, small, layer, text)
        following = layers[number + 1].block if number + 1 < len(layers) else ""
        if following != layer.block:
            whole.finish(layer.block)
            small.finish(layer.block)
    if judge.encoder:
        reread(whole, small, smaller, judge.end, text)
    after = judge.missed(smaller)
    if not after < before:
        return Repaired(model.remove(mask, grow=True), before, before, False)
    return Repaired(smaller, before, after, True)


def repaired_on(
    model: Model, mask: HeadMask, text: AnyText, dev: AnyText, progress: Report = silent
) -> Model:
    """`repaired` on the first sentences of a text; where that does not help on dev, the model that is only cut, with a
    warning."""
    inputs, held_out = (
        Inputs.of(model, model.task.batches(some.head(SENTENCES)).intact().whole()).thinned(TOKENS)
        for some in (text, dev)
    )
    made = repaired(model, mask, inputs, held_out, progress)
    if not made.taken:
        warnings.warn(
            "Repair was left out: on dev the smaller model would not be nearer to the whole one than it is without "
            f"({made.before:.3g} of the variance of its last states is missed). Give more text, or text of the kind that "
            "the model reads.",
            stacklevel=4,
        )
    return made.model


def changed_layers(model: Model, mask: HeadMask, every: Sequence[Sublayer]) -> list[Sublayer]:
    """The layers from the first that loses heads on, in the order in which they run: of an encoder-decoder only those of
    the stacks that lose heads."""
    stacks = {stack_of(head.kind) for head in model.heads if head not in mask.kept}
    layers = [layer for layer in every if stack_of(layer.site.kind) in stacks]
    for number, layer in enumerate(layers):
        if len(mask.of(layer.site)) < model.heads.count(layer.site):
            return layers[number:]
    return []


def stack_of(kind: Kind) -> str:
    """The stack of layers that a kind of heads is in."""
    return "encoder" if kind == "encoder-self" else "decoder"


def refuse_few_tokens(smaller: Model, layers: Sequence[Sublayer], text: Inputs) -> None:
    """Raise HeadwiseError for a text that is too short for the fit."""
    for layer in layers:
        out = cast(nn.Linear, smaller.hf.get_submodule(layer.out))
        features = by_output(out).shape[1] + (out.bias is not None)
        side, _ = sides_of_site(layer.site)
        needed = LEAST_TOKENS * features
        if text.tokens(side) < needed:
            raise HeadwiseError(
                f"Repair fits {features} numbers of {layer.out} for each of its outputs, and the text has "
                f"{text.tokens(side)} tokens: give at least {needed}, better {5 * needed}."
            )


def fit(whole: Stages, small: Stages, layer: Sublayer, text: Inputs) -> None:
    """Fit the output projection of one layer of the smaller model, in place."""
    out = cast(nn.Linear, small.modules[layer.out])
    weight = by_output(out).detach().double().cpu().t()
    constant = out.bias is not None
    if not len(weight) and not constant:
        return
    start = torch.cat([weight, out.bias.detach().double().cpu()[None]]) if constant else weight
    fitted, held = (Moments.empty(len(weight), weight.shape[1], constant) for _ in range(2))
    side, _ = sides_of_site(layer.site)
    for number, masks in enumerate(text.places):
        features, targets, weights = pairs(whole, small, layer, number)
        text.add(fitted, held, number, masks[side], features, targets, weights)
    (fitted + held).refuse_unsound(layer.out)
    best = held_out_fit(fitted, held, start)
    write(out, best, constant)


def write(out: nn.Linear, weights: Tensor, constant: bool) -> None:
    """Give an output projection other weights, n M, the last row its bias."""
    columns = weights[: len(weights) - constant].t()
    with torch.no_grad():
        by_output(out).copy_(columns.to(out.weight))
        if constant:
            set_bias(out, weights[-1])


def pairs(
    whole: Stages, small: Stages, layer: Sublayer, number: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Of a batch: what the smaller model's output projection gets, B S n; what it should give, B S M; and how much an
    error of each token counts, B S.

    Where a norm reads the sum of residual stream and layer, it should give the whole model's sum less the own residual
    stream, so that it makes up for what the layers below miss. Behind a norm of its own (`branch`) it should give what
    the whole model's gives.
    """
    wanted = look_at_sum(whole, layer, number)
    own = look_at_sum(small, layer, number)
    features, given = own[layer.out]
    targets = wanted[layer.out][1].float()
    if layer.reader and not layer.branch:
        residual = own[layer.reader][0].float() - given.float()
        targets = wanted[layer.reader][0].float() - residual
    return features, targets, error_weights(layer, wanted)


def reread(whole: Stages, small: Stages, model: Model, end: End, text: Inputs) -> None:
    """Fold the affine map that turns the smaller encoder's states into the whole one's, as far as one can, into the keys
    and values of the decoder, in place."""
    linears = [linear for _, linear in readers(model)]
    if not linears:
        return
    size = by_output(linears[0]).shape[1]
    constant = all(linear.bias is not None for linear in linears)
    fitted, held = (Moments.empty(size, size, constant) for _ in range(2))
    for number, masks in enumerate(text.places):
        own, wanted = small.last_states(number, end), whole.last_states(number, end)
        text.add(fitted, held, number, masks["source"], own, wanted, torch.ones_like(own[..., 0]))
    start = torch.eye(size + constant, size, dtype=torch.float64)
    best = held_out_fit(fitted, held, start)
    for linear in linears:
        weight = by_output(linear)
        wide = weight.detach().double().cpu()
        with torch.no_grad():
            weight.copy_((wide @ best[:size].t()).to(weight))
        if constant:
            set_bias(linear, linear.bias.detach().double().cpu() + wide @ best[size])


def only_encoder(model: Model, mask: HeadMask) -> bool:
    """Whether heads go from the encoder of an encoder-decoder alone, so that its states say all that changes."""
    lost = {head.kind for head in model.heads if head not in mask.kept}
    return lost == {"encoder-self"} and bool(model.hf.config.is_encoder_decoder)
