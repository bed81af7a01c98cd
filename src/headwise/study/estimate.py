"""How long a study takes on this machine: its steps in seconds, before anything of it is done, and the time left.

A few updates and a few decoding steps of a model of the plan's shape give the rates; sizes of the texts come from a
sample; the rest is arithmetic. A factor of two is the aim: a run corrects the estimate as it goes.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from graphlib import TopologicalSorter
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from headwise.attention import capture, start_token
from headwise.data.speech import Speech
from headwise.data.store import StoredText
from headwise.data.text import ParallelText
from headwise.evaluation.word_errors import transcription_seconds
from headwise.forecast import (
    OPERATIONS,
    Amount,
    best,
    drawn,
    forward_seconds,
    output_share,
)
from headwise.heads import HeadMap, Kind
from headwise.importance.faithfulness import work_of_judge
from headwise.importance.interactions import work_of_pairs
from headwise.importance.untrained import work_of_controls
from headwise.importance.work import Workload
from headwise.model import Model
from headwise.options import Architecture, Search, Training
from headwise.progress import about
from headwise.pruning.gate_training import freeze
from headwise.tasks import AnyText
from headwise.training.dropout import fast_dropout
from headwise.training.language import windows_of
from headwise.training.loss import loss_forward
from headwise.training.token_batches import IGNORED
from headwise.training.tokenizer import SPECIAL_TOKENS, learn_subwords
from headwise.training.trainer import bfloat16
from headwise.training.translation_model import build_model

if TYPE_CHECKING:
    from headwise.study.step import Build

SHORT_BUILD = 1.0  # seconds: a build done sooner says nothing about the pace
PADDED_PIECES = 1.1  # positions of a batch per position that holds a piece
LOADING = 4.0  # seconds before a training begins: libraries, weights
ENCODING_SECONDS = 1e-4  # seconds a pair takes to become pieces
BOOTSTRAP = 2.0  # seconds of scoring a translation with its intervals
SAMPLE_PAIRS = 1000  # pairs whose lengths are looked at
CTRANSLATE2 = 0.4  # of the time of `generate` (benchmarks/engines.py)
TESTED = 2.0  # positions of a forward that a word takes as long as, where roles are tested
DECODED_PIECES = 8  # pieces written to measure decoding
FEWEST_BATCH_POSITIONS = 256  # positions of a measured batch, at least


@dataclass(frozen=True)
class TrainingRates:
    """What a training takes, in seconds.

    Of a position of a batch: update (forward and backward), encoder_update (with a frozen decoder). step: the
    optimiser's part of an update.
    """

    update: float
    encoder_update: float
    step: float


def unmeasured(forward: float) -> TrainingRates:
    """About what a training takes by the seconds of a forward: two more forwards backwards."""
    return TrainingRates(update=3 * forward, encoder_update=3 * forward, step=0.0)


@dataclass(frozen=True)
class Estimate:
    """Seconds for the steps of a study.

    forward: of a position of a batch, in evaluation mode, as heads are scored. recipe, search: the plan's. train, dev:
    the sizes of its texts. heads: those of the full model. output: the share of a forward that the output layer takes.
    rates: of training, where they were measured. piece: of one more piece of every sentence of a decoded batch.
    transcript: of what is said in a recording.
    """

    forward: float
    recipe: Training
    search: Search
    train: Amount
    dev: Amount
    heads: HeadMap
    output: float = 0.0
    rates: TrainingRates | None = None
    piece: float = 0.0
    transcript: float = 0.0

    def training(self, epochs: int | None = None, kinds: Iterable[Kind] = ()) -> float:
        """A training, or a pruning run with gates on `kinds`: updates, and after every epoch the dev loss."""
        recipe = self.recipe
        positions = recipe.batch_tokens * recipe.accumulate
        updates = math.ceil(self.train.positions / positions)
        # With heads of the encoder alone the decoder is frozen, and gradients stop before it.
        decoder_frozen = set(kinds) == {"encoder-self"}
        rates = self.rates or unmeasured(self.forward)
        position = rates.encoder_update if decoder_frozen else rates.update
        epoch = updates * (position * positions + rates.step) + self.reading(self.dev)
        return LOADING + ENCODING_SECONDS * self.train.examples + (epochs or recipe.epochs) * epoch

    def reading(self, text: Amount) -> float:
        """One pass forward over a text, such as for its loss."""
        return text.positions * self.forward

    def answering(self, text: Amount) -> float:
        """What a model's quality is measured on, where it does not translate: transcripts, or a pass forward."""
        return text.examples * self.transcript if self.transcript else self.reading(text)

    def translating(self, text: Amount) -> float:
        """A text by beam search; a batch ends with its last hypothesis, which is longer than the mean."""
        pieces = 1.5 * text.length + 5
        share = CTRANSLATE2 if self.search.engine == "ct2" else 1.0
        return math.ceil(text.examples / self.search.batch) * pieces * self.piece * share

    def evaluating(self, text: Amount) -> float:
        """A text translated and scored, and its loss."""
        return self.translating(text) + self.reading(text) + BOOTSTRAP

    @property
    def work(self) -> Workload:
        """What measures read of the dev text."""
        work = Workload(self.heads, self.dev, self.output)
        if self.piece:
            translation = replace(self, search=Search()).translating(self.dev)
            work = replace(work, translation=translation / self.reading(self.dev))
        return work

    def scoring(self, measures: Iterable[str]) -> float:
        """Scores of every head on the dev text, by full names of measures."""
        return self.work.of_measures(measures) * self.reading(self.dev)

    def controls(self, measures: Iterable[str], count: int) -> float:
        """The same of so many untrained controls, on part of the text."""
        return work_of_controls(self.work, measures, count) * self.reading(self.dev)

    def testing(self, words: int) -> float:
        """Tests of roles on so many words: no logits, all attention weights, and a pass over the answers."""
        return TESTED * words * self.forward * (1 - self.output)

    def pairing(self, pairs: int) -> float:
        """Pairs of heads switched off together."""
        return work_of_pairs(self.work, pairs) * self.reading(self.dev)

    def judging(self, measures: Iterable[str], orders: int) -> float:
        """The comparison of measures with exact ablation."""
        return work_of_judge(self.work, measures, orders) * self.reading(self.dev)


