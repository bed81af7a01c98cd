"""Batches of labelled text for models that classify. Labels are B 1: one position, the class of the text; where a task
has a class for each token, B S."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from headwise.core.errors import HeadwiseError
from headwise.data.labelled_pairs import LabelledPairs
from headwise.data.store import StoredText
from headwise.data.subwords import with_offsets
from headwise.data.tagged import TaggedText
from headwise.data.text import LabelledText
from headwise.models.attention.discover import (
    ended,
    evaluating,
    output_of,
    reads_its_source_twice,
)
from headwise.models.attention.offload import device_of
from headwise.models.token_rows import IGNORED, padded
from headwise.models.training.language import filler
from headwise.models.training.token_batches import (
    Batch,
    Collate,
    TokenBatches,
    TrainingData,
    lengths,
    mapped,
    rows_of_like_length,
    warn_once,
)

TYPES = "token_type_ids"  # which of two texts each token is of


class Labelled(TrainingData):
    """Texts as token ids, each with its class. Those longer than `max_length` tokens are left out and counted
    (`left_out`). cache: a folder for the ids, which another `Labelled` of the same text and tokenizer reuses.

    Labels are names of the model's classes (`label2id` of its configuration), or all are numbers of classes.
    """

    noun = "texts"
    # Whether each token has a class, rather than the text.
    by_token: ClassVar[bool] = False

    def __init__(
        self,
        text: Any,
        tokenizer: PreTrainedTokenizerBase,
        model: PreTrainedModel,
        max_length: int,
        cache: Path | None = None,
    ) -> None:
        refuse_other_class_loss(model)

        # Models of BERT's kind read which of two texts a token is of, unless their tokenizer declares other inputs.
        # Of one that declares none transformers 4 gave the types, and 5 does not.
        declared = getattr(tokenizer, "init_kwargs", {}).get("model_input_names")
        typed = declared is None or TYPES in declared
        types = getattr(model.config, "type_vocab_size", 0)
        self.typed = "text_pair" in text.columns and typed and types > 1

        def ids(rows: dict[str, list[str]]) -> dict[str, list[Any]]:
            if "text_pair" not in rows:
                return {"ids": self.ids_of(rows, tokenizer)}
            read = tokenizer(rows["text"], rows["text_pair"], return_token_type_ids=True)
            return {"ids": read["input_ids"], "types": read[TYPES]}

        self.dataset = mapped(text, tokenizer, ids, cache)
        # Before any training: a label that is no class is refused here.
        self.labels = self.labels_of(text, tokenizer, model)
        long = lengths(self.dataset, "ids")
        self.rows = np.flatnonzero((long > 0) & (long <= max_length))
        self.longest = long[self.rows]
        self.dropped = len(long) - len(self.rows)
        self.left_out = {
            "without a token": int((long == 0).sum()),
            f"longer than {max_length} tokens": int((long > max_length).sum()),
        }
        self.collate = LabelledCollator(padding(model, tokenizer), self.by_token)
        if not len(self.rows):
            remedy = "put a blank line behind each sentence, or " if self.by_token else ""
            raise HeadwiseError(
                f"None of the {len(long)} {self.noun} has from 1 to {max_length} tokens: {remedy}give other text."
            )

    def ids_of(
        self, rows: dict[str, list[str]], tokenizer: PreTrainedTokenizerBase
    ) -> list[list[int]]:
        """The token ids of some rows of a text."""
        ids: list[list[int]] = tokenizer(rows["text"])["input_ids"]
        return ids

    def labels_of(
        self, text: Any, tokenizer: PreTrainedTokenizerBase, model: PreTrainedModel
    ) -> Sequence[Sequence[int]]:
        """The labels of every text: its class, or the classes of its tokens, IGNORED where a token has none."""
        return [[number] for number in classes_of(text, model).tolist()]

    def __len__(self) -> int:
        return len(self.rows)

    def __getitems__(self, indices: Sequence[int]) -> list[dict[str, Any]]:
        """Rows by index; −1 is the first row without its labels."""
        # An empty row would have no last token, which causal classifiers read.
        # −1 takes the first row, whose labels are left out below.
        places = self.rows[np.maximum(indices, 0)]
        rows = []
        found = self.dataset[places]
        types = found["types"] if self.typed else [None] * len(places)
        for index, place, ids, row_types in zip(indices, places, found["ids"], types, strict=True):
            labels = self.labels[place]
            row = {"ids": ids, "labels": [IGNORED] * len(labels) if index < 0 else labels}
            rows.append({**row, "types": row_types} if self.typed else row)
        return rows

    def collator(self, model: PreTrainedModel, sampler: TokenBatches) -> Collate:
        return LabelledCollator(self.collate.fill, self.by_token, sampler.shapes)

    def once(self, model: PreTrainedModel, tokens: int) -> Iterator[Batch]:
        return self.batches(tokens)

    def batches(self, tokens: int = 4096, hide: bool = True) -> Iterator[Batch]:
        """The text once, shortest first, in batches of at most `tokens` tokens: input_ids and attention_mask B S,
        labels B 1 or B S, rows (the row of each text). Nothing is ever hidden."""
        for indices in rows_of_like_length(self.longest, tokens):
            batch = self.collate(self.__getitems__(indices))
            yield {**batch, "rows": torch.from_numpy(self.rows[indices])}


class LabelledCollator:
    """Makes tensors of rows of `Labelled`, padded to the shape for their number."""

    def __init__(self, fill: int, by_token: bool, shapes: Sequence[tuple[int, int]] = ()) -> None:
        self.fill = fill
        self.by_token = by_token
        self.length = {rows: length for length, rows in shapes}

    def __call__(self, rows: Sequence[dict[str, Any]]) -> Batch:
        length = self.length.get(len(rows))
        types = {}
        if "types" in rows[0]:
            types[TYPES] = padded([row["types"] for row in rows], 0, length)
        return {
            **types,
            "input_ids": padded([row["ids"] for row in rows], self.fill, length),
            "attention_mask": padded([[1] * len(row["ids"]) for row in rows], 0, length),
            "labels": padded(
                [row["labels"] for row in rows], IGNORED, length if self.by_token else 1
            ),
        }


def padding(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> int:
    """The token of positions that are padding: causal classifiers find the end of a text by the model's own."""
    own: Any = getattr(model.config.get_text_config(), "pad_token_id", None)
    return filler(tokenizer) if own is None else int(own)


