"""BLEU and chrF by sacreBLEU, with signatures, and the interval of a difference by paired bootstrap."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF

from headwise.errors import HeadwiseError
from headwise.statistics import difference_bounds, effective_units, interval, resampled_sums

REFERENCE_LENGTH = 1  # column of BLEU's sufficient statistics
MOST_EXACT_LINES = 10  # up to this number of differing lines the test is exact


@dataclass(frozen=True)
class CorpusScore:
    """A corpus score with its 95 % bootstrap interval and sacreBLEU signature. units: how many sentences of one length say
    as much as those of the text."""

    name: str
    value: float
    low: float
    high: float
    signature: str
    units: float


@dataclass(frozen=True)
class PairedDifference:
    """System minus baseline: value, 95 % interval over sentences, two-sided p."""

    value: float
    low: float
    high: float
    p: float


def corpus_scores(
    hypotheses: Sequence[str], references: Sequence[str]
) -> tuple[CorpusScore, CorpusScore]:
    """BLEU and chrF of detokenised text against one reference."""
    check_equal_count(hypotheses, references)
    metrics: dict[str, BLEU | CHRF] = {"bleu": BLEU(), "chrf": CHRF()}
    stats = {
        name: sentence_statistics(metric, hypotheses, references)
        for name, metric in metrics.items()
    }
    units = float(effective_units(stats["bleu"][:, REFERENCE_LENGTH]))
    out = []
    for name, metric in metrics.items():
        scores = scores_from_sums(metric, resampled_sums(stats[name]))
        low, high = interval(scores, units)
        value = metric.corpus_score(list(hypotheses), [list(references)]).score
        signature = str(metric.get_signature())
        out.append(CorpusScore(name, value, float(low), float(high), signature, units))
    return out[0], out[1]


def paired_difference(
    system: Sequence[str], baseline: Sequence[str], references: Sequence[str]
) -> PairedDifference:
    """BLEU of a system minus BLEU of a baseline, paired over the same resampled sentences.

    p is two-sided, by paired bootstrap (identical output has p = 1). With at most MOST_EXACT_LINES differing lines it
    is no less than that of an exact test: every way of swapping those lines between the two.
    """
    check_equal_count(system, references)
    check_equal_count(baseline, references)
    metric = BLEU()
    ours = sentence_statistics(metric, system, references)
    theirs = sentence_statistics(metric, baseline, references)
    our_score = scores_from_sums(metric, ours.sum(0)[None])[0]
    their_score = scores_from_sums(metric, theirs.sum(0)[None])[0]
    value = float(our_score - their_score)
    lines = enumerate(zip(system, baseline, strict=True))
    differ = [number for number, (line, other) in lines if line != other]
    if not differ:
        return PairedDifference(0.0, 0.0, 0.0, 1.0)

    deltas = scores_from_sums(metric, resampled_sums(ours))
    deltas -= scores_from_sums(metric, resampled_sums(theirs))
    units = float(effective_units(ours[:, REFERENCE_LENGTH]))
    low, high, p = difference_bounds(deltas, units)
    if len(differ) <= MOST_EXACT_LINES:
        swaps = np.array(list(product((0, 1), repeat=len(differ))))
        change = swaps @ (theirs - ours)[differ]
        swapped_ours = scores_from_sums(metric, ours.sum(0) + change)
        swapped_theirs = scores_from_sums(metric, theirs.sum(0) - change)
        differences = np.abs(swapped_ours - swapped_theirs)
        p = max(p, float((differences >= abs(value) - 1e-12).mean()))
    return PairedDifference(value, low, high, p)


def check_equal_count(hypotheses: Sequence[str], references: Sequence[str]) -> None:
    if len(hypotheses) != len(references) or not references:
        raise HeadwiseError(
            f"{len(hypotheses)} translations cannot be compared with {len(references)} references: "
            "give equally many, and at least one."
        )


def sentence_statistics(
    metric: BLEU | CHRF, hypotheses: Sequence[str], references: Sequence[str]
) -> np.ndarray:
    """sacreBLEU's sufficient statistics, one row per sentence."""
    return np.array(metric._extract_corpus_statistics(list(hypotheses), [list(references)]))


def scores_from_sums(metric: BLEU | CHRF, sums: np.ndarray) -> np.ndarray:
    """Corpus scores from summed statistics, one per row."""
    return np.array([metric._compute_score_from_stats(list(row)).score for row in sums])
