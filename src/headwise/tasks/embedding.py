"""Embedding: models that give a vector for a text and predict nothing, so that they have no loss."""

from __future__ import annotations

from typing import Any, ClassVar

from transformers import PreTrainedModel

from headwise.attention import Discovery
from headwise.data.text import ParallelText, Text
from headwise.heads import Kind
from headwise.tasks.task import Need, Task
from headwise.tasks.translation import EncodedPairs
from headwise.training.language import Lines


class Embedding(Task):
    """A model without an output layer. Encoder-decoders of this sort read pairs."""

    name = "embedding"
    noun = "a model that predicts nothing"
    needs = "one-sided text (--text)"
    text_class: type[Text | ParallelText] = Text
    provides: ClassVar[frozenset[Need]] = frozenset({"text"})
    usual_score = "confidence"

    def __init__(
        self, hf: PreTrainedModel, tokenizer: Any, discovery: Discovery, model_name: str
    ) -> None:
        super().__init__(hf, tokenizer, discovery, model_name)
        if hf.config.is_encoder_decoder:
            self.text_class = ParallelText

    @property
    def usual_kinds(self) -> tuple[Kind, ...]:
        return ("encoder-self",) if self.hf.config.is_encoder_decoder else self.heads.kinds

    def encoded(self, text: Any) -> Any:
        if isinstance(text, ParallelText):
            return EncodedPairs(self, text)
        return Lines(text, self.tokenizer, self.longest, "decoder-self" in self.heads.kinds)
