"""The word of every subword of a tokenizer, so that attention between subwords becomes attention between words.

Fast tokenizers give the position of their subwords in the text. Of the others, subwords that are bytes (ByT5's) follow
from the letters; for the rest (Marian's) `spacy_alignments` finds the letters of the subwords in the text (the library
of spaCy's transformer models: a Myers diff that ignores case and compatibility forms, such as "…" for three dots).
Nothing is truncated: a sentence that does not fit is left out and counted.
"""

from __future__ import annotations

import html
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING

from spacy_alignments import get_charmap

from headwise.data.annotated import Annotated, Span, merged_indices

# It takes seconds to load.
if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

# Beginnings of words, and ends of words or of what goes on, in tokenizers without offsets.
MARKS = re.compile("▁|</w>$|@@$")
ESCAPED = re.compile("&(apos|quot|amp|lt|gt|#91|#93|#124);")
# The word of a special token.
SPECIAL_WORD = -1
# The characters of a subword in the text: empty without letters, None for a special token.
Offsets = Span | None


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

    used + too_long + unalignable = sentences. In the used sentences: words (after merging), merged_words (lost because
    they share a subword with a neighbour), split_words (of several subwords), pieces (all their subwords). In all
    sentences: subwords (without special tokens), unknown_subwords (without an entry in the vocabulary) and other_text
    (`Annotated.other_text`).
    """

    sentences: int = 0
    used: int = 0
    too_long: int = 0
    unalignable: int = 0
    words: int = 0
    merged_words: int = 0
    split_words: int = 0
    pieces: int = 0
    subwords: int = 0
    unknown_subwords: int = 0
    other_text: int = 0

    @property
    def unknown_share(self) -> float:
        """The share of unknown subwords: near zero for text in the model's language."""
        return self.unknown_subwords / max(self.subwords, 1)

    @property
    def pieces_of_word(self) -> float:
        """How many subwords a word has on average: one or two in the model's language."""
        return self.pieces / max(self.words + self.merged_words, 1)

    @property
    def merged_share(self) -> float:
        """The share of words that are one with a neighbour: large for languages without blanks."""
        return self.merged_words / max(self.words + self.merged_words, 1)


def align_subwords(
    tokenizer: PreTrainedTokenizerBase,
    sentences: Sequence[Annotated | str],
    max_length: int,
    coverage: Coverage,
    inside: Sequence[tuple[str, int]] | None = None,
) -> list[Aligned]:
    """The sentences in subwords, in their order, without those that do not fit; `coverage` counts both.

    max_length: the most subwords of a sentence, special tokens included. A plain string is a sentence whose words are
    separated by blanks. inside: for sentences within longer texts, such as prompts, the text of each, and where in it
    the sentence begins; the subwords are then those of the text, and all outside the sentence count as special. Left
    out are sentences with more subwords, and those with a word without a subword (such as a control character that the
    tokenizer drops).
    """
    annotated = [
        Annotated.plain(sentence) if isinstance(sentence, str) else sentence
        for sentence in sentences
    ]
    texts = [sentence.text for sentence in annotated]
    if inside is not None:
        texts = [text for text, _ in inside]

    kept: list[Aligned] = []
    in_subwords = zip(annotated, with_offsets(tokenizer, texts), strict=True)
    for number, (sentence, (ids, offsets)) in enumerate(in_subwords):
        if inside is not None:
            start = inside[number][1]
            offsets = _offsets_within(offsets, start, start + len(sentence.text))
        # Without special tokens, and without what lies outside of a part.
        inner = [id for id, span in zip(ids, offsets, strict=True) if span is not None]
        coverage.sentences += 1
        coverage.other_text += sentence.other_text
        coverage.subwords += len(inner)
        coverage.unknown_subwords += inner.count(tokenizer.unk_token_id)
        if len(ids) > max_length:
            coverage.too_long += 1
            continue
        aligned = _aligned(sentence, ids, offsets)
        if aligned is None:
            coverage.unalignable += 1
            continue
        kept.append(aligned)
        subwords_of = Counter(word for word in aligned.word_of if word != SPECIAL_WORD)
        coverage.used += 1
        coverage.words += len(subwords_of)
        coverage.merged_words += len(sentence.words) - len(subwords_of)
        coverage.pieces += len(inner)
        coverage.split_words += sum(count > 1 for count in subwords_of.values())
    return kept


def with_offsets(
    tokenizer: PreTrainedTokenizerBase, texts: list[str]
) -> Iterator[tuple[list[int], list[Offsets]]]:
    """The ids of each text and the characters of every subword."""
    if not tokenizer.is_fast:
        for text in texts:
            yield _find_letters(tokenizer, text)
    elif texts:
        encoded = tokenizer(
            texts, return_offsets_mapping=True, return_special_tokens_mask=True, verbose=False
        )
        for ids, spans, special in zip(
            encoded["input_ids"],
            encoded["offset_mapping"],
            encoded["special_tokens_mask"],
            strict=True,
        ):
            # Special tokens have an empty span at 0, like subwords without letters.
            both = zip(spans, special, strict=True)
            yield ids, [None if is_special else span for span, is_special in both]


