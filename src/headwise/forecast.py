"""What a command will take, said before it starts: the time from one forward that is measured, the memory from sizes.

The work of a command is counted in forwards over its text. A forward over a few sentences of that text is timed on this
machine, in the type of numbers and with the threads that the command will use.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from headwise.attention import capture, evaluating
from headwise.attention.discover import output_of
from headwise.devices import memory_now, peak_memory
from headwise.errors import HeadwiseError
from headwise.heads import describe
from headwise.model import Model
from headwise.progress import about
from headwise.tasks import AnyText
from headwise.tasks.batches import Batches
from headwise.tasks.objective import CHUNK, inputs_of, losses_of, on_device, vocabulary_of

SAMPLE_SENTENCES = 16  # sentences, of which some are read to measure
OPERATIONS = 3e10  # of a measured forward, at most, where a model is not too large for it
FEWEST_POSITIONS = (
    256  # positions of a measured forward: fewer take as long, for the weights are read from memory
)
SLOW = 1.0  # seconds of a run that is not repeated
TOGETHER = 4096  # positions that a measure reads at once
KEPT_NUMBERS = 2.5  # numbers for each weight of a layer and each number of its input, that a backward pass keeps
PADDED_POSITIONS = 1.05  # positions of a batch for each position with a token, where a text is read in the order of length


@dataclass(frozen=True)
class Amount:
    """How much text there is.

    examples: sentences, pairs or documents. length: positions that an example takes in a batch, on average. spread: how
    much longer the examples are in which a position stands, on average: 1 where all have the same length. windows: in
    which an example is read, on average; length and spread are theirs.
    """

    examples: int
    length: float
    spread: float = 1.0
    windows: float = 1.0

    @property
    def positions(self) -> float:
        return self.examples * self.windows * self.length

    @classmethod
    def of(cls, lengths: Sequence[int] | np.ndarray, padding: float = PADDED_POSITIONS) -> Amount:
        """The amount of a text, from the length of each example in tokens."""
        sizes = np.asarray(lengths, dtype=np.float64)
        if not sizes.sum():
            return cls(0, 1.0)
        spread = (sizes**2).mean() / sizes.mean() ** 2
        return cls(len(sizes), padding * float(sizes.mean()), float(spread))

    @classmethod
    def of_batches(cls, text: Batches) -> Amount:
        """The amount of a text that is encoded; each of a user's own batches counts as one example."""
        longest = getattr(text.data, "longest", None)
        if longest is None:
            return cls(len(text.data), 1.0)
        windows = len(longest) / text.sentences
        return replace(cls.of(longest), examples=text.sentences, windows=windows)


@dataclass(frozen=True)
class Part:
    """One part of a command's work: what it is, and the seconds it takes."""

    name: str
    seconds: float


@dataclass(frozen=True)
class Forecast:
    """What a command will take.

    reads: a line about the model and each text. parts: in the order in which they are done. memory: the most that the
    process will have, in bytes. made: how the time was measured, in words.
    """

    reads: tuple[str, ...]
    parts: tuple[Part, ...]
    memory: float
    made: str

    @property
    def seconds(self) -> float:
        return sum(part.seconds for part in self.parts)

    def __str__(self) -> str:
        size = f"{self.memory / 1e9:.1f} GB of memory"
        return f"This takes about {about(self.seconds)} and {size} on this machine: {self.made}."

    def lines(self) -> list[str]:
        """What is read, a line for each part of the work, and the sum."""
        width = max((len(part.name) for part in self.parts), default=0)
        parts = [f"  {part.name:<{width}}  about {about(part.seconds)}" for part in self.parts]
        return [*self.reads, *parts, str(self), "Nothing was written."]


def forward_seconds(model: Model, text: Any) -> tuple[float, str]:
    """The seconds of a forward, with its loss where there is one, for each position of a batch; and how that was
    measured. text: as for `score`."""
    hf = model.hf
    device = hf.device.type
    batch = on_device(hf, few_sentences(model, text))
    positions = batch_positions(batch)
    explicit = device == "cpu"

    def forward() -> None:
        if model.task.has_loss:
            losses_of(hf, batch)
        else:
            output_of(hf, inputs_of(batch))

    with (
        evaluating(hf),
        torch.no_grad(),
        capture(hf, model.discovery, explicit=explicit),
    ):
        seconds = best(forward, device)
    made = f"a forward over {positions} positions took {seconds:.2g} s here, {where(model)}"
    return seconds / positions, made


def where(model: Model) -> str:
    """What a model was timed with, in words."""
    if model.hf.device.type != "cpu":
        return str(model.hf.device)
    threads = torch.get_num_threads()
    return f"{threads} thread{'s' if threads > 1 else ''}"


