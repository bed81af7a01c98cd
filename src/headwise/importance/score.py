"""`score` and `evaluate`: what every head is worth, and what models are worth."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from headwise.errors import HeadwiseError
from headwise.importance.measurement import (
    RANDOM_ORDERS,
    judge,
    refuse_unjudgeable,
    run_passes,
    table_of_scores,
    usual_measures,
)
from headwise.importance.measures import resolve_measures
from headwise.importance.untrained import score_untrained, with_baseline
from headwise.model import Model
from headwise.progress import Report, part, shown
from headwise.tasks import AnyText, OwnInputs

SENTENCES, TOKENS, ROUNDS = 100, 16, 3  # that decoding speed is measured on


def score(
    model: Model,
    text: AnyText | OwnInputs,
    measures: Sequence[str] | None = None,
    seed: int = 0,
    judged: bool = False,
    progress: Report | None = None,
    untrained: int = 0,
) -> pd.DataFrame:
    """Scores of every head: a tidy table, one row a head and measure (docs/methods).

    text: parallel for translation models, labelled for classifiers, one-sided for all others; a masked model predicts a
    seeded share of its tokens, but readings see the whole text. Or a list of batches of the model's own keyword tensors
    with `labels`, of images, sound or text. measures: names of the table `hw.measure`, a bare `lrp` or `ablation`, or
    `all`; by default confidence, lrp (not of classifiers), gradient and ablation, or the usual readings of a model that
    predicts neither words nor classes.
    `.attrs["signature"]` says how the table was made, what it left out and why, and how long each pass took;
    `.attrs["relevance"]` where the relevance of each rule went.
    judged: which score to believe, as rows in `.attrs["faithfulness"]` and `.attrs["curves"]` (docs/methods/judge.md).
    untrained: how many untrained twins (`hw.untrained`) are scored as a control, on 50 sentences: `baseline` is their
    mean over the heads of the layer, and `.attrs["untrained"]` has their rows (docs/methods/controls.md).
    progress: gets the share that is done, and of what; by default a bar. Raises HeadwiseError for unknown measures, a
    text of the wrong kind, and models that compute no numbers.
    """
    if isinstance(measures, str):
        raise HeadwiseError(
            f"score: measures is '{measures}': give a list of names, such as ['confidence']."
        )
    batches = model.task.batches(text)
    measures = usual_measures(model, batches) if measures is None else measures
    if judged:
        refuse_unjudgeable(batches, resolve_measures(measures))
    with shown("score", progress) as report:
        controls = score_untrained(
            model, text, measures, untrained, seed, part(report, 0.0, 0.2 if untrained else 0.0)
        )
        share = part(report, 0.2 if untrained else 0.0, 0.8 if judged else 1.0)
        scores = run_passes(model, batches, measures, seed, share)
        table = with_baseline(table_of_scores(model, batches, measures, scores, seed), controls)
        table.attrs["relevance"] = scores.balances
        if untrained:
            table.attrs["untrained"] = controls.to_dict("records")
        if judged:
            report(0.8, "judge")
            verdict = judge(model, batches, scores.tallies, RANDOM_ORDERS, seed)
            table.attrs |= {
                "faithfulness": verdict.faithfulness.to_dict("records"),
                "curves": verdict.curves.to_dict("records"),
            }
        report(1.0, "done")
    return table
