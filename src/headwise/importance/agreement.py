"""The faithfulness of scores: which score should you believe on this model? No model is needed here.

`agreement`: does a score rank heads as exact ablation of single heads does? (`curves` asks how the model degrades when
heads are removed in the order of a score.) `exceptions`: where two scores disagree most.

A score is computed on one text and judged on another, on its kinds of heads. High values mean important; a measure
whose low values do has a minus before its name (`-entropy`), and its sign is changed before use.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.stats import kendalltau, rankdata

from headwise.errors import HeadwiseError
from headwise.heads import KINDS, Head, HeadMap
from headwise.importance.sums import SentenceSums
from headwise.statistics import bootstrap, centred_interval

TOP = {"precision@10%": 0.1, "precision@25%": 0.25, "precision@50%": 0.5}
SPLITS = 100  # random halves of the sentences
MANY = 128  # from this number of heads on, sorting is faster than comparing pairs
PAIRS = 2**20  # pairs of heads compared together

Row = dict[str, Any]
Correlate = Callable[[np.ndarray, np.ndarray], np.ndarray]


def agreement(
    scores: Mapping[str, SentenceSums],
    truth: SentenceSums,
    seed: int = 0,
    against: str = "ablation.zero",
) -> list[Row]:
    """How far each score ranks the heads as the truth does: rows of FAITHFULNESS, by kind and over all kinds.

    `spearman`, `kendall` (tau-b) over all heads; `spearman.within`, `kendall.within`: the mean over layers of the
    correlation inside the layer; `precision@10%` (`25%`, `50%`): the share of the truth's top tenth of heads that is in
    the score's top tenth. `stability`: Spearman between a score and itself on another text of the same length (two
    halves of its sentences, SPLITS times, corrected by Spearman and Brown's 2r / (1 + r)); `stability.half`: not
    corrected; `ceiling`, `ceiling.half`, `.within`: the same for the truth. n: heads.

    Intervals: bootstrap over the sentences of the truth and, independently, of the score. Its noise lowers rank
    correlations, so the interval is moved until its median is the value.
    """
    rows = []
    true = _measured(against, truth, truth.heads, seed)
    for kinds, scope in _scopes(list(truth.heads)).items():
        start = {"measure": against, "against": against, "kinds": kinds, "n": len(scope.heads)}
        rows += _repeated(true, scope, "ceiling", start)
    for measure, sums in scores.items():
        shared = truth.heads.only(kind for kind in truth.heads.kinds if kind in sums.heads.kinds)
        places = np.array(
            [place for place, head in enumerate(truth.heads) if head.kind in shared.kinds],
            dtype=int,
        )
        score = _measured(measure, sums, shared, seed + 1)
        for kinds, scope in _scopes(list(shared)).items():
            start = {"measure": measure, "against": against, "kinds": kinds, "n": len(scope.heads)}
            spread = _statistics(scope, score.resamples, true.resamples[:, places])
            for name, value in _statistics(
                scope, score.values[None], true.values[None, places]
            ).items():
                low, high = centred_interval(
                    float(value[0]), spread[name], 0 if name in TOP else -1
                )
                rows.append(
                    {**start, "statistic": name, "value": float(value[0]), "low": low, "high": high}
                )
            rows += _repeated(score, scope, "stability", {**start, "against": measure})
    return rows


def head_values(sums: SentenceSums) -> dict[Head, float]:
    """The value of every head over the whole text."""
    found: dict[Head, float] = {}
    for site in (site for site in sums.heads.sites if sums.heads.count(site)):
        totals, counts = sums.sentences(site, "a score")
        values = sums.scaled(totals.sum(0) / counts.sum())
        found |= {Head(*site, head): float(value) for head, value in enumerate(values)}
    return found


@dataclass(frozen=True)
class _Measured:
    """Values of heads: on the text (heads), on random halves and the other halves, and on resamples (… x heads)."""

    values: np.ndarray
    halves: tuple[np.ndarray, np.ndarray]
    resamples: np.ndarray


def _measured(measure: str, sums: SentenceSums, heads: HeadMap, seed: int) -> _Measured:
    """High values mean important. Halves and resamples of a single sentence are not numbers."""
    values, ones, others, resamples = [], [], [], []
    for site in (site for site in heads.sites if heads.count(site)):
        found = sums.heads.count(site) if site in sums.heads.sites else "none"
        if found != heads.count(site):
            raise HeadwiseError(
                f"{measure} is judged on {heads.count(site)} heads of {site}, but has {found}: score all of them."
            )
        totals, counts = sums.sentences(site, measure)
        scale = sums.scaled
        half = np.random.default_rng((seed, SPLITS)).permuted(
            np.tile(np.arange(len(counts)) % 2, (SPLITS, 1)), axis=1
        )
        values.append(scale(totals.sum(0) / counts.sum()))
        with np.errstate(invalid="ignore"):
            ones.append(scale((half @ totals) / (half @ counts)[:, None]))
            others.append(scale(((1 - half) @ totals) / ((1 - half) @ counts)[:, None]))
        drawn = bootstrap(totals, counts, seed)
        resamples.append(scale(drawn if len(counts) > 1 else np.full_like(drawn, np.nan)))
    one, other, drawn = (
        direction(measure) * np.concatenate(parts, axis=1) for parts in (ones, others, resamples)
    )
    return _Measured(direction(measure) * np.concatenate(values), (one, other), drawn)


@dataclass(frozen=True)
class _Scope:
    """The indices of some heads, together and by layer (without layers of one head)."""

    heads: np.ndarray
    layers: list[np.ndarray]


def _scopes(heads: Sequence[Head]) -> dict[str, _Scope]:
    """Every kind by its name, and all of several kinds together."""
    kinds = list(dict.fromkeys(head.kind for head in heads))
    groups = [[kind] for kind in kinds] + ([kinds] if len(kinds) > 1 else [])
    scopes = {}
    for group in groups:
        places = np.array([place for place, head in enumerate(heads) if head.kind in group])
        sites = dict.fromkeys((heads[place].kind, heads[place].layer) for place in places)
        layers = [
            np.array([p for p in places if (heads[p].kind, heads[p].layer) == site])
            for site in sites
        ]
        scopes["+".join(group)] = _Scope(places, [layer for layer in layers if len(layer) > 1])
    return scopes


def _statistics(scope: _Scope, score: np.ndarray, truth: np.ndarray) -> dict[str, np.ndarray]:
    """Every statistic of each row: score and truth are rows x heads."""
    found = {}
    for name, correlate in (("spearman", spearman), ("kendall", kendall)):
        found[name] = correlate(score[:, scope.heads], truth[:, scope.heads])
        found[f"{name}.within"] = _within(scope, score, truth, correlate)
    for name, share in TOP.items():
        count = max(1, round(share * len(scope.heads)))
        found[name] = precision(score[:, scope.heads], truth[:, scope.heads], count)
    return found


def _within(scope: _Scope, one: np.ndarray, other: np.ndarray, correlate: Correlate) -> np.ndarray:
    """Mean over layers of the correlation inside the layer: rows. NaN where one layer has none."""
    inside = [correlate(one[:, layer], other[:, layer]) for layer in scope.layers]
    return np.mean(inside, axis=0) if inside else np.full(len(one), np.nan)


def _repeated(measured: _Measured, scope: _Scope, statistic: str, start: Row) -> list[Row]:
    """Spearman of two halves of the text, over all heads and within layers, with and without correction for length."""
    one, other = measured.halves
    overall = float(spearman(one[:, scope.heads], other[:, scope.heads]).mean())
    within = float(_within(scope, one, other, spearman).mean())
    whole, whole_within = (2 * r / (1 + r) if r > 0 else r for r in (overall, within))
    found = {"": whole, ".half": overall, ".within": whole_within, ".within.half": within}
    ends = {"low": math.nan, "high": math.nan}
    return [
        {**start, "statistic": f"{statistic}{name}", "value": value, **ends}
        for name, value in found.items()
    ]


def direction(measure: str) -> int:
    """−1 for a measure with a minus before its name, whose low values mean important; otherwise 1."""
    return -1 if measure.startswith("-") else 1


def spearman(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Rank correlation of each row of two arrays rows x heads; NaN for a constant row."""
    ranks = [rankdata(values, axis=1) for values in (one, other)]
    x, y = (rank - rank.mean(1, keepdims=True) for rank in ranks)
    with np.errstate(invalid="ignore"):
        found: np.ndarray = (x * y).sum(1) / np.sqrt((x * x).sum(1) * (y * y).sum(1))
    return found


