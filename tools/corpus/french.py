"""Write a meaning down in French: agreement, clitic pronouns, negation, tenses, the order of adjectives and adverbs."""

from corpus.french_forms import AVOIR, ETRE, elides, join
from corpus.meaning import Clause, Nominal, NounPhrase, Pair, Pronoun, Sentence
from corpus.vocabulary import Adverb, Preposition

_SUBJECTS = (("je", "je"), ("il", "elle"), ("nous", "nous"), ("ils", "elles"))
_CLITICS = {("m", 1): "le", ("f", 1): "la", ("m", 3): "les", ("f", 3): "les"}
_ARTICLES = {
    "the": ("le", "la", "les"),
    "a": ("un", "une", "des"),
    "some": ("un", "une", "des"),
    "any": ("un", "une", "des"),
}
_POSSESSIVES = {
    "my": ("mon", "ma", "mes"),
    "our": ("notre", "notre", "nos"),
    "his": ("son", "sa", "ses"),
    "her": ("son", "sa", "ses"),
    "its": ("son", "sa", "ses"),
    "their": ("leur", "leur", "leurs"),
}
_COUNTS = {"two": ["deux"], "three": ["trois"], "many": ["beaucoup", "de"], "every": ["chaque"]}
_COMPARED = {"more": "plus", "less": "moins"}
_THERE = {"present": ["il", "y", "a"], "past": ["il", "y", "avait"]}


def write(sentence: Sentence) -> str:
    """The French sentence."""
    words: list[str] = []
    first, link, second = sentence.first, sentence.link, sentence.second
    if first.question:
        words += ("est-ce", "que")
    if link and sentence.fronted:
        words += link.french
    words += _clause(first)
    if link and second:
        words += (",",) if link.comma or sentence.fronted else ()
        words += () if sentence.fronted else link.french
        words += _clause(second)
    return join(words, " ?" if first.question else ".")


def _form(nominal: Nominal) -> int:
    """Which of the four forms (ms, fs, mp, fp) agrees with this phrase."""
    return (nominal.gender == "f") + 2 * (nominal.person >= 2)


def _nominal(nominal: Nominal, *, negated: bool = False, after_de: bool = False) -> list[str]:
    """A phrase; "a" and "any" become "de" under a negation, and "des" vanishes after the preposition "de"."""
    if isinstance(nominal, Pronoun):
        return [_SUBJECTS[nominal.person][nominal.gender == "f"]]
    if isinstance(nominal, Pair):
        return [*_nominal(nominal.first), "et", *_nominal(nominal.second)]
    words = _core(nominal)
    if nominal.owner:
        words = [*_determiner(nominal, words, "the"), *words, "de", *_nominal(nominal.owner)]
    elif negated and nominal.determiner in ("a", "any"):
        words = ["de", *words]
    elif not (after_de and nominal.determiner in ("some", "any")):
        words = [*_determiner(nominal, words, nominal.determiner), *words]
    if nominal.complement:
        words += _prepositional(*nominal.complement)
    if nominal.relative:
        words += ("qui" if nominal.relative.gap == "subject" else "que", *_clause(nominal.relative))
    return words


def _core(phrase: NounPhrase) -> list[str]:
    """The noun with its adjectives, in the French order."""
    if phrase.title:
        return [*phrase.title.french, phrase.surname]
    noun = phrase.noun.french[phrase.plural]
    form = _form(phrase)
    before: list[list[str]] = []
    after: list[list[str]] = []
    following = noun
    for adjective, very in reversed(phrase.modifiers):
        word = adjective.french[form]
        if adjective.place < 4:
            if form == 0 and elides(following):
                word = adjective.before_vowel
            following = "très" if very else word
            before.insert(0, ["très", word] if very else [word])
        else:
            after.append(["très", word] if very else [word])
    if phrase.joined:
        after = [after[1], ["et"], after[0]]
    surname = [phrase.surname] if phrase.surname else []
    return [
        *(word for group in before for word in group),
        noun,
        *surname,
        *(word for group in after for word in group),
    ]


def _determiner(phrase: NounPhrase, words: list[str], determiner: str) -> list[str]:
    """The French determiner before these words."""
    if not determiner or (determiner == "the" and phrase.title):
        return []
    column = 2 if phrase.plural else int(phrase.gender == "f")
    if determiner in _ARTICLES:
        adjective_first = (
            determiner in ("some", "any") and words[0] != phrase.noun.french[phrase.plural]
        )
        return ["de"] if adjective_first else [_ARTICLES[determiner][column]]
    if determiner == "this":
        return ["cet" if column == 0 and elides(words[0]) else ("ce", "cette", "ces")[column]]
    if determiner in _POSSESSIVES:
        return [_POSSESSIVES[determiner][0 if column == 1 and elides(words[0]) else column]]
    return _COUNTS[determiner]


