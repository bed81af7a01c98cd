"""A task of another package: models that give every word a tag (parts of speech, names). Its entry point would be

[project.entry-points."headwise.tasks"]
tagging = "tagging:Tagging"
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from headwise.core.answers import Answers
from headwise.core.errors import HeadwiseError
from headwise.core.qualities import ACCURACY
from headwise.data.store import StoredText, file_key
from headwise.models.evaluation.losses import answer_classes
from headwise.models.tasks import Task
from headwise.models.tasks.batches import Batches
from headwise.models.token_rows import IGNORED
from headwise.models.training.labelled import Labelled


class TaggedText(StoredText):
    """Sentences with a tag for each word. A line of a file is a sentence: `the/DET cat/NOUN`."""

    columns = ("text", "tags")

    @classmethod
    def open(cls, spec: Any, cache: Path | None = None) -> TaggedText:
        file = Path(spec if isinstance(spec, str | Path) else spec[0])
        rows = []
        for line in file.read_text(encoding="utf-8").splitlines():
            words = [word.rpartition("/") for word in line.split()]
            if not all(separator for _, separator, _ in words):
                raise HeadwiseError(f"{file} has a word without a tag: write each as word/TAG.")
            rows.append(
                (" ".join(word for word, _, _ in words), " ".join(tag for *_, tag in words))
            )
        return cls._write(rows, file.name, cache, file_key("tagged", file))

    @property
    def lines(self) -> Any:
        return self.dataset["text"]


class Tagged(Labelled):
    """The tag of a word is the label of its first token."""

    noun = "sentences"
    by_token = True

    def labels_of(self, text: TaggedText, tokenizer: Any, model: Any) -> list[list[int]]:
        numbers = model.config.label2id
        found = []
        for sentence, tags in text.rows():
            words = tags.split()
            encoded = tokenizer(sentence.split(), is_split_into_words=True)
            before = None
            labels = []
            for word in encoded.word_ids():
                begins = word is not None and word != before
                labels.append(numbers[words[word]] if begins else IGNORED)
                before = word
            found.append(labels)
        return found


class Tagging(Task):
    output = "classification"
    noun = "a tagger"
    needs = "tagged text (--text FILE, a sentence a line, each word as word/TAG)"
    text_class = TaggedText
    provides = frozenset({"loss", "text"})
    quality = ACCURACY

    @classmethod
    def fits(cls, hf: Any, heads: Any) -> bool:
        return type(hf).__name__.endswith("ForTokenClassification")

    def encoded(self, text: TaggedText) -> Tagged:
        return Tagged(text, self.tokenizer, self.hf, self.longest)

    def own_answers(self, batches: Batches) -> Answers:
        return answer_classes(self.hf, batches)

    def trained_on(
        self, text: TaggedText, batch_tokens: int, cache: Path | None, limit: int
    ) -> Tagged:
        return Tagged(text, self.tokenizer, self.hf, min(limit, batch_tokens), cache)
