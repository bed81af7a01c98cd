"""The generator of the embedded corpus (tools/corpus): forms and sentences compared with ones written by hand."""

import pytest

from corpus import choices, english, french
from corpus.french_forms import adjective_forms, conjugate, join
from corpus.meaning import HE_OR_SHE, SPEAKER, THEY, Clause, Modifier, NounPhrase, Pronoun, Sentence
from corpus.vocabulary import Adjective, Adverb, Noun, Verb


def noun(word: str) -> Noun:
    return next(n for urn in choices.NOUNS.values() for n in urn.things if n.english[0] == word)


def name(word: str) -> NounPhrase:
    return NounPhrase(next(n for n in choices.NAMES.things if n.english[0] == word))


def verb(base: str, objects: str = "patlic") -> Verb:
    for subject in "pati":
        urn = choices.verbs(subject, objects)
        for found in urn.things if urn else ():
            if found.base == base:
                return found
    raise LookupError(base)


def adjective(word: str) -> Adjective:
    return next(a for kind in "patli" for a in choices.adjectives(kind).things if a.english == word)


def the(
    word: str, *adjectives: str, plural: bool = False, determiner: str = "the", joined: bool = False
) -> NounPhrase:
    modifiers = tuple(Modifier(adjective(a)) for a in adjectives)
    return NounPhrase(noun(word), plural, determiner, modifiers, joined)


def both(sentence: Sentence) -> tuple[str, str]:
    return english.write(sentence).text(), french.write(sentence)


def test_a_pronoun_takes_the_gender_of_its_antecedent() -> None:
    for word, subject, said in (("table", "La", "elle"), ("book", "Le", "il")):
        thing = the(word)
        first = Clause(thing, "past", adjective=adjective("old"))
        second = Clause(Pronoun(HE_OR_SHE, thing), "future", adjective=adjective("useful"))
        was = {"table": "table était vieille", "book": "livre était vieux"}[word]
        assert both(Sentence(first, choices.BUT, second)) == (
            f"The {word} was old, but it will be useful.",
            f"{subject} {was}, mais {said} sera utile.",
        )


def test_the_participle_agrees_with_a_preceding_object_only() -> None:
    keys = the("key", plural=True)
    marie = name("Marie")
    first = Clause(marie, "past", verb("find"), keys)
    second = Clause(Pronoun(HE_OR_SHE, marie), "past", verb("sell"), Pronoun(THEY, keys))
    assert both(Sentence(first, choices.BUT, second)) == (
        "Marie found the keys, but she sold them.",
        "Marie a trouvé les clés, mais elle les a vendues.",
    )
    keys.relative = Clause(Pronoun(SPEAKER), "past", verb("buy"), keys, gap="object")
    assert both(Sentence(Clause(keys, "future", adjective=adjective("useful")))) == (
        "The keys that I bought will be useful.",
        "Les clés que j'ai achetées seront utiles.",
    )


@pytest.mark.parametrize(
    ("word", "adjectives", "french"),
    [
        ("table", ("beautiful", "red"), "la belle table rouge"),
        ("eagle", ("old",), "le vieil aigle"),
        ("painting", ("heavy", "French"), "le tableau français lourd"),
        ("church", ("new",), "la nouvelle église"),
    ],
)
def test_adjectives_stand_before_or_after_the_noun(
    word: str, adjectives: tuple[str, ...], french: str
) -> None:
    seen = Clause(name("Paul"), "present", verb("see"), the(word, *adjectives))
    assert both(Sentence(seen))[1] == f"Paul voit {french}."


def written(clause: Clause, english: str, french: str, *more: object, **options: bool) -> None:
    assert both(Sentence(clause, *more, **options)) == (english, french)  # type: ignore[arg-type]


def test_joined_adjectives_questions_conditions_modals_comparisons() -> None:
    box, often = the("box", "round", "heavy", joined=True), Adverb("often", "souvent")
    written(
        Clause(box, "past", verb("disappear", "")),
        "The round and heavy box disappeared.",
        "La boîte ronde et lourde a disparu.",
    )
    written(
        Clause(the("hero"), "past", verb("sleep", ""), question=True, middle=often),
        "Did the hero often sleep?",
        "Est-ce que le héros a souvent dormi ?",
    )
    boat = the("boat")
    written(
        Clause(boat, "present", adjective=adjective("cheap")),
        "If the boat is cheap, I will buy it.",
        "Si le bateau est bon marché, je l'achèterai.",
        choices.IF,
        Clause(Pronoun(SPEAKER), "future", verb("buy"), Pronoun(HE_OR_SHE, boat)),
        fronted=True,
    )
    hens, seen = the("hen", plural=True), (verb("see"), the("house"))
    written(
        Clause(hens, "present", *seen, modal=choices.WANT, negation="not"),
        "The hens do not want to see the house.",
        "Les poules ne veulent pas voir la maison.",
    )
    older = {"adjective": adjective("old"), "compared": "more", "standard": the("house")}
    written(
        Clause(the("hen"), "present", **older),
        "The hen is older than the house.",
        "La poule est plus vieille que la maison.",
    )


def test_french_forms() -> None:
    eat, sell = conjugate("manger"), conjugate("vendre")
    assert (eat.present[1], eat.participle[1]) == ("mange", "mangée")
    assert (sell.present[1], sell.participle[1]) == ("vend", "vendue")
    assert adjective_forms("heureux") == ("heureux", "heureuse", "heureux", "heureuses")
    assert adjective_forms("royal") == ("royal", "royale", "royaux", "royales")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("le arbre de le roi", "L'arbre du roi."),
        ("je ne aime pas le hibou de la reine", "Je n'aime pas le hibou de la reine."),
        ("il répond à le héros et à les héros", "Il répond au héros et aux héros."),
        ("si il vient , elle dit que il dort", "S'il vient, elle dit qu'il dort."),
    ],
)
def test_words_are_joined_with_elision_and_contraction(words: str, sentence: str) -> None:
    assert join(words.split(), ".") == sentence
