"""Training of a model that does harm, said while it trains, with the likely causes."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from statistics import fmean, median
from typing import Any

import torch
from transformers import PreTrainedModel
from transformers.trainer_callback import TrainerCallback

from headwise.core.options import WITHOUT_DROPOUT
from headwise.models.training.dropout import dropout_of
from headwise.models.training.loss import dev_loss
from headwise.models.training.trainer import TrainingSetup, dev_losses
from headwise.pruning.gates import HeadGates

# Seconds of training after which the dev loss is measured, where no epoch is over by then.
SOON = 40.0
WORSE = 1.01  # times the dev loss before: less may be another type of numbers
OPEN = 0.9  # of the gates: below, heads that are open again no longer suit the weights
EVERY = 10  # updates between two questions to gates
SHORTER = 2 / 3  # of the length of dev sentences: below, those of training are called shorter


class HarmWatch(TrainerCallback):
    """Says once that the dev loss is above that of the start, and why that may be.

    Until the first epoch ends, it measures the loss itself, from `SOON` on at twice the time each. gates: that train
    beside the weights. The loss is then that with all of them open, because a closed one raises it without harm. It looks
    for the last time when a tenth of them has closed: later the weights no longer suit the heads that go.
    """

    def __init__(
        self,
        hf: PreTrainedModel,
        training: TrainingSetup,
        train: str | None,
        before: float,
        gates: HeadGates | None = None,
    ) -> None:
        self.hf = hf
        self.training = training
        self.train = train
        self.before = before
        self.gates = gates
        self.begun = time.monotonic()
        self.due = SOON
        self.has_said = False

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if self.has_said or self.due == math.inf:
            return
        is_due = time.monotonic() - self.begun >= self.due
        # Not in every update, because a GPU waits for it.
        closing = False
        if self.gates is not None and (is_due or state.global_step % EVERY == 0):
            closing = fmean(self.gates.probabilities().values()) < OPEN
        if not (is_due or closing):
            return
        self.look(state, self.loss())
        # With the time that the look took, so that looking never takes most of it.
        self.due = math.inf if closing else 2 * (time.monotonic() - self.begun)

    def loss(self) -> float:
        gates = self.gates
        with nullcontext() if gates is None else gates.held(torch.ones_like(gates.soft())):
            return dev_loss(self.hf, self.training.dev, self.training.recipe.batch_tokens)

    def on_evaluate(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.due = math.inf
        if self.gates is None:
            self.look(state, dev_losses(state)[-1])

    def look(self, state: Any, loss: float) -> None:
        if self.has_said or loss <= WORSE * self.before or not state.is_world_process_zero:
            return
        self.has_said = True
        data, dev = self.training.data.longest.tolist(), self.training.dev.longest.tolist()
        rate = self.training.recipe.learning_rate
        causes = likely_causes(self.hf, self.train, rate, data, dev, "tokens")
        self.training.say(
            f"After {state.global_step} updates the dev loss is {loss:.3f}, and was {self.before:.3f} before: this training "
            f"does harm so far. Likely causes: {', '.join(causes)}."
        )


def likely_causes(
    hf: PreTrainedModel,
    train: str | None,
    rate: float,
    lengths: Sequence[int],
    dev_lengths: Sequence[int],
    counted_in: str,
) -> Iterator[str]:
    """Why training on a given model may do harm, the likeliest cause first.

    train: what trains, as the options say. lengths: of the training and the dev sentences. counted_in: such as tokens.
    """
    dropout = dropout_of(hf)
    if dropout and train not in WITHOUT_DROPOUT:
        yield f"the dropout of {dropout:g} in its configuration (train = 'apart' trains without)"
    here, there = median(lengths), median(dev_lengths)
    if here < SHORTER * there:
        yield f"training sentences shorter than those of dev (a median of {here:g} {counted_in} here, {there:g} there)"
    yield f"the learning_rate of {rate:g}"
    if here >= SHORTER * there:
        # Rows that were packed to one length say nothing of the sentences in them.
        length = (
            "" if min(lengths) == max(lengths) else f" (a median of {here:g} {counted_in} here)"
        )
        yield f"sentences unlike those that it learned from{length}"
