"""What is known about a sentence: its words with their grammar, where they stand in the text, who is mentioned.

Words, mentions and sentences count from 0, ends are exclusive, as in Python. `treebank` reads these from files,
`pieces` ties them to the pieces of a tokenizer.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate, groupby, pairwise
from typing import Literal

Kind = Literal["pronoun", "proper", "nominal"]
Span = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Word:
    """A word of a tree, in Universal Dependencies' terms.

    governor: the index of its head word, -1 for the root. relation: to the governor, without subtype ("nsubj");
    full_relation: with it ("nsubj:pass"). "" where nobody annotated one.
    """

    form: str
    lemma: str
    upos: str
    governor: int
    relation: str
    full_relation: str
    space_after: bool


@dataclass(frozen=True, slots=True)
class Mention:
    """The words [start, end) of a sentence that name an entity; mentions of a document with one `entity` corefer.

    sentence: its index in the document. head: the index of its syntactic head, see `mention`.
    """

    entity: str
    sentence: int
    start: int
    end: int
    head: int
    kind: Kind


@dataclass(frozen=True)
class Annotated:
    """One sentence. `mentions` is empty where the file has no coreference; they stand in order, the longer one first.

    written: the text and each word's place in it, given where the words alone do not tell (French "du" is de + le).
    skipped_mentions: those of the file that have no words of their own here (empty nodes) or stand in several parts.
    """

    words: tuple[Word, ...]
    id: str
    document: str
    mentions: tuple[Mention, ...] = ()
    written: tuple[str, tuple[Span, ...]] | None = None
    skipped_mentions: int = 0

    @property
    def text(self) -> str:
        """The sentence as it is written: words that are glued together in the original have no blank between them."""
        return self._written[0]

    @property
    def spans(self) -> tuple[Span, ...]:
        """Where each word stands in `text`, in characters. Words that are fused into one ("du") share their place."""
        return self._written[1]

    @cached_property
    def _written(self) -> tuple[str, tuple[Span, ...]]:
        return self.written or laid_out([(word.form, word.space_after) for word in self.words])

    @classmethod
    def plain(cls, text: str, id: str = "") -> Annotated:
        """A sentence nobody annotated: its words are what stands between blanks, without relations and governors."""
        forms = text.split()
        words = tuple(Word(form, form, "X", -1, "", "", True) for form in forms)
        return cls(words, id, id)

    def merged(self, glued: Collection[int]) -> Annotated:
        """The same sentence where each of these words is one with the word before it, written as they are in the text.

        It has the grammar of the one of them that is nearest the root; relations between them are gone.
        """
        if not glued:
            return self
        new = merged_places(len(self.words), glued)
        units = [list(unit) for _, unit in groupby(range(len(self.words)), new.__getitem__)]
        spans = tuple((self.spans[unit[0]][0], max(self.spans[index][1] for index in unit)) for unit in units)
        words: list[Word] = []
        for unit, span in zip(units, spans, strict=True):
            leader = self.words[nearest_root(self.words, unit)]
            governor = leader.governor if leader.governor < 0 else new[leader.governor]
            form = leader.form if len(unit) == 1 else self.text[slice(*span)]
            words.append(replace(leader, form=form, governor=governor, space_after=self.words[unit[-1]].space_after))
        mentions = (replace(m, start=new[m.start], end=new[m.end - 1] + 1, head=new[m.head]) for m in self.mentions)
        return replace(self, words=tuple(words), mentions=tuple(mentions), written=(self.text, spans))


def merged_places(count: int, glued: Collection[int]) -> list[int]:
    """The index that each of `count` words has after `Annotated.merged`."""
    return list(accumulate((index not in glued for index in range(1, count)), initial=0))[:count]


def laid_out(tokens: Sequence[tuple[str, bool]]) -> tuple[str, tuple[Span, ...]]:
    """The text of tokens (form, whether a blank follows), and the place of each in it; no blank at the end."""
    starts = [0]
    for form, space_after in tokens:
        starts.append(starts[-1] + len(form) + space_after)
    text = "".join(form + " " * space_after for form, space_after in tokens).rstrip(" ")
    return text, tuple(
        (start, start + len(form)) for (start, _), (form, _) in zip(pairwise(starts), tokens, strict=True)
    )


def depth(words: Sequence[Word], index: int) -> int:
    """How many steps a word is below the root."""
    steps = 0
    while (index := words[index].governor) >= 0:
        steps += 1
    return steps


def nearest_root(words: Sequence[Word], candidates: Sequence[int]) -> int:
    """The candidate with the fewest steps to the root, the first of several."""
    return min(candidates, key=lambda index: depth(words, index))


def mention(words: Sequence[Word], entity: str, sentence: int, start: int, end: int) -> Mention:
    """The mention of these words: its head is the word whose governor lies outside, the nearest to the root of several.

    It is a pronoun, proper or nominal by the universal part of speech of its head (PRON, PROPN, anything else).
    """
    head = nearest_root(words, [i for i in range(start, end) if not start <= words[i].governor < end])
    kinds: dict[str, Kind] = {"PRON": "pronoun", "PROPN": "proper"}
    return Mention(entity, sentence, start, end, head, kinds.get(words[head].upos, "nominal"))