class Tagged(Labelled):
    """Sentences as token ids, each with the class of its tokens: the tag of a word is the label of its first token, as in
    the examples of transformers; the others have none."""

    noun = "sentences"
    by_token = True

    def ids_of(
        self, rows: dict[str, list[str]], tokenizer: PreTrainedTokenizerBase
    ) -> list[list[int]]:
        return [pieces(words.split("\t"), tokenizer)[0] for words in rows["words"]]

    def labels_of(
        self, text: TaggedText, tokenizer: PreTrainedTokenizerBase, model: PreTrainedModel
    ) -> Sequence[Sequence[int]]:
        every = {tag for _, named in text for tag in named} - {str(IGNORED)}
        numbers = {**class_numbers(sorted(every), text.name, model), str(IGNORED): IGNORED}
        warn_of_one_class(sorted(every), text, model)
        warn_of_other_beginnings(text, model)
        found = []
        for words, named in text:
            _, firsts = pieces(words, tokenizer)
            found.append([IGNORED if word is None else numbers[named[word]] for word in firsts])
        return found


def pieces(
    words: list[str], tokenizer: PreTrainedTokenizerBase
) -> tuple[list[int], list[int | None]]:
    """The tokens of a sentence, and of each which word begins with it; None for special tokens and within a word.

    Words stand with blanks between them, as a text that is tagged later. Raises HeadwiseError where a tokenizer does not
    say which word each token is of.
    """
    ((ids, spans),) = with_offsets(tokenizer, [" ".join(words)])
    # The blank before a word is part of it: some tokenizers make it a token of its own.
    starts = np.cumsum([0, *(len(word) + 1 for word in words[:-1])]) - 1
    found = [
        None if span is None else int(np.searchsorted(starts, span[1] - 1, "right")) - 1
        for span in spans
    ]
    if words and not any(word is not None for word in found):
        raise HeadwiseError(
            f"A {type(tokenizer).__name__} does not say which word each of its tokens is of, as '{words[0][:30]}': save "
            "the model with a fast tokenizer (tokenizer.json)."
        )
    return ids, first_tokens(found)