def _offsets_within(offsets: Sequence[Offsets], start: int, end: int) -> list[Offsets]:
    """Offsets in a text as those in a part of it, from start to end; None for subwords outside the part."""
    part: list[Offsets] = []
    for span in offsets:
        if span is None or span[1] <= start or span[0] >= end:
            part.append(None)
        else:
            part.append((max(span[0], start) - start, min(span[1], end) - start))
    return part


def _find_letters(tokenizer: PreTrainedTokenizerBase, text: str) -> tuple[list[int], list[Offsets]]:
    """The same for a tokenizer without offsets: the letters of the subwords are found in the text.

    A subword whose letters are not found (an unknown one) gets the letters between its neighbours.
    """
    subwords: list[str] = tokenizer.tokenize(text)
    inner: list[int] = tokenizer.convert_tokens_to_ids(subwords)
    ids: list[int] = tokenizer(text, verbose=False)["input_ids"]
    # A tokenizer that puts special tokens inside of a text (a language code) leaves the subwords unknown.
    before = _index_of(inner, ids)
    if before is None:
        return ids, [None] * len(ids)
    after = len(ids) - before - len(inner)

    if _are_bytes(subwords, text):
        places = [index for index, letter in enumerate(text) for _ in letter.encode()]
        return ids, [None] * before + [(place, place + 1) for place in places] + [None] * after

    letters = [index for index, character in enumerate(text) if not character.isspace()]
    bare = [MARKS.sub("", subword) for subword in subwords]
    spelled = ["" if subword == tokenizer.unk_token else subword for subword in bare]
    written = "".join(text[index] for index in letters)
    said, place_of = _unescaped("".join(spelled), written)
    # For each letter of the subwords, the letters of the text that it may be.
    matches, _ = get_charmap(said, written)
    letters_of: list[list[int]] = []  # of each subword, as indices of the text
    start = 0
    for subword in spelled:
        end = start + len(subword)
        found = [match for place in place_of[start:end] for match in matches[place]]
        letters_of.append([letters[match] for match in found])
        start = end

    offsets: list[Offsets] = []
    earlier = 0
    for index, subword in enumerate(bare):
        own = letters_of[index]
        if own:
            offsets.append((min(own), max(own) + 1))
            earlier = max(earlier, max(own) + 1)
        else:
            later = min(chain.from_iterable(letters_of[index + 1 :]), default=len(text))
            offsets.append((earlier, max(earlier, later) if subword else earlier))
    return ids, [None] * before + offsets + [None] * after


def _are_bytes(subwords: list[str], text: str) -> bool:
    """Whether subwords are the bytes of a text, each written as the character of its number (ByT5, Perceiver)."""
    joined = "".join(subwords)
    return len(joined) == len(subwords) and joined == text.encode().decode("latin-1")


def _unescaped(said: str, text: str) -> tuple[str, list[int]]:
    """What subwords say without the escapes of Moses (`&apos;` in FSMT and BioGPT), and of each letter its place there.
    Those that the text has itself stay."""
    place_of: list[int] = []
    plain = ""
    end = 0
    for escape in ESCAPED.finditer(said) if said != text else ():
        place_of += range(len(plain), len(plain) + escape.start() - end)
        plain += said[end : escape.start()]
        place_of += [len(plain)] * len(escape[0])
        plain += html.unescape(escape[0])
        end = escape.end()
    place_of += range(len(plain), len(plain) + len(said) - end)
    return plain + said[end:], place_of


def _index_of(some: list[int], ids: list[int]) -> int | None:
    """Where some ids stand among others; None where they do not."""
    starts = range(len(ids) - len(some) + 1)
    return next((start for start in starts if ids[start : start + len(some)] == some), None)


def _aligned(sentence: Annotated, ids: list[int], offsets: list[Offsets]) -> Aligned | None:
    """Each subword goes to the word it shares most letters with, one without letters (a blank) to the following word.

    A word without a subword merges with the word whose subword has its letters. None: no subword has them.
    """
    words_at: list[list[int]] = [[] for _ in sentence.text]
    for word, span in enumerate(sentence.spans):
        for letter in range(*span):
            words_at[letter].append(word)

    covered: list[Counter[int]] = []  # by subword, the letters that it has of each word
    for offset in offsets:
        counts: Counter[int] = Counter()
        for letter in range(*(offset or (0, 0))):
            counts.update(words_at[letter])
        covered.append(counts)
    # None for a subword without letters.
    owners = [max(counts, key=counts.__getitem__, default=None) for counts in covered]

    glued: set[int] = set()  # words that are one with the word before them
    for word in set(range(len(sentence.words))) - set(owners):
        holders = [owner for owner, counts in zip(owners, covered, strict=True) if word in counts]
        if not holders or holders[0] is None:
            return None
        # All words between the two are one with them, too: words are neighbours.
        glued.update(range(min(word, holders[0]) + 1, max(word, holders[0]) + 1))
    merged = sentence.merged(glued)
    if not merged.words:
        return None

    unit_of = merged_indices(len(sentence.words), glued)
    word_of: list[int] = []
    # From the end, so that a blank gets the word behind it; one at the very end goes to the last word.
    following = len(merged.words) - 1
    for offset, owner in zip(reversed(offsets), reversed(owners), strict=True):
        following = following if owner is None else unit_of[owner]
        word_of.append(SPECIAL_WORD if offset is None else following)
    return Aligned(ids, word_of[::-1], merged)
