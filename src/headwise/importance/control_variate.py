"""Ablation of a sample made more precise by the gradient of more text: a control variate."""

from __future__ import annotations

import numpy as np

from headwise.core.statistics import effective_units, expanded_quantile
from headwise.models.evaluation.sums import SentenceSums, of_documents


def controlled(
    sums: SentenceSums,
    tried: SentenceSums,
    known: SentenceSums,
    documents: np.ndarray | None = None,
    known_documents: np.ndarray | None = None,
) -> tuple[SentenceSums, float]:
    """The sums of a sample as if every head had been tried on each sentence, less what they differ from more text in a
    sum that is known of both; and how many times as many units would do without it, for the median head.

    sums: of the sample, a unit for each sentence; 0 where a head was not tried. tried: the tokens that each head was tried
    on. known: another sum of the same heads, of the sentences of the sample and then of others, all in random order.
    documents, known_documents: the document of each sentence, where several are of one. A unit of the result is a document.

    The value of a head is Σ (s − b (k − k̄ c)) / Σ c over units on which it was tried, with s and k the two sums of a unit,
    c its tokens and k̄ what is known a token of all text: the regression estimator of two-phase sampling (Cochran 1977,
    section 12.6; prediction-powered inference, Angelopoulos et al. 2023). b is the slope of s on k over all *other*
    units, so it does not adapt to the unit's own noise, which would bias values and make intervals too narrow. A head
    that varies less without b has b = 0.

    Units vary as the value does, so that their bootstrap gives its interval: where a head was tried, by the residual, as
    many times as there are tokens for each that it was tried on; everywhere by √(u / U) b (k − k̄ c), because k̄ is of a
    sample, too, for u units of the sample and U of the text (`effective_units`).
    """
    sums_by_document = sums.by_document(documents)
    tried_units = tried.by_document(documents)
    known_units = known.by_document(known_documents)
    gains: list[float] = []
    for site in sums.heads.sites:
        counts = sums.whole(site)[1]
        of_all, every = known.whole(site)
        rest = np.zeros((len(counts), of_all.shape[1]))
        # else no more is known, or neighbours of a long text were merged
        if len(every) > len(counts) and np.array_equal(every[: len(counts)], counts):
            rest = of_all[: len(counts)] - of_all.sum(0) / every.sum() * counts[:, None]
        rest_of_tried = of_documents(np.where(tried.whole(site)[0] > 0, rest, 0), documents)
        rest = of_documents(rest, documents)
        lost, counts = sums_by_document.whole(site)
        if not counts.any():
            continue
        units = effective_units(counts)
        share = float(units / max(units, effective_units(known_units.whole(site)[1])))
        of_head = tried_units.whole(site)[0]
        plain = as_if_tried(lost, of_head, counts)
        predicted = slopes_of_others(lost, rest_of_tried, of_head)
        precise = as_if_tried(lost - predicted * rest_of_tried, of_head, counts)
        noise = predicted * rest
        noise -= noise.sum(0) / counts.sum() * counts[:, None]
        precise += share**0.5 * noise
        before = variation(plain, counts)
        after = variation(precise, counts)
        lost = np.where(after < before, precise, plain)
        sums_by_document.parts[site] = [np.column_stack([lost, counts])]
        least = np.minimum(before, after)
        varies = least > 0
        gains += (before[varies] / least[varies]).tolist()
    return sums_by_document, float(np.median(gains)) if gains else 1.0


def as_if_tried(sums: np.ndarray, of_head: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Sums of units, units x heads, with the same ratio to all counts as to the tokens that a head was tried on, and as
    much error. of_head: these tokens, units x heads; counts: units."""
    total = np.maximum(of_head.sum(0), 1e-300)
    ratio = sums.sum(0) / total
    # few units have a wider interval than all would have
    wider = expanded_quantile(effective_units(of_head)) / expanded_quantile(effective_units(counts))
    residual = (sums - ratio * of_head) * counts.sum() / total * wider
    scaled: np.ndarray = ratio * counts[:, None] + residual
    return scaled


def slopes_of_others(sums: np.ndarray, rest: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Of every unit, b of the regression sums ≈ a counts + b rest over all other units; 0 where it has none. All units x
    heads."""
    # sums over all units less the unit itself: products of two columns
    squares = (counts**2).sum(0) - counts**2
    both = (counts * rest).sum(0) - counts * rest
    of_rest = (rest**2).sum(0) - rest**2
    with_counts = (counts * sums).sum(0) - counts * sums
    with_rest = (rest * sums).sum(0) - rest * sums
    determinant = squares * of_rest - both**2
    # rounding leaves a little where rest does not vary
    varies = determinant > 1e-9 * squares * of_rest
    slopes: np.ndarray = np.divide(
        squares * with_rest - both * with_counts,
        determinant,
        out=np.zeros_like(sums),
        where=varies,
    )
    return slopes


def variation(sums: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """The variance of Σ s / Σ c over units: Σ (s − r c)² / (Σ c)², r the ratio of all."""
    rest = sums - sums.sum(0) / counts.sum() * counts[:, None]
    squares: np.ndarray = (rest**2).sum(0) / counts.sum() ** 2
    return squares
