"""About how long the work on a text takes, said before it starts: a forward over a few of its sentences is timed, and
each part of the work counts as so many forwards. While it runs, the time left follows from the pace."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from headwise.core.errors import HeadwiseError
from headwise.core.heads import describe
from headwise.core.progress import about
from headwise.data.text import ParallelText
from headwise.models.attention.discover import evaluating, output_of
from headwise.models.model import Model
from headwise.models.tasks import AnyText
from headwise.models.tasks.batches import Batches
from headwise.models.tasks.objective import inputs_of, losses_of, on_device

SAMPLE_SENTENCES = 16  # sentences, of which some are read to measure
LENGTH_SAMPLE = 1000  # sentences whose lengths are looked at
TIMED_POSITIONS = 512  # of a batch that is timed, at most
SLOW = 1.0  # seconds of a run that is repeated once
VERY_SLOW = 10.0  # of one that is not repeated


@dataclass(frozen=True)
class Forecast:
    """What a command will take.

    reads: a line about the model and each text. parts: of the work, in the order in which they are done. seconds: of
    all of them.
    """

    reads: Sequence[str]
    parts: Sequence[str]
    seconds: float

    def __str__(self) -> str:
        return f"This takes about {about(self.seconds)} on this machine."

    def lines(self) -> list[str]:
        """What is read and done, the time, and that this was all."""
        return [*self.reads, f"To do: {', '.join(self.parts)}.", str(self), "Nothing was written."]


def text_seconds(model: Model, text: Batches) -> float:
    """About how many seconds a forward over a text takes, with its loss where there is one; takes some itself."""
    hf = model.hf
    batch = on_device(hf, few_sentences(model, text))

    def forward() -> None:
        if "loss" in text.provides:
            losses_of(hf, batch)
        else:
            output_of(hf, inputs_of(batch))

    with evaluating(hf), torch.no_grad():
        seconds = best(forward, hf.device.type)
    # by weight, not by sentences: batches differ in length
    return seconds * text.total / text.weight(batch)


def few_sentences(model: Model, text: Batches) -> dict[str, Any]:
    """A batch of sentences from all of a text, not so many that a forward takes long."""
    whole = text.text
    few = text
    if isinstance(whole, AnyText) and len(whole) > SAMPLE_SENTENCES:
        try:
            few = model.task.batches(whole.take(drawn(len(whole), SAMPLE_SENTENCES)))
        except HeadwiseError:  # all of them are too long
            few = text
    if "loss" not in text.provides:
        few = few.intact()  # nothing is predicted, so no token is hidden
    batch: Mapping[str, Tensor] = next(few.whole())
    # Fewer rows of longer sentences, so that no forward takes long.
    rows = len(batch["labels"])
    width = max(1, batch_positions(batch) // rows)
    return {name: tensor[: max(1, TIMED_POSITIONS // width)] for name, tensor in batch.items()}


def batch_positions(batch: Mapping[str, Tensor]) -> int:
    """The positions of a batch: rows times the longer of its sides."""
    sides = (batch.get(name) for name in ("input_ids", "places", "decoder_input_ids", "labels"))
    return max(side.numel() for side in sides if side is not None)


def drawn(total: int, count: int) -> list[int]:
    """Places evenly over a text."""
    return list(range(0, total, max(1, total // count)))[:count]


def best(run: Callable[[], object], device: str) -> float:
    """Seconds of a run: the faster of two after a first one, which is cold, so that a busy machine disturbs less. One that
    takes longer than SLOW is run twice, longer than VERY_SLOW once."""
    times: list[float] = []
    while len(times) < 3:
        wait_for(device)
        start = time.perf_counter()
        run()
        wait_for(device)
        times.append(time.perf_counter() - start)
        if times[-1] > (SLOW if len(times) > 1 else VERY_SLOW):
            break
    return min(times)


def wait_for(device: str) -> None:
    # A call returns before a GPU has done its work.
    if device == "cuda":
        torch.cuda.synchronize()


def model_line(model: Model) -> str:
    """The model of a forecast in a line."""
    dtype = str(model.hf.dtype).removeprefix("torch.")
    languages = model.task.languages
    translates = f", {languages}" if languages else ""
    if numbering := model.discovery.numbering():
        translates += f". {numbering.removesuffix('.')}"
    return f"{model.name}: {model.heads.total} heads ({describe(model.heads)}), {dtype} on {model.hf.device}{translates}"


def text_line(text: Batches) -> str:
    """How much of a text is read, and what is left out, in a line."""
    data = text.data
    longest = getattr(data, "longest", None)
    unit = getattr(data, "unit", "tokens")
    tokens = "" if longest is None else f", {int(longest.sum()):,} {unit}"
    if longest is not None and "translations" in text.provides:
        tokens += " of the longer sides"
    if text.windowed:
        tokens += f", of {text.sentences:,} sentences, {text.windowed}"
    left_out = text.left_out or "nothing"
    return f"{text.text.name}: {len(data):,} {data.noun}{tokens}; left out: {left_out}"


def expected_pieces(text: Any, vocabulary: PreTrainedTokenizerBase | int) -> float:
    """About how many pieces of words a text has, of pairs those of the longer side, by the lengths of a sample.
    vocabulary: how many pieces there will be, where none are learned yet."""
    rows = text.dataset[drawn(len(text), LENGTH_SAMPLE)]
    lengths = []
    for side in ("source", "target") if isinstance(text, ParallelText) else ("text",):
        if isinstance(vocabulary, int):
            piece = math.log2(vocabulary) / 4  # bytes; on English and French 0.9 to 1.4 of it
            lengths.append([len(line.encode()) / piece for line in rows[side]])
        else:
            lengths.append([len(ids) for ids in vocabulary(rows[side])["input_ids"]])
    longer = [max(sides) for sides in zip(*lengths, strict=True)]
    return float(len(text) * sum(longer) / len(longer))
