"""Repair: what the lost heads did is given to those that stay, by least squares, without a gradient.

From the bottom up, each output projection of the smaller model is fitted on a text, so that the residual stream gets
what the whole model's layer adds (docs/methods/repair.md). The smaller model's own states go in, so a layer can also make
up for what the layers below it miss; whether that helps is tried on a part of the text.

The *whole* model is the one before pruning, `WholeOutputs` what its layers give; `smaller` is the one that is fitted,
`stages` what runs it layer by layer. What a model *misses* is the share of the variance of the whole model's last
states that it does not have, as the next module reads them: of an encoder, in the keys and values of the decoder.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cached_property
from typing import cast

import torch
from torch import Tensor, nn

from headwise.core.heads import Kind
from headwise.core.layout import HeadMask
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
    LEAST_TOKENS,
    Inputs,
    LastStates,
    encoder_readers,
    features_of,
    refuse_few_tokens,
)
from headwise.models.evaluation.least_squares import Moments, held_out_fit
from headwise.models.model import Model
from headwise.models.tasks import AnyText
from headwise.pruning.value_fit import Values, held_out_values

SENTENCES = 2000  # that are read of a text, at most
TOKENS = 50_000  # of these sentences, on which projections are fitted, about
PART = 8000  # tokens on which ways to repair are compared
DEV_TOKENS = 15_000  # on which what a model misses is measured
KEPT_BYTES = 100_000_000  # of the whole model's states, at most: they are kept for all fits, else computed for each


@dataclass(frozen=True)
class Repaired:
    """A smaller model that was repaired, and what it misses on dev before and after. helped: whether it misses less, or
    no head was lost; else the model is only cut. makes_up: whether layers make up for what those below them miss."""

    model: Model
    before: float
    after: float
    helped: bool
    makes_up: bool = False


class WholeOutputs:
    """What the layers of the whole model give on a text. Each fit asks for it once, from the lowest layer up.

    Kept for all fits where that takes little memory; else computed for each.
    """

    def __init__(self, model: Model, text: Inputs, layers: Sequence[Sublayer]) -> None:
        self.model = model
        self.text = text
        self.layers = layers
        modules = dict(model.hf.named_modules())
        widths = [len(by_output(cast(nn.Linear, modules[layer.out]))) for layer in layers]
        positions = max(
            sum(masks[side].numel() for masks in text.places) for side in ("source", "target")
        )
        # The output and the sum, as float32.
        self.keeps_all = 2 * 4 * positions * sum(widths) <= KEPT_BYTES
        self.kept: list[list[Wanted]] = []  # by layer and batch, as far up as any fit has asked
        self.begin()

    def begin(self) -> None:
        """Let another fit begin at the lowest layer."""
        # The stages of the model only move up. Where outputs are kept, they go on from where they are: what lies below is
        # read from `kept`.
        if not self.kept:
            self.stages = Stages(self.model.hf, self.text.inputs)

    def wanted(self, layer: Sublayer, number: int) -> Wanted:
        """What a layer gave for a batch."""
        if not self.keeps_all:
            return Wanted.of(self.stages, layer, number)
        place = self.layers.index(layer)
        while len(self.kept) <= place:
            now = self.layers[len(self.kept)]
            batches = range(len(self.text.places))
            self.kept.append([Wanted.of(self.stages, now, each) for each in batches])
            if block_after(self.layers, now) != now.block:
                self.stages.finish(now.block)
        return self.kept[place][number]

    def finish(self, block: str) -> None:
        """Called when every layer of a block was asked for: no later forward runs it, nor what lies below; its states stay.
        Where outputs are kept for all fits, `wanted` has done so."""
        if not self.keeps_all:
            self.stages.finish(block)


@dataclass(frozen=True)
class Wanted:
    """What a layer of the smaller model should give for a batch: the output of that layer in the whole one, and its sum
    with the residual stream where a norm reads it, B S M; and how much an error of each token counts, B S."""

    output: Tensor
    total: Tensor | None
    weights: Tensor

    @classmethod
    def of(cls, stages: Stages, layer: Sublayer, number: int) -> Wanted:
        seen = look_at_sum(stages, layer, number)
        total = seen[layer.reader][0].float() if layer.reader else None
        return cls(seen[layer.out][1].float(), total, error_weights(layer, seen))


class Repairs:
    """Repairs of one model with several masks, on the same texts: what does not depend on the mask is computed once.

    text: output projections are fitted on it. dev: what a model misses is measured there; one that misses as much as
    without repair is only cut. A repaired model has only the heads of its mask, and its output projections do what they
    can of the work of the others.
    """

    def __init__(self, model: Model, text: Inputs, dev: Inputs) -> None:
        refuse_offloaded(model.hf, "Repair")
        self.model = model
        self.text = text
        self.dev = dev
        self.layers = sublayers(model.hf, model.discovery)
        # By whether they are those of the encoder alone.
        self.states_on_dev: dict[bool, LastStates] = {}
        # What models miss: only cut; repaired on a part of the text, where layers make up and where they do not.
        self.missed_by_cut: dict[HeadMask, float] = {}
        self.missed_by_way: dict[tuple[HeadMask, bool], float] = {}

    @classmethod
    def on(cls, model: Model, text: AnyText, dev: AnyText) -> Repairs:
        """Repairs on the first sentences of texts."""
        return cls(
            model, inputs_of_text(model, text, TOKENS), inputs_of_text(model, dev, DEV_TOKENS)
        )

    @cached_property
    def whole(self) -> WholeOutputs:
        return WholeOutputs(self.model, self.text, self.layers)

    @cached_property
    def whole_part(self) -> WholeOutputs:
        """On as much of the text as ways to repair are compared on."""
        widest = max(features_of(self.model, layer) for layer in self.layers)
        part = self.text.thinned(max(PART, GOOD_TOKENS * widest))
        # `thinned` counts the longer side: of the other one, such as summaries, a part may have too few.
        sides = {sides_of_site(layer.site)[0] for layer in self.layers}
        is_short = any(part.tokens(side) < LEAST_TOKENS * widest for side in sides)
        if part is self.text or is_short:
            return self.whole
        return WholeOutputs(self.model, part, self.layers)

    def on_dev(self, mask: HeadMask) -> LastStates:
        """The last states on dev that models of this mask are compared by."""
        encoder = only_encoder(self.model, mask)
        if encoder not in self.states_on_dev:
            self.states_on_dev[encoder] = LastStates(self.model, encoder, self.dev)
        return self.states_on_dev[encoder]

    def repaired_or_cut(self, mask: HeadMask) -> Model:
        """The repaired model; where repair does not help on dev, the one that is only cut, with a warning."""
        found = self.best_repair(mask)
        if not found.helped:
            warnings.warn(
                "Repair was left out: on dev the smaller model would not be nearer to the whole one than it is without "
                f"({found.before:.3g} of the variance of its last states is missed). Give more text, or text of the kind "
                "that the model reads.",
                stacklevel=4,  # above `greedy.cut` and the step that calls it
            )
        return found.model

    def nearest(self, masks: Sequence[HeadMask]) -> HeadMask:
        """The one of several masks whose model misses least of the whole one on dev, once it is repaired on a part of the
        text."""
        # Before any mask is tried: no smaller model needs more tokens than the whole one.
        refuse_few_tokens(self.model, self.layers, self.text)
        # One way is enough to tell masks apart; `best_repair` tries both for the one that stays.
        return min(masks, key=lambda mask: self.missed_on_a_part(mask, makes_up=True))

    def best_repair(self, mask: HeadMask) -> Repaired:
        """The best repair of a mask: with layers that make up for what those below miss, or without, as a part of the text
        says. Raises HeadwiseError for fewer tokens than the fit needs."""
        to_fit = changed_layers(self.model, mask, self.layers)
        makes_up = any(map(can_make_up, to_fit))
        if makes_up:
            # Where neither helps on the part, both miss what the cut model does, and the whole text is tried with it.
            makes_up = self.missed_on_a_part(mask, makes_up=True) <= self.missed_on_a_part(
                mask, makes_up=False
            )
        return self.repair_one_way(mask, self.whole, makes_up, with_values=True)

    def missed_on_a_part(self, mask: HeadMask, makes_up: bool) -> float:
        """What a model misses that is repaired on a part of the text."""
        way = mask, makes_up
        if way not in self.missed_by_way:
            # What cutting warns of is said of the model that stays.
            with warnings.catch_warnings(action="ignore"):
                self.missed_by_way[way] = self.repair_one_way(mask, self.whole_part, makes_up).after
        return self.missed_by_way[way]

    def repair_one_way(
        self,
        mask: HeadMask,
        whole: WholeOutputs,
        makes_up: bool,
        *,
        with_values: bool = False,
    ) -> Repaired:
        """The model repaired in one way; where that does not help, only cut. with_values: value projections are tried,
        too."""
        model, text = self.model, whole.text
        # The mask obeys the unit (head or group) that was asked for: if that lets the cache grow, the user wants it.
        smaller = model.only(mask, grow=True)
        to_fit = changed_layers(model, mask, self.layers)
        if not to_fit:  # no head is lost
            return Repaired(smaller, before=0.0, after=0.0, helped=True)
        on_dev = self.on_dev(mask)
        refuse_few_tokens(smaller, to_fit, text)
        if mask not in self.missed_by_cut:
            self.missed_by_cut[mask] = on_dev.missed(smaller)
        before = self.missed_by_cut[mask]
        whole.begin()
        stages = Stages(smaller.hf, text.inputs)
        # Nothing is fitted above the last of them.
        layers = self.layers[: self.layers.index(to_fit[-1]) + 1]
        for layer in layers:
            if layer in to_fit:
                values = Values.of(smaller, layer.site) if with_values else None
                fit_layer(whole, stages, layer, makes_up, values)
            if block_after(layers, layer) != layer.block:
                whole.finish(layer.block)
                stages.finish(layer.block)
        if on_dev.encoder:
            # Where the decoder loses heads, too, its own fits make up for the encoder.
            fit_encoder_readers(whole, stages, smaller, on_dev.end)
        # The states behind the last layer are asked for no more: where outputs are not kept, this lets go of them.
        whole.begin()
        after = on_dev.missed(smaller)
        if not after < before:  # also where one is NaN
            with warnings.catch_warnings(action="ignore"):  # said already
                smaller = model.only(mask, grow=True)
            return Repaired(smaller, before, before, False, makes_up)
        return Repaired(smaller, before, after, True, makes_up)


def block_after(layers: Sequence[Sublayer], layer: Sublayer) -> str:
    """The block of the next layer; empty after the last one."""
    number = layers.index(layer) + 1
    return layers[number].block if number < len(layers) else ""


def can_make_up(layer: Sublayer) -> bool:
    """Whether a layer can make up for what those below it miss: a norm reads its sum with the residual stream. Through a
    norm of its own branch that does harm."""
    return bool(layer.reader) and not layer.branch


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


def fit_layer(
    whole: WholeOutputs, stages: Stages, layer: Sublayer, makes_up: bool, values: Values | None
) -> None:
    """Fit the output projection of one layer of the smaller model, in place; and its values, where that pays on the tokens
    held out."""
    text = whole.text
    out = cast(nn.Linear, stages.modules[layer.out])
    weight = by_output(out).detach().double().cpu().t()
    constant = out.bias is not None
    if not len(weight) and not constant:
        return  # no head is left, and no bias
    start = torch.cat([weight, out.bias.detach().double().cpu()[None]]) if constant else weight
    # Sums over the tokens that are fitted, and over those that choose the ridge.
    to_fit_on, held_out = (Moments.empty(len(weight), weight.shape[1], constant) for _ in range(2))
    # The same of what the values read, as wide as the model for each head; None where values are not fitted.
    of_values: tuple[Moments, Moments] | None = None
    if values is not None:
        sizes = (values.width * len(values.rows), weight.shape[1], constant, torch.float32)
        of_values = Moments.empty(*sizes), Moments.empty(*sizes)
    side, _ = sides_of_site(layer.site)
    for number, tokens in enumerate(text.places):
        reading = values.reading() if values and of_values else nullcontext(list[Tensor]())
        with reading as attended:
            features, targets, weights = pairs(whole, stages, layer, number, makes_up)
        text.add(to_fit_on, held_out, number, tokens[side], features, targets, weights)
        if values and of_values:
            if attended and values.explains(attended[0], features):
                text.add(*of_values, number, tokens[side], attended[0], targets, weights)
            else:
                of_values = None  # what was read is not all that the projection is made of
    (to_fit_on + held_out).refuse_unsound(layer.out)
    error, best = held_out_fit(to_fit_on, held_out, start)
    if values and of_values:
        error_with_values, (fitted_values, outputs, bias) = held_out_values(
            *of_values, values.start()
        )
        if error_with_values < error:
            values.write(fitted_values, outputs, bias)
            return
    write(out, best, constant)


def write(out: nn.Linear, coefficients: Tensor, constant: bool) -> None:
    """Give an output projection other weights: features x width, and with a constant one row more, its bias."""
    columns = (coefficients[:-1] if constant else coefficients).t()
    with torch.no_grad():
        by_output(out).copy_(columns.to(out.weight))
        if constant:
            set_bias(out, coefficients[-1])


def pairs(
    whole: WholeOutputs, stages: Stages, layer: Sublayer, number: int, makes_up: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Of a batch: what the smaller model's output projection gets, B S n; what it should give, B S M; and how much an
    error of each token counts, B S.

    Where it makes up for what the layers below miss, it should give the whole model's sum of residual stream and layer,
    less the own residual stream; else what the whole model's projection gives.
    """
    wanted = whole.wanted(layer, number)
    own = look_at_sum(stages, layer, number)
    features, given = own[layer.out]
    targets = wanted.output
    if makes_up and can_make_up(layer):
        assert wanted.total is not None
        residual = own[layer.reader][0].float() - given.float()
        targets = wanted.total - residual
    return features, targets, wanted.weights


