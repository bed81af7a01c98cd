"""French word forms: plurals, adjectives, verbs, and the joining of words (elision, contraction).

Regular forms are derived by the rules of school grammar; whatever those rules would get wrong is listed.
"""

import unicodedata
from dataclasses import dataclass
from typing import Literal

Gender = Literal["m", "f"]
Four = tuple[str, str, str, str]

ASPIRATED = frozenset({"hache", "hamac", "hangar", "harpe", "hautbois", "héros", "hibou", "homard"})
"""Words whose h blocks elision: "le héros", not "l'héros"."""

_ELIDED = {
    "le": "l'",
    "la": "l'",
    "de": "d'",
    "que": "qu'",
    "je": "j'",
    "ne": "n'",
}
_CONTRACTED = {("de", "le"): "du", ("de", "les"): "des", ("à", "le"): "au", ("à", "les"): "aux"}

# infinitive: je, il, nous, ils; stem of the future; participle
_IRREGULAR = """
aller vais va allons vont ir allé
boire bois boit buvons boivent boir bu
célébrer célèbre célèbre célébrons célèbrent célébrer célébré
comprendre comprends comprend comprenons comprennent comprendr compris
convaincre convaincs convainc convainquons convainquent convaincr convaincu
connaître connais connaît connaissons connaissent connaîtr connu
construire construis construit construisons construisent construir construit
courir cours court courons courent courr couru
couvrir couvre couvre couvrons couvrent couvrir couvert
craindre crains craint craignons craignent craindr craint
décrire décris décrit décrivons décrivent décrir décrit
détruire détruis détruit détruisons détruisent détruir détruit
dire dis dit disons disent dir dit
disparaître disparais disparaît disparaissons disparaissent disparaîtr disparu
dormir dors dort dormons dorment dormir dormi
écrire écris écrit écrivons écrivent écrir écrit
envoyer envoie envoie envoyons envoient enverr envoyé
mourir meurs meurt mourons meurent mourr mort
offrir offre offre offrons offrent offrir offert
ouvrir ouvre ouvre ouvrons ouvrent ouvrir ouvert
peindre peins peint peignons peignent peindr peint
prendre prends prend prenons prennent prendr pris
reconnaître reconnais reconnaît reconnaissons reconnaissent reconnaîtr reconnu
rire ris rit rions rient rir ri
savoir sais sait savons savent saur su
sourire souris sourit sourions sourient sourir souri
suivre suis suit suivons suivent suivr suivi
surprendre surprends surprend surprenons surprennent surprendr surpris
venir viens vient venons viennent viendr venu
revenir reviens revient revenons reviennent reviendr revenu
voir vois voit voyons voient verr vu
"""


@dataclass(frozen=True, slots=True)
class Conjugation:
    """The forms of one French verb; tenses are ordered je, il, nous, ils and participles ms, fs, mp, fp."""

    infinitive: str
    present: Four
    imperfect: Four
    future: Four
    participle: Four


def plural(noun: str) -> str:
    """The plural of a noun or of a masculine adjective: cheval → chevaux, gâteau → gâteaux, prix → prix."""
    if noun.endswith(("s", "x", "z")):
        return noun
    if noun.endswith("al"):
        return noun[:-2] + "aux"
    return noun + ("x" if noun.endswith(("eau", "eu")) and noun != "bleu" else "s")


def adjective_forms(masculine: str, feminine: str = "") -> Four:
    """Masculine and feminine singular, masculine and feminine plural; the feminine is derived unless it is given."""
    feminine = feminine or _feminine(masculine)
    return masculine, feminine, plural(masculine), plural(feminine)


def _feminine(masculine: str) -> str:
    for ending, replacement in (
        ("e", "e"),
        ("eux", "euse"),
        ("if", "ive"),
        ("er", "ère"),
        ("en", "enne"),
        ("el", "elle"),
    ):
        if masculine.endswith(ending):
            return masculine.removesuffix(ending) + replacement
    return masculine + "e"


