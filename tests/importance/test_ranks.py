"""How far an order of heads repeats on other text: by hand, and by simulation."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import spearmanr

from headwise.core.heads import HeadMap, Site
from headwise.core.statistics import bootstrap, interval
from headwise.importance.ranks import spearman, stability
from headwise.models.evaluation.sums import SentenceSums

HEADS = HeadMap({"decoder-self": (4, 0, 6)}, {"decoder-self": (4, 0, 6)})


def drawn(sentences: int, noise: float, seed: int) -> SentenceSums:
    """Ten heads of the values 1 to 10, with noise in every sentence."""
    random = np.random.default_rng(seed)
    values = np.arange(1.0, 11) + noise * random.normal(size=(sentences, 10))
    counts = random.integers(1, 4, sentences)
    sums = SentenceSums(HEADS)
    sums.take(Site("decoder-self", 0), values[:, :4] * counts[:, None], counts)
    sums.take(Site("decoder-self", 1), values[:, :0], counts)
    sums.take(Site("decoder-self", 2), values[:, 4:] * counts[:, None], counts)
    return sums


def values(sums: SentenceSums) -> np.ndarray:
    parts = [sums.whole(site) for site in HEADS.sites]
    return np.concatenate([total.sum(0) / counts.sum() for total, counts in parts])


def test_an_order_without_noise_repeats() -> None:
    assert stability(drawn(8, 0.0, 0)) == pytest.approx(1.0)


def test_stability_is_the_rank_correlation_with_another_text() -> None:
    """The mean over 60 pairs of texts, whose own standard error is below 0.01."""
    noise = 5.0
    said = np.mean([stability(drawn(40, noise, seed), seed) for seed in range(60)])
    seen = []
    for seed in range(60):
        one, other = values(drawn(40, noise, seed)), values(drawn(40, noise, 1000 + seed))
        seen.append(spearmanr(one, other).statistic)
    assert said == pytest.approx(np.mean(seen), abs=0.05)
    assert stability(drawn(40, noise, 0), 3) == stability(drawn(40, noise, 0), 3)


def test_rank_correlation_of_rows() -> None:
    random = np.random.default_rng(0)
    one, other = random.integers(0, 4, (2, 5, 9)).astype(float)
    expected = [spearmanr(*pair).statistic for pair in zip(one, other, strict=True)]
    np.testing.assert_allclose(spearman(one, other), expected)
    assert np.isnan(spearman(np.ones((1, 3)), np.arange(3.0)[None])[0])


def test_a_long_sentence_is_one_unit_and_widens_the_interval() -> None:
    """Of 20 sentences one has a fifth of the tokens: the interval is that of 12 effective units, not of 20."""
    random = np.random.default_rng(0)
    counts = np.array([5.0] + [1.0] * 19)
    sums = SentenceSums(HEADS.only(["decoder-self"]))
    for site in HEADS.sites:
        values = random.normal(size=(20, HEADS.count(site)))
        sums.take(site, values * counts[:, None], counts)
    total, counts = sums.whole(Site("decoder-self", 0))
    drawn = bootstrap(total, counts, 0)
    low, high = interval(drawn, counts.sum() ** 2 / (counts**2).sum())
    rows = sums.rows("any")[:4]
    assert [row["low"] for row in rows] == pytest.approx(low)
    assert [row["high"] for row in rows] == pytest.approx(high)
