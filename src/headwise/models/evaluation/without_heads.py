"""What a model does without some of its heads, or with other outputs of theirs: the loss of every sentence."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import torch
from torch import Tensor, nn

from headwise.core.errors import HeadwiseError
from headwise.core.heads import Head, Site
from headwise.core.layout import HeadMask
from headwise.models.attention.capture import refuse_other_heads
from headwise.models.attention.discover import Discovery, evaluating
from headwise.models.attention.kernel import AttentionCall
from headwise.models.attention.offload import device_of
from headwise.models.attention.removal import with_others
from headwise.models.attention.reuse import ForwardRecord, Trial, clear_unless_reusable, recording
from headwise.models.evaluation.recorded_batch import RecordedBatch
from headwise.models.evaluation.soundness import refuse_unsound, sound
from headwise.models.evaluation.sums import of_documents, to_numpy
from headwise.models.processes import failing_together, gather_batches
from headwise.models.tasks.batches import share_within
from headwise.models.tasks.objective import (
    asked_places,
    asked_tokens,
    losses_of,
    on_device,
    token_masks,
)


def removal_losses(
    model: nn.Module,
    discovery: Discovery,
    batches: Iterable[Mapping[str, Tensor]],
    masks: Sequence[HeadMask],
) -> tuple[np.ndarray, np.ndarray]:
    """The loss of every sentence with only the heads of each mask, summed over its tokens (sentences x masks), and its
    number of predicted tokens; for a long document, summed over its windows. From all processes, in the order of a
    single one."""
    for mask in masks:
        refuse_other_heads(discovery, mask)
    trials = []
    for mask in masks:
        removed = [head for head in discovery.heads if head not in mask.kept]
        trials.append(silent_heads(removed, device_of(model)))
    return trial_losses(model, discovery, batches, lambda _: trials, reuse=any(trials))


def silent_heads(heads: Iterable[Head], device: torch.device) -> Trial:
    """A trial in which heads give nothing."""
    by_site: dict[Site, list[int]] = {}
    for head in heads:
        by_site.setdefault(Site(head.kind, head.layer), []).append(head.head)
    trial: dict[Site, Callable[[AttentionCall], Tensor]] = {}
    for site, numbers in by_site.items():
        # once for all batches: plain numbers would be copied to the device at each call
        here = torch.tensor(numbers, device=device)
        trial[site] = partial(with_others, heads=here, replacement=0.0)
    return trial


def trial_losses(
    model: nn.Module,
    discovery: Discovery,
    batches: Iterable[Mapping[str, Tensor]],
    trials_of: Callable[[RecordedBatch], Sequence[Trial]],
    reuse: bool = True,
) -> tuple[np.ndarray, np.ndarray]:
    """As `removal_losses`, with outputs of heads changed in any way: the loss of every sentence in each trial. trials_of:
    from a batch to its trials, as many for each. reuse: as of `recordings`."""
    parts: list[np.ndarray] = []
    within = share_within(batches)
    with failing_together(), evaluating(model), torch.no_grad():
        for batch in recordings(model, discovery, batches, reuse):
            by_sentence = batch.losses_in(trials_of(batch), within).T
            units = np.column_stack(to_numpy([by_sentence, batch.asked]))
            # a unit of every bootstrap has predicted tokens
            parts.append(units[units[:, -1] > 0].astype(np.float64))
        parts = gather_batches(parts)
    if not parts:
        raise HeadwiseError(
            "The loss without some heads cannot be computed: the text has no sentence. Give other text."
        )
    units = of_documents(np.concatenate(parts), getattr(batches, "documents", None))
    return units[:, :-1], units[:, -1]


def recordings(
    model: nn.Module,
    discovery: Discovery,
    batches: Iterable[Mapping[str, Tensor]],
    reuse: bool = True,
) -> Iterator[RecordedBatch]:
    """A forward of the full model on every batch. A model whose layers cannot be run from the middle on (more than one
    state goes between them, or they run in rounds) runs in full each time. reuse: whether trials will begin in the
    middle; else nobody tries whether they can, which takes a second forward over the first batch."""
    for place, tensors in enumerate(batches):
        batch = record_batch(model, discovery, tensors)
        if place == 0 and reuse:
            reuse = clear_unless_reusable(
                model, discovery, batch.kept, batch.losses_again, batch.losses
            )
        # without recorded calls, every trial runs the whole model
        if not reuse:
            batch.kept.calls.clear()
        yield batch


def unrecorded(
    model: nn.Module, discovery: Discovery, batch: Mapping[str, Tensor]
) -> RecordedBatch:
    """A batch before any forward, which `to_first_order` makes itself: its losses are 0."""
    tensors = on_device(model, batch)
    asked = asked_tokens(tensors["labels"])
    places, there = asked_places(tensors["labels"]), token_masks(tensors)
    nothing = ForwardRecord(len(asked))
    return RecordedBatch(model, discovery, tensors, asked * 0.0, asked, places, there, nothing)


def record_batch(
    model: nn.Module, discovery: Discovery, batch: Mapping[str, Tensor]
) -> RecordedBatch:
    """A forward of the full model."""
    blank = unrecorded(model, discovery, batch)
    layers: dict[Site, Tensor] = {}

    def note(call: AttentionCall) -> None:
        # a truth value on the device: reading it here would wait for each layer
        layers[call.site] = sound(call, blank.there)

    with recording(model, discovery, len(blank.asked), note) as kept:
        lost = losses_of(model, blank.tensors, blank.places)
    refuse_unsound(layers, lost)
    return replace(blank, losses=lost, kept=kept)
