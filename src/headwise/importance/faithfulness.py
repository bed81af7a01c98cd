"""The faithfulness of scores: which score should you believe on this model?

`faithfulness` scores one half of a text and judges on the other half. `agreement`: does a score rank heads as exact
ablation of single heads does? `curves.py`: how does the model degrade when heads are removed in the order of a score?
`likeness`: how far do two scores rank heads alike?

High values mean important; a measure whose low values do has a minus before its name (`-entropy`), and its sign is
changed before use.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import pandas as pd
from scipy.stats import kendalltau

from headwise.core.errors import HeadwiseError
from headwise.core.heads import KINDS, Head, HeadMap, Kind, Row
from headwise.core.layout import HeadMask
from headwise.core.progress import OnProgress, parts, silent, turn
from headwise.core.statistics import bootstrap, centred_interval, effective_units
from headwise.core.tables import CURVES, FAITHFULNESS
from headwise.importance.curves import (
    CURVE_STEPS,
    Rescore,
    area_rows,
    curve_rows,
    curve_steps,
    direction,
    judged_row,
    removal_curves,
)
from headwise.importance.measures import Measure, facts, measure
from headwise.importance.passes import importance_values
from headwise.importance.ranks import cosine, for_whole_text, halves, spearman
from headwise.importance.work import Workload, work_on
from headwise.models.evaluation.sums import MERGED_SENTENCES, SentenceSums, head_values
from headwise.models.evaluation.without_heads import removal_losses
from headwise.models.model import Model
from headwise.models.tasks.batches import Batches, Fold

TRUTH = "ablation.zero"  # that scores are compared with

TOP_SHARES = {"precision@10%": 0.1, "precision@25%": 0.25, "precision@50%": 0.5}
MANY_HEADS = 128  # from this number of heads on, sorting is faster than comparing pairs
PAIRS_AT_ONCE = 2**20  # pairs of heads compared together

CURVES_PART = "curves"

Correlate = Callable[[np.ndarray, np.ndarray], np.ndarray]


def check_faithfulness(text: Batches, measures: Iterable[str]) -> None:
    """Raise HeadwiseError without exact ablation among the measures, and for a text too long to keep every sentence."""
    if TRUTH not in measures:
        raise HeadwiseError(
            f"Scores are judged by {TRUTH}, which is not among the measures: add it."
        )
    size = max(len(text.text), len(text.data))
    if size > MERGED_SENTENCES:
        raise HeadwiseError(
            f"Scores were to be judged on {size:,} sentences, but {MERGED_SENTENCES:,} are the most: give fewer."
        )


def faithfulness(
    model: Model,
    text: Batches,
    collected: Mapping[str, SentenceSums],
    orders: int,
    seed: int = 0,
    progress: OnProgress = silent,
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Scores of the even sentences, compared with exact ablation of the odd ones: faithfulness.csv (columns
    FAITHFULNESS) and curves.csv (columns CURVES).

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
    # the truth of other sentences: ablation on the same ones would share their noise
    rows = agreement(scores, collected[TRUTH].fold(1), seed)

    values = {
        name: head_values(sums)
        for name, sums in scores.items()
        # a curve removes any head, so it needs a score for all of them
        if sums.heads.query == model.heads.query
    }
    shown_as = {entries[name].name: name for name in values}
    progress_of = parts(progress, work_of_judge(work_on(model.heads, text), shown_as, orders))
    odd = Fold(text, 1, progress_of.pop(CURVES_PART))
    rescore: dict[str, Rescore] = {}
    for name, on_progress in progress_of.items():
        rescore[shown_as[name]] = rescoring(model, text, name, on_progress)
    lose = partial(removal_losses, model.hf, model.discovery, odd)
    curves = removal_curves(model.heads, values, lose, rescore, range(orders))
    rows += area_rows(curves, seed)

    if "confidence" in values:
        for name in values:
            if name in measure and entries[name].family == "lrp":
                rows += likeness(values[name], values["confidence"], (name, "confidence"))
    return (
        FAITHFULNESS.of(rows),
        CURVES.of(curve_rows(curves, seed)),
    )


def rescoring(model: Model, text: Batches, name: str, progress: OnProgress) -> Rescore:
    """A measure on the even sentences when only the heads of a mask are left. progress: gets the share of the steps of
    a curve."""
    done = 0

    def rescore(mask: HeadMask) -> Mapping[Head, float]:
        nonlocal done
        share = turn(progress, done, CURVE_STEPS)
        # the half that made the first order; the curve is measured on the other
        even = Fold(text, 0, lambda share_read, what: share(share_read, f"{name} again: {what}"))
        done += 1
        return importance_values(model, even, name, mask)

    return rescore


def work_of_judge(work: Workload, measures: Iterable[str], orders: int) -> dict[str, float]:
    """What the comparison reads, in forwards over the text: by measure, in each step of its curve the measure again, the
    slowest first; then CURVES_PART, the curves of all measures and orders. All on half of the text."""
    names = list(measures)
    reads = {}
    for name in names:
        if facts(name).rescored:
            reads[name] = CURVE_STEPS * work.of_measures([name]) / 2
    curves = len(names) + orders + len(reads)
    slowest_first = dict(sorted(reads.items(), key=lambda item: -item[1]))
    return {**slowest_first, CURVES_PART: len(curve_steps(work.heads.total)) * curves / 2}


def agreement(
    scores: Mapping[str, SentenceSums],
    truth: SentenceSums,
    seed: int = 0,
) -> list[Row]:
    """How far each score ranks the heads as the truth does: rows of FAITHFULNESS, by kind and over all kinds.

    `spearman`, `kendall` (tau-b) over all heads; `spearman.within`, `kendall.within`: the mean over layers of the
    correlation inside the layer; `precision@10%` (`25%`, `50%`): the share of the truth's top tenth of heads that is in
    the score's top tenth. `stability`: Spearman between a score and itself on another text of the same length (two
    halves of its sentences, SPLITS times, corrected by Spearman and Brown's 2r / (1 + r)); `stability.half`: not
    corrected; `ceiling`, `ceiling.half`, `.within`: the same for the truth. n: heads.

    Intervals: bootstrap over the sentences of the truth and, independently, of the score (`as_noisy_as_the_text`). Noise
    lowers rank correlations, so the interval is moved until its median is the value.
    """
    true = _measured(TRUTH, truth, truth.heads, seed)
    rows: list[Row] = []
    for kinds, scope in _scopes(list(truth.heads)).items():
        rows += _repeated(TRUTH, kinds, true, scope, "ceiling")
    for scored, sums in scores.items():
        shared = truth.heads.only(kind for kind in truth.heads.kinds if kind in sums.heads.kinds)
        # drawn apart from the truth: they are of different sentences
        score = _measured(scored, sums, shared, seed + 1)

        # the truth of the heads that have the score, too
        is_shared = np.array([head.kind in shared.kinds for head in truth.heads], dtype=bool)
        true_whole = true.whole[is_shared]
        true_resamples = true.resamples[:, is_shared]

        for kinds, scope in _scopes(list(shared)).items():
            values = _statistics(scope, score.whole[None], true_whole[None])
            resampled = _statistics(scope, score.resamples, true_resamples)
            units = min(score.units, true.units)
            for name, of_whole in values.items():
                value = float(of_whole[0])
                # the smallest possible value: a share, or a correlation
                least = 0 if name in TOP_SHARES else -1
                low, high = centred_interval(value, resampled[name], units, least)
                rows.append(
                    judged_row(scored, TRUTH, kinds, name, value, low, high, len(scope.heads))
                )
            rows += _repeated(scored, kinds, score, scope, "stability")
    return rows


@dataclass(frozen=True)
class _Measured:
    """Values of heads: on the whole text (heads), on random halves and the other halves, and on resamples (… x heads).

    units: how many sentences of one length say as much as those of the text, in the layer where they are fewest.
    """

    whole: np.ndarray
    halves: tuple[np.ndarray, np.ndarray]
    resamples: np.ndarray
    units: float


def _measured(measure: str, sums: SentenceSums, heads: HeadMap, seed: int) -> _Measured:
    """High values mean important. Halves and resamples of a single sentence are not numbers."""
    values = []
    resamples = []
    units = []
    for site in heads.sites:
        count = heads.count(site)
        if not count:
            continue
        scored = sums.heads.count(site) if site in sums.heads.sites else "none"
        if scored != count:
            raise HeadwiseError(
                f"{measure} is judged on {count} heads of {site}, but has {scored}: score all of them."
            )
        totals, counts = sums.sentences(site, measure)
        whole = sums.scaled(totals.sum(0) / counts.sum())
        values.append(whole)

        units.append(float(effective_units(counts)))
        drawn = bootstrap(totals, counts, seed)
        resamples.append(as_noisy_as_the_text(whole, sums.scaled(drawn)))

    sign = direction(measure)
    return _Measured(
        whole=sign * np.concatenate(values),
        halves=halves(sums, heads, seed),  # compared only with each other: no sign
        resamples=sign * np.concatenate(resamples, axis=1),
        units=min(units),
    )


def as_noisy_as_the_text(whole: np.ndarray, drawn: np.ndarray) -> np.ndarray:
    """Resamples of the heads of a layer, whose ranks change as much as between two texts: resamples x heads, heads in.

    The values of a text have its noise, and resampling adds as much again. So heads without a difference look different,
    keep their ranks in resamples, and intervals of rank correlations are too narrow (Hall and Miller 2009). Here the
    differences between heads are shrunk first, d → d √(1 − v / V), V their variance, v that of the noise, so that with
    the noise of a resample they have the variance of the text (as in the shrunken bootstrap of Silverman and Young 1987).
    """
    differences = whole - whole.mean()
    moved = drawn - whole
    noise = (moved - moved.mean(1, keepdims=True)).var(0).mean()
    variance = differences.var()
    kept = (1 - noise / variance) ** 0.5 if noise < variance else 0.0
    widened: np.ndarray = drawn - (1 - kept) * differences
    return widened


@dataclass(frozen=True)
class _Scope:
    """The indices of some heads, together and by layer (without layers of one head)."""

    heads: np.ndarray
    layers: list[np.ndarray]


def _scopes(heads: Sequence[Head]) -> dict[str, _Scope]:
    """Every kind by its name, and all of several kinds together."""
    kinds = list(dict.fromkeys(head.kind for head in heads))
    groups = [[kind] for kind in kinds]
    if len(kinds) > 1:
        groups.append(kinds)

    scopes = {}
    for group in groups:
        numbers: list[int] = []
        by_layer: dict[tuple[Kind, int], list[int]] = {}
        for number, head in enumerate(heads):
            if head.kind in group:
                numbers.append(number)
                by_layer.setdefault((head.kind, head.layer), []).append(number)
        # one head has no rank
        layers = [np.array(layer) for layer in by_layer.values() if len(layer) > 1]
        scopes["+".join(group)] = _Scope(np.array(numbers), layers)
    return scopes


def _statistics(scope: _Scope, score: np.ndarray, truth: np.ndarray) -> dict[str, np.ndarray]:
    """Every statistic of each row: score and truth are rows x heads."""
    statistics = {}
    for name, correlate in (("spearman", spearman), ("kendall", kendall)):
        statistics[name] = correlate(score[:, scope.heads], truth[:, scope.heads])
        statistics[f"{name}.within"] = _within(scope, score, truth, correlate)
    for name, share in TOP_SHARES.items():
        count = max(1, round(share * len(scope.heads)))
        statistics[name] = precision(score[:, scope.heads], truth[:, scope.heads], count)
    return statistics


def _within(scope: _Scope, one: np.ndarray, other: np.ndarray, correlate: Correlate) -> np.ndarray:
    """Mean over layers of the correlation inside the layer: rows. NaN where one layer has none."""
    inside = [correlate(one[:, layer], other[:, layer]) for layer in scope.layers]
    return np.mean(inside, axis=0) if inside else np.full(len(one), np.nan)


def _repeated(
    measure: str, kinds: str, measured: _Measured, scope: _Scope, statistic: str
) -> list[Row]:
    """Spearman of two halves of the text, over all heads and within layers, with and without correction for length."""
    one, other = measured.halves
    overall = float(spearman(one[:, scope.heads], other[:, scope.heads]).mean())
    within = float(_within(scope, one, other, spearman).mean())
    values = {
        "": for_whole_text(overall),
        ".half": overall,
        ".within": for_whole_text(within),
        ".within.half": within,
    }
    nothing = (math.nan, math.nan, len(scope.heads))
    rows = []
    for name, value in values.items():
        rows.append(judged_row(measure, measure, kinds, f"{statistic}{name}", value, *nothing))
    return rows


def kendall(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Kendall's tau-b of each row of two arrays rows x heads."""
    if one.shape[1] >= MANY_HEADS:
        return np.array([kendalltau(*pair).statistic for pair in zip(one, other, strict=True)])
    i, j = np.triu_indices(one.shape[1], 1)
    size = max(1, PAIRS_AT_ONCE // max(1, len(i)))
    taus = []
    for start in range(0, len(one), size):
        rows = slice(start, start + size)
        x = np.sign(one[rows, i] - one[rows, j])
        y = np.sign(other[rows, i] - other[rows, j])
        taus.append(cosine(x, y))
    return np.concatenate(taus)


def precision(score: np.ndarray, truth: np.ndarray, count: int) -> np.ndarray:
    """Share of the truth's top `count` heads that are among the score's, by row; heads tied at the edge share the last
    places. A random score has count / heads."""
    shares: np.ndarray = (_top(score, count) * _top(truth, count)).sum(1) / count
    return shares


def _top(values: np.ndarray, count: int) -> np.ndarray:
    """1 for the `count` highest values of each row, 0 for the rest, a fraction for ties at the edge."""
    edge = np.sort(values, axis=1)[:, -count, None]
    above = values > edge
    tied = values == edge
    # places that are left for those at the edge
    left = count - above.sum(1, keepdims=True)
    with np.errstate(invalid="ignore"):
        top: np.ndarray = above + tied * left / tied.sum(1, keepdims=True)
    return top


def likeness(
    one: Mapping[Head, float], other: Mapping[Head, float], names: tuple[str, str]
) -> list[Row]:
    """How far two scores rank the same heads alike, such as LRP and confidence (Voita et al. 2019, section 4): Spearman
    over all heads and within layers, without intervals."""
    heads = sorted(one, key=lambda head: KINDS.index(head.kind))
    if set(one) != set(other):
        raise HeadwiseError(
            f"{names[0]} has {len(one)} heads, {names[1]} {len(other)}, but not the same ones: score the same heads."
        )
    x = np.array([one[head] for head in heads])[None]
    y = np.array([other[head] for head in heads])[None]
    rows: list[Row] = []
    for kinds, scope in _scopes(heads).items():
        correlations = {
            "spearman": spearman(x[:, scope.heads], y[:, scope.heads]),
            "spearman.within": _within(scope, x, y, spearman),
        }
        for name, (value,) in correlations.items():
            rows.append(
                judged_row(*names, kinds, name, float(value), math.nan, math.nan, len(scope.heads))
            )
    return rows
