"""Tagging: models that say which class each token belongs to, such as names of persons (NER) or parts of speech. Quality
is the accuracy of words."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from transformers import PreTrainedModel

from headwise.core.answers import Answers
from headwise.core.errors import HeadwiseError
from headwise.core.heads import HeadMap, as_rows
from headwise.core.options import Search
from headwise.core.progress import OnProgress, silent
from headwise.core.qualities import ACCURACY
from headwise.data.tagged import WORDS, TaggedText, is_tagged
from headwise.data.text import Text
from headwise.models.attention.discover import tags
from headwise.models.evaluation.losses import answer_classes
from headwise.models.tasks.batches import Batches
from headwise.models.tasks.task import Need, Task
from headwise.models.training.labelled import Tagged
from headwise.models.training.language import Lines
from headwise.models.training.token_batches import TrainingData


class Tagging(Task):
    """A model that predicts the class of every token. One-sided text, without tags, has statistics of attention."""

    output = "classification"
    noun = "a token classifier"
    needs = (
        "tagged text (--text FILE with a word and its tag a line, or a table with the columns tokens and tags; rows of "
        "words and tags)"
    )
    text_class = TaggedText
    also_reads: ClassVar[tuple[Any, ...]] = (Text,)
    provides: ClassVar[frozenset[Need]] = frozenset({"loss", "text"})
    quality = ACCURACY

    @classmethod
    def fits(cls, hf: PreTrainedModel, heads: HeadMap) -> bool:
        return tags(hf)

    def provides_of(self, text: Any) -> frozenset[Need]:
        return self.provides - {"loss"} if isinstance(text, Text) else self.provides

    @classmethod
    def read(cls, spec: Any, cache: Path | None = None) -> TaggedText | Text:
        """Tagged text, or one-sided text, by what the file holds."""
        return TaggedText.open(spec, cache) if is_tagged(spec) else Text.open(spec, cache)

    def text_of(self, given: Any) -> Any:
        """As of every task, and rows of words and tags."""
        named = getattr(given, "column_names", None)
        given = as_rows(given) if named is None else given
        first = next(iter(given), None) if isinstance(given, list | tuple) else None
        rows = isinstance(first, Mapping) and any(name in first for name in WORDS)
        pairs = isinstance(first, list | tuple) and all(isinstance(cell, list) for cell in first)
        if rows or pairs or (named is not None and not isinstance(given, Mapping)):
            return TaggedText.from_rows(given)
        return super().text_of(given)

    def quality_batches(
        self, text: Any, progress: OnProgress = silent, search: Search | None = None
    ) -> Batches:
        self.check_quality(text)
        return super().quality_batches(text, progress, search)

    def encoded(self, text: TaggedText | Text) -> Tagged | Lines:
        if isinstance(text, Text):
            return Lines(text, self.tokenizer, self.longest, "decoder-self" in self.heads.kinds)
        return Tagged(text, self.tokenizer, self.hf, self.longest)

    def own_answers(self, batches: Batches) -> Answers:
        return answer_classes(self.hf, batches)

    def trained_on(
        self, text: TaggedText | Text, batch_tokens: int, cache: Path | None, limit: int
    ) -> TrainingData:
        self.check_quality(text)
        return Tagged(text, self.tokenizer, self.hf, min(limit, batch_tokens), cache)

    def check_quality(self, text: Any = None) -> None:
        """Raise HeadwiseError for text without tags, by which nothing can be measured or trained."""
        if isinstance(text, Text):
            raise HeadwiseError(
                f"'{text.name}' has no tags, and {self.model_name} is {self.noun}: give {self.needs}."
            )
