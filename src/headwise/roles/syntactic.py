"""Syntactic heads attend along a dependency (Voita et al. 2019, section 5.2; Clark et al. 2019, section 4.2)."""

from __future__ import annotations

from collections.abc import Iterator

from headwise.roles.passage import Passage
from headwise.roles.probe import Arc, Probe, pointing


def syntactic(passage: Passage) -> Probe:
    """How often a word attends most to its governor, or a governor to one of its dependents, for every relation.

    syntactic.REL.to-governor: share of the words with a governor by REL that point at it (Clark's attachment accuracy);
    syntactic.REL.to-dependent: share of the words with a dependent by REL that point at one. A word may not point at
    itself. Baseline: the best fixed offset between words or, where better, a random word or uniform weights on all
    subwords. REL is the relation without its subtype.
    """

    def arcs() -> Iterator[Arc]:
        for sentence, word, governor, relation in dependencies(passage):
            yield Arc(sentence, word, governor, f"syntactic.{relation}.to-governor")
            yield Arc(sentence, governor, word, f"syntactic.{relation}.to-dependent")

    return pointing(arcs(), passage, passage, "offset")


def attachment(passage: Passage) -> Probe:
    """How often the word that attends most to a dependent is its governor (Clark's reading of the transposed map).

    attachment.REL = share of words d with a governor by REL and argmax_q≠d A_h[q, d] = governor(d). Baseline as for
    `syntactic`.
    """
    arcs = []
    for sentence, word, governor, relation in dependencies(passage):
        arcs.append(Arc(sentence, word, governor, f"attachment.{relation}"))
    return pointing(arcs, passage, passage, "offset", "attending_words")


def dependencies(passage: Passage) -> Iterator[tuple[int, int, int, str]]:
    """Sentence, dependent, governor and relation of every word with a governor and a relation."""
    for number, sentence in enumerate(passage.sentences):
        for index, word in enumerate(sentence.words):
            if word.governor >= 0 and word.relation:
                yield number, index, word.governor, word.relation
