"""What roles are compared with, beside their baselines: the same tests on text without its words, on text without its
order, and of untrained models.

A head that keeps its score on random words looks at places, not at words. A head that keeps it in shuffled sentences
does not need their order.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

import pandas as pd

from headwise.data.annotated import Annotated
from headwise.roles.label import KEY
from headwise.roles.passes import Progress, Subject, on_treebank
from headwise.roles.role import RANDOM_WORDS, SHUFFLED, role_of
from headwise.roles.table import Roles, conclude

COLUMNS = ("control", *KEY, "value", "n", "baseline", "found")
SENTENCES = 1000  # of a text, that controls are tested on


def random_words(sentences: Sequence[Annotated], seed: int) -> list[Annotated]:
    """Every word written as a random word of the text; how often words occur, the trees and the mentions stay."""
    draw = random.Random(seed)
    forms = [word.form for sentence in sentences for word in sentence.words]
    return [
        replace(
            sentence,
            words=tuple(
                replace(word, form=draw.choice(forms), space_after=True) for word in sentence.words
            ),
            written=None,
        )
        for sentence in sentences
    ]


def shuffled(sentences: Sequence[Annotated], seed: int) -> list[Annotated]:
    """Every sentence with its words in random order; the tree goes along with them, mentions of entities are lost."""
    draw, found = random.Random(seed), list[Annotated]()
    for sentence in sentences:
        order = draw.sample(range(len(sentence.words)), len(sentence.words))
        new = {old: place for place, old in enumerate(order)} | {-1: -1}
        words = (
            replace(w, governor=new[w.governor], space_after=True)
            for w in map(sentence.words.__getitem__, order)
        )
        found.append(replace(sentence, words=tuple(words), mentions=(), written=None))
    return found


CHANGES: dict[str, Callable[[Sequence[Annotated], int], list[Annotated]]] = {
    RANDOM_WORDS: random_words,
    SHUFFLED: shuffled,
}


def some(text: Iterable[Annotated], context: int) -> list[Annotated]:
    """At most SENTENCES sentences, spread evenly over a text; all of one that is read by several sentences at once."""
    every = list(text)
    step = -(-len(every) // SENTENCES) if context == 1 else 1
    return every[::step]


def on_changed_text(
    subject: Subject,
    treebank: Iterable[Annotated],
    confirm: Iterable[Annotated] | None,
    frequencies: Mapping[int, int] | None,
    seed: int,
    progress: Progress,
) -> pd.DataFrame:
    """The roles of a model on the text with random words and with shuffled sentences; `control_rows` of both."""
    context = subject.reading.context
    text, other = some(treebank, context), None if confirm is None else some(confirm, context)
    parts = []
    for name, change in CHANGES.items():
        again = None if other is None else change(other, seed + 1)
        answers = on_treebank(
            replace(subject, coverage={}), change(text, seed), again, frequencies, progress
        )
        parts.append(control_rows(name, conclude(subject.found.heads, [answers], None, {})))
    return pd.concat(parts, ignore_index=True)


def control_rows(name: str, found: Roles) -> pd.DataFrame:
    """The scores of a control for everything that can be a role, columns COLUMNS; found: 1 for a role."""
    table = found.table[found.table["measure"].map(role_of).notna()]
    have = set(found.roles[KEY].itertuples(index=False, name=None))
    roles = [int(key in have) for key in table[KEY].itertuples(index=False, name=None)]
    out: pd.DataFrame = table.assign(control=name, found=roles)[list(COLUMNS)]
    return out
