"""Sums of sentences: the p of heads."""

from __future__ import annotations

import numpy as np

from headwise.core.heads import HeadMap
from headwise.models.evaluation.sums import SentenceSums


def test_p_is_corrected_over_heads() -> None:
    """Of 200 texts on which no head has an effect, about 5 % have any p of at most 0.05; a head with an effect is found."""
    heads = HeadMap({"decoder-self": (6, 6)}, {"decoder-self": (6, 6)})
    random = np.random.default_rng(0)
    false, found = 0, 0
    for text in range(200):
        sums = SentenceSums(heads)
        counts = random.integers(4, 20, 60)
        effects = random.normal(size=(60, 12)) * counts[:, None] ** 0.5
        effects[:, 0] += 1.0 * counts
        for number, site in enumerate(heads.sites):
            sums.take(site, effects[:, 6 * number : 6 * number + 6], counts)
        p = sums.p_of_heads("ablation.zero", text)
        found += p[0] <= 0.05
        false += (p[1:] <= 0.05).any()
    assert found == 200
    assert 2 <= false <= 20
