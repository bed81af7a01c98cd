"""Which words there are to choose from, and how often each is chosen: Zipf's law over the common words and the tail."""

from bisect import bisect
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from itertools import accumulate
from typing import Generic, TypeVar

from corpus import common_words, rare_words
from corpus.french_forms import Gender
from corpus.meaning import Link, Modal
from corpus.vocabulary import Adjective, Adverb, Kind, Noun, Preposition, Title, Verb
from corpus.vocabulary import adjective as read_adjective
from corpus.vocabulary import nouns as read_nouns
from corpus.vocabulary import verb as read_verb

T = TypeVar("T")
Draw = Callable[[], float]
SURNAMES = 3000
TOWNS = 1500


class Urn(Generic[T]):
    """Things to draw by weight; `draw` is a source of uniform numbers in [0, 1)."""

    def __init__(self, things: Sequence[T], weights: Iterable[float]) -> None:
        self.things = things
        self.sums = list(accumulate(weights))

    def pick(self, draw: Draw) -> T:
        """One of the things."""
        return self.things[bisect(self.sums, draw() * self.sums[-1], 0, len(self.sums) - 1)]


def _zipf(things: Sequence[T], exponent: float = 1.0, offset: float = 3.0) -> Urn[T]:
    """An urn in which the thing of rank r (from 0) has the weight 1 / (r + offset) ** exponent."""
    return Urn(things, [(rank + offset) ** -exponent for rank in range(len(things))])


def _lines(table: str) -> list[str]:
    return table.strip().splitlines()


def _names(table: str, gender: Gender) -> list[Noun]:
    return [
        Noun((name, name), (name, name), gender, "p", counted=False, named=True)
        for name in table.split()
    ]


def _towns() -> list[Noun]:
    known = [entry.split() for entry in common_words.TOWNS.replace("\n", " ").split(",")]
    invented = [[name, name] for name in rare_words.invented_names("town", TOWNS)]
    return [
        Noun((one, one), (un, un), "f", "c", counted=False, named=True)
        for one, un in (*known, *invented)
    ]


def _titles() -> Urn[Title]:
    found = []
    for entry in common_words.TITLES.replace("\n", " ").split(","):
        english, *french, gender = entry.split()
        found.append(Title(english, tuple(french), "f" if gender == "f" else "m"))
    return _zipf(found)


def _adverbs(table: str, manner: bool = False) -> list[Adverb]:
    pairs = (entry.split() for entry in table.replace("\n", " ").split(","))
    return [Adverb(one, un, one in common_words.NEGATED, manner) for one, un in pairs]


NOUNS: dict[str, Urn[Noun]] = {
    "p": _zipf(read_nouns(common_words.PEOPLE, "p") + read_nouns(rare_words.RARE_PEOPLE, "p")),
    "a": _zipf(read_nouns(common_words.ANIMALS, "a") + read_nouns(rare_words.RARE_ANIMALS, "a")),
    "t": _zipf(read_nouns(common_words.THINGS, "t") + read_nouns(rare_words.RARE_THINGS, "t")),
    "l": _zipf(read_nouns(common_words.PLACES, "l") + read_nouns(rare_words.RARE_PLACES, "l")),
    "i": _zipf(read_nouns(common_words.IDEAS, "i") + rare_words.rare_ideas(), exponent=1.1),
    "c": _zipf(_towns()),
}
NAMES = _zipf(
    sum(zip(_names(common_words.WOMEN, "f"), _names(common_words.MEN, "m"), strict=True), ())
)
INVENTED = _zipf(rare_words.invented_names("surname", SURNAMES), offset=40)
ADDRESSED = _titles()
_VERBS = [read_verb(line) for line in _lines(common_words.VERBS)]
_ADJECTIVES = [
    read_adjective(line)
    for line in _lines(common_words.ADJECTIVES) + _lines(rare_words.RARE_ADJECTIVES)
]

OFTEN = _zipf(_adverbs(common_words.FREQUENCY))
HOW = _zipf(_adverbs(common_words.MANNER + "," + rare_words.RARE_MANNER, manner=True))
AT_THE_END = _zipf(_adverbs(common_words.CLOSING))
AT_THE_START = _zipf(_adverbs(common_words.OPENING))
HOW_MUCH = _zipf(_adverbs(common_words.DEGREES))

