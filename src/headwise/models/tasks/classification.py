"""Classification: models that say which class a whole text belongs to. Quality is accuracy."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

from transformers import PreTrainedModel

from headwise.core.answers import Answers
from headwise.core.heads import HeadMap
from headwise.core.qualities import ACCURACY, Number
from headwise.data.labelled_pairs import LabelledPairs
from headwise.data.store import AnyText
from headwise.data.text import LabelledText
from headwise.models.attention.discover import classifies
from headwise.models.evaluation.losses import answer_classes
from headwise.models.tasks.batches import Batches
from headwise.models.tasks.task import Need, Task
from headwise.models.training.labelled import Labelled
from headwise.models.training.token_batches import TrainingData


def below_most_frequent(labels: Sequence[str], number: Number) -> list[str]:
    """That a classifier is right less often than one that always says the most frequent class, where its interval shows
    it."""
    ((most, times),) = Counter(labels).most_common(1)
    share = 100 * times / len(labels)
    if number.value is None or number.high is None or number.high >= share:
        return []
    return [
        f"The full model is right in {number.value:.1f} %, and one that always says '{most}' in {share:.1f} %: it does not "
        "know these classes, so that what is lost without heads means little. Check its labels and its tokenizer."
    ]


class Classification(Task):
    """A model that predicts the class of a text."""

    output = "classification"
    noun = "a classifier"
    needs = (
        "labelled text (--text FILE with columns text and label, of pairs also text_pair, premise and hypothesis, or "
        "sentence1 and sentence2; hw.LabelledText)"
    )
    text_class = LabelledText
    also_reads: ClassVar[tuple[Any, ...]] = (LabelledPairs,)
    provides: ClassVar[frozenset[Need]] = frozenset({"loss", "text"})
    quality = ACCURACY

    @classmethod
    def fits(cls, hf: PreTrainedModel, heads: HeadMap) -> bool:
        config: Any = hf.config
        # Numbers (cross-encoders, rewards) and several classes of one text have another loss and no accuracy.
        one_of_several = config.problem_type in (None, "single_label_classification")
        return classifies(hf) and one_of_several and config.num_labels > 1

    def text_of(self, given: Any) -> Any:
        """As of every task, and pairs of texts with a label each."""
        pairs = None if isinstance(given, AnyText) else LabelledPairs.made_of(given)
        return super().text_of(given) if pairs is None else pairs

    @classmethod
    def doubts_about(cls, text: LabelledText | LabelledPairs, number: Number) -> list[str]:
        return below_most_frequent([row[-1] for row in text], number)

    def encoded(self, text: LabelledText | LabelledPairs) -> Labelled:
        return Labelled(text, self.tokenizer, self.hf, self.longest)

    def own_answers(self, batches: Batches) -> Answers:
        return answer_classes(self.hf, batches)

    def trained_on(
        self, text: LabelledText | LabelledPairs, batch_tokens: int, cache: Path | None, limit: int
    ) -> TrainingData:
        return Labelled(text, self.tokenizer, self.hf, min(limit, batch_tokens), cache)
