"""What every head does to the output: exactly, each switched off in turn, many in one forward."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from headwise.attention import AttentionCall
from headwise.attention.removal import with_others
from headwise.attention.reuse import Recording, Trial, in_turn, recording, trying
from headwise.errors import HeadwiseError
from headwise.heads import Site
from headwise.lab.asker import Asker, Base
from headwise.lab.changes import Ablation, Check, Means, turned_down, uniform
from headwise.progress import Report

LOGITS, POSITIONS = 1 << 26, 1 << 13  # numbers and positions of a forward with many rows


def without_each(
    asker: Asker,
    base: Base,
    gates: Tensor,
    ablation: Ablation,
    means: Means,
    check: Check,
    progress: Report,
) -> Tensor:
    """The change of the columns' log-probabilities when one more head is off, on top of the gates: heads x columns; of
    an embedding model one column, the change of the similarity to the full model."""
    hf, found, heads = asker.hf, asker.model.found, list(asker.model.heads)
    on = gates.nonzero().flatten().tolist()
    trials: list[Trial] = [
        {
            Site(heads[place].kind, heads[place].layer): partial(
                off, head=heads[place].head, ablation=ablation, means=means
            )
        }
        for place in on
    ]
    words = 1 if asker.task == "embedding" else hf.config.get_text_config().vocab_size
    size = base.inputs["input_ids"].shape[1] + (base.length if base.target else 0)
    most = max(1, min(POSITIONS // size, LOGITS // (base.length * words)))
    with turned_down(asker.model, gates, ablation, means, check):
        with recording(hf, found, 1, lambda call: None) as kept:
            before = asker.logs(base)
        if not reusable(asker, base, kept, before):
            kept.calls.clear()
        changes, done = torch.zeros(len(heads), before.shape[1]), 0
        for now in in_turn(kept, trials, most):
            with trying(hf, found, kept, [trials[trial] for trial in now]):
                changes[[on[trial] for trial in now]] = asker.logs(base, len(now)) - before
            done += len(now)
            progress(done / len(trials), f"{done} of {len(trials)} heads")
    return changes


def reusable(asker: Asker, base: Base, kept: Recording, before: Tensor) -> bool:
    """Whether a forward from the last layer on says the same as a whole one."""
    if not kept.calls:
        return False
    unchanged: Trial = {kept.calls[-1].sites[-1]: lambda call: call.output}
    try:
        with trying(asker.hf, asker.model.found, kept, [unchanged, unchanged]):
            again = asker.logs(base, 2)
    except (
        RuntimeError,
        AssertionError,
        HeadwiseError,
    ):  # it needs more than what goes from layer to layer
        return False
    return torch.allclose(again, before.expand_as(again), rtol=1e-4, atol=1e-4)


def off(call: AttentionCall, head: int, ablation: Ablation, means: Means) -> Tensor:
    """The outputs B Q H D of a call in which one head gives what stands in for it."""
    if ablation == "zero":
        return with_others(call, head, 0.0)
    return with_others(
        call, head, means[call.site][head] if ablation == "mean" else uniform(call)[:, :, head]
    )
