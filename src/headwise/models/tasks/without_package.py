"""Models whose task a package brings that is not installed: batches of their own are all that they are given."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

from transformers import PreTrainedModel

from headwise.core.answers import Answers
from headwise.core.errors import HeadwiseError
from headwise.core.heads import HeadMap
from headwise.core.qualities import LOSS
from headwise.data.text import Text
from headwise.models.tasks.batches import Batches
from headwise.models.tasks.task import Need, Task


class SpeechWithoutPackage(Task):
    """A model that hears, while headwise-speech is not installed. It refuses every text."""

    output = "transcription"
    noun = "a speech model"
    needs = "the package headwise-speech, which reads recordings (pip install headwise-speech), or batches of its own"
    text_class = Text
    provides: ClassVar[frozenset[Need]] = frozenset({"loss"})
    quality = LOSS
    trains = False
    reads_audio = True

    @classmethod
    def fits(cls, hf: PreTrainedModel, heads: HeadMap) -> bool:
        return bool(hf.config.is_encoder_decoder) and hf.main_input_name == "input_features"

    @classmethod
    def read(cls, spec: Any, cache: Path | None = None) -> Any:
        raise cls.refusal()

    def check(self, text: Any) -> None:
        raise self.refusal()

    def own_answers(self, batches: Batches) -> Answers:
        raise self.refusal()

    def encoded(self, text: Any) -> Any:
        raise self.refusal()

    def role_data(self, text: Any, confirm: Any, pairs: Any, training: Any) -> Any:
        raise self.refusal()

    def alignment_data(self, text: Any) -> Any:
        raise self.refusal()

    def no_loss(self) -> HeadwiseError:
        return self.refusal()

    @classmethod
    def refusal(cls) -> HeadwiseError:
        return HeadwiseError(f"The model is {cls.noun}: it needs {cls.needs}.")
