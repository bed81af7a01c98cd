"""The ranks of heads by a measure: how far two orders agree, and how far an order repeats on other text."""

from __future__ import annotations

import numpy as np
from scipy.stats import rankdata

from headwise.core.heads import HeadMap
from headwise.models.evaluation.sums import SentenceSums

RANDOM_HALVES = 100  # random halves of the sentences


def stability(sums: SentenceSums, seed: int = 0) -> float:
    """Spearman between the values of all heads on this text and on another of the same length: of two random halves of
    its sentences, RANDOM_HALVES times, corrected for their length. Not a number for a single sentence."""
    return agreement_of(*halves(sums, sums.heads, seed))


def agreement_of(one: np.ndarray, other: np.ndarray) -> float:
    """`stability` from the values of heads on halves of a text."""
    return for_whole_text(float(spearman(one, other).mean()))


def rank_errors(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """How far the rank of each head differs between halves of a text, squared and on average."""
    errors: np.ndarray = ((rankdata(one, axis=1) - rankdata(other, axis=1)) ** 2).mean(0)
    return errors


def halves(sums: SentenceSums, heads: HeadMap, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """The values of heads on random halves of a text and on the other halves: RANDOM_HALVES x heads each."""
    ones = []
    others = []
    for site in heads.sites:
        if heads.count(site):
            one, other = random_halves(*sums.sentences(site), seed)
            ones.append(sums.scaled(one))
            others.append(sums.scaled(other))
    return np.concatenate(ones, axis=1), np.concatenate(others, axis=1)


def random_halves(
    totals: np.ndarray, counts: np.ndarray, seed: int
) -> tuple[np.ndarray, np.ndarray]:
    """The values of a layer's heads on random halves of a text and on the other halves: RANDOM_HALVES x heads each. totals:
    sentences x heads, counts: sentences. Not numbers for a half without sentences."""
    # each row of `half` is a random half of the sentences: 1 for those in it
    half = np.random.default_rng((seed, RANDOM_HALVES)).permuted(
        np.tile(np.arange(len(counts)) % 2, (RANDOM_HALVES, 1)), axis=1
    )
    other_half = 1 - half
    with np.errstate(invalid="ignore"):
        one = (half @ totals) / (half @ counts)[:, None]
        other = (other_half @ totals) / (other_half @ counts)[:, None]
    return one, other


def for_whole_text(r: float) -> float:
    """The correlation of two whole texts, from that of their halves (Spearman and Brown)."""
    return 2 * r / (1 + r) if r > 0 else r


def spearman(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Rank correlation of each row of two arrays rows x heads; NaN for a constant row."""
    # ties get their mean rank, so this is Spearman for ties, too
    x = rankdata(one, axis=1)
    y = rankdata(other, axis=1)
    return cosine(x - x.mean(1, keepdims=True), y - y.mean(1, keepdims=True))


def cosine(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """The cosine of the angle between each row of x and that of y; NaN for a row of zeros."""
    with np.errstate(invalid="ignore"):
        cosines: np.ndarray = (x * y).sum(1) / np.sqrt((x * x).sum(1) * (y * y).sum(1))
    return cosines
