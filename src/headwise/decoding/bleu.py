"""BLEU and chrF of translations, by sacreBLEU."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from sacrebleu.metrics.bleu import BLEU as Bleu
from sacrebleu.metrics.chrf import CHRF as Chrf

from headwise.answers import Answers
from headwise.errors import HeadwiseError
from headwise.qualities import BLEU, CHRF

REFERENCE_LENGTH = 1  # column of BLEU's statistics


def translation_answers(systems: Sequence[Sequence[str]], references: Sequence[str]) -> Answers:
    """What the detokenised translations of some systems are worth against one reference: BLEU, and chrF.

    How each was made is sacreBLEU's signature. Raises HeadwiseError where their number is not that of the references.
    """
    for lines in systems:
        if len(lines) != len(references) or not references:
            raise HeadwiseError(
                f"{len(lines)} translations cannot be compared with {len(references)} references: "
                "give equally many, and at least one."
            )
    metrics = {BLEU: Bleu(), CHRF: Chrf()}
    stats = []
    for lines in systems:
        columns = [
            metric._extract_corpus_statistics(list(lines), [list(references)])
            for metric in metrics.values()
        ]
        stats.append(np.concatenate(columns, axis=1, dtype=np.float64))
    made = {quality: str(metric.get_signature()) for quality, metric in metrics.items()}
    return Answers(made, np.stack(stats, 1), stats[0][:, REFERENCE_LENGTH])
