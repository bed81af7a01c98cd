"""An annotated sentence: its words with their grammar, their position in the text, and the mentions of entities.

Words, mentions and sentences count from 0, ends are exclusive, as in Python. `treebank` reads these from files,
`subwords` aligns them with a tokenizer.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate
from typing import Literal

import regex

MentionKind = Literal["pronoun", "proper", "nominal", "unknown"]
Span = tuple[int, int]
# Not `re`, which splits words of Hindi at their vowels.
WORD = regex.compile(r"\w+|[^\w\s]")
_KINDS: dict[str, MentionKind] = {"PRON": "pronoun", "PROPN": "proper", "": "unknown"}


@dataclass(frozen=True, slots=True)
class Word:
    """A word of a tree, in the terms of Universal Dependencies.

    governor: the index of its head word, -1 for the root. relation: to the governor, without subtype ("nsubj");
    full_relation: with it ("nsubj:pass"). These and upos are "" where the treebank says nothing.
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
    kind: MentionKind


@dataclass(frozen=True)
class Annotated:
    """One sentence. `mentions` are in order of their start, the longer one first; empty without coreference.

    written: the text and the span of each word, where they do not follow from the words (French "du" is de + le).
    skipped_mentions: those that have no words of their own (empty nodes) or consist of several parts. other_text: whether
    the treebank gives the sentence another text (`# text`) than its words have.
    """

    words: tuple[Word, ...]
    id: str
    document: str
    mentions: tuple[Mention, ...] = ()
    written: tuple[str, tuple[Span, ...]] | None = None
    skipped_mentions: int = 0
    other_text: bool = False

    @property
    def text(self) -> str:
        """The original sentence, with a blank only where the original has one."""
        return self._written[0]

    @property
    def spans(self) -> tuple[Span, ...]:
        """The characters of each word in `text`. Words that are fused into one ("du") have the same span."""
        return self._written[1]

    @cached_property
    def _written(self) -> tuple[str, tuple[Span, ...]]:
        return self.written or lay_out([(word.form, word.space_after) for word in self.words])

    @classmethod
    def plain(cls, text: str, id: str = "") -> Annotated:
        """A sentence without annotation: its words are separated by blanks, without relations and governors."""
        words = [Word(form, form, "X", -1, "", "", True) for form in text.split()]
        return cls(tuple(words), id, id)

    def merged(self, glued: Collection[int]) -> Annotated:
        """The same sentence where each of these words is one with the word before it, written as in the text.

        It has the grammar of its word that is nearest the root; relations between its words are lost.
        """
        if not glued:
            return self
        new = merged_indices(len(self.words), glued)
        # By new word, the old ones that it is made of.
        units: list[list[int]] = [[] for _ in range(new[-1] + 1)]
        for old, unit_number in enumerate(new):
            units[unit_number].append(old)
        spans = []
        for unit in units:
            end = max(self.spans[index][1] for index in unit)
            spans.append((self.spans[unit[0]][0], end))

        words: list[Word] = []
        steps = depths(self.words)
        for unit, span in zip(units, spans, strict=True):
            # `min` takes the first of words that are equally near the root.
            leader = self.words[min(unit, key=steps.__getitem__)]
            governor = leader.governor if leader.governor < 0 else new[leader.governor]
            form = leader.form if len(unit) == 1 else self.text[slice(*span)]
            words.append(
                replace(
                    leader,
                    form=form,
                    governor=governor,
                    space_after=self.words[unit[-1]].space_after,
                )
            )
        mentions = []
        for mention in self.mentions:
            start = new[mention.start]
            end = new[mention.end - 1] + 1
            mentions.append(replace(mention, start=start, end=end, head=new[mention.head]))
        return replace(
            self,
            words=tuple(words),
            mentions=tuple(mentions),
            written=(self.text, tuple(spans)),
        )


def merged_indices(count: int, glued: Collection[int]) -> list[int]:
    """The index that each of `count` words has after `Annotated.merged`."""
    # The first word has none before it, so it counts as not glued.
    own = accumulate(index > 0 and index not in glued for index in range(count))
    return [int(number) for number in own]


def lay_out(tokens: Sequence[tuple[str, bool]]) -> tuple[str, tuple[Span, ...]]:
    """The text of tokens (form, whether a blank follows), and the span of each in it; no blank at the end."""
    text = ""
    spans = []
    for form, space in tokens:
        spans.append((len(text), len(text) + len(form)))
        text += form + " " * space
    return text.rstrip(" "), tuple(spans)


class Cycle(Exception):
    """Words that govern each other in a cycle, in `args[0]`."""


def depths(words: Sequence[Word]) -> list[int]:
    """The number of steps from each word to its root. Raises Cycle where governors never end at one."""
    steps_of = {-1: -1}
    for start in range(len(words)):
        # Up to the root, or to a word whose steps are known. A dict, because it keeps the order and looks up fast.
        path: dict[int, None] = {}
        index = start
        while index not in steps_of:
            if index in path:
                raise Cycle([*path][[*path].index(index) :])
            path[index] = None
            index = words[index].governor
        for steps, word in enumerate(reversed(path), start=steps_of[index] + 1):
            steps_of[word] = steps
    return [steps_of[index] for index in range(len(words))]


def mention(
    words: Sequence[Word],
    entity: str,
    sentence: int,
    start: int,
    end: int,
    steps: Sequence[int] | None = None,
) -> Mention:
    """The mention of these words: its head is the word nearest the root, the first of several, whose governor therefore
    lies outside. steps: `depths(words)`, where the caller has them.

    It is a pronoun, proper or nominal by the universal part of speech of its head (PRON, PROPN, anything else), unknown
    without one.
    """
    head = min(range(start, end), key=(steps or depths(words)).__getitem__)
    return Mention(entity, sentence, start, end, head, _KINDS.get(words[head].upos, "nominal"))


def split_into_words(text: str, name: str) -> Annotated:
    """A sentence in words and punctuation marks, without annotation."""
    words = []
    spans = []
    for match in WORD.finditer(text):
        form = match[0]
        space_after = text[match.end() : match.end() + 1].isspace()
        words.append(Word(form, form, "X", -1, "", "", space_after))
        spans.append(match.span())
    return Annotated(tuple(words), name, name, written=(text, tuple(spans)))
