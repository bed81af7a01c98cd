"""English word forms: articles, plurals, verb endings; the forms and labels of the small closed classes."""

# the forms of "be" and "do" are ordered I, he, we, they
BE = {"present": ("am", "is", "are", "are"), "past": ("was", "was", "were", "were")}
DO = {"present": ("do", "does", "do", "do"), "past": ("did", "did", "did", "did")}
OBJECTIVE = {"he": "him", "she": "her", "it": "it", "they": "them", "I": "me", "we": "us"}
DETERMINERS = {
    "the": ("DET", "det"),
    "a": ("DET", "det"),
    "some": ("DET", "det"),
    "any": ("DET", "det"),
    "this": ("DET", "det"),
    "every": ("DET", "det"),
    "two": ("NUM", "nummod"),
    "three": ("NUM", "nummod"),
    "many": ("ADJ", "amod"),
}
POSSESSIVES = frozenset({"my", "our", "his", "her", "its", "their"})
_CONSONANT_SOUNDS = ("eu", "uni", "use", "util", "unan", "one")
_SILENT_H = ("honest", "hour", "heir")


def article(word: str) -> str:
    """The English indefinite article before this word: an apple, a university, an honest man."""
    if word.startswith(_SILENT_H):
        return "an"
    return (
        "an"
        if word[0].lower() in "aeiou" and not word.lower().startswith(_CONSONANT_SOUNDS)
        else "a"
    )


def english_plural(noun: str) -> str:
    """The regular English plural: fox → foxes, story → stories."""
    if noun.endswith(("s", "x", "ch", "sh")):
        return noun + "es"
    if noun.endswith("y") and noun[-2] not in "aeiou":
        return noun[:-1] + "ies"
    return noun + "s"


def third_person(base: str) -> str:
    """The third person of an English verb: watch → watches, carry → carries, go → goes."""
    return base + "es" if base.endswith("o") else english_plural(base)


def past_form(base: str) -> str:
    """The regular past: love → loved, carry → carried."""
    if base.endswith("e"):
        return base + "d"
    if base.endswith("y") and base[-2] not in "aeiou":
        return base[:-1] + "ied"
    return base + "ed"