def memory(model: Model, text: Amount, backward: float = 0.0) -> float:
    """The most memory that the process will have, in bytes, by the sizes of what is kept of the positions that a batch
    has at most. backward: the bytes that a backward pass may keep; 0: there is none."""
    positions = min(TOGETHER, text.positions)
    words = vocabulary_of(model.hf)
    numbers = min(CHUNK, positions * words) * 2
    numbers += min(backward / 4, positions * kept_numbers(model.hf))
    return max(peak_memory(), memory_now() + 4.0 * numbers)


def kept_numbers(model: Any) -> float:
    """How many numbers a backward pass keeps for each position, about."""
    width = max(1, int(getattr(model.config.get_text_config(), "hidden_size", 1)))
    weights = sum(parameter.numel() for parameter in model.parameters())
    kept: float = KEPT_NUMBERS * max(width, weights - vocabulary_of(model) * width) / width
    return kept


def model_line(model: Model) -> str:
    """The model of a forecast in a line."""
    dtype = str(model.hf.dtype).removeprefix("torch.")
    return f"{model.name}: {model.heads.total} heads ({describe(model.heads)}), {dtype} on {model.hf.device}"


def text_line(text: Batches) -> str:
    """How much of a text is read, and what is left out, in a line."""
    data = text.data
    longest = getattr(data, "longest", None)
    unit = getattr(data, "unit", "tokens")
    tokens = "" if longest is None else f", {int(longest.sum()):,} {unit}"
    if longest is not None and text.task.generates:
        tokens += " of the longer sides"
    if text.windowed:
        tokens += f", of {text.sentences:,} sentences, {text.windowed}"
    left_out = text.left_out or "nothing"
    return f"{text.text.name}: {len(data):,} {data.noun}{tokens}; left out: {left_out}"


def few_sentences(model: Model, text: Any) -> dict[str, Any]:
    """A batch of sentences of a text of middle length, not so many that a forward takes long."""
    few = text
    if isinstance(text, AnyText) and len(text) > SAMPLE_SENTENCES:
        few = text.take(drawn(len(text), SAMPLE_SENTENCES))
    try:
        batches = [*model.task.batches(few).whole()]
    except HeadwiseError:  # all of them are too long
        batches = [next(model.task.batches(text).whole())]
    batch: Mapping[str, Tensor] = batches[len(batches) // 2]

    rows = len(batch["labels"])
    width = max(1, batch_positions(batch) // rows)
    most = TOGETHER
    if model.hf.device.type != "cuda":
        most = int(min(TOGETHER, max(FEWEST_POSITIONS, OPERATIONS / (2 * model.parameters))))
    count = min(rows, max(1, most // width))
    start = (rows - count) // 2
    times = max(
        1, FEWEST_POSITIONS // (count * width)
    )  # a short text is read several times at once, as by ablation
    several = {}
    for name, tensor in batch.items():
        part = tensor[start : start + count]
        several[name] = part.repeat(times, *[1] * (part.dim() - 1))
    return several


def batch_positions(batch: Mapping[str, Tensor]) -> int:
    """The positions of a batch: rows times the longer of its sides."""
    sides = (batch.get(name) for name in ("input_ids", "places", "decoder_input_ids", "labels"))
    return max(side.numel() for side in sides if side is not None)


def drawn(total: int, count: int, start: int = 0) -> list[int]:
    """Places evenly over a text."""
    step = max(1, total // count)
    return list(range(min(start, total - 1), total, step))[:count]


def output_share(model: Model) -> float:
    """The share of a forward that the output layer takes, by the numbers that it multiplies."""
    words = vocabulary_of(model.hf)
    if not words:
        return 0.0
    output = float(words * model.hf.get_output_embeddings().weight.shape[1])
    embedded: set[Any] = set()
    for module in (model.hf.get_input_embeddings(), model.hf.get_output_embeddings()):
        embedded.add(module.weight)
    embeddings = sum(weight.numel() for weight in embedded)
    share: float = output / (output + max(0, model.parameters - embeddings))
    return share


def best(run: Callable[[], object], device: str, most: int = 3, budget: float = 0.7) -> float:
    """Seconds of a run: the fastest of a few after a first one, so that a busy machine disturbs less. One that takes
    longer than SLOW is run once."""
    times: list[float] = []
    start = time.perf_counter()
    run()
    wait_for(device)
    first = time.perf_counter() - start
    if first > SLOW:
        return first
    while not times or (len(times) < most and sum(times) < budget):
        wait_for(device)
        start = time.perf_counter()
        run()
        wait_for(device)
        times.append(time.perf_counter() - start)
    return min(times)


def wait_for(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()
