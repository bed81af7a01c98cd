"""Ablation: the change of the loss without one head (Michel et al. 2019, section 3).

It is the reference for cheaper scores: exact, with one forward per head. Layers before the head are computed once per
batch, and several heads share a forward (headwise.attention.reuse).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby

import numpy as np
import torch
from accelerate.utils import gather_object
from torch import Tensor, nn

from headwise.attention import AttentionCall, Discovery, capture, evaluating
from headwise.attention.capture import refuse_other_heads
from headwise.attention.removal import removed_heads, with_others
from headwise.attention.reuse import Recording, Trial, recording, trying
from headwise.errors import HeadwiseError
from headwise.heads import HeadMask, Site
from headwise.importance.attention_weights import sides
from headwise.importance.gradient import positions, refuse_broken_loss, refuse_broken_outputs
from headwise.importance.objective import asked_tokens, on_device, predict, sentence_losses
from headwise.importance.tally import Part, Tally, gathered

Means = Mapping[Site, Tensor]  # H D
TOKENS = 4096  # positions that go through the model together


@dataclass(frozen=True)
class Batch:
    """A batch after a forward of the full model.

    losses B and asked B (tokens) by sentence; there: by side, where a token is (B S and B T).
    """

    tensors: dict[str, Tensor]
    losses: Tensor
    asked: Tensor
    there: dict[str, Tensor]
    kept: Recording


def ablate(
    model: nn.Module, found: Discovery, batches: Iterable[Mapping[str, Tensor]], measures: Iterable[str],
    tokens: int = TOKENS,
) -> dict[str, Tally]:  # fmt: skip
    """The change of the loss when a head's output is replaced, in nats per predicted token: above 0 for a useful head.

    ablation.zero: by zero (Michel et al. 2019, section 3.2); ablation.all-but-one: all *other* heads of its layer are
        set to zero (section 3.3).
    ablation.mean: by its mean output over all query tokens of the text, from a first pass.
    ablation.example: by its output for the next sentence of the batch, at the same position modulo that sentence's
        length. A sentence alone in its batch is left out, and `n` is smaller.
    ablation.uniform: by its output with uniform weights on all visible keys.

    tokens: positions in one forward; more than one batch's saves time only on a GPU. Evaluation mode, no gradients.
    Raises HeadwiseError for unknown measures and for values that are not finite.
    """
    measures = tuple(measures)
    for name in measures:
        if name not in CHANGES:
            raise HeadwiseError(f"'{name}' is not an ablation: choose from {', '.join(CHANGES)}.")
    with evaluating(model), torch.no_grad():
        means = mean_outputs(model, found, batches) if "ablation.mean" in measures else {}
        tallies = {name: Tally(found.heads) for name in measures}
        for place, tensors in enumerate(batches):
            batch = recorded(model, found, tensors, check=place == 0)
            for name, tally in tallies.items():
                counts = batch.asked * ((batch.asked > 0).sum() > 1) if name == "ablation.example" else batch.asked
                changes = one_by_one(model, found, batch, partial(CHANGES[name], batch=batch, means=means), tokens)
                for site, change in changes.items():
                    tally.add(site, change, counts)
    return tallies


def removal_losses(
    model: nn.Module, found: Discovery, batches: Iterable[Mapping[str, Tensor]], masks: Sequence[HeadMask],
    tokens: int = TOKENS,
) -> tuple[np.ndarray, np.ndarray]:  # fmt: skip
    """The loss of every sentence with only the heads of each mask, summed over its tokens (sentences x masks), and its
    number of predicted tokens. From all processes, in the order of a single one."""
    for mask in masks:
        refuse_other_heads(found, mask)
    trials = [
        {site: partial(with_others, heads=heads, stand_in=0.0) for site, heads in removed_heads(found, mask).items()}
        for mask in masks
    ]
    parts: list[Part] = []
    with evaluating(model), torch.no_grad():
        for place, tensors in enumerate(batches):
            batch = recorded(model, found, tensors, check=place == 0)
            some = batch.asked > 0
            lost = losses(model, found, batch, trials, tokens)[:, some].T
            parts.append((lost.double().cpu().numpy(), batch.asked[some].double().cpu().numpy()))
    parts = gathered(parts)
    if not parts:
        raise HeadwiseError("The loss without some heads cannot be computed: the text has no sentence.")
    return np.concatenate([lost for lost, _ in parts]), np.concatenate([counts for _, counts in parts])


def recorded(model: nn.Module, found: Discovery, batch: Mapping[str, Tensor], check: bool) -> Batch:
    """A forward of the full model. check: verify that the recording reproduces the loss."""
    tensors = on_device(model, batch)
    there = positions(tensors)
    with recording(model, found, len(tensors["labels"]), partial(refuse_broken_outputs, there=there)) as kept:
        lost = sentence_losses(predict(model, tensors), tensors["labels"])
    refuse_broken_loss(lost)
    made = Batch(tensors, lost, asked_tokens(tensors["labels"]), there, kept)
    if check and kept.calls:
        unchanged: Trial = {kept.calls[-1].sites[-1]: lambda call: call.output}
        again = losses(model, found, made, [unchanged, unchanged], tokens=2 * max(map(Tensor.numel, tensors.values())))
        near = torch.finfo(next(model.parameters()).dtype).eps ** 0.5
        if not torch.allclose(again, lost.expand_as(again), rtol=near, atol=near):
            raise HeadwiseError(
                f"{type(model).__name__} gives another loss when its first layers come from an earlier forward: "
                "headwise cannot ablate its heads."
            )
    return made


def one_by_one(
    model: nn.Module, found: Discovery, batch: Batch, change: Callable[..., Tensor], tokens: int
) -> dict[Site, Tensor]:
    """By site, the change of each sentence's loss when one of its heads is changed: B H."""
    heads = {site: range(found.heads.count(site)) for site in found.modules}
    trials: list[Trial] = [{site: partial(change, head=head)} for site, all_of in heads.items() for head in all_of]
    changes = losses(model, found, batch, trials, tokens) - batch.losses
    return dict(zip(heads, changes.T.split([len(all_of) for all_of in heads.values()], 1), strict=True))


