"""The word of every subword of a tokenizer, so that attention between subwords becomes attention between words.

Fast tokenizers give the position of their subwords in the text. For the others (Marian's) `spacy_alignments` finds the
letters of the subwords in the text (the library of spaCy's transformer models: a Myers diff that ignores case and
compatibility forms, such as "…" for three dots). Nothing is truncated: a sentence that does not fit is left out and
counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING

from spacy_alignments import get_charmap

from headwise.data.annotated import Annotated, Span, merged_indices

if TYPE_CHECKING:  # it takes seconds to load
    from transformers import PreTrainedTokenizerBase

SPECIAL = -1  # the word of a special token
Place = (
    Span | None
)  # the characters of a subword in the text: empty without letters, None for a special token


@dataclass(frozen=True)
class Aligned:
    """A sentence in subwords: `ids` with special tokens, and the word of every subword in `sentence`, -1 if special.

    Every word has at least one subword. Where one subword covers several words ("cannot", French "du"), these are one
    word of `sentence`, which then differs from the input.
    """

    ids: list[int]
    word_of: list[int]
    sentence: Annotated


@dataclass
class Coverage:
    """Counts of sentences and words over all calls of `align_subwords`.

    used + too_long + unalignable = sentences. Of the used sentences: words (after merging), merged_words (lost because
    they share a subword with a neighbour), split_words (of several subwords). Of all sentences: subwords (without
    special tokens) and unknown_subwords (without an entry in the vocabulary).
    """

    sentences: int = 0
    used: int = 0
    too_long: int = 0
    unalignable: int = 0
    words: int = 0
    merged_words: int = 0
    split_words: int = 0
    subwords: int = 0
    unknown_subwords: int = 0

    @property
    def unknown_share(self) -> float:
        """The share of unknown subwords: near zero for text in the model's language."""
        return self.unknown_subwords / max(self.subwords, 1)

    @property
    def split_share(self) -> float:
        """The share of words of several subwords: shows another language where no subword is unknown (bytes)."""
        return self.split_words / max(self.words, 1)


def align_subwords(
    tokenizer: PreTrainedTokenizerBase,
    sentences: Sequence[Annotated | str],
    max_length: int,
    coverage: Coverage,
) -> list[Aligned]:
    """The sentences in subwords, in their order, without those that do not fit; `coverage` counts both.

    max_length: the most subwords of a sentence, special tokens included. A plain string is a sentence whose words are
    separated by blanks. Left out are sentences with more subwords, and those with a word without a subword (such as a
    control character that the tokenizer drops).
    """
    kept: list[Aligned] = []
    given = [
        Annotated.plain(sentence) if isinstance(sentence, str) else sentence
        for sentence in sentences
    ]
    for sentence, (ids, places) in zip(
        given, _placed(tokenizer, [one.text for one in given]), strict=True
    ):
        inner = [id for id, place in zip(ids, places, strict=True) if place is not None]
        coverage.sentences += 1
        coverage.subwords += len(inner)
        coverage.unknown_subwords += inner.count(tokenizer.unk_token_id)
        if len(ids) > max_length:
            coverage.too_long += 1
        elif (aligned := _aligned(sentence, ids, places)) is None:
            coverage.unalignable += 1
        else:
            kept.append(aligned)
            per_word = Counter(word for word in aligned.word_of if word != SPECIAL)
            coverage.used += 1
            coverage.words += len(per_word)
            coverage.merged_words += len(sentence.words) - len(per_word)
            coverage.split_words += sum(count > 1 for count in per_word.values())
    return kept


def _placed(
    tokenizer: PreTrainedTokenizerBase, texts: list[str]
) -> Iterator[tuple[list[int], list[Place]]]:
    """The ids of each text and the place of every subword."""
    if not tokenizer.is_fast:
        yield from (_placed_by_letters(tokenizer, text) for text in texts)
    elif texts:
        found = tokenizer(
            texts, return_offsets_mapping=True, return_special_tokens_mask=True, verbose=False
        )
        for ids, offsets, special in zip(
            found["input_ids"], found["offset_mapping"], found["special_tokens_mask"], strict=True
        ):
            yield (
                ids,
                [
                    None if is_special else place
                    for place, is_special in zip(offsets, special, strict=True)
                ],
            )


def _placed_by_letters(
    tokenizer: PreTrainedTokenizerBase, text: str
) -> tuple[list[int], list[Place]]:
    """The same for a tokenizer without positions: it looks for the letters of the subwords in the text.

    A subword whose letters are not found (an unknown one) gets the letters between its neighbours.
    """
    subwords: list[str] = tokenizer.tokenize(text)
    inner: list[int] = tokenizer.convert_tokens_to_ids(subwords)
    ids: list[int] = tokenizer(text, verbose=False)["input_ids"]
    before = next(
        (n for n in range(len(ids) - len(inner) + 1) if ids[n : n + len(inner)] == inner), None
    )
    if before is None:
        return ids, [None] * len(ids)  # the subwords in `ids` are unknown: no word gets one
    letters = [place for place, letter in enumerate(text) if not letter.isspace()]
    bare = [subword.replace("▁", "") for subword in subwords]
    known = ["" if subword == tokenizer.unk_token else subword for subword in bare]
    matches, _ = get_charmap("".join(known), "".join(text[place] for place in letters))
    ends = list(accumulate(map(len, known), initial=0))
    found = [
        [letters[letter] for one in matches[start:end] for letter in one]
        for start, end in pairwise(ends)
    ]
    places: list[Place] = []
    earlier = 0
    for index, subword in enumerate(bare):
        if here := found[index]:
            places.append((min(here), max(here) + 1))
            earlier = max(earlier, max(here) + 1)
        else:
            later = min(
                (letter for some in found[index + 1 :] for letter in some), default=len(text)
            )
            places.append((earlier, max(earlier, later) if subword else earlier))
    return ids, [None] * before + places + [None] * (len(ids) - before - len(inner))


def _aligned(sentence: Annotated, ids: list[int], places: list[Place]) -> Aligned | None:
    """Each subword goes to the word it shares most letters with, one without letters (a blank) to the following word.

    A word without a subword merges with the word whose subword has its letters. None: no subword has them.
    """
    words_at: list[list[int]] = [[] for _ in sentence.text]
    for word, span in enumerate(sentence.spans):
        for letter in range(*span):
            words_at[letter].append(word)
    covered = [
        Counter(word for letter in range(*(place or (0, 0))) for word in words_at[letter])
        for place in places
    ]
    owners = [max(words, key=words.__getitem__, default=None) for words in covered]
    glued: set[int] = set()  # words that are one with the word before them
    for word in set(range(len(sentence.words))) - set(owners):
        holder = next(
            (owner for owner, words in zip(owners, covered, strict=True) if word in words), None
        )
        if holder is None:
            return None
        glued.update(range(min(word, holder) + 1, max(word, holder) + 1))
    merged = sentence.merged(glued)
    unit_of = merged_indices(len(sentence.words), glued)
    word_of: list[int] = []
    following = len(merged.words) - 1  # a blank at the very end goes to the last word
    for place, owner in zip(reversed(places), reversed(owners), strict=True):
        following = following if owner is None else unit_of[owner]
        word_of.append(SPECIAL if place is None else following)
    return Aligned(ids, word_of[::-1], merged) if merged.words else None
