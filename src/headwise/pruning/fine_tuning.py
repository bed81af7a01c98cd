"""Fine-tuning of a model whose heads were removed: as long as a pruning run trains its weights, but without gates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from transformers.trainer_callback import TrainerCallback

from headwise.core.heads import Kind
from headwise.core.layout import HeadMask
from headwise.core.options import GateTraining, Greedy
from headwise.core.progress import part
from headwise.models.attention.discover import same_gradients
from headwise.models.model import Model
from headwise.models.training.loss import dev_loss, loss_forward
from headwise.models.training.trainer import (
    TrainingSetup,
    average,
    dev_losses,
    train_model,
    trained_tensors,
)
from headwise.pruning.gate_training import Pruned, trainable
from headwise.pruning.harm import HarmWatch

SHARES = (1.0, 0.25, 0.0625)  # of the learning rate, tried in turn where weights train apart


@dataclass(frozen=True)
class Tuned:
    """A model whose heads were removed, fine-tuned.

    loss_before, loss_after: dev loss of the smaller model before and after fine-tuning. notes: for the report. cost:
    seconds and updates.
    """

    model: Model
    loss_before: float
    loss_after: float
    notes: list[str]
    cost: dict[str, float]


def tune(
    model: Model,
    training: TrainingSetup,
    options: GateTraining | Greedy,
    kinds: tuple[Kind, ...],
    mask: HeadMask,
    start: Model | None = None,
) -> Tuned:
    """Remove the heads outside `mask`, then fine-tune the smaller model as a pruning run does, but without gates.

    The number of updates of weights, batches and their order, rates, schedule and averaging are the same; the decoder is
    frozen where only encoder heads are pruned. With the full mask it is the control `fine-tuned`. `model` does not
    change; resumes from `training.work`. training: as the full model was trained. options.train: what trains, and with
    `distil` that the encoder of `model` is learnt from. start: the smaller model, where it is there already, such as a
    repaired one; it is trained in place.
    """
    model.heads.only(kinds)  # raises for a kind that the model does not have
    smaller = start or model.only(mask, grow=True)  # the mask obeys the unit that was asked for
    if isinstance(options, GateTraining):
        options = options.of_weights
    before = loss_on_dev(smaller, training)
    if options.train == "distil":
        if mask == HeadMask.full(model.heads):  # of an own control that returns all heads
            note = "The whole model would learn its own encoder states: nothing was trained."
            return Tuned(smaller, before, before, [note], {"seconds": 0.0, "updates": 0})
        training = replace(training, whole=model.hf.get_encoder())
    notes, cost = train_weights(smaller, training, options, kinds, before)
    return Tuned(smaller, before, loss_on_dev(smaller, training), notes, cost)


def tuned_further(pruned: Pruned, training: TrainingSetup, options: GateTraining) -> Pruned:
    """The result of a pruning run whose smaller model is trained on, in place, as `options.of_weights` say."""
    kinds = tuple(options.kinds or ())
    notes, cost = train_weights(pruned.model, training, options.of_weights, kinds, pruned.loss)
    total = {name: value + cost[name] for name, value in pruned.cost.items()}
    loss = loss_on_dev(pruned.model, training)
    return replace(pruned, loss=loss, notes=[*pruned.notes, *notes], cost=total)


def loss_on_dev(model: Model, training: TrainingSetup) -> float:
    with loss_forward(model.hf):
        return dev_loss(model.hf, training.dev, training.recipe.batch_tokens)


class Refusal(TrainerCallback):
    """Stops a training whose first dev loss is not below that of the start."""

    def __init__(self, before: float) -> None:
        self.before = before

    def on_evaluate(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if dev_losses(state)[0] >= self.before:
            control.should_training_stop = True


def train_weights(
    model: Model,
    training: TrainingSetup,
    options: GateTraining | Greedy,
    kinds: tuple[Kind, ...],
    before: float,
) -> tuple[list[str], dict[str, float]]:
    """Train the weights of a model in place, without gates. before: its dev loss now. Returns notes and the cost."""
    hf = model.hf
    train = options.train or "all"
    with same_gradients(hf), trainable(hf, train, kinds, training.seed) as notes:
        if train == "apart":
            cost = train_with_care(model, training, options, before, notes)
        else:
            cost = train_at(model, training, options, before)
    hf.eval()
    return notes, cost


def train_with_care(
    model: Model,
    training: TrainingSetup,
    options: GateTraining | Greedy,
    before: float,
    notes: list[str],
) -> dict[str, float]:
    """Train at the highest of a few rates at which the dev loss falls; where it falls at none, the weights stay as they
    are."""
    start = {name: tensor.clone() for name, tensor in trained_tensors(model.hf).items()}
    cost = {"seconds": 0.0, "updates": 0}
    for number, share in enumerate(SHARES):
        rate = share * options.learning_rate
        slower = options.model_copy(update={"learning_rate": rate})
        trial = replace(
            training,
            work=training.work / f"rate-{number}",
            # Up to the end, because the first rate usually is the last.
            progress=part(training.progress, number / len(SHARES), 1.0),
        )
        spent = train_at(model, trial, slower, before, [Refusal(before)])
        cost = {name: value + spent[name] for name, value in cost.items()}
        # A loss of NaN is not below it either: then the weights go back.
        if loss_on_dev(model, training) < before:
            notes.append(f"The weights trained at a rate of {rate:g}, without dropout.")
            return cost
        # Not strict: `start` has only what trains.
        model.hf.load_state_dict(start, strict=False)
    notes.append(
        f"The dev loss rose at each rate from {options.learning_rate:g} to {rate:g}: the weights stayed as they were."
    )
    return cost


def train_at(
    model: Model,
    training: TrainingSetup,
    options: GateTraining | Greedy,
    before: float,
    callbacks: Sequence[TrainerCallback] = (),
) -> dict[str, float]:
    """Train all that requires a gradient as the options say, and average the last checkpoints. before: the dev loss
    now."""
    tuning = replace(training, recipe=options.within(training.recipe))
    keep = max(options.average, 2)
    hf = model.hf
    watch = HarmWatch(hf, tuning, options.train, before)
    cost = train_model(
        hf,
        model.tokenizer,
        model.discovery,
        tuning,
        callbacks=[watch, *callbacks],
        keep=keep,
    )
    average(hf, training.work, options.average)
    return cost
