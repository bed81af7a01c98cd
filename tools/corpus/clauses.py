"""Draw clauses, and the pronouns by which a later clause refers to an earlier one."""

from typing import Literal

from corpus import choices
from corpus.choices import Draw, Urn, verbs
from corpus.meaning import (
    HE_OR_SHE,
    SPEAKER,
    THEY,
    WE,
    Clause,
    Modal,
    Nominal,
    NounPhrase,
    Pair,
    Phrase,
    Pronoun,
    Tense,
)
from corpus.phrases import Phrases
from corpus.vocabulary import Preposition, Verb

_KINDS = Urn(("p", "a", "t", "l", "i"), (52, 16, 16, 6, 10))
_DESCRIBED = {"p": 0.25, "a": 0.3, "t": 0.65, "l": 0.8, "i": 0.5}
_TRANSITIVE = {"p": 0.8, "a": 0.6, "t": 0.0, "l": 0.0, "i": 0.7}
_ANYTHING = "patlic"
_MODALS: dict[Tense, Urn[Modal]] = {
    "present": Urn((choices.WANT, choices.CAN, choices.MUST), (40, 30, 30)),
    "past": Urn((choices.WANT, choices.CAN), (60, 40)),
}


def _kind(nominal: Nominal) -> str:
    """What sort of thing a phrase or a pronoun is about."""
    if isinstance(nominal, Pronoun):
        return _kind(nominal.antecedent) if nominal.antecedent else "p"
    return nominal.first.noun.kind if isinstance(nominal, Pair) else nominal.noun.kind


def _refer(phrase: Phrase) -> Pronoun:
    return Pronoun(THEY if phrase.person == THEY else HE_OR_SHE, phrase)


