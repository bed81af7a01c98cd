"""What the heads of a model are tested on: `RoleData`, and its usual kind, a treebank with other texts."""

from __future__ import annotations

import math
import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any, Self

import pandas as pd

from headwise.core.errors import HeadwiseError, shown_value
from headwise.data.annotated import Annotated
from headwise.data.embedded import write_treebank
from headwise.data.store import AnyText, scratch_folder
from headwise.data.text import ParallelText
from headwise.data.treebank import Treebank
from headwise.models.model import Model
from headwise.models.tasks import Given
from headwise.models.tasks.task import source_sentences
from headwise.roles.alignment import Gold, LinkedText, pairs_for
from headwise.roles.causal import causal_effects, no_effects, usual_words
from headwise.roles.examples import candidates_of, examples
from headwise.roles.observation import (
    ByHalf,
    CountWords,
    Subject,
    generated_texts,
    on_generated,
    on_pairs,
    on_repeats,
    on_treebank,
    subject_of,
    words_of_treebank,
)
from headwise.roles.rare import count_tokens
from headwise.roles.role import RANDOM_WORDS, SHUFFLED

COUNTED = 1_000_000  # sentences of the training text that frequencies are counted on, at most
CONTROL_SENTENCES = 1000  # of a text, that controls are tested on, at most
PROBED_WORDS = 13_000  # of repeated tokens and generated texts, about
TIMED_TREES = 8  # sentences that are tested to measure


class RoleData(ABC):
    """What the heads of a model are tested on. made: how a part of it was made, where a user did not give all of it."""

    made: str = ""

    @abstractmethod
    def main_pass(self, subject: Subject, count: CountWords, seed: int = 0) -> ByHalf:
        """The tests on its main text, on which controls are tested too."""

    def other_passes(self, subject: Subject, count: CountWords, seed: int) -> list[ByHalf]:
        """The tests on everything else."""
        return []

    @abstractmethod
    def main_words(self, subject: Subject) -> int:
        """How many words `main_pass` reads."""

    def other_words(self, subject: Subject) -> int:
        """About how many `other_passes` read."""
        return 0

    def effects(
        self, subject: Subject, found: pd.DataFrame, count: CountWords, seed: int
    ) -> pd.DataFrame:
        """What roles are good for: `causal_effects`, where that can be tested."""
        return no_effects(found)

    def examples(
        self, subject: Subject, found: pd.DataFrame, count: CountWords
    ) -> list[dict[str, Any]]:
        """A sentence for the best head of each category of roles."""
        return []

    def example_words(self) -> int:
        """How many words `examples` reads."""
        return 0

    @abstractmethod
    def changed(self, seed: int) -> dict[str, Self]:
        """Its main text without what heads may look at, by the name of the control."""

    @abstractmethod
    def sampled(self) -> Self:
        """A part of it, spread evenly, that controls are tested on."""

    @abstractmethod
    def few(self) -> Self:
        """A little of its main text, to be timed."""

    @abstractmethod
    def lines(self) -> list[str]:
        """What is read, a line for each text."""

    @abstractmethod
    def facts(self) -> dict[str, Any]:
        """For the signature of the result."""

    def all_words(self, subject: Subject) -> int:
        """About how many words all tests read, without controls and examples."""
        return self.main_words(subject) + self.other_words(subject)


