"""Embedding: models that give vectors and predict nothing, so that they have no loss. Quality is how well they rank
similarities of sentences."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from torch import Tensor
from transformers import PreTrainedModel

from headwise.core.answers import Similarities
from headwise.core.heads import HeadMap, Kind
from headwise.core.qualities import SIMILARITY
from headwise.data.sentence_pairs import SentencePairs
from headwise.data.store import AnyText
from headwise.data.text import ParallelText, Text
from headwise.models.evaluation.similarities import answer_pairs
from headwise.models.tasks.batches import Batches
from headwise.models.tasks.encoded_pairs import EncodedPairs
from headwise.models.tasks.objective import source_places
from headwise.models.tasks.pooling import Pooling, Reading
from headwise.models.tasks.task import MOST_SENTENCE_TOKENS, Need, Task
from headwise.models.token_rows import IGNORED
from headwise.models.training.language import Lines


class Embedding(Task):
    """A model without an output layer. Its folder may say how sentence-transformers makes vectors."""

    output = "embedding"
    noun = "a model of embeddings"
    needs = "one-sided text (--text), or a table of pairs with sentence1, sentence2 and score"
    text_class: type[Text | ParallelText] = Text
    also_reads: ClassVar[tuple[Any, ...]] = (SentencePairs,)
    provides: ClassVar[frozenset[Need]] = frozenset({"text"})
    quality = SIMILARITY
    trains = False
    usual_score = "dormancy"

    @classmethod
    def fits(cls, hf: PreTrainedModel, heads: HeadMap) -> bool:
        return hf.get_output_embeddings() is None

    def text_of(self, given: Any) -> Any:
        """As of every task, and pairs of sentences with a score each."""
        known = isinstance(given, AnyText) or SentencePairs not in self.also_reads
        pairs = None if known else SentencePairs.made_of(given)
        return super().text_of(given) if pairs is None else pairs

    def encoded(self, text: Any) -> Any:
        if isinstance(text, SentencePairs):
            # Heads are scored on the sentences alone; only the quality needs the pairs.
            text = Text.from_lines(text.lines, text.name)
        reading = self.reading()
        if reading != Reading(longest=reading.longest):
            text = Text.from_lines(map(reading, text), text.name)
        return Lines(text, self.tokenizer, self.longest, "decoder-self" in self.heads.kinds)

    def check_answers(self) -> None:
        self.pooling()

    def own_answers(self, batches: Batches) -> Similarities:
        return answer_pairs(
            self.hf, batches, self.pooling(), self.vector_places, self.reading().words
        )

    # Vectors

    @property
    def longest(self) -> int:
        return min(super().longest, self.reading().longest or MOST_SENTENCE_TOKENS)

    def reading(self) -> Reading:
        """What is done with a sentence before the model reads it."""
        return Reading() if self.folder is None else Reading.read(self.folder)

    def pooling(self) -> Pooling:
        """How a vector is made of the states of tokens."""
        return Pooling(("mean",)) if self.folder is None else Pooling.read(self.folder)

    def vector_places(self, batch: Mapping[str, Tensor]) -> Tensor:
        """Which of the last states are tokens of a sentence: booleans B S."""
        return source_places(batch)


class PairEmbedding(Embedding):
    """An encoder-decoder without an output layer, which reads pairs. Its last states are those of the target."""

    needs = "parallel text (source and target)"
    text_class = ParallelText
    also_reads = ()

    @classmethod
    def fits(cls, hf: PreTrainedModel, heads: HeadMap) -> bool:
        return super().fits(hf, heads) and bool(hf.config.is_encoder_decoder)

    @property
    def usual_kinds(self) -> tuple[Kind, ...]:
        return ("encoder-self",)

    def encoded(self, text: Any) -> Any:
        return EncodedPairs(self, text)

    def vector_places(self, batch: Mapping[str, Tensor]) -> Tensor:
        return batch["labels"] != IGNORED
