"""Ablation: the change of the loss without one head (Michel et al. 2019, section 3).

It is the reference for cheaper scores: exact, with one forward per head. Layers before the head are computed once per
batch, and several heads share a forward (headwise.models.attention.reuse).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from accelerate import PartialState
from torch import Tensor, nn

from headwise.core.heads import Head, Site
from headwise.core.layout import HeadMask
from headwise.core.progress import silent_share
from headwise.importance.gradient import exchanged, traced, tracing
from headwise.importance.measurement import Measurement
from headwise.importance.paths import Receivers, along_paths
from headwise.importance.sample import Sample
from headwise.importance.work import work_on
from headwise.models.attention.discover import Discovery, evaluating
from headwise.models.attention.kernel import AttentionCall
from headwise.models.attention.removal import with_others
from headwise.models.attention.reuse import Trial
from headwise.models.attention.sides import sides_of_site
from headwise.models.evaluation.corrupted_outputs import corrupted_outputs, swapped
from headwise.models.evaluation.mean_outputs import mean_outputs, position_means, positions
from headwise.models.evaluation.recorded_batch import RecordedBatch
from headwise.models.evaluation.sums import SentenceSums, add_all
from headwise.models.evaluation.without_heads import (
    record_batch,
    recordings,
    unrecorded,
)
from headwise.models.model import Model
from headwise.models.processes import gather_batches
from headwise.models.tasks.batches import Batches, Fold, Shuffled, share_within, without_progress
from headwise.models.tasks.objective import (
    on_device,
    query_masks,
)

RESTORED = "ablation.restored"


def ablation_measures(
    model: Model,
    batches: Batches | Fold,
    names: Sequence[str],
    seed: int,
) -> Measurement:
    """Ablations of a model's heads on a text, or on a sample of it within its time limit."""
    if batches.time_limit is None:
        return Measurement(ablate(model.hf, model.discovery, batches, names))
    assert isinstance(batches, Batches)
    hf, discovery = model.hf, model.discovery
    forwards = work_on(model.heads, batches).of_measures(names)
    sample = Sample(batches, empty_sums(names, discovery), batches.time_limit, seed, forwards)
    with evaluating(hf), torch.no_grad():
        # Means first: the sample's clock runs already, and they take a part of its time.
        added = mean_outputs_for(names, hf, discovery, sample.beginning())
        unread = map(partial(unrecorded, hf, discovery), sample.ahead)
        ahead = adding(sample.first_order, unread, added, to_first_order)

        def reading(
            text: Shuffled, sums: Mapping[str, SentenceSums], tokens: Mapping[str, SentenceSums]
        ) -> Iterator[None]:
            recorded = recordings(hf, discovery, text)
            # `resting` is changed by the sample as it goes on; this reading sees that.
            changes = partial(one_by_one, resting=sample.resting)
            return adding(sums, recorded, added, changes, text.within, tokens, sample.resting)

        for _ in reading(sample.batches, sample.measured, sample.tried):
            sample.read_ahead(ahead)
            if sample.enough():
                break
        late = empty_sums(names, discovery)
        tried_late = empty_sums(names, discovery)
        rest = reading(sample.again, late, tried_late)
        for _ in zip(sample.rest_of_text(), rest, strict=False):
            pass
    for name in names:
        sample.measured[name].fill(late[name])
        sample.tried[name].fill(tried_late[name])
    sums, _ = sample.controlled()
    return Measurement(sums, samples=sample.facts(sums))


def ablate(
    model: nn.Module,
    discovery: Discovery,
    batches: Iterable[Mapping[str, Tensor]],
    measures: Iterable[str],
    receivers: Receivers | None = None,
) -> dict[str, SentenceSums]:
    """The change of the loss when a head's output is replaced, in nats per predicted token: above 0 for a useful head.

    ablation.zero: by zero (Michel et al. 2019, section 3.2); ablation.all-but-one: all *other* heads of its layer are
        set to zero (section 3.3).
    ablation.mean: by its mean output over all query tokens of the text, from a first pass.
    ablation.position-mean: by its mean output at the same position of all other sentences, counted from their first
        token; at a position that only one sentence reaches, by the mean over all query tokens.
    ablation.example: by its output for the next sentence of the batch, at the same position modulo that sentence's
        length. A sentence alone in its batch is left out, and `n` is smaller.
    ablation.counterpart: by its output for the corrupted prompt, at the same position (activation patching from corrupted
        to clean, "noising").
    ablation.restored: the other way round ("denoising"): how far the loss of the corrupted prompt falls when a head's
        output is replaced by that for the clean prompt.
    ablation.uniform: by its output with uniform weights on all visible keys.

    receivers: what the change of a head may reach; by default all that follows. Evaluation mode, no gradients. Raises
    HeadwiseError for values that are not finite.
    """
    measures = tuple(measures)
    # How a change reaches the loss: by all that follows, or along some paths alone.
    changes: Callable[..., dict[Site, Tensor]] = one_by_one
    if receivers is not None:
        changes = partial(along_paths, receivers=receivers)
    with evaluating(model), torch.no_grad():
        # only the second reading reports its progress
        added = mean_outputs_for(measures, model, discovery, without_progress(batches))
        collected = empty_sums(measures, discovery)
        recorded = recordings(model, discovery, batches)
        for _ in adding(collected, recorded, added, changes, share_within(batches)):
            pass
    return collected


