"""BLEU and chrF of translations, by sacreBLEU."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from sacrebleu.metrics.bleu import BLEU as Bleu
from sacrebleu.metrics.chrf import CHRF as Chrf

from headwise.core.answers import Answers
from headwise.core.errors import HeadwiseError
from headwise.core.qualities import AGREEMENT, BLEU, CHRF, QualityMeasure

# Columns of BLEU's statistics.
TRANSLATION_LENGTH = 0
REFERENCE_LENGTH = 1
METRICS = {BLEU: Bleu, AGREEMENT: Bleu, CHRF: Chrf}


def translation_answers(
    systems: Sequence[Sequence[str]],
    references: Sequence[str],
    qualities: Sequence[QualityMeasure] = (BLEU,),
) -> Answers:
    """What the detokenised translations of some systems are worth against one reference.

    qualities: BLEU (or AGREEMENT), with or without CHRF behind it. How each was made is sacreBLEU's signature. Raises
    HeadwiseError where the translations are not as many as the references.
    """
    for lines in systems:
        if len(lines) != len(references) or not references:
            raise HeadwiseError(
                f"{len(lines)} translations cannot be compared with {len(references)} references: "
                "give equally many, and at least one."
            )
    made = {}
    stats = []
    for quality in qualities:
        columns = []
        for lines in systems:
            counts, signature = sentence_counts(quality, tuple(lines), tuple(references))
            columns.append(counts)
            made[quality] = signature
        stats.append(np.stack(columns, 1))
    together = np.concatenate(stats, 2)
    return Answers(made, together, together[:, 0, REFERENCE_LENGTH])


# chrF takes its time, and one translation is compared with many.
@lru_cache(maxsize=32)
def sentence_counts(
    quality: QualityMeasure, lines: tuple[str, ...], references: tuple[str, ...]
) -> tuple[np.ndarray, str]:
    """sacreBLEU's statistics of every sentence, and its signature."""
    # Not public in sacreBLEU, which gives no statistics of sentences otherwise.
    metric = METRICS[quality]()
    counts = metric._extract_corpus_statistics(list(lines), [list(references)])
    return np.array(counts, dtype=np.float64), str(metric.get_signature())
