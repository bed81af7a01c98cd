"""`evaluate`: what models are worth on a text, and how large they are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from headwise.data.speech import Speech
from headwise.decoding.bleu import corpus_scores, paired_difference
from headwise.decoding.translator import speeds, translate
from headwise.environment import environment_info
from headwise.errors import HeadwiseError, did_you_mean
from headwise.evaluation.answers import Measured, measure
from headwise.evaluation.losses import Losses
from headwise.evaluation.word_errors import transcription_seconds
from headwise.forecast import (
    Amount,
    Forecast,
    Part,
    forward_seconds,
    memory,
    model_line,
    text_line,
)
from headwise.importance.work import TRANSLATION
from headwise.model import Model
from headwise.options import Search
from headwise.progress import Report, part, shown
from headwise.qualities import ACCURACY, AGREEMENT, BLEU, PERPLEXITY
from headwise.result import Result
from headwise.tasks import AnyText

QUALITY_COLUMNS = ("model", "measure", "value", "low", "high", "made")
TIMED_SENTENCES = 100  # that decoding speed is measured on
TIMED_TOKENS = 16  # that every model writes for each of them
TIMED_ROUNDS = 3

ResultRow = tuple[Any, ...]


@dataclass(frozen=True)
class Quality(Result):
    """What models are worth.

    table: one row a model and measure, columns QUALITY_COLUMNS; `made` says how the number was made. signature: the
    text, the models, the search and the versions.
    """

    table: pd.DataFrame
    signature: dict[str, Any]

    FILES = ("quality.csv",)

    def __repr__(self) -> str:
        return (
            f"Quality({len(self.signature['models'])} models)\n{self.table.to_string(index=False)}"
        )

    def _repr_html_(self) -> str:
        html: str = self.table.round(4).to_html(index=False, na_rep="")
        return html

    def of(self, model: str, measure: str) -> float:
        """One value. Raises HeadwiseError for what is not in the table."""
        rows = self.table[(self.table.model == model) & (self.table.measure == measure)]
        if rows.empty:
            of_models = [f"{row.measure} of {row.model}" for row in self.table.itertuples()]
            asked = f"{measure} of {model}"
            raise HeadwiseError(
                f"There is no {asked} in this table{did_you_mean(asked, of_models)}; it has {', '.join(of_models)}."
            )
        return float(rows.value.iloc[0])

    def files(self) -> dict[str, str]:
        return {"quality.csv": self.table.to_csv(index=False, float_format="%.6g")}


def evaluate(
    models: Model | Sequence[Model],
    text: AnyText,
    *,
    search: Search | None = None,
    progress: Report | None = None,
) -> Quality:
    """What models are worth, a row for each and each measure.

    On parallel text BLEU and chrF of translation models with 95 % intervals, their paired BLEU difference to the first,
    and decoding speed with its range over a few rounds; on one-sided text their agreement with the first model's own
    translations, which is no quality. Of language models on one-sided text loss, perplexity and its change in % of the
    first model's; on labelled text loss, accuracy in % and its change in points; on recordings the
    word error rate in % and its change in points. Of models of embeddings, how similarities of sentences are ranked:
    as the first model ranks them, or as the scores of a table of pairs do. On all parameters, and bytes of the
    weights in memory and of the key/value cache per token. Models of one name are distinguished by how many heads
    they have left.

    search: how translations are searched for (`hw.Search(beam=4)`). progress: gets the share that is done, and of what;
    by default a bar. Raises HeadwiseError for text that does not fit, and for models that the engine cannot run.
    """
    several = [models] if isinstance(models, Model) else list(models)
    if not several or not all(isinstance(model, Model) for model in several):
        raise HeadwiseError(
            f"evaluate was given {str(models)[:100]!r}: give models that hw.load(…) made."
        )
    text = several[0].task.completed(text)
    for model in several:
        model.task.check(text)
    generates = several[0].task.generates
    if search is not None and not generates:
        raise HeadwiseError(
            f"evaluate was given a search, but {several[0].name} is {several[0].task.noun}, which writes no "
            "translations: leave it out."
        )
    names = distinct_names(several)
    search = search or Search()
    with shown("evaluate", progress) as report:
        if generates:
            rows = translation_rows(several, names, text, search, report)
        else:
            rows = measured_rows(several, names, text, report)
    table = pd.DataFrame(rows, columns=list(QUALITY_COLUMNS))
    signature: dict[str, Any] = {"models": names, "text": text.fingerprint}
    if generates:
        signature["search"] = search.model_dump()
    return Quality(
        table.astype({"value": float, "low": float, "high": float}),
        {**signature, **environment_info()},
    )


def evaluation_forecast(models: Sequence[Model], text: AnyText) -> Forecast:
    """What `evaluate` will take: for each model a forward over the text, its translation, or transcripts. Takes a few
    seconds itself. Raises HeadwiseError for text that does not fit."""
    reads = []
    done = []
    used = 0.0
    for name, model in zip(distinct_names(models), models, strict=True):
        batches = model.task.quality_batches(text)
        amount = Amount.of_batches(batches)
        if isinstance(text, Speech):
            recording, made = transcription_seconds(model, text)
            seconds = amount.examples * recording
        else:
            forward, made = forward_seconds(model, text)
            times = TRANSLATION if model.task.generates else 1.0
            seconds = times * amount.positions * forward
        reads.append(model_line(model))
        done.append(Part(name, seconds))
        used = max(used, memory(model, amount))
    reads.append(text_line(batches))
    if models[0].task.generates:
        made += f"; translating a text counts as {TRANSLATION:g} forwards over it"
    return Forecast(tuple(reads), tuple(done), used, made)


def translation_rows(
    models: Sequence[Model],
    names: Sequence[str],
    text: Any,
    search: Search,
    progress: Report,
) -> list[ResultRow]:
    """Rows for models that translate."""
    sources = list(text.sources)
    references = list(text.targets)
    translators = {}
    for name, model in zip(names, models, strict=True):
        model.task.check_generates()
        translators[name] = model.translator(search.engine)

    quality = AGREEMENT if text.made else BLEU
    rows: list[ResultRow] = []
    baseline: list[str] = []
    for done, (name, model) in enumerate(zip(names, models, strict=True)):
        share = part(progress, 0.8 * done / len(models), 0.8 * (done + 1) / len(models))
        lines, cost = translate(translators[name], sources, search, share)
        how = f"beam {search.beam}, length penalty {search.length_penalty:g}, {cost['engine']}"
        bleu, chrf = corpus_scores(lines, references)
        if text.made:
            how += f"; BLEU against what {names[0]} itself writes: whether models say the same, not how well"
            scores = {quality.measure: bleu}
        else:
            scores = {quality.measure: bleu, chrf.name: chrf}
        for measured, score in scores.items():
            made = f"{score.signature}, {how}"
            rows.append((name, measured, score.value, score.low, score.high, made))
        if baseline:
            change = paired_difference(lines, baseline, references)
            made = f"paired bootstrap against {names[0]}, p = {change.p:.4f}"
            rows.append((name, quality.change, change.value, change.low, change.high, made))
        else:
            baseline = lines
        rows += size_rows(name, model)

    few = sources[:TIMED_SENTENCES]
    made = (
        f"median of {TIMED_ROUNDS} rounds, the slowest and the fastest; "
        f"{len(few)} sentences of {TIMED_TOKENS} tokens each"
    )
    rates = speeds(translators, few, search, TIMED_TOKENS, TIMED_ROUNDS, part(progress, 0.8, 1.0))
    rows += [(name, "tokens_per_second", *rates[name], made) for name in names]
    return sorted(rows, key=lambda row: names.index(row[0]))


def size_rows(name: str, model: Model) -> list[ResultRow]:
    """The size of a model: its parameters, the bytes of its weights in memory, and those of its key/value cache."""
    cache = "bytes of the key/value cache per token, at most"
    return [
        (name, "parameters", model.parameters, None, None, ""),
        (name, "memory", model.weight_bytes, None, None, "bytes of the weights"),
        (name, "cache_bytes", model.cache_bytes, None, None, cache),
    ]


def measured_rows(
    models: Sequence[Model], names: Sequence[str], text: AnyText, progress: Report
) -> list[ResultRow]:
    """Rows for models that predict words of one-sided text, or the class of a text, for models of embeddings and of
    speech."""
    every: list[Any] = []
    read: list[Any] = []
    for done, model in enumerate(models):
        share = part(progress, done / len(models), (done + 1) / len(models))
        batches = model.task.quality_batches(text, share)
        read.append(batches.data.rows)
        every.append(measure(batches, []))
        if not np.array_equal(np.unique(read[-1]), np.unique(read[0])):
            raise HeadwiseError(
                f"{names[done]} reads other sentences of the text than {names[0]}, because texts that are too long for "
                "one of them are left out: shorten the text, or evaluate them apart."
            )
        losses = isinstance(every[0], Losses)
        if losses and not np.array_equal(every[-1].tokens, every[0].tokens):
            raise HeadwiseError(
                f"{names[done]} reads the text as other tokens than {names[0]}, so their perplexities do not compare: "
                "evaluate models with the same tokenizer."
            )
    together: Measured = every[0].beside(every[1:])
    rows: list[ResultRow] = []
    for column, (name, model) in enumerate(zip(names, models, strict=True)):
        rows += [(name, *row, how_made(together)) for row in together.rows(column, 0)]
        rows += size_rows(name, model)
    return rows


def how_made(measured: Measured) -> str:
    """How numbers and their intervals were made."""
    if measured.quality == PERPLEXITY:
        return f"bootstrap over {measured.made}"
    if measured.quality == ACCURACY:
        return (
            f"accuracy in % with Wilson's interval, changes by a paired bootstrap; {measured.made}"
        )
    return measured.made


def distinct_names(models: Sequence[Model]) -> list[str]:
    """A name for each model: its own; where several share it, with the heads that are left, and then with a number."""
    given = [model.name for model in models]
    names: list[str] = []
    for model in models:
        name = model.name
        if model.layout is not None and given.count(name) > 1:
            name = f"{name}, {len(model.layout)} of {model.layout.heads.total} heads"
        names.append(name)
    numbered = []
    for place, name in enumerate(names):
        repeat = names[: place + 1].count(name)
        numbered.append(name if repeat == 1 else f"{name} ({repeat})")
    return numbered
