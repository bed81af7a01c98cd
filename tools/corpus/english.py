"""Write a meaning down in English, with its dependency tree (Universal Dependencies 2) and its mentions."""

from corpus.english_forms import BE, DETERMINERS, DO, OBJECTIVE, POSSESSIVES, article
from corpus.meaning import (
    HE_OR_SHE,
    Clause,
    Modifier,
    Nominal,
    NounPhrase,
    Pair,
    Pronoun,
    Sentence,
    pronoun_for,
)
from corpus.tree import Tree
from corpus.vocabulary import Adverb, Preposition, Verb


def write(sentence: Sentence) -> Tree:
    """The English sentence with its tree."""
    tree = Tree()
    first, link, second = sentence.first, sentence.link, sentence.second
    opened = []
    if link and sentence.fronted:
        opened.append(tree.add(link.english, link.english, link.upos, link.deprel))
    root = _clause(tree, first, link.clause if link and sentence.fronted else "root", opened)
    if link and second and sentence.fronted:
        comma = tree.mark(",")
        dependent, root = root, _clause(tree, second, "root", [])
        tree.attach((comma, dependent), root)
    elif link and second:
        opened = [tree.mark(",")] if link.comma else []
        opened.append(tree.add(link.english, link.english, link.upos, link.deprel))
        tree.attach((_clause(tree, second, link.clause, opened),), root)
    tree.mark("?" if first.question else ".", root)
    form, *rest = tree.rows[0]
    tree.rows[0] = (form[0].upper() + form[1:], rest[0], rest[1], rest[2])
    return tree


def _nominal(tree: Tree, nominal: Nominal, deprel: str, objective: bool = False) -> int:
    """Add a phrase or a pronoun and give the number of its head."""
    if isinstance(nominal, Pronoun):
        return _pronoun(tree, nominal, deprel, objective)
    start = len(tree.heads) + 1
    if isinstance(nominal, Pair):
        head = _noun_phrase(tree, nominal.first, deprel)
        conjunction = tree.add("and", "and", "CCONJ", "cc")
        second = _noun_phrase(tree, nominal.second, "conj")
        tree.attach((conjunction,), second)
        tree.attach((second,), head)
    else:
        head = _noun_phrase(tree, nominal, deprel)
    tree.spans[id(nominal)] = (start, len(tree.heads))
    return head


def _pronoun(tree: Tree, pronoun: Pronoun, deprel: str, objective: bool) -> int:
    if pronoun.antecedent:
        lemma = pronoun_for(pronoun.antecedent)
        word = tree.add(OBJECTIVE[lemma] if objective else lemma, lemma, "PRON", deprel)
        tree.references.append((pronoun.antecedent, word))
        return word
    lemma = "I" if pronoun.person == 0 else "we"
    return tree.add(lemma, lemma, "PRON", deprel)


def _noun_phrase(tree: Tree, phrase: NounPhrase, deprel: str) -> int:
    start = len(tree.heads) + 1
    before = _determiner(tree, phrase)
    before += _modifiers(tree, phrase.modifiers, phrase.joined)
    if phrase.title:
        before.append(tree.add(phrase.title.english, phrase.title.english, "PROPN", "nmod:desc"))
        head = tree.add(phrase.surname, phrase.surname, "PROPN", deprel)
    else:
        noun = phrase.noun
        form = noun.english[phrase.plural]
        head = tree.add(form, noun.english[0], "PROPN" if noun.named else "NOUN", deprel)
        if phrase.surname:
            tree.add(phrase.surname, phrase.surname, "PROPN", "flat", head)
    tree.attach(before, head)
    if phrase.complement:
        tree.attach((_prepositional(tree, *phrase.complement, "nmod"),), head)
    if phrase.relative:
        tree.attach((_clause(tree, phrase.relative, "acl:relcl", []),), head)
    tree.spans[id(phrase)] = (start, len(tree.heads))
    return head


def _determiner(tree: Tree, phrase: NounPhrase) -> list[int]:
    if phrase.owner:
        owner = _nominal(tree, phrase.owner, "nmod:poss")
        tree.glued.add(len(tree.heads))
        tree.add("'s", "'s", "PART", "case", owner)
        return [owner]
    word = phrase.determiner
    if not word:
        return []
    if word in POSSESSIVES:
        number = tree.add(word, word, "PRON", "nmod:poss")
        if phrase.possessor:
            tree.references.append((phrase.possessor, number))
        return [number]
    upos, deprel = DETERMINERS[word]
    form = word
    if word == "a":
        modifiers = phrase.modifiers
        form = article("very" if modifiers and modifiers[0].very else _first_word(phrase))
    elif word == "this" and phrase.plural:
        form = "these"
    return [tree.add(form, word, upos, deprel)]