@dataclass(frozen=True)
class RoleTexts(RoleData):
    """A treebank and other texts. Without a treebank, what tests on other texts ask is all that is tested.

    confirm: another treebank to confirm roles on, instead of half of the documents. pairs: for cross attention, with
    reference links (`gold`) or those of eflomal. frequencies: how often each token id occurs in the training text;
    without them no head is tested for rare tokens.
    """

    treebank: Iterable[Annotated] | None = None
    confirm: Iterable[Annotated] | None = None
    pairs: Sequence[tuple[str, str]] | None = None
    gold: Sequence[Gold] | None = None
    frequencies: Mapping[int, int] | None = None
    made: str = field(default="", kw_only=True)

    @classmethod
    def of(
        cls,
        model: Model,
        text: Treebank | None,
        confirm: Treebank | None,
        pairs: ParallelText | LinkedText | Given | None,
        training: AnyText | Given | Mapping[int, int] | None,
    ) -> RoleTexts:
        """The texts of `roles`. Raises HeadwiseError for those that the model does not read."""
        for given in (text, confirm):
            if given is not None and not isinstance(given, Treebank):
                raise HeadwiseError(
                    f"{model.name}: its heads are tested on a treebank, and {type(given).__name__} was "
                    "given: give a file in CoNLL-U, or several as hw.Treebank.read(FILE, FILE)."
                )
        if text is None and pairs is None and subject_of(model).kind != "decoder-self":
            raise HeadwiseError(
                f"{model.name}: its heads are tested on trees, and none were given: name a file in CoNLL-U "
                "(--treebank FILE)."
            )
        counts = token_counts(model, training)
        if pairs is None:
            return cls(text, confirm, frequencies=counts)
        if not isinstance(pairs, LinkedText):
            pairs = model.task.text_of(pairs)
        pairs = pairs_for(model, pairs)
        gold = pairs.gold if isinstance(pairs, LinkedText) else None
        return cls(text, confirm, list(pairs), gold, counts, made=pairs.made)

    def main_pass(self, subject: Subject, count: CountWords, seed: int = 0) -> ByHalf:
        if self.treebank is None:
            return {}
        return on_treebank(subject, self.treebank, self.confirm, self.frequencies, count, seed)

    def other_passes(self, subject: Subject, count: CountWords, seed: int) -> list[ByHalf]:
        passes = []
        if self.pairs is not None:
            passes.append(on_pairs(subject, self.pairs, self.gold, count, seed))
        if subject.kind == "decoder-self":
            passes.append(on_repeats(subject, self.frequencies, count, seed))
            passes += on_generated(subject, generated_texts(subject, seed), count)
        return passes

    def main_words(self, subject: Subject) -> int:
        return words_of_treebank(subject, self.treebank or (), self.confirm)

    def other_words(self, subject: Subject) -> int:
        total = words_of_probes(subject)
        # Only about as many: the tests split off signs as well.
        for source, target in self.pairs or ():
            total += len(source.split()) + len(target.split())
        return total

    def effects(
        self, subject: Subject, found: pd.DataFrame, count: CountWords, seed: int
    ) -> pd.DataFrame:
        return causal_effects(subject, found, count, seed)

    def examples(
        self, subject: Subject, found: pd.DataFrame, count: CountWords
    ) -> list[dict[str, Any]]:
        trees = self.treebank or ()
        return examples(subject, trees, found, frequencies=self.frequencies, count=count)

    def example_words(self) -> int:
        return sum(len(sentence.words) for sentence in candidates_of(self.treebank or ()))

    def changed(self, seed: int) -> dict[str, RoleTexts]:
        assert self.treebank is not None  # `sampled` refuses it
        texts = {}
        for name, change in TEXT_CHANGES.items():
            # Another seed, so that two texts are not changed alike.
            confirm = None if self.confirm is None else change(list(self.confirm), seed + 1)
            treebank = change(list(self.treebank), seed)
            texts[name] = RoleTexts(treebank, confirm, frequencies=self.frequencies)
        return texts

    def sampled(self) -> RoleTexts:
        """At most CONTROL_SENTENCES sentences of each treebank."""
        if self.treebank is None:
            raise HeadwiseError(
                "Controls are tested on a treebank, and none was given: name a file in CoNLL-U (--treebank FILE)."
            )
        confirm = None if self.confirm is None else sample_sentences(self.confirm)
        return replace(self, treebank=sample_sentences(self.treebank), confirm=confirm)

    def few(self) -> RoleTexts:
        treebank = self.treebank
        if treebank is None:
            treebank = Treebank.read(write_treebank(scratch_folder() / "timed.conllu", TIMED_TREES))
        sentences = list(islice(treebank, TIMED_TREES))
        # Eight sentences have no halves, so they confirm themselves.
        return RoleTexts(sentences, sentences)

    def lines(self) -> list[str]:
        lines = []
        for text in (self.treebank, self.confirm):
            if isinstance(text, Treebank):
                words = sum(len(sentence.words) for sentence in text)
                lines.append(f"{text.name}: {len(text):,} sentences, {words:,} words")
        if self.pairs is not None:
            lines.append(f"{len(self.pairs):,} sentence pairs")
        return lines

    def facts(self) -> dict[str, Any]:
        trees, confirm = self.treebank, self.confirm
        return {
            "treebank": trees.name if isinstance(trees, Treebank) else None,
            "fingerprint": trees.fingerprint if isinstance(trees, Treebank) else None,
            "confirmed_on": confirm.name if isinstance(confirm, Treebank) else "the other half",
        }


def words_of_probes(subject: Subject) -> int:
    """About how many words of generated text the tests of language models read; none of other models."""
    if subject.kind != "decoder-self":
        return 0
    return PROBED_WORDS + usual_words(subject.discovery.heads)


def token_counts(
    model: Model, training: AnyText | Given | Mapping[int, int] | None
) -> Mapping[int, int] | None:
    """How often each token id occurs in the source side of a text, or what is counted already."""
    if training is None or isinstance(training, Mapping):
        return training
    text = model.task.text_of(training)
    if not isinstance(text, AnyText):
        raise HeadwiseError(
            f"training is {shown_value(training)}: give the text that the model was trained on, or how often each token id "
            "occurs in it."
        )
    return count_tokens(islice(source_sentences(text), COUNTED), model.tokenizer)


def random_words(sentences: Sequence[Annotated], seed: int) -> list[Annotated]:
    """Every word written as a random word of the text; how often words occur, the trees and the mentions stay."""
    draw = random.Random(seed)
    forms: list[str] = []
    for sentence in sentences:
        forms += [word.form for word in sentence.words]
    changed = []
    for sentence in sentences:
        words = [
            replace(word, form=draw.choice(forms), space_after=True) for word in sentence.words
        ]
        # The text as it was written has other words.
        changed.append(replace(sentence, words=tuple(words), written=None))
    return changed


def shuffled(sentences: Sequence[Annotated], seed: int) -> list[Annotated]:
    """Every sentence with its words in random order; the tree goes along with them, mentions of entities are lost."""
    draw = random.Random(seed)
    changed = []
    for sentence in sentences:
        order = draw.sample(range(len(sentence.words)), len(sentence.words))
        numbers = {old: new for new, old in enumerate(order)}
        numbers[-1] = -1  # the governor of a root
        words = []
        for old in order:
            word = sentence.words[old]
            words.append(replace(word, governor=numbers[word.governor], space_after=True))
        # A mention is a span of neighbouring words, which are now apart.
        changed.append(replace(sentence, words=tuple(words), mentions=(), written=None))
    return changed


TEXT_CHANGES: dict[str, Callable[[Sequence[Annotated], int], list[Annotated]]] = {
    RANDOM_WORDS: random_words,
    SHUFFLED: shuffled,
}


def sample_sentences(text: Iterable[Annotated]) -> list[Annotated]:
    """At most CONTROL_SENTENCES sentences, spread evenly over a text."""
    sentences = list(text)
    step = math.ceil(len(sentences) / CONTROL_SENTENCES)
    return sentences[::step]
