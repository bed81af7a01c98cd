"""What a model changes in the last states of a text, as they are read: what repair is judged by."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import cast

import torch
from torch import Tensor, nn

from headwise.core.errors import HeadwiseError
from headwise.models.attention.matrices import by_output
from headwise.models.attention.removal import layer_of
from headwise.models.attention.sides import sides_of_site
from headwise.models.attention.stages import End, Stages, Sublayer
from headwise.models.evaluation.least_squares import Moments
from headwise.models.model import Model
from headwise.models.tasks.objective import inputs_of, on_device, query_masks

HELD_OUT = 5  # every fifth sentence of a text chooses the ridge
LEAST_TOKENS = 2  # for each feature of a layer
GOOD_TOKENS = 10


@dataclass(frozen=True)
class Inputs:
    """A text as repair reads it: the model's inputs by batch, and by side where the tokens are that count, B S and B T."""

    inputs: Sequence[Mapping[str, Tensor]]
    places: Sequence[Mapping[str, Tensor]]

    @classmethod
    def of(cls, model: Model, batches: Iterable[Mapping[str, Tensor]]) -> Inputs:
        inputs, places = [], []
        for batch in batches:
            tensors = on_device(model.hf, batch)
            masks = query_masks(tensors, prompts=True)
            if model.heads.kinds == ("decoder-self",):
                # Many decoders give their first token states as no other has, which nobody reads.
                masks = {side: mask & (mask.cumsum(1) > 1) for side, mask in masks.items()}
            inputs.append(inputs_of(tensors))
            places.append(masks)
        return cls(inputs, places)

    @cached_property
    def held(self) -> list[Tensor]:
        """By batch, which of its sentences are held out: B."""
        found, start = [], 0
        for masks in self.places:
            size = len(masks["source"])
            numbers = torch.arange(start, start + size)
            found.append(numbers % HELD_OUT == HELD_OUT - 1)
            start += size
        return found

    def add(
        self,
        fitted: Moments,
        held: Moments,
        number: int,
        places: Tensor,
        features: Tensor,
        targets: Tensor,
        weights: Tensor,
    ) -> None:
        """Add the tokens of a batch at `places` (B S) to the sums of those that are fitted, or of those held out."""
        rows = self.held[number].to(places.device)[:, None]
        for moments, chosen in ((fitted, places & ~rows), (held, places & rows)):
            moments.add(features[chosen], targets[chosen], weights[chosen])

    def every(self, nth: int) -> Inputs:
        """Every n-th sentence of each batch."""
        inputs = [{name: tensor[::nth] for name, tensor in batch.items()} for batch in self.inputs]
        places = [{side: mask[::nth] for side, mask in masks.items()} for masks in self.places]
        return Inputs(inputs, places)

    def thinned(self, tokens: int) -> Inputs:
        """As many sentences, from all over the text, as have about that number of tokens, at most."""
        most = max(self.tokens("source"), self.tokens("target"))
        return self.every(math.ceil(most / tokens)) if most > tokens else self

    def tokens(self, side: str) -> int:
        return sum(int(masks[side].sum()) for masks in self.places)


class LastStates:
    """What smaller models miss of the whole model's last states on a text, as they are read: the states of an encoder by
    the keys and values of the decoder, others as they are.

    encoder: whether the states are those of the encoder of an encoder-decoder.
    """

    def __init__(self, model: Model, encoder: bool, text: Inputs) -> None:
        self.whole = model
        self.text = text
        self.encoder = encoder
        self.end = end_of(model, self.encoder)
        self.readers = [name for name, _ in encoder_readers(model)] if self.encoder else []
        self.wanted = list(self.states(Stages(model.hf, text.inputs)))
        # All tokens, N M: the states to come near to.
        every = torch.cat(self.wanted)
        # A constant would explain the mean, so only what varies counts.
        spread = every - every.mean(0)
        # A single token has no variance.
        self.scale = (
            sum(float(one.square().sum()) for one in self.read(model, spread, bias=False)) or 1.0
        )

    def states(self, stages: Stages) -> Iterator[Tensor]:
        """The last states of a model, N M, by batch."""
        side = "source" if self.encoder else "target"
        for number, masks in enumerate(self.text.places):
            states = stages.last_states(number, self.end)
            yield states[masks[side]] if states.dim() == 3 else states

    def read(self, model: Model, states: Tensor, bias: bool = True) -> Iterator[Tensor]:
        """What each reader of a model makes of states, N M."""
        if not self.readers:
            yield states.float()
        for name in self.readers:
            reader = cast(nn.Linear, model.hf.get_submodule(name))
            added = reader.bias.detach() if bias and reader.bias is not None else None
            yield nn.functional.linear(states, by_output(reader).detach(), added).float()

    def missed(self, model: Model, stages: Stages | None = None) -> float:
        """The share of the variance of what is read that a model misses. stages: its stages on the text, where some
        are there."""
        lost = 0.0
        stages = stages or Stages(model.hf, self.text.inputs)
        for own, wanted in zip(self.states(stages), self.wanted, strict=True):
            pairs = zip(self.read(model, own), self.read(self.whole, wanted), strict=True)
            lost += sum(float((one - other).square().sum()) for one, other in pairs)
        return lost / self.scale


def end_of(model: Model, encoder: bool) -> End:
    """Where the states are that a repair is judged by."""
    names = {module: name for name, module in model.hf.named_modules()}
    if encoder:
        return End(names[model.hf.get_encoder()])
    head = model.hf.get_output_embeddings()
    return End(names[head], before=True) if isinstance(head, nn.Linear) else End()


def encoder_readers(model: Model) -> list[tuple[str, nn.Linear]]:
    """The projections of cross-attention layers that read the encoder's states, with their names."""
    modules = dict(model.hf.named_modules())
    found = []
    for site in model.heads.sites:
        if site.kind == "cross" and model.heads.count(site):
            layer = layer_of(modules, model.discovery, site)
            for name, parts in layer.form.inputs.items():
                if "q" not in parts:
                    found.append((f"{layer.name}.{name}", layer.inputs()[name]))
    return found


def features_of(model: Model, layer: Sublayer) -> int:
    """How many numbers the output projection of a layer gets for each token, and a constant for its bias."""
    out = cast(nn.Linear, model.hf.get_submodule(layer.out))
    return by_output(out).shape[1] + (out.bias is not None)


def refuse_few_tokens(model: Model, layers: Sequence[Sublayer], text: Inputs) -> None:
    """Raise HeadwiseError for a text that is too short to fit some layers of a model."""
    for layer in layers:
        features = features_of(model, layer)
        side, _ = sides_of_site(layer.site)
        needed = LEAST_TOKENS * features
        if text.tokens(side) < needed:
            raise HeadwiseError(
                f"Repair fits {features} numbers of {layer.out} for each of its outputs, and the text has "
                f"{text.tokens(side)} tokens: give at least {needed}, better {GOOD_TOKENS * features}, or name a measure to "
                "go by without repair, such as gradient."
            )
