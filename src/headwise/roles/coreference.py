"""Semantic heads attend to an antecedent (Clark et al. 2019, section 4.3), or to words that are alike."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from headwise.data.annotated import Annotated
from headwise.roles.passage import Passage, View
from headwise.roles.probe import Arc, Probe, pointing

COREFERENCE_MEASURES = [
    "coreference",
    "coreference.pronoun",
    "coreference.proper",
    "coreference.nominal",
]


class AntecedentChoice(NamedTuple):
    """A mention with an antecedent: its head word, and the head words of the mentions before it and of antecedents."""

    sentence: int
    query: int
    kind: str
    candidates: tuple[int, ...]
    antecedents: frozenset[int]


def coreference(passage: Passage) -> Probe:
    """Antecedent selection: how often a mention attends more to an antecedent than to other mentions before it.

    coreference = share of mentions with a visible antecedent where argmax over the head words c of earlier mentions of
    A_h[head of the mention, c] belongs to a mention of the same entity; the same for pronouns, proper nouns and others.
    Baseline, whichever is right most often: the nearest earlier mention; the nearest with the same head word (the two
    of Clark et al.); the second and, where there is none, the first. The third is ours: a head that prefers equal words
    always chooses something, and would beat the second without any more knowledge.
    """
    device = passage.ids.device
    size = len(passage.ids)
    width = passage.subwords.shape[1]

    # A word without a token can neither ask nor be chosen.
    asked = [
        choice
        for choice in choices(passage.sentences)
        if {choice.query, *choice.candidates} <= passage.present[choice.sentence]
    ]
    numbers = [(choice.sentence, choice.query) for choice in asked]
    counted = []  # by choice, the measures that it counts for
    right_rules = []  # and the rules that are right
    for choice in asked:
        # Every choice counts for `coreference`, and for the measure of its kind.
        of_kind = [float(measure.endswith(choice.kind)) for measure in COREFERENCE_MEASURES[1:]]
        counted.append([1.0, *of_kind])
        right_rules.append(by_rule(choice, passage.sentences[choice.sentence]))
    addresses = torch.tensor(numbers, dtype=torch.long, device=device).view(-1, 2)
    sentence, query = addresses.unbind(1)
    allowed = marks([choice.candidates for choice in asked], width, device)
    right = marks([choice.antecedents for choice in asked], width, device)
    speaks = torch.tensor(counted, dtype=torch.float, device=device).view(
        -1, len(COREFERENCE_MEASURES)
    )
    rules = torch.tensor(right_rules).view(-1, 3)

    def summed(values: Tensor) -> Tensor:
        """Values of choices, N x …, summed by sentence and measure: B x … x M."""
        spread = values[..., None] * speaks.view(
            -1, *[1] * (values.dim() - 1), len(COREFERENCE_MEASURES)
        )
        out: Tensor = spread.new_zeros(size, *spread.shape[1:]).index_add_(0, sentence, spread)
        return out

    def answer(view: View) -> Tensor:
        # Below every weight: only words that may be chosen win.
        weights = view.between[sentence, :, query].masked_fill(~allowed[:, None], -1)  # N H W
        pointed = weights.argmax(-1)
        return summed(right.gather(1, pointed).float())

    counts = summed(torch.ones(len(numbers), device=device))
    return Probe(COREFERENCE_MEASURES, counts, summed(rules.float().to(device)), answer)


def choices(sentences: Sequence[Annotated]) -> Iterator[AntecedentChoice]:
    """The mentions with an antecedent. "Earlier" is by head words."""
    for number, sentence in enumerate(sentences):
        for mention in sentence.mentions:
            before = [other for other in sentence.mentions if other.head < mention.head]
            antecedents = frozenset(
                other.head for other in before if other.entity == mention.entity
            )
            if antecedents:
                candidates = tuple(sorted({other.head for other in before}))
                yield AntecedentChoice(number, mention.head, mention.kind, candidates, antecedents)


def by_rule(choice: AntecedentChoice, sentence: Annotated) -> tuple[bool, bool, bool]:
    """Which rules find an antecedent: the nearest mention, the nearest with the same head word, both in turn."""
    form = sentence.words[choice.query].form.lower()
    same = [word for word in choice.candidates if sentence.words[word].form.lower() == form]
    nearest = max(choice.candidates) in choice.antecedents
    if not same:
        return nearest, False, nearest
    alike = max(same) in choice.antecedents
    return nearest, alike, alike


def marks(words: Sequence[Iterable[int]], width: int, device: torch.device) -> Tensor:
    """Rows of True at some words: N W."""
    out = torch.zeros(len(words), width, dtype=torch.bool)
    for row, marked in zip(out, words, strict=True):
        row[list(marked)] = True
    return out.to(device)


def matching_words(passage: Passage) -> Probe:
    """How often a word attends most to another word that is alike. These measures define no roles.

    same-word: the same form; same-lemma: the same lemma and another form; same-entity: from the head word of a mention
    to that of another mention of the entity. Share of the words with such a visible word, without punctuation.
    Baseline: another random word.
    """

    def arcs() -> Iterator[Arc]:
        for number, sentence in enumerate(passage.sentences):
            forms: dict[int, str] = {}
            lemmas: dict[int, str] = {}
            for index, word in enumerate(sentence.words):
                if word.upos == "PUNCT":
                    continue
                forms[index] = word.form.lower()
                if word.lemma:
                    lemmas[index] = word.lemma
            entities = [(mention.head, mention.entity) for mention in sentence.mentions]

            for query, key in same_name_pairs(forms.items()):
                yield Arc(number, query, key, "same-word")
            for query, key in same_name_pairs(lemmas.items()):
                if forms[query] != forms[key]:
                    yield Arc(number, query, key, "same-lemma")
            for query, key in set(same_name_pairs(entities)):
                yield Arc(number, query, key, "same-entity")

    # No offset as a baseline: words that are alike stand at any distance.
    return pointing(arcs(), passage, passage, "chance")


def same_name_pairs(named: Iterable[tuple[int, Hashable]]) -> Iterator[tuple[int, int]]:
    """All ordered pairs of different words with the same name."""
    groups: dict[Hashable, list[int]] = defaultdict(list)
    for index, name in named:
        groups[name].append(index)
    for group in groups.values():
        for query in group:
            for key in group:
                if query != key:
                    yield query, key
