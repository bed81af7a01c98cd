"""French and English word forms, against forms copied from a grammar by hand."""

import pytest

from headwise.data.corpus.english_forms import article, english_plural, past_form, third_person
from headwise.data.corpus.french_forms import adjective_forms, conjugate, join, plural


@pytest.mark.parametrize(
    ("infinitive", "present", "future", "imperfect", "participle"),
    [
        ("aimer", "aime aime aimons aiment", "aimera", "aimait", "aimée"),
        ("acheter", "achète achète achetons achètent", "achètera", "achetait", "achetée"),
        ("appeler", "appelle appelle appelons appellent", "appellera", "appelait", "appelée"),
        ("jeter", "jette jette jetons jettent", "jettera", "jetait", "jetée"),
        ("manger", "mange mange mangeons mangent", "mangera", "mangeait", "mangée"),
        ("menacer", "menace menace menaçons menacent", "menacera", "menaçait", "menacée"),
        ("nettoyer", "nettoie nettoie nettoyons nettoient", "nettoiera", "nettoyait", "nettoyée"),
        ("protéger", "protège protège protégeons protègent", "protégera", "protégeait", "protégée"),
        ("choisir", "choisis choisit choisissons choisissent", "choisira", "choisissait", "choisie"),
        ("vendre", "vends vend vendons vendent", "vendra", "vendait", "vendue"),
        ("voir", "vois voit voyons voient", "verra", "voyait", "vue"),
        ("prendre", "prends prend prenons prennent", "prendra", "prenait", "prise"),
        ("craindre", "crains craint craignons craignent", "craindra", "craignait", "crainte"),
        ("venir", "viens vient venons viennent", "viendra", "venait", "venue"),
        ("mourir", "meurs meurt mourons meurent", "mourra", "mourait", "morte"),
        ("envoyer", "envoie envoie envoyons envoient", "enverra", "envoyait", "envoyée"),
        ("convaincre", "convaincs convainc convainquons convainquent", "convaincra", "convainquait", "convaincue"),
        ("être", "suis est sommes sont", "sera", "était", "été"),
    ],
)
def test_conjugation(infinitive: str, present: str, future: str, imperfect: str, participle: str) -> None:
    forms = conjugate(infinitive)
    assert forms.present == tuple(present.split())
    assert (forms.future[1], forms.imperfect[1], forms.participle[1]) == (future, imperfect, participle)


def test_first_persons_of_the_imperfect_lose_the_soft_letter() -> None:
    assert conjugate("manger").imperfect[2] == "mangions"
    assert conjugate("commencer").imperfect[2] == "commencions"


def test_plurals() -> None:
    singular = ["table", "cheval", "gâteau", "neveu", "souris", "procès", "bleu"]
    assert [plural(noun) for noun in singular] == [
        "tables",
        "chevaux",
        "gâteaux",
        "neveux",
        "souris",
        "procès",
        "bleus",
    ]


def test_adjectives() -> None:
    assert adjective_forms("heureux") == ("heureux", "heureuse", "heureux", "heureuses")
    assert adjective_forms("léger") == ("léger", "légère", "légers", "légères")
    assert adjective_forms("italien") == ("italien", "italienne", "italiens", "italiennes")
    assert adjective_forms("cruel") == ("cruel", "cruelle", "cruels", "cruelles")
    assert adjective_forms("royal") == ("royal", "royale", "royaux", "royales")
    assert adjective_forms("français") == ("français", "française", "français", "françaises")
    assert adjective_forms("bleu") == ("bleu", "bleue", "bleus", "bleues")
    assert adjective_forms("beau", "belle") == ("beau", "belle", "beaux", "belles")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("le arbre de le roi", "L'arbre du roi."),
        ("la clé de les hommes", "La clé des hommes."),
        ("je ne aime pas le hibou de la reine", "Je n'aime pas le hibou de la reine."),
        ("il parle à le homme de la île", "Il parle à l'homme de l'île."),
        ("il répond à le héros et à les héros", "Il répond au héros et aux héros."),
        ("si il vient , elle dit que il dort", "S'il vient, elle dit qu'il dort."),
        ("si elle vient , le ami de Alice dort", "Si elle vient, l'ami d'Alice dort."),
        ("la œuvre de une humanité", "L'œuvre d'une humanité."),
        ("la hache et les haches de les hangars", "La hache et les haches des hangars."),
    ],
)
def test_words_are_joined_with_elision_and_contraction(words: str, sentence: str) -> None:
    assert join(words.split(), ".") == sentence


def test_english_forms() -> None:
    nouns = ["box", "story", "boy", "watch", "church"]
    assert [english_plural(noun) for noun in nouns] == ["boxes", "stories", "boys", "watches", "churches"]
    assert [third_person(verb) for verb in ["go", "carry", "obey", "see"]] == ["goes", "carries", "obeys", "sees"]
    assert [past_form(verb) for verb in ["love", "carry", "obey", "help"]] == ["loved", "carried", "obeyed", "helped"]
    words = ["apple", "house", "umbrella", "university", "useful", "honest", "heiress", "ugly"]
    assert [article(word) for word in words] == ["an", "a", "an", "a", "a", "an", "an", "an"]