def mean_outputs_for(
    measures: Iterable[str],
    model: nn.Module,
    discovery: Discovery,
    batches: Iterable[Mapping[str, Tensor]],
) -> dict[str, Any]:
    """The mean outputs over a text that some ablations replace outputs by: fields of a `RecordedBatch`."""
    added: dict[str, Any] = {}
    if "ablation.mean" in measures:
        added["means"] = mean_outputs(model, discovery, batches)
    if "ablation.position-mean" in measures:
        added["position_means"] = position_means(model, discovery, batches)
    return added


def empty_sums(measures: Iterable[str], discovery: Discovery) -> dict[str, SentenceSums]:
    """Sums of ablations, by name, before anything is measured."""
    collected = {name: SentenceSums(discovery.heads) for name in measures}
    if "ablation.example" in collected:
        collected["ablation.example"].why_empty = (
            "it takes the output for another sentence of the batch, but each is alone in its batch; give batches of "
            "several sentences"
        )
    return collected


def adding(
    collected: Mapping[str, SentenceSums],
    batches: Iterable[RecordedBatch],
    added: Mapping[str, Any],
    changes: Callable[..., dict[Site, Tensor]],
    within: Callable[[float], None] = silent_share,
    tried: Mapping[str, SentenceSums] | None = None,
    resting: Collection[Head] = (),
) -> Iterator[None]:
    """Add ablations batch by batch, each time that the next is asked for. added: mean outputs. changes: from a batch, a
    change of one head and a report of its share to the changes of the loss, B H by site. within: gets the share of a
    batch that is done. tried: gets the tokens that each head was tried on: all, but none of those resting."""
    for batch in batches:
        if "ablation.counterpart" in collected:
            corrupted = corrupted_outputs(batch.model, batch.discovery, batch.tensors)
            batch = replace(batch, corrupted=corrupted)
        batch = replace(batch, **added)
        for place, (name, sums) in enumerate(collected.items()):
            counts = batch.asked
            if name == "ablation.example":  # a sentence alone has no other to take from
                itself = torch.arange(len(counts), device=counts.device)
                # left out, not 0: it would pull the mean down
                counts = counts * (batch.next_sentences != itself)
            changed = corrupted_batch(batch) if name == RESTORED else batch
            change = partial(ABLATIONS[name], batch=changed)

            # bound now, because a closure would see the last place
            def on_share(share: float, place: int = place) -> None:
                within((place + share) / len(collected))

            of_sites = changes(changed, change, on_share=on_share)
            # There the loss falls when a head is put back: above 0 is still a useful head.
            sign = -1 if name == RESTORED else 1
            add_all((sums, site, sign * each, counts) for site, each in of_sites.items())
            if tried is not None:
                rows = counts.cpu().numpy()
                for site in of_sites:
                    awake = [
                        Head(*site, head) not in resting for head in range(sums.heads.count(site))
                    ]
                    tried[name].take(site, np.outer(rows, awake), rows)
        yield


def corrupted_batch(batch: RecordedBatch) -> RecordedBatch:
    """The same with corrupted and clean prompts exchanged. Raises HeadwiseError for a batch without corrupted prompts."""
    tensors = swapped(batch.tensors)
    other = record_batch(batch.model, batch.discovery, tensors)
    # whether layers can be run from the middle on was found out on the first batch
    if not batch.kept.calls:
        other.kept.calls.clear()
    return replace(other, corrupted=corrupted_outputs(batch.model, batch.discovery, tensors))


def one_by_one(
    batch: RecordedBatch,
    change: Callable[..., Tensor],
    on_share: Callable[[float], None],
    resting: Collection[Head] = (),
) -> dict[Site, Tensor]:
    """By site, the change of each sentence's loss when one of its heads is changed: B H; 0 for heads that rest. on_share:
    gets the share of the heads that is done."""
    trials: list[Trial] = []
    sizes = []
    sites = batch.discovery.modules
    for site in sites:
        count = batch.discovery.heads.count(site)
        sizes.append(count)
        for head in range(count):
            rests = Head(*site, head) in resting
            trials.append({} if rests else {site: partial(change, head=head)})
    # Heads × sentences; an empty trial changes nothing, so heads that rest get 0.
    changes = batch.losses_in(trials, on_share) - batch.losses
    return dict(zip(sites, changes.T.split(sizes, 1), strict=True))