def losses(model: nn.Module, found: Discovery, batch: Batch, trials: Sequence[Trial], tokens: int) -> Tensor:
    """The loss of each sentence in each trial, T B. Trials that start in the same block share a forward."""
    out = batch.losses.repeat(len(trials), 1)
    longest = max(batch.tensors["labels"].shape[1], batch.tensors["input_ids"].shape[1])
    together = max(1, tokens // (len(batch.losses) * longest))
    first = {place: batch.kept.first(list(trial)) for place, trial in enumerate(trials) if trial}
    for _, places in groupby(sorted(first, key=first.__getitem__), key=first.__getitem__):
        waiting = list(places)
        for start in range(0, len(waiting), together):
            now = waiting[start : start + together]
            tensors = {
                name: tensor.repeat(len(now), *[1] * (tensor.dim() - 1)) for name, tensor in batch.tensors.items()
            }
            with trying(model, found, batch.kept, [trials[place] for place in now]):
                out[now] = sentence_losses(predict(model, tensors), tensors["labels"]).view(len(now), -1)
    return out


def mean_outputs(model: nn.Module, found: Discovery, batches: Iterable[Mapping[str, Tensor]]) -> dict[Site, Tensor]:
    """The mean output of every head over all query tokens of the text, from all processes: H D by site."""
    if isinstance(batches, Iterator):
        raise HeadwiseError(
            "ablation.mean reads the text twice, but these batches can be read only once: give a list of batches."
        )
    sums: dict[Site, Tensor] = {}
    counts: dict[Site, int] = defaultdict(int)
    there: dict[str, Tensor] = {}

    def watch(call: AttentionCall) -> None:
        queries = there[sides(call.site)[0]]
        refuse_broken_outputs(call, there)
        wide = torch.promote_types(call.output.dtype, torch.float32)
        total = (call.output * queries[..., None, None]).sum((0, 1), dtype=wide).double().cpu()
        sums[call.site] = sums.get(call.site, 0) + total
        counts[call.site] += int(queries.sum())

    with capture(model, found, watch=watch):
        for batch in batches:
            tensors = on_device(model, batch)
            there.update(positions(tensors))
            predict(model, tensors)
    shares = gather_object([(sums, counts)])
    return {
        site: sum(total[site] for total, _ in shares if site in total)
        / max(1, sum(count[site] for _, count in shares if site in count))
        for site in found.modules
        if any(site in total for total, _ in shares)
    }


def example(call: AttentionCall, head: int, batch: Batch, means: Means) -> Tensor:
    """Each sentence gets the outputs of the next sentence with predicted tokens; the last one those of the first."""
    queries = batch.there[sides(call.site)[0]]
    asking = (batch.asked > 0).nonzero()[:, 0]
    other = torch.arange(len(queries), device=queries.device)
    other[asking] = asking.roll(-1)
    tokens_first = (~queries).long().argsort(dim=1, stable=True)
    turn = (queries.cumsum(1) - 1).clamp_min(0) % queries.sum(1).clamp_min(1)[other, None]
    places = tokens_first[other].gather(1, turn)
    return with_others(call, head, call.output[other[:, None], places, head])


def uniform(call: AttentionCall, head: int, batch: Batch, means: Means) -> Tensor:
    pairs = call.visible(*(batch.there[side] for side in sides(call.site)))[:, 0].to(call.value)
    weights = pairs / pairs.sum(-1, keepdim=True).clamp_min(1)
    group = head * call.value.shape[1] // call.output.shape[2]
    return with_others(call, head, weights @ call.value[:, group])


CHANGES: dict[str, Callable[..., Tensor]] = {
    "ablation.zero": lambda call, head, batch, means: with_others(call, head, 0.0),
    "ablation.mean": lambda call, head, batch, means: with_others(call, head, means[call.site][head]),
    "ablation.example": example,
    "ablation.uniform": uniform,
    "ablation.all-but-one": lambda call, head, batch, means: with_others(
        call, [other for other in range(call.output.shape[2]) if other != head], 0.0
    ),
}
ABLATIONS = tuple(CHANGES)
