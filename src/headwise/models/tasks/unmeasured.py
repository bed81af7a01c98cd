"""Models whose answers headwise does not measure, such as those that find an answer in a text: statistics of their
attention, masks and removal."""

from __future__ import annotations

from typing import Any, ClassVar

from transformers import PreTrainedModel
from transformers.models.auto.modeling_auto import MODEL_FOR_QUESTION_ANSWERING_MAPPING_NAMES

from headwise.core.answers import Answers
from headwise.core.errors import HeadwiseError
from headwise.core.heads import HeadMap
from headwise.core.options import Search
from headwise.core.progress import OnProgress, silent
from headwise.core.qualities import ACCURACY
from headwise.data.text import Text
from headwise.models.tasks.batches import Batches
from headwise.models.tasks.task import Need, Task
from headwise.models.training.language import Lines


class Unmeasured(Task):
    """A model with an output of another sort than words, classes or last states."""

    output = "embedding"  # the lab shows its attention, and asks for no answer
    noun = "a model whose answers headwise does not measure"
    needs = "one-sided text (--text)"
    text_class = Text
    provides: ClassVar[frozenset[Need]] = frozenset({"text"})
    quality = ACCURACY
    measured = False
    trains = False
    usual_score = "dormancy"

    @classmethod
    def fits(cls, hf: PreTrainedModel, heads: HeadMap) -> bool:
        # A model without a head of its own is its own base: it gives last states. T5's for questions is, too.
        finds_answers = type(hf).__name__ in MODEL_FOR_QUESTION_ANSWERING_MAPPING_NAMES.values()
        return hf.get_output_embeddings() is None and (hf.base_model is not hf or finds_answers)

    def encoded(self, text: Text) -> Lines:
        return Lines(text, self.tokenizer, self.longest, "decoder-self" in self.heads.kinds)

    def check_quality(self, text: Any = None) -> None:
        raise HeadwiseError(
            f"{self.model_name} is a {type(self.hf).__name__}, whose answers headwise does not measure, so it cannot be "
            "evaluated, nor pruned by its quality: score it (headwise score gives confidence, entropy and dormancy, and "
            "headwise report a page of them), and remove heads with model.without."
        )

    def quality_batches(
        self, text: Any, progress: OnProgress = silent, search: Search | None = None
    ) -> Batches:
        self.check_quality()
        return super().quality_batches(text, progress, search)

    def own_answers(self, batches: Batches) -> Answers:
        self.check_quality()
        raise AssertionError("check_quality refuses")
