"""`score` and `evaluate`: what every head is worth, and what models are worth."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from headwise.data.text import ParallelText
from headwise.decoding.bleu import difference, quality
from headwise.decoding.translator import speeds, translate
from headwise.engines.ct2_writer import writer_of
from headwise.errors import HeadwiseError
from headwise.importance.measures import resolve_measures
from headwise.importance.scoring import (
    RANDOM_ORDERS,
    judge,
    refuse_unjudgeable,
    score_all,
    table_of_scores,
    usual_measures,
)
from headwise.importance.untrained import score_untrained, with_baseline
from headwise.model import Model
from headwise.options import Search, checked
from headwise.progress import Report, part, shown
from headwise.pruning.ranking import Losses
from headwise.tasks.batches import AnyText, Batches, Brought, translator

SENTENCES, TOKENS, ROUNDS = 100, 16, 3  # that decoding speed is measured on


def score(
    model: Model,
    text: AnyText | Brought,
    measures: Sequence[str] | None = None,
    seed: int = 0,
    judged: bool = False,
    progress: Report | None = None,
    untrained: int = 0,
) -> pd.DataFrame:
    """Scores of every head: a tidy table, one row a head and measure (docs/methods).

    text: parallel for translation models, labelled for classifiers, one-sided for all others; a masked model predicts a
    seeded share of its tokens, but readings see the whole text. Or a list of batches of the model's own keyword tensors
    with `labels`, of images, sound or text. measures: names from `api.scoring.MEASURES`, a bare `lrp` or `ablation`, or
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
    batches = Batches(model, text)
    measures = usual_measures(model, batches) if measures is None else measures
    if judged:
        refuse_unjudgeable(batches, resolve_measures(measures))
    with shown("score", progress) as report:
        controls = score_untrained(
            model, text, measures, untrained, seed, part(report, 0.0, 0.2 if untrained else 0.0)
        )
        share = part(report, 0.2 if untrained else 0.0, 0.8 if judged else 1.0)
        scores = score_all(model, batches, measures, seed, share)
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


def evaluate(
    models: Model | Sequence[Model],
    text: AnyText,
    progress: Report | None = None,
    *,
    beam: int = 5,
    length_penalty: float = 1.0,
    batch: int = 25,
    engine: str = "transformers",
) -> pd.DataFrame:
    """What models are worth, a row for each and each measure: model, measure, value, low, high, made.

    On parallel text BLEU and chrF of translation models with 95 % intervals, their paired BLEU difference to the first,
    and decoding speed with its range over a few rounds. On one-sided text loss, perplexity and its change in % of the
    first model's; on labelled text loss, accuracy in % and its change in points. On all parameters, and bytes of the
    weights in memory and of the key/value cache per token. Models of one name are distinguished by how many heads they
    have left. progress: gets the share that is done, and of what; by default a bar. beam, length_penalty, batch
    (sentences decoded at once), engine (`transformers`, or `ct2` for CTranslate2): how translations are searched for.
    Raises HeadwiseError for text that does not fit, and for models that the engine cannot run.
    """
    several = [models] if isinstance(models, Model) else list(models)
    if not several or not all(isinstance(model, Model) for model in several):
        raise HeadwiseError(
            f"evaluate was given {str(models)[:100]!r}: give models that hw.load(…) made."
        )
    names = distinct_names(several)
    search = {"beam": beam, "length_penalty": length_penalty, "batch": batch, "engine": engine}
    how = checked(Search, search, "evaluate")
    if how.engine != "transformers" and not isinstance(text, ParallelText):
        raise HeadwiseError(
            f"evaluate: the engine {how.engine} translates, but the text is one-sided: leave it out."
        )
    with shown("evaluate", progress) as report:
        if isinstance(text, ParallelText):
            rows = translations(several, names, text, how, report)
        else:
            rows = losses(several, names, text, report)
    return pd.DataFrame(rows, columns=["model", "measure", "value", "low", "high", "made"]).astype(
        {"value": float, "low": float, "high": float}
    )


def translations(
    models: Sequence[Model],
    names: Sequence[str],
    text: ParallelText,
    search: Search,
    progress: Report,
) -> list[tuple[Any, ...]]:
    """Rows of `evaluate` for models that translate."""
    references, rows, baseline = list(text.targets), list[tuple[Any, ...]](), list[str]()
    writers = {
        name: writer_of(translator(model), search.engine)
        for name, model in zip(names, models, strict=True)
    }
    for done, (name, model) in enumerate(zip(names, models, strict=True)):
        share = part(progress, 0.8 * done / len(models), 0.8 * (done + 1) / len(models))
        lines, cost = translate(writers[name], list(text.sources), search, share)
        for found in quality(lines, references):
            made = f"{found.signature}, beam {search.beam}, length penalty {search.length_penalty:g}, {cost['engine']}"
            rows.append((name, found.name, found.value, found.low, found.high, made))
        if baseline:
            change = difference(lines, baseline, references)
            made = f"paired bootstrap against {names[0]}, p = {change.p:.4f}"
            rows.append((name, "bleu_difference", change.value, change.low, change.high, made))
        rows += size_rows(name, model)
        baseline = baseline or lines
    few, rest = list(text.sources)[:SENTENCES], part(progress, 0.8, 1.0)
    made = f"median of {ROUNDS} rounds, the slowest and the fastest; {len(few)} sentences of {TOKENS} tokens each"
    rates = speeds(writers, few, search, TOKENS, ROUNDS, rest)
    rows += [(name, "tokens_per_second", *rates[name], made) for name in names]
    return sorted(rows, key=lambda row: names.index(row[0]))


def size_rows(name: str, model: Model) -> list[tuple[Any, ...]]:
    """The size of a model: its parameters, the bytes of its weights in memory, and those of its key/value cache."""
    return [
        (name, "parameters", model.parameters, None, None, ""),
        (name, "memory", model.weight_bytes, None, None, "bytes of the weights"),
        (
            name,
            "cache_bytes",
            model.cache_bytes,
            None,
            None,
            "bytes of the key/value cache per token",
        ),
    ]


def losses(
    models: Sequence[Model], names: Sequence[str], text: AnyText, progress: Report
) -> list[tuple[Any, ...]]:
    """Rows of `evaluate` for models that predict words of one-sided text, or the class of a text."""
    found: list[Losses] = []
    for done, model in enumerate(models):
        share = part(progress, done / len(models), (done + 1) / len(models))
        found.append(Losses.measure(Batches(model, text, share), []))
        if not np.array_equal(found[-1].tokens, found[0].tokens):
            raise HeadwiseError(
                f"{names[done]} reads the text as other tokens than {names[0]}, so their perplexities do not compare: "
                "evaluate models with the same tokenizer."
            )
    all_of = found[0].beside(found[1:])
    made = f"bootstrap over {len(all_of.tokens)} sentences, {int(all_of.tokens.sum())} predicted tokens"
    if all_of.right is not None:
        made = f"{len(all_of.tokens)} texts; accuracy in % with Wilson's interval, changes by a paired bootstrap"
    return [
        (name, *row)
        for place, (name, model) in enumerate(zip(names, models, strict=True))
        for row in (
            *((*row, made) for row in all_of.rows(place, 0)),
            *(row[1:] for row in size_rows(name, model)),
        )
    ]


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
    return [
        name if turn == 1 else f"{name} ({turn})" for name, turn in zip(heads, turns, strict=True)
    ]
