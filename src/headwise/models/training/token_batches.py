"""Token batches in a few fixed shapes.

Pairs are sorted into buckets by the longer of their two sides. A bucket's length divides `batch_tokens`, so that every
batch has exactly that number of positions: linear layers always have the same shape, attention a few. Only the last
bucket has the length of the longest pair, divisor or not, because a model may have no positions beyond it. Pairs left
over in a bucket move up to the next; only the last batch of an epoch has empty rows. Every bucket has its own number of
rows, from which the shape follows. Numbers with many divisors (2520, 5040, 10080) need least padding.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Sampler
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from headwise.core.errors import HeadwiseError
from headwise.core.folders import Folder, digest, manifest
from headwise.core.progress import without_bars
from headwise.data.store import StoredText
from headwise.data.text import ParallelText
from headwise.models.attention.configuration import start_token
from headwise.models.fingerprint import tokenizer_facts
from headwise.models.token_rows import IGNORED, batch_spans, padded

if TYPE_CHECKING:
    from datasets import Dataset

# Texts and what a warning of them was about: parts of a text are read again and again.
WARNED = set[tuple[str, str]]()

Batch = dict[str, Tensor]
Collate = Callable[[Sequence[dict[str, Any]]], Batch]


class TrainingData(Protocol):
    """A text that models train on, and how it becomes batches: `Encoded` for translation, `Labelled` for
    classifiers, `Packed` for others.

    longest: the length of every row. dropped: how many sentences are left out.
    """

    longest: np.ndarray
    dropped: int

    def __len__(self) -> int: ...

    def __getitems__(self, indices: Sequence[int]) -> list[dict[str, Any]]:
        """Rows by what the sampler gives."""

    def __getitem__(self, index: int) -> dict[str, Any]:
        return self.__getitems__([index])[0]

    def sampler(self, tokens: int, seed: int, multiple: int) -> TokenBatches:
        """Shuffled batches of at most `tokens` positions, as rows; their number in an epoch is a multiple of `multiple`."""
        return TokenBatches(self, tokens, seed, multiple)

    def collator(self, model: PreTrainedModel, sampler: TokenBatches) -> Collate:
        """What makes a batch of tensors of rows."""

    def once(self, model: PreTrainedModel, tokens: int) -> Iterator[Batch]:
        """The text once, always in the same batches: for a dev loss."""


class Encoded(TrainingData):
    """Parallel text as token ids, memory-mapped. Pairs longer than `max_length` are left out and counted (`left_out`).

    cache: a folder for the ids, which another `Encoded` of the same text and tokenizer reuses.
    """

    def __init__(
        self,
        text: ParallelText,
        tokenizer: PreTrainedTokenizerBase,
        max_length: int,
        cache: Path | None = None,
    ) -> None:
        def ids(rows: dict[str, list[str]]) -> dict[str, list[list[int]]]:
            source = tokenizer(rows["source"])
            target = tokenizer(text_target=rows["target"])
            return {"source": source["input_ids"], "target": target["input_ids"]}

        self.tokenizer = tokenizer
        dataset = mapped(text, tokenizer, ids, cache)
        longest = np.maximum(lengths(dataset, "source"), lengths(dataset, "target"))
        # Numbers of rows in the file: what is left out stays there.
        self.rows = np.flatnonzero(longest <= max_length)
        self.longest = longest[self.rows]
        self.dropped = len(longest) - len(self.rows)
        self.left_out = {f"longer than {max_length} tokens": self.dropped}
        self.dataset = dataset
        if len(self.rows) == 0:
            raise HeadwiseError(
                f"All {len(longest)} pairs are longer than max_length = {max_length} tokens: "
                "raise it or give shorter sentences."
            )

    def __len__(self) -> int:
        return len(self.rows)

    def __getitems__(self, indices: Sequence[int]) -> list[dict[str, list[int]]]:
        """Rows by index; −1 is an empty row."""
        # In one access: `datasets` takes long for each.
        rows = self.dataset[[int(self.rows[i]) for i in indices if i >= 0]]
        pairs = zip(rows["source"], rows["target"], strict=True)
        # Empty rows keep their places, so that every batch has the shape of its bucket.
        sides = [([], []) if index < 0 else next(pairs) for index in indices]
        return [{"source": source, "target": target} for source, target in sides]

    def collator(self, model: PreTrainedModel, sampler: TokenBatches) -> Collate:
        return Collator(self.tokenizer, start_token(model), sampler.shapes)

    def once(self, model: PreTrainedModel, tokens: int) -> Iterator[Batch]:
        return batches(self, start_token(model), tokens)


def mapped(
    text: StoredText,
    tokenizer: PreTrainedTokenizerBase,
    ids: Callable[..., dict[str, list[Any]]],
    cache: Path | None,
) -> Dataset:
    """The columns that `ids` makes of a text's; in a file in `cache`, which is found again, or in memory.

    A record lies next to it, so that a damaged file is made again.
    """
    file = None
    if cache:
        # A large vocabulary takes seconds to hash.
        name = f"ids-{key(text, tokenizer)}"
        file = cache / f"{name}.arrow"
        record = Folder(cache, record=f"{name}.json")
        if record.files and not record.damage():
            return type(text.dataset).from_file(str(file))
        record.make()
    with without_bars():
        dataset = text.dataset.map(
            ids,
            batched=True,
            remove_columns=text.dataset.column_names,
            load_from_cache_file=False,
            cache_file_name=str(file) if file else None,
            keep_in_memory=file is None,
            # Nothing is looked up by it; to make one, datasets would pickle the tokenizer, which takes longer than this.
            new_fingerprint="ids",
        )
    if file:
        record.note(manifest({file.name: file}))
    warn_of_doubled(dataset, tokenizer, text)
    return dataset


def warn_of_doubled(dataset: Dataset, tokenizer: PreTrainedTokenizerBase, text: StoredText) -> None:
    """Warn of a text in which stand the tokens that the tokenizer puts around every text: it puts them there again."""
    around: list[int] = tokenizer("a")["input_ids"]
    for at, place in ((0, "begin"), (-1, "end")):
        token = around[at] if around else None
        if token not in tokenizer.all_special_ids:
            continue
        twice = 0
        # `ids` of one-sided text, `source` of pairs.
        for chunk in dataset.data.column(0).chunks:
            ids = chunk.values.to_numpy()
            starts, ends = chunk.offsets.to_numpy()[:-1], chunk.offsets.to_numpy()[1:]
            long = ends - starts > 1
            edge = starts[long] if at == 0 else ends[long] - 2
            twice += int(((ids[edge] == token) & (ids[edge + 1] == token)).sum())
        name = str(tokenizer.convert_ids_to_tokens(token))
        if twice:
            warn_once(
                text,
                name,
                f"{twice:,} of {len(text):,} texts in {text.name} {place} with {name}, which the tokenizer adds, so "
                "that the model reads it twice: remove it from the text.",
            )


def warn_once(text: StoredText, about: str, sentence: str) -> None:
    """Warn of something in a text, where no warning about it was given yet."""
    if (text.name, about) not in WARNED:
        WARNED.add((text.name, about))
        warnings.warn(sentence, stacklevel=4)


def key(text: StoredText, tokenizer: PreTrainedTokenizerBase) -> str:
    """A name for the ids of a text: a hash of the text and of the tokenizer."""
    model: Any = tokenizer
    if model.is_fast:
        # Truncation and padding are those of the last call, which do not matter here.
        rules = json.loads(model.backend_tokenizer.to_str())
        rules |= {"truncation": None, "padding": None}
    else:
        rules = tokenizer_facts(model)
    languages = [
        getattr(model, name, None) for name in ("src_lang", "tgt_lang", "split_special_tokens")
    ]
    return digest([text.fingerprint, type(model).__name__, languages, rules])


def lengths(dataset: Dataset, column: str) -> np.ndarray:
    """The number of tokens of every row, read from the Arrow offsets."""
    return np.concatenate(
        [np.diff(chunk.offsets.to_numpy()) for chunk in dataset.data.column(column).chunks]
    )


class TokenBatches(Sampler[list[int]]):
    """A batch sampler: shuffled batches of at most `tokens` positions a side, the same for the same seed and epoch.

    multiple: the number of batches of an epoch is a multiple of it; the rest is left out (other pairs every epoch). Of a
    text shorter than so many batches they are smaller: a `multiple`-th
    of the text. Raises HeadwiseError where that does not hold the longest row.
    """

    def __init__(self, data: TrainingData, tokens: int, seed: int, multiple: int = 1) -> None:
        self.seed = seed
        self.epoch = 0
        self.lengths = data.longest
        self.multiple = multiple
        longest, total = int(data.longest.max()), int(data.longest.sum())
        if longest > tokens:
            raise HeadwiseError(
                f"A batch of {tokens} tokens cannot hold the longest row ({longest} tokens): "
                "raise batch_tokens."
            )
        # Of a short text: else an epoch would have fewer batches than an update takes.
        tokens = min(tokens, total // multiple)
        if longest > tokens:
            raise HeadwiseError(
                f"The training text has {total} tokens in {len(data)} rows, fewer than {multiple} batches that hold its "
                f"longest row ({longest} tokens): give more text or lower accumulate."
            )
        self.shapes = batch_shapes(data.longest, tokens)
        # The first bucket that is long enough.
        bucket_of = np.searchsorted([length for length, _ in self.shapes], data.longest)
        self.buckets = [np.flatnonzero(bucket_of == each) for each in range(len(self.shapes))]

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        # The same walk as `__iter__`, with numbers of rows in place of rows.
        count = 0
        left = 0
        for (_, rows), bucket in zip(self.shapes, self.buckets, strict=True):
            left += len(bucket)
            count += left // rows
            left %= rows
        count += left > 0
        return count // self.multiple * self.multiple

    def __iter__(self) -> Iterator[list[int]]:
        random = np.random.default_rng((self.seed, self.epoch))
        batches: list[list[int]] = []
        # Rows that fill no batch of their bucket move up to the next.
        left = np.empty(0, dtype=np.int64)
        for (_, rows), own in zip(self.shapes, self.buckets, strict=True):
            bucket = np.concatenate([left, random.permutation(own)])
            whole = len(bucket) // rows * rows
            for start in range(0, whole, rows):
                batches.append(bucket[start : start + rows].tolist())
            left = bucket[whole:]
        # Empty rows keep the last batch in its shape; a smaller one would cost a new shape.
        if len(left):
            _, rows = self.shapes[-1]
            batches.append(left.tolist() + [-1] * (rows - len(left)))
        batches = [batches[number] for number in random.permutation(len(batches))]
        yield from batches[: len(self)]


def batch_shapes(longest: np.ndarray, tokens: int) -> list[tuple[int, int]]:
    """The shapes (length, rows) of all batches, shortest first.

    Lengths divide `tokens`, and each has at least one full batch; the last is that of the longest pair.
    """
    top = int(longest.max())
    shapes: list[tuple[int, int]] = []
    waiting = 0
    below = 0
    divisors = [length for length in range(1, top) if tokens % length == 0]
    for length in [*divisors, top]:
        waiting += int(((longest > below) & (longest <= length)).sum())
        below = length
        if waiting >= tokens // length or length == top:
            shapes.append((length, tokens // length))
            waiting = 0
    return shapes


class Collator:
    """Pads a list of pairs to the shape for its number of rows."""

    def __init__(
        self, tokenizer: PreTrainedTokenizerBase, start: int, shapes: Sequence[tuple[int, int]] = ()
    ) -> None:
        self.pad = int(tokenizer.pad_token_id)
        self.start = start
        self.length = {rows: length for length, rows in shapes}

    def __call__(self, pairs: Sequence[dict[str, list[int]]]) -> dict[str, Tensor]:
        length = self.length.get(len(pairs))
        source = padded([p["source"] for p in pairs], self.pad, length)
        labels = padded([p["target"] for p in pairs], IGNORED, length)
        mask = padded([[1] * len(p["source"]) for p in pairs], 0, length)
        return {
            "input_ids": source,
            "attention_mask": mask,
            "decoder_input_ids": decoder_inputs(labels, self.start, self.pad),
            "labels": labels,
        }


def decoder_inputs(labels: Tensor, start: int, pad: int) -> Tensor:
    """What a decoder reads to predict labels B T: the start token, then all labels but the last."""
    first = labels.new_full((len(labels), 1), start)
    # IGNORED is no word that has an embedding.
    return torch.cat([first, labels[:, :-1].masked_fill(labels[:, :-1] == IGNORED, pad)], 1)


def batches(data: Encoded, start: int, tokens: int = 4096) -> Iterator[dict[str, Any]]:
    """The text once, shortest pairs first, in batches of at most `tokens` positions, for scoring. `rows`: the row of each
    sentence in the text."""
    collate = Collator(data.tokenizer, start)
    for indices in rows_of_like_length(data.longest, tokens):
        batch = collate(data.__getitems__(indices))
        yield {**batch, "rows": torch.from_numpy(data.rows[indices])}


def rows_of_like_length(longest: np.ndarray, tokens: int) -> Iterator[list[int]]:
    """The rows of a text by batch, shortest first (`batch_spans`); within a batch in their order."""
    order = np.argsort(longest, kind="stable")
    for span in batch_spans(longest[order], tokens):
        yield sorted(order[span].tolist())
