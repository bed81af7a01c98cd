"""`hw.effects`: what a change of each head does, in all that follows or along chosen paths alone."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import torch

from headwise.core.errors import HeadwiseError, called_as
from headwise.core.grid import HeadGrid
from headwise.core.heads import HeadMap
from headwise.core.options import SEED
from headwise.core.progress import OnProgress, shown
from headwise.core.result import TableResult
from headwise.core.statistics import means_with_intervals, ratio_interval
from headwise.core.tables import EFFECTS
from headwise.importance.ablation import ABLATIONS, ablate
from headwise.importance.passes import refuse_unscorable
from headwise.importance.paths import Receivers
from headwise.models.attention.discover import evaluating
from headwise.models.environment import signature_of
from headwise.models.evaluation.corrupted_outputs import swapped
from headwise.models.evaluation.sums import to_numpy
from headwise.models.generators import check_seed
from headwise.models.loading import AnyModel, as_model
from headwise.models.model import Model
from headwise.models.processes import failing_together, gather_batches
from headwise.models.tasks import AnyText, Given, OwnInputs
from headwise.models.tasks.batches import Batches
from headwise.models.tasks.objective import losses_of, on_device


@dataclass(frozen=True, repr=False)
class Effects(TableResult):
    """What a change of each head does.

    table: one row per head, columns EFFECTS: the effect with its 95 % interval and its two-sided p, corrected over the
    heads; of prompts in pairs also its share of the gap between the clean and the corrupted prompts; n tokens, or
    prompts. signature: how it was made, of prompts in pairs with the `gap`.
    """

    TABLE = EFFECTS
    TOP = ("head", "value", "low", "high", "p")

    @property
    def summary(self) -> str:
        return f"{len(self.table)} heads, {self.signature['measure']}"

    def ranked(self) -> pd.DataFrame:
        return self.table.sort_values("value", ascending=False, kind="stable")

    def grids(self) -> list[HeadGrid]:
        name = self.signature["measure"]
        heads = HeadMap(**self.signature["heads"])
        return [HeadGrid.of_scores(heads, self.table.assign(measure=name), name)]


@called_as("hw.effects(model, prompts, 'ablation.zero')")
def effects(
    model: AnyModel,
    text: AnyText | Given | OwnInputs,
    measure: str = "ablation.counterpart",
    receivers: str | Iterable[str] | None = None,
    *,
    seed: int = SEED,
    progress: OnProgress | None = None,
) -> Effects:
    """What a change of each head does to the loss or, of prompts in pairs, to the difference of logits.

    text: as for `score`. measure: how the output of the head is changed, by the name of an ablation:
    `ablation.counterpart` (noising), `ablation.restored` (denoising), or by zero, a mean, another example.
    receivers: what may notice it (path patching, Wang et al. 2023, section 3.1). By default all that follows; `logits`:
    only the logits; or inputs of heads, such as ["L9H6.query", "L9H9.query"]: only these together. Other heads give what
    they give without the change; feed-forward layers are part of the paths.
    progress: gets the share that is done, and of what; by default a bar.

    Raises HeadwiseError for another measure or receiver, and a text that the measure does not allow.
    """
    if measure not in ABLATIONS:
        raise HeadwiseError(
            f"effects changes the output of heads, which '{measure}' does not: choose {', '.join(ABLATIONS)}."
        )
    check_seed(seed)
    model = as_model(model)
    batches = model.task.batches(text)
    refuse_unscorable(model, [measure], batches)
    ends = None if receivers is None else Receivers.named(receivers, model.heads)
    with shown("effects", progress) as on_progress:
        sums = ablate(
            model.hf, model.discovery, batches.with_progress(on_progress), [measure], receivers=ends
        )[measure]
        sums = sums.gather().by_document(batches.documents)
        gap = gap_of(model, batches) if "counterparts" in batches.provides else None
    of_heads = [each for _, each, _ in sums.layers(measure)]
    lost = np.concatenate(of_heads, axis=1)
    # a prompt without another one to take from is left out in all layers
    every = sums.whole(sums.heads.sites[0])[1]
    counts = every[every > 0]
    values, low, high, _ = means_with_intervals(lost, counts, seed)
    columns: dict[str, Any] = {
        "value": values,
        "low": low,
        "high": high,
        "p": sums.p_of_heads(measure, seed),
        "n": int(counts.sum()),
    }
    signature: dict[str, Any] = {
        "measure": measure,
        "receivers": receivers if isinstance(receivers, str | None) else [*receivers],
    }
    if gap is not None:
        gap = gap[every > 0]
        signature["gap"] = float(gap.sum() / counts.sum())
        # The gap of each prompt beside its loss: both are sums over the same draws of prompts.
        below = np.repeat(gap[:, None], lost.shape[1], 1)
        shares = lost.sum(0) / gap.sum()
        columns["share"] = shares
        columns["share_low"], columns["share_high"] = ratio_interval(lost, below, shares, seed)
    table = pd.DataFrame([head._asdict() for head in sums.heads]).assign(**columns)
    return Effects(
        # Without prompts in pairs there is no share: its columns are there all the same, empty.
        table.reindex(columns=list(EFFECTS.names)),
        signature_of(
            model,
            text=batches.text.fingerprint,
            objective=batches.objective,
            seed=seed,
            **signature,
        ),
    )


def gap_of(model: Model, batches: Batches) -> np.ndarray:
    """How far the loss of each corrupted prompt is above that of the clean one, by prompt."""
    parts: list[np.ndarray] = []
    with failing_together(), evaluating(model.hf), torch.no_grad():
        for batch in batches:
            tensors = on_device(model.hf, batch)
            gap = losses_of(model.hf, swapped(tensors)) - losses_of(model.hf, tensors)
            parts += to_numpy([gap])
        parts = gather_batches(parts)
    gaps: np.ndarray = np.concatenate(parts).astype(np.float64)
    return gaps