def kendall(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Kendall's tau-b of each row of two arrays rows x heads."""
    if one.shape[1] >= MANY:
        return np.array([kendalltau(*pair).statistic for pair in zip(one, other, strict=True)])
    i, j = np.triu_indices(one.shape[1], 1)
    size = max(1, PAIRS // max(1, len(i)))
    found = []
    for start in range(0, len(one), size):
        x, y = (
            np.sign(values[start : start + size, i] - values[start : start + size, j])
            for values in (one, other)
        )
        with np.errstate(invalid="ignore"):
            found.append((x * y).sum(1) / np.sqrt((x * x).sum(1) * (y * y).sum(1)))
    return np.concatenate(found)


def precision(score: np.ndarray, truth: np.ndarray, count: int) -> np.ndarray:
    """Share of the truth's top `count` heads that are among the score's, by row; heads tied at the edge share the last
    places. A random score has count / heads."""
    score_top, truth_top = (_top(values, count) for values in (score, truth))
    found: np.ndarray = (score_top * truth_top).sum(1) / count
    return found


def _top(values: np.ndarray, count: int) -> np.ndarray:
    """1 for the `count` highest values of each row, 0 for the rest, a fraction for ties at the edge."""
    edge = np.sort(values, axis=1)[:, -count, None]
    above, tied = values > edge, values == edge
    with np.errstate(invalid="ignore"):
        found: np.ndarray = above + tied * (count - above.sum(1, keepdims=True)) / tied.sum(
            1, keepdims=True
        )
    return found


@dataclass(frozen=True)
class Exceptions:
    """How far two scores agree, and the heads on which they agree least.

    rows: FAITHFULNESS rows (Spearman, overall and within layers; no intervals). heads: a head, and its rank in its
    layer by the first score minus that by the second, as a share of the ranks (−1 to 1).
    """

    rows: list[Row]
    heads: list[tuple[Head, float]]


def exceptions(
    one: Mapping[Head, float],
    other: Mapping[Head, float],
    count: int = 5,
    names: tuple[str, str] = ("lrp", "confidence"),
) -> Exceptions:
    """Where two scores of the same heads differ, such as LRP and confidence: in Voita et al. 2019 (section 4) on the
    rare-token head of the first layer, which is most relevant there and not confident."""
    heads = sorted(one, key=lambda head: KINDS.index(head.kind))
    if set(one) != set(other):
        raise HeadwiseError(
            f"{names[0]} has {len(one)} heads, {names[1]} {len(other)}, but not the same ones: score the same heads."
        )
    x, y = (np.array([values[head] for head in heads])[None] for values in (one, other))
    rows, places = list[Row](), np.zeros(len(heads))
    scopes = _scopes(heads)
    for kinds, scope in scopes.items():
        found = {
            "spearman": spearman(x[:, scope.heads], y[:, scope.heads]),
            "spearman.within": _within(scope, x, y, spearman),
        }
        start = {
            "measure": names[0],
            "against": names[1],
            "kinds": kinds,
            "low": math.nan,
            "high": math.nan,
        }
        rows += [
            {**start, "statistic": n, "value": float(v[0]), "n": len(scope.heads)}
            for n, v in found.items()
        ]
        for layer in scope.layers:
            places[layer] = (rankdata(x[0, layer]) - rankdata(y[0, layer])) / (len(layer) - 1)
    most = sorted(zip(heads, places.tolist(), strict=True), key=lambda pair: -abs(pair[1]))
    return Exceptions(rows, most[:count])
