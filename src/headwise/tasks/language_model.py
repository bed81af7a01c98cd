"""Language models: causal ones predict every next token, masked ones hidden tokens. Quality is perplexity."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

from headwise.data.text import Text
from headwise.progress import Report, silent
from headwise.qualities import PERPLEXITY
from headwise.tasks.batches import Batches
from headwise.tasks.task import Need, Task
from headwise.training.language import Lines, Packed
from headwise.training.token_batches import TrainingData


class LanguageModel(Task):
    """A model that predicts the next token of one-sided text."""

    name = "causal-lm"
    noun = "a causal language model"
    needs = "one-sided text (--text)"
    text_class = Text
    provides: ClassVar[frozenset[Need]] = frozenset({"loss", "words", "text"})
    quality = PERPLEXITY
    causal = True

    def encoded(self, text: Text) -> Lines:
        return Lines(text, self.tokenizer, self.longest, self.causal)

    def quality_batches(self, text: Any, progress: Report = silent) -> Batches:
        """Long documents in windows that half overlap, so that perplexity is that of the whole text."""
        if not self.causal:
            return self.batches(text, progress)
        self.check(text)
        stride = max(1, self.longest // 2)
        data = Lines(text, self.tokenizer, self.longest, True, stride)
        return Batches(self, text, data, progress)

    def trained_on(
        self, text: Text, batch_tokens: int, cache: Path | None, limit: int
    ) -> TrainingData:
        return Packed(text, self.tokenizer, min(limit, batch_tokens), self.causal, cache)


class MaskedLanguageModel(LanguageModel):
    """A model that predicts hidden tokens of one-sided text."""

    name = "masked-lm"
    noun = "a masked language model"
    causal = False