def first_tokens(words: Sequence[int | None]) -> list[int | None]:
    """By token, its word, for the first token of each; None for all others."""
    seen = set[int]()
    firsts: list[int | None] = []
    for word in words:
        begins = word is not None and word not in seen
        firsts.append(word if begins else None)
        if word is not None:
            seen.add(word)
    return firsts


def classes_of(text: LabelledText | LabelledPairs, model: PreTrainedModel) -> np.ndarray:
    """The class of every text. Raises HeadwiseError for a label that is no class of the model."""
    # Each label once: a data set has millions of texts and a few classes.
    names, inverse = np.unique(np.array(text.dataset["label"], dtype=str), return_inverse=True)
    called = called_by_data(names.tolist(), text.classes, model)
    numbers = class_numbers(called, text.name, model)
    warn_of_one_class(called, text, model)
    return np.array([numbers[name] for name in called], dtype=np.int64)[inverse]


def called_by_data(
    names: Sequence[str], classes: Sequence[str], model: PreTrainedModel
) -> Sequence[str]:
    """Labels by the names that their data set declares for numbers (`classes`), where the model has such classes: its order
    may be another. Large and small letters are alike."""
    declared = {str(number): name for number, name in enumerate(classes)}
    known = class_names(model)
    by_small_letters = {name.lower(): name for name in known}
    called = []
    for name in names:
        own = declared.get(name, name)
        called.append(own if own in known else by_small_letters.get(own.lower(), own))
    # Classes of a model that nobody named (LABEL_0): the numbers are all that there is.
    return called if {*called} & known.keys() else names


def class_numbers(names: Sequence[str], text: str, model: PreTrainedModel) -> dict[str, int]:
    """The number of each class that a text names: by `label2id` of the configuration, or all are numbers. text: its name.

    Raises HeadwiseError for a name that is no class of the model.
    """
    count = int(model.config.num_labels)
    known = class_names(model)
    unnamed = [name for name in names if name not in known]
    if not unnamed:
        refuse_unclear_classes(model, names)
        return known
    numbers = {str(number): number for number in range(count)}
    strange = [name for name in unnamed if name not in numbers] or unnamed
    if not {*names} <= numbers.keys():
        some = ", ".join(list(known)[:10]) + (" …" if len(known) > 10 else "")
        raise HeadwiseError(
            f"'{strange[-1][:50]}' is a label of {text}, but no class of this {type(model).__name__}: give "
            f"its names ({some}), or only whole numbers from 0 to {count - 1}."
        )
    return numbers


def warn_of_one_class(names: Sequence[str], text: StoredText, model: PreTrainedModel) -> None:
    """Warn of a text with one label alone, as the first rows of a sorted table have."""
    if len(names) == 1 and len(text) > 1 and model.config.num_labels > 1:
        warn_once(
            text,
            names[0],
            f"All {len(text):,} texts of {text.name} have the label '{names[0][:50]}': what is measured on them says "
            "nothing of the other classes. Give texts of each, such as a table in random order.",
        )


def warn_of_other_beginnings(text: TaggedText, model: PreTrainedModel) -> None:
    """Warn of tags in IOB1, where B- only parts two entities side by side, for a model that may have learned IOB2, where
    each entity begins with B-."""
    if not any(name.startswith("B-") for name in class_names(model)):
        return
    inside = entities = 0
    for _, tags in text:
        for before, tag in zip(["O", *tags], tags, strict=False):
            mark, _, kind = tag.partition("-")
            begins = mark == "B" or (mark == "I" and before not in (f"B-{kind}", tag))
            entities += begins
            inside += begins and mark == "I"
    if inside > entities / 2:
        warn_once(
            text,
            "IOB1",
            f"{inside:,} of {entities:,} entities in {text.name} begin with I- (IOB1): a model that learned to begin each "
            "with B- (IOB2) is counted as wrong there. Give the scheme that the model learned.",
        )


def class_names(model: PreTrainedModel) -> dict[str, int]:
    """The number of each class by its name, of both tables of a configuration, which may lack one of them."""
    config: Any = model.config
    named = {str(name): int(number) for number, name in (config.id2label or {}).items()}
    return named | {str(name): int(number) for name, number in (config.label2id or {}).items()}


