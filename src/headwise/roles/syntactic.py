"""Syntactic heads: those that look along a dependency (Voita et al. 2019, section 5.2; Clark et al. 2019, 4.2)."""

from __future__ import annotations

from collections.abc import Iterator

from headwise.roles.passage import Passage
from headwise.roles.question import Arc, Question, pointing


def syntactic(passage: Passage, per_arc: bool = False) -> Question:
    """How often a word looks at its governor, or a governor at one of its dependents, for every relation.

    syntactic.REL.to-governor: of the words that hang on another by REL, the share that point at it;
    syntactic.REL.to-dependent: of the words that have a REL, the share that point at one. A word may not point at
    itself. Baseline, on the same text and in the same unit: the best fixed offset between words, or, where they are
    better, chance or even weights on all pieces. REL is the relation without its subtype. The first is also Clark's
    attachment accuracy. per_arc: every dependency counts, not every governor that has one.
    """

    def arcs() -> Iterator[Arc]:
        for sentence, word, governor, relation in dependencies(passage):
            yield Arc(sentence, word, governor, f"syntactic.{relation}.to-governor")
            yield Arc(sentence, governor, word, f"syntactic.{relation}.to-dependent")

    return pointing(arcs(), passage, passage, "offset", per_arc=per_arc)


def attachment(passage: Passage) -> Question:
    """How often the word that looks most at a dependent is its governor: Clark's reading of the transposed map.

    attachment.REL = share of words d that hang on another by REL with argmax_q≠d A_h[q, d] = governor(d); baseline as
    for `syntactic`.
    """
    arcs = (Arc(s, word, governor, f"attachment.{relation}") for s, word, governor, relation in dependencies(passage))
    return pointing(arcs, passage, passage, "offset", "looking_words")


def dependencies(passage: Passage) -> Iterator[tuple[int, int, int, str]]:
    """Sentence, dependent, governor and relation of every word that hangs on another."""
    for number, sentence in enumerate(passage.sentences):
        for index, word in enumerate(sentence.words):
            if word.governor >= 0:
                yield number, index, word.governor, word.relation
