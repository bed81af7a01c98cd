"""Causal head gating: which heads help, which hurt and which do neither, when all heads can be turned down together.

Nam et al. 2025 ("Causal head gating: a framework for interpreting roles of attention heads in transformers"). The
model's weights are fixed; every head gets a gate G = σ(a), and the gates minimise

    L(a) = −log P(text), mean over its tokens  −  λ Σ_heads a

first with λ = 0, and from there twice: with λ > 0, which pulls gates open (G⁺), and with λ < 0, shut (G⁻).

    gating.facilitating = G⁻           stays open although λ pulls it shut
    gating.interfering  = 1 − G⁺       shuts although λ pulls it open
    gating.irrelevant   = G⁺ (1 − G⁻)  follows λ

As in the authors' code, gates start at random (U(0, 1)), Adam has rate 1, and gradients are clipped to norm 1. Three
things differ. They divide 0.1 by the number of heads, which is a stronger pull in a small model; here λ is the value
for the 512 heads of their smallest model. Their pull ends at |a| = 4, and a gate that noise moves further never comes
back; here a is clamped to ±4. And here the rate falls to 0, so that gates settle.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence

import torch
from torch import Tensor, nn

from headwise.core.errors import HeadwiseError
from headwise.core.heads import Row, Site
from headwise.core.progress import OnProgress, silent, turn
from headwise.importance.gradient import tracing
from headwise.importance.measurement import Measurement
from headwise.models.attention.capture import capture
from headwise.models.attention.discover import Discovery
from headwise.models.attention.offload import device_of
from headwise.models.evaluation.soundness import refuse_unsound
from headwise.models.model import Model
from headwise.models.tasks.batches import Batches, Fold
from headwise.models.tasks.objective import asked_tokens, losses_of, on_device
from headwise.models.token_rows import IGNORED

GATINGS = ("gating.facilitating", "gating.interfering", "gating.irrelevant")

FURTHEST_LOGIT = 4.0  # a gate lies between σ(−4) = 0.018 and σ(4) = 0.982


def gating_measures(
    model: Model, batches: Batches | Fold, names: Sequence[str], seed: int
) -> Measurement:
    """Causal head gating of a model on a text; every process fits the gates to the whole of it."""
    fitted = gate_heads(model.hf, model.discovery, batches.whole(), seed, progress=batches.progress)
    return Measurement(rows=[row for row in fitted if row["measure"] in names])


def gate_heads(
    model: nn.Module,
    discovery: Discovery,
    batches: Iterable[Mapping[str, Tensor]],
    seed: int = 0,
    steps: int = 200,
    pull: float = 2e-4,
    progress: OnProgress = silent,
) -> list[Row]:
    """Tidy rows: how far each head facilitates, interferes and is irrelevant, each between 0 and 1, without intervals.

    Three fits of `steps` updates, one batch each. A longer text gives as many random batches; n is the number of predicted
    words in them. Another seed starts from other gates and may find another sufficient set of heads. pull: λ,
    in nats per word. A head whose gate changes the loss by less than that, for a step of 1 in a, is irrelevant.
    """
    chosen = sample_batches(batches, steps, torch.Generator().manual_seed(seed))
    generator = torch.Generator().manual_seed(seed)
    # on the processor, so that a seed gives the same gates on every device
    uniform = torch.rand(discovery.heads.total, generator=generator)
    start = uniform.logit().clamp(-FURTHEST_LOGIT, FURTHEST_LOGIT)

    def fitted(start: Tensor, pull: float, fit: int, what: str) -> Tensor:
        rounds = shuffled_rounds(chosen, steps, generator)
        share = turn(progress, fit, 3)
        return fit_gates(model, discovery, rounds, start, pull, lambda x: share(x, what))

    with tracing(model):
        free = fitted(start, 0.0, 0, "gates without a pull")
        # both pulls start from the gates that the text alone asks for, so that only λ tells them apart
        opened = fitted(free, pull, 1, "gates pulled open").sigmoid()
        shut = fitted(free, -pull, 2, "gates pulled shut").sigmoid()
    values = torch.stack([shut, 1 - opened, opened * (1 - shut)]).double().numpy()
    words = sum(int(asked_tokens(batch["labels"]).sum()) for batch in chosen)
    rows: list[Row] = []
    for name, of_measure in zip(GATINGS, values, strict=True):
        for head, value in zip(discovery.heads, of_measure, strict=True):
            rows.append({**head._asdict(), "measure": name, "value": value, "n": words})
    return rows


def fit_gates(
    model: nn.Module,
    discovery: Discovery,
    batches: Sequence[Mapping[str, Tensor]],
    start: Tensor,
    pull: float,
    on_share: Callable[[float], None],
) -> Tensor:
    """The a of all heads, in the order of the map, after one update per batch. on_share: gets the share of the updates
    that is done."""
    a = start.to(device_of(model)).clone().requires_grad_()
    optimizer = torch.optim.Adam([a], lr=1.0)
    gates: dict[Site, Tensor] = {}
    # read at every call, because each update makes new gates
    now = {site: (lambda site=site: gates[site]) for site in discovery.heads.sites}
    sizes = [discovery.heads.count(site) for site in discovery.heads.sites]
    with capture(model, discovery, gates=now, explicit=a.device.type == "cpu"):
        for step, batch in enumerate(batches):
            optimizer.param_groups[0]["lr"] = 1 - step / len(batches)
            gates.update(zip(discovery.heads.sites, a.sigmoid().split(sizes), strict=True))
            tensors = on_device(model, batch)
            losses = losses_of(model, tensors)
            refuse_unsound({}, losses)
            loss = losses.sum() / asked_tokens(tensors["labels"]).sum() - pull * a.sum()
            (a.grad,) = torch.autograd.grad(loss, [a])
            nn.utils.clip_grad_norm_([a], 1.0)
            optimizer.step()
            # on the data, because autograd refuses to change a leaf in place
            a.data.clamp_(-FURTHEST_LOGIT, FURTHEST_LOGIT)
            on_share((step + 1) / len(batches))
    return a.detach().cpu()


def sample_batches(
    batches: Iterable[Mapping[str, Tensor]], count: int, generator: torch.Generator
) -> list[Mapping[str, Tensor]]:
    """At most `count` random batches with predicted tokens, by reservoir sampling."""
    chosen: list[Mapping[str, Tensor]] = []
    asking = (
        batch for batch in batches if "labels" in batch and bool((batch["labels"] != IGNORED).any())
    )
    for number, batch in enumerate(asking):
        if number < count:
            chosen.append(batch)
        elif (place := int(torch.randint(number + 1, (), generator=generator))) < count:
            chosen[place] = batch
    if not chosen:
        raise HeadwiseError(
            "Gates cannot be fitted: the text has no word to predict. Give a longer text."
        )
    return chosen


def shuffled_rounds(
    batches: Sequence[Mapping[str, Tensor]], steps: int, generator: torch.Generator
) -> list[Mapping[str, Tensor]]:
    """`steps` batches: all of them in one random order after another."""
    rounds = math.ceil(steps / len(batches))
    orders = [torch.randperm(len(batches), generator=generator) for _ in range(rounds)]
    return [batches[number] for number in torch.cat(orders)[:steps].tolist()]