def estimate(
    shape: Architecture | Model,
    recipe: Training,
    search: Search,
    train: AnyText,
    dev: AnyText,
    device: str = "cpu",
    *,
    trains: bool = True,
) -> Estimate:
    """What a study will take with these texts, and a model of this shape or this one; takes a few seconds itself.

    No piece is known before a tokenizer is learned, so one is learned from a small part of the training text. trains:
    whether the study trains anything. Raises HeadwiseError for texts of another sort than the model needs.
    """
    if isinstance(shape, Architecture):
        assert isinstance(train, ParallelText)
        hf = blank(shape).to(device)
        model = Model(hf, sampled_subwords(train, shape), "a model with random weights")
        longest = shape.max_length
        stride = None
    else:
        model = shape
        model.task.check(train)
        model.task.check(dev)
        longest = model.task.longest
        stride = model.task.stride

    # a text that is read in windows is packed for training, where nothing overlaps
    train_size = text_amount(train, model.tokenizer, longest, stride and longest)
    dev_size = text_amount(dev, model.tokenizer, longest, stride)
    forward, _ = forward_seconds(model, dev)
    found = Estimate(
        forward, recipe, search, train_size, dev_size, model.heads, output_share(model)
    )
    length = max(2, round(train_size.length))
    room = math.inf if model.hf.device.type == "cuda" else OPERATIONS
    if trains:
        most = min(recipe.batch_tokens, max(FEWEST_BATCH_POSITIONS, room / (6 * model.parameters)))
        batch = training_batch(model, train, max(1, int(most) // length), length)
        found = replace(found, rates=training_rates(model, recipe, batch))
    if model.task.generates:
        most = max(16, room / (2 * model.parameters * search.beam * DECODED_PIECES))
        found = replace(found, piece=decoding(model.hf, search, length, most))
    if isinstance(dev, Speech):
        found = replace(found, transcript=transcription_seconds(model, dev)[0])
    return found


def training_batch(model: Model, train: AnyText, rows: int, length: int) -> dict[str, Tensor]:
    """A batch of so many rows, as training gets it: for a translation model of random pieces."""
    if model.task.generates:
        return random_batch(model.hf, rows, length)
    (batch, *_) = model.task.batches(train.head(rows)).whole()
    return {name: each.to(model.hf.device) for name, each in batch.items() if name != "rows"}


def sampled_subwords(text: ParallelText, shape: Architecture) -> PreTrainedTokenizerBase:
    """A vocabulary of a part of the text, the pairs that `text_amount` looks at left out where there are others."""
    sides = text.dataset[drawn(len(text), 2 * SAMPLE_PAIRS, 1)]
    return learn_subwords([*sides["source"], *sides["target"]], shape.vocabulary)


def text_amount(
    text: AnyText, pieces: PreTrainedTokenizerBase, most: int, stride: int | None = None
) -> Amount:
    """The size of a text: all its examples, and their lengths in a sample, of pairs that of the longer side. Too long ones
    are left out or, with a stride, read in windows. Recordings all have the length that the model hears, `most`."""
    if isinstance(text, Speech):
        return Amount(len(text), float(most))
    assert isinstance(text, StoredText)
    rows = text.dataset[drawn(len(text), SAMPLE_PAIRS)]
    if isinstance(text, ParallelText):
        sources = pieces(rows["source"])["input_ids"]
        targets = pieces(text_target=rows["target"])["input_ids"]
        lengths = np.maximum(lengths_of(sources), lengths_of(targets))
    else:
        lengths = lengths_of(pieces(rows["text"])["input_ids"])
    kept = lengths[lengths <= most] if stride is None else lengths
    examples = round(len(text) * len(kept) / len(lengths))
    windows = kept if stride is None else windows_of(kept, most, stride)[2]
    times = len(windows) / max(1, len(kept))
    return replace(Amount.of(windows, PADDED_PIECES), examples=examples, windows=times)


def lengths_of(sentences: Iterable[Sequence[int]]) -> np.ndarray:
    return np.array([len(sentence) for sentence in sentences])


def blank(shape: Architecture) -> PreTrainedModel:
    """A model of the shape with random weights and no tokenizer."""

    class Pieces:
        pad_token_id = 0
        eos_token_id = 1
        bos_token_id = 2

        def __len__(self) -> int:
            return shape.vocabulary

    return build_model(shape, cast(PreTrainedTokenizerBase, Pieces()), seed=0)


def training_rates(model: Model, recipe: Training, batch: Mapping[str, Tensor]) -> TrainingRates:
    """The rates of a model on a batch, as training gets it. The model stays as it is."""
    hf = model.hf
    device = hf.device.type
    positions = batch["input_ids"].numel()
    mixed = torch.autocast(device, torch.bfloat16, enabled=bfloat16(recipe.dtype, device))
    optimizer = torch.optim.AdamW(hf.parameters(), lr=0.0, weight_decay=0.0, fused=True)
    trained = [weight for weight in hf.parameters() if weight.requires_grad]

    def backward() -> None:
        (hf(**batch, smoothing=recipe.label_smoothing) / positions).backward()

    with (
        capture(hf, model.discovery, explicit=device == "cpu"),
        loss_forward(hf),
        fast_dropout(hf),
    ):
        hf.train()
        with mixed:
            update = best(backward, device)
            step = best(optimizer.step, device)
            optimizer.zero_grad()
            freeze(hf, ("encoder-self",))
            encoder = best(backward, device)
    hf.eval()
    for weight in trained:
        weight.requires_grad_(True)
        weight.grad = None
    return TrainingRates(update / positions, encoder / positions, step)


def decoding(hf: PreTrainedModel, search: Search, length: int, most: float) -> float:
    """Seconds to write one piece for `search.batch` sentences, measured on at most so many."""
    rows = int(min(search.batch, most))
    batch = random_batch(hf, rows, length)
    inputs: dict[str, Any] = {name: batch[name] for name in ("input_ids", "attention_mask")}
    size = {"max_length": DECODED_PIECES + 1, "min_length": DECODED_PIECES + 1}

    def write() -> None:
        with torch.no_grad():
            cast(Any, hf).generate(
                **inputs, num_beams=search.beam, do_sample=False, early_stopping=False, **size
            )

    return best(write, hf.device.type) / DECODED_PIECES * search.batch / rows


def random_batch(hf: PreTrainedModel, rows: int, length: int) -> dict[str, Tensor]:
    """A full batch of random pieces: rows × length, as training gets it."""
    generator = torch.Generator().manual_seed(0)
    size = min(
        hf.config.vocab_size, getattr(hf.config, "decoder_vocab_size", None) or hf.config.vocab_size
    )
    source, target = torch.randint(
        len(SPECIAL_TOKENS), size, (2, rows, length), generator=generator
    ).to(hf.device)
    start = target.roll(1, 1)
    start[:, 0] = start_token(hf)
    labels = target.clone()
    labels[:, -(length // 10) or length :] = IGNORED  # about as much as padding is
    return {
        "input_ids": source,
        "attention_mask": torch.ones_like(source),
        "decoder_input_ids": start,
        "labels": labels,
    }


class TimeLeft:
    """The time left. The pace is the seconds that the builds made so far took, over those estimated for them."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self.begun: dict[str, float] = {}
        self.took = 0.0
        self.estimated = 0.0

    def begin(self, build: Build) -> None:
        self.begun[build.name] = self.clock()

    def end(self, build: Build, made: bool) -> None:
        """made: whether it was really done, so that it says something about the pace."""
        seconds = self.clock() - self.begun.pop(build.name)
        if made and seconds >= SHORT_BUILD and build.estimated_seconds:
            self.took += seconds
            self.estimated += build.estimated_seconds

    def left(self, builds: Sequence[Build], slots: int) -> float:
        """Seconds until these builds are done: the work shared out to the slots, or the longest path through them."""
        pace = self.took / self.estimated if self.estimated else 1.0
        now = self.clock()
        cost: dict[str, float] = {}
        for build in builds:
            spent = now - self.begun.get(build.name, now)
            cost[build.name] = max(0.0, build.estimated_seconds * pace - spent)
        exclusive = sum(cost[build.name] for build in builds if build.exclusive)
        longest = sum(cost[name] for name in longest_path(builds, cost))
        return max((sum(cost.values()) - exclusive) / slots + exclusive, longest)

    def left_in_words(self, builds: Sequence[Build], slots: int) -> str:
        left = self.left(builds, slots)
        return f" · about {about(left)} left" if left >= SHORT_BUILD else ""


def longest_path(builds: Sequence[Build], cost: Mapping[str, float]) -> list[str]:
    """The path through the graph that costs most, along builds that wait for each other (the critical path)."""
    parents: dict[str, list[str]] = {}
    for build in builds:
        parents[build.name] = [name for name in build.waits_for if name in cost]
    total: dict[str, float] = {}
    before: dict[str, str | None] = {}
    for name in TopologicalSorter(parents).static_order():
        last = max(parents[name], key=lambda parent: total[parent], default=None)
        before[name] = last
        total[name] = cost[name] + (total[last] if last else 0.0)

    path: list[str] = []
    name_at = max(total, key=lambda name: total[name], default=None)
    while name_at:
        path.append(name_at)
        name_at = before[name_at]
    return path[::-1]


def plan_lines(builds: Sequence[Build]) -> list[str]:
    """Every build with its estimated cost and what it waits for, the sum of all, and the longest path."""
    to_do = [build for build in builds if not build.was_done]
    left = {build.name: build.estimated_seconds for build in to_do}
    cost: dict[str, str] = {}
    for build in builds:
        cost[build.name] = "done" if build.was_done else cost_in_words(build.estimated_seconds)
    name_width = max(map(len, cost), default=0)
    cost_width = max(map(len, cost.values()), default=0)

    lines = []
    for build in builds:
        line = f"{build.name:<{name_width}}  {cost[build.name]:>{cost_width}}"
        waits_for = [name for name in build.waits_for if name in left]
        if waits_for and not build.was_done:
            line += f"  after {name_some_steps(waits_for)}"
        if build.exclusive:
            line += "  (exclusive)"
        lines.append(line)

    done = len(builds) - len(to_do)
    count = f"{len(builds)} steps, {done} of them done" if done else f"{len(builds)} steps"
    total = sum(left.values())
    if not total:
        return [*lines, count]
    path = longest_path(to_do, left)
    path_total = sum(left[name] for name in path)
    rest = "the rest " if done else ""
    lines.append(f"{count}, {rest}one after another: about {about(total)}")
    lines.append(f"the longest path: about {about(path_total)} ({' → '.join(path)})")
    return lines


def cost_in_words(seconds: float) -> str:
    return f"about {about(seconds)}" if seconds else "–"


def name_some_steps(names: Sequence[str], most: int = 3) -> str:
    """A list that stays on its line: `a, b and 40 more`."""
    if len(names) <= most:
        return ", ".join(names)
    return f"{', '.join(names[: most - 1])} and {len(names) - most + 1} more"