def _prepositional(preposition: Preposition, phrase: Nominal) -> list[str]:
    return [*preposition.french, *_nominal(phrase, after_de=preposition.french[-1:] == ("de",))]


def _clause(clause: Clause) -> list[str]:
    """A clause: opening, subject, verb group, object, places, closing adverb."""
    words: list[str] = []
    if clause.opening:
        opening = clause.opening
        words += [opening.french] if isinstance(opening, Adverb) else _prepositional(*opening)
        words.append(",")
    if clause.subject is None:
        assert isinstance(clause.object, NounPhrase)
        words += (*_THERE[clause.tense], *_nominal(clause.object))
    else:
        if clause.gap != "subject" and not clause.silent_subject:
            words += _nominal(clause.subject)
        words += _description(clause) if clause.adjective else _action(clause)
    for preposition, phrase in clause.places:
        words += _prepositional(preposition, phrase)
    if clause.closing:
        words += clause.closing.french.split("_")
    if clause.complement:
        words += ("que", *_clause(clause.complement))
    return words


def _negated(clause: Clause, finite: list[str], rest: list[str]) -> list[str]:
    """The verb group with its negation around the finite part, and the adverb behind both."""
    words = finite
    if clause.negation:
        words = ["ne", *finite, "pas" if clause.negation == "not" else "jamais"]
    if clause.middle:
        words = [*words, *clause.middle.french.split("_")]
    return [*words, *rest]


def _description(clause: Clause) -> list[str]:
    assert clause.subject and clause.adjective
    rest = []
    if clause.degree:
        rest.append(clause.degree.french)
    elif clause.compared:
        rest.append(_COMPARED[clause.compared])
    rest.append(clause.adjective.french[_form(clause.subject)])
    if clause.standard:
        rest += ("que", *_nominal(clause.standard))
    if clause.tense == "past" and clause.negation == "never":
        return _negated(clause, [AVOIR.present[clause.subject.person]], ["été", *rest])
    tenses = {"present": ETRE.present, "past": ETRE.imperfect, "future": ETRE.future}
    return _negated(clause, [tenses[clause.tense][clause.subject.person]], rest)


def _action(clause: Clause) -> list[str]:
    assert clause.subject and clause.verb
    verb, person, target = clause.verb, clause.subject.person, clause.object
    clitic = []
    if isinstance(target, Pronoun) and clause.gap != "object":
        clitic.append(_CLITICS[target.gender, target.person])
    if clause.passive:
        words = _passive(clause)
    elif clause.modal:
        forms = (
            clause.modal.french_present if clause.tense == "present" else clause.modal.french_past
        )
        words = _negated(clause, [forms[person]], [*clitic, verb.french.infinitive])
    elif clause.tense == "past" and (not verb.stative or clause.negation == "never"):
        auxiliary = ETRE if verb.with_etre else AVOIR
        participle = verb.french.participle[_agreement(clause)]
        words = _negated(clause, [*clitic, auxiliary.present[person]], [participle])
    else:
        tenses = {
            "present": verb.french.present,
            "past": verb.french.imperfect,
            "future": verb.french.future,
        }
        words = _negated(clause, [*clitic, tenses[clause.tense][person]], [])
    if target and not isinstance(target, Pronoun) and clause.gap != "object":
        if verb.french_preposition:
            words += _prepositional(Preposition("", (verb.french_preposition,)), target)
        else:
            words += _nominal(target, negated=bool(clause.negation))
    if clause.recipient:
        words += _prepositional(Preposition("to", ("à",)), clause.recipient)
    return words


def _agreement(clause: Clause) -> int:
    """The form of the participle: with être that of the subject, with avoir that of an object before the verb."""
    assert clause.subject and clause.verb
    if clause.verb.with_etre:
        return _form(clause.subject)
    if clause.object and (clause.gap == "object" or isinstance(clause.object, Pronoun)):
        return _form(clause.object)
    return 0


def _passive(clause: Clause) -> list[str]:
    assert clause.subject and clause.verb
    person = clause.subject.person
    participle = clause.verb.french.participle[_form(clause.subject)]
    if clause.tense == "future":
        words = _negated(clause, [ETRE.future[person]], [participle])
    else:
        words = _negated(clause, [AVOIR.present[person]], ["été", participle])
    return [
        *words,
        *(_prepositional(Preposition("by", ("par",)), clause.agent) if clause.agent else []),
    ]
