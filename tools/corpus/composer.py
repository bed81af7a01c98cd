"""Draw what a sentence says: its shape, and the link between its clauses."""

from corpus import choices
from corpus.choices import Draw, Urn
from corpus.clauses import Clauses
from corpus.meaning import Link, Sentence, Tense

_TENSES: Urn[Tense] = Urn(("past", "present", "future"), (50, 32, 18))
_SHAPES = Urn(
    ("simple", "linked", "shared", "condition", "reported", "question", "existence"),
    (36, 34, 8, 6, 7, 4, 5),
)
# a link, the tense of the first clause and of the second
_LINKS: Urn[tuple[Link, Tense, Tense]] = Urn(
    (
        (choices.BECAUSE, "past", "past"),
        (choices.BECAUSE, "present", "present"),
        (choices.BECAUSE, "future", "present"),
        (choices.BUT, "past", "past"),
        (choices.BUT, "present", "future"),
        (choices.AND, "past", "past"),
        (choices.AND, "present", "present"),
        (choices.AND, "future", "future"),
        (choices.SO, "past", "past"),
        (choices.SO, "present", "future"),
        (choices.WHEN, "past", "past"),
        (choices.WHEN, "present", "present"),
    ),
    (16, 8, 6, 12, 8, 10, 5, 5, 6, 6, 10, 5),
)


def compose(draw: Draw) -> Sentence:
    """The meaning of one sentence; `draw` gives uniform numbers in [0, 1)."""
    clauses = Clauses(draw)
    shape = _SHAPES.pick(draw)
    if shape == "linked":
        link, tense, second = _LINKS.pick(draw)
        return Sentence(clauses.main(tense), link, clauses.second(second))
    if shape == "condition":
        return Sentence(clauses.main("present"), choices.IF, clauses.second("future"), fronted=True)
    if shape == "shared":
        first, again = clauses.shared()
        return Sentence(first, choices.AND, again)
    if shape == "reported":
        return Sentence(clauses.reported())
    if shape == "question":
        return Sentence(clauses.question())
    if shape == "existence":
        first = clauses.existence()
        return (
            Sentence(first, choices.BUT, clauses.second(first.tense))
            if draw() < 0.4
            else Sentence(first)
        )
    return Sentence(clauses.main(_TENSES.pick(draw), opened=True))
