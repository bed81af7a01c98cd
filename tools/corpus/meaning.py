"""What a sentence of the embedded corpus says, before any language: phrases, pronouns with their antecedents, clauses.

`english.py` and `french.py` each write a meaning down; neither looks at the other's words. The French is a function of
the English because the English sentence of every meaning contains all that the French one needs.
"""

from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from corpus.french_forms import Gender
from corpus.vocabulary import Adjective, Adverb, Noun, Preposition, Title, Verb

Tense = Literal["present", "past", "future"]
SPEAKER, HE_OR_SHE, WE, THEY = range(4)  # the persons, in the order of the verb forms


class Modifier(NamedTuple):
    """An adjective in a noun phrase, with "very" or without."""

    adjective: Adjective
    very: bool = False


@dataclass(slots=True, eq=False)
class NounPhrase:
    """A noun or a name with all that hangs on it."""

    noun: Noun
    plural: bool = False
    determiner: str = ""
    modifiers: tuple[Modifier, ...] = ()
    joined: bool = False  # two adjectives with "and" between them
    owner: "NounPhrase | None" = None  # "Marie's"
    possessor: "NounPhrase | Pair | None" = None  # whom "his", "her", "its", "their" means
    complement: "tuple[Preposition, NounPhrase] | None" = None
    relative: "Clause | None" = None
    title: Title | None = None
    surname: str = ""

    @property
    def gender(self) -> Gender:
        return self.title.gender if self.title else self.noun.gender

    @property
    def person(self) -> int:
        return THEY if self.plural else HE_OR_SHE

    @property
    def heavy(self) -> bool:
        """Whether words follow the noun, so that a later phrase could be read as belonging to them."""
        return self.complement is not None or self.relative is not None


@dataclass(slots=True, eq=False)
class Pair:
    """Two noun phrases with "and"; masculine unless both are feminine."""

    first: NounPhrase
    second: NounPhrase

    @property
    def gender(self) -> Gender:
        return "f" if self.first.gender == self.second.gender == "f" else "m"

    @property
    def person(self) -> int:
        return THEY

    @property
    def heavy(self) -> bool:
        return False


@dataclass(slots=True, eq=False)
class Pronoun:
    """A personal pronoun: "I", "we", or one that stands for its antecedent and takes its gender and number."""

    person: int
    antecedent: NounPhrase | Pair | None = None

    @property
    def gender(self) -> Gender:
        return self.antecedent.gender if self.antecedent else "m"

    @property
    def heavy(self) -> bool:
        return False


Phrase = NounPhrase | Pair
Nominal = NounPhrase | Pair | Pronoun


def pronoun_for(phrase: Phrase) -> str:
    """The English pronoun that can stand for this phrase: he, she, it or they."""
    if phrase.person == THEY or isinstance(phrase, Pair):
        return "they"
    if phrase.noun.kind == "p":
        return "she" if phrase.gender == "f" else "he"
    return "it"


class Modal(NamedTuple):
    """A verb that governs another one; the forms are ordered I, he, we, they. `to`: it is followed by "to"."""

    base: str
    present: tuple[str, str, str, str]
    past: str
    to: bool
    french_present: tuple[str, str, str, str]
    french_past: tuple[str, str, str, str]


@dataclass(slots=True, eq=False)
class Clause:
    """A subject and what is said of it. With a verb: something is done; else with an adjective: something is so.

    `gap` is the part that a relative pronoun stands for. A silent subject is said in the clause before ("buys … and
    sells"). Without subject, verb and adjective the clause says that its object exists ("there is a …").
    """

    subject: Nominal | None
    tense: Tense
    verb: Verb | None = None
    object: Nominal | None = None
    adjective: Adjective | None = None
    degree: Adverb | None = None
    compared: str = ""  # "more" or "less"
    standard: NounPhrase | None = None  # what it is compared with
    passive: bool = False
    agent: NounPhrase | None = None
    modal: Modal | None = None
    negation: Literal["", "not", "never"] = ""
    recipient: NounPhrase | None = None
    places: list[tuple[Preposition, NounPhrase]] = field(default_factory=list)
    opening: "Adverb | tuple[Preposition, NounPhrase] | None" = None
    middle: Adverb | None = None
    closing: Adverb | None = None
    complement: "Clause | None" = None  # "says that …"
    gap: Literal["", "subject", "object"] = ""
    silent_subject: bool = False
    question: bool = False


class Link(NamedTuple):
    """A word between two clauses, its part of speech and relation; it opens a clause whose relation is `clause`."""

    english: str
    french: tuple[str, ...]
    upos: str
    deprel: str
    clause: str
    comma: bool


@dataclass(slots=True, eq=False)
class Sentence:
    """One clause, or two with a link; a fronted link stands before the first clause ("If it is cheap, …")."""

    first: Clause
    link: Link | None = None
    second: Clause | None = None
    fronted: bool = False