def _first_word(phrase: NounPhrase) -> str:
    return phrase.modifiers[0].adjective.english if phrase.modifiers else phrase.noun.english[0]


def _modifiers(tree: Tree, modifiers: tuple[Modifier, ...], joined: bool) -> list[int]:
    """Add the adjectives; give those that hang on the noun."""
    found: list[int] = []
    for modifier in modifiers:
        conjunction = tree.add("and", "and", "CCONJ", "cc") if joined and found else 0
        degree = tree.add("very", "very", "ADV", "advmod") if modifier.very else 0
        word = modifier.adjective.english
        number = tree.add(
            word, word, "ADJ", "conj" if conjunction else "amod", found[0] if conjunction else 0
        )
        tree.attach((n for n in (conjunction, degree) if n), number)
        if not conjunction:
            found.append(number)
    return found


def _prepositional(tree: Tree, preposition: Preposition, nominal: Nominal, deprel: str) -> int:
    case = tree.add(preposition.english, preposition.english, "ADP", "case")
    head = _nominal(tree, nominal, deprel, objective=True)
    tree.attach((case,), head)
    return head


def _adverb(tree: Tree, adverb: Adverb, head: int = 0) -> int:
    return tree.add(adverb.english, adverb.english.lower(), "ADV", "advmod", head)


def _clause(tree: Tree, clause: Clause, deprel: str, opened: list[int]) -> int:
    """Add a clause and give the number of its head; `opened` are words before it that hang on that head."""
    waiting = list(opened)
    if isinstance(clause.opening, Adverb):
        waiting += (_adverb(tree, clause.opening), tree.mark(","))
    elif clause.opening:
        waiting += (_prepositional(tree, *clause.opening, "obl"), tree.mark(","))
    if clause.subject is None:
        head = _existence(tree, clause, deprel, waiting)
    elif clause.adjective:
        head = _description(tree, clause, deprel, waiting)
    else:
        head = _action(tree, clause, deprel, waiting)
    if clause.closing:
        _adverb(tree, clause.closing, head)
    return head


def _subject(tree: Tree, clause: Clause) -> list[int]:
    """Add the subject, or the relative pronoun for it, unless it is silent."""
    subject = clause.subject
    waiting = []
    deprel = "nsubj:pass" if clause.passive else "nsubj"
    if clause.gap == "subject":
        person = isinstance(subject, NounPhrase) and subject.noun.kind == "p"
        word = "who" if person else "that"
        return [tree.add(word, word, "PRON", deprel)]
    if clause.gap == "object":
        waiting.append(tree.add("that", "that", "PRON", "obj"))
    if subject and not clause.silent_subject:
        waiting.append(_nominal(tree, subject, deprel))
    return waiting


def _between(tree: Tree, clause: Clause) -> list[int]:
    """Add what stands before the verb: a negation, an adverb."""
    waiting = []
    if clause.negation == "not":
        waiting.append(tree.add("not", "not", "PART", "advmod"))
    elif clause.negation:
        waiting.append(tree.add("never", "never", "ADV", "advmod"))
    if clause.middle:
        waiting.append(_adverb(tree, clause.middle))
    return waiting


def _be(tree: Tree, clause: Clause, deprel: str) -> list[int]:
    """Add the subject and the forms of "be", in the order of a statement or of a question."""
    person = clause.subject.person if clause.subject else HE_OR_SHE
    if clause.tense == "future":
        waiting = [
            *_subject(tree, clause),
            tree.add("will", "will", "AUX", "aux"),
            *_between(tree, clause),
        ]
        return [*waiting, tree.add("be", "be", "AUX", deprel)]
    form = BE[clause.tense][person]
    if clause.question:
        return [
            tree.add(form, "be", "AUX", deprel),
            *_subject(tree, clause),
            *_between(tree, clause),
        ]
    return [*_subject(tree, clause), tree.add(form, "be", "AUX", deprel), *_between(tree, clause)]


