"""A batch after a forward of the full model, in which heads are then changed, several trials in one forward."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor, nn

from headwise.core.heads import Site
from headwise.core.progress import silent_share
from headwise.models.attention.discover import Discovery
from headwise.models.attention.output import run_layers
from headwise.models.attention.reuse import ForwardRecord, Trial, tried
from headwise.models.evaluation.mean_outputs import PositionMeans, positions
from headwise.models.tasks.objective import Places, inputs_of, losses_and_words, losses_of

# Positions that go through the model together; more than a batch has saves time only on a GPU.
FORWARD_POSITIONS = 4096


@dataclass(frozen=True)
class RecordedBatch:
    """A batch after a forward of the full model.

    losses B and asked B (tokens) by sentence; places: where they are predicted; there: by side, where a token is (B S
    and B T). By site, where they are asked for: corrupted, the heads' outputs for the corrupted prompts, B Q H D; means
    and position_means, their mean outputs over the text, H D and at each position.
    """

    model: nn.Module
    discovery: Discovery
    tensors: dict[str, Tensor]
    losses: Tensor
    asked: Tensor
    places: Places
    there: dict[str, Tensor]
    kept: ForwardRecord
    corrupted: Mapping[Site, Tensor] = field(default_factory=dict)
    means: Mapping[Site, Tensor] = field(default_factory=dict)
    position_means: Mapping[Site, PositionMeans] = field(default_factory=dict)

    @cached_property
    def next_sentences(self) -> Tensor:
        """For every sentence the next one with predicted tokens (the first one after the last), B; for a window, one of
        another document. A sentence alone has itself."""
        # sentences without a predicted token have no loss that could change
        asking = self.places[0].unique_consecutive()
        other = torch.arange(len(self.losses), device=asking.device)
        other[asking] = asking.roll(-1)
        if "counted" in self.tensors and len(asking):
            # windows of one document share text: the nearest sentence of another one is taken
            rows = self.tensors["rows"][asking]
            number = torch.arange(len(asking), device=asking.device)
            steps = (number[None] - number[:, None]) % len(asking)
            steps[rows[:, None] == rows[None]] = len(asking)
            nearest = steps.min(1)
            alone = nearest.values == len(asking)
            other[asking] = torch.where(alone, asking, asking[nearest.indices])
        return other

    @cached_property
    def neighbours(self) -> dict[str, tuple[Tensor, Tensor]]:
        """By side, the next sentence of every sentence, B 1, and the position in it that stands for each position, B S or
        B T: the same one, modulo that sentence's length."""
        other = self.next_sentences
        neighbours = {}
        for side, there in self.there.items():
            length_of_other = there.sum(1).clamp_min(1)[other, None]
            tokens_first = (~there).long().argsort(dim=1, stable=True)
            number = positions(there) % length_of_other
            neighbours[side] = other[:, None], tokens_first[other].gather(1, number)
        return neighbours

    def repeated(self, copies: int) -> tuple[dict[str, Tensor], Places]:
        """The tensors so many times, and the places of the predicted tokens, copy by copy."""
        tensors = {}
        for name, tensor in self.tensors.items():
            once = [1] * (tensor.dim() - 1)
            tensors[name] = tensor.repeat(copies, *once)
        first_rows = torch.arange(copies, device=self.losses.device)[:, None] * len(self.losses)
        sentences = (self.places[0] + first_rows).flatten()
        return tensors, (sentences, self.places[1].repeat(copies))

    def losses_again(self, copies: int) -> Tensor:
        """The loss of each sentence in a forward of so many copies: copies x B."""
        tensors, places = self.repeated(copies)
        return losses_of(self.model, tensors, places).view(copies, len(self.losses))

    def layers_again(self, copies: int) -> Tensor:
        """A forward of so many copies, for its hooks alone: copies x B zeros."""
        run_layers(self.model, inputs_of(self.repeated(copies)[0]))
        return self.losses.new_zeros(copies, len(self.losses))

    def losses_and_words_again(self, copies: int) -> Tensor:
        """The loss of each sentence and the likeliest word at each place, side by side: copies x (B + N)."""
        lost, words = losses_and_words(self.model, *self.repeated(copies))
        # Losses are float32 at least, which holds the number of every word of a vocabulary.
        return torch.cat([lost.view(copies, -1), words.view(copies, -1).to(lost)], 1)

    def losses_and_words_in(
        self, trials: Sequence[Trial], on_share: Callable[[float], None] = silent_share
    ) -> tuple[Tensor, Tensor]:
        """The loss of each sentence, and the word that is held most likely at each of the N places, in the recorded forward
        and in each trial: (1 + T) B and (1 + T) N."""
        whole = self.losses_and_words_again(1)[0]
        # As ablation has it, so that both give the same change.
        whole[: len(self.losses)] = self.losses
        others = self.tried(trials, self.losses_and_words_again, whole, on_share)
        both = torch.cat([whole[None], others])
        return both[:, : len(self.losses)], both[:, len(self.losses) :].long()

    def losses_in(
        self, trials: Sequence[Trial], on_share: Callable[[float], None] = silent_share
    ) -> Tensor:
        """The loss of each sentence in each trial, T B."""
        return self.tried(trials, self.losses_again, self.losses, on_share)

    def tried(
        self,
        trials: Sequence[Trial],
        forward: Callable[[int], Tensor],
        unchanged: Tensor,
        on_share: Callable[[float], None] = silent_share,
    ) -> Tensor:
        """What a forward gives in each trial, T N (`reuse.tried`)."""
        lengths = [there.shape[1] for there in self.there.values()]
        longest = max(self.tensors["labels"].shape[1], *lengths)
        together = max(1, FORWARD_POSITIONS // (len(self.losses) * longest))

        return tried(
            self.model, self.discovery, self.kept, trials, together, forward, unchanged, on_share
        )
