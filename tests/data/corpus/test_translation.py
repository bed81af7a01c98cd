"""Meanings built by hand, written in both languages, against sentences written by hand."""

from headwise.data.corpus import choices, english, french
from headwise.data.corpus.meaning import HE_OR_SHE, SPEAKER, THEY, Clause, Modifier, NounPhrase, Pair, Pronoun, Sentence
from headwise.data.corpus.vocabulary import Adjective, Adverb, Noun, Title, Verb


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


def the(word: str, *adjectives: str, plural: bool = False, determiner: str = "the", joined: bool = False) -> NounPhrase:
    modifiers = tuple(Modifier(adjective(a)) for a in adjectives)
    return NounPhrase(noun(word), plural, determiner, modifiers, joined)


def both(sentence: Sentence) -> tuple[str, str]:
    return english.write(sentence).text(), french.write(sentence)


def test_a_pronoun_takes_the_gender_of_its_antecedent() -> None:
    for word, subject, said in (("table", "La table était vieille", "elle"), ("book", "Le livre était vieux", "il")):
        thing = the(word)
        first = Clause(thing, "past", adjective=adjective("old"))
        second = Clause(Pronoun(HE_OR_SHE, thing), "future", adjective=adjective("useful"))
        assert both(Sentence(first, choices.BUT, second)) == (
            f"The {word} was old, but it will be useful.",
            f"{subject}, mais {said} sera utile.",
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


def test_etre_agrees_with_the_subject_and_a_pair_is_feminine_only_if_both_are() -> None:
    for second, said in (("Julie", "Marie et Julie sont arrivées."), ("Paul", "Marie et Paul sont arrivés.")):
        pair = Pair(name("Marie"), name(second))
        assert both(Sentence(Clause(pair, "past", verb("arrive", "")))) == (f"Marie and {second} arrived.", said)


def test_adjectives_stand_before_or_after_the_noun() -> None:
    cases = {
        ("table", ("beautiful", "red"), "la belle table rouge"),
        ("eagle", ("old",), "le vieil aigle"),
        ("painting", ("heavy", "French"), "le tableau français lourd"),
        ("church", ("new",), "la nouvelle église"),
    }
    for word, adjectives, expected in cases:
        said = both(Sentence(Clause(name("Paul"), "present", verb("see"), the(word, *adjectives))))[1]
        assert said == f"Paul voit {expected}."
    said = both(Sentence(Clause(the("box", "round", "heavy", joined=True), "past", verb("disappear", ""))))
    assert said == ("The round and heavy box disappeared.", "La boîte ronde et lourde a disparu.")


def test_indefinite_objects_under_negation_and_before_adjectives() -> None:
    plain = Clause(the("nun"), "present", verb("buy"), the("apple", "big", plural=True, determiner="some"))
    assert both(Sentence(plain)) == ("The nun buys some big apples.", "La religieuse achète de grandes pommes.")
    negated = Clause(the("nun"), "past", verb("buy"), the("umbrella", determiner="a"), negation="not")
    assert both(Sentence(negated)) == ("The nun did not buy an umbrella.", "La religieuse n'a pas acheté de parapluie.")
    spoken = Clause(the("nun"), "present", verb("talk"), the("son", plural=True, determiner="some"))
    assert both(Sentence(spoken)) == ("The nun talks about some sons.", "La religieuse parle de fils.")


def test_prepositions_differ_and_contract() -> None:
    king, girls = the("king"), the("girl", plural=True)
    waiting = Clause(girls, "present", verb("wait", "p"), king)
    looking = Clause(Pronoun(THEY, girls), "present", verb("look"), Pronoun(HE_OR_SHE, king))
    assert both(Sentence(waiting, choices.AND, looking)) == (
        "The girls wait for the king and they look for him.",
        "Les filles attendent le roi et elles le cherchent.",
    )
    assert both(Sentence(Clause(girls, "present", verb("answer"), king))) == (
        "The girls answer the king.",
        "Les filles répondent au roi.",
    )


def test_owners_titles_possessives() -> None:
    table = the("table", "old")
    table.owner = NounPhrase(choices.NAMES.things[0], title=Title("King", ("le", "roi"), "m"), surname="Orvin")
    assert both(Sentence(Clause(name("Anna"), "present", verb("see"), table))) == (
        "Anna sees King Orvin's old table.",
        "Anna voit la vieille table du roi Orvin.",
    )
    anna = name("Anna")
    story = the("idea", determiner="her")
    story.possessor = anna
    assert both(Sentence(Clause(anna, "past", verb("explain"), story))) == (
        "Anna explained her idea.",
        "Anna a expliqué son idée.",
    )


def test_questions_conditions_modals_comparisons() -> None:
    question = Clause(the("hero"), "past", verb("sleep", ""), question=True, middle=Adverb("often", "souvent"))
    assert both(Sentence(question)) == ("Did the hero often sleep?", "Est-ce que le héros a souvent dormi ?")
    boat = the("boat")
    first = Clause(boat, "present", adjective=adjective("cheap"))
    second = Clause(Pronoun(SPEAKER), "future", verb("buy"), Pronoun(HE_OR_SHE, boat))
    assert both(Sentence(first, choices.IF, second, fronted=True)) == (
        "If the boat is cheap, I will buy it.",
        "Si le bateau est bon marché, je l'achèterai.",
    )
    wish = Clause(the("hen", plural=True), "present", verb("see"), the("house"), modal=choices.WANT, negation="not")
    assert both(Sentence(wish)) == (
        "The hens do not want to see the house.",
        "Les poules ne veulent pas voir la maison.",
    )
    compared = Clause(the("hen"), "present", adjective=adjective("old"), compared="more", standard=the("house"))
    assert both(Sentence(compared)) == ("The hen is older than the house.", "La poule est plus vieille que la maison.")


def test_passives_and_the_tense_of_states() -> None:
    passive = Clause(the("lamp", plural=True), "past", verb("sell"), passive=True, agent=name("Paul"))
    assert both(Sentence(passive)) == ("The lamps were sold by Paul.", "Les lampes ont été vendues par Paul.")
    loved = Clause(the("niece"), "past", verb("love"), name("Luc"))
    assert both(Sentence(loved)) == ("The niece loved Luc.", "La nièce aimait Luc.")
    loved.negation = "never"
    assert both(Sentence(loved)) == ("The niece never loved Luc.", "La nièce n'a jamais aimé Luc.")
