"""Attribution along a path: what a head is worth while its layer is faded out in steps (integrated gradients)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial

import torch
from torch import Tensor, nn

from headwise.core.heads import Site
from headwise.importance.gradient import tracing
from headwise.models.attention.discover import Discovery
from headwise.models.attention.kernel import AttentionCall
from headwise.models.evaluation import recorded_batch
from headwise.models.evaluation.recorded_batch import RecordedBatch
from headwise.models.evaluation.sums import SentenceSums, add_all
from headwise.models.evaluation.without_heads import recordings
from headwise.models.model import Model
from headwise.models.tasks.batches import Batches, Fold, share_within

PATH_STEPS = 5  # as Hanna et al. 2024 use


def integrated_measure(model: Model, batches: Batches | Fold) -> dict[str, SentenceSums]:
    """Attribution in steps of a model's loss on a text."""
    return integrated_gradients(model.hf, model.discovery, batches)


def integrated_gradients(
    model: nn.Module,
    discovery: Discovery,
    batches: Iterable[Mapping[str, Tensor]],
    steps: int = PATH_STEPS,
) -> dict[str, SentenceSums]:
    """attribution.steps: the slope of the loss, averaged while all heads of the layer go from silent to full. With one
    gate ξ for every head of a layer, all other layers whole, and L in nats per predicted token,

        attribution.steps(h) = −1/m Σ_{k = 1 … m} ∂L/∂ξ_h at ξ = k/m,   m = steps.

    This is EAP-IG of nodes (Hanna et al. 2024, "Have faith in faithfulness"; `EAP-IG-activations` of their
    program and of the MIB benchmark) with zero as the replacement: a text without counterparts has no other.
    One step is attribution.zero. With many steps the heads of a layer sum to the loss without them all less the loss
    with them (completeness); the difference falls as 1/m.

    Evaluation mode. Raises HeadwiseError for values that are not finite.
    """
    sums = SentenceSums(discovery.heads)
    on_share = share_within(batches)
    with tracing(model):
        for batch in recordings(model, discovery, batches):
            parts = []
            for number, site in enumerate(discovery.modules):
                on_share(number / len(discovery.modules))
                values = -slopes(batch, site, steps) / steps
                parts.append((sums, site, values, batch.asked))
            add_all(parts)
    return {"attribution.steps": sums}


def slopes(batch: RecordedBatch, site: Site, steps: int) -> Tensor:
    """Σ_k ∂L/∂ξ_h at ξ = k / steps, by sentence and head of one layer: B H."""
    wide = torch.promote_types(next(batch.model.parameters()).dtype, torch.float32)
    count = batch.discovery.heads.count(site)
    total = batch.losses.new_zeros(len(batch.losses), count, dtype=wide)
    if not count:
        return total
    longest = max(there.shape[1] for there in batch.there.values())
    # the gradients of more steps would be in memory at once
    together = max(1, recorded_batch.FORWARD_POSITIONS // (len(total) * longest))
    for start in range(1, steps + 1, together):
        numbers = range(start, min(start + together, steps + 1))
        # a gate a step, so that one backward pass gives the slope at each
        gates = [torch.full_like(total, number / steps, requires_grad=True) for number in numbers]
        trials = [{site: partial(faded, gate=gate)} for gate in gates]
        lost = batch.losses_in(trials)
        if lost.requires_grad:  # else no output of the layer reaches the loss
            total += torch.stack(torch.autograd.grad(lost.sum(), gates)).sum(0)
    return total


def faded(call: AttentionCall, gate: Tensor) -> Tensor:
    """The output of a layer, each head of a sentence scaled by a gate: B Q H D."""
    return (call.output * gate[:, None, :, None]).to(call.output.dtype)
