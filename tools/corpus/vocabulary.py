"""What the grammar knows about a word: its English forms, its French forms, its gender, and what it can go with.

Kinds of things are single letters, because the word tables are long: p person, a animal, t thing, l place (a building
or a district), i idea, c named town. A verb lists the kinds its subject and its object may have.
"""

from dataclasses import dataclass
from typing import Literal, NamedTuple

from corpus.english_forms import english_plural, past_form, third_person
from corpus.french_forms import Conjugation, Four, Gender, adjective_forms, conjugate, plural

Kind = Literal["p", "a", "t", "l", "i", "c"]


@dataclass(frozen=True, slots=True)
class Noun:
    """A noun or a name; forms are (singular, plural). Names and masses have no plural in use (`counted` is False)."""

    english: tuple[str, str]
    french: tuple[str, str]
    gender: Gender
    kind: Kind
    counted: bool = True
    named: bool = False


@dataclass(frozen=True, slots=True)
class Title:
    """What stands before a surname; in French some titles keep their article ("le roi Dorvan")."""

    english: str
    french: tuple[str, ...]
    gender: Gender


@dataclass(frozen=True, slots=True)
class Verb:
    """A verb with its frame: the preposition each language puts before its object, and the kinds it goes with."""

    base: str
    third: str
    past: str
    participle: str
    english_preposition: str
    french: Conjugation
    french_preposition: str
    subjects: str
    objects: str
    with_etre: bool
    stative: bool
    recipient: bool

    @property
    def direct(self) -> bool:
        """Whether the object is a direct one in both languages."""
        return not self.english_preposition and not self.french_preposition


@dataclass(frozen=True, slots=True)
class Adjective:
    """An adjective. `place` 1, 2, 3: before the French noun, in that order; 4: after it; 5: right behind it."""

    english: str
    comparative: str
    french: Four
    before_vowel: str
    place: int
    kinds: str
    graded: bool


class Adverb(NamedTuple):
    """An adverb; `negated`: it can stand under "not"; `manner`: it says how (so not with "be")."""

    english: str
    french: str
    negated: bool = False
    manner: bool = True


class Preposition(NamedTuple):
    """A preposition; the French one may be several words."""

    english: str
    french: tuple[str, ...]


def nouns(table: str, kind: Kind, *, counted: bool = True) -> list[Noun]:
    """Read "girl fille f, man/men homme m, …": English (/ irregular plural), French (/ irregular plural), gender."""
    found = []
    for entry in table.replace("\n", " ").split(","):
        english, french, gender = entry.split()
        one, _, many = english.partition("/")
        un, _, des = french.partition("/")
        sex: Gender = "f" if gender == "f" else "m"
        found.append(
            Noun((one, many or english_plural(one)), (un, des or plural(un)), sex, kind, counted)
        )
    return found


def verb(line: str) -> Verb:
    """Read "see/saw/seen voir pa:pat flags": flags are e (être), s (stative), r (takes a recipient).

    A preposition before the object follows its verb after "+": "look+for chercher", "answer répondre+à".
    """
    english, french, frame, *flags = line.split()
    english, _, english_preposition = english.partition("+")
    french, _, french_preposition = french.partition("+")
    base, *parts = english.split("/")
    past = parts[0] if parts else past_form(base)
    participle = parts[1] if len(parts) > 1 else past
    subjects, _, objects = frame.partition(":")
    letters = "".join(flags)
    return Verb(
        base=base,
        third=third_person(base),
        past=past,
        participle=participle,
        english_preposition=english_preposition,
        french=conjugate(french),
        french_preposition=french_preposition,
        subjects=subjects,
        objects=objects,
        with_etre="e" in letters,
        stative="s" in letters,
        recipient="r" in letters,
    )


def adjective(line: str) -> Adjective:
    """Read "old/older vieux/vieille/vieil 3 patl -": English, French, place, kinds; "-" at the end: it has no degrees.

    The English comparative follows a slash; without one it is "more …", and "-" says that it is never compared. The
    French feminine and the form before a vowel follow where no rule gives them; with "_", a space, nothing changes.
    """
    english, french, place, kinds, *rest = line.split()
    positive, _, comparative = english.partition("/")
    masculine, *others = french.replace("_", " ").split("/")
    fixed = " " in masculine
    return Adjective(
        english=positive,
        comparative=comparative,
        french=(masculine,) * 4
        if fixed
        else adjective_forms(masculine, others[0] if others else ""),
        before_vowel=others[1] if len(others) > 1 else masculine,
        place=int(place),
        kinds=kinds,
        graded=not rest,
    )