def fit_encoder_readers(whole: WholeOutputs, stages: Stages, model: Model, end: End) -> None:
    """Fold the affine map that turns the smaller encoder's states into the whole one's, as far as one can, into the keys
    and values of the decoder, in place."""
    linears = [linear for _, linear in encoder_readers(model)]
    if not linears:
        return  # no linear layer of the decoder reads the encoder: nothing to fold the map into
    size = by_output(linears[0]).shape[1]
    # One map for all: it has a constant only where each can take it into its bias.
    constant = all(linear.bias is not None for linear in linears)
    fitted, held = (Moments.empty(size, size, constant) for _ in range(2))
    text = whole.text
    for number, masks in enumerate(text.places):
        own, wanted = stages.last_states(number, end), whole.stages.last_states(number, end)
        text.add(fitted, held, number, masks["source"], own, wanted, torch.ones_like(own[..., 0]))
    start = torch.eye(size + constant, size, dtype=torch.float64)
    _, best = held_out_fit(fitted, held, start)
    for linear in linears:
        weight = by_output(linear)
        exact = weight.detach().double().cpu()
        with torch.no_grad():
            weight.copy_((exact @ best[:size].t()).to(weight))
        if constant:
            set_bias(linear, linear.bias.detach().double().cpu() + exact @ best[size])


def only_encoder(model: Model, mask: HeadMask) -> bool:
    """Whether heads go from the encoder of an encoder-decoder alone, so that its states say all that changes."""
    lost = {head.kind for head in model.heads if head not in mask.kept}
    return lost == {"encoder-self"} and bool(model.hf.config.is_encoder_decoder)
