"""Random noun phrases, and the record of those that a pronoun could stand for."""

from typing import Literal

from corpus import choices
from corpus.choices import Draw
from corpus.meaning import Modifier, NounPhrase, Pair, Phrase, pronoun_for
from corpus.vocabulary import Noun, Preposition

Role = Literal["subject", "object", "place", "inner"]
_POSSESSIVE = {"he": "his", "she": "her", "it": "its", "they": "their"}

_OPEN = (
    "the",
    "a",
    "some",
    "this",
    "two",
    "three",
    "many",
)  # determiners that let "of Marie" follow the noun

# how often an adjective, a second one, a phrase behind the noun, a pair and an owner come, by the role of the phrase
_RICHNESS: dict[Role, tuple[float, float, float, float, float]] = {
    "subject": (0.42, 0.36, 0.22, 0.08, 0.08),
    "object": (0.50, 0.45, 0.08, 0.05, 0.07),
    "place": (0.35, 0.30, 0.05, 0.00, 0.05),
    "inner": (0.30, 0.15, 0.00, 0.00, 0.00),
}


class Phrases:
    """The noun phrases of one sentence: each is drawn here and written into the account of mentions."""

    def __init__(self, draw: Draw) -> None:
        self.draw = draw
        self.mentions: list[Phrase] = []
        self.nouns: set[str] = set()

    def phrase(self, kinds: str, role: Role, possessor: Phrase | None = None) -> Phrase:
        """A phrase about one of these kinds of things; with a possessor it may say "his", "her", "its" or "their"."""
        draw = self.draw
        kind = kinds[int(draw() * len(kinds))]
        if kind in "pt" and draw() < _RICHNESS[role][3]:
            return self.pair(kind)
        return self.noun_phrase(kind, role, possessor)

    def pair(self, kind: str) -> Pair:
        """Two definite phrases or names of one kind, with "and"."""
        first, second = (self.simple(kind) for _ in range(2))
        both = Pair(first, second)
        self.mentions.append(both)
        return both

    def simple(self, kind: str) -> NounPhrase:
        """A name, or a noun with "the" and nothing else."""
        if kind == "c" or (kind == "p" and self.draw() < 0.55):
            return self.name(kind)
        return self._mentioned(NounPhrase(self._noun(kind), determiner="the"))

    def name(self, kind: str) -> NounPhrase:
        """A town; or a person by first name, by both names, or by title and surname."""
        draw = self.draw
        if kind == "c":
            return self._mentioned(NounPhrase(self._noun("c")))
        chance = draw()
        first = self._new(choices.NAMES)
        surname = choices.INVENTED.pick(draw) if chance > 0.5 else ""
        title = choices.ADDRESSED.pick(draw) if chance > 0.68 else None
        return self._mentioned(NounPhrase(first, title=title, surname=surname))

    def noun_phrase(
        self, kind: str, role: Role, possessor: Phrase | None = None, *, indefinite: bool = False
    ) -> NounPhrase:
        """A noun phrase as rich as its role allows; `indefinite` for what "there is"."""
        draw = self.draw
        if kind == "c" or (kind == "p" and not indefinite and draw() < 0.38):
            return self.name(kind)
        adjective, second, complement, _, owner = _RICHNESS[role]
        phrase = NounPhrase(self._noun(kind))
        phrase.plural = phrase.noun.counted and draw() < 0.3
        if draw() < adjective and kind in "patli":
            self._modify(phrase, draw() < second)
        if not indefinite and draw() < owner:
            phrase.owner = self.simple("p" if kind == "p" or draw() < 0.9 else "a")
            if phrase.owner.plural or phrase.owner.surname.endswith("s"):
                phrase.owner = None
        elif possessor and draw() < 0.3 and self.sole(possessor):
            phrase.determiner, phrase.possessor = _POSSESSIVE[pronoun_for(possessor)], possessor
        if not phrase.owner and not phrase.possessor:
            phrase.determiner = self._determiner(phrase, role, indefinite)
        self._mentioned(phrase)
        if phrase.determiner in _OPEN and draw() < complement:
            phrase.complement = self.complement(kind, role)
        return phrase

    def complement(self, kind: str, role: Role) -> tuple[Preposition, NounPhrase]:
        """A phrase behind a noun of this kind; behind an object only "of", so that it is sure to belong to the noun."""
        preposition, what = choices.COMPLEMENTS[kind].pick(self.draw)
        while role != "subject" and preposition is not choices.OF:
            preposition, what = choices.COMPLEMENTS[kind].pick(self.draw)
        return preposition, self.noun_phrase(what, "inner")

    def sole(self, phrase: Phrase) -> bool:
        """Whether no other phrase so far could be meant by its pronoun; never so for a town, of unknown gender."""
        pronoun = pronoun_for(phrase)
        rivals = [mention for mention in self.mentions if pronoun_for(mention) == pronoun]
        return rivals == [phrase] and not (
            isinstance(phrase, NounPhrase) and phrase.noun.kind == "c"
        )

    def _mentioned(self, phrase: NounPhrase) -> NounPhrase:
        self.mentions.append(phrase)
        return phrase

    def _noun(self, kind: str) -> Noun:
        return self._new(choices.NOUNS[kind])

    def _new(self, urn: choices.Urn[Noun]) -> Noun:
        """A noun that the sentence does not have yet."""
        noun = urn.pick(self.draw)
        while noun.english[0] in self.nouns:
            noun = urn.pick(self.draw)
        self.nouns.add(noun.english[0])
        return noun

    def _determiner(self, phrase: NounPhrase, role: Role, indefinite: bool) -> str:
        chance = self.draw()
        if indefinite:
            if phrase.plural:
                return (
                    "some"
                    if chance < 0.45
                    else "many"
                    if chance < 0.65
                    else "two"
                    if chance < 0.85
                    else "three"
                )
            return "a"
        if not phrase.noun.counted:
            return "the" if chance < 0.75 else "this" if chance < 0.9 else "our"
        if chance < 0.5:
            return "the"
        if chance < 0.68 and role != "place":
            return "some" if phrase.plural else "a"
        if chance < 0.78:
            return "this"
        if chance < 0.92:
            return "my" if chance < 0.87 else "our"
        if phrase.plural:
            return "two" if chance < 0.95 else "three" if chance < 0.97 else "many"
        return "every" if role == "subject" and chance > 0.97 else "the"

    def _modify(self, phrase: NounPhrase, twice: bool) -> None:
        """Give the phrase one or two adjectives which French can order."""
        draw = self.draw
        urn = choices.adjectives(phrase.noun.kind)
        first = urn.pick(draw)
        if not twice:
            phrase.modifiers = (Modifier(first, first.graded and draw() < 0.12),)
            return
        second = urn.pick(draw)
        if first.place > second.place:
            first, second = second, first
        places = first.place, second.place
        if places == (4, 4) and first is not second:
            phrase.joined = True
        elif first.place == second.place or places == (2, 3):
            phrase.modifiers = (Modifier(second),)
            return
        phrase.modifiers = Modifier(first), Modifier(second)
