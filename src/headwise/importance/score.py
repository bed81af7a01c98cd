"""`hw.score`: what every head is worth."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from headwise.errors import HeadwiseError
from headwise.importance.faithfulness import RANDOM_ORDERS, check_faithfulness, faithfulness
from headwise.importance.measurement import run_passes, usual_measures
from headwise.importance.measures import resolve_measures
from headwise.importance.scores import Scores, collect_scores
from headwise.importance.untrained import score_untrained
from headwise.model import Model
from headwise.progress import Report, part, shown
from headwise.tasks import AnyText, OwnInputs


def score(
    model: Model,
    text: AnyText | OwnInputs,
    measures: Sequence[str] | None = None,
    *,
    judge: bool = False,
    untrained: int = 0,
    seed: int = 0,
    progress: Report | None = None,
) -> Scores:
    """What every head is worth, by one measure or several (docs/methods).

    text: parallel for translation models, labelled for classifiers, one-sided for all others; a masked model predicts a
    seeded share of its tokens, but attention statistics see the whole text. Or a list of batches of the model's own
    keyword tensors with `labels`, of images, sound or text.
    measures: names of the table `hw.measure`, a bare `lrp` or `ablation`, or `all`; by default confidence, lrp (not of
    classifiers), gradient and ablation, or confidence, entropy and dormancy of a model that predicts nothing.
    judge: whether the scores are compared with exact ablation (`Scores.faithfulness`, `Scores.curves`).
    untrained: how many untrained controls (`hw.untrained`) are scored, on 50 sentences (`Scores.controls`, and the
    column `baseline`: their mean over the heads of the layer).
    progress: gets the share that is done, and of what; by default a bar. Raises HeadwiseError for unknown measures, a
    text of the wrong kind, and models that compute no numbers.
    """
    if isinstance(measures, str):
        raise HeadwiseError(
            f"score: measures is '{measures}': give a list of names, such as ['confidence']."
        )
    batches = model.task.batches(text)
    measures = usual_measures(model, batches) if measures is None else measures
    if judge:
        check_faithfulness(batches, resolve_measures(measures))

    with shown("score", progress) as report:
        before = 0.2 if untrained else 0.0
        controls = score_untrained(
            model, text, measures, untrained, seed, part(report, 0.0, before)
        )
        passes = run_passes(
            model, batches, measures, seed, part(report, before, 0.8 if judge else 1.0)
        )
        scores = collect_scores(
            model, batches, measures, passes, seed, controls if untrained else None
        )
        if judge:
            report(0.8, "judge")
            judged = faithfulness(model, batches, passes.sums, RANDOM_ORDERS, seed)
            scores = replace(scores, faithfulness=judged.agreement, curves=judged.curves)
        report(1.0, "done")
    return scores
