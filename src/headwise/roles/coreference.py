"""Semantic heads attend to an antecedent (Clark et al. 2019, section 4.3), or to words that are alike."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from headwise.data.annotated import Annotated, Mention, Span, Word
from headwise.roles.passage import Passage, View
from headwise.roles.probe import Arc, Probe, pointing
from headwise.roles.role import role

MEASURES = ["coreference", "coreference.pronoun", "coreference.proper", "coreference.nominal"]


class AntecedentChoice(NamedTuple):
    """A mention with an antecedent: its head word, and the head words of the mentions before it and of antecedents."""

    sentence: int
    query: int
    kind: str
    candidates: tuple[int, ...]
    antecedents: frozenset[int]


@role(
    "coreference",
    data=("treebank",),
    margin=0.10,
    expected={"encoder-self": ("coreference",)},
    baseline="best of three rules",
    short="coref",
    caption="antecedent selection, of all mentions and of pronouns, proper nouns and other nouns",
    source="Clark et al. 2019, 4.3",
    order=3,
    row=4,
    example=4,
)
def coreference(passage: Passage) -> Probe:
    """Antecedent selection: how often a mention attends more to an antecedent than to other mentions before it.

    coreference = share of mentions with a visible antecedent where argmax over the head words c of earlier mentions of
    A_h[head of the mention, c] belongs to a mention of the same entity; the same for pronouns, proper nouns and others.
    Baseline, whichever is right most often: the nearest earlier mention; the nearest with the same head word (the two
    of Clark et al.); the second and, where there is none, the first. The third is ours: a head that prefers equal words
    always chooses something, and would beat the second without any more knowledge.
    """
    chosen = [
        choice
        for choice in choices(passage.sentences)
        if {choice.query, *choice.candidates} <= passage.present[choice.sentence]
    ]
    device, size, width = passage.ids.device, len(passage.ids), passage.subwords.shape[1]
    sentence = torch.tensor([choice.sentence for choice in chosen], dtype=torch.long, device=device)
    query = torch.tensor([choice.query for choice in chosen], dtype=torch.long, device=device)
    allowed = marks([choice.candidates for choice in chosen], width, device)
    right = marks([choice.antecedents for choice in chosen], width, device)
    speaks = torch.tensor(
        [[True, *(measure.endswith(choice.kind) for measure in MEASURES[1:])] for choice in chosen],
        dtype=torch.float,
        device=device,
    ).view(-1, len(MEASURES))

    def summed(values: Tensor) -> Tensor:
        """Values of choices, N x …, summed by sentence and measure: B x … x M."""
        spread = values[..., None] * speaks.view(-1, *[1] * (values.dim() - 1), len(MEASURES))
        out: Tensor = spread.new_zeros(size, *spread.shape[1:]).index_add_(0, sentence, spread)
        return out

    def answer(view: View) -> Tensor:
        weights = view.between[sentence, :, query].masked_fill(~allowed[:, None], -1)  # N H W
        pointed = weights.argmax(-1)
        return summed(right.gather(1, pointed).float())

    rules = torch.tensor(
        [by_rule(choice, passage.sentences[choice.sentence]) for choice in chosen]
    ).view(-1, 3)
    return Probe(
        MEASURES,
        summed(torch.ones(len(chosen), device=device)),
        summed(rules.float().to(device)),
        answer,
    )


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
    same = [c for c in choice.candidates if sentence.words[c].form.lower() == form]
    nearest, alike = (
        max(places) in choice.antecedents if places else False
        for places in (choice.candidates, same)
    )
    return nearest, alike, alike if same else nearest


def marks(places: Sequence[Iterable[int]], width: int, device: torch.device) -> Tensor:
    """Rows of True at the places: N W."""
    out = torch.zeros(len(places), width, dtype=torch.bool)
    for row, each in zip(out, places, strict=True):
        row[list(each)] = True
    return out.to(device)


@role(
    "same-word",
    data=("treebank",),
    baseline="another random word",
    untrained="the baseline",
    caption="share of words pointing at another word of the same form",
    row=5,
)
@role(
    "same-lemma",
    data=("treebank",),
    baseline="another random word",
    untrained="the baseline",
    caption="share of words pointing at another form of the same lemma",
    row=5,
)
@role(
    "same-entity",
    data=("treebank",),
    baseline="another random word",
    untrained="the baseline",
    caption="share of mentions pointing at another mention of the entity",
    row=5,
)
def matching_words(passage: Passage) -> Probe:
    """How often a word attends most to another word that is alike. These measures define no roles.

    same-word: the same form; same-lemma: the same lemma and another form; same-entity: from the head word of a mention
    to that of another mention of the entity. Share of the words with such a visible word, without punctuation.
    Baseline: another random word.
    """

    def arcs() -> Iterator[Arc]:
        for number, sentence in enumerate(passage.sentences):
            words = [
                (index, word) for index, word in enumerate(sentence.words) if word.upos != "PUNCT"
            ]
            forms = {index: word.form.lower() for index, word in words}
            for one, other in same_name_pairs(forms.items()):
                yield Arc(number, one, other, "same-word")
            for one, other in same_name_pairs(
                (index, word.lemma) for index, word in words if word.lemma
            ):
                if forms[one] != forms[other]:
                    yield Arc(number, one, other, "same-lemma")
            for one, other in set(
                same_name_pairs((mention.head, mention.entity) for mention in sentence.mentions)
            ):
                yield Arc(number, one, other, "same-entity")

    return pointing(arcs(), passage, passage, "chance")


def same_name_pairs(named: Iterable[tuple[int, Hashable]]) -> Iterator[tuple[int, int]]:
    """All ordered pairs of different words with the same name."""
    groups: dict[Hashable, list[int]] = defaultdict(list)
    for index, name in named:
        groups[name].append(index)
    return (
        (one, other)
        for group in groups.values()
        for one in group
        for other in group
        if one != other
    )


def windows(sentences: Iterable[Annotated], context: int) -> Iterator[Annotated]:
    """Every `context` neighbouring sentences of a document as one, so that antecedents further back are visible."""
    waiting: list[Annotated] = []
    for sentence in sentences:
        if waiting and (len(waiting) == context or sentence.document != waiting[0].document):
            yield join_sentences(waiting)
            waiting = []
        waiting.append(sentence)
    if waiting:
        yield join_sentences(waiting)


def join_sentences(sentences: Sequence[Annotated]) -> Annotated:
    """Sentences as one, with a blank between them."""
    if len(sentences) == 1:
        return sentences[0]
    words: list[Word] = []
    mentions: list[Mention] = []
    spans: list[Span] = []
    text = ""
    for sentence in sentences:
        start, at = len(words), len(text) + bool(text)
        text = f"{text} {sentence.text}" if text else sentence.text
        words += [
            replace(w, governor=w.governor + start if w.governor >= 0 else -1)
            for w in sentence.words
        ]
        mentions += [
            replace(m, start=m.start + start, end=m.end + start, head=m.head + start)
            for m in sentence.mentions
        ]
        spans += [(left + at, right + at) for left, right in sentence.spans]
    return replace(
        sentences[0], words=tuple(words), mentions=tuple(mentions), written=(text, tuple(spans))
    )
