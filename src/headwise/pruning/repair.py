"""Repair: what the lost heads did is given to those that stay, by least squares, without a gradient.

From the bottom up, each output projection of the smaller model is fitted on a text, so that the residual stream gets
what the whole model's layer adds (docs/methods/repair.md). The smaller model's own states go in, so later layers make
up for what earlier ones miss.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn

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
from headwise.models.evaluation.last_states import (
    GOOD_TOKENS,
    Inputs,
    LastStates,
    features_of,
    readers,
    refuse_few_tokens,
)
from headwise.models.evaluation.least_squares import Moments, held_out_fit
from headwise.models.model import Model
from headwise.models.tasks import AnyText
from headwise.pruning.value_fit import Values, held_out_values

SENTENCES = 2000  # of a text, at most
TOKENS = 50_000  # of them, about
PART = 8000  # tokens that ways to repair are compared on
JUDGED = 15_000  # tokens of dev


@dataclass(frozen=True)
class Repaired:
    """A smaller model that was repaired, and what it misses of the whole model's last states on held-out text before and
    after, as a share of their variance. taken: whether the repair helped; else the model is only cut. drift: whether
    layers make up for what those below miss."""

    model: Model
    before: float
    after: float
    taken: bool
    drift: bool = False


def repaired(
    model: Model, mask: HeadMask, text: Inputs, dev: Inputs, progress: Report = silent
) -> Repaired:
    """The model with only the heads of a mask, whose output projections do what they can of the work of the others.

    text: it is fitted on; dev: it must not be worse there than without, and says on a part of the text whether layers
    make up for what those below miss. Raises HeadwiseError for fewer tokens than the fit needs.
    """
    refuse_offloaded(model.hf, "Repair")
    layers = sublayers(model.hf, model.discovery)
    to_fit = changed_layers(model, mask, layers)
    if not to_fit:
        return Repaired(model.remove(mask, grow=True), 0.0, 0.0, True)
    judge = LastStates(model, only_encoder(model, mask), dev)
    ways = [True, False] if any(map(makes_up, to_fit)) else [False]
    if len(ways) > 1:
        part = part_of(text, model, to_fit)
        with warnings.catch_warnings(action="ignore"):  # said of the model that stays
            tried = {drift: fitted(model, mask, part, judge, drift) for drift in ways}
        ways = [min(tried, key=lambda drift: tried[drift].after)]
    return fitted(model, mask, text, judge, ways[0], progress, with_values=True)


def fitted(
    model: Model,
    mask: HeadMask,
    text: Inputs,
    judge: LastStates,
    drift: bool,
    progress: Report = silent,
    *,
    with_values: bool = False,
) -> Repaired:
    """The model repaired in one way; where that does not help, only cut."""
    smaller = model.remove(mask, grow=True)
    layers = sublayers(model.hf, model.discovery)
    to_fit = changed_layers(model, mask, layers)
    refuse_few_tokens(smaller, to_fit, text)
    before = judge.missed(smaller)
    whole, small = Stages(model.hf, text.inputs), Stages(smaller.hf, text.inputs)
    for number, layer in enumerate(layers):
        progress(number / len(layers), f"layer {number + 1} of {len(layers)}")
        if layer in to_fit:
            values = Values.of(smaller, layer.site) if with_values else None
            fit(whole, small, layer, text, drift, values)
        following = layers[number + 1].block if number + 1 < len(layers) else ""
        if following != layer.block:
            whole.finish(layer.block)
            small.finish(layer.block)
    if judge.encoder:
        reread(whole, small, smaller, judge.end, text)
    after = judge.missed(smaller)
    if not after < before:
        with warnings.catch_warnings(action="ignore"):  # said already
            smaller = model.remove(mask, grow=True)
        return Repaired(smaller, before, before, False, drift)
    return Repaired(smaller, before, after, True, drift)


def makes_up(layer: Sublayer) -> bool:
    """Whether a layer can make up for what those below it miss: through a norm of its own that does harm."""
    return bool(layer.reader) and not layer.branch


def part_of(text: Inputs, model: Model, layers: Sequence[Sublayer]) -> Inputs:
    """As much of a text as ways to repair are compared on."""
    widest = max(features_of(model, layer) for layer in layers)
    return text.thinned(max(PART, GOOD_TOKENS * widest))


def repaired_on(
    model: Model, mask: HeadMask, text: AnyText, dev: AnyText, progress: Report = silent
) -> Model:
    """`repaired` on the first sentences of a text; where that does not help on dev, the model that is only cut, with a
    warning."""
    made = repaired(
        model,
        mask,
        inputs_of_text(model, text, TOKENS),
        inputs_of_text(model, dev, JUDGED),
        progress,
    )
    if not made.taken:
        warnings.warn(
            "Repair was left out: on dev the smaller model would not be nearer to the whole one than it is without "
            f"({made.before:.3g} of the variance of its last states is missed). Give more text, or text of the kind that "
            "the model reads.",
            stacklevel=4,
        )
    return made.model


def nearest_repaired(
    model: Model, masks: Sequence[HeadMask], text: AnyText, dev: AnyText
) -> HeadMask:
    """The one of several masks whose model misses least of the whole one on dev, once it is repaired on a part of a
    text."""
    given = inputs_of_text(model, text, TOKENS)
    layers = sublayers(model.hf, model.discovery)
    refuse_few_tokens(model, layers, given)
    given, held_out = part_of(given, model, layers), inputs_of_text(model, dev, JUDGED)
    judges: dict[bool, LastStates] = {}
    missed = {}
    for mask in masks:
        encoder = only_encoder(model, mask)
        if encoder not in judges:
            judges[encoder] = LastStates(model, encoder, held_out)
        with warnings.catch_warnings(action="ignore"):  # said of the model that stays
            missed[mask] = fitted(model, mask, given, judges[encoder], drift=True).after
    return min(missed, key=lambda mask: missed[mask])


def inputs_of_text(model: Model, text: AnyText, tokens: int) -> Inputs:
    """The first sentences of a text as repair reads them, about so many tokens of them at most."""
    batches = model.task.batches(text.head(SENTENCES)).intact().whole()
    return Inputs.of(model, batches).thinned(tokens)


def refuse_unrepairable(model: Model) -> None:
    """Raise HeadwiseError for a model whose layers cannot be fitted. Runs one small forward."""
    refuse_offloaded(model.hf, "Repair")
    sublayers(model.hf, model.discovery)


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


def fit(
    whole: Stages, small: Stages, layer: Sublayer, text: Inputs, drift: bool, values: Values | None
) -> None:
    """Fit the output projection of one layer of the smaller model, in place; and its values, where that pays on the tokens
    held out."""
    out = cast(nn.Linear, small.modules[layer.out])
    weight = by_output(out).detach().double().cpu().t()
    constant = out.bias is not None
    if not len(weight) and not constant:
        return
    start = torch.cat([weight, out.bias.detach().double().cpu()[None]]) if constant else weight
    fitted, held = (Moments.empty(len(weight), weight.shape[1], constant) for _ in range(2))
    wide: tuple[Moments, Moments] | None = None
    if values is not None:
        sizes = (values.width * len(values.rows), weight.shape[1], constant, torch.float32)
        wide = Moments.empty(*sizes), Moments.empty(*sizes)
    side, _ = sides_of_site(layer.site)
    for number, masks in enumerate(text.places):
        reading = values.reading() if values and wide else nullcontext(list[Tensor]())
        with reading as attended:
            features, targets, weights = pairs(whole, small, layer, number, drift)
        text.add(fitted, held, number, masks[side], features, targets, weights)
        if values and wide:
            if attended and values.explains(attended[0], features):
                text.add(*wide, number, masks[side], attended[0], targets, weights)
            else:
                wide = None
    (fitted + held).refuse_unsound(layer.out)
    missed, best = held_out_fit(fitted, held, start)
    if values and wide:
        missed_then, (own, outputs, bias) = held_out_values(*wide, values.start())
        if missed_then < missed:
            values.write(own, outputs, bias)
            return
    write(out, best, constant)


def write(out: nn.Linear, weights: Tensor, constant: bool) -> None:
    """Give an output projection other weights, n M, the last row its bias."""
    columns = weights[: len(weights) - constant].t()
    with torch.no_grad():
        by_output(out).copy_(columns.to(out.weight))
        if constant:
            set_bias(out, weights[-1])


def pairs(
    whole: Stages, small: Stages, layer: Sublayer, number: int, drift: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Of a batch: what the smaller model's output projection gets, B S n; what it should give, B S M; and how much an
    error of each token counts, B S.

    With `drift`, where a norm reads the sum of residual stream and layer, it should give the whole model's sum less the own
    residual stream, so that it makes up for what the layers below miss; else what the whole model's gives.
    """
    wanted = look_at_sum(whole, layer, number)
    own = look_at_sum(small, layer, number)
    features, given = own[layer.out]
    targets = wanted[layer.out][1].float()
    if drift and makes_up(layer):
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
    _, best = held_out_fit(fitted, held, start)
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