IN, AT_TOWN = Preposition("in", ("dans",)), Preposition("in", ("à",))
NEAR, BEHIND = Preposition("near", ("près", "de")), Preposition("behind", ("derrière",))
WITH, FOR = Preposition("with", ("avec",)), Preposition("for", ("pour",))
OF, FROM, UNDER = (
    Preposition("of", ("de",)),
    Preposition("from", ("de",)),
    Preposition("under", ("sous",)),
)

PLACES: Urn[tuple[Preposition, Kind]] = Urn(
    ((IN, "l"), (NEAR, "l"), (AT_TOWN, "c"), (BEHIND, "l"), (WITH, "p"), (NEAR, "c")),
    (40, 16, 18, 8, 14, 4),
)
COMPLEMENTS: dict[str, Urn[tuple[Preposition, Kind]]] = {
    "p": Urn(
        ((FROM, "c"), (OF, "p"), (NEAR, "l"), (WITH, "t"), (IN, "l"), (WITH, "a")),
        (30, 15, 15, 25, 10, 10),
    ),
    "a": Urn(
        ((OF, "p"), (NEAR, "l"), (BEHIND, "l"), (UNDER, "t"), (FROM, "c")), (30, 25, 15, 20, 10)
    ),
    "t": Urn(((OF, "p"), (IN, "l"), (NEAR, "t"), (UNDER, "t"), (FROM, "c")), (30, 25, 20, 10, 15)),
    "l": Urn(((OF, "p"), (NEAR, "l"), (OF, "c"), (BEHIND, "l")), (25, 25, 30, 20)),
    "i": Urn(((OF, "p"), (OF, "i"), (OF, "c")), (50, 35, 15)),
}

WANT = Modal(
    "want",
    ("want", "wants", "want", "want"),
    "wanted",
    True,
    ("veux", "veut", "voulons", "veulent"),
    ("voulais", "voulait", "voulions", "voulaient"),
)
CAN = Modal(
    "can",
    ("can", "can", "can", "can"),
    "could",
    False,
    ("peux", "peut", "pouvons", "peuvent"),
    ("pouvais", "pouvait", "pouvions", "pouvaient"),
)
MUST = Modal(
    "must",
    ("must", "must", "must", "must"),
    "",
    False,
    ("dois", "doit", "devons", "doivent"),
    ("", "", "", ""),
)

AND = Link("and", ("et",), "CCONJ", "cc", "conj", comma=False)
BUT = Link("but", ("mais",), "CCONJ", "cc", "conj", comma=True)
SO = Link("so", ("donc",), "SCONJ", "mark", "advcl", comma=True)
BECAUSE = Link("because", ("parce", "que"), "SCONJ", "mark", "advcl", comma=False)
WHEN = Link("when", ("quand",), "ADV", "advmod", "advcl", comma=False)
IF = Link("if", ("si",), "SCONJ", "mark", "advcl", comma=False)

REPORTING = Urn(
    [
        read_verb(line)
        for line in ("say/said dire p:", "think/thought penser p: s", "know/knew savoir p: s")
    ],
    (50, 30, 20),
)


@cache
def verbs(subject: str, objects: str, *, pronoun: bool = False) -> Urn[Verb] | None:
    """The verbs that go with this kind of subject and any of these kinds of object ("" for none); None without any.

    With `pronoun` only those whose object is a direct one in French, so that a pronoun can stand before the verb.
    """
    found = [
        verb
        for verb in _VERBS
        if subject in verb.subjects
        and (bool(set(objects) & set(verb.objects)) if objects else not verb.objects)
        and not (pronoun and verb.french_preposition)
    ]
    return _zipf(found, offset=5) if found else None


@cache
def adjectives(kind: str, *, predicate: bool = False, compared: bool = False) -> Urn[Adjective]:
    """The adjectives that go with this kind of thing; relational ones never stand alone after "be"."""
    found = [
        adjective
        for adjective in _ADJECTIVES
        if kind in adjective.kinds
        and not (predicate and (adjective.place == 5 or adjective.english == "new"))
        and not (compared and (not adjective.graded or adjective.comparative == "-"))
    ]
    return _zipf(found, offset=5)


def some(urn: Urn[T] | None) -> Urn[T]:
    """The urn, where the word tables make sure that there is one."""
    assert urn is not None
    return urn
