"""Scripts without blanks between words: Chinese, Japanese, Thai and others."""

from __future__ import annotations

import unicodedata
from collections import Counter
from typing import NamedTuple

# By the first word of their letters' names in Unicode.
HAN = ("CJK", "BOPOMOFO")
KANA = ("HIRAGANA", "KATAKANA")
OTHERS = ("THAI", "LAO", "KHMER", "MYANMAR", "TIBETAN", "JAVANESE", "YI", "TAI", "NEW")
OF_UNSPACED = (
    0.2  # share of such letters from which a text has too few blanks: a Latin name has many letters
)


class Letters(NamedTuple):
    """How many letters of a text are Chinese characters, kana, of other scripts without blanks, and all."""

    han: int
    kana: int
    others: int
    total: int

    @property
    def unspaced(self) -> bool:
        """Whether blanks do not part the words of the text."""
        return bool(self.total) and self.han + self.kana + self.others >= OF_UNSPACED * self.total


def letters_of(text: str) -> Letters:
    letters: Counter[str] = Counter()
    for letter, times in Counter(text).items():
        if letter.isalpha():
            letters[unicodedata.name(letter, "").split(" ")[0]] += times
    han, kana, others = (sum(letters[name] for name in names) for names in (HAN, KANA, OTHERS))
    return Letters(han, kana, others, letters.total())


def word_units(text: str, unspaced: bool | None = None) -> list[str]:
    """What a text is made of: the words between blanks; where blanks do not part words, its characters. unspaced: whether
    that is so, where it is known."""
    if letters_of(text).unspaced if unspaced is None else unspaced:
        return [character for character in text if not character.isspace()]
    return text.split()
