"""Which word every piece of a tokenizer belongs to, so that attention between pieces can be told about words.

Fast tokenizers say where their pieces stand in the text. For the others (Marian's) the letters of the pieces are found
in the text by `spacy_alignments` (the library of spaCy's transformer models: a Myers diff that looks through case and
compatibility forms, such as "…" for three dots). Nothing is cut: what does not fit is left out, and counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING

from spacy_alignments import get_charmap

from headwise.data.annotated import Annotated, Span, merged_places

if TYPE_CHECKING:  # it takes seconds to load
    from transformers import PreTrainedTokenizerBase

SPECIAL = -1  # the word of a special token
Place = Span | None  # of a piece in the text, in characters: empty when it has no letters, None for a special token


@dataclass(frozen=True)
class Aligned:
    """A sentence in pieces: `ids` with special tokens, and for every piece its word in `sentence`, -1 if special.

    Every word has at least one piece. Where one piece covers several words ("cannot", French "du"), these are one word
    of `sentence`, which then differs from the sentence that was asked for.
    """

    ids: list[int]
    word_of: list[int]
    sentence: Annotated


@dataclass
class Coverage:
    """What became of the sentences and words that were to be aligned, added up from call to call.

    used + too_long + unalignable = sentences. Of the used sentences: words (after merging), merged_words (that shared a
    piece with a neighbour and are one with it now), split_words (of several pieces). Of all sentences: pieces (special
    tokens left out) and unknown_pieces (those the tokenizer has no entry for).
    """

    sentences: int = 0
    used: int = 0
    too_long: int = 0
    unalignable: int = 0
    words: int = 0
    merged_words: int = 0
    split_words: int = 0
    pieces: int = 0
    unknown_pieces: int = 0

    @property
    def unknown_share(self) -> float:
        """Unknown pieces among all: near zero for text in the model's language."""
        return self.unknown_pieces / max(self.pieces, 1)

    @property
    def split_share(self) -> float:
        """Words of several pieces among all: tells another language where no piece is unknown (pieces of bytes)."""
        return self.split_words / max(self.words, 1)


def pieces_of(
    tokenizer: PreTrainedTokenizerBase, sentences: Sequence[Annotated | str], max_length: int, coverage: Coverage
) -> list[Aligned]:
    """The sentences in pieces, in their order, without those that do not fit; `coverage` counts both.

    max_length: the most pieces of a sentence, special tokens included. A plain string is a sentence whose words stand
    between blanks. Left out are sentences with more pieces, and those with a word of which no piece is left (such as a
    control character that the tokenizer drops).
    """
    kept: list[Aligned] = []
    asked = [Annotated.plain(sentence) if isinstance(sentence, str) else sentence for sentence in sentences]
    for sentence, (ids, places) in zip(asked, _placed(tokenizer, [one.text for one in asked]), strict=True):
        inner = [id for id, place in zip(ids, places, strict=True) if place is not None]
        coverage.sentences += 1
        coverage.pieces += len(inner)
        coverage.unknown_pieces += inner.count(tokenizer.unk_token_id)
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


def _placed(tokenizer: PreTrainedTokenizerBase, texts: list[str]) -> Iterator[tuple[list[int], list[Place]]]:
    """The ids of each text and the place of every piece."""
    if not tokenizer.is_fast:
        yield from (_placed_by_letters(tokenizer, text) for text in texts)
    elif texts:
        found = tokenizer(texts, return_offsets_mapping=True, return_special_tokens_mask=True, verbose=False)
        for ids, offsets, special in zip(
            found["input_ids"], found["offset_mapping"], found["special_tokens_mask"], strict=True
        ):
            yield ids, [None if is_special else place for place, is_special in zip(offsets, special, strict=True)]


def _placed_by_letters(tokenizer: PreTrainedTokenizerBase, text: str) -> tuple[list[int], list[Place]]:
    """For a tokenizer that does not say where its pieces stand: their letters are looked for in the text.

    A piece whose letters are not found (an unknown one) stands where letters between its neighbours are left.
    """
    pieces: list[str] = tokenizer.tokenize(text)
    inner: list[int] = tokenizer.convert_tokens_to_ids(pieces)
    ids: list[int] = tokenizer(text, verbose=False)["input_ids"]
    before = next((n for n in range(len(ids) - len(inner) + 1) if ids[n : n + len(inner)] == inner), None)
    if before is None:
        return ids, [None] * len(ids)  # which piece is which cannot be told: no word gets one
    letters = [place for place, letter in enumerate(text) if not letter.isspace()]
    bare = [piece.replace("▁", "") for piece in pieces]
    known = ["" if piece == tokenizer.unk_token else piece for piece in bare]
    matches, _ = get_charmap("".join(known), "".join(text[place] for place in letters))
    ends = list(accumulate(map(len, known), initial=0))
    found = [[letters[letter] for one in matches[start:end] for letter in one] for start, end in pairwise(ends)]
    places: list[Place] = []
    earlier = 0
    for index, piece in enumerate(bare):
        if here := found[index]:
            places.append((min(here), max(here) + 1))
            earlier = max(earlier, max(here) + 1)
        else:
            later = min((letter for some in found[index + 1 :] for letter in some), default=len(text))
            places.append((earlier, max(earlier, later) if piece else earlier))
    return ids, [None] * before + places + [None] * (len(ids) - before - len(inner))


def _aligned(sentence: Annotated, ids: list[int], places: list[Place]) -> Aligned | None:
    """Each piece goes to the word it has most letters of, one without letters (a blank) to the word behind it.

    A word that is left without a piece becomes one with the word that has its letters. None: nobody has them.
    """
    words_at: list[list[int]] = [[] for _ in sentence.text]
    for word, span in enumerate(sentence.spans):
        for letter in range(*span):
            words_at[letter].append(word)
    covered = [Counter(word for letter in range(*(place or (0, 0))) for word in words_at[letter]) for place in places]
    owners = [max(words, key=words.__getitem__, default=None) for words in covered]
    glued: set[int] = set()  # words that are one with the word before them
    for word in set(range(len(sentence.words))) - set(owners):
        holder = next((owner for owner, words in zip(owners, covered, strict=True) if word in words), None)
        if holder is None:
            return None
        glued.update(range(min(word, holder) + 1, max(word, holder) + 1))
    merged = sentence.merged(glued)
    unit_of = merged_places(len(sentence.words), glued)
    word_of: list[int] = []
    following = len(merged.words) - 1  # a blank at the very end goes to the last word
    for place, owner in zip(reversed(places), reversed(owners), strict=True):
        following = following if owner is None else unit_of[owner]
        word_of.append(SPECIAL if place is None else following)
    return Aligned(ids, word_of[::-1], merged) if merged.words else None