class Clauses:
    """The clauses of one sentence, in the order in which they are said."""

    def __init__(self, draw: Draw) -> None:
        self.draw = draw
        self.phrases = Phrases(draw)

    def main(self, tense: Tense, *, opened: bool = False) -> Clause:
        """A clause about something new; `opened` allows an adverb or a place before it."""
        draw = self.draw
        opening: tuple[Preposition, NounPhrase] | None = None
        if opened and draw() < 0.08:
            opening = (choices.IN, self.phrases.noun_phrase("l", "inner"))
        kind = _KINDS.pick(draw)
        if kind == "p" and draw() < 0.1:
            clause = self._action(self._speaker(), tense)
        else:
            clause = self._about(self._subject(kind), tense)
        clause.opening = opening
        if opened and not opening and draw() < 0.12:
            clause.opening = choices.AT_THE_START.pick(draw)
        if opening:
            clause.places = []
        return clause

    def second(self, tense: Tense) -> Clause:
        """A clause that follows another one, most often with a pronoun for something in it."""
        chance = self.draw()
        referents = self._referents()
        if not referents or chance > 0.92:
            return self.main(tense)
        referent = referents[int(self.draw() * len(referents))]
        if chance < 0.5:
            return self._about(
                _refer(referent), tense, [other for other in referents if other is not referent]
            )
        verb = verbs("p", _kind(referent), pronoun=True)
        if verb is None:
            return self._about(_refer(referent), tense)
        subject = self._speaker() if self.draw() < 0.25 else self.phrases.phrase("p", "place")
        clause = Clause(subject, tense, verb.pick(self.draw), _refer(referent))
        return self._finish(clause)

    def shared(self) -> tuple[Clause, Clause]:
        """Two clauses, the second with the subject of the first: "The king buys a horse and sells it"."""
        draw = self.draw
        tense: Tense = "past" if draw() < 0.6 else "present"
        subject = self._speaker() if draw() < 0.15 else self._subject("p")
        verb = choices.some(verbs("p", _ANYTHING)).pick(draw)
        first = Clause(
            subject, tense, verb, self._object(verb.objects, subject, bool(verb.french_preposition))
        )
        target = first.object
        urn = verbs("p", _kind(target), pronoun=True) if target else None
        if (
            isinstance(target, NounPhrase | Pair)
            and urn
            and self.phrases.sole(target)
            and draw() < 0.7
        ):
            again = Clause(subject, tense, urn.pick(draw), _refer(target))
        else:
            verb = choices.some(verbs("p", _ANYTHING, pronoun=True)).pick(draw)
            again = Clause(subject, tense, verb, self._object(verb.objects, subject))
        again.silent_subject = True
        return first, again

    def reported(self) -> Clause:
        """Somebody says, thinks or knows that something is the case."""
        draw = self.draw
        tense: Tense = "past" if draw() < 0.4 else "present"
        clause = Clause(self._subject("p"), tense, choices.REPORTING.pick(draw))
        if tense == "past":
            referents = self._referents()
            if referents and draw() < 0.5:
                clause.complement = self._description(
                    _refer(referents[int(draw() * len(referents))]), "past"
                )
            else:
                clause.complement = self._description(self._subject(_KINDS.pick(draw)), "past")
        else:
            chance = draw()
            clause.complement = self.second(
                "past" if chance < 0.4 else "present" if chance < 0.7 else "future"
            )
        return clause

    def question(self) -> Clause:
        """A question to be answered by yes or no."""
        clause = self.main("past" if self.draw() < 0.5 else "present")
        clause.question = True
        clause.modal = None
        clause.negation = ""
        return clause

    def existence(self) -> Clause:
        """There is something, most often somewhere."""
        draw = self.draw
        what = self.phrases.noun_phrase("pat"[int(draw() * 3)], "object", indefinite=True)
        clause = Clause(None, "past" if draw() < 0.5 else "present", object=what)
        if not what.heavy and draw() < 0.2:
            what.relative = self._relative(what)
        if not what.heavy:
            clause.places = [self._place("p")]
        return clause

    def _referents(self) -> list[Phrase]:
        return [phrase for phrase in self.phrases.mentions if self.phrases.sole(phrase)]

    def _speaker(self) -> Pronoun:
        return Pronoun(SPEAKER if self.draw() < 0.65 else WE)

    def _subject(self, kind: str) -> Phrase:
        phrase = self.phrases.phrase(kind, "subject")
        if (
            isinstance(phrase, NounPhrase)
            and not phrase.noun.named
            and not phrase.heavy
            and self.draw() < 0.17
        ):
            phrase.relative = self._relative(phrase)
        return phrase

    def _about(self, subject: Nominal, tense: Tense, known: list[Phrase] | None = None) -> Clause:
        """Say something of a subject; `known` are other phrases that a pronoun may stand for."""
        kind = _kind(subject)
        if self.draw() < _DESCRIBED[kind]:
            return self._description(subject, tense)
        if tense != "present" and kind in "pati" and self.draw() < 0.18:
            return self._passive(subject, tense)
        return self._action(subject, tense, known)

    def _description(self, subject: Nominal, tense: Tense) -> Clause:
        draw = self.draw
        kind = _kind(subject)
        compared = draw() < 0.15
        adjective = choices.adjectives(kind, predicate=True, compared=compared).pick(draw)
        clause = Clause(subject, tense, adjective=adjective)
        if compared:
            clause.compared = "more" if draw() < 0.7 else "less"
            clause.standard = self.phrases.simple(kind)
        elif adjective.graded and draw() < 0.3:
            clause.degree = choices.HOW_MUCH.pick(draw)
        self._qualify(clause, how=False)
        return clause

    def _passive(self, subject: Nominal, tense: Tense) -> Clause:
        draw = self.draw
        verb = self._direct(_kind(subject))
        while verb.stative:
            verb = self._direct(_kind(subject))
        clause = Clause(subject, tense, verb, passive=True)
        self._qualify(clause, how=True)
        if draw() < 0.55:
            clause.agent = self.phrases.noun_phrase("p", "place")
        elif draw() < 0.5:
            clause.places = [self._place("t")]
        return clause

    def _action(self, subject: Nominal, tense: Tense, known: list[Phrase] | None = None) -> Clause:
        """Something that the subject does, with an object or without."""
        draw = self.draw
        kind = _kind(subject)
        speaker = isinstance(subject, Pronoun) and subject.antecedent is None
        if known and draw() < 0.4:
            referent = known[int(draw() * len(known))]
            urn = verbs(kind, _kind(referent), pronoun=True)
            if urn:
                return self._finish(Clause(subject, tense, urn.pick(draw), _refer(referent)))
        urn = verbs(kind, _ANYTHING) if speaker or draw() < _TRANSITIVE[kind] else verbs(kind, "")
        verb = choices.some(urn).pick(draw)
        clause = Clause(subject, tense, verb)
        if verb.objects:
            clause.object = self._object(verb.objects, subject, alone=bool(verb.french_preposition))
        return self._finish(clause)

    def _direct(self, kind: str) -> Verb:
        """A verb that people do to this kind of thing, without a preposition in either language."""
        urn = choices.some(verbs("p", kind, pronoun=True))
        verb = urn.pick(self.draw)
        while not verb.direct:
            verb = urn.pick(self.draw)
        return verb

    def _object(self, kinds: str, subject: Nominal, alone: bool = False) -> Phrase:
        """An object, which may belong to the subject; `alone`: no pair, because French would repeat the preposition."""
        draw = self.draw
        possessor = subject.antecedent if isinstance(subject, Pronoun) else subject
        if alone:
            return self.phrases.noun_phrase(kinds[int(draw() * len(kinds))], "object", possessor)
        phrase = self.phrases.phrase(kinds, "object", possessor)
        if (
            isinstance(phrase, NounPhrase)
            and not phrase.noun.named
            and not phrase.heavy
            and draw() < 0.1
        ):
            phrase.relative = self._relative(phrase)
        return phrase

    def _finish(self, clause: Clause) -> Clause:
        """Add what a clause with a verb may have besides: recipient, modal verb, negation, adverbs, a place."""
        draw = self.draw
        verb, subject, heavy = (
            clause.verb,
            clause.subject,
            bool(clause.object and clause.object.heavy),
        )
        assert verb and subject
        if verb.recipient and not heavy and draw() < 0.45:
            clause.recipient = self.phrases.simple("p")
        if clause.tense != "future" and _kind(subject) in "pa" and draw() < 0.12:
            clause.modal = _MODALS[clause.tense].pick(draw)
        self._qualify(clause, how=not verb.stative and not clause.modal)
        if heavy:
            return clause
        if draw() < (0.2 if clause.object else 0.5):
            clause.places = [self._place(_kind(subject))]
        elif not clause.middle and not clause.modal and not verb.stative and draw() < 0.22:
            clause.closing = (choices.HOW if draw() < 0.65 else choices.AT_THE_END).pick(draw)
        return clause

    def _qualify(self, clause: Clause, *, how: bool) -> None:
        """Add a negation or an adverb or both; `how` allows adverbs of manner."""
        draw = self.draw
        chance = draw()
        subject = clause.subject
        counted = isinstance(subject, NounPhrase) and subject.determiner in ("every", "many")
        if (
            chance < 0.14
            and not counted
            and not (clause.modal is choices.CAN and clause.tense == "present")
        ):
            self._negate(clause, "not" if chance < 0.1 else "never")
        if draw() < 0.18 and clause.negation != "never":
            adverb = (choices.HOW if how and draw() < 0.5 else choices.OFTEN).pick(draw)
            doubled = clause.degree is not None and adverb.english == "really"
            if (adverb.negated or not clause.negation) and not doubled:
                clause.middle = adverb

    @staticmethod
    def _negate(clause: Clause, word: Literal["not", "never"]) -> None:
        """Add a negation: "some" becomes "any", and an indefinite object with a relative clause is left alone."""
        target = clause.object
        if isinstance(target, NounPhrase) and target.determiner in ("a", "some"):
            if target.relative:
                return
            if target.determiner == "some":
                target.determiner = "any"
        clause.negation = word

    def _place(self, kind: str) -> tuple[Preposition, NounPhrase]:
        preposition, what = choices.PLACES.pick(self.draw)
        while what == "p" and kind != "p":
            preposition, what = choices.PLACES.pick(self.draw)
        return preposition, self.phrases.noun_phrase(what, "place")

    def _relative(self, phrase: NounPhrase) -> Clause:
        """A relative clause for this phrase: "who is tired", "that sees the king", "that Marie bought"."""
        draw = self.draw
        kind = phrase.noun.kind
        tense: Tense = "past" if draw() < 0.6 else "present"
        chance = draw()
        if chance < 0.45:
            verb = self._direct(kind)
            subject = self._speaker() if draw() < 0.3 else self.phrases.simple("p")
            return Clause(subject, tense, verb, phrase, gap="object")
        urn = verbs(kind, _ANYTHING, pronoun=True)
        if urn and chance < 0.8:
            verb = urn.pick(draw)
            what = self.phrases.simple(verb.objects[int(draw() * len(verb.objects))])
            return Clause(phrase, tense, verb, what, gap="subject")
        adjective = choices.adjectives(kind, predicate=True).pick(draw)
        return Clause(phrase, tense, adjective=adjective, gap="subject")
