"""`hw.score`: what every head is worth; and `Scores`, its result, in memory and as files of a folder."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from os import PathLike
from pathlib import Path
from typing import Any, overload

import numpy as np
import pandas as pd
import torch
from accelerate import PartialState

from headwise.core.errors import HeadwiseError, called_as, did_you_mean, made_as, shown_value
from headwise.core.folders import as_path
from headwise.core.grid import HeadGrid
from headwise.core.head_panels import HeadPanels
from headwise.core.heads import Head, HeadMap, Kind, describe
from headwise.core.options import SEED, Search, validated
from headwise.core.progress import OnProgress, parts, shown
from headwise.core.result import Result, top_rows
from headwise.core.statistics import rank_interval
from headwise.core.tables import (
    CURVES,
    FAITHFULNESS,
    LRP,
    SCORES,
    UNTRAINED_SCORES,
    read_scores,
    score_table,
)
from headwise.importance.faithfulness import (
    TRUTH,
    check_faithfulness,
    faithfulness,
    work_of_judge,
)
from headwise.importance.finished_passes import FinishedPasses
from headwise.importance.interactions import work_of_pairs
from headwise.importance.measurement import Measurement
from headwise.importance.measures import Measure, facts, measure, passes, resolve_measures
from headwise.importance.most_faithful import judge_lines
from headwise.importance.options import TimedScoring
from headwise.importance.passes import labelled, refuse_unscorable, run_passes, usual_measures
from headwise.importance.ranks import spearman, stability
from headwise.importance.score_panels import score_panels
from headwise.importance.untrained import score_untrained, with_baseline, work_of_controls
from headwise.importance.work import work_on
from headwise.models.environment import environment_info
from headwise.models.forecast import Forecast, model_line, text_line, text_seconds
from headwise.models.generators import check_seed
from headwise.models.known_text import warn_of_known_text
from headwise.models.loading import AnyModel, as_model
from headwise.models.model import Model
from headwise.models.tasks import AnyText, Given, OwnInputs
from headwise.models.tasks.batches import Batches
from headwise.models.tasks.own_batches import OwnBatches

DEVICE = "load the model on it, hw.load('my-model', 'cuda')"
MEASURES = "write hw.score(model, text, measures='gradient')"


@called_as(
    "hw.score(model, text, 'gradient')", {"method": MEASURES, "metrics": MEASURES, "device": DEVICE}
)
def score(
    model: AnyModel,
    text: AnyText | Given | OwnInputs,
    measures: Sequence[str | Measure] | str | Measure | None = None,
    *,
    judge: bool = False,
    untrained: int = 0,
    time: str | None = None,
    seed: int = SEED,
    progress: OnProgress | None = None,
) -> Scores:
    """What every head is worth, by one measure or several (docs/methods).

    model: what `hw.load` makes or takes, or a plain transformers model. text: parallel for translation models, or
    one-sided: they write the targets themselves, greedily; labelled for classifiers, one-sided for all others; a masked
    model predicts a seeded share of its tokens, but attention statistics see the whole text. Also the name of a file, a
    list of sentences or rows, a data set of `datasets`, or a table of pandas. Or a list of batches of the model's own
    keyword tensors with `labels`, of images, sound or text.
    measures: names of the table of measures, or its rows, a bare `lrp` or `ablation`, or `all`; by default confidence,
    gradient and ablation, of translation models also lrp, of language models attribution.zero; of a model that predicts
    nothing confidence, entropy and dormancy.
    time: such as `10m`, what ablations may take: they read a random sample of the sentences, until the ranks of the heads
    settle or the time is spent, and the signature says how many (`sampled`). Without it they read the whole text, but
    a language model takes USUAL_SECONDS where no measure is named and nothing is judged.
    judge: whether the scores are compared with exact ablation (`Scores.faithfulness`, `Scores.curves`).
    untrained: how many untrained controls (`untrained.py`) are scored, on 50 sentences (`Scores.controls`, and the
    column `baseline`: their mean over the heads of the layer).
    progress: gets the share that is done, and of what; by default a bar. Raises HeadwiseError for unknown measures, a
    text of the wrong kind, and models that compute no numbers.
    """
    if isinstance(measures, str | Measure):
        measures = [measures]
    named = None if measures is None else resolve_measures(measures)
    given = {"measures": named, "judge": judge, "untrained": untrained, "time": time}
    options = validated(TimedScoring, given, "score")
    return ScorePlan(as_model(model), text, options, seed=seed).run(progress)


DEFAULT = TimedScoring()
USUAL_SECONDS = 120.0  # for ablations of a language model where no measure is named
CONTROLS_PART = "untrained controls"
PASSES = "passes"
JUDGE = "judge"


class ScorePlan:
    """What `score` measures and reads, before it does: for its time, and for a command that goes on after it was killed.

    place: a folder that keeps finished passes until the score is written. Raises HeadwiseError for what cannot be
    scored, before any work.
    """

    def __init__(
        self,
        model: Model,
        text: AnyText | Given | OwnInputs,
        options: TimedScoring = DEFAULT,
        *,
        seed: int = SEED,
        place: Path | None = None,
    ) -> None:
        check_seed(seed)
        self.model = model
        self.batches = batches = model.task.batches(text)
        warn_of_known_text([model], batches.text)
        self.options = options
        self.seed = seed
        alone = PartialState().num_processes == 1
        if options.time is not None:
            if options.judge:
                raise HeadwiseError(
                    "The judge compares scores with ablation on the whole text: leave the time out."
                )
            # each process would stop at another sentence
            if not alone:
                raise HeadwiseError(
                    "Several processes share the text and read all of it: leave the time out, or run one process."
                )
            batches.time_limit = options.seconds
        elif model.task.samples_text and options.measures is None and not options.judge and alone:
            batches.time_limit = USUAL_SECONDS

        named = options.measures
        self.measures = names = [*(usual_measures(model, batches) if named is None else named)]
        if not names:
            raise HeadwiseError(
                "No measure was named: give some, such as ['gradient'], or leave them out for the usual ones."
            )
        # A model without a loss has no truth either, which a word on what is missing would not say.
        refuse_unscorable(model, [*names, TRUTH] if options.judge else names, batches)
        if options.judge:
            check_faithfulness(batches, names)
        self.finished = FinishedPasses(place, model, batches, seed) if place and alone else None
        # What a killed score has finished is not measured again.
        self.left = self.finished.left(names) if self.finished else names
        work = work_on(model.heads, batches)
        judged = work_of_judge(work, names, options.random_orders) if options.judge else {}
        self.work = {  # in forwards over the text
            CONTROLS_PART: work_of_controls(work, names, options.untrained),
            PASSES: work.of_measures(self.left),
            JUDGE: sum(judged.values()),
        }

    def forecast(self) -> Forecast:
        """What the score will take, and `interactions`. Takes a few seconds itself."""
        model, batches = self.model, self.batches
        reads = work_on(model.heads, batches)
        pairs = self.options.interactions
        work = {**self.work, "pairs of heads": work_of_pairs(reads, pairs) if pairs else 0.0}
        # Timed once; all else are counts of it.
        forward = text_seconds(model, batches)
        seconds = forward * sum(work.values())
        if batches.time_limit is not None:
            sampled = [name for name in self.left if measure[name].sampled]
            # samples end with their time
            seconds -= max(0.0, forward * reads.of_measures(sampled) - batches.time_limit)

        lines = [model_line(model), text_line(batches)]
        kept = [name for name in self.measures if name not in self.left]
        if kept:
            lines.append(f"Finished before: {', '.join(kept)}.")
        parts = []
        for label, of_pass in passes(self.left).items():
            parts.append(label if of_pass == [label] else f"{label} ({', '.join(of_pass)})")
        parts += [name for name, count in work.items() if count and name != PASSES]
        return Forecast(lines, parts, seconds)

    def run(self, progress: OnProgress | None = None) -> Scores:
        """The scores. progress: as of `score`."""
        model, batches, seed = self.model, self.batches, self.seed
        options = self.options
        with shown("score", progress) as on_progress:
            # The bar is divided by the work of each part.
            progress_of = parts(on_progress, self.work)
            # controls make batches of their own from what the user gave
            text = batches.text.given if isinstance(batches.text, OwnBatches) else batches.text
            controls = score_untrained(
                model,
                text,
                self.measures,
                options.untrained,
                seed,
                progress_of[CONTROLS_PART],
                batches.time_limit,
            )
            measurement = run_passes(
                model, batches, self.measures, seed, progress_of[PASSES], self.finished
            )
            scores = collect_scores(
                model,
                batches,
                self.measures,
                measurement,
                seed,
                controls if options.untrained else None,
            )
            if options.judge:
                judging = labelled(progress_of[JUDGE], JUDGE)
                agreement, curves = faithfulness(
                    model, batches, measurement.sums, options.random_orders, seed, judging
                )
                scores = replace(scores, faithfulness=agreement, curves=curves)
            on_progress(1.0, "done")
        return scores


SCORE_TABLES = {"controls": UNTRAINED_SCORES, "faithfulness": FAITHFULNESS, "curves": CURVES}


@made_as("hw.Scores.read('runs/score/my-model'), or hw.score(model, text)")
@dataclass(frozen=True, repr=False)
class Scores(Result):
    """What every head is worth, by one measure or several.

    table: one row per head and measure: kind, layer, head, measure, value, its 95 % interval (low, high), n (sentences or
    tokens it is a mean of), baseline (the mean of the layer in untrained controls), units (sentences or documents of one
    length that say as much as those of the interval), p. In bfloat16 (`dtype` in the signature) a value has the rounding
    of that model: ranks of ablation are those of float32 within the intervals. signature: how the table was made,
    what it left out and why, and the seconds of each pass. relevance: where the relevance of each rule went, as shares.
    faithfulness, curves: which score ranks heads as exact ablation does (docs/methods/judge.md). controls: the rows of
    untrained controls (docs/methods/controls.md). The last three are None where they were not asked for.
    """

    table: pd.DataFrame
    signature: dict[str, Any]
    relevance: dict[str, dict[str, float]] = field(default_factory=dict)
    faithfulness: pd.DataFrame | None = None
    curves: pd.DataFrame | None = None
    controls: pd.DataFrame | None = None

    FILES = (*SCORES.files, LRP.file, *(table.file for table in SCORE_TABLES.values()))
    TOP = ("head", "value", "low", "high", "n")
    CAPTION = "Heads in columns, layers in rows; 0 is the lowest value of a measure, 9 its highest:"

    @property
    def heads(self) -> HeadMap:
        """The heads of the model."""
        heads = self.signature["heads"]
        return HeadMap(heads["query"], heads["key_value"])

    @property
    def measures(self) -> list[str]:
        """The measures that have values."""
        return list(self.table["measure"].unique())

    def __getitem__(self, name: object) -> dict[Head, float]:
        """The value of every head by one measure, as `of`."""
        return self.of(name if isinstance(name, str) else str(name))

    def named(self, name: str | None) -> str:
        """A measure that has values, by default exact ablation where it was measured, else the first. Raises HeadwiseError
        for any other name."""
        if name is None:
            return TRUTH if TRUTH in self.measures else self.measures[0]
        if name not in self.measures:
            raise HeadwiseError(
                f"There are no scores by {shown_value(name)} here{did_you_mean(str(name), self.measures)}; there is "
                f"{', '.join(self.measures)}."
            )
        return name

    def of(self, name: str) -> dict[Head, float]:
        """The value of every head by one measure. Raises HeadwiseError for a measure that is not in the table."""
        rows = self.table[self.table["measure"] == self.named(name)]
        addresses = rows[["kind", "layer", "head"]].itertuples(index=False, name=None)
        return {
            Head(*address): float(value)
            for address, value in zip(addresses, rows["value"], strict=True)
        }

    @called_as("scores.top(10, 'gradient')", {"measure": "write scores.top(10, 'gradient')"})
    def top(self, count: int = 10, name: str | None = None) -> pd.DataFrame:
        """The heads with the highest values by one measure (default: see `named`): columns head (`cross/0/5`), value,
        low, high, n, the highest first. Raises HeadwiseError for a measure that is not in the table."""
        return top_rows(self.ranked(name), self.TOP, count)

    def ranked(self, name: str | None = None) -> pd.DataFrame:
        """The rows of one measure (default: see `named`), the highest value first."""
        name = self.named(name)
        rows = self.table[self.table["measure"] == name]
        return rows.sort_values("value", ascending=False, kind="stable", ignore_index=True)

    def matrix(self, kind: Kind, name: str | None = None) -> np.ndarray:
        """The values of one kind of heads by one measure (default: see `named`): layers x heads, NaN where a layer has
        fewer heads. Raises HeadwiseError for a measure that is not in the table, and a kind that the model lacks."""
        counts = self.heads.query.get(kind)
        if counts is None:
            raise HeadwiseError(
                f"The model has no {kind} heads: choose {', '.join(self.heads.kinds)}."
            )
        # layers of a pruned model differ in heads
        values = np.full((len(counts), max(counts)), np.nan)
        for head, value in self.of(self.named(name)).items():
            if head.kind == kind:
                values[head.layer, head.head] = value
        return values

    def agreement(self, other: Scores) -> pd.DataFrame:
        """How far scores of the same heads on another text, or by another seed, rank them alike: by measure of both, the
        rank correlation of all heads with its 95 % interval (`rank_interval`; Michel et al. 2019, section 3.4, find 0.56
        and 0.68 between domains). Columns measure, value, low, high, n. Raises HeadwiseError for other heads."""
        if not isinstance(other, Scores):
            raise HeadwiseError(f"Scores are compared with scores, not with {shown_value(other)}.")
        if self.heads.query != other.heads.query:
            raise HeadwiseError(
                f"The scores are of {describe(self.heads)} heads and of {describe(other.heads)}: compare scores of the same "
                "heads."
            )
        rows = []
        for name in self.measures:
            if name in other.measures:
                one, two = self.of(name), other.of(name)
                # A measure may lack heads in one of them.
                both = [head for head in one if head in two]
                value = float(
                    spearman(
                        np.array([[one[head] for head in both]]),
                        np.array([[two[head] for head in both]]),
                    )[0]
                )
                low, high = rank_interval(value, len(both))
                rows.append((name, value, low, high, len(both)))
        return pd.DataFrame(rows, columns=["measure", "value", "low", "high", "n"])

    @overload
    def plot(self, name: str | None = None) -> HeadGrid: ...

    @overload
    def plot(
        self,
        name: None = None,
        *,
        measures: Sequence[str] = (),
        sort: str = "",
        kind: Kind | None = None,
    ) -> HeadPanels: ...

    def plot(
        self,
        name: str | None = None,
        *,
        measures: Sequence[str] = (),
        sort: str = "",
        kind: Kind | None = None,
    ) -> HeadGrid | HeadPanels:
        """A picture of all heads, coloured by one measure (default: see `named`): notebooks and `rich.print` show it.

        With measures or sort, a panel for each of the measures, and in each layer the head of the highest `sort` first,
        by default the first measure: `scores.plot(sort="relevance", measures=["lrp", "confidence"])` is figure 1 of Voita
        et al. (2019), as `hw.figure` draws it with functions too. kind: of heads, by default the first. Raises
        HeadwiseError for a measure that is not in the table, and a kind that the model lacks."""
        if not measures and not sort:
            return HeadGrid.of_scores(self.heads, self.table, self.named(name))
        own = kind or self.heads.kinds[0]
        if own not in self.heads.kinds:
            raise HeadwiseError(
                f"The model has no {own} heads: choose {', '.join(self.heads.kinds)}."
            )
        return score_panels(self.table, own, measures or self.measures, sort)

    @property
    def summary(self) -> str:
        first = self.named(None)
        others = [name for name in self.measures if name != first]
        also = f"; also {', '.join(others)}" if others else ""
        return f"{self.heads.total} heads by {first}{also}"

    def grids(self) -> list[HeadGrid]:
        return [self.plot(name) for name in self.measures]

    def lines(self) -> list[str]:
        """What was found and left out, and the heads with the highest and the lowest values."""
        signature = self.signature
        lines = [f"  {signature['made']}."] if signature.get("made") else []
        lines += [relevance_line(name, shares) for name, shares in self.relevance.items()]
        if "wrong answer" in signature["objective"]:
            lines.append(f"  Scored by the {signature['objective']}, a prompt.")
        if self.heads.kinds == ("decoder-self",) and "confidence" in self.measures:
            lines.append(
                "  Heads of language models rest on the first token, which confidence leaves out: do not rank them by it."
            )
        if "dormancy" in self.measures and not {"gradient", TRUTH} & set(self.measures):
            lines.append(
                "  Dormancy is a share of a layer: it ranks the heads of one layer, not those of different layers."
            )
        if self.faithfulness is not None:
            lines += judge_lines(self.faithfulness)
        for name, sample in signature.get("sampled", {}).items():
            repeats = sample["repeats"]
            if repeats is None:
                agreement = "too few to say how well the ranks would agree with another sample"
            else:
                agreement = f"with another sample as large, ranks would agree to {repeats:.2f}"
            lines.append(
                f"  {name}: {sample['sentences']} of {sample['of']} sentences, {sample['ended']}; {agreement}."
            )
        languages = f", {signature['languages']}" if signature["languages"] else ""
        if signature["left_out"] or signature["windows"] or languages:
            windows = f", {signature['windows']}" if signature["windows"] else ""
            left_out = signature["left_out"] or "nothing"
            lines.append(
                f"  Read {signature['sentences']} sentences{windows}{languages}; left out: {left_out}."
            )
        if signature["numbering"]:
            lines.append(f"  {signature['numbering']}")
        lines += [f"  {reason}" for reason in signature["absent"]]
        return [*lines, *self.extremes()]

    def extremes(self) -> list[str]:
        """A line for each measure, with how far its order would repeat on another text as long."""
        repeats = self.signature.get("repeats", {})
        said = " (ranks repeat: how they correlate with another text as long)" if repeats else ""
        lines = [f"  The highest and the lowest heads{said}:"]
        for name in self.measures:
            ranked = self.top(len(self.table), name)
            shown = [f"{row.head} {row.value:.3g}" for row in ranked.itertuples()]
            best = ", ".join(shown[:3])
            # The last three, the lowest first.
            worst = ", ".join(shown[:-4:-1])
            again = f"; ranks repeat {repeats[name]:.2f}" if name in repeats else ""
            lines.append(f"    {name}: highest {best}; lowest {worst}{again}")
        return lines

    def files(self) -> dict[str, str]:
        contents = SCORES.contents(self.table, self.signature)
        for name, table in SCORE_TABLES.items():
            rows = getattr(self, name)
            if rows is not None:
                contents[table.file] = table.csv(rows)
        if self.relevance:
            contents[LRP.file] = LRP.csv(relevance_table(self.relevance))
        return contents

    @classmethod
    def read(cls, folder: str | PathLike[str], heads: HeadMap | None = None) -> Scores:
        """Scores that `save`, the command line or a study wrote into a folder. heads: of the model now.

        Raises HeadwiseError for files that are missing or damaged, and for scores of other heads than `heads`.
        """
        place = as_path(folder)
        table, signature = read_scores(place / SCORES.file, heads)
        others: dict[str, pd.DataFrame] = {}
        for name, other in SCORE_TABLES.items():
            if (place / other.file).is_file():
                others[name] = other.read(place / other.file)
        relevance: dict[str, dict[str, float]] = {}
        lrp = LRP.read_or_empty(place / LRP.file)[["measure", "mode", "what", "value"]]
        for rule, mode, what, value in lrp.itertuples(index=False, name=None):
            # the columns split what is one name elsewhere
            name = rule if mode == "per-step" else f"{rule}.{mode}"
            # always 1: the others are shares of it
            if what != "started":
                relevance.setdefault(name, {})[what] = float(value)
        return cls(table, signature, relevance, **others)


def collect_scores(
    model: Model,
    text: Batches,
    wanted: Iterable[str],
    measurement: Measurement,
    seed: int,
    controls: pd.DataFrame | None = None,
) -> Scores:
    """The scores that passes over a text gave. wanted: the measures that were asked for. controls: the rows of untrained
    controls. Raises HeadwiseError where no measure has a value."""
    rows = measurement.all_rows(seed)
    measures = list(dict.fromkeys(row["measure"] for row in rows))
    signature: dict[str, Any] = {
        "model": model.name,
        "heads": model.heads.to_json(),
        "text": text.text.fingerprint,
        "text_name": getattr(text.text, "name", ""),
        # What its answers are worth is then not in any score.
        "unmeasured": "" if model.task.measured else type(model.hf).__name__,
        "objective": text.objective,
        "sentences": text.sentences,
        "dropped": text.dropped,
        "left_out": text.left_out,
        "longest": model.task.longest,
        "windows": text.windowed,
        "made": text.made,
        "languages": text.languages,
        "numbering": model.discovery.numbering(),
        "measures": measures,
        "absent": missing_measures(model, resolve_measures(wanted), measures),
        "exclude": "keyquery",
        "mode": "evaluation (no dropout)",
        "dtype": str(model.hf.dtype).removeprefix("torch."),
    }
    if not rows:
        raise HeadwiseError(f"No score could be made: {'; '.join(signature['absent'])}.")
    # LRP divides by small sums, so it runs in float32 whatever the model has
    if model.hf.dtype in (torch.float16, torch.bfloat16):
        signature["relevance"] = "float32"
    if "ablation.bleu" in measures:
        signature["search"] = Search().model_dump()
    others = [name for name in measures if name in measure.added]
    if others:  # so that a report knows them without the program that declares them
        said = ("title", "caption", "source", "larger")
        signature["declared"] = declared = {}
        for name in others:
            declared[name] = {fact: getattr(measure[name], fact) for fact in said}
    if measurement.samples:
        signature["sampled"] = measurement.samples
    signature["repeats"] = repeats_of(measurement, seed)
    signature |= {"seed": seed, **environment_info(), "seconds": measurement.seconds}
    table = score_table(rows)
    if controls is not None:
        table = with_baseline(table, controls)
    return Scores(table, signature, measurement.balances, controls=controls)


def repeats_of(measurement: Measurement, seed: int) -> dict[str, float]:
    """By measure, the rank correlation of its heads with those of another text as long (`stability`)."""
    repeats = {}
    for name, sums in measurement.sums.items():
        if facts(name).by_sentence:
            agreement = stability(sums, seed)
            # JSON has no NaN
            if not math.isnan(agreement):
                repeats[name] = round(agreement, 3)
    return repeats


def missing_measures(model: Model, wanted: Iterable[str], made: Iterable[str]) -> list[str]:
    """What was asked for and has no value, with the reason: a sentence each."""
    name = "attention-to-end"
    if name in wanted and name not in made:
        return [f"{name} has no value for any head: none sees the end of a sentence in this text"]
    if name in made and "decoder-self" in model.heads.kinds:
        return [
            f"{name} has no value for decoder-self heads: none sees the end of its own sentence"
        ]
    return []


def relevance_table(relevance: Mapping[str, Mapping[str, float]]) -> pd.DataFrame:
    """lrp.csv: where relevance went, as shares of the relevance at the start."""
    rows = []
    for name, shares in relevance.items():
        mode = "pooled" if name.endswith(".pooled") else "per-step"
        for what, value in {"started": 1.0, **shares}.items():
            rows.append((name.removesuffix(".pooled"), mode, what, value, None, None))
    return pd.DataFrame(rows, columns=[*LRP.columns])


def relevance_line(name: str, shares: Mapping[str, float]) -> str:
    """Where the relevance of a rule went, in a line, and where it started, if not at all predicted positions."""
    some = {
        what: value
        for what, value in shares.items()
        if what not in ("arrived", "positions") and abs(value) >= 0.0005
    }
    absorbed = ", ".join(f"{what} {value:+.3f}" for what, value in some.items()) or "nothing"
    line = f"  {name}: of the relevance, {shares.get('arrived', 0.0):.3f} arrived at the embeddings; the rest: {absorbed}"
    if any(abs(value) > 1 for value in some.values()):
        line += " (terms of both signs, which cancel each other)"
    if "positions" in shares:
        line += f"; started at {100 * shares['positions']:.0f} % of the positions, spread over each long sentence"
    return line