def conjugate(infinitive: str) -> Conjugation:
    """All forms of a verb: listed when irregular, else by its ending (-er with its spelling changes, -ir, -re)."""
    if infinitive == "être":
        return ETRE
    if infinitive == "avoir":
        return AVOIR
    je, il, nous, ils, future, participle = _LISTED.get(infinitive) or _regular(infinitive)
    stem = nous.removesuffix("ons")
    return Conjugation(
        infinitive,
        (je, il, nous, ils),
        (stem + "ais", stem + "ait", _soft(stem) + "ions", stem + "aient"),
        (future + "ai", future + "a", future + "ons", future + "ont"),
        adjective_forms(participle, participle + "e"),
    )


def _soft(stem: str) -> str:
    """The stem before an i: commenç- → commenc-, mange- → mang-."""
    if stem.endswith("ge"):
        return stem[:-1]
    return stem[:-1] + "c" if stem.endswith("ç") else stem


def _regular(infinitive: str) -> tuple[str, ...]:
    root = infinitive[:-2]
    if infinitive.endswith("ir"):
        return root + "is", root + "it", root + "issons", root + "issent", infinitive, root + "i"
    if infinitive.endswith("re"):
        return root + "s", root, root + "ons", root + "ent", root + "r", root + "u"
    strong, future = root, infinitive
    if infinitive.endswith(("ayer", "oyer", "uyer")):
        strong = root[:-1] + "i"
        future = strong + "er"
    elif infinitive in ("appeler", "jeter"):
        strong = root + root[-1]
        future = strong + "er"
    elif len(root) > 2 and root[-2] == "e" and root[-1] in "lmnrstv":
        strong = root[:-2] + "è" + root[-1]
        future = strong + "er"
    elif len(root) > 2 and root[-2] == "é" and root[-1] in "dgrt":
        strong = root[:-2] + "è" + root[-1]
    nous = root + "e" if root.endswith("g") else root[:-1] + "ç" if root.endswith("c") else root
    return strong + "e", strong + "e", nous + "ons", strong + "ent", future, root + "é"


_LISTED = {line.split()[0]: tuple(line.split()[1:]) for line in _IRREGULAR.strip().splitlines()}
ETRE = Conjugation(
    "être",
    ("suis", "est", "sommes", "sont"),
    ("étais", "était", "étions", "étaient"),
    ("serai", "sera", "serons", "seront"),
    ("été", "été", "été", "été"),
)
AVOIR = Conjugation(
    "avoir",
    ("ai", "a", "avons", "ont"),
    ("avais", "avait", "avions", "avaient"),
    ("aurai", "aura", "aurons", "auront"),
    ("eu", "eue", "eus", "eues"),
)


def elides(word: str) -> bool:
    """Whether "le", "de", "que" … lose their vowel before this word (vowels, œ, and h unless aspirated)."""
    known = _KNOWN.get(word)
    if known is None:
        lower = word.lower()
        letter = unicodedata.normalize("NFD", lower[:1])[:1]
        known = _KNOWN[word] = (
            letter in "aeiouhœ" and lower.removesuffix("s") not in _ASPIRATED_STEMS
        )
    return known


_KNOWN: dict[str, bool] = {"": False}
_ASPIRATED_STEMS = frozenset(word.removesuffix("s") for word in ASPIRATED) | {"hiboux"}


def join(words: list[str], mark: str) -> str:
    """The words as a written sentence: contracted (de + le → du), elided (la + idée → l'idée), then the mark."""
    pieces: list[str] = []
    words = [*words, ""]
    i, last = 0, len(words) - 1
    while i < last:
        word, following = words[i], words[i + 1]
        if word == ",":
            pieces[-1] = ", "
        elif word in _ELIDED and elides(following):
            pieces.append(_ELIDED[word])
            i += 1
            continue
        elif (word, following) in _CONTRACTED and not (following == "le" and elides(words[i + 2])):
            pieces += (_CONTRACTED[word, following], " ")
            i += 1
        elif word == "si" and following in ("il", "ils"):
            pieces.append("s'")
        else:
            pieces += (word, " ")
        i += 1
    pieces[-1] = mark
    sentence = "".join(pieces)
    return sentence[0].upper() + sentence[1:]
