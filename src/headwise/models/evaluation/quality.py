"""`evaluate`: what models are worth on a text, and how large they are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass, replace
from os import PathLike
from typing import Any, Self

import numpy as np
import pandas as pd

from headwise.core.answers import Answers
from headwise.core.errors import HeadwiseError, called_as, did_you_mean
from headwise.core.options import Search, refuse_other_options
from headwise.core.progress import OnProgress, part, shown, turn
from headwise.core.qualities import NUMBER_COLUMNS, Number, said_itself
from headwise.core.result import TableResult
from headwise.core.tables import QUALITY
from headwise.data.text import ParallelText
from headwise.models.decoding.translator import longest_first, speeds, token_ids
from headwise.models.environment import environment_info
from headwise.models.forecast import Forecast, best, model_line, text_line, text_seconds
from headwise.models.known_text import warn_of_known_text
from headwise.models.loading import AnyModel, as_model
from headwise.models.model import Model
from headwise.models.tasks import AnyText, Given

TIMED_SENTENCES = 100  # that decoding speed is measured on
TIMED_TOKENS = 16  # that every model writes for each of them
TIMED_ROUNDS = 3
ANSWERING = 0.8  # share of the progress that is followed by timing
TIMED_STEPS = 8  # of a batch, for a forecast

SEARCH = "write hw.evaluate(model, text, search=hw.Search(beam=4))"

ResultRow = tuple[Any, ...]


@dataclass(frozen=True, repr=False)
class Quality(TableResult):
    """What models are worth.

    table: one row per model and measure, columns of QUALITY. A number with a `reference` is the change from that
    model, of perplexity in %; `made` says how numbers were made. signature: the text, `left_out` (what of it no model
    read, in words), the models, the search and the versions.
    """

    TABLE = QUALITY
    TOP = ("model", "measure", "reference", "value", "low", "high")

    @property
    def summary(self) -> str:
        models = self.signature["models"]
        return "1 model" if len(models) == 1 else f"{len(models)} models"

    def notes(self) -> list[str]:
        """What of the text was not read, and what is doubtful about the first model."""
        left_out = self.signature.get("left_out")
        notes = [f"Left out of the text: {left_out}."] if left_out else []
        return [*notes, *self.signature.get("doubts", [])]

    def __repr__(self) -> str:
        """The best rows, and below them what readers should know: few who print it ask for `notes`."""
        return "\n".join([super().__repr__(), *self.notes()])

    def ranked(self) -> pd.DataFrame:
        """The first measure of all models, then the second: models are compared by rows below each other."""
        order = {measure: place for place, measure in enumerate(self.table["measure"].unique())}
        return self.table.sort_values("measure", key=lambda names: names.map(order), kind="stable")

    @classmethod
    def read(cls, folder: str | PathLike[str]) -> Self:
        """Qualities that `save` or the command line wrote into a folder. Raises HeadwiseError for files that are missing
        or damaged."""
        found = super().read(folder)
        words = ["reference", "made"]  # empty where there is none
        table = found.table.astype(dict.fromkeys(words, object)).fillna(dict.fromkeys(words, ""))
        return replace(found, table=table)

    @called_as("quality.of('my-model', 'perplexity')")
    def of(self, model: str, measure: str, reference: str = "") -> float:
        """One value, or its change from a reference. Raises HeadwiseError for what is not in the table."""
        values = {}
        rows = self.table[["measure", "model", "reference", "value"]]
        for *words, value in rows.itertuples(index=False, name=None):
            values[value_in_words(*words)] = float(value)
        asked = value_in_words(measure, model, reference)
        if asked not in values:
            raise HeadwiseError(
                f"There is no {asked} in this table{did_you_mean(asked, values)}; it has {', '.join(values)}."
            )
        return values[asked]


def value_in_words(measure: str, model: str, reference: str) -> str:
    """A value in words."""
    return f"{measure} of {model}" + (f", changed from {reference}" if reference else "")


@called_as("hw.evaluate([model, smaller], text)", dict.fromkeys(Search.model_fields, SEARCH))
def evaluate(
    models: AnyModel | Sequence[AnyModel],
    text: AnyText | Given,
    *,
    search: Search | None = None,
    progress: OnProgress | None = None,
) -> Quality:
    """What models are worth, a row for each and each measure.

    Translation models have BLEU and chrF on parallel text, and decoding speed with its range over a few rounds; on
    one-sided text their agreement with the first model's own translations, which is no quality. Language models have
    perplexity and loss, classifiers accuracy in % and loss, models that hear the word error rate in %. Models of
    embeddings are measured by how they rank similarities of sentences: as the first model ranks them, with the share of
    sentences that keep their nearest neighbour, or as the scores of a table of pairs do. All have 95 % intervals, and
    the paired change of the first of these from the first model, for perplexity in %, else in points; and the number of
    parameters, and the bytes of the weights in memory and of the key/value cache per token. Models of one name are
    distinguished by how many heads they have left.

    text: or its file, or a list of sentences or pairs. search: how translations are searched for
    (`hw.Search(beam=4)`). progress: gets the share that is done, and of what;
    by default a bar. Raises HeadwiseError for text that does not fit, and for models that the engine cannot run.
    """
    listed = models if isinstance(models, list | tuple) else [models]
    several = [as_model(model) for model in listed]
    if not several:
        raise HeadwiseError("evaluate was given no model: give one or several.")
    refuse_other_tasks(several)
    first = several[0]
    read: AnyText = first.task.completed(text)
    # all models before any work
    for model in several:
        model.task.check(read)
    warn_of_known_text(several, read)
    names = distinct_names(several)
    if search is not None:
        refuse_other_options(search, Search, "evaluate: search", "beam=4")
    with shown("evaluate", progress) as on_progress:
        searched = search_of(first, search, read)
        answering = on_progress if searched is None else part(on_progress, 0.0, ANSWERING)
        rows = measured_rows(several, names, read, searched, answering)
        if searched is not None:
            rows += speed_rows(several, names, read, searched, part(on_progress, ANSWERING, 1.0))
            # stable: speeds come behind the qualities of their model
            rows.sort(key=lambda row: names.index(row[0]))
    table = QUALITY.of(rows)
    signature: dict[str, Any] = {
        "models": names,
        "text": read.fingerprint,
        "left_out": first.task.quality_batches(read, search=searched).left_out,
    }
    if searched is not None:
        signature["search"] = searched.model_dump()
    _, _, _, *number, _ = rows[0]
    if doubts := first.task.doubts_about(read, Number(*number)):
        signature["doubts"] = doubts
    return Quality(
        table.astype(dict.fromkeys(NUMBER_COLUMNS, float)),
        {**signature, **environment_info()},
    )


def search_of(model: Model, search: Search | None, text: Any) -> Search | None:
    """How a model's translations are searched for: as it is given, else as the translations were that it is compared with,
    greedily where a model wrote these; None where it writes none."""
    if search is not None or not model.task.generates:
        return search
    return Search(beam=1) if getattr(text, "made", "") else Search()


def refuse_other_tasks(models: Sequence[Model]) -> None:
    """Raise HeadwiseError for models of several tasks, which have no quality in common."""
    first = models[0]
    for model in models:
        if model.task.output != first.task.output:
            raise HeadwiseError(
                f"{first.name} is {first.task.noun} and {model.name} is {model.task.noun}, which have no quality in "
                "common: evaluate each with models of its sort."
            )


def evaluation_forecast(
    models: Sequence[Model], text: AnyText, search: Search | None = None
) -> Forecast:
    """What `evaluate` will take; takes a few seconds itself. Raises HeadwiseError for text that does not fit."""
    reads = []
    seconds = 0.0
    for model in models:
        searched = search_of(model, search, text)
        batches = model.task.quality_batches(text, search=searched)
        if searched is not None:
            # The batches whose speed is measured at the end, rounded up.
            few = -(-min(TIMED_SENTENCES, len(text)) // searched.batch)
            further = few * TIMED_TOKENS * TIMED_ROUNDS
            seconds += translation_seconds(model, text, searched, further)
        else:
            seconds += model.task.answer_forwards * text_seconds(model, batches)
        reads.append(model_line(model))
    reads.append(text_line(batches))
    return Forecast(reads, distinct_names(models), seconds)


def translation_seconds(model: Model, text: Any, search: Search, further: int = 0) -> float:
    """About how many seconds translations of a text take, and so many further steps of a batch. A few steps are timed; a
    batch takes about as many as its longest source has tokens."""
    model.task.check_quality()
    translator = model.translator(search.engine)
    ids, _ = token_ids(translator, list(text.sources))
    batches = longest_first(ids, search.batch)
    if not batches:
        return 0.0
    # The batch in the middle: they are sorted by length, so it stands for all.
    rows = [ids[place] for place in batches[len(batches) // 2]]
    timed = best(lambda: translator.write(rows, search, TIMED_STEPS, True), model.hf.device.type)
    steps = further + sum(len(ids[batch[0]]) for batch in batches)
    return timed / TIMED_STEPS * steps


def speed_rows(
    models: Sequence[Model],
    names: Sequence[str],
    text: AnyText,
    search: Search,
    progress: OnProgress,
) -> list[ResultRow]:
    """How fast models decode the first sentences of a text, a row for each."""
    assert isinstance(text, ParallelText)
    few = list(text.sources)[:TIMED_SENTENCES]
    made = (
        f"median of {TIMED_ROUNDS} rounds, the slowest and the fastest; "
        f"{len(few)} sentences of {TIMED_TOKENS} tokens each"
    )
    translators = {}
    for name, model in zip(names, models, strict=True):
        translators[name] = model.translator(search.engine)
    rates = speeds(translators, few, search, TIMED_TOKENS, TIMED_ROUNDS, progress)
    return [
        quality_row(name, "tokens_per_second", Number(*rates[name]), made=made) for name in names
    ]


def quality_row(
    model: str, measure: str, number: Number, reference: str = "", made: str = ""
) -> ResultRow:
    return model, measure, reference, *astuple(number), made


def quality_rows(
    models: Sequence[Model], names: Sequence[str], answers: Answers
) -> list[ResultRow]:
    """What models are worth, how that changed from the first, and their size."""
    rows = []
    for place, (model, name) in enumerate(zip(models, names, strict=True)):
        for quality, made in answers.made.items():
            number = answers.by(quality).number(place)
            if not place:
                number = said_itself(number, quality)
            rows.append(quality_row(name, quality.name, number, made=made))
        if place:
            change = answers.change(place)
            made = answers.made[answers.quality]
            rows.append(quality_row(name, answers.quality.name, change, names[0], made))
        sizes = [
            ("parameters", model.parameters, ""),
            ("memory", model.weight_bytes, "bytes of the weights"),
            ("cache_bytes", model.cache_bytes, "bytes of the key/value cache per token, at most"),
        ]
        rows += [quality_row(name, size, Number(value), made=made) for size, value, made in sizes]
    return rows


def measured_rows(
    models: Sequence[Model],
    names: Sequence[str],
    text: AnyText,
    search: Search | None,
    progress: OnProgress,
) -> list[ResultRow]:
    """What models answer on a text, in rows."""
    every: list[Answers] = []
    read: list[Any] = []
    for done, model in enumerate(models):
        share = turn(progress, done, len(models))
        batches = model.task.quality_batches(text, share, search)
        read.append(batches.data.rows)
        every.append(model.task.answers(batches))
        # paired intervals need the same sentences in the same order
        if not np.array_equal(np.unique(read[-1]), np.unique(read[0])):
            raise HeadwiseError(
                f"{names[done]} reads other sentences of the text than {names[0]}, because texts that are too long for "
                "one of them are left out: shorten the text, or evaluate them apart."
            )
        # perplexity is per token, so other tokens are another unit
        if not np.array_equal(every[-1].weights, every[0].weights):
            raise HeadwiseError(
                f"{names[done]} reads the text as other tokens than {names[0]}, so their {every[0].quality.title} "
                "cannot be compared: evaluate models with the same tokenizer."
            )
    return quality_rows(models, names, every[0].beside(*every[1:]))


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