def _existence(tree: Tree, clause: Clause, deprel: str, waiting: list[int]) -> int:
    assert isinstance(clause.object, NounPhrase)
    waiting.append(tree.add("there", "there", "PRON", "expl"))
    head = tree.add(BE[clause.tense][clause.object.person], "be", "VERB", deprel)
    tree.attach((*waiting, _nominal(tree, clause.object, "nsubj")), head)
    _places(tree, clause, head)
    return head


def _description(tree: Tree, clause: Clause, deprel: str, waiting: list[int]) -> int:
    assert clause.adjective
    waiting += _be(tree, clause, "cop")
    form = clause.adjective.english
    if clause.degree:
        waiting.append(_adverb(tree, clause.degree))
    elif clause.compared == "more" and clause.adjective.comparative:
        form = clause.adjective.comparative
    elif clause.compared:
        waiting.append(tree.add(clause.compared, clause.compared, "ADV", "advmod"))
    head = tree.add(form, clause.adjective.english, "ADJ", deprel)
    tree.attach(waiting, head)
    if clause.standard:
        tree.attach(
            (_prepositional(tree, Preposition("than", ("que",)), clause.standard, "obl"),), head
        )
    return head


def _action(tree: Tree, clause: Clause, deprel: str, waiting: list[int]) -> int:
    """Add a clause with a verb; under "want to" the verb itself is not the head."""
    assert clause.verb
    if clause.passive:
        waiting += _be(tree, clause, "aux:pass")
        head = tree.add(clause.verb.participle, clause.verb.base, "VERB", deprel)
        tree.attach(waiting, head)
        if clause.agent:
            tree.attach(
                (_prepositional(tree, Preposition("by", ("par",)), clause.agent, "obl:agent"),),
                head,
            )
        _places(tree, clause, head)
        return head
    form = _verb_group(tree, clause, waiting)
    if clause.modal and clause.modal.to:
        head = tree.add(form, clause.modal.base, "VERB", deprel)
        mark = tree.add("to", "to", "PART", "mark")
        verb = tree.add(clause.verb.base, clause.verb.base, "VERB", "xcomp", head)
        tree.attach((mark,), verb)
    else:
        head = verb = tree.add(form, clause.verb.base, "VERB", deprel)
    tree.attach(waiting, head)
    _objects(tree, clause, clause.verb, verb)
    _places(tree, clause, verb)
    return head


def _verb_group(tree: Tree, clause: Clause, waiting: list[int]) -> str:
    """Add subject, auxiliary, negation and adverb; give the form of the verb that follows them."""
    assert clause.subject and clause.verb
    person, modal = clause.subject.person, clause.modal
    auxiliary = ""
    lemma = "do"
    if clause.tense == "future":
        auxiliary = lemma = "will"
    elif modal and not modal.to:
        auxiliary, lemma = (
            (modal.present[person] if clause.tense == "present" else modal.past),
            modal.base,
        )
    elif clause.question or clause.negation == "not":
        auxiliary = DO[clause.tense][person]
    if clause.question:
        waiting.append(tree.add(auxiliary, lemma, "AUX", "aux"))
    waiting += _subject(tree, clause)
    if auxiliary and not clause.question:
        waiting.append(tree.add(auxiliary, lemma, "AUX", "aux"))
    waiting += _between(tree, clause)
    base = modal.base if modal and modal.to else clause.verb.base
    if auxiliary:
        return base
    if clause.tense == "past":
        return modal.past if modal else clause.verb.past
    return modal.present[person] if modal else clause.verb.third if person == HE_OR_SHE else base


def _objects(tree: Tree, clause: Clause, verb: Verb, head: int) -> None:
    if clause.object and clause.gap != "object":
        if verb.english_preposition:
            preposition = Preposition(verb.english_preposition, ())
            tree.attach((_prepositional(tree, preposition, clause.object, "obl"),), head)
        else:
            tree.attach((_nominal(tree, clause.object, "obj", objective=True),), head)
    if clause.recipient:
        tree.attach(
            (_prepositional(tree, Preposition("to", ("à",)), clause.recipient, "obl"),), head
        )
    if clause.complement:
        mark = tree.add("that", "that", "SCONJ", "mark")
        tree.attach((_clause(tree, clause.complement, "ccomp", [mark]),), head)


def _places(tree: Tree, clause: Clause, head: int) -> None:
    for preposition, phrase in clause.places:
        tree.attach((_prepositional(tree, preposition, phrase, "obl"),), head)