def refuse_unclear_classes(model: PreTrainedModel, names: Sequence[str]) -> None:
    """Raise HeadwiseError where the tables of a configuration number a class differently, give one name to two classes, or
    number one that the model does not have: which number is meant?"""
    config: Any = model.config
    by_number = {int(number): str(name) for number, name in (config.id2label or {}).items()}
    known = class_names(model)
    count = int(config.num_labels)
    named = [*by_number.values()]
    for name in names:
        number = known[name]
        if not 0 <= number < count:
            raise HeadwiseError(
                f"config.json of this {type(model).__name__} numbers '{name[:50]}' {number}, but its classes are 0 to "
                f"{count - 1}: correct id2label and label2id."
            )
        if named.count(name) > 1:
            raise HeadwiseError(
                f"config.json of this {type(model).__name__} calls {named.count(name)} classes '{name[:50]}': give each "
                "a name of its own in id2label, or number the labels of the text."
            )
        if by_number.get(number, name) != name and name in by_number.values():
            raise HeadwiseError(
                f"config.json of this {type(model).__name__} numbers its classes twice: '{name[:50]}' is {number} in "
                f"label2id, where id2label has '{by_number[number][:50]}': correct one of them."
            )


def summed_class_loss(logits: Tensor, labels: Tensor, smoothing: float = 0.0) -> Tensor:
    """The cross-entropy of classes, summed over texts or tokens: logits B C or B S C, labels B 1 or B S (IGNORED for
    none)."""
    return nn.functional.cross_entropy(
        logits.flatten(0, -2).float(),
        labels.flatten(),
        ignore_index=IGNORED,
        reduction="sum",
        label_smoothing=smoothing,
    )


def refuse_other_class_loss(model: PreTrainedModel) -> None:
    """Raise HeadwiseError where a model's own loss for two short texts is not the cross-entropy of its classes."""
    kind = type(model).__name__
    config = model.config
    # A first loss with labels sets it for good: whether labels are classes or numbers.
    before = config.problem_type
    words = (
        torch.arange(12, device=device_of(model)).view(2, 6)
        % model.get_input_embeddings().num_embeddings
    )
    # With padding, which a classifier must leave out of its text.
    mask = torch.ones_like(words)
    mask[0, 4:] = 0
    pad = getattr(config.get_text_config(), "pad_token_id", None)
    words = words.masked_fill(mask == 0, 0 if pad is None else pad)
    if reads_its_source_twice(model):
        words = ended(model, words, mask)
    inputs = {"input_ids": words, "attention_mask": mask}
    try:
        with evaluating(model), torch.no_grad(), warnings.catch_warnings(action="ignore"):
            logits = getattr(output_of(model, inputs), "logits", None)
            if logits is None:
                raise HeadwiseError(
                    f"headwise trains models that predict classes, or words by one output layer: {kind} does neither."
                )
            # Logits are B C or, with a class for each token, B S C.
            asked = logits[..., 0]
            numbers = torch.arange(asked.numel(), device=device_of(model)) % config.num_labels
            labels = numbers.view_as(asked)
            # With labels a model gives its own loss.
            output = output_of(model, {**inputs, "labels": labels})
            # The mean, as transformers' losses are.
            ours = summed_class_loss(output.logits, labels) / labels.numel()
    except (ValueError, RuntimeError, IndexError) as error:
        raise HeadwiseError(
            f"This {kind} gives no loss for two texts with classes ({' '.join(str(error).split())[:200]}). A causal "
            "classifier needs a pad_token_id in its configuration; several labels a text, or numbers, cannot be used."
        ) from None
    finally:
        config.problem_type = before
    within = 1e-4 if output.logits.dtype in (torch.float32, torch.float64) else 2e-2
    theirs = float(output.loss)
    near = abs(float(ours - output.loss)) <= within * abs(theirs) + within
    if config.num_labels < 2 or not near:
        raise HeadwiseError(
            f"This {kind} does not predict one class of several (it has {config.num_labels} labels): its own loss is "
            f"{theirs:.4g} where that of classes is {float(ours):.4g}, so its heads cannot be scored or "
            "gated by labels."
        )
