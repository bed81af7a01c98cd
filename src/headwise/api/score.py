"""`score` and `evaluate`: what every head is worth, and what models are worth."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd

from headwise.api.batches import AnyText, Batches, translator
from headwise.api.scoring import (
    RANDOM_ORDERS,
    USUAL,
    judge,
    refuse_unjudgeable,
    resolve_measures,
    score_all,
    table_of_scores,
)
from headwise.api.validation import checked
from headwise.data.text import ParallelText
from headwise.model import Model
from headwise.progress import Report, part, silent
from headwise.translation.decode import Search, translate
from headwise.translation.quality import difference, quality


def score(
    model: Model, text: AnyText, measures: Sequence[str] = USUAL, seed: int = 0, judged: bool = False,
    progress: Report = silent,
) -> pd.DataFrame:  # fmt: skip
    """Scores of every head: a tidy table, one row a head and measure (docs/methods).

    text: parallel for translation models, one-sided for language models (the next token) and masked ones (a seeded
    share of tokens is masked). measures: names from `api.scoring.MEASURES`, a bare `lrp` or `ablation`, or `all`.
    `.attrs["signature"]` says how the table was made, what it left out and why, and how long each pass took;
    `.attrs["relevance"]` where the relevance of each rule went.
    judged: which score to believe, as rows in `.attrs["faithfulness"]` and `.attrs["curves"]` (docs/methods/judge.md).
    progress: gets the share that is done, and of what. Raises HeadwiseError for unknown measures, a text of the wrong
    kind, and models that compute no numbers.
    """
    batches = Batches(model, text)
    if judged:
        refuse_unjudgeable(batches, resolve_measures(measures))
    scores = score_all(model, batches, measures, seed, part(progress, 0.0, 0.8 if judged else 1.0))
    table = table_of_scores(model, batches, measures, scores, seed)
    table.attrs["relevance"] = scores.balances
    if judged:
        progress(0.8, "judge")
        verdict = judge(model, batches, scores.tallies, RANDOM_ORDERS, seed)
        table.attrs |= {"faithfulness": verdict.faithfulness.to_dict("records"),
                        "curves": verdict.curves.to_dict("records")}  # fmt: skip
    progress(1.0, "done")
    return table


def evaluate(models: Sequence[Model], text: ParallelText, progress: Report = silent, **search: Any) -> pd.DataFrame:
    """BLEU and chrF of models on parallel text, with 95 % intervals, and their paired BLEU difference to the first.

    Models of one name are distinguished by how many heads they have left. progress: gets the share that is done, and of
    what. search: options of `Search` by name.
    """
    options, references = checked(Search, search, "evaluate"), list(text.targets)
    rows: list[tuple[Any, ...]] = []
    baseline: list[str] = []
    names = distinct_names(models)
    for done, (name, model) in enumerate(zip(names, map(translator, models), strict=True)):
        share = part(progress, done / len(models), (done + 1) / len(models))
        lines, cost = translate(model.hf, model.tokenizer, list(text.sources), options, share)
        for found in quality(lines, references):
            made = f"{found.signature}, beam {options.beam}, length penalty {options.length_penalty:g}"
            rows.append((name, found.name, found.value, found.low, found.high, made))
        if baseline:
            change = difference(lines, baseline, references)
            made = f"paired bootstrap against {names[0]}, p = {change.p:.4f}"
            rows.append((name, "bleu_difference", change.value, change.low, change.high, made))
        rows.append((name, "tokens_per_second", cost["tokens_per_second"], None, None, ""))
        baseline = baseline or lines
    return pd.DataFrame(rows, columns=["model", "measure", "value", "low", "high", "made"])


def distinct_names(models: Sequence[Model]) -> list[str]:
    """A name for each model: its own; where several share it, with the heads that are left, and then with a number."""
    given = [model.name for model in models]
    heads = [
        f"{model.name}, {len(model.layout)} of {model.layout.heads.total} heads"
        if model.layout is not None and given.count(model.name) > 1
        else model.name
        for model in models
    ]
    turns = [heads[: place + 1].count(name) for place, name in enumerate(heads)]
    return [name if turn == 1 else f"{name} ({turn})" for name, turn in zip(heads, turns, strict=True)]
