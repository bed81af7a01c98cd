"""A treebank without its words, and without their order: what roles are compared with."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from headwise.data.annotated import Annotated
from headwise.roles.role import RANDOM_WORDS, SHUFFLED

SENTENCES = 1000  # of a text, that controls are tested on, at most


def random_words(sentences: Sequence[Annotated], seed: int) -> list[Annotated]:
    """Every word written as a random word of the text; how often words occur, the trees and the mentions stay."""
    draw = random.Random(seed)
    forms = [word.form for sentence in sentences for word in sentence.words]
    changed = []
    for sentence in sentences:
        words = [
            replace(word, form=draw.choice(forms), space_after=True) for word in sentence.words
        ]
        changed.append(replace(sentence, words=tuple(words), written=None))
    return changed


def shuffled(sentences: Sequence[Annotated], seed: int) -> list[Annotated]:
    """Every sentence with its words in random order; the tree goes along with them, mentions of entities are lost."""
    draw = random.Random(seed)
    changed = []
    for sentence in sentences:
        order = draw.sample(range(len(sentence.words)), len(sentence.words))
        numbers = {old: new for new, old in enumerate(order)}
        numbers[-1] = -1  # the governor of a root
        words = []
        for old in order:
            word = sentence.words[old]
            words.append(replace(word, governor=numbers[word.governor], space_after=True))
        changed.append(replace(sentence, words=tuple(words), mentions=(), written=None))
    return changed


CHANGES: dict[str, Callable[[Sequence[Annotated], int], list[Annotated]]] = {
    RANDOM_WORDS: random_words,
    SHUFFLED: shuffled,
}


def sample_sentences(text: Iterable[Annotated], context: int) -> list[Annotated]:
    """At most SENTENCES sentences, spread evenly over a text; all of one that is read by several sentences at once."""
    every = list(text)
    step = -(-len(every) // SENTENCES) if context == 1 else 1
    return every[::step]
