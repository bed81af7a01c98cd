"""A text as the batches that a model is scored on: all of it, or every other sentence."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from accelerate import PartialState
from torch import Tensor

from headwise.core.progress import OnProgress, silent, silent_share
from headwise.models.tasks.objective import source_places
from headwise.models.token_rows import IGNORED


class WithProgress(ABC):
    """Batches that say how much of a text was read, each time they are read.

    progress: gets the share and a word on what was read. total: the weight of the whole text; `weight` is that of a
    batch. time_limit: the seconds that measures of a sample may take together; None: they read the whole text, too.
    """

    progress: OnProgress
    total: float
    time_limit: float | None = None
    done = 0.0  # the weight of the text before the present batch
    size = 0.0  # the weight of the present batch
    read = 0  # sentences before the present batch
    together = 0  # sentences of the present batch

    @abstractmethod
    def whole(self) -> Iterator[dict[str, Any]]:
        """All batches, in every process."""

    @abstractmethod
    def weight(self, batch: Mapping[str, Tensor]) -> float:
        """How much work a batch is, in the unit of `total`."""

    @abstractmethod
    def words(self, read: int) -> str:
        """What was read, where that is so many sentences."""

    def __iter__(self) -> Iterator[dict[str, Any]]:
        state = PartialState()
        self.done = 0.0
        self.read = 0
        for number, batch in enumerate(self.whole()):
            self.size = self.weight(batch)
            self.together = int((batch["rows"] >= 0).sum())
            # All processes make all batches, and each works on its own.
            if number % state.num_processes == state.process_index:
                yield batch
            # Those of other processes, too: every process reports the share of the whole text.
            self.done += self.size
            self.read += self.together
            self.progress(min(1.0, self.done / self.total), self.words(self.read))

    def within(self, share: float) -> None:
        """Report the share of the present batch that is done, where the work on a batch takes long."""
        done = self.done + share * self.size
        # A short text is one batch: its sentences count as its work is done.
        read = self.read + int(share * self.together)
        self.progress(min(1.0, done / self.total), self.words(read))


def share_within(batches: object) -> Callable[[float], None]:
    """What gets the share of the present batch that is done; for batches without progress nobody hears of it."""
    return batches.within if isinstance(batches, WithProgress) else silent_share


def without_progress(batches: Any) -> Any:
    """The same batches, which show none: for a short look at a text before it is read."""
    if not isinstance(batches, WithProgress):
        return batches
    other = copy.copy(batches)
    other.progress = silent
    return other


class Batches(WithProgress):
    """The batches of a text for a model, as often as wanted; of several processes, each gets every n-th batch.

    data: the text as token ids. provides: what measures may ask for. progress: gets the share of the text that was read; a
    measure that reads the text twice starts twice. languages: of a translation model, in words. hide: whether a masked
    model gets its text with hidden tokens, to predict them. by_token: whether the work on a sentence grows with the
    square of its length.
    """

    hide = True
    by_token = False

    def __init__(
        self,
        text: Any,
        data: Any,
        provides: Collection[str],
        progress: OnProgress = silent,
        languages: str = "",
    ) -> None:
        self.text = text
        self.data = data
        self.provides = provides
        self.progress = progress
        self.languages = languages

    @property
    def total(self) -> float:  # type: ignore[override]
        lengths = getattr(self.data, "longest", None)
        if lengths is None:
            return float(len(self.data))
        return float((lengths.astype(float) ** (2 if self.by_token else 1)).sum())

    def weight(self, batch: Mapping[str, Tensor]) -> float:
        """The tokens of a batch, of pairs those of the longer side; the sentences where the tokens are not known."""
        if not hasattr(self.data, "longest"):
            return float((batch["rows"] >= 0).sum())
        asked = (batch["labels"] != IGNORED).sum(1)
        # The longer side: it decides how many positions a batch has.
        lengths = torch.maximum(source_places(batch).sum(1), asked).double()
        return float((lengths ** (2 if self.by_token else 1)).sum())

    def words(self, read: int) -> str:
        return self.made_on(f"{read} of {len(self.data)} {self.data.noun}")

    @property
    def objective(self) -> str:
        """What the heads are scored by, in words."""
        if "counterparts" in self.provides:
            return "logit of the answer − logit of the wrong answer"
        return "log likelihood" if "loss" in self.provides else "none"

    @property
    def documents(self) -> np.ndarray | None:
        """By window, the number of its document, from 0; None where nothing is read in windows."""
        documents: np.ndarray | None = getattr(self.data, "documents", None)
        return documents

    @property
    def sentences(self) -> int:
        """How many sentences of the text are read, a long document as one."""
        return len(self.data) if self.documents is None else int(self.documents[-1]) + 1

    @property
    def windowed(self) -> str:
        """How long documents are read, in words; empty where there is none."""
        return str(getattr(self.data, "windowed", ""))

    @property
    def dropped(self) -> int:
        """How many sentences of the text are left out."""
        return sum(self.data.left_out.values())

    @property
    def left_out(self) -> str:
        """What of the text is not read, in words: `3 blank lines, 2 longer than 512 tokens`; empty where all is read."""
        counts = {"blank": getattr(self.text, "blank", 0), **self.data.left_out}
        return ", ".join(f"{count} {reason}" for reason, count in counts.items() if count)

    @property
    def made(self) -> str:
        """How a part of the text was made, in words; empty where a user gave all of it."""
        return str(getattr(self.text, "made", ""))

    def made_on(self, read: str) -> str:
        """What of the text a number is about, with what was left out and what of it was made. read: what was read, in
        words."""
        left_out = f"left out: {self.left_out}" if self.left_out else ""
        return "; ".join(words for words in (read, self.languages, left_out, self.made) if words)

    def with_progress(self, progress: OnProgress, by_token: bool = False) -> Batches:
        """The same with another progress."""
        other = copy.copy(self)
        other.progress = progress
        other.by_token = by_token
        return other

    def intact(self) -> Batches:
        """The same without hidden tokens, for measures that need no prediction."""
        shown = copy.copy(self)
        shown.hide = False
        return shown

    def whole(self) -> Iterator[dict[str, Any]]:
        """All batches, in every process."""
        batches: Iterator[dict[str, Any]] = self.data.batches(hide=self.hide)
        return batches


class Fold(WithProgress):
    """Every other sentence, counted as per-sentence sums count them: the even ones (0) or the odd ones (1). All windows
    of a long document are in one."""

    def __init__(self, batches: Batches, which: int, progress: OnProgress = silent) -> None:
        self.batches = batches
        self.which = which
        self.progress = progress

    @property
    def total(self) -> float:  # type: ignore[override]
        return self.batches.total / 2

    def weight(self, batch: Mapping[str, Tensor]) -> float:
        return self.batches.weight(batch)

    def words(self, read: int) -> str:
        return f"{read} {self.batches.data.noun}, every other sentence"

    @property
    def documents(self) -> np.ndarray | None:
        """As of all batches, of the windows that are in this fold."""
        documents = self.batches.documents
        return None if documents is None else documents[documents % 2 == self.which]

    def intact(self) -> Fold:
        """The same sentences without hidden tokens."""
        return Fold(self.batches.intact(), self.which, self.progress)

    def whole(self) -> Iterator[dict[str, Any]]:
        """All batches, in every process."""
        documents = self.batches.documents
        start = 0
        for batch in self.batches.whole():
            size = len(batch["labels"])
            numbers = torch.arange(start, start + size)
            if documents is not None:
                # Windows overlap: apart, both halves would have read the same words.
                numbers = torch.from_numpy(documents[start : start + size])
            # By number of the sentence in the text, or of its document.
            in_fold = numbers % 2 == self.which
            mine = in_fold & (batch["labels"] != IGNORED).any(1)
            start += size
            if bool(mine.any()):
                yield {name: tensor[mine] for name, tensor in batch.items()}


class Shuffled(WithProgress):
    """All sentences of a text in small batches in random order: those that are read first are a random sample of it.
    Windows of long documents are drawn like sentences.

    tokens: positions of a batch, at most; a longer sentence is alone. Each sentence is drawn by itself, whatever its
    length: batches of like length would be a sample of clusters, whose intervals are too narrow.
    """

    def __init__(self, batches: Batches, seed: int, tokens: int, progress: OnProgress) -> None:
        self.batches = batches
        self.seed = seed
        self.tokens = tokens
        self.progress = progress
        self.rows = list[np.ndarray]()  # in the text, of the batches so far

    @property
    def total(self) -> float:  # type: ignore[override]
        return self.batches.total

    @property
    def documents(self) -> np.ndarray | None:
        """By window that was read so far, its document; None where nothing is read in windows."""
        return None if self.batches.documents is None else np.concatenate(self.rows)

    def weight(self, batch: Mapping[str, Tensor]) -> float:
        return self.batches.weight(batch)

    def words(self, read: int) -> str:
        return self.batches.words(read)

    def whole(self) -> Iterator[dict[str, Any]]:
        """All batches, in every process."""
        # All in memory: a random order cannot be read from a stream.
        batches = list(self.batches.whole())
        places = []
        for number, batch in enumerate(batches):
            places += [(number, row) for row in range(len(batch["labels"]))]
        # The text may be read again: `documents` is about this reading alone.
        self.rows.clear()
        waiting: list[dict[str, Any]] = []
        widest = 0
        for place in np.random.default_rng(self.seed).permutation(len(places)):
            number, row = places[place]
            width = batches[number]["labels"].shape[1]
            if waiting and max(widest, width) * (len(waiting) + 1) > self.tokens:
                yield self.joined(waiting)
                waiting, widest = [], 0
            waiting.append({name: tensor[[row]] for name, tensor in batches[number].items()})
            widest = max(widest, width)
        if waiting:
            yield self.joined(waiting)

    def joined(self, sentences: list[dict[str, Any]]) -> dict[str, Any]:
        """Sentences of several batches as one: padded behind their end, where no mask shows anything."""
        batch = {}
        for name, first in sentences[0].items():
            tensors = [sentence[name] for sentence in sentences]
            sizes = [max(tensor.shape[n] for tensor in tensors) for n in range(1, first.dim())]
            filling = IGNORED if name.endswith("labels") else 0
            whole = first.new_full((len(tensors), *sizes), filling)
            for row, tensor in enumerate(tensors):
                # Its own part; the rest stays as padding.
                whole[row][tuple(map(slice, tensor.shape[1:]))] = tensor[0]
            batch[name] = whole
        self.rows.append(batch["rows"].numpy())
        return batch
