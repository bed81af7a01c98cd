"""BLEU and chrF of translations, by sacreBLEU: tokenised by what the references are written in."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from sacrebleu.metrics.bleu import BLEU as Bleu
from sacrebleu.metrics.chrf import CHRF as Chrf

from headwise.core.answers import Answers
from headwise.core.errors import HeadwiseError
from headwise.core.qualities import BLEU, CHRF, QualityMeasure
from headwise.data.scripts import letters_of

# Columns of BLEU's statistics.
TRANSLATION_LENGTH = 0
REFERENCE_LENGTH = 1
NGRAM = 4
OF_KANA = 0.1  # share of kana among the letters of Japanese


def translation_answers(
    systems: Sequence[Sequence[str]],
    references: Sequence[str],
    qualities: Sequence[QualityMeasure] = (BLEU,),
) -> Answers:
    """What the detokenised translations of some systems are worth against one reference.

    qualities: BLEU (or AGREEMENT), with or without CHRF behind it. How each was made is sacreBLEU's signature. Raises
    HeadwiseError where the translations are not as many as the references, and for references that have no BLEU.
    """
    for lines in systems:
        if len(lines) != len(references) or not references:
            raise HeadwiseError(
                f"{len(lines)} translations cannot be compared with {len(references)} references: "
                "give equally many, and at least one."
            )
    refuse_short_references(references)
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


def refuse_short_references(references: Sequence[str]) -> None:
    """Raise HeadwiseError where no reference has four tokens: without any 4-gram the BLEU of every translation is 0."""
    name = tokenizer_name(tuple(references))
    tokenize = Bleu(tokenize=name).tokenizer
    # the first line nearly always has
    if not any(len(tokenize(line).split()) >= NGRAM for line in references):
        raise HeadwiseError(
            f"None of the {len(references)} references has {NGRAM} tokens (tok:{name}), so there are no {NGRAM}-grams, and "
            "BLEU is 0 for every translation: give longer sentences."
        )


@lru_cache(maxsize=32)
def tokenizer_name(references: tuple[str, ...]) -> str:
    """sacreBLEU's tokenizer for what references are written in: `zh` for Chinese, `ja-mecab` for Japanese where MeCab is
    installed (`sacrebleu[ja]`), else `char`, as for Thai and other scripts without blanks between words; else `13a`.

    Words that are not parted by blanks would be one token a sentence for `13a`: no 4-gram, and a BLEU of 0 for a
    translation that equals its reference.
    """
    letters = letters_of("".join(references))
    if not letters.unspaced:
        return "13a"
    if letters.others > letters.han + letters.kana:
        return "char"
    if letters.kana < OF_KANA * (letters.han + letters.kana):
        return "zh"
    return "ja-mecab" if has_mecab() else "char"


@lru_cache(maxsize=1)
def has_mecab() -> bool:
    try:
        Bleu(tokenize="ja-mecab")
    except (RuntimeError, AssertionError):  # not installed, or with another dictionary
        return False
    return True


# chrF takes its time, and one translation is compared with many.
@lru_cache(maxsize=32)
def sentence_counts(
    quality: QualityMeasure, lines: tuple[str, ...], references: tuple[str, ...]
) -> tuple[np.ndarray, str]:
    """sacreBLEU's statistics of every sentence, and its signature."""
    metric = Chrf() if quality == CHRF else Bleu(tokenize=tokenizer_name(references))
    # Not public in sacreBLEU, which gives no statistics of sentences otherwise.
    counts = metric._extract_corpus_statistics(list(lines), [list(references)])
    return np.array(counts, dtype=np.float64), str(metric.get_signature())
