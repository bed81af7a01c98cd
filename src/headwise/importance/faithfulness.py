"""The faithfulness of scores on a model: which of them ranks heads as exact ablation does, and how long the model lasts
when heads are removed in the order of each (`agreement`, `curves`)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial

import pandas as pd

from headwise.errors import HeadwiseError
from headwise.importance.ablation import removal_losses
from headwise.importance.agreement import agreement, exceptions, head_values
from headwise.importance.curves import area_rows, curve_rows, removal_curves
from headwise.importance.measurement import importance_values
from headwise.importance.measures import CURVES, FAITHFULNESS, Measure, facts, measure
from headwise.importance.sums import UNITS, SentenceSums
from headwise.model import Model
from headwise.tasks.batches import Batches, Fold

TRUTH = "ablation.zero"  # that scores are compared with
RANDOM_ORDERS = 5  # of removal, that the orders of scores are compared with


@dataclass(frozen=True)
class Faithfulness:
    """agreement: faithfulness.csv, columns FAITHFULNESS. curves: curves.csv, columns CURVES."""

    agreement: pd.DataFrame
    curves: pd.DataFrame


def check_faithfulness(text: Batches, measures: Iterable[str]) -> None:
    """Raise HeadwiseError without exact ablation among the measures, and for a text too long to keep every sentence."""
    if TRUTH not in measures:
        raise HeadwiseError(
            f"Scores are judged by {TRUTH}, which is not among the measures: add it."
        )
    if len(text.text) > UNITS:
        raise HeadwiseError(
            f"Scores were to be judged on {len(text.text):,} sentences, but {UNITS:,} are the most: give fewer."
        )


def faithfulness(
    model: Model, text: Batches, collected: Mapping[str, SentenceSums], orders: int, seed: int = 0
) -> Faithfulness:
    """Scores of the even sentences, compared with exact ablation of the odd ones.

    collected: the sums of each measure. orders: how many random orders of removal there are. A measure whose low values
    are important has a minus before its name. Raises HeadwiseError when `ablation.zero`, the truth, is not among them,
    and for too much text.
    """
    check_faithfulness(text, collected)
    entries: dict[str, Measure] = {}  # by their names in the tables
    scores: dict[str, SentenceSums] = {}
    for name, sums in collected.items():
        entry = facts(name)
        if entry.by_sentence:
            shown = name if entry.sign == 1 else f"-{name}"
            entries[shown] = entry
            scores[shown] = sums.fold(0)
    rows = agreement(scores, collected[TRUTH].fold(1), seed)

    values = {
        name: head_values(sums)
        for name, sums in scores.items()
        if sums.heads.query == model.heads.query
    }
    rescored = [name for name in values if entries[name].rescored]
    rescored.sort(key=lambda name: -entries[name].cost["forwards"])  # the slowest first
    even = Fold(text, 0)
    rescore = {
        name: partial(importance_values, model, even, entries[name].name) for name in rescored
    }
    lose = partial(removal_losses, model.hf, model.found, Fold(text, 1))
    curves = removal_curves(model.heads, values, lose, rescore, range(orders))
    rows += area_rows(curves, seed)

    if "confidence" in values:
        for name in values:
            if name in measure and entries[name].family == "lrp":
                pair = (name, "confidence")
                rows += exceptions(values[name], values["confidence"], names=pair).rows
    return Faithfulness(
        pd.DataFrame(rows, columns=list(FAITHFULNESS)),
        pd.DataFrame(curve_rows(curves, seed), columns=list(CURVES)),
    )
