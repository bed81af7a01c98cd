"""Translation: encoder-decoders that read pairs and write sentences. Quality is BLEU."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from torch import nn
from transformers import PreTrainedModel

from headwise.core.answers import Answers
from headwise.core.heads import HeadMap, Kind
from headwise.core.options import Search
from headwise.core.progress import OnProgress, shown, silent
from headwise.core.qualities import AGREEMENT, BLEU, CHRF, QualityMeasure
from headwise.data.lines import one_sided
from headwise.data.text import ParallelText, Text
from headwise.models.decoding.bleu import refuse_short_references, translation_answers
from headwise.models.decoding.search_engines import translator_of
from headwise.models.decoding.translator import cut_note, endless_note, sentence_limit, translate
from headwise.models.languages import languages_of, refuse_other_labels
from headwise.models.positions import positions_of
from headwise.models.tasks.batches import Batches
from headwise.models.tasks.encoded_pairs import EncodedPairs
from headwise.models.tasks.own_translations import own_translations
from headwise.models.tasks.task import MOST_SENTENCE_TOKENS, Need, Task
from headwise.models.training.loss import dev_loss, loss_forward
from headwise.models.training.token_batches import Encoded, TrainingData
from headwise.models.vocabulary import refuse_other_targets

SAMPLE = 200  # pairs, or a few more, that show whether targets are the model's own translations
BATCH_TOKENS = 2520
DEV_TOKENS = 4096  # of a batch of a dev loss
# Share of the loss on references: own translations of Firefox's models have 0.05 times it, texts of another field 0.6 times.
OWN = 0.25


class UnreadTargets(ParallelText):
    """One-sided text for a training that learns from sources alone: each sentence is its own target."""

    made = "targets: none are read"


class Translation(Task):
    """A model that writes the target side of pairs."""

    output = "translation"
    noun = "a translation model"
    needs = "parallel text (source and target) or one-sided text"
    text_class = ParallelText
    provides: ClassVar[frozenset[Need]] = frozenset({"loss", "words", "text", "translations"})
    quality = BLEU

    @classmethod
    def fits(cls, hf: PreTrainedModel, heads: HeadMap) -> bool:
        return bool(hf.config.is_encoder_decoder)

    @property
    def longest(self) -> int:
        generation: Any = getattr(self.hf, "generation_config", None)
        limit = int(getattr(generation, "max_length", None) or MOST_SENTENCE_TOKENS)
        return min(limit, positions_of(self.hf) or MOST_SENTENCE_TOKENS)

    @property
    def usual_kinds(self) -> tuple[Kind, ...]:
        # The heads that Voita et al. 2019 prune first (section 6.2).
        return ("encoder-self",)

    @classmethod
    def read(cls, spec: Any, cache: Path | None = None) -> ParallelText | Text:
        """Pairs, or one file with a sentence a line, whose targets the model writes itself (`completed`)."""
        text_class: type[ParallelText | Text] = Text if one_sided(spec) else ParallelText
        return text_class.open(spec, cache=cache)

    def completed(
        self, text: Any, progress: OnProgress | None = None, outline: bool = False
    ) -> Any:
        text = self.text_of(text)
        if not isinstance(text, Text):
            return super().completed(text)
        self.check_generates()
        with shown("the model's own translations", progress) as on_progress:
            return own_translations(
                self.hf, self.tokenizer, self.model_name, text, on_progress, outline
            )

    def unread(self, text: Any) -> Any:
        text = self.text_of(text)
        if not isinstance(text, Text):
            return self.completed(text)
        self.check_generates()
        return UnreadTargets.from_pairs(zip(text, text, strict=True), text.name)

    def dev_of_training(self, train: Any, dev: Any) -> Any:
        """A model that learns its own translations drifts from references long before it is worse. Pairs whose targets it
        foretells far better than references are taken for its own translations."""
        if dev.made:
            return dev
        if train.made or self.loss_on(train) < OWN * self.loss_on(dev):
            return self.completed(Text.from_lines(dev.sources, dev.name))
        return dev

    def loss_on(self, text: ParallelText) -> float:
        """The loss of the model on a sample of pairs, in nats per token."""
        sample = text.take(range(0, len(text), max(1, len(text) // SAMPLE)))
        data = self.training_data(sample, BATCH_TOKENS)
        with loss_forward(self.hf):
            return dev_loss(self.hf, data, BATCH_TOKENS)

    def dev_loss(self, dev: ParallelText) -> float | None:
        if not isinstance(self.hf.get_output_embeddings(), nn.Linear):
            return None  # `loss_forward` knows no other output layer (FSMT's is a table of words)
        encoded = Encoded(dev, self.tokenizer, self.longest)
        with loss_forward(self.hf):
            return dev_loss(self.hf, encoded, DEV_TOKENS)

    def check_quality(self, text: Any = None) -> None:
        self.check_generates()

    @classmethod
    def quality_on(cls, text: Any) -> QualityMeasure:
        """Of translations that the full model wrote, agreement."""
        return AGREEMENT if getattr(text, "made", "") else BLEU

    def quality_batches(
        self, text: Any, progress: OnProgress = silent, search: Search | None = None
    ) -> Searched:
        self.check_quality()
        pairs = self.completed(text)
        refuse_short_references(pairs.targets)
        return Searched(self, pairs, progress, search or Search())

    def own_answers(self, batches: Batches) -> Answers:
        assert isinstance(batches, Searched)
        lines, cost = self.translations(batches)
        search, text = batches.search, batches.text
        if batches.cut:
            warnings.warn(cut_note(batches.cut, len(text), batches.limit), stacklevel=3)
        how = f", beam {search.beam}, length penalty {search.length_penalty:g}, {cost['engine']}"
        if self.languages:
            how += f", {self.languages}"
        if endless := len(cost["endless"]):
            how = f", {endless_note(endless, len(text))}{how}"
        if text.made:
            how += "; BLEU against what a model itself writes: whether models say the same, not how well"
        answers = answers_to(list(text.targets), lines, text.made)
        return replace(answers, made={name: made + how for name, made in answers.made.items()})

    def translations(self, batches: Searched) -> tuple[list[str], dict[str, Any]]:
        """The translations of a text by beam search, and what they cost."""
        search = batches.search
        translator = translator_of(self.hf, self.tokenizer, self.discovery, search.engine)
        return translate(translator, list(batches.text.sources), search, batches.progress)

    def check_tokenizer(self) -> None:
        super().check_tokenizer()
        refuse_other_labels(self.hf, self.tokenizer, self.model_name)
        refuse_other_targets(self.tokenizer, self.model_name)

    @property
    def languages(self) -> str:
        return languages_of(self.tokenizer)

    def encoded(self, text: ParallelText) -> EncodedPairs:
        return EncodedPairs(self, text)

    def trained_on(
        self, text: ParallelText, batch_tokens: int, cache: Path | None, limit: int
    ) -> TrainingData:
        return Encoded(text, self.tokenizer, limit, cache)


def answers_to(references: Sequence[str], lines: Sequence[str], made: str) -> Answers:
    """What translations are worth: BLEU and chrF; where a model made the references itself, agreement with it."""
    qualities = (AGREEMENT,) if made else (BLEU, CHRF)
    return translation_answers([lines], references, qualities)


class Searched(Batches):
    """Sentence pairs as they are translated: all of them, whatever their length; of a source with more than `limit`
    tokens only the beginning. search: how."""

    def __init__(
        self, task: Translation, text: ParallelText, progress: OnProgress, search: Search
    ) -> None:
        super().__init__(text, AllPairs(len(text)), task.provides, progress)
        self.search = search
        self.tokenizer = task.tokenizer
        self.limit = sentence_limit(task.hf)

    @cached_property
    def cut(self) -> int:
        """How many sources have more tokens than the model has positions."""
        ids = self.tokenizer(list(self.text.sources), verbose=False)["input_ids"]
        return sum(len(source) > self.limit for source in ids)

    @property
    def left_out(self) -> str:
        ends = f"the ends of {self.cut} longer than {self.limit} tokens" if self.cut else ""
        return ", ".join(filter(None, [super().left_out, ends]))


@dataclass(frozen=True)
class AllPairs:
    """The pairs of a text, of which none is left out."""

    count: int
    noun = "sentences"
    left_out: ClassVar[Mapping[str, int]] = {}

    def __len__(self) -> int:
        return self.count

    @property
    def rows(self) -> np.ndarray:
        return np.arange(self.count)
