"""The untrained control of a model: the same shape, random weights. What it scores is what the shape alone gives, so it is
the control of every score and role."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterable
from typing import Any

import pandas as pd
import torch

from headwise.core.errors import HeadwiseError
from headwise.core.heads import describe
from headwise.core.options import SEED
from headwise.core.progress import OnProgress, silent, turn
from headwise.core.tables import UNTRAINED_SCORES
from headwise.importance.measures import measure, resolve_measures
from headwise.importance.passes import run_passes
from headwise.importance.work import Workload
from headwise.models.attention.offload import device_of, refuse_offloaded
from headwise.models.attention.rebuilt import drop_unused
from headwise.models.generators import check_seed, drawing_from
from headwise.models.loading import AnyModel, as_model
from headwise.models.model import Model
from headwise.models.tasks import AnyText, OwnInputs
from headwise.models.tasks.task import sample_text

UNTRAINED_SENTENCES = 50  # of a text, that controls are scored on
LAYER = ["kind", "layer", "measure"]


def untrained(model: AnyModel, seed: int = SEED) -> Model:
    """The untrained control of a model: same class, configuration, heads and tokenizer, with new random weights.

    The weights are drawn as transformers draws them for this configuration. A pruned model's control has lost the same
    heads. The state of torch's generators stays as it is. Raises HeadwiseError for offloaded weights and for a seed
    below 0.
    """
    check_seed(seed)
    model = as_model(model)
    refuse_offloaded(model.hf, "An untrained control")
    config: Any = copy.deepcopy(model.hf.config)
    # a pruned model: its shape is built whole, then cut like the model
    config.headwise_layout = None
    with drawing_from(seed):
        # float32, so that a seed gives the same weights in every precision
        hf = drop_unused(type(model.hf)._from_config(config, dtype=torch.float32))
    # of heads that are not seen, and caches that grow: as in the model
    with warnings.catch_warnings(action="ignore"):
        control = Model(hf, model.tokenizer, f"{model.name}, untrained", allow_partial=True)
        if model.layout is not None and not model.is_stock:
            control = control.only(model.layout, grow=True)
    if control.heads != model.heads:
        raise HeadwiseError(
            f"An untrained {type(hf).__name__} shows other heads ({describe(control.heads)}) than {model.name} "
            f"({describe(model.heads)}): it has no untrained control."
        )
    control.hf.to(dtype=model.hf.dtype, device=device_of(model.hf))
    return control


def control_seeds(count: int, seed: int) -> list[int]:
    """The seeds of so many untrained controls, those after `seed`."""
    if type(count) is not int or count < 0:
        raise HeadwiseError(
            f"untrained is {count!r}: give the number of untrained controls, 0 for none."
        )
    return [seed + number for number in range(1, count + 1)]


def score_untrained(
    model: Model,
    text: AnyText | OwnInputs,
    measures: Iterable[str],
    count: int,
    seed: int = 0,
    progress: OnProgress = silent,
    time_limit: float | None = None,
) -> pd.DataFrame:
    """The scores of untrained controls on UNTRAINED_SENTENCES sentences of a text, spread evenly over it: one row a
    control, head and measure, columns of UNTRAINED_SCORES. No expensive measure. seed: of everything that draws; the
    controls have the next ones. time_limit: the seconds that the samples of each control may take."""
    names = [name for name in resolve_measures(measures) if not measure[name].expensive]
    few = sample_text(text, UNTRAINED_SENTENCES)
    seeds = control_seeds(count, seed)
    if not names:
        seeds = []
    rows: list[dict[str, Any]] = []
    for number, own in enumerate(seeds):
        control = untrained(model, own)
        share = turn(progress, number, count)
        batches = control.task.batches(few)
        batches.time_limit = time_limit
        scores = run_passes(control, batches, names, seed, share)
        for row in scores.all_rows(seed):
            rows.append({"seed": own, **row})
    return UNTRAINED_SCORES.of(rows)


def work_of_controls(work: Workload, measures: Iterable[str], count: int) -> float:
    """What so many controls read, in forwards over the whole text."""
    names = [name for name in resolve_measures(measures) if not measure[name].expensive]
    share = min(1.0, UNTRAINED_SENTENCES / work.sentences)
    return len(control_seeds(count, 0)) * share * work.of_measures(names)


def with_baseline(table: pd.DataFrame, controls: pd.DataFrame) -> pd.DataFrame:
    """Scores with their baseline: the mean of the measure over all heads of the same layer in the untrained controls."""
    means = controls.groupby(LAYER)["value"].mean()
    keys = pd.MultiIndex.from_frame(table[LAYER])
    return table.assign(baseline=means.reindex(keys).to_numpy(dtype=float))
