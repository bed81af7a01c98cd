"""Language models: causal ones predict every next token, masked ones hidden tokens. Quality is perplexity."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar

import torch
from transformers import PreTrainedModel

from headwise.core.answers import Answers
from headwise.core.errors import HeadwiseError
from headwise.core.heads import HeadMap
from headwise.core.layout import HeadMask
from headwise.core.options import Search
from headwise.core.progress import OnProgress, silent
from headwise.core.qualities import PERPLEXITY
from headwise.data.text import PromptPairs, Text
from headwise.models.evaluation.losses import measure_losses
from headwise.models.tasks.batches import Batches
from headwise.models.tasks.prompt_pairs import EncodedPrompts
from headwise.models.tasks.task import Need, Output, Task
from headwise.models.training.language import Lines, Packed
from headwise.models.training.token_batches import TrainingData

CONTINUED = 12  # tokens that a text is continued by, in examples


class LanguageModel(Task):
    """A model that predicts the next token of one-sided text."""

    output: ClassVar[Output] = "causal-lm"
    noun = "a causal language model"
    needs = "one-sided text (--text)"
    text_class = Text
    also_reads: ClassVar[tuple[Any, ...]] = (PromptPairs,)
    provides: ClassVar[frozenset[Need]] = frozenset({"loss", "words", "text"})
    quality = PERPLEXITY
    samples_text = True
    causal = True

    @classmethod
    def fits(cls, hf: PreTrainedModel, heads: HeadMap) -> bool:
        return "decoder-self" in heads.kinds

    def provides_of(self, text: Any) -> frozenset[Need]:
        if isinstance(text, PromptPairs):
            return self.provides | {"counterparts"}
        return self.provides

    @property
    def stride(self) -> int | None:
        """Long documents of a causal model are read in windows that half overlap, so that all of the text counts."""
        return max(1, self.longest // 2) if self.causal else None

    def encoded(self, text: Text | PromptPairs) -> Lines | EncodedPrompts:
        if isinstance(text, PromptPairs):
            return EncodedPrompts(text, self.tokenizer, self.longest)
        return Lines(text, self.tokenizer, self.longest, self.causal, self.stride)

    def quality_batches(
        self, text: Any, progress: OnProgress = silent, search: Search | None = None
    ) -> Batches:
        self.refuse_prompts(text)
        return super().quality_batches(text, progress, search)

    def answers(
        self,
        batches: Batches,
        masks: Sequence[HeadMask] = (),
        cut: Callable[[HeadMask], Task] | None = None,
        whole: Answers | None = None,
    ) -> Answers:
        # the masked models share what they can, so that a pass for each would take longer
        return measure_losses(self, batches, masks, cut)

    def own_answers(self, batches: Batches) -> Answers:
        return measure_losses(self, batches)

    @torch.no_grad()
    def continued(self, text: str) -> str | None:
        if not self.causal or self.longest <= CONTINUED:
            return None
        given = self.tokenizer(text)["input_ids"][: self.longest - CONTINUED]
        end = self.tokenizer.eos_token_id
        # Where the tokenizer ends every text, the model would begin another one.
        ids = given[:-1] if len(given) > 1 and given[-1] == end else [*given]
        begun = len(ids)
        # `generate` would sample, or punish repetition, where the model's folder asks for that.
        while len(ids) < begun + CONTINUED:
            row = torch.tensor([ids], device=self.hf.device)
            likeliest = int(self.hf(input_ids=row, use_cache=False).logits[0, -1].argmax())
            if likeliest == end:
                break
            ids.append(likeliest)
        return str(self.tokenizer.decode(ids[begun:], skip_special_tokens=True))

    def trained_on(
        self, text: Text, batch_tokens: int, cache: Path | None, limit: int
    ) -> TrainingData:
        self.refuse_prompts(text)
        return Packed(text, self.tokenizer, min(limit, batch_tokens), self.causal, cache)

    def refuse_prompts(self, text: Any) -> None:
        """Raise HeadwiseError for prompt pairs, which are no text to train on or to have a perplexity of."""
        if isinstance(text, PromptPairs):
            raise HeadwiseError(
                f"'{text.name}' has prompts in pairs, which heads are scored on: give one-sided text here."
            )


class MaskedLanguageModel(LanguageModel):
    """A model that predicts hidden tokens of one-sided text."""

    output = "masked-lm"
    noun = "a masked language model"
    also_reads = ()
    causal = False

    @classmethod
    def fits(cls, hf: PreTrainedModel, heads: HeadMap) -> bool:
        return True
