"""Classification: models that say which class a whole text belongs to. Quality is accuracy."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

from transformers import PreTrainedModel

from headwise.core.answers import Answers
from headwise.core.heads import HeadMap
from headwise.core.qualities import ACCURACY
from headwise.data.text import LabelledText
from headwise.models.attention.discover import classifies
from headwise.models.evaluation.losses import answer_classes
from headwise.models.tasks.batches import Batches
from headwise.models.tasks.task import Need, Task
from headwise.models.training.labelled import Labelled
from headwise.models.training.token_batches import TrainingData


class Classification(Task):
    """A model that predicts the class of a text."""

    output = "classification"
    noun = "a classifier"
    needs = "labelled text (--text FILE with columns text and label, hw.LabelledText)"
    text_class = LabelledText
    provides: ClassVar[frozenset[Need]] = frozenset({"loss", "text"})
    quality = ACCURACY

    @classmethod
    def fits(cls, hf: PreTrainedModel, heads: HeadMap) -> bool:
        config: Any = hf.config
        # Numbers (cross-encoders, rewards) and several classes of one text have another loss and no accuracy.
        one_of_several = config.problem_type in (None, "single_label_classification")
        return classifies(hf) and one_of_several and config.num_labels > 1

    def encoded(self, text: LabelledText) -> Labelled:
        return Labelled(text, self.tokenizer, self.hf, self.longest)

    def own_answers(self, batches: Batches) -> Answers:
        return answer_classes(self.hf, batches)

    def trained_on(
        self, text: LabelledText, batch_tokens: int, cache: Path | None, limit: int
    ) -> TrainingData:
        return Labelled(text, self.tokenizer, self.hf, min(limit, batch_tokens), cache)