def to_first_order(
    batch: RecordedBatch, change: Callable[..., Tensor], on_share: Callable[[float], None]
) -> dict[Site, Tensor]:
    """As `one_by_one`, to first order: by the gradient of the loss at the outputs of heads (attribution patching)."""
    with tracing(batch.model):
        tensors = on_device(batch.model, batch.tensors)
        traces = traced(batch.model, batch.discovery, tensors, batch.there)
    of_sites = {}
    with torch.no_grad():
        for site, (call, gradient) in traces.items():
            count = batch.discovery.heads.count(site)
            wide = torch.promote_types(gradient.dtype, torch.float32)
            of_sites[site] = gradient.new_zeros(len(gradient), count, dtype=wide)
            for head in range(count):
                changes = exchanged(call, gradient, change(call, head=head))
                of_sites[site][:, head] = changes.sum((1, 2, 3))
    return of_sites


def position_mean_ablated(call: AttentionCall, head: int, batch: RecordedBatch) -> Tensor:
    side = sides_of_site(call.site)[0]
    places = positions(batch.there[side])
    # tokens that an earlier window has are in no mean
    counted = query_masks(batch.tensors, prompts=True)[side]
    means = batch.position_means[call.site]
    return with_others(call, head, means.of_others(call.output[:, :, head], places, counted, head))


def resample_ablated(call: AttentionCall, head: int, batch: RecordedBatch) -> Tensor:
    """Each sentence gets the outputs of the next sentence with predicted tokens; the last sentence gets the first one's."""
    other, places = batch.neighbours[sides_of_site(call.site)[0]]
    return with_others(call, head, call.output[other, places, head])


def counterpart_ablated(call: AttentionCall, head: int, batch: RecordedBatch) -> Tensor:
    return with_others(call, head, batch.corrupted[call.site][:, :, head])


def uniform_ablated(call: AttentionCall, head: int, batch: RecordedBatch) -> Tensor:
    query_side, key_side = sides_of_site(call.site)
    output = uniform_output(call, head, batch.there[query_side], batch.there[key_side])
    return with_others(call, head, output)


def uniform_output(call: AttentionCall, head: int, queries: Tensor, keys: Tensor) -> Tensor:
    """A head's output with equal weights on all visible keys, B Q D. queries B Q, keys B K: where a token is."""
    pairs = call.visible(queries, keys)[:, 0].to(call.value)
    weights = pairs / pairs.sum(-1, keepdim=True).clamp_min(1)
    # grouped heads share a key/value head
    # G of H: head h reads the values of group h G / H
    group = head * call.value.shape[1] // call.output.shape[2]
    return weights @ call.value[:, group]


ABLATIONS: dict[str, Callable[..., Tensor]] = {
    "ablation.zero": lambda call, head, batch: with_others(call, head, 0.0),
    "ablation.mean": lambda call, head, batch: with_others(
        call, head, batch.means[call.site][head]
    ),
    "ablation.position-mean": position_mean_ablated,
    "ablation.example": resample_ablated,
    "ablation.counterpart": counterpart_ablated,
    RESTORED: counterpart_ablated,
    "ablation.uniform": uniform_ablated,
    "ablation.all-but-one": lambda call, head, batch: with_others(
        replace(call, output=torch.zeros_like(call.output)), head, call.output[:, :, head]
    ),
}


def bleu_drops(model: Model, batches: Batches) -> Measurement:
    """The BLEU that the text's translation loses when one head is silent (Michel et al. 2019, section 3.2).

    Above 0, the head was of use. 95 % intervals by paired bootstrap; n counts sentences. The text is translated by beam
    search once for every head and once for the whole model; several processes share the heads.
    """
    state = PartialState()
    # Every n-th head to each process.
    heads = list(model.heads)[state.process_index :: state.num_processes]
    full = HeadMask.full(model.heads)
    text = model.task.quality_batches(batches.text, batches.progress)
    answers = model.task.answers(text, [full.without([head]) for head in heads])

    rows: list[dict[str, Any]] = []
    for place, head in enumerate(heads, start=1):
        # Answer 0 is the whole model's; from the n-th head's to it.
        drop = answers.change(0, to=place)
        rows.append(
            {
                **head._asdict(),
                "measure": "ablation.bleu",
                "value": drop.value,
                "low": drop.low,
                "high": drop.high,
                "n": len(text.data),
                "units": drop.units,
            }
        )
    # heads were dealt out in turn, so the first of every process come first
    return Measurement(rows=gather_batches(rows))
